"""A GGUF file: its metadata and its tensors."""
from same import compare

# snippet
import glob

from gguf import GGUFReader
from gguf.quants import dequantize


def load(folder):
    reader = GGUFReader(glob.glob(f"{folder}/*.gguf")[0])
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    floats = dequantize(tensors["blk.0.attn_q.weight"].data, tensors["blk.0.attn_q.weight"].tensor_type)
    return {"keys": list(reader.fields), "floats": floats} | {name: tensor.data for name, tensor in tensors.items()}
# end


if __name__ == "__main__":
    compare(load)
