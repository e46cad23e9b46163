"""Do the forms of a mounted model hold what its source holds? `forms.py SOURCE.safetensors COLLECTION_DIR`

The collection holds the source's file, imported exactly. Every file of the forms npy, safetensors, f32, f16, bf16, cgeb
and sha256 is opened by the library that owns its format and compared with the source: names, types, shapes and bytes,
casts as NumPy and ml_dtypes cast, embedding batches as tests/golden/reference.py writes them. Exits 1 at the first
difference.
"""
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

from weights import NUMPY_TYPES, fail, header, mapped, mounted_file, same_bytes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import reference  # noqa: E402

PAGE = 4096
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
CASTS = {"f32": ("F32", np.dtype("<f4")), "f16": ("F16", np.dtype("<f2")), "bf16": ("BF16", np.dtype(ml_dtypes.bfloat16))}
DIMENSION_MAX = 1 << 20


def as_bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def files_below(folder: Path) -> list[str]:
    return sorted(str(Path(at, name).relative_to(folder)) for at, _, names in os.walk(folder) for name in names)


def same_names(what: str, got: list[str], wanted: list[str]) -> None:
    if sorted(got) != sorted(wanted):
        fail(f"{what}: these differ: {sorted(set(got) ^ set(wanted))[:5]}")


def check_npy(tensors: dict, forms: Path) -> None:
    same_names("npy", files_below(forms / "npy"), [name + ".npy" for name in tensors])
    for name, wanted in tensors.items():
        path = mounted_file(forms / "npy", name + ".npy")
        got = np.load(path, mmap_mode="r")
        if not isinstance(got, np.memmap) or got.offset % PAGE:
            fail(f"{path}: its data begin at byte {got.offset}")
        # NumPy itself has no names for these.
        is_foreign = wanted.dtype.type.__module__.startswith("ml_dtypes")
        kind = np.dtype(f"V{wanted.dtype.itemsize}") if is_foreign else wanted.dtype
        if got.shape != wanted.shape or got.dtype != kind:
            fail(f"{path}: {got.dtype}{got.shape}, expected {kind}{wanted.shape}")
        same_bytes(str(path), as_bytes(got), as_bytes(wanted))


def check_safetensors(types: dict, tensors: dict, forms: Path) -> None:
    folder = forms / "safetensors"
    same_names("safetensors", files_below(folder), [name + ".safetensors" for name in tensors] + ["_all.safetensors"])
    files = [(mounted_file(folder, name + ".safetensors"), [name]) for name in tensors]
    for path, names in [*files, (folder / "_all.safetensors", list(tensors))]:
        found = header(path)
        same_names(str(path), list(found), names)
        if min(tensor.start for tensor in found.values()) % PAGE:
            fail(f"{path}: its data do not begin with a page")
        with safe_open(path, "np") as opened:
            same_names(str(path), list(opened.keys()), names)
        # For NumPy the library has no 8-bit floats.
        loaded = {} if any(types[name].startswith("F8") for name in names) else load_file(path)
        raw = mapped(path)
        for name in names:
            if found[name].dtype != types[name] or found[name].shape != tensors[name].shape:
                fail(f"{path}: {name} is {found[name].dtype}{found[name].shape}")
            same_bytes(f"{path}: {name}", raw[found[name].start : found[name].end], as_bytes(tensors[name]))
            if name in loaded:
                same_bytes(f"{path}: {name}, loaded", as_bytes(loaded[name]), as_bytes(tensors[name]))


def check_casts(source: Path, types: dict, tensors: dict, collection: Path) -> None:
    for form, (name_of_type, numpy_type) in CASTS.items():
        folder = collection / ".as" / form
        same_names(form, files_below(folder), [name for name in files_below(collection)])
        with safe_open(source, "np") as plain, safe_open(folder / source.name, "np") as cast:
            if plain.metadata() != cast.metadata():
                fail(f"{form}: metadata {cast.metadata()}")
            same_names(f"{form}, the container", list(cast.keys()), list(tensors))
        container = mapped(folder / source.name)
        found = header(folder / source.name)
        for name, tensor in tensors.items():
            is_float = types[name] in FLOATS
            with np.errstate(over="ignore", invalid="ignore"):
                wanted = tensor.astype(numpy_type) if is_float else tensor
            if found[name].dtype != (name_of_type if is_float else types[name]) or found[name].shape != tensor.shape:
                fail(f"{form}: {name} is {found[name].dtype}{found[name].shape}")
            same_bytes(f"{form}: {name}", mapped(mounted_file(folder, name)), as_bytes(wanted))
            same_bytes(f"{form}: {name} in the container", container[found[name].start : found[name].end], as_bytes(wanted))
        for name in files_below(collection):
            if name != source.name and name not in tensors:
                same_bytes(f"{form}: {name}", mapped(folder / name), mapped(collection / name))


def check_batches(types: dict, tensors: dict, forms: Path) -> int:
    folder = forms / "cgeb"
    matrices = {
        name: tensor
        for name, tensor in tensors.items()
        if types[name] in FLOATS and tensor.ndim == 2 and 1 <= tensor.shape[1] <= DIMENSION_MAX
    }
    same_names("cgeb", files_below(folder), [name + suffix for name in matrices for suffix in (".cgeb", ".cgei")])
    for name, matrix in matrices.items():
        rows = matrix.astype("<f4")
        batch, index = reference.cgeb_file([reference.cgeb_record(row, [], []) for row in rows])
        for suffix, wanted in ((".cgeb", batch), (".cgei", index)):
            path = mounted_file(folder, name + suffix)
            same_bytes(str(path), mapped(path), np.frombuffer(wanted, np.uint8))
    return len(matrices)


def check_digests(collection: Path) -> None:
    sums = collection / ".as" / "sha256" / "SHA256SUMS"
    text = sums.read_text()
    if sums.stat().st_size != len(text.encode()):
        fail(f"{sums}: {sums.stat().st_size} bytes, and {len(text)} are read")
    same_names("SHA256SUMS", [line[66:] for line in text.splitlines()], files_below(collection))
    for line in text.splitlines():
        if hashlib.sha256((collection / line[66:]).read_bytes()).hexdigest() != line[:64]:
            fail(f"{sums}: {line[66:]}")
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", sums], cwd=collection, check=True)


def main() -> None:
    source, collection = Path(sys.argv[1]), Path(sys.argv[2])
    forms = collection / ".as"
    entries, raw = header(source), mapped(source)
    types = {name: entry.dtype for name, entry in entries.items()}
    tensors = {
        name: np.frombuffer(raw[entry.start : entry.end].tobytes(), NUMPY_TYPES[entry.dtype]).reshape(entry.shape)
        for name, entry in entries.items()
    }
    check_npy(tensors, forms)
    check_safetensors(types, tensors, forms)
    check_casts(source, types, tensors, collection)
    batches = check_batches(types, tensors, forms)
    check_digests(collection)
    print(f"ok: {len(tensors)} tensors in every form, {batches} batches")


if __name__ == "__main__":
    main()
