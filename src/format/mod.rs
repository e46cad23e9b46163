//! Bytes to validated structures and back.

pub mod catalog;
pub mod cursor;
pub mod record;
pub mod slot;
