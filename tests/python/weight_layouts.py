"""Safetensors files of quantized weights, and what casts show of them.

    weight_layouts.py make FOLDER             a file FOLDER/LAYOUT.safetensors for each layout
    weight_layouts.py cast FOLDER FORM TYPE   compares FORM, a directory of a mount, with the files: codes and scales as they are,
                                         the floats of NUMBERS and NORM as NumPy casts them to TYPE
"""
import json
import os
import struct
import sys

import ml_dtypes
import numpy as np

FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn}
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "U32": 4}
NORM = {"norm.weight": ("F32", (64,)), "head.weight": ("BF16", (16, 64))}

LAYOUTS = {
    "gptq": {"l.qweight": ("I32", (32, 64)), "l.qzeros": ("I32", (2, 8)), "l.scales": ("F16", (2, 64)), "l.g_idx": ("I32", (256,)), "l.bias": ("F16", (64,))},
    "awq": {"l.qweight": ("I32", (64, 8)), "l.qzeros": ("I32", (2, 8)), "l.scales": ("F16", (2, 64))},
    "fp8-blocks": {"l.weight": ("F8_E4M3", (256, 128)), "l.weight_scale_inv": ("F32", (2, 1))},
    "fp8-rows": {"l.weight": ("F8_E4M3", (16, 64)), "l.weight_scale": ("BF16", (16, 1)), "l.input_scale": ("F32", ()), "a.k_scale": ("F32", ())},
    "fp8-comfy": {"l.weight": ("F8_E4M3", (16, 64)), "l.scale_weight": ("F32", ()), "l.scale_input": ("F32", ())},
    "fp8-without-scales": {"l.weight": ("F8_E4M3", (16, 64)), "n.query_norm.scale": ("BF16", (16,))},
    "nvfp4": {"l.weight_packed": ("U8", (16, 32)), "l.weight_scale": ("F8_E4M3", (16, 4)), "l.weight_global_scale": ("F32", (1,)), "l.input_global_scale": ("F32", (1,))},
    "modelopt": {"l.weight": ("U8", (16, 32)), "l.weight_scale": ("F8_E4M3", (16, 4)), "l.weight_scale_2": ("F32", ())},
    "mxfp4": {"e.gate_up_proj_blocks": ("U8", (2, 4, 2, 16)), "e.gate_up_proj_scales": ("U8", (2, 4, 2)), "e.gate_up_proj_bias": ("BF16", (2, 4))},
    "mxfp8": {"l.weight": ("F8_E4M3", (16, 64)), "l.weight_scale": ("F8_E8M0", (16, 2))},
    "bitsandbytes-4": {"l.weight": ("U8", (512, 1)), "l.weight.absmax": ("F32", (16,)), "l.weight.quant_map": ("F32", (16,)), "l.weight.quant_state.bitsandbytes__nf4": ("U8", (80,)), "l.bias": ("F16", (16,))},
    "bitsandbytes-8": {"l.weight": ("I8", (16, 64)), "l.SCB": ("F32", (16,))},
    "hqq": {"l.W_q": ("U8", (64, 64)), "l.scale": ("F16", (64, 1)), "l.zero": ("F16", (64, 1)), "l.bias": ("F16", (16,))},
    "marlin": {"l.B": ("I32", (4, 128)), "l.s": ("F16", (1, 64)), "l.workspace": ("I32", (16,))},
    "aqlm": {"l.codes": ("I8", (16, 8, 1)), "l.codebooks": ("F16", (1, 256, 1, 8)), "l.scales": ("F16", (16, 1, 1, 1))},
    "torchao": {"l._weight_qdata": ("I8", (16, 64)), "l._weight_scale": ("F32", (16, 1)), "l._weight_zero_point": ("I8", (16, 1))},
    "vptq": {"l.indices": ("I32", (1, 16, 8)), "l.centroids.weight": ("F16", (1, 64))},
    "mlx": {"l.weight": ("U32", (16, 8)), "l.scales": ("F16", (16, 1)), "l.biases": ("F16", (16, 1))},
    "scales-of-other-files": {"l.weight_scale_inv": ("F32", (2, 1)), "m.scales": ("F16", (2, 64))},
    "numbers": {"a.logit_scale": ("F32", ()), "a.weight": ("F16", (16, 64)), "position.index": ("I32", (4, 4))},
}
# Floats that are numbers, besides those of NORM.
NUMBERS = {
    "gptq": ["l.bias"],
    "mxfp4": ["e.gate_up_proj_bias"],
    "fp8-without-scales": ["l.weight", "n.query_norm.scale"],
    "bitsandbytes-4": ["l.bias"],
    "hqq": ["l.bias"],
    "numbers": ["a.logit_scale", "a.weight"],
}


def make(folder):
    rng = np.random.default_rng(9)
    os.makedirs(folder)
    for layout, tensors in LAYOUTS.items():
        header, data = {}, b""
        for name, (kind, shape) in (tensors | NORM).items():
            count = int(np.prod(shape))
            floats = rng.standard_normal(count) / 8
            part = floats.astype(FLOATS[kind]).tobytes() if kind in FLOATS else rng.bytes(count * BYTES[kind])
            if name.endswith("g_idx"):
                part = bytes(count * BYTES[kind])
            header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
            data += part
        text = json.dumps(header).encode()
        with open(f"{folder}/{layout}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)


def tensors_of(path):
    with open(path, "rb") as file:
        whole = file.read()
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    header.pop("__metadata__", None)
    places = {name: entry["data_offsets"] for name, entry in header.items()}
    assert sum(end - begin for begin, end in places.values()) == len(data)
    return {name: (header[name]["dtype"], header[name]["shape"], data[begin:end]) for name, (begin, end) in places.items()}


def cast(folder, form, to):
    for layout in LAYOUTS:
        source = tensors_of(f"{folder}/{layout}.safetensors")
        found = tensors_of(f"{form}/{layout}.safetensors")
        numbers = [*NUMBERS.get(layout, []), *NORM]
        if sorted(found) != sorted(source):
            # The weights are decoded (scaled_codes.py compares them); the other floats are cast.
            assert all(shown[0] == to or shown == source.get(name) for name, shown in found.items()), layout
            source = {name: tensor for name, tensor in source.items() if name in numbers}
        for name, (kind, shape, data) in source.items():
            wanted = (kind, shape, data)
            if name in numbers:
                with np.errstate(all="ignore"):
                    values = np.frombuffer(data, FLOATS[kind]).astype("f4").astype(FLOATS[to])
                wanted = (to, shape, values.tobytes())
            assert found[name][:2] == wanted[:2], f"{layout}: {name} is {found[name][:2]}, not {wanted[:2]}"
            assert found[name][2] == wanted[2], f"{layout}: elements of {name}"
            with open(f"{form}/.tensors/{layout}.safetensors/{name}", "rb") as beside:
                assert beside.read() == wanted[2], f"{layout}: {name} beside it"


if __name__ == "__main__":
    actions = {"make": make, "cast": cast}
    if len(sys.argv) < 3 or sys.argv[1] not in actions:
        sys.exit(__doc__)
    actions[sys.argv[1]](*sys.argv[2:])
