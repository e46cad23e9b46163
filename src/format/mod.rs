//! Bytes to validated structures and back.

pub mod checksum;
pub mod cursor;
pub mod files;
pub mod log;
pub mod payload;
