"""Loads safetensors files to a GPU with InstantTensor and fastsafetensors, where they are installed, compares the tensors there
with those of the package safetensors, and prints rows of the table of scripts/gpu.sh.

    python3 scripts/gpu_loaders.py FILES
"""

import importlib.metadata
import os
import sys
import time

READS = 5


def by_instanttensor(path):
    from instanttensor import safe_open

    with safe_open(path, framework="pt", device=0) as file:
        return dict(file.tensors())


def by_fastsafetensors(path):
    from fastsafetensors import fastsafe_open

    with fastsafe_open(path, framework="pt", device="cuda:0") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def by_safetensors(path):
    from safetensors.torch import load_file

    return load_file(path, device="cuda:0")


def compared(found, wanted):
    import torch

    def is_same(name):
        one, other = found[name], wanted[name]
        return one.is_cuda and one.shape == other.shape and torch.equal(one.view(torch.uint8), other.view(torch.uint8))

    return found.keys() == wanted.keys() and all(map(is_same, wanted))


def main(files):
    try:
        import safetensors.torch
        import torch
    except ImportError as error:
        return print(f"skipped: the loaders need torch and safetensors: {error}", file=sys.stderr)
    if not torch.cuda.is_available():
        return print("skipped: torch finds no device", file=sys.stderr)
    differ = False
    for package, load in [
        ("instanttensor", by_instanttensor),
        ("fastsafetensors", by_fastsafetensors),
        ("safetensors", by_safetensors),
    ]:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"skipped: {package} is not installed", file=sys.stderr)
            continue
        for path in files:
            bytes, speeds = os.stat(path).st_size, []
            try:
                for _ in range(READS):
                    tensors = None
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    tensors = load(path)
                    torch.cuda.synchronize()
                    speeds.append(bytes / (time.perf_counter() - start) / 1e9)
                same = compared(tensors, by_safetensors(path))
            except Exception as error:
                print(f"{package} {version} of {path}: {error}", file=sys.stderr)
                continue
            differ |= not same
            result = "compared on the device: " + ("the same" if same else "they differ")
            device = torch.cuda.get_device_name(0)
            row = [path, bytes, f"{package} {version}", f"{speeds[0]:.2f}", f"{max(speeds):.2f}", result, device]
            print("|", " | ".join(map(str, row)), "|", flush=True)
    return 3 if differ else 0


sys.exit(main(sys.argv[1:]))
