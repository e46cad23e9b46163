"""Loads safetensors files on request and says how long it took: lines `VERB PATH` on standard input.

load: seconds of safetensors.numpy.load_file. walk: seconds of a visit to every page of all tensors, mapped.
digest: the BLAKE3 of all tensors in the order of their names.
"""
import sys
import time

import blake3
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

PAGE = 4096


def walk(path: str) -> int:
    """The sum of the first byte of each page of each tensor, read where they are mapped."""
    with safe_open(path, framework="numpy") as opened:
        names = list(opened.keys())
    data = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    assert names
    return int(data[8 + length :: PAGE].sum(dtype=np.uint64))


def main() -> None:
    for line in sys.stdin:
        verb, path = line.rstrip("\n").split(" ", 1)
        begun = time.perf_counter()
        if verb == "load":
            load_file(path)
            answer = time.perf_counter() - begun
        elif verb == "walk":
            walk(path)
            answer = time.perf_counter() - begun
        else:
            tensors = load_file(path)
            hasher = blake3.blake3()
            for name in sorted(tensors):
                hasher.update(tensors[name].tobytes())
            answer = hasher.hexdigest()
        print(answer, flush=True)


main()
