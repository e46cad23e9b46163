//! Structures of the log and of its side file `access`.

pub mod access;
pub mod block_record;
pub mod catalog;
pub mod record;
pub mod slot;
pub mod small_batch;
