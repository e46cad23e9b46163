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

PLAIN = {"F32": "f4", "F16": "f2", "F64": "f8", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8"}


def make(path):
    rng = np.random.default_rng(5)
    writer = GGUFWriter(path, "demo")
    writer.add_custom_alignment(64)
    writer.add_name("all types \u00e4")
    writer.add_uint8("demo.u8", 200)
    writer.add_int16("demo.i16", -200)
    writer.add_uint64("demo.u64", 1 << 60)
    writer.add_float64("demo.f64", 0.5)
    writer.add_bool("demo.bool", True)
    writer.add_array("demo.floats", [1.0, 2.0, 3.0])
    # Longer than what is read of a file at first.
    writer.add_array("tokenizer.ggml.tokens", [f"token {number}" for number in range(6000)])
    writer.add_array("tokenizer.ggml.scores", list(range(6000)))
    for name, code in PLAIN.items():
        data = rng.integers(0, 100, (3, 5, 7)).astype("<" + code)
        writer.add_tensor(f"plain.{name}", data)
    for kind in GGMLQuantizationType:
        block, size = GGML_QUANT_SIZES[kind]
        # What the package says of Q8_1 is no longer so; no file has it.
        if kind.name not in PLAIN and kind.name != "Q8_1":
            data = rng.integers(0, 256, (3, 7 * size), dtype="u1")
            writer.add_tensor(f"blk.0.{kind.name}.weight", data, raw_dtype=kind)
    writer.add_tensor("token_embd.weight", rng.standard_normal((300, 256)).astype("<f4"))
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
        beside = os.path.join(folder, one.name)
        with open(beside, "rb") as file:
            assert file.read() == one.data.tobytes(), f"{one.name} differs beside its container"
        kind = one.tensor_type.name
        dtype = kind.lower() if kind in PLAIN or kind == "BF16" else "opaque"
        # bfloat16 too is bytes to this reader, two an element.
        sizes = list(one.data.shape)
        if kind == "BF16":
            sizes[-1] //= 2
        shown = [os.getxattr(beside, f"user.tierfs.{key}").decode() for key in ("dtype", "shape")]
        assert shown == [dtype, "x".join(map(str, sizes))], f"{one.name}: {shown}"


def floats(tensor):
    """The values of a tensor of floats, none of another one."""
    if tensor.tensor_type.name == "BF16":
        return tensor.data.view("u1").view(ml_dtypes.bfloat16)
    return tensor.data if tensor.data.dtype.kind == "f" else None


def cast(path, collection):
    source = GGUFReader(path)
    for form, kind in (("f32", "<f4"), ("f16", "<f2"), ("bf16", ml_dtypes.bfloat16)):
        shown = os.path.join(collection, ".as", form, os.path.basename(path))
        copy = GGUFReader(shown)
        assert copy.data_offset == source.data_offset and copy.alignment == source.alignment
        metadata_end = int(source.tensors[0].field.offset)
        with open(path, "rb") as one, open(shown, "rb") as other:
            assert one.read(metadata_end) == other.read(metadata_end), f"{form}: the metadata differs"
        alignment, end = int(copy.alignment), int(copy.data_offset)
        for one, other in zip(source.tensors, copy.tensors, strict=True):
            assert (one.name, list(one.shape)) == (other.name, list(other.shape)), one.name
            # llama.cpp takes nothing but tensors one after the other, in the order of the header.
            assert other.data_offset == end, f"{form}: {one.name} at {other.data_offset}, not {end}"
            end += -(-int(other.n_bytes) // alignment) * alignment
            values = floats(one) if one.tensor_type.name in ("F32", "F16", "BF16", "F64") else None
            wanted = one.data if values is None else values.astype(kind)
            type_name = one.tensor_type.name if values is None else form.upper()
            assert other.tensor_type.name == type_name, f"{form}: {one.name} is {other.tensor_type.name}"
            assert other.data.tobytes() == wanted.tobytes(), f"{form}: {one.name}"
            with open(os.path.join(collection, ".as", form, one.name), "rb") as beside:
                assert beside.read() == wanted.tobytes(), f"{form}: {one.name} beside it"
        assert os.path.getsize(shown) == end, f"{form}: {os.path.getsize(shown)} bytes, not {end}"


def types():
    print(json.dumps([[int(kind), kind.name, *GGML_QUANT_SIZES[kind]] for kind in GGMLQuantizationType]))


if __name__ == "__main__":
    actions = {"make": make, "read": read, "cast": cast, "types": types}
    if len(sys.argv) < 2 or sys.argv[1] not in actions:
        sys.exit(__doc__)
    actions[sys.argv[1]](*sys.argv[2:])
