//! `meta.log`: append, replay, validate and checkpoint.
//!
//! The log is the only commit point of a collection. `append.rs` writes a batch of records with a Commit at the end; a
//! batch that survives the end of the process counts, one that was synced survives a power cut. `validate.rs` checks a
//! batch against the state before it is appended, because an invalid one would be damage at the next replay.
//! `replay.rs` reads the log, with `scan.rs` for slots and for the search behind a bad one; `docs/FORMAT.md` has the
//! rules, and the page about power cuts.
//!
//! `checkpoint.rs` writes the log anew once it has four times the bytes that the state takes, and at least 4 MiB. A
//! sync measures the state when the log has grown to four times its last length, or when half of the files have gone.
//! Blocks keep their epochs. The new log is renamed over `meta.log` once it is durable. Writers wait for a checkpoint,
//! readers do not.
//!
//! To add a record: `Record` in `format/log/record.rs` (`Record::parse`, `Record::to_slot`, the functions of payloads),
//! `apply_record` in `store/state/apply_records.rs`, `validate.rs`, `checkpoint.rs`, and a table in `docs/FORMAT.md`. Records of
//! blocks also stand in `format/log/block_record.rs` and `store/state/apply_blocks.rs`. Older programs refuse a log
//! with an unknown record.

pub(in crate::store) mod append;
pub(in crate::store) mod checkpoint;
pub(in crate::store) mod pending_batch;
pub(in crate::store) mod refused_entries;
pub(in crate::store) mod replay;
pub(in crate::store) mod scan;
pub(in crate::store) mod validate;

/// Name of the log in the directory of its collection.
pub(in crate::store) const LOG_NAME: &str = "meta.log";
