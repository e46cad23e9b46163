//! Imports files as tensors: recognizes their content, stores their bytes as blocks, and commits all
//! names of a file at once, when everything is durable.
//!
//! Invariants:
//! 1. A name appears only with a batch that was written after all bytes behind it were synced. An
//!    interrupted import leaves complete files only.
//! 2. Every byte of a file belongs to exactly one object.

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
pub use find::target::Target;
pub use job::import_file::{import_file, import_shards};
#[cfg(feature = "mount")]
pub use job::import_job::{Plan, Watch};
pub use job::mounted_file::{Bytes, arrive, arrive_as, is_recorded, is_scanned, may_be_recognized};
#[cfg(feature = "mount")]
pub use job::request::{Request, parse_collection, parse_encoder};
pub use job::share::{MountedFile, share};
#[cfg(feature = "mount")]
pub use job::sum::{Action, Listed, Sum};
pub use publish::commit::{Rename, Replaced};
#[cfg(feature = "mount")]
pub use publish::compare::node_at;
pub use recognize::batch::check_batch;
pub use recognize::block_size::Blocking;
pub use recognize::content::{recognize, recognize_at, recognize_within};
pub use recognize::data_files::{has_data_files, has_models, is_data_file, mark_data_files};
pub use recognize::parts::{Part, PartTensor, Recognized};
