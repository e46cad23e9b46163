"""A tokenizer, and that the sentences of minilm.py are its tokens there."""
import sys

import minilm
from same import compare, fail

# snippet
from tokenizers import Tokenizer


def load(folder):
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_padding()
    return [tokenizer.encode(text).ids for text in ("Tensors are files.", "Naming is hard.")]
# end


if __name__ == "__main__":
    compare(load)
    tokenizer = Tokenizer.from_file(f"{sys.argv[2]}/tokenizer.json")
    tokenizer.no_padding()
    for sentence, tokens in minilm.SENTENCES.items():
        if tokenizer.encode(sentence).ids != tokens:
            fail(f"minilm.py has other tokens of {sentence!r}")
