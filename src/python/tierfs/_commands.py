"""Functions that run one command each."""

from __future__ import annotations

import json
import math
from typing import Any, overload

from ._program import StrPath, run, run_json
from ._types import (
    Diff,
    Entry,
    Event,
    HubImport,
    Import,
    Job,
    MountedStore,
    PathResult,
    Push,
    Removed,
    Stat,
    Status,
    Version,
)


def import_(
    store: StrPath,
    collection: str,
    *paths: StrPath,
    tier: str | None = None,
    encoder: str | None = None,
    parent: str | None = None,
    previous: bool = False,
    keep: int | None = None,
    in_place: bool = False,
    revision: str | None = None,
    all_revisions: bool = False,
    checksum: bool = False,
    update: bool = False,
    delete: bool = False,
    strict: bool = False,
    create: bool = False,
    dry_run: bool = False,
) -> Import:
    """Imports files and directories into a collection, mounted or not.

    Args:
        store: the store; created if nothing exists at this path.
        collection: `TENANT/COLLECTION`; created if it does not exist.
        tier: `exact`, `q8`, `q7`, `q5`, `q3` or `q3x`; with `:all`, for every float tensor.
        previous: keep the state before the import and the state after it as versions, which `log` lists.
        keep: with `previous`, how many versions are left; the oldest go.
        create: create the store in an existing empty directory too.

    The other arguments are the options of `tierfs import`.

    Raises:
        ValueError: `collection` has no slash. `import_hub` imports a whole cache of the Hugging Face Hub into a tenant.
    """
    if "/" not in collection:
        raise ValueError(f"{collection!r} is not of the form TENANT/COLLECTION; import_hub imports a hub cache")
    options: list[StrPath] = []
    for name, value in (
        ("tier", tier),
        ("encoder", encoder),
        ("parent", parent),
        ("revision", revision),
        ("keep", keep),
    ):
        if value is not None:
            options += [f"--{name}={value}"]
    flags = {
        "previous": previous,
        "in-place": in_place,
        "all-revisions": all_revisions,
        "checksum": checksum,
        "update": update,
        "delete": delete,
        "strict": strict,
        "create": create,
        "dry-run": dry_run,
    }
    options += [f"--{name}" for name, is_set in flags.items() if is_set]
    result: Import = run_json("import", *options, "--", store, collection, *paths)
    return result


def import_hub(
    store: StrPath,
    tenant: str,
    *caches: StrPath,
    tier: str | None = None,
    revision: str | None = None,
    in_place: bool = False,
    dry_run: bool = False,
) -> HubImport:
    """Imports the models of caches of the Hugging Face Hub, each into one collection of a tenant.

    Args:
        store: the store; created if nothing exists at this path.
        tenant: created if it does not exist.
        tier: `exact`, `q8`, `q7`, `q5`, `q3` or `q3x`; with `:all`, for every float tensor.
        revision: the branch, tag or commit of each model, instead of `main`.
    """
    options: list[StrPath] = []
    for name, value in (("tier", tier), ("revision", revision)):
        if value is not None:
            options += [f"--{name}={value}"]
    options += [f"--{name}" for name, is_set in (("in-place", in_place), ("dry-run", dry_run)) if is_set]
    result: HubImport = run_json("import", *options, "--", store, tenant, *caches)
    return result


def umount(mountpoint: StrPath, *, lazy: bool = False) -> None:
    """Unmounts a store and waits until its daemon has released it.

    Args:
        lazy: detach the mount point now; the daemon ends when the last file is closed.
    """
    run("umount", *(["--lazy"] if lazy else []), "--", mountpoint)


def tier(
    tier: str, *paths: StrPath, lossy: bool = False, dry_run: bool = False, detach: bool = False
) -> list[PathResult]:
    """Moves tensors of files, directories, collections or tenants on a mount to a tier.

    Args:
        tier: `exact`, `q8`, `q7`, `q5`, `q3` or `q3x`; with `:all`, for every float tensor.
        lossy: allow the loss of the last exact copy, for this request only.
        dry_run: check the move and change nothing.
        detach: return when the job is queued; `jobs` shows its progress.
    """
    return _moves("tier", [tier, *paths], lossy=lossy, dry_run=dry_run, detach=detach)


def pack(*paths: StrPath, all: bool = False, dry_run: bool = False, detach: bool = False) -> list[PathResult]:
    """Stores exact tensors in less space, without a loss; they read as before.

    Args:
        all: pack tensors of 8-bit types too.
    """
    return _moves("pack", paths, all=all, dry_run=dry_run, detach=detach)


def unpack(*paths: StrPath, detach: bool = False) -> list[PathResult]:
    """Stores packed tensors verbatim again."""
    return _moves("unpack", paths, detach=detach)


def pin(*paths: StrPath, detach: bool = False) -> list[PathResult]:
    """Keeps files contiguous, with their present bytes and in their tier."""
    return _moves("pin", paths, detach=detach)


def unpin(*paths: StrPath, detach: bool = False) -> list[PathResult]:
    """Unpins files and removes their copies."""
    return _moves("unpin", paths, detach=detach)


def evict(
    *paths: StrPath, cache: bool = False, discard: bool = False, lossy: bool = False, detach: bool = False
) -> list[PathResult]:
    """Removes the stored bytes of tensors that can be reconstructed.

    Args:
        cache: drop only the kernel's page cache.
        discard: remove the stored bytes permanently; needs `lossy`, or the setting `lossy=allow`.
    """
    return _moves("evict", paths, cache=cache, discard=discard, lossy=lossy, detach=detach)


def set(*paths: StrPath, **settings: str | int | float) -> list[PathResult]:
    """Changes settings of files, directories, collections, tenants or mounts: `tierfs.set(path, lossy="allow")`."""
    words = [f"{key}={value}" for key, value in settings.items()]
    result: list[PathResult] = run_json("set", "--", *words, *paths)
    return result


def get(path: StrPath) -> dict[str, str | int | float]:
    """Returns the settings of a file or directory, as `set` takes them."""
    result: dict[str, str | int | float] = run_json("get", "--", path)
    return result


def push(
    store: StrPath,
    collection: str,
    remote: str,
    *,
    create: bool = False,
    message: str | None = None,
    tag: str | None = None,
    variants: str | None = None,
    force: bool = False,
) -> Push:
    """Publishes a collection in a remote, where other machines can mount it.

    Args:
        collection: `TENANT/COLLECTION`.
        remote: URL, such as `s3://BUCKET/PREFIX`.
        create: create the remote if it does not exist.
        variants: tiers to publish too, such as `q8,q5`.
    """
    options: list[StrPath] = []
    for name, value in (("message", message), ("tag", tag), ("variants", variants)):
        if value is not None:
            options += [f"--{name}={value}"]
    options += [f"--{name}" for name, is_set in (("create", create), ("force", force)) if is_set]
    result: Push = run_json("push", *options, "--", store, collection, remote)
    return result


def export(
    store: StrPath, path: str, destination: StrPath, *, form: str | None = None, adapter: str | None = None
) -> None:
    """Copies a file or a collection out of a store or a remote.

    Args:
        path: `TENANT/COLLECTION`, or a path below it.
        destination: a directory, created if it does not exist; for a single file, also its new name.
        form: convert to this form, such as `f16` (the option `--as`).
        adapter: add this adapter of the tenant.
    """
    options = [f"--{name}={value}" for name, value in (("as", form), ("adapter", adapter)) if value is not None]
    run("export", *options, "--", store, path, destination)


def log(store: StrPath, collection: str) -> list[Version]:
    """Returns the versions of a collection (`TENANT/COLLECTION`) of a store, the newest first."""
    result: list[Version] = run_json("log", "--", store, collection)
    return result


def rm(store: StrPath, collection: str) -> Removed:
    """Removes a collection (`TENANT/COLLECTION`) with everything in it."""
    result: Removed = run_json("rm", "--", store, collection)
    return result


def diff(a: StrPath, b: StrPath) -> Diff:
    """Compares tensors, containers or directories, on a mount or elsewhere."""
    found: Any = run_json("diff", "--", a, b, answers=(0, 1))
    for row in found["rows"]:
        _make_infinite(row)
    result: Diff = found
    return result


def events(store: StrPath, *, since: str | int | None = None, path: str | None = None) -> list[Event]:
    """Returns the trail of a store, or of that of a mount, the oldest event first.

    Args:
        since: seconds since 1970, or a time before now such as `90s`, `30m`, `12h` or `7d`.
        path: only events of this path and of those below it.
    """
    options = [] if since is None else [f"--since={since}"]
    names = [] if path is None else [path]
    lines: list[Event] = [json.loads(line) for line in run("events", *options, "--", store, *names).splitlines()]
    return lines


def stat(path: StrPath, *, digests: bool = False) -> Stat:
    """Returns the attributes of a file or directory; with `digests`, BLAKE3 and SHA-256 too, which may read all of it."""
    found: Any = run_json("stat", *(["--digests"] if digests else []), "--", path)
    _make_infinite(found.get("error") or {})
    result: Stat = found
    return result


def _make_infinite(differences: dict[str, Any]) -> None:
    """JSON has no infinity, so an infinite difference is a text there."""
    differences.update({key: math.inf for key in ("max", "rms") if differences.get(key) == "inf"})


def ls(path: StrPath, *, tensors: bool = False) -> list[Entry]:
    """Lists a directory of a store or mount, or with `tensors` the tensors of a container or of those in a directory."""
    result: list[Entry] = run_json("ls", *(["--tensors"] if tensors else []), "--", path)
    return result


@overload
def status() -> list[MountedStore]: ...
@overload
def status(mountpoint: StrPath) -> Status: ...
def status(mountpoint: StrPath | None = None) -> Status | list[MountedStore]:
    """Returns the state of a mount; without one, the mounts of this machine, with those whose daemon has ended."""
    result: Status | list[MountedStore] = run_json("status", "--", *_optional(mountpoint), answers=(0, 1))
    return result


def jobs(mountpoint: StrPath | None = None) -> list[Job]:
    """Returns the jobs of a mount, or of all mounts: waiting, running, and the last ones that have ended."""
    result: list[Job] = run_json("jobs", "--", *_optional(mountpoint))
    return result


def cancel(job: int, mountpoint: StrPath | None = None) -> PathResult:
    """Cancels a job, waits for its end, and returns what it has done."""
    result: PathResult = run_json("cancel", "--", str(job), *_optional(mountpoint))
    return result


def _optional(path: StrPath | None) -> list[StrPath]:
    return [] if path is None else [path]


def _moves(command: str, arguments: tuple[StrPath, ...] | list[StrPath], **flags: bool) -> list[PathResult]:
    options = [f"--{name.replace('_', '-')}" for name, is_set in flags.items() if is_set]
    result: list[PathResult] = run_json(command, *options, "--", *arguments)
    return result
