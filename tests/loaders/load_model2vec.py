"""Static embeddings, from a directory with tokenizer.json and model.safetensors."""
from same import compare

# snippet
from model2vec import StaticModel


def load(folder):
    model = StaticModel.from_pretrained(folder)
    return [model.encode(["Tensors are files.", "Bread needs flour, water, salt and time."])]
# end


if __name__ == "__main__":
    compare(load)
