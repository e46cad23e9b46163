//! Snapshots: a collection at one moment as canonical files, and such files as a disk that is only read.

mod again;
pub(in crate::store) mod canonical;
pub(in crate::store) mod disk;
pub(in crate::store) mod freeze;
mod narrowed;
pub(in crate::store) mod payloads;
pub(in crate::store) mod recoded;
pub(in crate::store) mod source;
