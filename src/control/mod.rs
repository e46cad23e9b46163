//! What extended attributes and `.ctl` files show: one table of each, from which
//! look-ups, listings and help come.

mod attributes;
mod digests;
mod files;
mod jobs;
mod measure;
mod sets;

pub use attributes::{ATTRIBUTES, Attribute, Cost, PREFIX, attribute, listed, values};
pub use digests::digests;
pub use files::{COLLECTION_FILES, Counters, File, MOUNT_FILES, Mounted, render};
pub use jobs::{Job, Jobs};
pub use measure::{Tally, tally};
pub use sets::{Acts, set};
