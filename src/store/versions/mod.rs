//! Versions: earlier states of a collection, kept below its directory and only read.
//!
//! `tierfs import --previous` keeps the state of the collection before the import, unless a version is that state, and
//! the state after it. A version has a directory `versions/NUMBER` with the canonical log of the state
//! (`store/snapshot/canonical.rs`) and its payload files. It is a collection that is opened for reading on a
//! `VersionDisk` (`store/version_disk.rs`), so all above the store reads it as any other.
//!
//! - `keep.rs` makes a version. Its data files are further names of those of the collection, which are not changed in
//!   place from then on (`store/link_candidates.rs`); other payloads are copied. The directory is put together under
//!   another name and renamed, so a version is there as a whole or not at all.
//! - `differences.rs` then stores the payload files of the version before as differences from the new one. So the
//!   present state stays a whole file that the kernel reads itself, and the space of 20 checkpoints is that of one and
//!   19 differences. A file stays whole, as a keyframe, where its difference would be large, or where reads of it, or of
//!   versions before it, would go through many differences or large ones.
//! - `open.rs` opens and removes versions. Files that are differences from the removed one are first stored as differences from
//!   the version behind it.
//! - `store/version_list.rs` has the file `version.toml`, and the list of versions.
//!
//! A kill leaves whole versions. A directory that was not finished, or not removed to its end, goes with the next
//! version that is made or removed; a file that is there whole and as a difference counts as whole, and is stored as a
//! difference again.
//!
//! A version does not open other collections, so a collection whose blocks need others, files in place or a remote
//! cannot have versions.

mod differences;
mod keep;
mod open;

pub use keep::Kept;
