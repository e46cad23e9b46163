"""A safetensors file: one tensor, a part of one, all of them."""
from same import compare

# snippet
from safetensors import safe_open
from safetensors.numpy import load_file


def load(folder):
    path = f"{folder}/model.safetensors"
    with safe_open(path, framework="np") as file:
        one = file.get_tensor("embeddings.LayerNorm.weight")
        part = file.get_slice("embeddings.word_embeddings.weight")[1000:1010, 5:]
    return [one, part, load_file(path)]
# end


if __name__ == "__main__":
    compare(load)
