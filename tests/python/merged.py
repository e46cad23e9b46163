"""Bases with adapters: made here, or by PEFT (tests/golden/merged), against the same sums in NumPy.

    merged.py make FOLDER              a base in two shards, and adapters of it
    merged.py compare BASE ADAPTER SHOWN    the files of SHOWN against the definition, bit for bit
    merged.py peft MERGED SHOWN BASE   a file of SHOWN against what PEFT merged, within one rounding
"""
import json
import math
import re
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from weights import NUMPY_TYPES, fail, header

Tensors = dict[str, np.ndarray]
EPSILONS = {"BF16": 2.0**-8, "F16": 2.0**-10, "F32": 2.0**-22}


def load(path: Path) -> Tensors:
    data = path.read_bytes()
    return {
        name: np.frombuffer(data[tensor.start:tensor.end], NUMPY_TYPES[tensor.dtype]).reshape(tensor.shape)
        for name, tensor in header(path).items()
    }


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`a * b + c` in f32, rounded once. The product is exact in f64; the sum is rounded to odd there."""
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = np.broadcast_to(c.astype(np.float64), product.shape)
    total = product + addend
    rounded = total - product
    error = (product - (total - rounded)) + (addend - rounded)
    bits = total.view(np.int64).copy()
    inexact = np.isfinite(error) & (error != 0)
    bits[inexact & ((error < 0) == (total > 0))] -= 1
    bits[inexact] |= 1
    return bits.view(np.float64).astype(np.float32)


def product(left: np.ndarray, right: np.ndarray, scale: float, base: np.ndarray) -> np.ndarray:
    """The definition in docs/manual/forms.md."""
    total = np.zeros(base.shape, np.float32)
    for k in range(left.shape[1]):
        total = fma(left[:, k, None], right[None, k, :], total)
    return fma(total, np.full(base.shape, scale, np.float32), base)


def scale_of(config: dict, module: str, rank: int) -> float:
    patterns = (key for key in config.get("alpha_pattern") or {} if re.match(rf"(.*\.)?({key})$", module))
    key = next(patterns, None)
    alpha = config["alpha_pattern"][key] if key else config["lora_alpha"]
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def merged(base: Tensors, adapter: Tensors, config: dict) -> Tensors:
    found = dict(base)
    wide = {name.removeprefix("base_model.model."): value.astype(np.float32) for name, value in adapter.items()}
    if next(iter(wide)).startswith("layers.") and not any(name.startswith("layers.") for name in base):
        wide = {f"model.{name}": value for name, value in wide.items()}
    for name, value in wide.items():
        if ".lora_" not in name:
            plain = name.replace(".base_layer", "")
            found[plain] = value.astype(base[plain].dtype) if plain in base else fail(f"{plain} is not in the base")
    for name, a in wide.items():
        module, _, kind = name.partition(".lora_")
        if not kind.startswith(("A", "embedding_A")):
            continue
        b = wide[f"{module}.lora_{kind.replace('A', 'B')}"]
        weight, rank = found[f"{module}.weight"], a.shape[0]
        scale = scale_of(config, module, rank)
        elements = weight.astype(np.float32)
        if kind.startswith("embedding") or (config.get("fan_in_fan_out") and "lm_head" not in module):
            value = product(a.T, b.T, scale, elements)
        else:
            value = product(b.reshape(-1, rank), a.reshape(rank, -1), scale, elements.reshape(weight.shape[0], -1))
        found[f"{module}.weight"] = value.reshape(weight.shape).astype(weight.dtype)
        if (bias := wide.get(f"{module}.lora_B.bias")) is not None:
            old = found[f"{module}.bias"]
            zero = np.zeros((1, len(old)), np.float32)
            total = fma(np.ones((1, len(old)), np.float32), bias[None, :], zero)
            value = fma(total, np.full(zero.shape, scale, np.float32), old.astype(np.float32)[None, :])
            found[f"{module}.bias"] = value[0].astype(old.dtype)
    return found


def same(name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        fail(f"{name}: {found.dtype} {found.shape}, not {wanted.dtype} {wanted.shape}")
    nan = np.isnan(wanted.astype(np.float32)) if wanted.dtype.kind in "fV" else np.zeros(wanted.shape, bool)
    integer = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[wanted.dtype.itemsize]
    differ = (found.view(integer) != wanted.view(integer)) & ~nan
    if differ.any() or (nan & ~np.isnan(found.astype(np.float32))).any():
        place = np.argwhere(differ)[:3].tolist()
        fail(f"{name}: {differ.sum()} of {differ.size} elements differ, at {place}")


def compare(base: Path, adapter: Path, shown: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    tensors: Tensors = {}
    for path in sorted(base.glob("*.safetensors")):
        tensors |= load(path)
    wanted = merged(tensors, load(adapter / "adapter_model.safetensors"), config)
    changed = 0
    for path in sorted(base.glob("*.safetensors")):
        other = shown / path.name
        (length,) = struct.unpack("<Q", path.read_bytes()[:8])
        if other.read_bytes()[: 8 + length] != path.read_bytes()[: 8 + length]:
            fail(f"{other}: another header")
        for name, value in load(other).items():
            same(f"{other.name} {name}", value, wanted[name])
            changed += not np.array_equal(value.view(np.uint8), tensors[name].view(np.uint8))
    if not changed:
        fail("nothing changed")


def peft(wanted: Path, shown: Path, base: Path) -> None:
    types = {name: tensor.dtype for name, tensor in header(base).items()}
    (ours, theirs, before) = (load(path) for path in (shown, wanted, base))
    if ours.keys() != theirs.keys():
        fail(f"other tensors: {ours.keys() ^ theirs.keys()}")
    for name, value in theirs.items():
        one, other, old = (array.astype(np.float64) for array in (ours[name], value, before[name]))
        # PEFT rounds the product to the element type before it adds it.
        bound = EPSILONS[types[name]] * (np.abs(other) + np.abs(other - old)) + 1e-7
        if (np.abs(one - other) > bound).any():
            fail(f"{name}: {np.abs(one - other).max()} from what PEFT merged")


def make(folder: Path) -> None:
    rng = np.random.default_rng(5)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    base = folder / "base"
    base.mkdir(parents=True)
    shapes = {"q_proj": (384, 700), "k_proj": (64, 700), "up_proj": (1500, 384), "down_proj": (384, 1500)}
    types = [ml_dtypes.bfloat16, np.float16, np.float32]
    weight_map = {}
    for shard in range(2):
        tensors = {f"model.layers.{shard}.{name}.weight": normal(*shape).astype(types[i % 3]) for i, (name, shape) in enumerate(shapes.items())}
        tensors |= {f"model.layers.{shard}.norm.weight": normal(384), f"model.layers.{shard}.rope": np.arange(30)}
        if shard == 0:
            tensors["model.embed_tokens.weight"] = normal(3000, 96).astype(ml_dtypes.bfloat16)
        name = f"model-0000{shard + 1}-of-00002.safetensors"
        save_file(tensors, base / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    (base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (base / "config.json").write_text('{"model_type": "made"}')

    def adapter(name: str, rank: int, modules: list[str], dtype, prefix: str = "base_model.model.", **more) -> None:
        tensors = {}
        for shard in range(2):
            for module in modules:
                (rows, columns) = shapes[module]
                at = f"{prefix}layers.{shard}.{module}"
                tensors[f"{at}.lora_A.weight"] = (normal(rank, columns) * 0.1).astype(dtype)
                tensors[f"{at}.lora_B.weight"] = (normal(rows, rank) * 0.1).astype(dtype)
        if more.pop("embedding", False):
            tensors[f"{prefix}embed_tokens.lora_embedding_A"] = (normal(rank, 3000) * 0.1).astype(dtype)
            tensors[f"{prefix}embed_tokens.lora_embedding_B"] = (normal(96, rank) * 0.1).astype(dtype)
        (folder / name).mkdir()
        save_file(tensors, folder / name / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": modules, **more}
        (folder / name / "adapter_config.json").write_text(json.dumps(config))

    model = "base_model.model.model."
    adapter("sixteen", 16, list(shapes), np.float32, model)
    adapter("wide", 130, ["q_proj", "down_proj"], ml_dtypes.bfloat16, model, use_rslora=True)
    adapter("tokens", 7, ["k_proj"], np.float16, model, embedding=True)
    adapter("inner", 3, ["up_proj"], np.float32)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # The library makes files that the owner alone may read.


if __name__ == "__main__":
    {"make": make, "compare": compare, "peft": peft}[sys.argv[1]](*map(Path, sys.argv[2:]))
