//! One remote: its identity, the manifests in it, tags, and collections of its garbage.

pub mod at;
pub mod disk_speed;
pub mod garbage;
pub mod listing;
pub mod probe;
pub mod remote;
pub mod signatures;
pub mod stored_bytes;
pub mod tags;
pub(in crate::remote) mod tenant_lists;
