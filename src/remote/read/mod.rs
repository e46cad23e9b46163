//! Snapshots as a mount shows them: the search for the newest, their files, and the pieces of these in a cache.

pub mod cache;
pub mod failure_reports;
pub mod files;
pub mod mirrors;
mod names;
pub mod piece_buffer;
pub mod pieces;
pub mod published_collections;
pub mod snapshot_lookup;
