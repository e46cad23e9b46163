//! What is mounted, for those who show it.

use std::sync::Arc;
use std::time::Instant;

use crate::control::counters::Counters;
use crate::control::jobs::Jobs;
use crate::store::Store;
use crate::vfs::Vfs;

/// What is mounted.
pub struct Mounted {
    /// Its tree.
    pub vfs: Arc<Vfs>,
    /// Where.
    pub mountpoint: String,
    /// How.
    pub options: toml::Table,
    /// Since when.
    pub since: Instant,
    /// What was done.
    pub counters: Counters,
    /// What goes on in the background.
    pub jobs: Jobs,
}

impl Mounted {
    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        self.vfs.store()
    }
}
