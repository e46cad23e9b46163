"""A language model of the Llama kind in NumPy alone: the perplexity of a text, by weights with the names of GGUF.

The tokens are those of the file's own byte-level BPE. Rows of the query and key matrices are in ggml's order, in which neighbours turn together.
"""
import re

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

# Digits one by one, then the pattern of GPT-2.
WORDS = re.compile(r"\d|'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?[^\s\w]+|\s+(?!\S)|\s+")


def load(path):
    """The parameters, the vocabulary and the weights of a GGUF file."""
    reader = GGUFReader(path)
    field = {name: found.contents() for name, found in reader.fields.items() if not name.startswith("tokenizer.ggml.t") or name.endswith("tokens")}
    model = {
        "heads": field["llama.attention.head_count"], "groups": field["llama.attention.head_count_kv"], "layers": field["llama.block_count"],
        "epsilon": field["llama.attention.layer_norm_rms_epsilon"], "base": field.get("llama.rope.freq_base", 10000.0),
        "tokens": {token: number for number, token in enumerate(field["tokenizer.ggml.tokens"])},
        "merges": {tuple(pair.split(" ")): rank for rank, pair in enumerate(field["tokenizer.ggml.merges"])},
    }
    weights = {}
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        weights[tensor.name] = dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(np.float16)
    return model, weights


def letters():
    """The letter that stands for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def tokens_of(model, text):
    table, found = letters(), []
    for word in WORDS.findall(text):
        parts = [table[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = [(model["merges"].get(pair, 1 << 60), at) for at, pair in enumerate(zip(parts, parts[1:]))]
            rank, at = min(pairs)
            if rank == 1 << 60:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        found += [model["tokens"][part] for part in parts]
    return found


def loss(model, weights, tokens):
    """The mean of the negative logarithms of the probabilities of the tokens after the first one."""
    def of(name):
        return weights[name].astype(np.float32)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + model["epsilon"]) * of(name)

    count, heads, groups = len(tokens), model["heads"], model["groups"]
    embeddings = of("token_embd.weight")
    x = embeddings[tokens]
    size = x.shape[1] // heads
    angle = np.arange(count)[:, None] / model["base"] ** (np.arange(0, size, 2) / size)
    cosine, sine = np.cos(angle)[:, None].astype(np.float32), np.sin(angle)[:, None].astype(np.float32)

    def turned(x):
        even, odd = x[..., ::2], x[..., 1::2]
        return np.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).reshape(x.shape)

    mask = np.triu(np.full((count, count), -np.inf, np.float32), 1)
    for layer in range(model["layers"]):
        at = f"blk.{layer}"
        y = norm(x, f"{at}.attn_norm.weight")
        query = turned((y @ of(f"{at}.attn_q.weight").T).reshape(count, heads, size))
        key = turned((y @ of(f"{at}.attn_k.weight").T).reshape(count, groups, size))
        value = (y @ of(f"{at}.attn_v.weight").T).reshape(count, groups, size)
        key, value = (np.repeat(part, heads // groups, 1).transpose(1, 0, 2) for part in (key, value))
        scores = query.transpose(1, 0, 2) @ key.transpose(0, 2, 1) / np.sqrt(size) + mask
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(count, -1)
        x = x + mixed @ of(f"{at}.attn_output.weight").T
        y = norm(x, f"{at}.ffn_norm.weight")
        gate = y @ of(f"{at}.ffn_gate.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ of(f"{at}.ffn_up.weight").T)) @ of(f"{at}.ffn_down.weight").T
    logits = norm(x, "output_norm.weight") @ (of("output.weight") if "output.weight" in weights else embeddings).T
    top = logits.max(-1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return -float(logs[np.arange(count - 1), tokens[1:]].mean())
