//! Imports files as tensors: recognizes their content, stores their bytes as blocks, and commits all names of a file at
//! once, when everything is durable. The same code serves `tierfs import` and files that are written through a mount.
//!
//! Invariants:
//! 1. A name appears only with a batch that was written after all bytes behind it were synced. An interrupted import
//!    leaves complete files only.
//! 2. Every byte of a file belongs to exactly one object.
//!
//! The rooms, highest first; a room imports lower rooms only:
//!
//! | room | contents |
//! |---|---|
//! | `job` | one import, many, and files that arrive through a mount |
//! | `publish` | objects, nodes and names go to the log, names last |
//! | `bytes` | the bytes of a file as objects without a name; options, quota |
//! | `recognize` | parts, types and blocks of a content |
//! | `find` | directories, caches of hubs, sources that are known |
//!
//! # An import
//!
//! 1. `job/import_job.rs` finds the files (`find/walk.rs`; `find/hub.rs` knows caches of the Hugging Face Hub). Each
//!    file is compared with the one in its place (`publish/compare.rs`) by the record of its source
//!    (`find/provenance.rs`); unchanged files end here, and damaged blocks of them are mended from the source
//!    (`publish/mend.rs`).
//! 2. `job/import_file.rs` takes each other file through the next steps. `recognize/content.rs` reads the header and
//!    returns parts that cover the file, `bytes/room.rs` reserves quota. `MoveTo` (`model/move_to.rs`) chooses the tier
//!    of each tensor, `recognize/block_size.rs` the length of its blocks.
//! 3. `bytes/store_parts.rs` reads the source once, at most 4 MiB at a time. Four jobs share the cores for each chunk
//!    (`rayon`): store it, digest it, take a CRC32C of each block that stays exact in a data file, read the next chunk.
//!    Storing is a write to the same place of the data file, encoding into a tier file, packing into `tier0.dat`, or,
//!    with `--in-place`, nothing. From 64 MiB on an import has its own threads: the calling thread would otherwise wake
//!    for every chunk.
//! 4. `publish/commit.rs` commits objects and blocks in batches, which nothing names yet. One last batch has nodes and
//!    names, and removes the replaced ones. A sync before it makes the bytes durable, a sync after it the names.
//! 5. `publish/links.rs` makes other names of a blob, `publish/removal.rs` removes names that the source no longer has.
//!
//! An import that fails leaves no name and releases its space (`bytes/pending_parts.rs`). The leftovers of a killed
//! import are removed when the collection is next opened to write (`store/collection/recover.rs`).
//!
//! # A file written through a mount
//!
//! `job/mounted_file.rs` takes a file apart where it lies: objects become extents of the data file that the file was
//! written into. `bytes/cut.rs` cuts at the borders of tensors; a block that does not lie with the rest of its tensor
//! is copied to a slot. A file is copied as a whole, as in an import, if most of it lies elsewhere and there is room,
//! or if it has at most 16 KiB. Without room a container is recorded as a plain file, with the mark of a renamed file,
//! so that it is recognized later. `job/share.rs` lets a new file share the data file of another one. Where a directory
//! says how files arrive, `job/arrival.rs` makes a tensor of a plain file, and chooses tiers and blocks: such a file is
//! copied, in the batch that recognizes it once it is closed.
//!
//! # To add a format
//!
//! A module in `format/files/`; a `Content` (`format/log/catalog/mod.rs`: `Content::ALL`, `Content::code`,
//! `Content::is_container`); a branch in `recognize/content.rs`, or in `recognize/archives.rs` if its headers lie in
//! several places; its suffix in `may_be_recognized` (`job/mounted_file.rs`); an arm in both matches of
//! `vfs/open/flush.rs`; `is_named_by_file` in `store/state/tree.rs` if its tensors have the name of the file;
//! `vfs/form/plan.rs` if forms cast it.

mod bytes;
mod find;
mod job;
mod publish;
mod recognize;

pub use bytes::cut::Written;
pub use bytes::options::{Options, Origin, Report};
pub use bytes::parents::Parents;
#[cfg(feature = "mount")]
pub use find::hub::{HubCache, HubRepository, hub_cache};
#[cfg(feature = "mount")]
pub use find::shard_order::shards_in_order;
pub use find::target::Target;
pub use job::arrival::{Arrival, Arriving, Shaped, checked_value};
#[cfg(feature = "remote")]
pub use job::elsewhere::describe;
pub use job::import_file::import_file;
#[cfg(feature = "mount")]
pub use job::import_job::{Plan, Watch};
pub use job::import_shards::import_shards;
pub use job::mounted_file::{
    Bytes, arrive, arrive_as, arrive_shaped, is_recorded, is_scanned, may_be_recognized,
};
#[cfg(feature = "mount")]
pub use job::request::{Request, parse_collection, parse_encoder};
pub use job::share::{MountedFile, Same};
#[cfg(feature = "mount")]
pub use job::sum::{Action, Listed, Sum};
pub use publish::commit::{Rename, Replaced};
pub use publish::join::{Join, Joined, join};
pub use recognize::archives::is_ordinary;
pub use recognize::batch::check_batch;
pub use recognize::block_size::Blocking;
pub use recognize::content::{recognize, recognize_at, recognize_within};
pub use recognize::data_files::{has_data_files, has_models, is_data_file, mark_data_files};
pub use recognize::parts::{Part, PartTensor, Recognized, WholeTensor};
