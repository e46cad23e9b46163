"""Stores and loads blocks of keys and values by vLLM's own file tier: lines `VERB DIRECTORY` on standard input.

The first argument is vLLM's module `v1/kv_offload/tiering/fs/io.py`, which uses the standard library only. store: seconds
to store the blocks, of new bytes each time. load: seconds to load them again, and an error if a byte differs. clear: removes
them. As in vLLM, as many threads as THREADS store and load, each a batch of paths with one call, by O_DIRECT where the
directory has it.
"""

import importlib.util
import mmap
import os
import pathlib
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

THREADS = 16
BLOCK = 2 << 20
BLOCKS_MAX = 64
BATCH = 4


def module(path: str):
    """A Python module by its path."""
    spec = importlib.util.spec_from_file_location("vllm_io", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def path_of(directory: str, number: int) -> str:
    """Two levels of directories by the name's first letters, as vLLM has them."""
    name = f"{number * 2654435761 % 2**64:016x}"
    return os.path.join(directory, name[-3:], name[-5:-3], name + ".bin")


def main() -> None:
    vllm, blocks = module(sys.argv[1]), min(int(sys.argv[2]), BLOCKS_MAX)
    kept = memoryview(mmap.mmap(-1, blocks * BLOCK))
    back = memoryview(mmap.mmap(-1, blocks * BLOCK))
    for number in range(blocks):
        kept[number * BLOCK : (number + 1) * BLOCK] = os.urandom(4096) * (BLOCK // 4096)
    pool = ThreadPoolExecutor(THREADS)
    batches = [list(range(first, min(first + BATCH, blocks))) for first in range(0, blocks, BATCH)]

    def each(call, view: memoryview, directory: str, direct: bool) -> float:
        def one(batch: list[int]) -> None:
            call([path_of(directory, n) for n in batch], view, [n * BLOCK for n in batch], BLOCK, direct)

        begun = time.perf_counter()
        list(pool.map(one, batches))
        return time.perf_counter() - begun

    for passes, line in enumerate(sys.stdin):
        verb, directory = line.rstrip("\n").split(" ", 1)
        direct = vllm.probe_o_direct(directory)
        if verb == "store":
            for number in range(blocks):
                kept[number * BLOCK : number * BLOCK + 8] = (passes * blocks + number).to_bytes(8, "little")
            answer = each(vllm.batch_store_block, kept, directory, direct)
        elif verb == "load":
            answer = each(vllm.batch_load_block, back, directory, direct)
            if kept != back:
                sys.exit(f"{directory}: the blocks that were loaded are not those that were stored")
        else:
            for entry in pathlib.Path(directory).iterdir():
                shutil.rmtree(entry)
            answer = 0.0
        print(answer, flush=True)


main()
