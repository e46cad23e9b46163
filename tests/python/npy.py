"""Do mounted .npy files load like their sources?

    npy.py make SOURCE_DIR                 writes .npy files of all versions and many types
    npy.py check SOURCE_DIR MOUNTED_DIR    numpy.load(mmap_mode='r') of each mounted file equals its source's, and the
                                           tensor beside it (`x` for `x.npy`) holds the elements in C order
"""
import sys
from pathlib import Path

import numpy as np

from weights import fail, mapped, same_bytes

TYPES = ("<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1")


def make(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    arrays = {f"type_{name.lstrip('<|')}": (rng.standard_normal((37, 29)) * 100).astype(name) for name in TYPES}
    arrays |= {
        "large": rng.standard_normal((1000, 5000)).astype("<f4"),
        "scalar": np.array(3.5, "<f4"),
        "one": np.array([1.25], "<f8"),
        "empty": np.zeros((0, 7), "<f4"),
        "deep": rng.standard_normal((2, 3, 4, 5, 6)).astype("<f4"),
    }
    for name, array in arrays.items():
        write(folder / f"{name}.npy", array, (1, 0))
    for version in ((2, 0), (3, 0)):
        write(folder / f"version_{version[0]}.npy", arrays["deep"], version)
    return len(arrays) + 2


def write(path: Path, array: np.ndarray, version: tuple[int, int]) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version=version)


def check(sources: Path, mounted: Path) -> int:
    checked = 0
    for source in sorted(sources.glob("*.npy")):
        wanted = np.load(source)
        path = mounted / source.name
        same_bytes(str(path), mapped(path), mapped(source))
        # numpy cannot map an array without elements, from any file system.
        got = np.load(path, mmap_mode="r" if wanted.size else None)
        if got.dtype != wanted.dtype or got.shape != wanted.shape:
            fail(f"{path}: {got.dtype}{got.shape}, expected {wanted.dtype}{wanted.shape}")
        elements = np.frombuffer(wanted.tobytes(), np.uint8)
        same_bytes(f"{path} through numpy.load", np.frombuffer(got.tobytes(), np.uint8), elements)
        same_bytes(str(mounted / source.stem), mapped(mounted / source.stem), elements)
        checked += 1
    if checked == 0:
        fail(f"{sources}: no .npy file there, so nothing was checked")
    return checked


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "make":
        print(f"ok: {make(Path(sys.argv[2]))} files made")
    elif len(sys.argv) == 4 and sys.argv[1] == "check":
        print(f"ok: {check(Path(sys.argv[2]), Path(sys.argv[3]))} files")
    else:
        sys.exit(__doc__)
