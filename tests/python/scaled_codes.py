"""Makes models of quantized weights, and compares what a mount shows of them with float64 loops.

    scaled_codes.py make FOLDER
    scaled_codes.py compare FOLDER FORM TYPE

The loops follow the descriptions of the formats. Values are rounded once, from float64.
"""
import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
NF4 = np.array([-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0, 0.0795803, 0.1609302,
                0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1], np.float32)
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
random = np.random.default_rng(5)
tensors, wanted, kept = {}, {}, {}


def save(all, path, **options):
    save_file({name: np.array(value, order="C") for name, value in all.items()}, path, **options)


def bits(shape, most=256, dtype=np.uint8):
    return random.integers(0, most, shape).astype(dtype)


def scales(shape, dtype=np.float32):
    return (random.random(shape) * 0.1 + 0.001).astype(dtype)


def e8m0(codes):
    return np.where(codes == 255, np.nan, 2.0 ** (codes.astype(np.float64) - 127))


def words(codes, axis, width=4):
    """Packs codes into words of 32 bits, the first in the lowest bits."""
    codes = np.moveaxis(codes.astype(np.uint64), axis, -1)
    each = 32 // width
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)])
    codes = codes.reshape(*codes.shape[:-1], -1, each) << (np.arange(each, dtype=np.uint64) * np.uint64(width))
    return np.moveaxis(np.bitwise_or.reduce(codes, -1).astype(np.uint32), -1, axis).view(np.int32).copy()


def halves(codes):
    """Packs codes of four bits into bytes, the first in the lower half."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def nibbles(packed):
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


def f8(shape, kind=ml_dtypes.float8_e4m3fn):
    codes = bits(shape)
    codes.flat[:4] = [0x7f, 0xff, 0, 0x80]
    return codes.view(kind)


def make(folder):
    global tensors
    wide = np.float64
    bf16 = ml_dtypes.bfloat16
    # FP8: one scale, one a row, blocks.
    for name, scale, block in [("one", scales(()), None), ("row", scales((300, 1), bf16), None),
                               ("blocks", scales((3, 2)), 128), ("special", np.array([[0], [np.inf], [np.nan], [1]], np.float32), None)]:
        weight = f8((4, 40) if name == "special" else (300, 200))
        tensors[f"fp8.{name}.weight"] = weight
        tensors[f"fp8.{name}.weight_scale" + ("_inv" if block else "")] = scale
        if block:
            scale = np.repeat(np.repeat(scale, block, 0), block, 1)[:300, :200]
        with np.errstate(all="ignore"):
            wanted[f"fp8.{name}.weight"] = weight.astype(wide) * scale.astype(wide)
    tensors["fp8.one.input_scale"] = scales(())
    weight, scale = f8((3, 40, 24), ml_dtypes.float8_e5m2), scales((3, 1, 24))
    tensors["fp8.experts"], tensors["fp8.experts_scale"] = weight, scale
    with np.errstate(all="ignore"):
        wanted["fp8.experts"] = weight.astype(wide) * scale.astype(wide)
    # INT8, with zero points.
    weight, scale, zero = bits((30, 20)).view(np.int8), scales((30, 1)), bits((30, 1)).view(np.int8)
    tensors |= {"int8.weight": weight, "int8.weight_scale": scale, "int8.weight_zero_point": zero}
    wanted["int8.weight"] = (weight.astype(wide) - zero.astype(wide)) * scale.astype(wide)
    # compressed-tensors: packed integers, with zero points, with an order of columns, of odd length.
    for name, columns, group in [("plain", 256, 128), ("odd", 75, 75), ("order", 64, 16)]:
        codes, scale = bits((40, columns), 16), scales((40, columns // group), bf16)
        zero = bits((40, columns // group), 16)
        tensors[f"packed.{name}.weight_packed"] = words(codes, 1)
        tensors[f"packed.{name}.weight_scale"] = scale
        tensors[f"packed.{name}.weight_shape"] = np.array([40, columns], np.int64)
        groups = np.arange(columns) // group
        if name == "order":
            groups = random.permutation(groups)
            tensors["packed.order.weight_g_idx"] = groups.astype(np.int32)
        if name == "plain":
            zero[:] = 8
        else:
            tensors[f"packed.{name}.weight_zero_point"] = words(zero, 0)
        wanted[f"packed.{name}.weight"] = (codes.astype(wide) - zero[:, groups]) * scale.astype(wide)[:, groups]
    codes, scale = bits((24, 64)), scales((24, 2), np.float16)
    tensors |= {"packed.eight.weight_packed": words(codes, 1, 8), "packed.eight.weight_scale": scale,
                "packed.eight.weight_shape": np.array([24, 64], np.int32)}
    wanted["packed.eight.weight"] = (codes.astype(wide) - 128) * np.repeat(scale.astype(wide), 32, 1)
    # NVFP4 and MXFP4.
    codes, scale, top = bits((32, 48), 16), f8((32, 3)), np.float32(123.4)
    for name, suffix, of in [
            ("nvfp4", "_packed", lambda s: (s.astype(np.float32) / top).astype(wide)), ("modelopt", "", lambda s: s.astype(wide) * wide(top))]:
        tensors |= {f"{name}.weight{suffix}": halves(codes), f"{name}.weight_scale": scale,
                    f"{name}.weight_{'global_scale' if suffix else 'scale_2'}": np.array([top] if suffix else top, np.float32),
                    f"{name}.input_global_scale": np.array([top])}
        wanted[f"{name}.weight"] = E2M1[codes] * np.repeat(of(scale), 16, 1)
    codes, scale = bits((16, 96), 16), bits((16, 3))
    scale.flat[:4] = [0, 1, 254, 255]
    tensors |= {"mxfp4.weight_packed": halves(codes), "mxfp4.weight_scale": scale}
    wanted["mxfp4.weight"] = E2M1[codes] * np.repeat(e8m0(scale), 32, 1)
    blocks, scale = bits((3, 50, 4, 16)), bits((3, 50, 4)) % 60 + 90
    tensors |= {"experts.down_blocks": blocks, "experts.down_scales": scale.astype(np.uint8), "experts.down_bias": scales((3, 50), bf16)}
    values = E2M1[nibbles(blocks)] * e8m0(scale)[..., None]
    wanted["experts.down"] = values.reshape(3, 50, 128).transpose(0, 2, 1)
    kept["experts.down_bias"] = tensors["experts.down_bias"]
    # GPTQ, with an order of rows, and AWQ.
    for name, width, ordered in [("plain", 4, False), ("order", 4, True), ("eight", 8, False), ("two", 2, False)]:
        inner, out, group = 128, 96, 32
        codes, scale = bits((inner, out), 2 ** width), scales((inner // group, out), np.float16)
        zero = bits((inner // group, out), 2 ** width)
        groups = np.arange(inner) // group
        groups = random.permutation(groups) if ordered else groups
        tensors |= {f"gptq.{name}.qweight": words(codes, 0, width), f"gptq.{name}.scales": scale,
                    f"gptq.{name}.qzeros": words(zero, 1, width), f"gptq.{name}.g_idx": groups.astype(np.int32)}
        wanted[f"gptq.{name}.weight"] = ((codes.astype(wide) - (zero.astype(wide) + 1)[groups]) * scale.astype(wide)[groups]).T
    codes, scale, zero = bits((64, 80), 16), scales((2, 80), np.float16), bits((2, 80), 16)
    order = lambda all: words(all.reshape(*all.shape[:-1], -1, 8)[..., AWQ].reshape(all.shape), 1)
    tensors |= {"awq.qweight": order(codes), "awq.scales": scale, "awq.qzeros": order(zero)}
    wanted["awq.weight"] = ((codes.astype(wide) - np.repeat(zero, 32, 0)) * np.repeat(scale.astype(wide), 32, 0)).T
    # bitsandbytes.
    codes, absmax = bits((20 * 32,), 16), scales((10,))
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [20, 32]}
    text = lambda state: np.frombuffer(json.dumps(state).encode(), np.uint8)
    packed = (codes[::2] << 4 | codes[1::2]).reshape(-1, 1)
    tensors |= {"nf4.weight": packed, "nf4.weight.absmax": absmax, "nf4.weight.quant_map": NF4,
                "nf4.weight.quant_state.bitsandbytes__nf4": text(state)}
    wanted["nf4.weight"] = (NF4.astype(wide)[codes] * np.repeat(absmax.astype(wide), 64)).reshape(20, 32)
    fp4, table, nested = (random.random(16) - 0.5).astype(np.float32), random.random(256).astype(np.float32), scales((1,))
    absmax = bits((10,))
    state = state | {"quant_type": "fp4", "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25}
    tensors |= {"fp4.weight": packed, "fp4.weight.absmax": absmax, "fp4.weight.quant_map": fp4, "fp4.weight.nested_absmax": nested,
                "fp4.weight.nested_quant_map": table, "fp4.weight.quant_state.bitsandbytes__fp4": text(state)}
    scale = table[absmax] * nested + np.float32(0.25)
    wanted["fp4.weight"] = (fp4.astype(wide)[codes] * np.repeat(scale.astype(wide), 64)).reshape(20, 32)
    weight, scale = bits((30, 20)).view(np.int8), scales((30,))
    tensors |= {"bnb8.weight": weight, "bnb8.SCB": scale, "bnb8.weight_format": np.array(0, np.uint8)}
    wanted["bnb8.weight"] = weight.astype(wide) * scale.astype(wide)[:, None] / 127
    # HQQ, groups of rows and of columns.
    for name, axis, width in [("rows", 1, 4), ("columns", 0, 4), ("eight", 1, 8), ("two", 0, 2), ("three", 1, 3)]:
        groups, group = 30, 64
        codes = bits((groups, group) if axis else (group, groups), 2 ** width)
        shape = (groups, 1) if axis else (1, groups)
        scale, zero = scales(shape, np.float16), (random.random(shape) * 15).astype(np.float16)
        parts = 10 if width == 3 else 8 // width
        step = -(-len(codes) // parts)
        padded = np.zeros((step * parts, codes.shape[1]), np.int32)
        padded[:len(codes)] = codes
        top = 30 if width == 3 else 8
        packed = sum(padded[i * step:(i + 1) * step] << (top - width * (i + 1)) for i in range(parts))
        tensors |= {f"hqq.{name}.W_q": packed.astype(np.int32 if width == 3 else np.uint8), f"hqq.{name}.scale": scale,
                    f"hqq.{name}.zero": zero, f"hqq.{name}.shape": np.array([60, 32]), f"hqq.{name}.axis": np.array(axis, np.int32),
                    f"hqq.{name}.nbits": np.array(width, np.int32), f"hqq.{name}.group_size": np.array(group, np.int32)}
        wanted[f"hqq.{name}.weight"] = ((codes.astype(wide) - zero.astype(wide)) * scale.astype(wide)).reshape(60, 32)
    # Without codes, and with codes that are not decoded.
    kept["norm.weight"] = scales((40,), bf16)
    tensors["norm.weight"] = kept["norm.weight"]
    stored = {"marlin.B": bits((4, 8), 9, np.int32), "marlin.s": scales((4, 8), np.float16)}
    folder.mkdir(parents=True)
    config = {"torch_dtype": "float16", "hidden_size": 4, "quantization_config": {"quant_method": "x", "weight_block_size": [128, 128]}}
    (folder / "config.json").write_text(json.dumps(config))
    save(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "stored").mkdir()
    save(stored, folder / "stored/model.safetensors")
    (folder / "stored/config.json").write_text(json.dumps(config))
    # The scales of a weight in another shard.
    shards = folder / "shards"
    shards.mkdir()
    save({"a.weight": tensors["fp8.row.weight"], "norm": kept["norm.weight"]}, shards / "model-00001-of-00002.safetensors")
    save({"a.weight_scale": tensors["fp8.row.weight_scale"]}, shards / "model-00002-of-00002.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": {"a.weight": "model-00001-of-00002.safetensors", "norm": "model-00001-of-00002.safetensors",
                                                       "a.weight_scale": "model-00002-of-00002.safetensors"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    np.savez(folder.parent / "wanted.npz", **wanted, **{f"kept:{name}": value.astype(np.float64) for name, value in kept.items()})


def rounded(values, to):
    with np.errstate(all="ignore"):
        if to == "bf16":
            # ml_dtypes rounds float64 twice.
            _, exponent = np.frexp(values)
            unit = np.ldexp(1.0, np.maximum(exponent - 8, -133))
            near = np.where(np.isfinite(values), np.rint(values / unit) * unit, values)
            return near.astype(np.float32).astype(ml_dtypes.bfloat16)
        return values.astype({"f32": np.float32, "f16": np.float16}[to])


def read(path):
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    assert header.pop("__metadata__", {"format": "pt"}) == {"format": "pt"}
    return {name: (entry["dtype"], entry["shape"], data[end + entry["data_offsets"][0]:end + entry["data_offsets"][1]])
            for name, entry in header.items()}


def same(name, found, values, to):
    size = 4 if to == "f32" else 2
    kind = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[to]
    assert len(found) == values.size * size, (name, len(found))
    one, other = np.frombuffer(found, kind), rounded(values.reshape(-1), to)
    differ = (one.view(f"u{size}") != other.view(f"u{size}")) & ~(np.isnan(one.astype(np.float32)) & np.isnan(other.astype(np.float32)))
    assert not differ.any(), (name, to, int(differ.sum()), int(differ.argmax()), one[differ][:3], other[differ][:3])


def compare(folder, form, to):
    all = dict(np.load(folder.parent / "wanted.npz"))
    all = {name.removeprefix("kept:"): value for name, value in all.items()}
    found = read(form / "model.safetensors")
    assert found.keys() == all.keys(), found.keys() ^ all.keys()
    for name, (dtype, shape, data) in found.items():
        assert (dtype, shape) == ({"f32": "F32", "f16": "F16", "bf16": "BF16"}[to], list(all[name].shape)), name
        same(name, data, all[name], to)
        same(name, (form / ".tensors" / name).read_bytes(), all[name], to)
    assert {entry.name for entry in (form / ".tensors").iterdir() if not entry.is_dir()} == all.keys()
    config = json.loads((form / "config.json").read_text())
    assert config == {"torch_dtype": {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[to], "hidden_size": 4}, config
    shards = form / "shards"
    assert read(shards / "model-00001-of-00002.safetensors").keys() == {"a.weight", "norm"}
    same("a", read(shards / "model-00001-of-00002.safetensors")["a.weight"][2], all["fp8.row.weight"], to)
    assert read(shards / "model-00002-of-00002.safetensors") == {}
    index = json.loads((shards / "model.safetensors.index.json").read_text())
    size = 4 if to == "f32" else 2
    assert index == {"metadata": {"total_size": (300 * 200 + 40) * size},
                     "weight_map": {name: "model-00001-of-00002.safetensors" for name in ("a.weight", "norm")}}, index
    for name in ("model.safetensors", "config.json"):
        stored, shown = folder / "stored" / name, form / "stored" / name
        if name == "config.json":
            assert stored.read_bytes() == shown.read_bytes()
        else:
            assert read(stored) == read(shown)


if sys.argv[1] == "make":
    make(Path(sys.argv[2]))
else:
    compare(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
