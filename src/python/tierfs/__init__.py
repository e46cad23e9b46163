"""Mount a store of tensors, import models into it, and read tensors as arrays.

The functions run the program `tierfs` and return what it prints with `--json`; the manual pages describe each command.
A tensor is read through the mount, as any file.

    import tierfs

    with tierfs.mount("store") as mnt:
        weight = tierfs.open(mnt / "demo/minilm/.tensors/embeddings.LayerNorm.weight")
        print(weight.dtype, weight.shape, weight.numpy().mean())
"""

from __future__ import annotations

from ._commands import (
    cancel,
    diff,
    events,
    evict,
    export,
    get,
    import_,
    import_hub,
    jobs,
    log,
    ls,
    pack,
    pin,
    push,
    rm,
    stat,
    status,
    tier,
    umount,
    unpack,
    unpin,
)

# `from tierfs import *` leaves the built-in functions of these names.
from ._commands import set as set
from ._mount import Mount, mount
from ._program import CorruptError, Error, UsageError, program
from ._tensor import Tensor, tensors
from ._tensor import open as open
from ._types import (
    Compared,
    Diff,
    Entry,
    Event,
    Failed,
    HubImport,
    Import,
    Job,
    LeftOut,
    MountedStore,
    Note,
    PathResult,
    Push,
    Reason,
    Removed,
    Stat,
    Status,
    Version,
)

# Tracebacks name the public path.
for _error in (CorruptError, Error, UsageError):
    _error.__module__ = __name__

__all__ = [
    "Compared",
    "CorruptError",
    "Diff",
    "Entry",
    "Error",
    "Event",
    "Failed",
    "HubImport",
    "Import",
    "Job",
    "LeftOut",
    "Mount",
    "MountedStore",
    "Note",
    "PathResult",
    "Push",
    "Reason",
    "Removed",
    "Stat",
    "Status",
    "Tensor",
    "UsageError",
    "Version",
    "cancel",
    "diff",
    "events",
    "evict",
    "export",
    "get",
    "import_",
    "import_hub",
    "jobs",
    "log",
    "ls",
    "mount",
    "pack",
    "pin",
    "program",
    "push",
    "rm",
    "stat",
    "status",
    "tensors",
    "tier",
    "umount",
    "unpack",
    "unpin",
]
