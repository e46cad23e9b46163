//! The engine, and the work that it has in progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::engine::reconstruct::Ways;
use crate::engine::results::{Compacted, Scrubbed};
use crate::engine::state::{Automatic, PinQueue};
use crate::model::{Aim, EntryId, Error, ErrorKind, Progress, Result};
use crate::store::{Collection, Pin, Store, Verify};
use crate::stream::Stream;

/// The source of the bytes of forms, which a layer above the engine implements.
pub trait Forms: Send + Sync {
    /// The bytes of a form of a file. Fails with `NotFound` where the form does not show the file.
    fn stream(&self, collection: &Arc<Collection>, pin: Pin, verify: Verify) -> Result<Stream>;
}

/// An implementation without forms.
pub struct NoForms;

impl Forms for NoForms {
    fn stream(&self, _: &Arc<Collection>, _: Pin, _: Verify) -> Result<Stream> {
        Err(Error::new(ErrorKind::NotFound, "forms are available only in a mount"))
    }
}

/// Moves, evicts, pins and scrubs tensors, and tracks this work.
///
/// A mount, and each command that opens a store, has one engine. A change of tiers is planned first (`plan_move.rs`):
/// the blocks that a request takes, the sources that it may read, and the consent that it needs. A refusal changes
/// nothing. Then `moves.rs` encodes a few MiB at a time, from the best bytes there are, records each step as a batch
/// and syncs now and then, so a move that is stopped leaves each block old or new. `at_work` lets one such request run
/// at a time.
///
/// The engine is also the rebuilder of the store: a read that finds a block absent or corrupt asks it, and it tries the
/// ways of `reconstruct/` in order. The automatic work of a mount (policy, pins, healing, compaction) calls the same
/// functions from the maintenance thread.
pub struct Engine {
    pub store: Arc<Store>,
    /// Serializes the requests that change tiers.
    pub(super) at_work: Mutex<()>,
    moving: Mutex<Vec<Arc<Running>>>,
    /// Pinned files that need a check of their copies.
    pub(super) pins: Mutex<PinQueue>,
    /// The source of the bytes of pinned forms.
    pub(super) forms: Box<dyn Forms>,
    pub(super) ways: Arc<Ways>,
    /// ParentHold only for a short access; no other lock is taken with it.
    pub(super) automatic: Mutex<Automatic>,
    /// Result of the last scrub, by path of the collection.
    pub(super) scrubbed: Mutex<BTreeMap<String, Scrubbed>>,
    /// Result of the last prefetch, by path of the collection.
    pub(super) prefetched: Mutex<BTreeMap<String, Scrubbed>>,
    /// Result of the last compaction, by path of the collection.
    pub(super) compacted: Mutex<BTreeMap<String, Compacted>>,
}

/// A move of a tensor in progress.
pub struct Running {
    collection: u32,
    node: EntryId,
    /// The tier before, as attributes show it.
    pub from: String,
    /// The tier or encoding that the move aims at.
    pub to: Aim,
    bytes: u64,
    done: AtomicU64,
}

impl Running {
    /// Share that is finished, in percent, rounded down.
    pub fn percent(&self) -> u64 {
        (self.done.load(Ordering::Relaxed) * 100).checked_div(self.bytes).unwrap_or(100)
    }

    pub(super) fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Progress of a job, with a flag to cancel it.
#[derive(Default)]
pub struct Counted {
    /// Logical bytes to process; 0 while they are unknown.
    pub bytes: AtomicU64,
    /// Logical bytes that are finished.
    pub done: AtomicU64,
    /// Set to cancel the job.
    pub is_cancelled: AtomicBool,
}

impl Progress for Counted {
    fn expect(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// The engine of a store.
    pub fn new(store: Arc<Store>) -> Engine {
        Engine::with_forms(store, Box::new(NoForms))
    }

    /// Does as [`new`](Self::new), with a source for pinned forms.
    pub fn with_forms(store: Arc<Store>, forms: Box<dyn Forms>) -> Engine {
        let ways = Arc::new(Ways::new(&store));
        store.set_rebuilder(ways.clone());
        Engine {
            store,
            at_work: Mutex::new(()),
            moving: Mutex::default(),
            pins: Mutex::default(),
            forms,
            ways,
            automatic: Mutex::default(),
            scrubbed: Mutex::default(),
            prefetched: Mutex::default(),
            compacted: Mutex::default(),
        }
    }

    /// Makes blocks that cannot be reconstructed read as zeros from now on.
    pub fn fill_with_zeros(&self) {
        self.ways.fills_with_zeros.store(true, Ordering::Relaxed);
    }

    /// The move of a tensor in progress, if any.
    pub fn moving(&self, collection: u32, node: EntryId) -> Option<Arc<Running>> {
        let moving = self.moving.lock();
        moving.iter().find(|running| (running.collection, running.node) == (collection, node)).cloned()
    }

    /// Notes that a tensor moves, until the returned guard is dropped.
    pub(super) fn begin(
        &self,
        collection: u32,
        node: EntryId,
        from: String,
        to: Aim,
        bytes: u64,
    ) -> Moving<'_> {
        let running = Arc::new(Running { collection, node, from, to, bytes, done: AtomicU64::new(0) });
        self.moving.lock().push(running.clone());
        Moving { engine: self, running }
    }
}

/// Guard for a move in progress.
pub(super) struct Moving<'a> {
    engine: &'a Engine,
    pub running: Arc<Running>,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.engine.moving.lock().retain(|running| !Arc::ptr_eq(running, &self.running));
    }
}
