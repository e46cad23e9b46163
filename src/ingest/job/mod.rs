//! Imports: one file, many, and those that arrive through a mount.

pub(in crate::ingest) mod arrival;
#[cfg(feature = "remote")]
pub(in crate::ingest) mod elsewhere;
pub(in crate::ingest) mod import_file;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod import_job;
pub(in crate::ingest) mod import_shards;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod manifest;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod missing_shards;
pub(in crate::ingest) mod mounted_file;
#[cfg(feature = "mount")]
mod origins;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod request;
pub(in crate::ingest) mod share;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod sum;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod versions;
