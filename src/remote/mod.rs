//! Stores on object storage, with the feature `remote`.
//!
//! A remote is a prefix of a bucket. It has two kinds of objects that count: pieces, which are named by the BLAKE3 of
//! their bytes, and manifests, each of which is a snapshot of a collection and names its pieces. Neither changes after
//! it was created, so everything that was read once may be kept, and a name says whether bytes are right.
//!
//! A push freezes a collection, stores the pieces that the remote lacks and creates the manifest with the next number
//! as its last step. Two pushes of the same number are told apart by the conditional PUT. A mount of a remote looks up
//! the newest manifest of a collection, opens its log as `store::snapshot` wants it, and fetches pieces when their
//! bytes are read: through a cache on disk, or through a few pieces in memory. A clone is a local collection;
//! some of its pieces are in the remote only. A collection of garbage takes two runs: the first plans, the second removes what the plan
//! named a day before.
//!
//! The rooms, each of which may name those before it:
//!
//! 1. `client`: requests with deadlines, retries and a bounded number at a time. `traces` exports spans.
//! 2. `place`: one remote, its identity, manifests, tags, garbage.
//!    `source`: data that nobody pushed.
//! 3. `read`: snapshots as a mount shows them, and the cache of their pieces.
//! 4. `clone`: pieces for the clones of a store, and objects that imports left where they lie. `index`: the data of a source
//!    as snapshots.
//! 5. `push`: snapshots that are made.
//!
//! `docs/REMOTE.md` describes the use, `docs/FORMAT.md` the bytes, `store/snapshot/mod.rs` how a collection becomes canonical
//! files and how a snapshot becomes a disk. `/.ctl/refresh` acts when it is read: the kernel refuses all writes to a
//! read-only mount before the daemon sees them.
//!
//! This is the only layer with a network and with asynchronous code. Others call its functions from their own threads
//! and wait.

pub mod client;
pub mod clone;
pub mod index;
pub mod place;
pub mod push;
pub mod read;
pub mod source;
#[cfg(feature = "traces")]
pub mod traces;
