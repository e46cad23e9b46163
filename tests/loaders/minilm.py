"""all-MiniLM-L6-v2 in NumPy alone: embeddings of four sentences from a model directory.

    minilm.py SOURCE MOUNT             those of both directories are equal
    minilm.py SOURCE MOUNT COSINE      or at least as near as that; the smallest similarity is printed
    minilm.py SOURCE --json SENTENCE   those of one sentence

The tokens are those of the model's own tokenizer, which load_tokenizers.py checks. Model: BERT, mean of the last layer,
length 1 (<https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2>).
"""
import json
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open
from same import fail

SENTENCES = {
    "A file system shows tensors as files.": [101, 1037, 5371, 2291, 3065, 23435, 2015, 2004, 6764, 1012, 102],
    "The tensors of a model are files in a mounted directory.":
        [101, 1996, 23435, 2015, 1997, 1037, 2944, 2024, 6764, 1999, 1037, 5614, 14176, 1012, 102],
    "Bread needs flour, water, salt and time.": [101, 7852, 3791, 13724, 1010, 2300, 1010, 5474, 1998, 2051, 1012, 102],
    "Quantization keeps the direction of an embedding.":
        [101, 24110, 3775, 9276, 7906, 1996, 3257, 1997, 2019, 7861, 8270, 4667, 1012, 102],
}


def erf(x):
    """Abramowitz and Stegun, 7.1.26: within 1.5e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.sign(x) * (1 - series * np.exp(-x * x))


def load(folder):
    config = json.loads((Path(folder) / "config.json").read_text())
    with safe_open(Path(folder) / "model.safetensors", "np") as file:
        return config, {name: file.get_tensor(name) for name in file.keys()}


def embed(model, tokens):
    config, weights = model

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def heads(x):
        return x.reshape(len(tokens), config["num_attention_heads"], -1).transpose(1, 0, 2)

    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][: len(tokens)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        query, key, value = (heads(linear(x, f"{at}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ value).transpose(1, 0, 2).reshape(x.shape)
        x = norm(x + linear(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        inner = linear(x, f"{at}.intermediate.dense")
        inner = inner * 0.5 * (1 + erf(inner / np.sqrt(2)))
        x = norm(x + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


def main(source, mount, cosine=None):
    if mount == "--json":
        print(json.dumps(embed(load(source), SENTENCES[cosine]).tolist()))
        return
    wanted, got = ([embed(model, tokens) for tokens in SENTENCES.values()] for model in (load(source), load(mount)))
    # The similarities of the sentences show that the forward pass is that of this model.
    if not (wanted[0] @ wanted[1] > 0.5 > 0.2 > wanted[0] @ wanted[2]):
        fail(f"similarities of the sentences: {wanted[0] @ wanted[1]}, {wanted[0] @ wanted[2]}")
    if cosine is None:
        if not np.array_equal(wanted, got):
            fail("embeddings")
        return
    smallest = min(float(one @ other) for one, other in zip(wanted, got))
    print(f"{smallest:.6f}")
    if not float(cosine) < smallest < 0.9999999:
        fail(f"cosine similarity {smallest}; more than {cosine} is wanted, and less than 1")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
