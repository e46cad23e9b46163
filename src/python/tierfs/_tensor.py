"""Reading tensors as arrays."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import re
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ._commands import stat as stat_of
from ._program import Error, StrPath
from ._types import Stat

if TYPE_CHECKING:
    import numpy as np
    import torch

# Names of tierfs, and those of NumPy.
_NUMPY = {
    "bool": "?",
    "c64": "<c8",
    "f16": "<f2",
    "f32": "<f4",
    "f64": "<f8",
    "i16": "<i2",
    "i32": "<i4",
    "i64": "<i8",
    "i8": "i1",
    "opaque": "u1",
    "u16": "<u2",
    "u32": "<u4",
    "u64": "<u8",
    "u8": "u1",
}
# Those that the package ml_dtypes adds to NumPy.
_ML_DTYPES = {
    "bf16": "bfloat16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e8m0": "float8_e8m0fnu",
}
# `DLDataTypeCode` of dlpack.h, for types that NumPy does not export.
_DLPACK_CODES = {"bf16": 4, "f8_e4m3": 10, "f8_e5m2": 12, "f8_e8m0": 14}
_CASTS = ("f32", "f16", "bf16")
# Errors of the daemon, for which the mount may have a reason.
_OF_DAEMON = (errno.EIO, errno.ENODATA, errno.EOPNOTSUPP)


class _DLTensor(ctypes.Structure):
    """The first fields of `DLTensor` of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class Tensor(os.PathLike[str]):
    """A tensor on a mount: a file whose bytes are its elements, little-endian and row-major.

    `np.asarray(tensor)` and `np.from_dlpack(tensor)` work too. All of them read every byte and raise `OSError` where one
    cannot be read; only `memmap()` and `np.asarray(tensor, copy=False)` map the file.

    Attributes:
        path: path of the file.
        dtype: element type by its name in tierfs, such as `bf16`.
        shape: number of elements along each dimension.
    """

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        self.path = path
        self.dtype = dtype
        self.shape = shape

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<tierfs.Tensor {self.path}: {self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes."""
        return self.path.stat().st_size

    @property
    def tier(self) -> str:
        """The tier that holds the tensor now: `exact`, `q8`, …, `absent`, or `mixed`.

        Raises:
            Error: the tensor is a file of a form, which is computed when it is read.
        """
        try:
            return _attribute(self.path, "tier")
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            raise Error(f"{self.path} has no tier: it is a file of a form") from None

    def stat(self) -> Stat:
        """Returns all attributes."""
        return stat_of(self.path)

    def cast(self, dtype: str) -> Tensor:
        """Returns the same tensor as `f32`, `f16` or `bf16`; the mount computes the elements when they are read.

        A tensor that is not cast (integers, F4, some types of ggml) keeps its element type.

        Raises:
            Error: the file is not in a collection on a mount, is a file of a form, or is a part of quantized weights that
                the form hides.
        """
        if dtype not in _CASTS:
            raise ValueError(f"a mount casts to {', '.join(_CASTS)}, not to {dtype}")
        real = self.path.resolve(strict=True)
        # The directory of a collection has one with forms, and no directory below it has.
        collection = next((above for above in real.parents if (above / ".as").is_dir()), None)
        if collection is None:
            raise Error(f"{self.path} is not a file of a collection on a mount")
        below = real.relative_to(collection)
        if below.parts[0] == ".as":
            raise Error(f"{self.path} is a file of a form, and forms have no forms")
        try:
            return open(collection / ".as" / dtype / below)
        except FileNotFoundError:
            text = "the form shows quantized weights by their plain names, without codes and scales"
            raise Error(f"{self.path} is not in .as/{dtype}: {text}") from None

    def numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Reads the tensor into a new array.

        Raises:
            TypeError: NumPy has no such element type. `cast("f32").numpy()` works for floats.
            OSError: the bytes could not be read, and its text says why; EIO: they are corrupt.
        """
        return self._read(self._numpy_type())

    def memmap(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Maps the tensor, read-only. Only the pages that are used are read and decoded.

        The use of a page whose bytes cannot be read ends the process by SIGBUS, as with every mapped file; `numpy()`
        raises an error instead.
        """
        import numpy as np

        element = self._numpy_type()
        # No file of 0 bytes can be mapped.
        if self.size == 0:
            return np.empty(self.shape, element)
        # A scalar: np.memmap takes an empty shape for one that it has to find.
        return np.memmap(self.path, element, "r", shape=self.shape or (1,)).reshape(self.shape)

    def torch(self) -> torch.Tensor:
        """Reads the tensor into a new `torch.Tensor` in memory.

        Raises:
            OSError: the bytes could not be read, and its text says why; EIO: they are corrupt.
        """
        import torch

        extended = _ML_DTYPES.get(self.dtype)
        if extended is None:
            return torch.from_numpy(self.numpy())
        import numpy as np

        integer = "<i2" if self.dtype == "bf16" else "u1"
        return torch.from_numpy(self._read(np.dtype(integer))).view(getattr(torch, extended))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        import numpy as np

        if copy is False:
            if dtype is not None and np.dtype(dtype) != self._numpy_type():
                raise ValueError(f"{self.path}: {self.dtype} is not {np.dtype(dtype)} without a copy")
            return self.memmap()
        array = self.numpy()
        return array if dtype is None else np.asarray(array, dtype=dtype)

    def __getitem__(self, index: object) -> Any:
        raise TypeError("a tensor is not indexed; memmap()[...] reads the needed pages, numpy()[...] all of it")

    def __dlpack__(self, **keywords: Any) -> Any:
        """Reads the tensor for a consumer of DLPack, such as `torch.from_dlpack`.

        `np.from_dlpack` takes no bf16 and no floats of 8 bits, for which NumPy has no type.
        """
        code = _DLPACK_CODES.get(self.dtype)
        if code is None:
            return self.numpy().__dlpack__(**keywords)
        import numpy as np

        integer = "<u2" if self.dtype == "bf16" else "u1"
        # Not the versioned struct, whose fields lie elsewhere.
        keywords.pop("max_version", None)
        capsule = self._read(np.dtype(integer)).__dlpack__(**keywords)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        found = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor))
        found.contents.code = code
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def _numpy_type(self) -> np.dtype[Any]:
        import numpy as np

        name = _NUMPY.get(self.dtype)
        if name is not None:
            return np.dtype(name)
        extended = _ML_DTYPES.get(self.dtype)
        if extended is None:
            raise TypeError(f"{self.path}: NumPy has no element type for {self.dtype}{self._cast_advice()}")
        try:
            import ml_dtypes
        except ModuleNotFoundError:
            advice = f"; install ml_dtypes, or use torch(){self._cast_advice()}"
            raise TypeError(f"{self.path}: NumPy alone has no element type for {self.dtype}{advice}") from None
        element: np.dtype[Any] = np.dtype(getattr(ml_dtypes, extended))
        return element

    def _cast_advice(self) -> str:
        """The advice to cast a tensor to f32, if the mount casts it."""
        try:
            is_cast = self.cast("f32").dtype == "f32"
        except (Error, OSError):
            return ""
        return '; cast("f32") reads it as floats of 32 bits' if is_cast else ""

    def _read(self, element: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
        import numpy as np

        count = self.size * element.itemsize
        buffer = np.empty(count, np.uint8)
        try:
            self._read_into(buffer.data)
        except OSError as error:
            why = self._why() if error.errno in _OF_DAEMON else ""
            text = f"{error.strerror}: {why}" if why else error.strerror
            raise OSError(error.errno, text, str(self.path)) from None
        return buffer.view(element).reshape(self.shape)

    def _read_into(self, left: memoryview) -> None:
        count = len(left)
        # Not np.fromfile: it takes a failed read for the end of the file. A pipe does not wait for a writer.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not S_ISREG(found.st_mode):
                raise OSError(errno.ESTALE, "it is not a regular file now; open it again")
            if found.st_size != count:
                text = f"it has {found.st_size} bytes, and {self.dtype} of this shape has {count}; open it again"
                raise OSError(errno.ESTALE, text)
            while len(left) > 0:
                read = os.readv(descriptor, [left])
                if read == 0:
                    raise OSError(errno.ESTALE, "it ended early; open it again")
                left = left[read:]
        finally:
            os.close(descriptor)

    def _why(self) -> str:
        """Why the last request was refused, and why bytes cannot be read, if the mount knows."""
        try:
            return _attribute(self.path, "why").strip()
        except OSError:
            return ""


def open(path: StrPath) -> Tensor:
    """Opens a tensor on a mount, such as `collection/.tensors/lm_head.weight`.

    Raises:
        FileNotFoundError: there is no such file.
        Error: the file has no element type: it is a container or another file, or not on a mount.
    """
    place = Path(path)
    place.stat()
    try:
        dtype, shape = _attribute(place, "dtype"), _attribute(place, "shape")
    except OSError:
        raise Error(f"{place} is not a tensor; tierfs.tensors() lists those of a container or directory") from None
    return Tensor(place, dtype, _shape(shape))


def tensors(path: StrPath) -> dict[str, Tensor]:
    """Returns the tensors of a container, or of the containers in a directory, on a mount, by their names.

    The names are those in the container; the paths of the tensors below `.tensors` show some of them escaped. One that is
    too long for a path has the name in its path. Where several containers of a directory have a tensor of one name, all
    tensors of the hidden ones are there as `CONTAINER/NAME`.

    Raises:
        FileNotFoundError: there is no such file or directory.
        Error: it is neither a container nor a directory of a collection on a mount, or its tensors have headers (`.as/npy`).
    """
    place = Path(path).resolve(strict=True)
    is_directory = place.is_dir()
    below = place / ".tensors" if is_directory else place.parent / ".tensors" / place.name
    if not below.is_dir():
        raise Error(f"{path} is neither a container nor a directory of a collection on a mount")
    found = {}
    for parts in _files_below(below):
        file = below.joinpath(*parts)
        # The name of a container, which is not escaped.
        container = parts[:1] if is_directory and len(parts) > 1 and (place / parts[0]).is_file() else []
        try:
            dtype, shape = _attribute(file, "dtype"), _attribute(file, "shape")
        except FileNotFoundError:  # removed since
            continue
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            raise Error(f"{path}: files of this form have headers, so they are not tensors: {file}") from None
        name = "/".join([*container, _name_in_container(parts[len(container) :])])
        found[name] = Tensor(file, dtype, _shape(shape))
    return found


def _files_below(directory: Path) -> list[list[str]]:
    """The paths of all files below a directory, as lists of their parts, in order."""
    found: list[list[str]] = []
    for above, folders, files in os.walk(directory, onerror=_raise):
        folders.sort()
        parts = list(Path(above).relative_to(directory).parts)
        found += [[*parts, file] for file in sorted(files)]
    return found


def _raise(error: OSError) -> None:
    raise error


def _name_in_container(parts: list[str]) -> str:
    """The name of a tensor, of which tierfs shows some characters as `%XX`, and then each `%` as `%25`."""
    shown = "/".join(parts)
    is_shortened = any(re.search("%~[0-9a-f]{32}$", part) for part in parts)
    if is_shortened or re.search("%[0-9A-F]{2}", shown) is None:
        return shown
    # An empty part is shown as the slash behind it.
    return "/".join("" if part == "%2F" else unquote(part, errors="surrogateescape") for part in parts)


def _attribute(path: Path, name: str) -> str:
    return os.getxattr(path, f"user.tierfs.{name}").decode()


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x")) if text else ()
