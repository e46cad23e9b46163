//! Imports files as tensors: recognizes their content, stores their bytes as blocks, and commits all
//! names of a file at once, when everything is durable.
//!
//! Invariants:
//! 1. A name appears only with a batch that was written after all bytes behind it were synced. An
//!    interrupted import leaves complete files only.
//! 2. Every byte of a file belongs to exactly one object.

mod archives;
mod arrive;
mod batch;
mod blocking;
#[cfg(feature = "mount")]
mod compare;
mod cut;
mod data_files;
mod diagnose;
mod drafts;
#[cfg(feature = "mount")]
mod hub;
mod import_file;
#[cfg(feature = "mount")]
mod import_job;
#[cfg(feature = "mount")]
mod inside;
#[cfg(feature = "mount")]
mod links;
#[cfg(feature = "mount")]
mod manifest;
#[cfg(feature = "mount")]
mod mend;
mod names;
mod options;
mod parents;
mod parts;
mod provenance;
mod publish;
mod recognize;
#[cfg(feature = "mount")]
mod removal;
#[cfg(feature = "mount")]
mod request;
mod room;
mod share;
mod store_parts;
#[cfg(feature = "mount")]
mod sum;
mod target;
mod uncommitted;
#[cfg(feature = "mount")]
mod walk;

pub use arrive::{Bytes, arrive, arrive_as, is_recorded, is_scanned, may_be_recognized};
pub use batch::check_batch;
pub use blocking::Blocking;
#[cfg(feature = "mount")]
pub use compare::node_at;
pub use cut::Written;
pub use data_files::{has_data_files, has_models, is_data_file, mark_data_files};
#[cfg(feature = "mount")]
pub use hub::{HubCache, HubRepository, hub_cache};
pub use import_file::{import_file, import_shards};
#[cfg(feature = "mount")]
pub use import_job::{Plan, Watch};
pub use options::{Options, Origin, Report};
pub use parents::Parents;
pub use parts::{Part, PartTensor, Recognized};
pub use publish::Rename;
pub use recognize::{recognize, recognize_at, recognize_within};
#[cfg(feature = "mount")]
pub use request::{Request, parse_collection, parse_encoder};
pub use share::share;
#[cfg(feature = "mount")]
pub use sum::{Action, Listed, Sum};
pub use target::Target;
