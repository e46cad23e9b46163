//! Where payloads may go: files, slots, reservations, and what comes free.

pub(in crate::store) mod files;
pub(in crate::store) mod reclaim;
pub(in crate::store) mod reservations;
pub(in crate::store) mod slots;
pub(in crate::store) mod zeros;
