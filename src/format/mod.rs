//! Parses bytes to validated structures, and writes them.

pub mod checksum;
pub mod cursor;
pub mod files;
pub mod log;
pub mod payload;
