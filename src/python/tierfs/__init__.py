"""Mount a store of tensors, import models into it, and read tensors as arrays.

The functions run the program `tierfs` and return what it prints with `--json`; the manual pages describe each command.
A tensor is read through the mount, as any file.

    import tierfs

    with tierfs.mount("store") as mnt:
        weight = tierfs.open(mnt / "demo/minilm/.tensors/embeddings.LayerNorm.weight")
        print(weight.dtype, weight.shape, weight.numpy().mean())
"""

from __future__ import annotations

from ._commands import cancel, evict, import_, import_hub, jobs, ls, pin, stat, status, tier, umount, unpin
from ._mount import Mount, mount
from ._program import CorruptError, Error, UsageError, program
from ._tensor import Tensor, open, tensors
from ._types import Entry, HubImport, Import, Job, LeftOut, MountedStore, PathResult, Reason, Stat, Status

__all__ = [
    "CorruptError",
    "Entry",
    "Error",
    "HubImport",
    "Import",
    "Job",
    "LeftOut",
    "Mount",
    "MountedStore",
    "PathResult",
    "Reason",
    "Stat",
    "Status",
    "Tensor",
    "UsageError",
    "cancel",
    "evict",
    "import_",
    "import_hub",
    "jobs",
    "ls",
    "mount",
    "open",
    "pin",
    "program",
    "stat",
    "status",
    "tensors",
    "tier",
    "umount",
    "unpin",
]
