"""Vector indexes of faiss, mapped."""
from same import compare

# snippet
import faiss
import numpy as np


def load(folder):
    faiss.omp_set_num_threads(1)
    index = faiss.read_index(f"{folder}/index.faiss", faiss.IO_FLAG_MMAP)
    return list(index.search(np.load(f"{folder}/queries.npy"), 5))
# end


if __name__ == "__main__":
    compare(load)
