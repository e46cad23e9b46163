"""Reading a .safetensors file without the safetensors library, and what the check scripts share."""
import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

import ml_dtypes
import numpy as np

NUMPY_TYPES = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}


def fail(message: str) -> NoReturn:
    sys.exit(f"FAILED: {message}")


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file: its bytes are `file[start:end]`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def header(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, by name, at their offsets in the file."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if 8 + length > path.stat().st_size:
            fail(f"{path}: the header claims {length} bytes, more than the file has")
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    data = 8 + length
    return {
        name: Tensor(name, entry["dtype"], tuple(entry["shape"]), data + entry["data_offsets"][0], data + entry["data_offsets"][1])
        for name, entry in entries.items()
    }


def mapped(path: Path) -> np.ndarray:
    """The file's bytes, mapped; a mapping cannot be empty, so an empty file is an empty array."""
    if path.stat().st_size == 0:
        return np.zeros(0, np.uint8)
    return np.memmap(path, np.uint8, "r")


def mounted_file(folder: Path, name: str) -> Path:
    """Where the mount shows a tensor: `/` in its name makes directories. Escaped names are not for these checks."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or any(ord(c) < 32 or c == "%" for c in name):
        fail(f"the tensor name {name!r} is escaped in a mount; choose a source without such names")
    return folder.joinpath(*parts)


def first_difference(a: np.ndarray, b: np.ndarray) -> int:
    """Index of the first byte that differs, of two byte arrays of one length."""
    return int(np.argmax(a != b))


def same_bytes(what: str, got: np.ndarray, wanted: np.ndarray) -> None:
    """Ends the program unless two byte arrays are equal."""
    if got.size != wanted.size:
        fail(f"{what}: {got.size} bytes, expected {wanted.size}")
    if not np.array_equal(got, wanted):
        at = first_difference(got, wanted)
        fail(f"{what}: byte {at} is 0x{got[at]:02x}, expected 0x{wanted[at]:02x}; {np.count_nonzero(got != wanted)} bytes differ")
