//! I/O of payloads: read, verify, write, migrate, relocate and repair.

pub(in crate::store) mod buffer;
pub(in crate::store) mod clones;
pub(in crate::store) mod contiguous;
pub(in crate::store) mod deltas;
pub(in crate::store) mod encode;
pub(in crate::store) mod heal;
pub(in crate::store) mod link;
pub(in crate::store) mod migrate;
pub(in crate::store) mod origin;
pub(in crate::store) mod packed_blocks;
pub(in crate::store) mod pinned_copies;
pub(in crate::store) mod places;
pub(in crate::store) mod read;
pub(in crate::store) mod rebuild;
pub(in crate::store) mod relocate;
pub(in crate::store) mod scaled_delta;
pub(in crate::store) mod verify;
pub(in crate::store) mod write;
pub(in crate::store) mod zeros;
