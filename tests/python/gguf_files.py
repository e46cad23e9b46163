"""GGUF files as the `gguf` package writes and reads them.

    gguf_files.py make FILE              a file of all element types and all types of metadata
    gguf_files.py read FILE DIRECTORY    compares it with its copy and its tensors in a directory of a mount
    gguf_files.py cast FILE COLLECTION   compares it with its casts in .as of a collection in a mount
    gguf_files.py types                  the element types: number, name, elements and bytes of a block
"""
import json
import os
import sys

import ml_dtypes
import numpy as np
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.numpy import load_file

# The quantized types that tierfs decodes.
DECODED = set("Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 Q1_0 TQ1_0 TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S "
              "IQ3_XXS IQ3_S NVFP4".split())
# llama.cpp needs these in F32.
NEEDED = [f"{name}.weight" for name in ("output_norm", "blk.0.attn_q_norm", "blk.0.ffn_gate_inp", "position_embd", "v.position_embd", "token_types")]
NEEDED += [f"blk.11.{name}.weight" for name in ("ssm_conv1d", "ssm_conv1d_q", "shortconv.conv", "time_mix_w1", "indexer.proj", "altup_predict_coef")]
NEEDED += ["posnet.3.norm1.weight", "blk.0.ssm_a", "blk.0.ffn_sinks"]
# And these not in BF16.
CONVOLUTIONS = ["v.patch_embd.weight", "v.patch_merger.weight"]
PLAIN = {"F32": "f4", "F16": "f2", "F64": "f8", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}


def make(path):
    rng = np.random.default_rng(5)
    writer = GGUFWriter(path, "demo")
    writer.add_custom_alignment(64)
    writer.add_name("all types \u00e4")
    writer.add_file_type(3)
    writer.add_uint8("demo.u8", 200)
    writer.add_int16("demo.i16", -200)
    writer.add_uint64("demo.u64", 1 << 60)
    writer.add_float64("demo.f64", 0.5)
    writer.add_bool("demo.bool", True)
    writer.add_array("demo.floats", [1.0, 2.0, 3.0])
    # Longer than the first read of a file.
    writer.add_array("tokenizer.ggml.tokens", [f"token {number}" for number in range(6000)])
    writer.add_array("tokenizer.ggml.scores", list(range(6000)))
    for name, code in PLAIN.items():
        data = rng.integers(0, 100, (3, 5, 7)).astype("<" + code)
        writer.add_tensor(f"plain.{name}.weight", data)
    for kind in GGMLQuantizationType:
        block, size = GGML_QUANT_SIZES[kind]
        # The package's statement about Q8_1 is out of date; no file has that type.
        if kind.name not in PLAIN and kind.name != "Q8_1":
            data = rng.integers(0, 256, (3, 7 * size), dtype="u1")
            writer.add_tensor(f"blk.0.{kind.name}.weight", data, raw_dtype=kind)
    writer.add_tensor("token_embd.weight", rng.standard_normal((300, 256)).astype("<f4"))
    for number, name in enumerate(NEEDED):
        sizes = (256,) if number == 0 else (8, 4, 4)
        writer.add_tensor(name, rng.standard_normal(sizes).astype("<f2" if number % 3 == 1 else "<f4"))
    for name in CONVOLUTIONS:
        writer.add_tensor(name, rng.standard_normal((8, 3, 4, 4)).astype("<f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(path, folder):
    source = GGUFReader(path)
    copy = GGUFReader(os.path.join(folder, os.path.basename(path)))
    assert list(source.fields) == list(copy.fields)
    for name, field in source.fields.items():
        same = (np.array_equal(one, other) for one, other in zip(field.parts, copy.fields[name].parts, strict=True))
        assert all(same), f"metadata {name} differs"
    assert len(source.tensors) > 0
    for one, other in zip(source.tensors, copy.tensors, strict=True):
        assert (one.name, one.tensor_type, list(one.shape)) == (other.name, other.tensor_type, list(other.shape))
        assert np.array_equal(one.data.view("u1"), other.data.view("u1")), f"{one.name} differs in its container"
        beside = os.path.join(folder, ".tensors", one.name)
        with open(beside, "rb") as file:
            assert file.read() == one.data.tobytes(), f"{one.name} differs beside its container"
        shown = [os.getxattr(beside, f"user.tierfs.{key}").decode() for key in ("dtype", "shape")]
        wanted = [one.tensor_type.name.lower(), "x".join(str(size) for size in reversed(one.shape))]
        assert shown == wanted, f"{one.name}: {shown}"


def few_bits(data, kind):
    """Q1_0: a bit is -1 or 1. Q2_0: two bits are -1 to 2. Both times the f16 at the beginning of their block."""
    blocks = data.view("u1").reshape(-1, GGML_QUANT_SIZES[kind][1])
    scale = blocks[:, :2].copy().view("<f2").astype("<f4")
    if kind.name == "Q1_0":
        codes = np.unpackbits(blocks[:, 2:], axis=-1, bitorder="little").astype("<f4") * 2 - 1
    else:
        codes = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], "u1") & 3).reshape(len(blocks), -1).astype("<f4") - 1
    with np.errstate(all="ignore"):
        return scale * codes


def floats(tensor):
    """The values of a tensor of floats, quantized ones included; none of another one."""
    kind = tensor.tensor_type.name
    if kind == "BF16":
        return tensor.data.view("u1").view(ml_dtypes.bfloat16)
    if kind in ("Q1_0", "Q2_0"):
        # gguf 0.19 does not decode these: by ggml's definition.
        return few_bits(tensor.data, tensor.tensor_type)
    if kind in DECODED:
        with np.errstate(all="ignore"):
            return dequantize(tensor.data, tensor.tensor_type).astype("<f4")
    return tensor.data if tensor.data.dtype.kind == "f" and kind in PLAIN else None


def same(found, wanted, kind, what):
    """Bit for bit, but for the payloads of NaNs."""
    found, wanted = np.frombuffer(found, kind).ravel(), wanted.ravel()
    assert found.size == wanted.size, f"{what}: {found.size} values, not {wanted.size}"
    bits = f"u{found.itemsize}"
    differs = (found.view(bits) != wanted.view(bits)) & ~((found != found) & (wanted != wanted))
    assert not differs.any(), f"{what}: value {int(np.argmax(differs))}"


def cast(path, collection):
    source = GGUFReader(path)
    for form, kind in (("f32", "<f4"), ("f16", "<f2"), ("bf16", ml_dtypes.bfloat16)):
        shown = os.path.join(collection, ".as", form, os.path.basename(path))
        copy = GGUFReader(shown)
        assert copy.data_offset == source.data_offset and copy.alignment == source.alignment
        metadata_end = int(source.tensors[0].field.offset)
        file_type = source.fields["general.file_type"]
        at = int(file_type.offset) + sum(part.nbytes for part in file_type.parts[:-1])
        with open(path, "rb") as one, open(shown, "rb") as other:
            wanted = bytearray(one.read(metadata_end))
            wanted[at : at + 4] = {"f32": 0, "f16": 1, "bf16": 32}[form].to_bytes(4, "little")
            assert wanted == other.read(metadata_end), f"{form}: the metadata differs"
        alignment, end = int(copy.alignment), int(copy.data_offset)
        for one, other in zip(source.tensors, copy.tensors, strict=True):
            assert (one.name, list(one.shape)) == (other.name, list(other.shape)), one.name
            # llama.cpp requires consecutive tensors in the order of the header.
            assert other.data_offset == end, f"{form}: {one.name} at {other.data_offset}, not {end}"
            end += -(-int(other.n_bytes) // alignment) * alignment
            values = floats(one)
            with np.errstate(all="ignore"):
                wanted = one.data if values is None else values.astype(kind)
            type_name = one.tensor_type.name if values is None else form.upper()
            is_needed = one.name in NEEDED or form == "bf16" and one.name in CONVOLUTIONS
            in_file = one.data.astype("<f4") if is_needed else wanted
            type_name = "F32" if is_needed else type_name
            assert other.tensor_type.name == type_name, f"{form}: {one.name} is {other.tensor_type.name}"
            same(other.data.tobytes(), in_file, in_file.dtype, f"{form}: {one.name}")
            with open(os.path.join(collection, ".as", form, one.name), "rb") as beside:
                same(beside.read(), wanted, wanted.dtype, f"{form}: {one.name} beside it")
        assert os.path.getsize(shown) == end, f"{form}: {os.path.getsize(shown)} bytes, not {end}"
    wrapped(source, os.path.join(collection, ".as"))


def wrapped(source, forms):
    """The tensors as NumPy and safetensors files: quantized ones as f32."""
    everything = load_file(os.path.join(forms, "safetensors", "_all.safetensors"))
    listed = {name: set(os.listdir(os.path.join(forms, name))) for name in ("npy", "safetensors")}
    quantized = 0
    for tensor in source.tensors:
        kind, name, shape = tensor.tensor_type.name, tensor.name, tuple(map(int, reversed(tensor.shape)))
        if kind not in PLAIN and kind != "BF16" and kind not in DECODED:
            assert f"{name}.npy" not in listed["npy"] and f"{name}.safetensors" not in listed["safetensors"], name
            assert name not in everything, name
            continue
        values = tensor.data if kind in PLAIN else floats(tensor)
        quantized += kind in DECODED
        array = np.load(os.path.join(forms, "npy", f"{name}.npy"))
        assert array.shape == shape, f"{name}: {array.shape}"
        same(array.tobytes(), values, values.dtype, f"npy: {name}")
        if kind == "BF16":
            continue
        for found in (load_file(os.path.join(forms, "safetensors", f"{name}.safetensors"))[name], everything[name]):
            assert found.shape == shape and found.dtype == values.dtype, f"{name}: {found.dtype}{found.shape}"
            same(found.tobytes(), values, values.dtype, f"safetensors: {name}")
    assert quantized == len(DECODED)


def types():
    print(json.dumps([[int(kind), kind.name, *GGML_QUANT_SIZES[kind]] for kind in GGMLQuantizationType]))


if __name__ == "__main__":
    actions = {"make": make, "read": read, "cast": cast, "types": types}
    if len(sys.argv) < 2 or sys.argv[1] not in actions:
        sys.exit(__doc__)
    actions[sys.argv[1]](*sys.argv[2:])
