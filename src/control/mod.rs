//! Extended attributes and the control files in `.ctl`. Lookups, listings and help texts come from one table of each:
//! `ATTRIBUTES` (`attributes.rs`), and `MOUNT_FILES`, `TENANT_FILES` and `COLLECTION_FILES` (`files.rs`).
//!
//! To add:
//!
//! - an attribute: a row of `ATTRIBUTES`; getfattr, listings and `tierfs stat` follow. A number also goes into
//!   `NUMBERS` of `cli/common/output.rs`. To set it: a `Set` in `sets.rs`, and the help of `cli/set.rs`. If directories
//!   pass it on: a `Setting` in `engine/settings.rs`.
//! - a control file: a row at the end of its table, since places are parts of inode numbers. `Shape::Tree` mirrors the
//!   files of the collection.
//! - a metric: `metrics.rs`, which `http.rs` serves. A count of requests: `counters.rs`, and `stats` in `status.rs`.
//! - an event: call `Events::tell` of `Collection::event_log` or `Store::events`; a new kind in `EventKind`
//!   (`store/events.rs`).

mod actions;
mod attributes;
mod blocks;
mod context;
mod counters;
mod digests;
mod files;
mod foreseen;
mod forms;
mod hot_tensors;
#[cfg(feature = "mount")]
mod http;
#[cfg(feature = "mount")]
mod import;
mod jobs;
mod join;
mod maintenance;
mod measure;
mod metrics;
mod pinned_copy;
mod prefetch;
mod process;
#[cfg(feature = "remote")]
mod push;
mod quota;
mod refusals;
mod sets;
mod status;
mod text;
mod totals;
mod visibility;

pub use actions::{note_refused, note_refused_name, note_refused_rename};
pub use attributes::{
    ATTRIBUTES, Attribute, Cost, PREFIX, Reader, attribute, listed, refusal_attribute, values,
};
pub use context::{Context, Mounted, RINGS};
pub use counters::{Counters, Operation, Snapshot, Times};
pub use digests::{blake3, sha256};
pub use files::{COLLECTION_FILES, File, MOUNT_FILES, TENANT_FILES, act, controls, file_of, read_only, show};
pub use foreseen::POLICY_PLAN;
pub use forms::{form_attribute, set_form_attribute};
#[cfg(feature = "mount")]
pub use http::{serve_metrics, serve_metrics_text};
#[cfg(feature = "mount")]
pub use import::IMPORT;
pub use jobs::{Job, Jobs, Of, Report};
pub use measure::{Tally, tally};
#[cfg(feature = "remote")]
pub use push::PUSH;
pub use refusals::{Asker, Refusals};
pub use sets::{Acts, Asked, set};
pub use text::Text;
