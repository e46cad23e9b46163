"""Embeddings of all-MiniLM-L6-v2 by llama.cpp, which opens the model's directory as GGUF: near those of NumPy.

    load_hub.py SOURCE MOUNT
"""
import sys
from pathlib import Path

import numpy as np
from minilm import SENTENCES, embed, load
from same import fail

# snippet
from xllamacpp import CommonParams, Server


def embedder(model):
    params = CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.warmup, params.embedding = 256, 1, False, True
    server = Server(params)
    return lambda text: server.handle_embeddings({"input": text})["data"][0]["embedding"]
# end


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} SOURCE MOUNT")
    source, mount = map(Path, sys.argv[1:])
    model = load(source)
    for form, least in (("gguf", 0.9999), ("gguf-q8_0", 0.999), ("gguf-q4_0", 0.95)):
        embedding = embedder(mount / ".as" / form / "model.gguf")
        for sentence, tokens in SENTENCES.items():
            found, wanted = np.array(embedding(sentence)), embed(model, tokens)
            cosine = float(found @ wanted / np.linalg.norm(found) / np.linalg.norm(wanted))
            if not cosine >= least:
                fail(f"{form}: the embedding of {sentence!r} has a cosine of {cosine} to that of NumPy")
