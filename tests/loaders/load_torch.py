"""A safetensors file as torch tensors."""
from same import compare

# snippet
from safetensors.torch import load_file


def load(folder):
    weights = load_file(f"{folder}/model.safetensors")
    return {name: tensor.numpy() for name, tensor in weights.items()}
# end


if __name__ == "__main__":
    compare(load)
