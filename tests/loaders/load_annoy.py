"""A vector index of annoy, which it maps."""
from same import compare

# snippet
import numpy as np
from annoy import AnnoyIndex


def load(folder):
    index = AnnoyIndex(64, "angular")
    index.load(f"{folder}/index.ann")
    return [index.get_nns_by_vector(query, 5, include_distances=True) for query in np.load(f"{folder}/queries.npy")]
# end


if __name__ == "__main__":
    compare(load)
