"""The text that llama.cpp writes with a quantized GGUF model in f16 and bf16: `.as` of a mount, and what gguf-py makes of the
source.
"""
import sys
import tempfile
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize, quantize
from same import fail, same

# snippet
from xllamacpp import CommonParams, Server


def text(model, prompt="A file system is", tokens=24):
    params = CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    params.sampling.temp, params.sampling.seed = 0.0, 1
    answer = Server(params).handle_completions({"prompt": prompt, "max_tokens": tokens, "temperature": 0.0})
    return answer["choices"][0]["text"]
# end


FILE_TYPES = {"f16": 1, "bf16": 32}


def convert(source, form, path):
    """The model with its matrices in the type of the form, as llama.cpp's converter writes it."""
    reader = GGUFReader(source)
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
    writer.add_file_type(FILE_TYPES[form])
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        is_kept = len(tensor.shape) < 2 or tensor.name.endswith("_norm.weight")
        kind = GGMLQuantizationType.F32 if is_kept else GGMLQuantizationType[form.upper()]
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} SOURCE MOUNT")
    source, mount = map(Path, sys.argv[1:])
    (model,) = source.glob("*.gguf")
    for form in FILE_TYPES:
        with tempfile.TemporaryDirectory() as folder:
            convert(model, form, f"{folder}/model.gguf")
            wanted = text(f"{folder}/model.gguf")
        if len(wanted) < 20:
            fail(f"the source in {form} writes only {wanted!r}")
        same(wanted, text(mount / ".as" / form / model.name), f"the text of {form}")
    same(text(model), text(mount / model.name), "the text")
