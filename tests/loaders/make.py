"""Makes what the loaders load: `make.py KIND FOLDER`, or with `beside` the tensors of the containers of FOLDER beside them, as
files of raw elements, so that loaders find in it what they find in a mount.
"""
import sys
from pathlib import Path

import numpy as np

VECTORS, QUERIES, WIDTH = 5000, 20, 64


def arrays(folder):
    rng = np.random.default_rng(1)
    np.save(folder / "w.npy", rng.standard_normal((300, 500)).astype("<f4"))


def gguf(folder):
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    rng = np.random.default_rng(2)
    writer = GGUFWriter(folder / "small.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", [f"token {number}" for number in range(500)])
    for layer in range(3):
        weights = rng.standard_normal((256, 256)).astype("<f4")
        kind = GGMLQuantizationType.Q4_1
        writer.add_tensor(f"blk.{layer}.attn_q.weight", quantize(weights, kind), raw_dtype=kind)
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", weights[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def onnx(folder):
    from onnx import TensorProto, helper, numpy_helper, save_model

    rng = np.random.default_rng(3)
    weights = [rng.standard_normal((256, 256)).astype("f4") / 16 for _ in range(4)]
    names = [f"w{place}" for place in range(len(weights))]
    values = ["x", *(f"h{place}" for place in range(len(weights) - 1)), "y"]
    nodes = [helper.make_node("MatMul", [values[n], name], [values[n + 1]]) for n, name in enumerate(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 256]) for name in "xy"]
    tensors = [numpy_helper.from_array(*pair) for pair in zip(weights, names)]
    model = helper.make_model(helper.make_graph(nodes, "demo", ends[:1], ends[1:], tensors))
    model.ir_version = 10
    model.opset_import[0].version = 20
    save_model(model, str(folder / "model.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=0)


def pickled(folder, minilm):
    """The model as the shards of a pickle, beside which an object writes the file FOLDER.was-run where a program loads it."""
    import json
    import shutil

    import torch
    from safetensors.torch import load_file

    class Writes:
        def __reduce__(self):
            return (open, (f"{folder}.was-run", "w"))

    for file in Path(minilm).rglob("*"):
        if file.is_file() and file.suffix != ".safetensors":
            place = folder / file.relative_to(minilm)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    weights = load_file(f"{minilm}/model.safetensors")
    names, shards = list(weights), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        shard = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: weights[name] for name in part} | {"callback": Writes()}, folder / shard)
        shards |= dict.fromkeys(part, shard)
    total = sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": shards}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def static(folder, minilm):
    from model2vec import StaticModel
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    vectors = load_file(f"{minilm}/model.safetensors")["embeddings.word_embeddings.weight"]
    tokenizer = Tokenizer.from_file(f"{minilm}/tokenizer.json")
    StaticModel(vectors=vectors[:, :WIDTH].copy(), tokenizer=tokenizer).save_pretrained(str(folder))


def vectors(folder):
    import faiss
    from annoy import AnnoyIndex
    from usearch.index import Index

    rng = np.random.default_rng(4)
    data = rng.standard_normal((VECTORS, WIDTH)).astype("<f4")
    np.save(folder / "queries.npy", rng.standard_normal((QUERIES, WIDTH)).astype("<f4"))
    index = Index(ndim=WIDTH, metric="cos")
    index.add(np.arange(VECTORS), data, threads=1)
    index.save(str(folder / "index.usearch"))
    index = faiss.index_factory(WIDTH, "IVF16,Flat")
    index.train(data)
    index.add(data)
    index.nprobe = 4
    faiss.write_index(index, str(folder / "index.faiss"))
    index = AnnoyIndex(WIDTH, "angular")
    index.set_seed(4)
    for number, vector in enumerate(data):
        index.add_item(number, vector)
    index.build(5, n_jobs=1)
    index.save(str(folder / "index.ann"))


def tables(folder):
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(5)
    table = pyarrow.table({"k": np.arange(50_000), "v": rng.integers(0, 1000, 50_000)})
    parquet.write_table(table, folder / "table.parquet")
    with pyarrow.OSFile(str(folder / "table.arrow"), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)


def beside(folder):
    for path in folder.glob("*.npy"):
        path.with_suffix("").write_bytes(np.load(path).tobytes())


if __name__ == "__main__":
    kinds = {kind.__name__: kind for kind in (arrays, gguf, onnx, static, pickled, vectors, tables, beside)}
    if len(sys.argv) < 3 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    kinds[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
