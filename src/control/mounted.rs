//! The state of a mount that attributes and control files show.

use std::sync::Arc;
use std::time::Instant;

use crate::control::counters::Counters;
use crate::control::jobs::Jobs;
use crate::store::Store;
use crate::vfs::Vfs;

/// A mounted store.
pub struct Mounted {
    /// The tree.
    pub vfs: Arc<Vfs>,
    /// The mount point.
    pub mountpoint: String,
    /// The mount options.
    pub options: toml::Table,
    /// The time of the mount.
    pub since: Instant,
    /// Counts of requests.
    pub counters: Counters,
    /// Background jobs.
    pub jobs: Jobs,
}

impl Mounted {
    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        self.vfs.store()
    }
}
