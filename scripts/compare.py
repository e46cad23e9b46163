"""Reads a mounted tensor with numpy.memmap and compares it with the file it came from.

    compare.py SOURCE.safetensors MOUNTED_DIR TENSOR --exact | --bits 8|7|5|3

Prints the largest and the RMS error. Exits 1 if --exact finds a difference; with --bits, if there is none at all (then
nothing was quantized) or a group of 64 values errs by more than half a step of that many bits. Needs numpy only.
"""
import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np

TYPES = {"F32": "<f4", "F16": "<f2"}
QMAX = {8: 127, 7: 63, 5: 15, 3: 3}
GROUP = 64


def source_tensor(path: Path, name: str) -> np.ndarray:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entry = json.loads(file.read(length))[name]
    start, end = entry["data_offsets"]
    return np.memmap(path, np.uint8, "r", 8 + length + start, (end - start,)).view(TYPES[entry["dtype"]]).reshape(entry["shape"])


def root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def groups(x: np.ndarray) -> np.ndarray:
    """Rows of 64 values, zeros behind the last."""
    padded = np.zeros(-(-x.size // GROUP) * GROUP, np.float64)
    padded[: x.size] = x.reshape(-1)
    return padded.reshape(-1, GROUP)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("source", type=Path)
    arguments.add_argument("mounted", type=Path)
    arguments.add_argument("tensor")
    expected = arguments.add_mutually_exclusive_group(required=True)
    expected.add_argument("--exact", action="store_true")
    expected.add_argument("--bits", type=int, choices=sorted(QMAX))
    given = arguments.parse_args()

    source = source_tensor(given.source, given.tensor)
    mounted = np.memmap(given.mounted / given.tensor, source.dtype, "r", shape=source.shape)
    print(f"{given.tensor}: {mounted.dtype} {mounted.shape}, RMS {root_mean_square(mounted):.6f}")
    if given.exact:
        if mounted.tobytes() != source.tobytes():
            sys.exit("differs from the source")
        print("identical to the source, bit for bit")
        return
    error = mounted.astype(np.float64) - source
    print(f"error against the source: max {np.abs(error).max():.6f}, RMS {root_mean_square(error):.6f}")
    if not error.any():
        sys.exit(f"reads exactly like the source: it was not quantized to {given.bits} bits")
    half_step = np.abs(groups(source)).max(axis=1) / (2 * QMAX[given.bits])
    worst = np.sqrt(np.mean(np.square(groups(error)), axis=1))
    # 1e-6: the rounding of the decoded values to their own type.
    over = worst > half_step * (1 + 1e-6)
    if over.any():
        sys.exit(f"{np.count_nonzero(over)} groups err by more than {given.bits} bits explain")


if __name__ == "__main__":
    main()
