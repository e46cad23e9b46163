//! What is mounted, and what was done since.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use crate::control::jobs::Jobs;
use crate::namespace::Namespace;
use crate::store::Store;

/// Operations since the mount began.
#[derive(Default)]
pub struct Counters {
    /// Files opened.
    pub opens: AtomicU64,
    /// Files opened whose reads the kernel answers itself.
    pub passthrough_opens: AtomicU64,
    /// Reads answered.
    pub reads: AtomicU64,
    /// Bytes of these reads.
    pub read_bytes: AtomicU64,
    /// Requests that ended with an error of the store.
    pub errors: AtomicU64,
    /// Reads of blocks whose stored bytes were wrong.
    pub corrupt: AtomicU64,
}

/// What is mounted, for those who show it.
pub struct Mounted {
    /// Its tree.
    pub namespace: Arc<Namespace>,
    /// Where.
    pub mountpoint: String,
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
        self.namespace.store()
    }
}
