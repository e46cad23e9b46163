//! Structures of a log and of its side file.

pub mod access;
pub mod catalog;
pub mod placed;
pub mod record;
pub mod slot;
