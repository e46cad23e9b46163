//! Snapshots of collections on object storage.

pub mod difference;
pub mod keys;
pub mod manifest;
pub mod piece_map;
pub mod pieces;
pub mod references;
pub mod signature;
pub mod tenant_list;
mod wire;
