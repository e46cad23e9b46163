//! Snapshots: a collection at one moment as canonical files, and such files as a disk that is only read.

pub(in crate::store) mod canonical;
pub(in crate::store) mod choice;
mod clone_reuse;
pub(in crate::store) mod disk;
pub(in crate::store) mod freeze;
pub(in crate::store) mod payloads;
mod shared_pieces;
pub(in crate::store) mod source;
pub(in crate::store) mod variant;
