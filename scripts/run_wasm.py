"""Runs a WebAssembly program of wasm32-wasip1 in wasmtime. Cargo calls it for each test binary.

    run_wasm.py PROGRAM [ARGUMENT...]

The program sees the current folder, at its own path, and can read it only.
"""

import os
import sys

import wasmtime


def main() -> int:
    program, *arguments = sys.argv[1:]
    engine = wasmtime.Engine()
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    store = wasmtime.Store(engine)
    here = os.getcwd()
    wasi = wasmtime.WasiConfig()
    wasi.argv = [program, *arguments]
    wasi.inherit_stdout()
    wasi.inherit_stderr()
    wasi.preopen_dir(here, here, fs_mutable=False)
    store.set_wasi(wasi)
    instance = linker.instantiate(store, wasmtime.Module.from_file(engine, program))
    start = instance.exports(store)["_start"]
    try:
        start(store)
    except wasmtime.ExitTrap as end:
        return end.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
