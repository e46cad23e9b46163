//! Snapshots of collections on object storage.

pub mod pieces;
