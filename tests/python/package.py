"""Tests of the Python package, in an environment where it is installed: scripts/wheel.sh and scripts/dist.sh run them."""
import contextlib
import ctypes
import errno
import importlib.util
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import numpy as np
import tierfs
from safetensors.numpy import save_file

ARRAYS = {
    "matrix": np.arange(256 * 1024, dtype="f4").reshape(256, 1024) / 7,
    "half": np.linspace(-1, 1, 2048, dtype="f2").reshape(2, 4, 256),
    "numbers": np.arange(-50, 50, dtype="i8"),
    "flags": np.array([True, False, True]),
    "scalar": np.array(2.5, "f8"),
    "empty": np.empty((0, 3), "f4"),
}


class DLTensor(ctypes.Structure):
    """`DLTensor` of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def pointer_of(capsule):
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer(capsule, b"dltensor")


class Package(unittest.TestCase):
    if sys.version_info < (3, 11):

        def enterContext(self, context):
            """The method that Python 3.11 has."""
            value = context.__enter__()
            self.addCleanup(context.__exit__, None, None, None)
            return value

    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.place.cleanup)
        root = Path(cls.place.name)
        save_file(ARRAYS, root / "model.safetensors")
        (root / "notes.txt").write_text("no tensor")
        cls.store = root / "store"
        cls.summary = tierfs.import_(cls.store, "lab/model", root / "model.safetensors", root / "notes.txt")
        cls.mnt = tierfs.mount(cls.store)
        cls.addClassCleanup(cls.mnt.umount)
        cls.folder = cls.mnt / "lab/model"

    def tensor(self, name):
        return tierfs.open(self.folder / ".tensors" / name)

    def test_an_import_returns_its_summary(self):
        self.assertEqual((self.summary["files"], self.summary["tensors"]), (2, len(ARRAYS)))

    def test_an_import_makes_a_store_in_a_directory_on_request_only(self):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        notes = Path(self.place.name) / "notes.txt"
        self.assertRaisesRegex(tierfs.Error, "--create", tierfs.import_, place, "lab/notes", notes)
        self.assertEqual(tierfs.import_(place, "lab/notes", notes, create=True)["files"], 1)

    def test_tensors_equal_the_arrays_that_were_saved(self):
        found = tierfs.tensors(self.folder)
        self.assertEqual(set(found), set(ARRAYS))
        for name, array in ARRAYS.items():
            for tensor in (found[name], self.tensor(name), tierfs.tensors(self.folder / "model.safetensors")[name]):
                self.assertEqual((tensor.shape, tensor.nbytes, tensor.size), (array.shape, array.nbytes, array.size))
                for read in (tensor.numpy(), tensor.memmap(), np.asarray(tensor), np.from_dlpack(tensor)):
                    self.assertEqual(read.dtype, array.dtype)
                    np.testing.assert_array_equal(read, array)
        self.assertRaises(TypeError, len, found["scalar"])
        self.assertEqual(len(found["matrix"]), 256)

    def test_a_private_mapping_does_not_change_the_file(self):
        private = np.from_dlpack(self.tensor("matrix"))
        private = private if private.flags.writeable else private.copy()
        private[0] = -1
        np.testing.assert_array_equal(self.tensor("matrix").numpy(), ARRAYS["matrix"])
        with self.assertRaises(ValueError):
            self.tensor("matrix").memmap()[0] = 1

    def test_a_cast_rounds_floats_and_leaves_integers(self):
        half = self.tensor("matrix").cast("f16")
        self.assertEqual(half.dtype, "f16")
        np.testing.assert_array_equal(half.numpy(), ARRAYS["matrix"].astype("f2"))
        numbers = self.tensor("numbers").cast("bf16")
        self.assertEqual(numbers.dtype, "i64")
        np.testing.assert_array_equal(numbers.numpy(), ARRAYS["numbers"])
        self.assertEqual(str(self.tensor("matrix").cast("bf16").numpy().dtype), "bfloat16")
        self.assertRaises(ValueError, self.tensor("matrix").cast, "f64")

    def test_a_type_that_numpy_lacks_says_how_to_read_it(self):
        tensor = tierfs.Tensor(self.folder / ".tensors/matrix", "q4_0", (1,))
        with self.assertRaisesRegex(TypeError, 'q4_0; cast\\("f32"\\)'):
            tensor.numpy()
        # A cast does not change this one.
        uncast = tierfs.Tensor(self.folder / ".tensors/flags", "f4", (1,))
        with self.assertRaisesRegex(TypeError, "f4$"):
            uncast.numpy()

    def test_a_cast_has_the_element_type_that_the_mount_shows(self):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (place / "model").mkdir()
        codes = np.arange(-64, 64, dtype="i1").reshape(2, 64)
        scales = np.array([[0.5], [2]], "f4")
        save_file({"m.weight": codes, "m.weight_scale": scales}, place / "model/model.safetensors")
        weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
        quantization = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"g": {"weights": weights}}}
        (place / "model/config.json").write_text(json.dumps({"quantization_config": quantization}))
        # GGUF, version 3, with one tensor `t` of 32 elements in one block of Q8_1, which is not cast.
        header = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 32, 9, 0)
        (place / "q8_1.gguf").write_bytes(header.ljust(64, b"\0") + bytes(36))
        tierfs.import_(place / "store", "lab/model", place / "model", place / "q8_1.gguf")
        folder = self.enterContext(tierfs.mount(place / "store")) / "lab/model"
        found = tierfs.tensors(folder)
        cast = found["m.weight"].cast("f32")
        self.assertEqual((cast.dtype, cast.shape), ("f32", (2, 64)))
        np.testing.assert_array_equal(cast.numpy(), codes.astype("f4") * scales)
        self.assertRaisesRegex(tierfs.Error, "plain names", found["m.weight_scale"].cast, "f32")
        self.assertRaisesRegex(tierfs.Error, "has no tier", lambda: cast.tier)
        self.assertEqual(found["t"].cast("f32").dtype, "q8_1")
        self.assertRaisesRegex(TypeError, "q8_1$", found["t"].numpy)

    def test_a_view_in_another_type_needs_a_copy(self):
        tensor = self.tensor("matrix")
        self.assertEqual(np.asarray(tensor, "f4", copy=False).dtype, np.float32)
        self.assertRaisesRegex(ValueError, "without a copy", np.asarray, tensor, "f8", copy=False)
        self.assertEqual(np.asarray(tensor, "f8").dtype, np.float64)

    def test_tensors_have_the_names_of_their_container(self):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        names = ["block/0/w", "a", "a/b%c", "..", "/x", "tab\there", "50%", "long" * 80]
        save_file({name: np.full(3, at, "f4") for at, name in enumerate(names)}, place / "model.safetensors")
        save_file({"a": np.zeros(1, "f4"), "p/q": np.ones(1, "f4")}, place / "second%2F.safetensors")
        (place / "files").write_text("no tensors")
        tierfs.import_(place / "store", "lab/model", place / "model.safetensors", place / "second%2F.safetensors", place / "files")
        folder = self.enterContext(tierfs.mount(place / "store")) / "lab/model"
        of_file = tierfs.tensors(folder / "model.safetensors")
        [shortened] = set(of_file) - set(names)
        self.assertEqual(shortened[:203], names[-1][:200] + "%~" + shortened[202])
        for at, name in enumerate(names[:-1]):
            np.testing.assert_array_equal(of_file[name].numpy(), np.full(3, at, "f4"))
        of_all = tierfs.tensors(folder)
        others = {"p/q", "second%2F.safetensors/a", "second%2F.safetensors/p/q"}
        self.assertEqual(set(of_all), set(of_file) | others)
        self.assertEqual(of_all["second%2F.safetensors/a"].shape, (1,))
        (folder / "link").symlink_to("model.safetensors")
        self.assertEqual(set(tierfs.tensors(folder / "link")), set(of_file))
        self.assertEqual(tierfs.tensors(folder / ".as/f16")["a"].dtype, "f16")
        self.assertRaisesRegex(tierfs.Error, "have headers", tierfs.tensors, folder / ".as/npy")
        self.assertRaisesRegex(tierfs.Error, "neither", tierfs.tensors, folder / "files")
        self.assertRaisesRegex(tierfs.Error, "neither", tierfs.tensors, folder.parent)
        self.assertRaises(FileNotFoundError, tierfs.tensors, folder / "missing")

    def test_an_import_in_part_has_its_summary_in_the_error(self):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        np.save(place / "good.npy", np.ones(3, "f4"))
        (place / "bad.npy").write_text("text")
        with self.assertRaisesRegex(tierfs.Error, "bad.npy") as caught:
            tierfs.import_(place / "store", "lab/model", place / "good.npy", place / "bad.npy")
        summary = caught.exception.result
        self.assertEqual((summary["files"], [Path(one["path"]).name for one in summary["failed"]]), (1, ["bad.npy"]))
        self.assertEqual(caught.exception.results, [])
        with self.assertRaises(tierfs.Error) as caught:
            tierfs.import_(place / "store", "lab/model", place / "missing.npy")
        self.assertIsNone(caught.exception.result)

    def test_answers_have_the_keys_of_their_types(self):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        store, source = place / "store", Path(self.place.name) / "model.safetensors"
        (place / "remote").mkdir()
        answers = [(tierfs.Import, tierfs.import_(store, "lab/model", source, previous=True))]
        with tierfs.mount(store) as mnt:
            folder = mnt / "lab/model"
            os.setxattr(folder / "model.safetensors", "user.tierfs.tags", b"x")
            [plan] = tierfs.tier("q8", folder, lossy=True, dry_run=True)
            answers += [(tierfs.PathResult, plan), (tierfs.Status, tierfs.status(mnt))]
            for path in (folder, folder / "model.safetensors", folder / ".tensors/matrix"):
                answers.append((tierfs.Stat, tierfs.stat(path, digests=path != folder)))
            answers += [(tierfs.Entry, entry) for entry in tierfs.ls(folder) + tierfs.ls(folder, tensors=True)]
            [moved] = tierfs.tier("q8", folder, lossy=True)
            answers += [(tierfs.PathResult, moved), *((tierfs.Job, job) for job in tierfs.jobs(mnt))]
            answers += [(tierfs.MountedStore, one) for one in tierfs.status()]
            compared = tierfs.diff(source, folder / "model.safetensors")
            answers += [(tierfs.Diff, compared), *((tierfs.Compared, row) for row in compared["rows"])]
        remote = f"file://{place}/remote"
        answers += [(tierfs.Push, tierfs.push(store, "lab/model", remote, create=True))]
        with tierfs.mount(remote) as mnt:
            answers += [(tierfs.Status, tierfs.status(mnt)), (tierfs.Stat, tierfs.stat(mnt / "lab/model"))]
            traffic = tierfs.status(mnt)["remote"]
            self.assertEqual(set(traffic), {"cached_bytes", "cache_hits", "cache_misses", "in_flight", "in_flight_bytes"} | {"received_bytes", "bytes_per_second", "requests", "retries", "hedges", "failures"})
        answers += [(tierfs.Version, version) for version in tierfs.log(store, "lab/model")]
        answers += [(tierfs.Event, event) for event in tierfs.events(store)]
        answers += [(tierfs.Removed, tierfs.rm(store, "lab/model"))]
        for kind, answer in answers:
            self.assertEqual(set(answer) - set(kind.__annotations__), set(), kind)
            self.assertEqual(set(kind.__required_keys__) - set(answer), set(), kind)

    def test_an_import_of_all_names_leaves_the_built_in_functions(self):
        names = {}
        exec("from tierfs import *", names)
        self.assertFalse({"open", "set"} & set(names))
        self.assertTrue(callable(tierfs.open) and callable(tierfs.set))

    def test_a_refusal_has_reasons_and_a_lossy_move_is_done(self):
        tierfs.import_(self.store, "lab/moved", Path(self.place.name) / "model.safetensors")
        folder = self.mnt / "lab/moved"
        with self.assertRaises(tierfs.Error) as caught:
            tierfs.tier("q8", folder)
        self.assertEqual([reason["code"] for reason in caught.exception.reasons], ["lossy"])
        self.assertIn("--lossy", str(caught.exception))
        [plan] = tierfs.tier("q8", folder, lossy=True, dry_run=True)
        self.assertEqual((plan["path"], tierfs.open(folder / ".tensors/matrix").tier), (str(folder), "exact"))
        [result] = tierfs.tier("q8", folder / "model.safetensors", lossy=True)
        self.assertEqual((result["state"], result["result"]["moved"]), ("done", 1))
        tensor = tierfs.open(folder / ".tensors/matrix")
        self.assertEqual((tensor.tier, round(tensor.stat()["bits"], 1)), ("q8", 8.5))
        np.testing.assert_allclose(tensor.numpy(), ARRAYS["matrix"], rtol=0, atol=ARRAYS["matrix"].max() / 100)
        job = next(job for job in tierfs.jobs(self.mnt) if job["request"].startswith("tier=q8"))
        self.assertEqual((job["state"], job["mountpoint"]), ("done", str(self.mnt.path)))

    def test_a_hub_cache_becomes_a_collection_for_each_model(self):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        model = place / "hub/models--org--tiny"
        commit = "0123456789abcdef0123456789abcdef01234567"
        for folder in ("blobs", "refs", f"snapshots/{commit}"):
            (model / folder).mkdir(parents=True)
        (model / "refs/main").write_text(commit)
        save_file({"half": np.ones(8, "f2")}, model / "blobs/weights")
        (model / "snapshots" / commit / "model.safetensors").symlink_to("../../blobs/weights")
        done = tierfs.import_hub(place / "store", "hub", place / "hub")
        self.assertEqual([(one["collection"], one["tensors"]) for one in done["collections"]], [("hub/org--tiny", 1)])
        self.assertEqual((done["skipped"], done["failed"]), ([], []))
        with self.assertRaisesRegex(ValueError, "import_hub"):
            tierfs.import_(place / "store", "hub", place / "hub")

    def damaged(self):
        """The folder of a mounted collection with a damaged block in `matrix` and `half`."""
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        source = place / "model.safetensors"
        save_file({"matrix": ARRAYS["matrix"], "half": np.ones(1 << 20, "f2")}, source)
        tierfs.import_(place / "store", "lab/model", source)
        [data] = (place / "store/lab/model/data").iterdir()
        with data.open("r+b") as file:
            for start in (data.stat().st_size // 4, data.stat().st_size * 9 // 10):
                file.seek(start)
                byte = file.read(1)
                file.seek(start)
                file.write(bytes([byte[0] ^ 1]))
        return self.enterContext(tierfs.mount(place / "store")) / "lab/model"

    def test_corrupt_bytes_are_errors_for_every_way_to_read(self):
        folder = self.damaged()
        for name in ("matrix", "half"):
            tensor = tierfs.open(folder / ".tensors" / name)
            for read in (
                tensor.numpy,
                lambda: np.asarray(tensor),
                lambda: np.array(tensor),
                lambda: np.from_dlpack(tensor),
                lambda: tensor.cast("bf16").numpy(),
                lambda: np.asarray(tensor.cast("f16")),
                lambda: tierfs.tensors(folder)[name].numpy(),
            ):
                with self.assertRaises(OSError) as caught:
                    read()
                self.assertEqual(caught.exception.errno, errno.EIO)
                self.assertIn("Input/output error: ", str(caught.exception))
                self.assertIn("payload crc", str(caught.exception))
                self.assertIn(name, str(caught.exception))
        if importlib.util.find_spec("torch") is not None:
            self.assertRaisesRegex(OSError, "payload crc", tierfs.open(folder / ".tensors/matrix").torch)

    def test_only_errors_of_the_daemon_have_the_reason_of_the_mount(self):
        tensor = tierfs.open(self.damaged() / ".tensors/matrix")
        self.assertRaises(OSError, tensor.numpy)
        with unittest.mock.patch("os.readv", side_effect=OSError(errno.EINVAL, "Invalid argument")):
            self.assertRaisesRegex(OSError, f"Invalid argument: '{tensor.path}'$", tensor.numpy)

    def test_a_discarded_tensor_says_so(self):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        save_file({"w": np.ones(4096, "f4")}, place / "model.safetensors")
        tierfs.import_(place / "store", "lab/model", place / "model.safetensors")
        tensor = tierfs.open(self.enterContext(tierfs.mount(place / "store")) / "lab/model/.tensors/w")
        os.setxattr(tensor.path, "user.tierfs.evict", b"discard:lossy")
        with self.assertRaisesRegex(OSError, "No data available: .*discarded") as caught:
            tensor.numpy()
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.ENODATA, str(tensor.path)))

    def test_a_pipe_that_takes_the_name_of_a_tensor_is_an_error(self):
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "w"
        os.mkfifo(path)
        self.assertRaisesRegex(OSError, "open it again", tierfs.Tensor(path, "f32", (2,)).numpy)

    @unittest.skipUnless(os.geteuid() == 0, "only root mounts directories")
    def test_tensors_are_cast_below_a_collection_that_is_mounted_elsewhere(self):
        bound = Path(self.enterContext(tempfile.TemporaryDirectory()))
        subprocess.run(["mount", "--bind", self.folder, bound], check=True)
        self.addCleanup(subprocess.run, ["umount", bound], check=True)
        cast = tierfs.open(bound / ".tensors/matrix").cast("f16")
        self.assertEqual(cast.path, bound / ".as/f16/.tensors/matrix")
        np.testing.assert_array_equal(cast.numpy(), ARRAYS["matrix"].astype("f2"))
        self.assertRaisesRegex(tierfs.Error, "forms have no forms", cast.cast, "f32")
        elsewhere = tierfs.Tensor(Path(__file__), "f32", (2,))
        self.assertRaisesRegex(tierfs.Error, "not a file of a collection", elsewhere.cast, "f16")

    def test_a_use_of_a_corrupt_mapped_page_ends_the_process(self):
        path = self.damaged() / ".tensors/matrix"
        script = "import sys, tierfs\nprint(tierfs.open(sys.argv[1]).memmap().sum())"
        ended = subprocess.run([sys.executable, "-c", script, path], capture_output=True)
        self.assertEqual((ended.returncode, ended.stdout), (-signal.SIGBUS, b""))

    def test_a_tensor_that_was_replaced_by_another_size_is_an_error(self):
        tensor = self.tensor("matrix")
        for shape in ((255, 1024), (257, 1024)):
            with self.assertRaisesRegex(OSError, "open it again"):
                tierfs.Tensor(tensor.path, "f32", shape).numpy()

    def test_floats_without_a_numpy_type_go_through_dlpack(self):
        import ml_dtypes

        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        arrays = {
            "brain": np.linspace(-3, 3, 96, dtype="f4").reshape(2, 48).astype(ml_dtypes.bfloat16),
            "eight": np.linspace(-3, 3, 64, dtype="f4").astype(ml_dtypes.float8_e4m3fn),
        }
        save_file(arrays, place / "m.safetensors")
        tierfs.import_(place / "store", "lab/model", place / "m.safetensors")
        with tierfs.mount(place / "store") as mnt:
            for name, code, integer in (("brain", 4, "u2"), ("eight", 10, "u1")):
                tensor = tierfs.open(mnt / "lab/model/.tensors" / name)
                capsule = tensor.__dlpack__(max_version=(1, 0))
                found = DLTensor.from_address(pointer_of(capsule))
                self.assertEqual((found.code, found.bits, found.lanes), (code, arrays[name].itemsize * 8, 1))
                shape = [found.shape[axis] for axis in range(found.ndim)]
                self.assertEqual(tuple(shape), arrays[name].shape)
                bytes = ctypes.string_at(found.data + found.byte_offset, arrays[name].nbytes)
                self.assertEqual(bytes, arrays[name].tobytes())
                if importlib.util.find_spec("torch") is not None:
                    import torch

                    self.assertTrue(torch.equal(torch.from_dlpack(tensor).float(), tensor.torch().float()))

    def test_a_tensor_that_is_indexed_says_how(self):
        self.assertRaisesRegex(TypeError, "memmap\\(\\)", lambda: self.tensor("matrix")[0])

    def test_commands_that_change_a_store(self):
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        source = Path(self.place.name) / "model.safetensors"
        store = place / "store"
        tierfs.import_(store, "lab/model", source)
        (place / "remote").mkdir()
        remote = f"file://{place}/remote"
        pushed = tierfs.push(store, "lab/model", remote, create=True, message="first", tag="one")
        self.assertEqual((pushed["collection"], pushed["snapshot"], pushed["unchanged"]), ("lab/model", 1, False))
        self.assertTrue(tierfs.push(store, "lab/model", remote)["unchanged"])
        tierfs.export(remote, "lab/model", place / "exported")
        self.assertEqual((place / "exported/model.safetensors").read_bytes(), source.read_bytes())
        with tierfs.mount(store) as mnt:
            folder = mnt / "lab/model"
            done = tierfs.set(folder, lossy="allow", hold=120)
            self.assertEqual([one["state"] for one in done], ["done", "done"])
            self.assertEqual((tierfs.get(folder)["lossy"], tierfs.get(folder)["hold"]), ("allow", 120))
            [packed] = tierfs.pack(folder)
            self.assertEqual((packed["state"], packed["result"]["tier"]), ("done", "packed"))
            [unpacked] = tierfs.unpack(folder)
            self.assertEqual(unpacked["state"], "done")
            same = tierfs.diff(folder, source)
            self.assertEqual((same["same"], same["differ"]), (len(ARRAYS), 0))
            tierfs.tier("q8:all", folder)
            other = tierfs.diff(folder / "model.safetensors", source)
            self.assertGreater(other["differ"], 0)
            self.assertGreater(next(row for row in other["rows"] if row["name"] == "matrix")["max"], 0)
            np.save(place / "a.npy", np.array([1, 2], "f4"))
            np.save(place / "b.npy", np.array([1, np.nan], "f4"))
            [row] = tierfs.diff(place / "a.npy", place / "b.npy")["rows"]
            self.assertEqual((row["max"], row["rms"]), (math.inf, math.inf))
            self.assertRaisesRegex(tierfs.Error, "missing", tierfs.diff, folder / "missing", source)
            tierfs.export(store, "lab/model/model.safetensors", place / "half", form="f16")
            self.assertTrue((place / "half").exists())
        kinds = [event["kind"] for event in tierfs.events(store, path="lab/model")]
        self.assertEqual(kinds[0], "import")
        self.assertEqual(tierfs.events(store, since=1 << 33), [])
        for number in (1, 2):
            source.touch()
            kept = tierfs.import_(store, "lab/kept", source, previous=True, keep=2)
            self.assertEqual(kept["version"], number)
        self.assertEqual([(row["version"], row["changed"]) for row in tierfs.log(store, "lab/kept")], [(2, 0), (1, None)])
        removed = tierfs.rm(store, "lab/model")
        self.assertEqual((removed["collection"], removed["files"] > 0), ("lab/model", True))
        self.assertRaisesRegex(tierfs.Error, "no collection", tierfs.rm, store, "lab/model")

    def test_a_mount_that_exists_is_used_and_left(self):
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            with tierfs.mount(store, create=True) as first:
                self.assertRaisesRegex(tierfs.Error, str(first.path), tierfs.mount, store)
                with tierfs.mount(store, existing="use") as second:
                    self.assertEqual(second.path, first.path)
                self.assertTrue(os.path.ismount(first))
            with tierfs.mount(store, existing="use") as own:
                self.assertTrue(os.path.ismount(own))
            self.assertFalse(own.path.exists())

    def test_errors_have_public_names(self):
        for error in (tierfs.Error, tierfs.UsageError, tierfs.CorruptError):
            self.assertEqual(error.__module__, "tierfs")

    def test_pins_can_be_set_and_taken_back(self):
        path = self.folder / "model.safetensors"
        [pinned] = tierfs.pin(path)
        self.assertEqual((pinned["state"], tierfs.stat(path)["pin"]), ("done", 1))
        tierfs.unpin(path)
        self.assertEqual(tierfs.stat(path, digests=True)["pin"], 0)

    def test_status_and_listings(self):
        self.assertEqual(tierfs.status(self.mnt)["tenants"], 1)
        self.assertIn(str(self.mnt.path), [mounted["mountpoint"] for mounted in tierfs.status()])
        self.assertEqual([entry["name"] for entry in tierfs.ls(self.folder)], ["model.safetensors", "notes.txt"])

    def test_the_mount_of_an_ended_daemon_is_listed_with_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            mnt = tierfs.mount(store, create=True)
            self.addCleanup(mnt.umount)
            os.kill(int(re.search(r"process (\d+)", (store / "lock").read_text()).group(1)), signal.SIGKILL)
            states = {}
            while states.get(str(mnt.path)) in (None, "ok"):
                states = {mounted["mountpoint"]: mounted["state"] for mounted in tierfs.status()}
            self.assertEqual((states[str(mnt.path)], states[str(self.mnt.path)]), ("ended", "ok"))
            self.assertRaisesRegex(tierfs.Error, "has ended", tierfs.status, mnt)
            self.assertNotIn(str(mnt.path), [job["mountpoint"] for job in tierfs.jobs()])
            mnt.umount()

    def test_what_is_no_tensor_is_refused(self):
        for path in (self.folder / "notes.txt", self.folder, Path(__file__)):
            with self.assertRaisesRegex(tierfs.Error, "is not a tensor"):
                tierfs.open(path)
        self.assertRaises(FileNotFoundError, tierfs.open, self.folder / "missing")
        self.assertRaisesRegex(tierfs.UsageError, "q9", tierfs.tier, "q9", self.folder)
        # A path that looks like an option is a path.
        self.assertRaisesRegex(tierfs.Error, "--lazy", tierfs.stat, "--lazy")

    def test_a_mount_ends_with_its_block_and_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            with tierfs.mount(store, create=True) as mnt:
                self.assertTrue(os.path.ismount(mnt))
            self.assertFalse(mnt.path.exists())
            mnt.umount()
            with tierfs.mount(store, read_only=True) as mnt:
                self.assertEqual(os.listdir(mnt), [])
            self.assertRaises(tierfs.Error, tierfs.mount, Path(folder) / "missing")
            self.assertEqual(os.listdir(folder), ["store"])

    def test_a_mount_is_a_path(self):
        self.assertEqual(f"{self.mnt}/lab", os.path.join(self.mnt, "lab"))

    def test_a_mount_at_a_relative_path_ends_in_another_directory(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "mnt").mkdir()
            before = os.getcwd()
            os.chdir(folder)
            try:
                with tierfs.mount("store", "mnt", create=True) as mnt:
                    os.chdir("/")
                self.assertFalse(os.path.ismount(Path(folder) / "mnt"))
            finally:
                os.chdir(before)
            self.assertEqual(mnt.path, Path(folder) / "mnt")

    def test_lost_writes_are_told_at_the_end_of_a_mount(self):
        with tempfile.TemporaryDirectory() as folder:
            # The program, but for an umount that loses writes, and one that fails.
            real, fake = tierfs.program(), Path(folder) / "fake"
            fake.write_text(
                f'#!/bin/sh\n[ "$1" = umount ] || exec {real} "$@"\n[ ! -e {folder}/fails ] || exit 1\n'
                f'{real} "$@" && echo "tierfs: unmounted, but without the last writes" >&2\nexit 1\n'
            )
            fake.chmod(0o755)
            store = Path(folder) / "store"
            self.enterContext(unittest.mock.patch.dict(os.environ, {"TIERFS": str(fake)}))
            mnt = tierfs.mount(store, create=True)
            self.assertRaisesRegex(tierfs.Error, "^unmounted, but without the last writes$", mnt.umount)
            self.assertFalse(mnt.path.exists())
            mnt.umount()
            with self.assertRaisesRegex(tierfs.Error, "without the last writes"):
                with tierfs.mount(store):
                    pass
            with self.assertWarns(RuntimeWarning) if sys.version_info < (3, 11) else contextlib.nullcontext():
                with self.assertRaisesRegex(ZeroDivisionError, "by zero") as caught:
                    with tierfs.mount(store):
                        1 / 0
            if sys.version_info >= (3, 11):
                self.assertIn("without the last writes", caught.exception.__notes__[0])
            (Path(folder) / "fails").touch()
            mnt = tierfs.mount(store)
            self.assertRaises(tierfs.Error, mnt.umount)
            self.assertTrue(os.path.ismount(mnt))
            (Path(folder) / "fails").unlink()
            # Another program unmounts it.
            subprocess.run([real, "umount", mnt], check=True)
            mnt.umount()

    def test_an_array_that_is_still_mapped_outlives_its_mount(self):
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            tierfs.import_(store, "lab/model", Path(self.place.name) / "model.safetensors")
            with tierfs.mount(store) as mnt:
                array = tierfs.open(mnt / "lab/model/.tensors/half").memmap()
            self.assertFalse(mnt.path.exists())
            np.testing.assert_array_equal(array, ARRAYS["half"])

    def test_the_module_runs_the_program(self):
        version = subprocess.run([sys.executable, "-m", "tierfs", "--version"], capture_output=True, text=True, check=True)
        self.assertRegex(version.stdout, r"^tierfs \d")
        self.assertEqual(Path(tierfs.program()).parent, Path(sys.executable).parent)

    def test_an_interrupt_reaches_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            # A program that records the signal, in place of a long import.
            fake = Path(folder) / "fake"
            fake.write_text('#!/bin/sh\ntrap "echo interrupted > $0.noted; exit 130" INT\ntouch $0.ready\nwhile :; do sleep 0.05; done\n')
            fake.chmod(0o755)
            # The background jobs of a shell begin with the signal ignored.
            script = "import signal, sys, tierfs\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
            script += "try:\n    tierfs.stat('x')\nexcept KeyboardInterrupt:\n    sys.exit(7)\n"
            child = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"TIERFS": str(fake)})
            while not Path(f"{fake}.ready").exists():
                self.assertIsNone(child.poll())
            child.send_signal(signal.SIGINT)
            self.assertEqual(child.wait(30), 7)
            self.assertEqual(Path(f"{fake}.noted").read_text(), "interrupted\n")


if __name__ == "__main__":
    unittest.main()
