//! Snapshots as a mount shows them: the search for the newest, their files, and the pieces of these in a cache.
//!
//! `Source::search` finds the newest snapshot and asks at the same time for its manifest, for the number after it, and
//! for the hint. The listing that a mount begins with says where to start (`Remote::open_and_list`). Manifests, and
//! logs in pieces, are kept by name (`cache/object_cache.rs`). `Snapshots::open_tenant` opens the collections of a
//! tenant together; directories of collections that nobody has entered are shown without (`collection_lookup.rs`). Names older than 10 s are asked for again by a thread of their own, for which a lookup waits 1 s at
//! most: a remote that is away would otherwise hold up each lookup of a path for a minute and then fail it, also of
//! files that are in the cache.
//!
//! A mirror (`mirrors.rs`) gives pieces only: a manifest has no name that says whether it is right, and a stale `head`
//! would hide new snapshots. The first bytes of a file, and what is read here and there (`parts.rs`), are read before their
//! piece and compared with a CRC32C at most, so they come from the remote. A mirror has deadlines of 2 s and rests for 10 s after an error.

pub mod cache;
mod collection_lookup;
pub mod counts;
pub mod failure_reports;
pub mod far_objects;
pub mod files;
pub(in crate::remote) mod listings;
pub mod mirrors;
mod parts;
pub mod piece_buffer;
pub mod pieces;
pub mod published_collections;
mod references;
pub mod snapshot_lookup;
mod waiting_threads;
mod whole_digest;
