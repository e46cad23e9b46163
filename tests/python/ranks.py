"""Makes models of several architectures, and compares the ranks that a mount shows of them.

    ranks.py make FOLDER
    ranks.py compare MODEL RANKS N

Each model has a file `expected.json`: for each tensor the dimension that ranks share and the sizes of the matrices in it,
as the model's implementation in vLLM cuts it.
"""
import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

random = np.random.default_rng(12)
TYPES = {"f4": np.float32, "f2": np.float16, "bf": ml_dtypes.bfloat16, "f8": ml_dtypes.float8_e4m3fn, "u1": np.uint8,
         "i4": np.int32, "i8": np.int64}


def load_file(path):
    """The tensors of a file. NumPy has no floats of 8 bits, so `safetensors.numpy` cannot load them."""
    found = {}
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    names = {"F32": "f4", "F16": "f2", "BF16": "bf", "F8_E4M3": "f8", "U8": "u1", "I32": "i4", "I64": "i8"}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensor = np.frombuffer(raw[start + begin:start + end], np.uint8).view(TYPES[names[entry["dtype"]]])
            found[name] = tensor.reshape(entry["shape"])
    return found


class Model:
    """A model in a folder: its tensors, and how ranks share each."""

    def __init__(self, folder, config, ranks, refused, shards=1):
        self.folder, self.config, self.ranks, self.refused, self.shards = folder, config, ranks, refused, shards
        self.tensors, self.expected = {}, {}

    def add(self, name, shape, dimension=None, parts=None, kind="bf", **more):
        raw = random.integers(0, 256, int(np.prod(shape)) * np.dtype(TYPES[kind]).itemsize, np.uint8)
        numbers = random.standard_normal(shape).astype(np.float32) if kind == "f4" else raw.view(TYPES[kind])
        self.tensors[name] = numbers.reshape(shape)
        self.expected[name] = {"dimension": dimension, "parts": parts or [1], **more}

    def save(self):
        self.folder.mkdir(parents=True)
        names = list(self.tensors)
        files = {}
        for shard in range(self.shards):
            own = names[shard::self.shards]
            file = "model.safetensors" if self.shards == 1 else f"model-{shard + 1:05}-of-{self.shards:05}.safetensors"
            save_file({name: np.ascontiguousarray(self.tensors[name]) for name in own}, self.folder / file,
                      metadata={"format": "pt", "of": self.folder.name})
            files |= {name: file for name in own}
        if self.shards > 1:
            total = sum(tensor.nbytes for tensor in self.tensors.values())
            index = {"metadata": {"total_size": total, "by": "test"}, "weight_map": files}
            (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (self.folder / "config.json").write_text(json.dumps(self.config))
        (self.folder / "tokenizer.json").write_text('{"model": 1}')
        told = {"ranks": self.ranks, "refused": self.refused, "tensors": self.expected}
        (self.folder / "expected.json").write_text(json.dumps(told))


def attention(model, layer, hidden, heads, kv, size, bias=False, kind="bf"):
    at = f"model.layers.{layer}.self_attn"
    for name, count in [("q_proj", heads), ("k_proj", kv), ("v_proj", kv)]:
        more = {} if count == heads else {"kv": kv}
        model.add(f"{at}.{name}.weight", [count * size, hidden], 0, kind=kind, **more)
        if bias:
            model.add(f"{at}.{name}.bias", [count * size], 0, kind=kind, **more)
    model.add(f"{at}.o_proj.weight", [hidden, heads * size], 1, kind=kind)
    if bias:
        model.add(f"{at}.o_proj.bias", [hidden], kind=kind)


def mlp(model, at, hidden, inner, kind="bf"):
    model.add(f"{at}.gate_proj.weight", [inner, hidden], 0, kind=kind)
    model.add(f"{at}.up_proj.weight", [inner, hidden], 0, kind=kind)
    model.add(f"{at}.down_proj.weight", [hidden, inner], 1, kind=kind)


def around(model, hidden, words=96):
    model.add("model.embed_tokens.weight", [words, hidden], 0)
    model.add("model.norm.weight", [hidden])
    model.add("lm_head.weight", [words, hidden], 0, kind="f4")


def dense(folder):
    config = {"model_type": "qwen3", "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_size": 48}
    model = Model(folder, config, [1, 2, 4, 8, 16], [3, 5, 32, 0, 1025], shards=3)
    around(model, 48)
    for layer in range(2):
        attention(model, layer, 48, 16, 4, 6, bias=True, kind=["bf", "f4"][layer])
        mlp(model, f"model.layers.{layer}.mlp", 48, 64, kind=["f2", "bf"][layer])
        model.add(f"model.layers.{layer}.self_attn.q_norm.weight", [6])
        model.add(f"model.layers.{layer}.input_layernorm.weight", [48])
    model.add("visual.blocks.0.attn.q_proj.weight", [12, 12])
    model.save()


def mixtral(folder):
    config = {"model_type": "mixtral", "num_attention_heads": 8, "num_key_value_heads": 8, "num_local_experts": 8}
    model = Model(folder, config, [2, 4, 8], [3, 16], shards=4)
    around(model, 32)
    attention(model, 0, 32, 8, 8, 4)
    model.add("model.layers.0.block_sparse_moe.gate.weight", [8, 32])
    for expert in range(8):
        at = f"model.layers.0.block_sparse_moe.experts.{expert}"
        for name, shape in [("w1", [40, 32]), ("w2", [32, 40]), ("w3", [40, 32])]:
            model.add(f"{at}.{name}.weight", shape, expert=[expert, 8])
    model.save()


def qwen_moe(folder):
    """Without a configuration: the names say how many experts there are, and rows are cut anywhere."""
    model = Model(folder, {}, [2, 3, 4, 6, 12], [5, 7], shards=2)
    around(model, 24)
    attention(model, 0, 24, 12, 12, 2)
    mlp(model, "model.layers.0.mlp.shared_expert", 24, 48)
    for expert in range(12):
        model.add(f"model.layers.0.mlp.experts.{expert}.up_proj.weight", [8, 24], expert=[expert, 12])
    model.add("model.layers.0.mlp.shared_expert_gate.weight", [1, 24])
    model.save()


def gpt_oss(folder):
    config = {"model_type": "gpt_oss", "num_attention_heads": 8, "num_key_value_heads": 2, "num_local_experts": 16}
    model = Model(folder, config, [2, 4, 8], [3, 16])
    around(model, 64)
    attention(model, 0, 64, 8, 2, 8, bias=True)
    model.add("model.layers.0.self_attn.sinks", [8], 0)
    model.add("model.layers.0.mlp.router.weight", [16, 64])
    at = "model.layers.0.mlp.experts"
    model.add(f"{at}.gate_up_proj_blocks", [16, 24, 2, 16], 0, kind="u1")
    model.add(f"{at}.gate_up_proj_scales", [16, 24, 2], 0, kind="u1")
    model.add(f"{at}.gate_up_proj_bias", [16, 24], 0)
    model.add(f"{at}.down_proj", [16, 12, 64], 0, kind="f4")
    model.save()


def phi(folder):
    config = {"model_type": "phi3", "num_attention_heads": 8, "num_key_value_heads": 4}
    model = Model(folder, config, [2, 4, 8], [3, 16])
    around(model, 64)
    model.add("model.layers.0.self_attn.qkv_proj.weight", [128, 64], 0, parts=[8, 4, 4], joined_kv=4)
    model.add("model.layers.0.self_attn.o_proj.weight", [64, 64], 1)
    model.add("model.layers.0.mlp.gate_up_proj.weight", [96, 64], 0, parts=[1, 1])
    model.add("model.layers.0.mlp.down_proj.weight", [64, 48], 1)
    model.save()


def deepseek(folder):
    """FP8 in blocks of 128 x 128."""
    config = {"model_type": "deepseek_v3", "num_attention_heads": 8, "num_key_value_heads": 8, "n_routed_experts": 4,
              "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    model = Model(folder, config, [2, 4], [3, 8], shards=2)
    around(model, 256)

    def matrix(name, shape, dimension=None, **more):
        model.add(f"model.layers.0.{name}.weight", shape, dimension, kind="f8", **more)
        model.add(f"model.layers.0.{name}.weight_scale_inv", [-(-size // 128) for size in shape], dimension, kind="f4",
                  **more)

    matrix("self_attn.q_a_proj", [200, 256])
    matrix("self_attn.q_b_proj", [512, 200], 0)
    matrix("self_attn.kv_a_proj_with_mqa", [96, 256])
    matrix("self_attn.kv_b_proj", [512, 96], 0)
    matrix("self_attn.o_proj", [256, 512], 1)
    matrix("mlp.shared_experts.gate_proj", [512, 256], 0)
    matrix("mlp.shared_experts.down_proj", [256, 512], 1)
    for expert in range(4):
        matrix(f"mlp.experts.{expert}.down_proj", [256, 100], expert=[expert, 4])
    model.add("model.layers.0.mlp.gate.e_score_correction_bias", [4], kind="f4")
    model.save()


def packed(model, at, out, into, rows, kv=None):
    """GPTQ and compressed-tensors, of 4 bits in groups of 32."""
    more = {} if kv is None else {"kv": kv}
    dimension = 0 if rows else 1
    model.add(f"{at}.weight_packed", [out, into // 8], dimension, kind="i4", **more)
    model.add(f"{at}.weight_scale", [out, into // 32], dimension, **more)
    model.add(f"{at}.weight_zero_point", [out // 8, into // 32], dimension, kind="i4", **more)
    model.add(f"{at}.weight_shape", [2], kind="i8", sizes=[out, into], place=dimension)


def gptq(folder, order=False):
    config = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 4,
              "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": order}}
    model = Model(folder, config, [2, 4], [3, 8])
    around(model, 128)
    for name, out, into, rows in [("self_attn.q_proj", 128, 128, True), ("self_attn.o_proj", 128, 128, False),
                                  ("mlp.down_proj", 128, 256, False)]:
        at = f"model.layers.0.{name}"
        scales = 1 if rows else None if order else 0
        model.add(f"{at}.qweight", [into // 8, out], 1 if rows else 0, kind="i4")
        model.add(f"{at}.qzeros", [into // 32, out // 8], scales, kind="i4")
        model.add(f"{at}.scales", [into // 32, out], scales, kind="f2")
        model.add(f"{at}.g_idx", [into], None if rows else 0, kind="i4")
    model.save()


def compressed(folder):
    config = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2,
              "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
                  "group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}}
    model = Model(folder, config, [2, 4], [8])
    around(model, 128)
    packed(model, "model.layers.0.self_attn.q_proj", 128, 128, True)
    packed(model, "model.layers.0.self_attn.k_proj", 64, 128, True, kv=2)
    packed(model, "model.layers.0.self_attn.o_proj", 128, 128, False)
    model.save()
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, told in model.expected.items():
        if "sizes" in told:
            tensors[name] = np.array(told["sizes"], np.int64)
    save_file(tensors, path, metadata={"format": "pt"})


def make(folder):
    dense(folder / "dense")
    mixtral(folder / "mixtral")
    qwen_moe(folder / "qwen_moe")
    gpt_oss(folder / "gpt_oss")
    phi(folder / "phi")
    deepseek(folder / "deepseek")
    gptq(folder / "gptq")
    gptq(folder / "gptq_order", order=True)
    compressed(folder / "compressed")


def tensors_of(folder):
    found, places = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            assert file.metadata()["format"] == "pt", path
            assert sorted(file.keys()) == sorted(load_file(path))
        for name, tensor in load_file(path).items():
            assert name not in found, name
            found[name], places[name] = tensor, path.name
        header = int.from_bytes(path.read_bytes()[:8], "little") + 8
        assert header % 4096 == 0, path
    return found, places


def raw(tensor):
    return np.ascontiguousarray(tensor).view(np.uint8).tobytes(), tensor.shape, tensor.dtype


def cut(tensor, dimension, begin, end):
    return np.take(tensor, range(begin, end), axis=dimension)


def wanted(source, told, rank, ranks):
    """The part of a rank. `None` for an expert of another."""
    if "expert" in told:
        index, count = told["expert"]
        return source if index * ranks // count == rank else None
    if "sizes" in told:
        sizes = list(told["sizes"])
        parts = min(ranks, 2) if "k_proj" in told["name"] else ranks
        sizes[told["place"]] //= parts
        return np.array(sizes, np.int64)
    dimension = told["dimension"]
    if dimension is None:
        return source
    whole, begin, found = source.shape[dimension] // sum(told["parts"]), 0, []
    for place, part in enumerate(told["parts"]):
        size = whole * part
        heads = told.get("kv") or (told.get("joined_kv") if place else None)
        count, own = (heads, rank * heads // ranks) if heads and heads < ranks else (ranks, rank)
        found.append(cut(source, dimension, begin + own * size // count, begin + (own + 1) * size // count))
        begin += size
    return np.concatenate(found, dimension) if len(found) > 1 else found[0]


def compare(model, ranks, count):
    told = json.loads((model / "expected.json").read_text())["tensors"]
    for name in told:
        told[name]["name"] = name
    source, places = tensors_of_source(model)
    parts = {name: [] for name in source}
    for rank in range(count):
        folder = ranks / f"{rank}-of-{count}"
        names = sorted(path.name for path in folder.iterdir())
        assert names == sorted(path.name for path in model.iterdir()), names
        for name in names:
            if not name.endswith((".safetensors", ".index.json")):
                assert (folder / name).read_bytes() == (model / name).read_bytes(), name
        found, own_places = tensors_of(folder)
        there = {name: part for name in source if (part := wanted(source[name], told[name], rank, count)) is not None}
        assert found.keys() == there.keys(), found.keys() ^ there.keys()
        for name, part in there.items():
            assert raw(found[name]) == raw(part), (name, rank, count, found[name].shape, part.shape)
            assert own_places[name] == places[name]
            parts[name].append(part)
            direct = (folder / ".tensors" / name).read_bytes()
            assert direct == raw(part)[0], name
        assert sorted(path.name for path in (folder / ".tensors").iterdir()) == sorted(there)
        index = folder / "model.safetensors.index.json"
        if index.exists():
            index = json.loads(index.read_text())
            assert index["weight_map"] == own_places
            assert index["metadata"]["by"] == "test"
            assert index["metadata"]["total_size"] == sum(part.nbytes for part in there.values())
    # The parts of all ranks are the source.
    for name, found in parts.items():
        tell = told[name]
        heads = tell.get("kv") or tell.get("joined_kv")
        if tell["dimension"] is None:
            continue
        if len(tell["parts"]) == 1 and not (heads and heads < count):
            assert raw(np.concatenate(found, tell["dimension"])) == raw(source[name]), name
        elif len(tell["parts"]) == 1:
            assert raw(np.concatenate(found[:: count // heads], tell["dimension"])) == raw(source[name]), name


def tensors_of_source(model):
    found, places = {}, {}
    for path in sorted(model.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            found[name], places[name] = tensor, path.name
    return found, places


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", folder]:
            make(Path(folder))
        case ["compare", model, ranks, *counts]:
            for count in counts:
                compare(Path(model), Path(ranks), int(count))
