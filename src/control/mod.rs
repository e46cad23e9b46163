//! What extended attributes and `.ctl` files show: one table of each, from which
//! look-ups, listings and help come.

mod actions;
mod attributes;
mod blocks;
mod digests;
mod files;
mod jobs;
mod measure;
mod mounted;
mod sets;
mod status;

pub use attributes::{ATTRIBUTES, Attribute, Cost, PREFIX, attribute, listed, values};
pub use digests::digests;
pub use files::{
    COLLECTION_FILES, Context, File, MOUNT_FILES, TENANT_FILES, act, controls, file_of, read_only, show,
};
pub use jobs::{Job, Jobs};
pub use measure::{Tally, tally};
pub use mounted::{Counters, Mounted};
pub use sets::{Acts, set};
