//! Parses bytes to validated structures, and writes them.

pub mod budget;
pub mod checksum;
pub mod cursor;
pub mod files;
pub mod log;
#[cfg(feature = "mount")]
pub mod mountinfo;
pub mod payload;
pub mod snapshot;
mod values;
pub mod zstandard;
