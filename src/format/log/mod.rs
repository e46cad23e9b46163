//! Structures of the log and of its side file `access`.

pub mod access;
pub mod catalog;
pub mod placed;
pub mod record;
pub mod slot;
