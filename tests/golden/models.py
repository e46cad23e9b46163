"""Writes models/: files of PyTorch 2.15 and of the package onnx 1.23, and what these load from them.

    PYTHON tests/golden/models.py       with torch, numpy, ml_dtypes and onnx installed; the tests need none of them

models.json has for each file, or for each name, its tensors: name, dtype, shape, bytes in hexadecimal digits.
"""
import json
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).parent / "models"
DTYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.uint8: "u8", torch.uint16: "u16", torch.bool: "bool", torch.float8_e4m3fn: "f8_e4m3", torch.complex64: "c64",
}
expected = {}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 24)
        self.norm = torch.nn.LayerNorm(24)
        self.last = torch.nn.Linear(24, 16, bias=False)


def tensors(value, path=()):
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1).clone().view(torch.uint8).numpy().tobytes()
        yield "/".join(path) or "tensor", DTYPES[value.dtype], "x".join(map(str, value.shape)), raw.hex()
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from tensors(below, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for place, below in enumerate(value):
            yield from tensors(below, (*path, str(place)))


def save(name, value, **options):
    torch.save(value, FOLDER / name, **options)
    expected[name] = list(tensors(torch.load(FOLDER / name, weights_only=False)))


torch.manual_seed(5)
net = Net()
save("state.pt", net.state_dict())
rows = torch.arange(100.0)
optimizer = torch.optim.Adam(net.parameters())
net.last(net.norm(net.first(torch.ones(2, 16)))).sum().backward()
optimizer.step()
save("training.ckpt", {
    "model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "lr": 0.5, "note": "\u00e4", "none": None,
    "size": torch.Size([1, 2]), "far": 1 << 70,
})
save("types.pth", {
    "views": [rows[:10], rows[20:50].view(5, 6)], "u16": torch.tensor([1, 2], dtype=torch.uint16), "bool": torch.tensor([True]),
    "f8": torch.ones(4).to(torch.float8_e4m3fn), "bf16": torch.randn(3, 3).bfloat16(), "half": torch.randn(2).half(),
    "scalar": torch.tensor(3.5, dtype=torch.float64), "empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(torch.ones(3)),
    "u8": torch.arange(5, dtype=torch.uint8),
})
save("only.pt", torch.arange(6).reshape(2, 3))
shared = torch.randn(4, 4)
save("tied.bin", {"embed.weight": shared, "head.weight": shared})
save("transposed.pt", {"w": rows.view(10, 10).t()})
save("overlapping.pt", {"a": rows[:10], "b": rows[5:15]})
save("complex.pt", {"w": torch.ones(2, dtype=torch.complex64)})
cube, fused = torch.randn(5, 6, 7), torch.randn(12, 8).bfloat16()
save("strided.pt", {
    "cube": cube, "permuted": cube.permute(2, 0, 1), "every_other": cube[::2, 1::2, ::3], "last": cube[:, -1], "one": cube[2, 3, 4],
    "query": fused[:, :4], "key": fused[:, 4:], "fused": fused, "row": torch.arange(3.0).expand(4, 3),
    "diagonal": torch.arange(16, dtype=torch.int64).view(4, 4).diagonal(),
    "image": torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4).to(memory_format=torch.channels_last),
    "imaginary": torch.randn(6, dtype=torch.complex64).imag, "none": cube[:, 3:3, ::2], "far": torch.randn(60, 90).half().t(),
})
save("old.pt", {**net.state_dict(), "row": rows[:10], "turned": rows.view(10, 10).t(), "head": net.last.weight},
     _use_new_zipfile_serialization=False)
# Contents that stay a plain file.
torch.save(net, FOLDER / "class.pt")
torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), FOLDER / "scripted.pt")

rng = np.random.default_rng(3)
arrays = {"w": rng.standard_normal((8, 16)).astype("f4"), "deep/b": np.arange(16, dtype="i8"), "h": np.ones(3, "f2")}
nodes = [helper.make_node("MatMul", ["x", "w"], ["h1"]), helper.make_node("Identity", ["h1"], ["y"])]
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size]) for name, size in (("x", 8), ("y", 16))]
initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
initializers.append(helper.make_tensor("listed", TensorProto.FLOAT, [2], [1.0, 2.0]))
model = helper.make_model(helper.make_graph(nodes, "demo", ends[:1], ends[1:], initializers))
model.ir_version, model.opset_import[0].version = 10, 20
kinds = {"float32": "f32", "int64": "i64", "float16": "f16"}


def initializers(name):
    loaded = onnx.load(FOLDER / name).graph.initializer
    return [
        (tensor.name, kinds[array.dtype.name], "x".join(map(str, array.shape)), array.tobytes().hex())
        for tensor, array in ((tensor, numpy_helper.to_array(tensor)) for tensor in loaded if tensor.name != "listed")
    ]


onnx.save_model(model, FOLDER / "model.onnx")
expected["model.onnx"] = initializers("model.onnx")
# The package appends to data files that are there.
for name in ("beside.weights", "counts.onnx.data"):
    (FOLDER / name).unlink(missing_ok=True)
onnx.save_model(model, FOLDER / "beside.onnx", save_as_external_data=True, location="beside.weights", size_threshold=0)
expected["beside.onnx"] = initializers("beside.onnx")
# More than a file that is copied when it arrives.
counts = [numpy_helper.from_array(np.arange(size, dtype="f4"), f"counts.{size}") for size in (3000, 2500)]
model = helper.make_model(helper.make_graph(nodes, "demo", ends[:1], ends[1:], counts))
onnx.save_model(model, FOLDER / "counts.onnx", save_as_external_data=True, location="counts.onnx.data", size_threshold=0)
for tensor in onnx.load(FOLDER / "counts.onnx").graph.initializer:
    assert numpy_helper.to_array(tensor).tobytes() == np.arange(tensor.dims[0], dtype="f4").tobytes()
(FOLDER / "models.json").write_text(json.dumps(expected, indent=0) + "\n")
