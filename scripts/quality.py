"""Measures what each tier costs in precision on real models, beside ggml's types: the figures and plots of docs/TIERS.md.

    scripts/quality.sh                                          builds what it needs and runs this
    target/venv/bin/python scripts/quality.py TIERFS GGML       TIERFS: the program; GGML: tests/quality, built

Needs root. Imports all-MiniLM-L6-v2, Silero VAD and SmolLM2-135M into a temporary store, once for each tier and encoder, mounts the store and reads the
models through the mount; quantizes the same values with ggml's types. Each is compared with the source: stored bits an element, the RMS error relative to
the RMS of the values, the cosine of sentence embeddings of each paragraph of LICENSE-APACHE (its first 256 tokens), what the detector says about a made
signal, and the perplexity of the beginning of a book (tests/quality/text.txt).

The weights of SmolLM2 are those that its GGUF file of Q4_1 decodes to, in f16: no package has its floats. The measurements of a run that was stopped are
kept in target/quality, by the name of what was measured, until that folder is removed.
"""
import json
import math
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/loaders"), str(ROOT / "tests/quality")]
import minilm  # noqa: E402
import silero  # noqa: E402
import smollm  # noqa: E402

MINILM = ROOT / "target/models/minilm"
SILERO = ROOT / "target/models/silero/silero_vad_16k.safetensors"
SMOLLM = ROOT / "target/models-loaders/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
KEPT = ROOT / "target/quality"
PAGE, PLOTS = ROOT / "docs/TIERS.md", ROOT / "docs/plots"
TIERS = ["q8", "q7", "q5", "q3x", "q3"]
GGML = {"Q8_0": 8.5, "Q5_K": 5.5, "Q4_K": 4.5, "Q3_K": 3.4375}
TOKENS, WORDS, SECONDS, ROW = 256, 512, 30, 256


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


class Judge:
    """The answers of the models, compared with those of the models as they came."""

    def __init__(self):
        vocabulary = {line: number for number, line in enumerate((MINILM / "vocab.txt").read_text().splitlines())}
        for sentence, tokens in minilm.SENTENCES.items():
            if tokens_of(sentence, vocabulary) != tokens:
                sys.exit(f"other tokens than those of the model's tokenizer: {sentence}")
        paragraphs = [" ".join(part.split()) for part in (ROOT / "LICENSE-APACHE").read_text().split("\n\n")]
        self.texts = [tokens_of(text, vocabulary) for text in paragraphs if len(text.split()) >= 5]
        self.config, self.minilm = minilm.load(MINILM)
        self.silero = silero.load(SILERO)
        self.signal = silero.signal(SECONDS)
        self.embeddings, self.speech = self.embed(self.minilm), silero.probabilities(self.silero, self.signal)

    def embed(self, weights):
        return np.array([minilm.embed((self.config, weights), tokens) for tokens in self.texts])

    def judge(self, weights, detector) -> dict[str, float]:
        error = power = 0.0
        for name, wanted in self.minilm.items():
            if wanted.dtype == np.float32 and not np.array_equal(wanted, weights[name]):
                error += float(np.square(weights[name].astype(np.float64) - wanted).sum())
                power += float(np.square(wanted.astype(np.float64)).sum())
        cosines = (self.embed(weights) * self.embeddings).sum(1)
        speech = silero.probabilities(detector, self.signal)
        return {
            "error": (error / power) ** 0.5 if power else 0.0,
            "mean": float(cosines.mean()), "least": float(cosines.min()),
            "shift": float(np.abs(speech - self.speech).mean()),
            "flips": float(((speech > 0.5) != (self.speech > 0.5)).mean()),
        }


def kept(name: str, measure) -> dict:
    """The result that was measured under this name, now or by an earlier run."""
    path = KEPT / f"{name}.json"
    if not path.exists():
        found = measure()
        KEPT.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    found = json.loads(path.read_text())
    print(name, found, flush=True)
    return found


def ggml_values(program: str, dtype: str, weights: dict, work: Path) -> dict:
    """The float tensors as they decode from a type of ggml: each in rows of 256, the last one filled with zeros."""
    names = [name for name, value in weights.items() if value.dtype in (np.float32, np.float16)]
    padded = [np.pad(weights[name].astype(np.float32).ravel(), (0, -weights[name].size % ROW)) for name in names]
    (work / "in").write_bytes(np.concatenate(padded).tobytes())
    subprocess.run([program, dtype, work / "in", work / "out"], check=True)
    read, at, found = np.fromfile(work / "out", np.float32), 0, dict(weights)
    for name, values in zip(names, padded):
        found[name] = read[at:at + weights[name].size].reshape(weights[name].shape)
        at += len(values)
    return found


class Language:
    """The perplexity of the text by the language model."""

    def __init__(self, work: Path):
        self.model, self.weights = smollm.load(SMOLLM)
        self.tokens = smollm.tokens_of(self.model, (ROOT / "tests/quality/text.txt").read_text())[:WORDS]
        self.path = work / "smollm.safetensors"
        save_file(self.weights, self.path)

    def perplexity(self, weights) -> dict[str, float]:
        return {"perplexity": math.exp(smollm.loss(self.model, weights, self.tokens))}


VARIANTS = [("exact", "", "all", []), ("packed", "", "all", ["--pack"])]
VARIANTS += [(tier, encoder, "all", ["--tier", f"{tier}:all", "--encoder", encoder]) for tier in TIERS for encoder in ("best", "least", "absmax")
             if tier != "q3x" or encoder != "absmax"]  # With two scales absmax is the same as best.
VARIANTS += [(tier, "best", "default", ["--tier", tier]) for tier in TIERS]


def ours(tierfs: str, judge: Judge, language: Language, work: Path) -> list[dict]:
    store, mount, rows = work / "store", work / "mnt", []
    mount.mkdir()

    def run(*arguments: object) -> str:
        return subprocess.run([tierfs, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True).stdout

    def read(path: Path) -> dict:
        with safe_open(path, "np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}

    run("init", store)
    for tier, encoder, scope, options in VARIANTS:
        name, folder = f"{tier}{encoder}{scope}", mount / f"demo/{tier}{encoder}{scope}"

        def small() -> dict:
            bits = json.loads(run("stat", "--json", folder / "model.safetensors"))["bits"]
            stored = 512 * (folder / "model.safetensors").stat().st_blocks
            return {"bits": bits, "stored": stored, **judge.judge(read(folder / "model.safetensors"), silero.load(folder / SILERO.name))}

        # The language model is measured with all tensors in the tier, and not packed: packing changes no byte.
        reads_language = scope == "all" and tier != "packed"
        sources = [MINILM / "model.safetensors", SILERO, *[language.path] * reads_language]
        run("import", store, f"demo/{name}", *sources, *options)
        run("mount", store, mount)
        try:
            row = {"name": tier, "encoder": encoder, "scope": scope, **kept(name, small)}
            if reads_language:
                row |= kept(f"{name}-language", lambda: language.perplexity(read(folder / language.path.name)))
            rows.append(row)
        finally:
            run("umount", mount)
        run("rm", store, f"demo/{name}")
    return rows


def table(rows: list[dict]) -> str:
    out = ["| stored as | bits an element | RMS error | cosine, mean | cosine, least | speech: mean shift | speech: other verdicts | perplexity |",
           "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        name = row["name"] + (f", {row['encoder']}" if row["encoder"] else "")
        perplexity = f"{row['perplexity']:.2f}" if "perplexity" in row else ""
        out.append(f"| {name} | {row['bits']:.2f} | {100 * row['error']:.2f} % | {row['mean']:.5f} | {row['least']:.5f} | {row['shift']:.4f} | "
                   f"{100 * row['flips']:.1f} % | {perplexity} |")
    return "\n".join(out)


def plot(path: Path, title: str, unit: str, series: dict[str, list[tuple[float, float, str]]]) -> None:
    """Points and lines over bits; the other axis is logarithmic."""
    values = [y for points in series.values() for _, y, _ in points if y > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    left, top, width, height = 70, 40, 560, 300

    def place(x: float, y: float) -> tuple[float, float]:
        return left + width * (x - 3) / 6, top + height * (high - math.log10(max(y, 10**low))) / (high - low)

    colours = ["#2a78c2", "#8a5ab5", "#d08a1d", "#4a9a5b"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {top + height + 70}" font-family="sans-serif" font-size="12" '
           'fill="#555"><rect width="100%" height="100%" fill="#fff"/>', f'<text x="{left}" y="20" font-size="15" fill="#222">{title}</text>']
    for power in range(low, high + 1):
        y = place(3, 10.0**power)[1]
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{10.0**power:g}</text>')
    for bits in range(3, 10):
        x = place(bits, 10.0**low)[0]
        out.append(f'<text x="{x:.0f}" y="{top + height + 18}" text-anchor="middle">{bits}</text>')
    out.append(f'<text x="{left + width / 2}" y="{top + height + 36}" text-anchor="middle">bits an element; the other axis: {unit}</text>')
    for number, (name, points) in enumerate(series.items()):
        points = sorted(points)
        places = [place(x, y) for x, y, _ in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colours[number]}" stroke-width="2"/>')
        for (x, y), (_, _, label) in zip(places, points):
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colours[number]}"/>')
            # The second line has the same names as the first one.
            if number != 1:
                at = f'x="{x + 7:.1f}" y="{y - 6:.1f}"' if number == 0 else f'x="{x - 7:.1f}" y="{y + 15:.1f}" text-anchor="end"'
                out.append(f'<text {at} fill="{colours[number]}">{label}</text>')
        out.append(f'<text x="{left + 150 * number}" y="{top + height + 58}" fill="{colours[number]}">● {name}</text>')
    path.write_text("\n".join([*out, "</svg>"]) + "\n")


def main(tierfs: str, ggml: str) -> None:
    judge = Judge()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        language = Language(work)
        rows = ours(tierfs, judge, language, work)
        theirs = []
        for dtype, bits in GGML.items():
            def values(weights: dict, dtype: str = dtype) -> dict:
                return ggml_values(ggml, dtype, weights, work)

            found = kept(dtype, lambda: judge.judge(values(judge.minilm), values(judge.silero)))
            found |= kept(f"{dtype}-language", lambda: language.perplexity(values(language.weights)))
            theirs.append({"name": f"ggml {dtype}", "encoder": "", "scope": "all", "bits": bits, **found})
    everything = [row for row in rows if row["scope"] == "all"]
    blocks = {
        "all": table(everything + theirs),
        "default": "\n".join(["| stored as | stored | cosine, mean | cosine, least |", "|---|---|---|---|"] + [
            f"| {row['name']} | {row['stored'] / 2**20:.1f} MiB | {row['mean']:.5f} | {row['least']:.5f} |" for row in rows if row["scope"] == "default"]),
        "texts": f"{len(judge.texts)} paragraphs, {len(judge.speech)} windows of sound, {len(language.tokens)} tokens of the book.",
    }
    text = PAGE.read_text()
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: made by scripts/quality.py -->\n", f"<!-- end of {name} -->"
        head, rest = text.split(begin)
        text = head + begin + block + "\n" + rest[rest.index(end):]
    PAGE.write_text(text)
    exact = rows[0]["perplexity"]
    series = {f"tierfs, {encoder}": [row for row in everything if row["encoder"] == encoder] for encoder in ("best", "least", "absmax")} | {"ggml": theirs}
    for file, title, unit, value in [
        ("quality-embeddings.svg", "all-MiniLM-L6-v2: distance of sentence embeddings from the source", "1 - mean cosine", lambda row: 1 - row["mean"]),
        ("quality-language.svg", "SmolLM2-135M: perplexity of a text, above that of the source", "factor - 1",
         lambda row: row.get("perplexity", exact) / exact - 1),
        ("quality-speech.svg", "Silero VAD: shift of the probability of speech", "mean absolute shift", lambda row: row["shift"]),
    ]:
        points = {name: [(row["bits"], value(row), row["name"].removeprefix("ggml ")) for row in found if value(row) > 0]
                  for name, found in series.items()}
        plot(PLOTS / file, title, unit, points)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
