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
    set,
    stat,
    status,
    tier,
    umount,
    unpack,
    unpin,
)
from ._mount import Mount, mount
from ._program import CorruptError, Error, UsageError, program
from ._tensor import Tensor, open, tensors
from ._types import (
    Compared,
    Diff,
    Entry,
    Event,
    HubImport,
    Import,
    Job,
    LeftOut,
    MountedStore,
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
    "HubImport",
    "Import",
    "Job",
    "LeftOut",
    "Mount",
    "MountedStore",
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
    "open",
    "pack",
    "pin",
    "program",
    "push",
    "rm",
    "set",
    "stat",
    "status",
    "tensors",
    "tier",
    "umount",
    "unpack",
    "unpin",
]
