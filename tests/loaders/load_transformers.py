"""A model by transformers."""
from same import compare

# snippet
import torch
from transformers import AutoModel, AutoTokenizer


def load(folder):
    tokens = AutoTokenizer.from_pretrained(folder)(["Tensors are files."], return_tensors="pt")
    with torch.inference_mode():
        return [AutoModel.from_pretrained(folder)(**tokens).last_hidden_state.numpy()]
# end


if __name__ == "__main__":
    compare(load)
