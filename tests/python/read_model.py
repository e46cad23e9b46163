"""Does a mounted model read like its source? `read_model.py SOURCE.safetensors MOUNTED_DIR`

MOUNTED_DIR holds a container of the source's file name and the tensors beside it. Checked: the container byte for byte
and through the safetensors library, every tensor through numpy.memmap, eight threads on one mapping, and a second
process that maps while this one reads. Exits 1 with a message at the first difference.
"""
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from safetensors import safe_open

from weights import NUMPY_TYPES, fail, header, mapped, mounted_file, same_bytes

THREADS = 8
RANGES_PER_THREAD = 400
RANGE_BYTES_MAX = 1 << 20
CHUNK_BYTES = 1 << 20
SECOND_PROCESS_SECONDS = 120


def check_library(source: Path, container: Path) -> int:
    """The safetensors library sees the same tensors in both."""
    with safe_open(source, "np") as wanted, safe_open(container, "np") as got:
        if sorted(got.keys()) != sorted(wanted.keys()):
            fail(f"{container}: names differ: {sorted(set(got.keys()) ^ set(wanted.keys()))[:5]}")
        if got.metadata() != wanted.metadata():
            fail(f"{container}: metadata {got.metadata()}, expected {wanted.metadata()}")
        for name in wanted.keys():
            a, b = got.get_tensor(name), wanted.get_tensor(name)
            if a.dtype != b.dtype or a.shape != b.shape:
                fail(f"{container}: {name} is {a.dtype}{a.shape}, expected {b.dtype}{b.shape}")
            same_bytes(f"{container}: {name} through safe_open", as_bytes(a), as_bytes(b))
        return len(wanted.keys())


def as_bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(array.tobytes(), np.uint8)


def check_tensor_files(source: Path, folder: Path) -> int:
    """numpy.memmap of each tensor's own file, with the type and shape of the source's header."""
    bytes_wanted = mapped(source)
    total = 0
    for tensor in header(source).values():
        path = mounted_file(folder, tensor.name)
        wanted = bytes_wanted[tensor.start : tensor.end]
        if path.stat().st_size != wanted.size:
            fail(f"{path}: {path.stat().st_size} bytes, expected {wanted.size}")
        if wanted.size:
            array = np.memmap(path, NUMPY_TYPES[tensor.dtype], "r", shape=tensor.shape)
            same_bytes(str(path), array.reshape(-1).view(np.uint8), wanted)
        total += wanted.size
    return total


def check_threads(container: Path, wanted: np.ndarray) -> int:
    """Eight threads, one mapping, random ranges."""
    got = mapped(container)

    def read(seed: int) -> int:
        rng = np.random.default_rng(seed)
        read_bytes = 0
        for _ in range(RANGES_PER_THREAD):
            start = int(rng.integers(0, wanted.size))
            end = min(wanted.size, start + int(rng.integers(1, RANGE_BYTES_MAX)))
            same_bytes(f"{container}, thread {seed}, bytes {start}..{end} of one mapping", got[start:end], wanted[start:end])
            read_bytes += end - start
        return read_bytes

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(read, range(THREADS)))


def walk(container: Path, wanted: np.ndarray, who: str) -> None:
    """Maps the container anew and reads all of it, a chunk at a time."""
    got = mapped(container)
    for start in range(0, wanted.size, CHUNK_BYTES):
        same_bytes(f"{container}, {who}, from byte {start}", got[start : start + CHUNK_BYTES], wanted[start : start + CHUNK_BYTES])


def check_two_processes(source: Path, container: Path, wanted: np.ndarray) -> int:
    """Reads in a loop while another process starts, maps the same file and reads it all."""
    stop = threading.Event()
    passes = 0
    failures: list[str] = []

    def keep_reading() -> None:
        nonlocal passes
        try:
            while not stop.is_set():
                walk(container, wanted, "first process")
                passes += 1
        except SystemExit as failure:
            failures.append(str(failure))

    reader = threading.Thread(target=keep_reading)
    reader.start()
    try:
        second = subprocess.run([sys.executable, __file__, "walk", str(source), str(container)],
                                capture_output=True, text=True, timeout=SECOND_PROCESS_SECONDS)
    except subprocess.TimeoutExpired:
        failures.append(f"FAILED: the second process did not finish within {SECOND_PROCESS_SECONDS} s")
    else:
        if second.returncode != 0:
            failures.append(second.stderr.strip() or f"FAILED: the second process exited {second.returncode}")
    finally:
        stop.set()
        reader.join()
    if failures:
        sys.exit(failures[0])
    if passes == 0:
        fail("the first process did not finish one pass")
    return passes


def main(source: Path, folder: Path) -> None:
    container = folder / source.name
    wanted = mapped(source)
    same_bytes(str(container), mapped(container), wanted)
    tensors = check_library(source, container)
    tensor_bytes = check_tensor_files(source, folder)
    threaded_bytes = check_threads(container, wanted)
    passes = check_two_processes(source, container, wanted)
    print(f"ok: {tensors} tensors, {tensor_bytes} bytes mapped; {threaded_bytes} bytes by {THREADS} threads; {passes} passes beside a second process")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "walk":
        walk(Path(sys.argv[3]), mapped(Path(sys.argv[2])), "second process")
    elif len(sys.argv) == 3:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        sys.exit(__doc__)
