//! Extended attributes and the control files in `.ctl`. Lookups, listings and help texts come from one
//! table of each.

mod actions;
mod attributes;
mod blocks;
mod compact;
mod counters;
mod digests;
mod files;
mod forms;
#[cfg(feature = "mount")]
mod import;
mod jobs;
mod measure;
mod metrics;
mod mounted;
mod policy;
mod prefetch;
mod quota;
mod scrub;
mod sets;
mod status;
mod text;
mod tiers;
mod totals;

pub use attributes::{ATTRIBUTES, Attribute, Cost, PREFIX, attribute, listed, values};
pub use counters::{Counters, Operation, Snapshot, Times};
pub use digests::{blake3, sha256};
pub use files::{
    COLLECTION_FILES, Context, File, MOUNT_FILES, TENANT_FILES, act, controls, file_of, read_only, show,
};
pub use forms::{form_attribute, set_form_attribute};
#[cfg(feature = "mount")]
pub use import::IMPORT;
pub use jobs::{Job, Jobs};
pub use measure::{Tally, tally};
pub use mounted::Mounted;
pub use sets::{Acts, set};
pub use text::Text;
