//! Collections that nobody pushed: the directories of a source, as snapshots.
//!
//! An *index* is such a snapshot: a manifest and a log. The log is made by the code of imports
//! (`ingest/job/elsewhere.rs`, which is handed down as `Describe`), of the names and lengths of a listing and of the headers of
//! containers; the bytes of each object are those of a data file, at the same offsets. The pieces of these files are
//! ranges of the objects, held to the versions of the listing.
//!
//! 1. `names.rs`: which names are shown, since those of a server may be anything.
//! 2. `file.rs`: an object as a file to be recognized. Heads of containers are asked for together.
//! 3. `build.rs`: an index, and its form in the cache, where it is named by its listing.
//! 4. `collections.rs`: the directories of a source as the collections of a mount.
//!
//! An index is made again when the listing of its directory has changed. Each object may be replaced at any time: a read
//! that finds that fails (ESTALE), and has the mount list again.

pub(in crate::remote) mod build;
pub mod collections;
mod file;
mod names;
