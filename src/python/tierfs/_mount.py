"""Mounting a store for the time of a `with` block."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from types import TracebackType
from typing import Literal

from ._commands import status, umount
from ._program import Error, StrPath, run


class Mount(os.PathLike[str]):
    """A mounted store: a context manager that unmounts it, and the path of the mount point.

    `mount / "tenant/collection"` is a path below it.
    """

    def __init__(self, path: Path, made: bool, is_own: bool = True) -> None:
        self.path = path
        # Resolved while the daemon answers: links may lead to the mount point.
        self._place = os.path.realpath(path)
        self._made = made
        self._is_own = is_own
        self._is_mounted = True

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, below: StrPath) -> Path:
        return self.path / below

    def __repr__(self) -> str:
        return f"<tierfs.Mount {self.path}{'' if self._is_mounted else ', unmounted'}>"

    def umount(self) -> None:
        """Unmounts the store and waits for its daemon.

        If files are still open or mapped, the mount point is detached, and the daemon ends with the last of them. A
        second call does nothing, nor does a call for a mount that existed before.

        Raises:
            Error: the store could not be unmounted, or is unmounted without the last writes, or its daemon has not ended.
        """
        if not (self._is_mounted and self._is_own):
            return
        failed: Error | None = None
        # Another program may have unmounted it, and was told what was lost.
        if _is_mounted(self._place):
            try:
                umount(self._place)
            except Error as error:
                if _is_mounted(self._place):
                    umount(self._place, lazy=True)
                else:
                    failed = error
        self._is_mounted = False
        if self._made:
            # It may be gone, or have files of others.
            with contextlib.suppress(OSError):
                self.path.rmdir()
        if failed is not None:
            raise failed

    def __enter__(self) -> Mount:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.umount()
        except (Error, OSError) as failed:
            if error is None:
                raise
            # The exception of the block goes on.
            if sys.version_info >= (3, 11):
                error.add_note(f"tierfs: {failed}")
            else:
                warnings.warn(f"tierfs: {failed}", RuntimeWarning, stacklevel=2)


def mount(
    store: StrPath,
    mountpoint: StrPath | None = None,
    *,
    create: bool = False,
    read_only: bool = False,
    allow_other: bool = False,
    threads: int | None = None,
    options: str | None = None,
    log: StrPath | None = None,
    existing: Literal["fail", "use"] = "fail",
) -> Mount:
    """Mounts a store and returns when it can be read.

    Args:
        mountpoint: an empty directory; without it, a temporary one, which is removed with the mount.
        create: create the store if it does not exist.
        read_only: open the store read-only; several processes may then read it at the same time.
        options: further options in the syntax of mount(8), such as `list=both,verify=always`.
        log: log file of the daemon.
        existing: with `use`, the mount that the store has already, if it has one: of another process, or of one that was
            killed. The options of that mount hold, and the end of a `with` block leaves it.
    """
    if existing == "use" and (found := _mount_of(store)) is not None:
        return Mount(found, made=False, is_own=False)
    arguments: list[StrPath] = ["mount"]
    for name, is_set in (("create", create), ("read-only", read_only), ("allow-other", allow_other)):
        if is_set:
            arguments.append(f"--{name}")
    if threads is not None:
        arguments.append(f"--threads={threads}")
    if options is not None:
        arguments += ["-o", options]
    if log is not None:
        arguments += ["--log", log]
    made = mountpoint is None
    place = Path(tempfile.mkdtemp(prefix="tierfs-")) if mountpoint is None else Path(mountpoint).absolute()
    try:
        run(*arguments, "--", store, place)
    except BaseException as error:
        if made:
            place.rmdir()
        # Another process may have mounted it since.
        if existing == "use" and isinstance(error, Error) and (found := _mount_of(store)) is not None:
            return Mount(found, made=False, is_own=False)
        raise
    return Mount(place, made)


def _mount_of(store: StrPath) -> Path | None:
    """The mount point of a store that this machine has mounted, if its daemon runs."""
    for mounted in status():
        try:
            if mounted["state"] == "ok" and os.path.samefile(mounted["store"], store):
                return Path(mounted["mountpoint"])
        except OSError:  # a store that is gone or that this user may not see
            continue
    return None


def _is_mounted(place: str) -> bool:
    """Whether a file system is mounted on a path without links, even if its daemon has ended or does not answer."""
    mounts = Path("/proc/self/mountinfo").read_bytes().splitlines()
    octal = re.compile(rb"\\([0-7]{3})")
    points = (octal.sub(lambda digits: bytes([int(digits[1], 8)]), mount.split(b" ")[4]) for mount in mounts)
    return os.fsencode(place) in points
