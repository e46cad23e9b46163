//! `meta.log`: append, replay, validate and checkpoint.

pub(in crate::store) mod append;
pub(in crate::store) mod checkpoint;
pub(in crate::store) mod pending_batch;
pub(in crate::store) mod refused_entries;
pub(in crate::store) mod replay;
pub(in crate::store) mod scan;
pub(in crate::store) mod validate;

/// Name of the log in the directory of its collection.
pub(in crate::store) const LOG_NAME: &str = "meta.log";
