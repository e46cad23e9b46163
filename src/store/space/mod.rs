//! Allocation of space for payloads: files, slots, reservations and reclaim.

pub(in crate::store) mod files;
pub(in crate::store) mod reclaim;
pub(in crate::store) mod reservations;
pub(in crate::store) mod slots;
pub(in crate::store) mod zeros;
