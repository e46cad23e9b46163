//! Stores without a mount, for the test binaries that call the library: imports into stores on both kinds of disk, a disk
//! in memory that loses unsynced changes, and random histories with a model. `tests/support/` does not depend on tierfs,
//! so these modules stand here.

pub mod fixture;
pub mod history;
pub mod power_cut_disk;
pub mod recorder;
