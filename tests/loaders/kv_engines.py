"""Stores and loads blocks of keys and values by the file tier of an engine, more than a directory may hold.

    kv_engines.py vllm|sglang|lmcache MODULES DIRECTORY LIMIT

MODULES has the modules of the engines (scripts/setup.sh loaders). What these import of their engines, and torch, is replaced
by stand-ins that have the calls which the file tiers make. DIRECTORY has policy=cache:LIMIT, in MiB. Each block that is loaded
has the bytes that were stored, or is absent; the directory never has more than its limit and a block for each writer.
"""

import asyncio
import importlib.util
import mmap
import os
import pathlib
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np

THREADS = 8
BLOCK = 1 << 20
MIB = 1 << 20


def bytes_of(number: int) -> bytes:
    """The bytes of a block."""
    return np.random.default_rng(number).bytes(4096) * (BLOCK // 4096)


def package(name: str, **members: object) -> None:
    """Makes a module of this name with these members, and the packages above it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    vars(sys.modules[name]).update(members)


def module(name: str, path: pathlib.Path) -> types.ModuleType:
    """A module by its path, under the name that it has in its engine."""
    package(name)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


class Anything:
    """Has every member."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str):
        return Anything()

    def __call__(self, *_: object, **__: object) -> None:
        return None


class Vllm:
    """vLLM: `v1/kv_offload/tiering/fs/io.py`, which imports nothing of vLLM."""

    def __init__(self, modules: pathlib.Path, directory: str) -> None:
        self.io, self.directory = module("vllm_io", modules / "vllm_io.py"), directory
        self.direct = self.io.probe_o_direct(directory)

    def path(self, number: int) -> str:
        name = f"{number * 2654435761 % 2**64:016x}"
        return os.path.join(self.directory, name[-3:], name[-5:-3], name + ".bin")

    def store(self, number: int) -> None:
        view = memoryview(mmap.mmap(-1, BLOCK))
        view[:] = bytes_of(number)
        self.io.batch_store_block([self.path(number)], view, [0], BLOCK, self.direct)

    def load(self, number: int) -> bytes | None:
        view = memoryview(mmap.mmap(-1, BLOCK))
        try:
            self.io.batch_load_block([self.path(number)], view, [0], BLOCK, self.direct)
        except FileNotFoundError:
            return None
        return bytes(view)


class Tensor:
    """The calls of a torch tensor of bytes that HiCacheFile makes."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return 1

    def view(self, dtype: object = None) -> "Tensor":
        return self

    def contiguous(self) -> "Tensor":
        return self

    def numpy(self) -> np.ndarray:
        return self.array


class Sglang:
    """SGLang: HiCacheFile of `srt/mem_cache/hicache_storage.py`."""

    def __init__(self, modules: pathlib.Path, directory: str) -> None:
        class Variable:
            def __init__(self, name: str) -> None:
                self.name = name

            def get(self) -> object:
                return {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": directory}.get(self.name)

        class Variables:
            def __getattr__(self, name: str) -> Variable:
                return Variable(name)

        package("torch", uint8=None, Tensor=Tensor)
        package("sglang.srt.environ", envs=Variables())
        package("sglang.srt.utils.common", human_readable_int=int)
        storage = "sglang.srt.mem_cache.hicache_storage"
        found = module(storage, modules / "sglang_hicache_storage.py")
        module("sglang.srt.mem_cache.storage.file.lru_file_evictor", modules / "sglang_lru_file_evictor.py")
        config = found.HiCacheStorageConfig(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
            enable_storage_metrics=False, is_page_first_layout=False, model_name="acme/llama",
        )
        self.file = found.HiCacheFile(config)

    def store(self, number: int) -> None:
        assert self.file.set(f"block{number}", Tensor(np.frombuffer(bytes_of(number), np.uint8)))

    def load(self, number: int) -> bytes | None:
        target = Tensor(np.zeros(BLOCK, np.uint8))
        found = self.file.get(f"block{number}", target)
        return None if found is None else target.array.tobytes()


class Lmcache:
    """LMCache: FSConnector of `v1/storage_backend/connector/fs_connector.py`."""

    def __init__(self, modules: pathlib.Path, directory: str) -> None:
        class Connector:
            save_chunk_meta = False
            meta_shapes = meta_dtypes = meta_fmt = None

            def __init__(self, config: object, metadata: object) -> None:
                pass

            def reshape_partial_chunk(self, found: object, count: int) -> object:
                assert count == BLOCK
                return found

        class Key:
            def __init__(self, number: int) -> None:
                self.number = number

            def to_string(self) -> str:
                return f"acme/llama@1@0@{self.number:016x}"

        class Memory:
            def __init__(self, array: bytearray) -> None:
                self.byte_array = memoryview(array)

            def ref_count_down(self) -> None:
                pass

        class Allocator(Anything):
            def allocate(self, *_: object) -> Memory:
                return Memory(bytearray(BLOCK))

        package("lmcache.logging", init_logger=lambda name: Anything())
        package("lmcache.utils", CacheEngineKey=Key)
        package("lmcache.v1.config", LMCacheEngineConfig=object)
        package("lmcache.v1.memory_management", MemoryObj=Memory)
        package("lmcache.v1.protocol", RemoteMetadata=object)
        package("lmcache.v1.storage_backend.connector.base_connector", RemoteConnector=Connector)
        package("lmcache.v1.storage_backend.local_cpu_backend", LocalCPUBackend=Allocator)
        found = module("lmcache.v1.storage_backend.connector.fs_connector", modules / "lmcache_fs_connector.py")
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.key, self.memory = Key, Memory
        self.connector = found.FSConnector(self.loop, Allocator(), None, base_paths_str=directory)

    def store(self, number: int) -> None:
        put = self.connector.put(self.key(number), self.memory(bytearray(bytes_of(number))))
        asyncio.run_coroutine_threadsafe(put, self.loop).result()

    def load(self, number: int) -> bytes | None:
        found = asyncio.run_coroutine_threadsafe(self.connector.get(self.key(number)), self.loop).result()
        return None if found is None else bytes(found.byte_array)


def held(directory: str) -> int:
    """The logical bytes of the collection, which its control file has at one moment."""
    text = pathlib.Path(directory, ".ctl", "quota").read_text()
    return int(next(line.split()[-1] for line in text.splitlines() if line.startswith("logical bytes")))


def main() -> None:
    name, modules, directory, limit = sys.argv[1:]
    limit = int(limit) * MIB
    engine = {"vllm": Vllm, "sglang": Sglang, "lmcache": Lmcache}[name](pathlib.Path(modules), directory)
    blocks = 3 * limit // BLOCK
    most, is_over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not is_over.is_set():
            most = max(most, held(directory))
            time.sleep(0.001)

    watching = threading.Thread(target=watch)
    watching.start()
    hits = misses = 0

    def one(number: int) -> tuple[int, int]:
        engine.store(number)
        # One that was stored a while ago, which may have gone.
        other = max(0, number - limit // BLOCK // 2 * (number % 4))
        found = engine.load(other)
        assert found is None or found == bytes_of(other), f"{name}: block {other} has other bytes"
        return (0, 1) if found is None else (1, 0)

    with ThreadPoolExecutor(THREADS) as pool:
        for hit, miss in pool.map(one, range(blocks)):
            hits, misses = hits + hit, misses + miss
    is_over.set()
    watching.join()
    assert hits > blocks // 4 and misses > 0, f"{name}: {hits} hits, {misses} misses"
    assert most <= limit + THREADS * BLOCK, f"{name}: {most / MIB} MiB in {limit / MIB}"
    print(f"{name}: {blocks} blocks of 1 MiB, {hits} hits, {misses} misses, at most {most / MIB:.0f} of {limit / MIB:.0f} MiB, no wrong byte")


main()
