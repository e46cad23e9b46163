"""Makes tests/golden/compressed: weights as compressed-tensors stores them, and as it reads them again.

    pip install compressed-tensors==0.20.0 torch; python3 tests/golden/compressed.py

model.safetensors has the weights of a module for each scheme, wanted.safetensors the weights in the type in which the
package decompresses them. Scales have ends of their range too: 0, NaN,
infinities, the least number, and every power of two of E8M0. The package reads its 255, which is NaN, as infinity, so it is left out.
"""
import json
from pathlib import Path

import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file

FOLDER = Path(__file__).parent / "compressed"
ROWS, COLUMNS = 16, 128
torch.manual_seed(7)
stored, wanted = {}, {}


def odd_scales(scale):
    """Puts the ends of the range of a type into some scales."""
    flat, ends = scale.view(-1), torch.finfo(scale.dtype)
    for place, value in enumerate((0, float("nan"), float("inf"), ends.tiny, ends.max, -0.5)):
        if 2 * place + 1 < flat.numel():
            flat[2 * place + 1] = value
    return scale


def add(name, format, args, state, dtype=None):
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    compressor = BaseCompressor.get_value_from_registry(format)
    compressed = compressor.compress(state, scheme)
    if "weight_scale" in state and compressed["weight_scale"].dtype == state["weight_scale"].dtype:
        compressed["weight_scale"] = odd_scales(state["weight_scale"].clone())
    if format.startswith("mx"):
        compressed["weight_scale"] = torch.arange(127, 255, dtype=torch.uint8).flip(0).view(16, -1)
    if dtype is None:
        weight = compressor.decompress(compressed, scheme)["weight"]
    else:
        # The package decompresses to bf16 in several roundings; this is the same in f32.
        packed = compressed["weight_packed"]
        codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=dtype)
        scale = compressor._decompress_scale(compressed["weight_scale"], dtype)
        weight = dequantize(codes, scale, args=scheme.weights, dtype=dtype, global_scale=compressed.get("weight_global_scale"))
    stored.update({f"{name}.{part}": value.contiguous() for part, value in compressed.items()})
    wanted[f"{name}.weight"] = weight.contiguous()


def weight(rows=ROWS, columns=COLUMNS):
    return torch.randn(rows, columns)


def scales(*shape, dtype=torch.bfloat16):
    return (torch.rand(shape) * 0.1 + 0.01).to(dtype)


def zeros(*shape, least=-8, most=8):
    return torch.randint(least, most, shape, dtype=torch.int8)


packed = {"num_bits": 4, "type": "int"}
for dtype in (torch.bfloat16, torch.float32):
    kind = str(dtype).removeprefix("torch.")
    group = {**packed, "strategy": "group", "group_size": 32}
    add(f"group.{kind}", "pack-quantized", group, {"weight": weight(), "weight_scale": scales(ROWS, 4, dtype=dtype)})
    add(f"channel.{kind}", "pack-quantized", {**packed, "strategy": "channel"},
        {"weight": weight(ROWS, 132), "weight_scale": scales(ROWS, 1, dtype=dtype)})
    add(f"asymmetric.{kind}", "pack-quantized", {**group, "symmetric": False},
        {"weight": weight(), "weight_scale": scales(ROWS, 4, dtype=dtype), "weight_zero_point": zeros(ROWS, 4)})
    eight = {"num_bits": 8, "type": "int"}
    add(f"wide.{kind}", "pack-quantized", {**eight, "strategy": "group", "group_size": 64, "symmetric": False},
        {"weight": weight(), "weight_scale": scales(ROWS, 2, dtype=dtype), "weight_zero_point": zeros(ROWS, 2, least=-128, most=127)})
    add(f"int8.{kind}", "int-quantized", {**eight, "strategy": "channel"},
        {"weight": weight(), "weight_scale": scales(ROWS, 1, dtype=dtype)})
    add(f"int8zero.{kind}", "int-quantized", {**eight, "strategy": "channel", "symmetric": False},
        {"weight": weight(), "weight_scale": scales(ROWS, 1, dtype=dtype), "weight_zero_point": zeros(ROWS, 1, least=-128, most=127)})
    fp8 = {"num_bits": 8, "type": "float"}
    add(f"fp8.{kind}", "float-quantized", {**fp8, "strategy": "tensor"}, {"weight": weight(), "weight_scale": scales(1, dtype=dtype)})
    add(f"fp8channel.{kind}", "float-quantized", {**fp8, "strategy": "channel"},
        {"weight": weight(), "weight_scale": scales(ROWS, 1, dtype=dtype)})
    add(f"fp8block.{kind}", "float-quantized", {**fp8, "strategy": "block", "block_structure": [8, 128]},
        {"weight": weight(16, 256), "weight_scale": scales(2, 2, dtype=dtype)})
fp4 = {"num_bits": 4, "type": "float"}
add("nvfp4", "nvfp4-pack-quantized", {**fp4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": torch.float8_e4m3fn},
    {"weight": weight(), "weight_scale": scales(ROWS, 8, dtype=torch.float32) * 100, "weight_global_scale": torch.tensor([437.5])},
    torch.float32)
add("mxfp4", "mxfp4-pack-quantized", {**fp4, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    {"weight": weight(16, 256), "weight_scale": scales(16, 8, dtype=torch.float32)}, torch.float32)

FOLDER.mkdir(exist_ok=True)
save_file(stored, FOLDER / "model.safetensors", {"format": "pt"})
save_file(wanted, FOLDER / "wanted.safetensors")
config = {"model_type": "llama", "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "compressed-tensors"}}
(FOLDER / "config.json").write_text(json.dumps(config) + "\n")
for path in FOLDER.iterdir():
    path.chmod(0o644)
