"""Arrays, read whole and mapped, and a tensor's own file."""
from same import compare

# snippet
import numpy as np


def load(folder):
    whole = np.load(f"{folder}/w.npy")
    mapped = np.load(f"{folder}/w.npy", mmap_mode="r")
    # The tensor of w.npy is a file too, which has the elements only.
    tensor = np.memmap(f"{folder}/w", dtype="<f4", mode="r", shape=(300, 500))
    return [whole, mapped[17], tensor[:, 3].copy()]
# end


if __name__ == "__main__":
    compare(load)
