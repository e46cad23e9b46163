"""Measures what each tier costs in precision, on a real model: the table of tiers in README.md.

    target/venv/bin/python scripts/quality.py [TIERFS]      TIERFS: the program, target/release/tierfs by default

Needs root and `scripts/setup.sh demo`. Imports all-MiniLM-L6-v2 into a temporary store, once for each tier with the default
keep list and once with every float tensor (`:all`), mounts the store and reads the models through the mount. Prints for
each import: stored bytes, the RMS error of the encoded tensors relative to the RMS of their values, and the cosine between
embeddings by the source and by the mounted model, of each paragraph of LICENSE-APACHE (its first 256 tokens).
"""
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/loaders"))
import minilm  # noqa: E402

MODEL = ROOT / "target/models/minilm"
TIERS = {"q8": 8.5, "q7": 7.5, "q5": 5.5, "q3x": 5.0, "q3": 3.5}
TOKENS = 256


def tokens_of(text: str, vocabulary: dict[str, int]) -> list[int]:
    """The tokens of BERT's uncased tokenizer: words and punctuation, then the longest known pieces."""
    text = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    words = "".join(c if c.isalnum() or c.isspace() else f" {c} " for c in text).split()
    found = []
    for word in words:
        start, pieces = 0, []
        while start < len(word):
            ends = (end for end in range(len(word), start, -1) if ("##" * (start > 0) + word[start:end]) in vocabulary)
            end = next(ends, None)
            if end is None:
                pieces = [vocabulary["[UNK]"]]
                break
            pieces.append(vocabulary["##" * (start > 0) + word[start:end]])
            start = end
        found += pieces
    return [vocabulary["[CLS]"], *found[: TOKENS - 2], vocabulary["[SEP]"]]


def embeddings(folder: Path, texts: list[list[int]]) -> np.ndarray:
    model = minilm.load(folder)
    return np.array([minilm.embed(model, tokens) for tokens in texts])


def relative_error(source: Path, mounted: Path) -> float:
    """RMS error over RMS, of all tensors that differ."""
    error = power = 0.0
    with safe_open(source, "np") as exact, safe_open(mounted, "np") as encoded:
        for name in exact.keys():
            wanted, got = exact.get_tensor(name), encoded.get_tensor(name)
            if not np.array_equal(wanted, got):
                error += float(np.square(got.astype(np.float64) - wanted).sum())
                power += float(np.square(wanted.astype(np.float64)).sum())
    return (error / power) ** 0.5


def main(program: str) -> None:
    vocabulary = {line: number for number, line in enumerate((MODEL / "vocab.txt").read_text().splitlines())}
    for sentence, tokens in minilm.SENTENCES.items():
        if tokens_of(sentence, vocabulary) != tokens:
            sys.exit(f"other tokens than those of the model's tokenizer: {sentence}")
    paragraphs = [" ".join(part.split()) for part in (ROOT / "LICENSE-APACHE").read_text().split("\n\n")]
    texts = [tokens_of(text, vocabulary) for text in paragraphs if len(text.split()) >= 5]
    wanted = embeddings(MODEL, texts)
    with tempfile.TemporaryDirectory() as work:
        store, mount = Path(work, "store"), Path(work, "mnt")
        mount.mkdir()

        def tierfs(*arguments: object) -> None:
            subprocess.run([program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)

        tierfs("init", store)
        for tier in TIERS:
            for suffix, scope in ("", ""), ("-all", ":all"):
                tierfs("import", store, f"demo/{tier}{suffix}", MODEL / "model.safetensors", MODEL / "config.json", "--tier", tier + scope)
        tierfs("mount", store, mount)
        try:
            print(f"{len(texts)} paragraphs\n")
            print("| tier | bits | tensors | stored, MiB | RMS error, % | cosine, mean | cosine, least |\n|---|---|---|---|---|---|---|")
            for tier, bits in TIERS.items():
                for suffix, scope in ("", "default"), ("-all", "all"):
                    folder = mount / "demo" / (tier + suffix)
                    model = "model.safetensors"
                    stored = sum(512 * path.stat().st_blocks for path in folder.iterdir())
                    error = relative_error(MODEL / model, folder / model)
                    cosines = (embeddings(folder, texts) * wanted).sum(1)
                    print(f"| {tier} | {bits} | {scope} | {stored / 2**20:.1f} | {100 * error:.2f} | {cosines.mean():.5f} | {cosines.min():.5f} |",
                          flush=True)
        finally:
            tierfs("umount", mount)


if __name__ == "__main__":
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    main(sys.argv[1] if len(sys.argv) == 2 else str(ROOT / "target/release/tierfs"))
