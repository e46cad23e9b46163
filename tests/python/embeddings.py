"""A model's embedding table as an embedding batch, and what is served of it.

    embeddings.py make SOURCE.safetensors STEM     STEM.cgeb and STEM.cgei: rows of 4 times the row of a word, 8 weights
    embeddings.py exact STEM COLLECTION_DIR        the mounted batch's npy form, against the rows
    embeddings.py bound STEM COLLECTION_DIR        the mounted vectors in 8 bits, absmax, against the rows

The batch is written by tests/golden/reference.py. Exits 1 at the first difference.
"""
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open

from weights import fail

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import reference  # noqa: E402

TABLE, TILES, EXPERTS, TOP_K, GROUP = "embeddings.word_embeddings.weight", 4, 8, 2, 64
STRIDE = 8192


def make(source: Path, stem: Path) -> None:
    with safe_open(source, "np") as opened:
        rows = np.tile(opened.get_tensor(TABLE), (1, TILES)).astype("<f4")
    rng = np.random.default_rng(11)
    weights = rng.random((len(rows), EXPERTS), np.float32)
    selected = rng.integers(0, EXPERTS, (len(rows), TOP_K), np.uint8)
    records = (reference.cgeb_record(row, w, bytes(s)) for row, w, s in zip(rows, weights, selected))
    batch, index = reference.cgeb_file(records)
    stem.with_suffix(".cgeb").write_bytes(batch)
    stem.with_suffix(".cgei").write_bytes(index)
    np.save(stem.with_suffix(".rows.npy"), rows)


def exact(stem: Path, collection: Path) -> None:
    rows = np.load(stem.with_suffix(".rows.npy"), mmap_mode="r")
    served = np.memmap(collection / f"{stem.name}.cgeb", np.uint8, "r")
    if served.size != len(rows) * STRIDE or any(bytes(served[at : at + 4]) != b"CGEB" for at in range(0, served.size, STRIDE)):
        fail(f"{stem.name}.cgeb: {served.size} bytes, and a record does not begin with its page")
    form = np.load(collection / ".as" / "npy" / f"{stem.name}.npy", mmap_mode="r")
    if form.offset % 4096 or form.shape != rows.shape or not np.array_equal(form, rows):
        fail(f"the npy form of {stem.name} is not the table")


def bound(stem: Path, collection: Path) -> None:
    rows = np.load(stem.with_suffix(".rows.npy"), mmap_mode="r")
    served = np.memmap(collection / stem.name, "<f4", "r").reshape(rows.shape)
    groups = np.abs(np.asarray(rows)).reshape(-1, GROUP).max(axis=1)
    errors = np.abs(np.asarray(served) - rows).reshape(-1, GROUP).max(axis=1)
    # Half a step, and the rounding of the product to f32.
    worst = float((errors - groups * (1 / (2 * 127) + 2.0**-22)).max())
    if worst > 0 or not errors.any():
        fail(f"{stem.name} in 8 bits: over the bound by {worst}")


if __name__ == "__main__":
    {"make": make, "exact": exact, "bound": bound}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
