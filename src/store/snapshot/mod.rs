//! Snapshots: a collection at one moment as canonical files, and such files as a disk that is only read.
//!
//! # A push reads a collection while others write to it
//!
//! 1. `Frozen::of` (`freeze.rs`) syncs and takes the lock of the writer. It copies the state: it makes the records that
//!    a checkpoint would write and applies them to an empty state. Then it takes a hold (`ReadGate::hold`). Until the
//!    hold is dropped, `Collection::reclaim` frees no space.
//! 2. `Frozen::canonical` (`canonical.rs`) makes a second copy without what belongs to one machine, gives its payloads
//!    their places in files without gaps, and writes it as a log. `format/snapshot/pieces.rs` cuts the stretches of
//!    objects into pieces.
//! 3. `Canonical::read` (`payloads.rs`) reads the bytes of a piece; every payload that it touches is compared with its
//!    checksum.
//!
//! `Canonical::choose` and `Canonical::variant` (`variant.rs`) make the log and the tier files of a variant. The
//! tensors that a variant takes, and the elements of its blocks, come from the engine (`engine/variants.rs`) by the
//! trait `Recode`. `CanonicalVariant::narrowed` (`shared_pieces.rs`) says which pieces of a data file a variant shares,
//! and cuts the rest of what it needs. `Store::variant` opens a variant of an open collection; `published` in
//! `vfs/form/plan.rs` has the forms of a tier read it.
//!
//! `StoredObjects` (`stored_objects.rs`) finds the bytes that an earlier snapshot has of the same tensors, so that a push
//! can store pieces as differences from them. `parents.rs` compares the parents of differences.
//!
//! # A reader
//!
//! `SnapshotDisk` (`disk.rs`) is an implementation of `Disk`, so the store on it and all above stay as they are. Its
//! source implements `Snapshots` and `SnapshotFiles` (`source.rs`), which list tenants and collections and read the
//! files of a manifest. The disk makes `tierfs.toml` and the files of tenants, which no snapshot has, and adds a batch
//! to each log with a number for the collection, since collections of different stores may have the same number.
//! `ShownSnapshots::still` keeps an open collection on its snapshot when another is shown. The next process that serves a
//! mount goes on with the numbers that were given (`numbers.rs`).

pub(in crate::store) mod canonical;
pub(in crate::store) mod choice;
mod clone_reuse;
pub(in crate::store) mod disk;
pub(in crate::store) mod freeze;
mod numbers;
pub(in crate::store) mod parents;
pub(in crate::store) mod payloads;
mod shared_pieces;
pub(in crate::store) mod source;
pub(in crate::store) mod stored_objects;
pub(in crate::store) mod variant;
