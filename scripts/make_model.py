"""Makes a stand-in model where the real one cannot be fetched: `make_model.py FOLDER`.

FOLDER/model.safetensors gets the names, shapes and types of all-MiniLM-L6-v2 (104 tensors, 90.9 MB)
with normally distributed weights, the same on every run. Needs numpy only.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np

HIDDEN, INNER, LAYERS, WORDS, POSITIONS, TOKEN_TYPES = 384, 1536, 6, 30522, 512, 2
SEED = 20
STANDARD_DEVIATION = 0.05


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}

    def linear(name: str, outputs: int, inputs: int) -> None:
        found[f"{name}.weight"] = (outputs, inputs)
        found[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        found[f"{name}.LayerNorm.weight"] = (HIDDEN,)
        found[f"{name}.LayerNorm.bias"] = (HIDDEN,)

    found["embeddings.position_ids"] = (1, POSITIONS)
    for kind, rows in (("word", WORDS), ("position", POSITIONS), ("token_type", TOKEN_TYPES)):
        found[f"embeddings.{kind}_embeddings.weight"] = (rows, HIDDEN)
    norm("embeddings")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", HIDDEN, HIDDEN)
        linear(f"{layer}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{layer}.attention.output")
        linear(f"{layer}.intermediate.dense", INNER, HIDDEN)
        linear(f"{layer}.output.dense", HIDDEN, INNER)
        norm(f"{layer}.output")
    linear("pooler.dense", HIDDEN, HIDDEN)
    return dict(sorted(found.items(), key=lambda item: (item[0] != "embeddings.position_ids", item[0])))


def write(folder: Path) -> None:
    rng = np.random.default_rng(SEED)
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    arrays, at = [], 0
    for name, shape in shapes().items():
        if name == "embeddings.position_ids":
            array, dtype = np.arange(POSITIONS, dtype="<i8").reshape(shape), "I64"
        else:
            array, dtype = rng.standard_normal(shape, np.float32) * np.float32(STANDARD_DEVIATION), "F32"
            if name.endswith("LayerNorm.weight"):
                array += np.float32(1)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + array.nbytes]}
        arrays.append(array)
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.safetensors.partial"
    with partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays:
            file.write(array.tobytes())
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS}) + "\n")
    partial.rename(folder / "model.safetensors")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(Path(sys.argv[1]))
