"""A vector index of usearch, mapped."""
from same import compare

# snippet
import numpy as np
from usearch.index import Index


def load(folder):
    index = Index.restore(f"{folder}/index.usearch", view=True)
    found = index.search(np.load(f"{folder}/queries.npy"), 5)
    return [found.keys, found.distances]
# end


if __name__ == "__main__":
    compare(load)
