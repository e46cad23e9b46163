"""Makes small models of quantized weights, as the libraries of the formats store them: `quantize.py FOLDER` makes FOLDER/SCHEME,
and FOLDER/SCHEME.plain with the values of the codes in bf16.

The values are those of the formats' definitions: (code - zero) * scale, rounded once.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
NF4 = torch.tensor([-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.184773430228233,
                    -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1])


def halves(codes, first):
    """Two codes a byte, the first in the half from bit `first` on."""
    codes = codes.to(torch.uint8)
    return codes[..., ::2] << first | codes[..., 1::2] << (4 - first)


def words(codes, axis):
    """Eight codes a word of 32 bits, the first in the lowest bits."""
    codes = codes.to(torch.int64).movedim(axis, -1).unflatten(-1, (-1, 8))
    packed = sum(codes[..., place] << 4 * place for place in range(8))
    return (packed - (packed >> 31 << 32)).to(torch.int32).movedim(-1, axis).contiguous()


def nearest(values, table):
    return (values.unsqueeze(-1) - table).abs().argmin(-1)


def fp8(name, weight):
    blocks = weight.unflatten(1, (-1, 64)).unflatten(0, (-1, 64))
    scales = blocks.abs().amax((1, 3), keepdim=True) / 448
    codes = (blocks / scales).to(torch.float8_e4m3fn)

    def whole(values):
        return values.flatten(0, 1).flatten(1, 2)

    stored = {name: whole(codes), f"{name}_scale_inv": scales[:, 0, :, 0].contiguous()}
    return stored, whole(codes.double() * scales.double())


def mxfp4(name, weight):
    groups = weight.unflatten(1, (-1, 32))
    powers = (groups.abs().amax(-1, keepdim=True) / 6).log2().ceil()
    codes = nearest(groups / powers.exp2(), E2M1)
    stored = {f"{name}_packed": halves(codes.flatten(1), 0), f"{name}_scale": (powers[..., 0] + 127).to(torch.uint8)}
    return stored, (E2M1[codes] * powers.exp2()).flatten(1).double()


def gptq(name, weight):
    module, columns = name.removesuffix(".weight"), weight.shape[1]
    groups = torch.arange(columns) % (columns // 64)
    low = torch.stack([weight[:, groups == group].amin(1) for group in range(columns // 64)])
    high = torch.stack([weight[:, groups == group].amax(1) for group in range(columns // 64)])
    scales = ((high - low) / 15).half()
    zeros = (-low / scales).round().clamp(1, 15).int()
    codes = (weight.T / scales[groups] + zeros[groups]).round().clamp(0, 15).int()
    stored = {"qweight": words(codes, 0), "qzeros": words(zeros - 1, 1), "scales": scales, "g_idx": groups.int()}
    values = (codes - zeros[groups]).double() * scales[groups].double()
    return {f"{module}.{part}": value for part, value in stored.items()}, values.T


def nf4(name, weight):
    groups = weight.reshape(-1, 64)
    most = groups.abs().amax(1)
    codes = nearest(groups / most.unsqueeze(1), NF4)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
    stored = {name: halves(codes.flatten(), 4).unsqueeze(1), f"{name}.absmax": most, f"{name}.quant_map": NF4.clone(),
              f"{name}.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)}
    return stored, (NF4[codes].double() * most.double().unsqueeze(1)).reshape(weight.shape)


CONFIGS = {
    fp8: {"quant_method": "fp8", "weight_block_size": [64, 64], "activation_scheme": "dynamic"},
    mxfp4: {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    gptq: {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": False},
    nf4: {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}


def once(values):
    """Doubles, rounded once to bf16: first to odd in f32."""
    near = values.float()
    odd = (near.abs().double() > values.abs()).int()
    bits = torch.where(near.double() == values, near.view(torch.int32), near.view(torch.int32) - odd | 1)
    return bits.view(torch.float32).bfloat16()


def main(folder):
    torch.manual_seed(6)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2)).bfloat16()
    for scheme, config in CONFIGS.items():
        stored, plain = {}, {}
        for name, weight in model.state_dict().items():
            if name.endswith("_proj.weight"):
                codes, values = scheme(name, weight.float())
                stored |= codes
                plain[name] = once(values).contiguous()
            else:
                stored[name] = plain[name] = weight.clone()
        for path, tensors, more in (
            (folder / scheme.__name__, stored, {"quantization_config": config}), (folder / f"{scheme.__name__}.plain", plain, {})
        ):
            path.mkdir(parents=True)
            save_file(tensors, path / "model.safetensors", {"format": "pt"})
            (path / "config.json").write_text(json.dumps(model.config.to_dict() | {"dtype": "bfloat16"} | more))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
