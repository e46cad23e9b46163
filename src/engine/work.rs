//! What is under way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::engine::automatic::Automatic;
use crate::engine::compact::Compacted;
use crate::engine::pins::{Forms, NoForms, Pins};
use crate::engine::rebuild::Ways;
use crate::engine::scrub::Scrubbed;
use crate::ingest::Progress;
use crate::model::{EntryId, Tier};
use crate::store::Store;

/// Does what is asked for, and knows what it is doing.
pub struct Engine {
    /// The store.
    pub store: Arc<Store>,
    /// One request changes tiers at a time: others wait for it.
    pub(super) at_work: Mutex<()>,
    moving: Mutex<Vec<Arc<Running>>>,
    /// Pinned files that are to be looked at.
    pub(super) pins: Pins,
    /// What makes the bytes of forms that are pinned.
    pub(super) forms: Box<dyn Forms>,
    pub(super) ways: Arc<Ways>,
    /// Held for a look or a change; no other lock is taken with it.
    pub(super) automatic: Mutex<Automatic>,
    /// What the last scrub has found, by the collection's path.
    pub(super) scrubbed: Mutex<BTreeMap<String, Scrubbed>>,
    /// What the last prefetch has found, by the collection's path.
    pub(super) prefetched: Mutex<BTreeMap<String, Scrubbed>>,
    /// What the last compaction has done, by the collection's path.
    pub(super) compacted: Mutex<BTreeMap<String, Compacted>>,
}

/// A tensor on its way to another tier.
pub struct Running {
    collection: u32,
    node: EntryId,
    /// Where it comes from, as attributes show it.
    pub from: String,
    /// Where it goes.
    pub to: Tier,
    bytes: u64,
    done: AtomicU64,
}

impl Running {
    /// How much of it has been moved, in percent, rounded down.
    pub fn percent(&self) -> u64 {
        (self.done.load(Ordering::Relaxed) * 100).checked_div(self.bytes).unwrap_or(100)
    }

    pub(super) fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// How far a job is, for those who ask and for those who stop it.
#[derive(Default)]
pub struct Counted {
    /// Logical bytes that were dealt with.
    pub done: AtomicU64,
    /// Set to stop it.
    pub is_cancelled: AtomicBool,
}

impl Progress for Counted {
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

    /// As [`new`](Self::new), where forms can be pinned.
    pub fn with_forms(store: Arc<Store>, forms: Box<dyn Forms>) -> Engine {
        let ways = Arc::new(Ways::default());
        store.set_rebuilder(ways.clone());
        Engine {
            store,
            at_work: Mutex::new(()),
            moving: Mutex::default(),
            pins: Pins::default(),
            forms,
            ways,
            automatic: Mutex::default(),
            scrubbed: Mutex::default(),
            prefetched: Mutex::default(),
            compacted: Mutex::default(),
        }
    }

    /// From now on absent blocks that nothing can make again read as zeros.
    pub fn fill_with_zeros(&self) {
        self.ways.fills_with_zeros.store(true, Ordering::Relaxed);
    }

    /// The move that a tensor is in, if it is in one.
    pub fn moving(&self, collection: u32, node: EntryId) -> Option<Arc<Running>> {
        let moving = self.moving.lock();
        moving.iter().find(|running| (running.collection, running.node) == (collection, node)).cloned()
    }

    /// Notes that a tensor moves, while what is returned lives.
    pub(super) fn begin(&self, place: (u32, EntryId), from: String, to: Tier, bytes: u64) -> Moving<'_> {
        let (collection, node) = place;
        let running = Arc::new(Running { collection, node, from, to, bytes, done: AtomicU64::new(0) });
        self.moving.lock().push(running.clone());
        Moving { engine: self, running }
    }
}

/// A tensor that is being moved.
pub(super) struct Moving<'a> {
    engine: &'a Engine,
    pub running: Arc<Running>,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.engine.moving.lock().retain(|running| !Arc::ptr_eq(running, &self.running));
    }
}
