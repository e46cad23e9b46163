"""Weights in tinygrad, which maps the file; computed in Python, so that no compiler is needed."""
import os

from same import compare

os.environ["DEV"] = "PYTHON"

# snippet
from tinygrad.nn.state import safe_load


def load(folder):
    weights = safe_load(f"{folder}/model.safetensors")
    query = weights["encoder.layer.0.attention.self.query.weight"].to(None)
    return [query.numpy(), (query[:8, :16] @ query[:8, :16].T).numpy()]
# end


if __name__ == "__main__":
    compare(load)
