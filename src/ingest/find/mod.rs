//! Finds files: directories and their links, caches of the Hugging Face Hub, stores that stand inside, what a
//! collection has already.

#[cfg(feature = "mount")]
pub(in crate::ingest) mod hub;
pub(in crate::ingest) mod provenance;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod shard_order;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod store_paths;
pub(in crate::ingest) mod target;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod walk;
