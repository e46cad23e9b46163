"""The values that commands print with `--json`. Sizes are in bytes, times in seconds."""

from __future__ import annotations

from typing import Any, TypedDict


class Reason(TypedDict):
    """Why a request was refused."""

    code: str
    """`lossy`, `pinned`, `busy`, `not found`, …: one word or two for programs."""
    text: str
    advice: str | None
    """The command to type instead, if one helps."""
    count: int
    """Number of files it applies to; `files` has the first of them."""
    files: list[str]


class PathResult(TypedDict, total=False):
    """The result of a request for one path."""

    path: str
    state: str
    """`done`, `queued`, `refused`, `failed` or `cancelled`."""
    text: str
    job: int
    result: dict[str, Any]
    reasons: list[Reason]


class Listed(TypedDict):
    """A file that an import looked at."""

    action: str
    path: str
    bytes: int


class LeftOut(TypedDict):
    """A source that an import left out."""

    path: str
    reason: str


class Failed(TypedDict):
    """A source that an import could not read or store."""

    path: str
    error: str


class Note(TypedDict):
    """A remark on a source."""

    path: str
    note: str


class Import(TypedDict):
    """What an import did. Of one that failed in part, `Error.result`."""

    collection: str
    files: int
    tensors: int
    children: int
    """Tensors with a lineage parent."""
    encoded: int
    """Tensors stored in fewer bits."""
    unchanged: int
    mended: int
    removed: int
    version: int | None
    """The number of the version that the collection is now, if versions are kept."""
    bytes: int
    bytes_stored: int
    bytes_shared: int
    """Bytes of files that share a data file that the store had before."""
    bytes_copied: int
    """Bytes that were copied although their file stays in place."""
    linked: int
    """Names that were created for bytes that the collection had already."""
    left: int
    """Files that were not reached, because the import was cancelled or the store takes no more writes."""
    cancelled: bool
    failed: list[Failed]
    skipped: list[LeftOut]
    notes: list[Note]
    kept_exact: dict[str, int]
    listed: list[Listed]


class HubImport(TypedDict):
    """What an import of a hub cache did."""

    collections: list[Import]
    skipped: list[LeftOut]
    failed: list[str]
    """Models without the wanted revision."""


class Push(TypedDict):
    """What a push did."""

    collection: str
    """Its name in the remote."""
    snapshot: int
    """The number of the new snapshot, or of the newest one, if nothing had changed."""
    unchanged: bool
    bytes: int
    bytes_sent: int
    pieces: int
    differences: int
    """How many of the pieces are differences from others."""
    pieces_sent: int


class Removed(TypedDict):
    """What a removal freed."""

    collection: str
    files: int
    bytes_stored: int


class PushedVersion(TypedDict):
    """A snapshot that was pushed of a version."""

    remote: str
    """The UUID of the remote."""
    collection: str
    snapshot: int


class Version(TypedDict):
    """A version of a collection."""

    collection: str
    version: int
    created: int
    """Seconds since 1970."""
    bytes: int
    bytes_stored: int
    """Bytes beside the present state and the later versions."""
    changed: int | None
    """Bytes that differ from the version before."""
    pushed: list[PushedVersion]


class Compared(TypedDict, total=False):
    """A tensor or file of a comparison."""

    name: str
    what: str
    """Element type and shape, or `file`."""
    state: str
    """`same`, `values`, `bytes`, `shape`, `only in a` or `only in b`."""
    max: float | None
    """Largest difference of two values: infinite if one of them is NaN or infinite, `None` if they are not comparable."""
    rms: float | None
    elements: int
    """How many elements differ."""


class Diff(TypedDict):
    """A comparison of two tensors, containers or directories."""

    same: int
    differ: int
    only_in_a: int
    only_in_b: int
    rows: list[Compared]


class Event(TypedDict, total=False):
    """A line of the trail of a store."""

    time: float
    """Seconds since 1970."""
    kind: str
    path: str
    cause: str
    text: str
    user: int
    bytes: int
    previous: str
    """BLAKE3 of the line before it, as hexadecimal digits; empty in the first line."""


class Access(TypedDict):
    count: int
    last: int


class QuantizationError(TypedDict):
    max: float
    rms: float


# In `Stat` the name `list` is that of an attribute.
_Shape = list[int]


class Stat(TypedDict, total=False):
    """The attributes of a file or directory. `dtype`, `shape` and `error` are those of a tensor."""

    dtype: str
    shape: _Shape
    scheme: str
    tier: str
    tiers: str
    lossy: str
    pin: int
    reconstruct: str
    policy: str
    encoder: str
    writes: str
    list: str
    plain: str
    cache: str
    pack: str
    arrive: str
    row: str
    head_dim: int
    block_bytes: int
    tail: int
    back: str
    tags: str
    id: str
    parent: str
    shards: int
    blocks: int
    bits: float
    bytes: int
    bytes_stored: int
    checksum: str
    error: QuantizationError
    access: Access
    score: float
    chain: int
    snapshot: int
    variants: str
    why: str
    blake3: str
    sha256: str


class Entry(TypedDict, total=False):
    """A line of a listing."""

    name: str
    directory: bool
    dtype: str
    shape: list[int]
    tier: str
    tiers: str
    bytes: int
    bytes_stored: int


class Tier(TypedDict):
    blocks: int
    logical_bytes: int
    stored_bytes: int


class Share(TypedDict):
    """The part of a collection in the numbers of a mount."""

    path: str
    files: int
    problems: int
    tiers: dict[str, Tier]


class Times(TypedDict):
    """How long the requests of a kind took."""

    seconds: float
    """The sum."""
    buckets: list[tuple[float, int]]
    """Bounds in seconds, each with the number of requests that took no longer."""


class Traffic(TypedDict):
    """What a mount of a remote has fetched."""

    cached_bytes: int
    cache_hits: int
    cache_misses: int
    in_flight: int
    in_flight_bytes: int
    received_bytes: int
    bytes_per_second: int
    requests: int
    retries: int
    hedges: int
    failures: int


class Status(TypedDict, total=False):
    """The state of one mount."""

    store: str
    transport: str
    """`classic` or `uring`."""
    tenants: int
    collections: int
    open_collections: int
    unopened_collections: int
    """Collections that are not open, and not in these numbers."""
    files: int
    tiers: dict[str, Tier]
    shares: list[Share]
    remote: Traffic | None
    problems: list[Any]
    corrupt: int
    healed: int
    errors: int
    opens: int
    passthrough_opens: int
    operations: dict[str, int]
    operation_times: dict[str, Times]
    decoded_hits: int
    decoded_misses: int
    decoded_bytes: int
    decoded_budget_bytes: int
    reads: int
    read_bytes: int
    written_bytes: int
    pinned_bytes: int
    log_bytes: int
    resident_bytes: int
    cpu_seconds: float
    descriptors: int
    uptime_seconds: int


class MountedStore(TypedDict):
    """A mount of this machine.

    Its state is `ok`, `no answer`, `closed` to this user, `elsewhere` (only another mount namespace has it), or `ended` with
    its daemon.
    """

    mountpoint: str
    store: str
    state: str
    jobs: int


class Job(TypedDict, total=False):
    """A job of a mount."""

    job: int
    mountpoint: str
    path: str
    request: str
    state: str
    """`queued`, `running`, `done`, `failed` or `cancelled`."""
    text: str
    error: str
    bytes: int
    done_bytes: int
    seconds: float
    user: int
    result: dict[str, Any]
