//! The memory and the last use of a collection, which decide whether it stays open.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::model::ObjectId;
use crate::store::collection::damage_file::DamageFile;

/// A value that a layer above has computed from the state of a collection.
pub(in crate::store) type Summary = Arc<dyn Any + Send + Sync>;

/// The memory and the last use of a collection.
#[derive(Default)]
pub(in crate::store) struct Footprint {
    /// Number of collections that were opened before its last use.
    used: AtomicU64,
    /// The number of changes plus one that the state was measured after, or 0, and its bytes of memory.
    bytes: Mutex<(u64, u64)>,
    /// Number of changes of the state, mostly batches.
    changes: AtomicU64,
    /// Whether the state takes more memory than was measured.
    has_grown: AtomicBool,
    /// The objects with blocks that could not be read. A last lock.
    unreadable: Mutex<BTreeSet<ObjectId>>,
    /// Those of earlier openings too.
    pub damage_file: DamageFile,
    /// Summaries of different types, and the number of changes that each was computed after.
    summaries: Mutex<Vec<(u64, Summary)>>,
}

impl Footprint {
    /// Notes a use after the opening of so many collections.
    #[inline]
    pub fn note_use(&self, opened: u64) {
        // Written only once, because other threads read the same cache line.
        if self.used.load(Ordering::Relaxed) != opened {
            self.used.store(opened, Ordering::Relaxed);
        }
    }

    /// The number of collections that were opened before the last use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Notes that the state takes more memory although no batch was applied: the first use of a block takes some.
    pub fn note_growth(&self) {
        self.has_grown.store(true, Ordering::Relaxed);
    }

    /// Continues with the summaries from before the collection was closed, unless its opening has changed it.
    pub fn restore(&mut self, summaries: Vec<Summary>) {
        if *self.changes.get_mut() == 0 {
            *self.summaries.get_mut() = summaries.into_iter().map(|summary| (0, summary)).collect();
        }
    }

    /// Notes that blocks of an object could not be read.
    pub fn note_unreadable(&self, object: ObjectId) {
        self.unreadable.lock().insert(object);
    }

    /// Forgets that blocks of an object could not be read.
    pub fn note_readable(&self, object: ObjectId) {
        self.unreadable.lock().remove(&object);
    }

    /// The objects with blocks that could not be read.
    pub fn unreadable(&self) -> Vec<ObjectId> {
        self.unreadable.lock().iter().copied().collect()
    }

    /// Notes a change of the state. For a batch the caller holds the state for writing.
    pub fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The summary of a type that was made of the present state, or one that `compute` makes.
    pub fn present_summary<T: Send + Sync + 'static>(&self, compute: impl FnOnce() -> T) -> Arc<T> {
        let known = self.summaries().into_iter().find_map(|summary| summary.downcast().ok());
        known.unwrap_or_else(|| self.keep_summary(compute))
    }

    /// Keeps a summary that `compute` makes of the present state, instead of the last one of its type.
    pub fn keep_summary<T: Send + Sync + 'static>(&self, compute: impl FnOnce() -> T) -> Arc<T> {
        let changes = self.changes.load(Ordering::Acquire);
        let summary = Arc::new(compute());
        let mut summaries = self.summaries.lock();
        summaries.retain(|(_, known)| !known.is::<T>());
        summaries.push((changes, summary.clone()));
        summary
    }

    /// The bytes of memory, measured by `measure` after changes. Without a result, those from before them count.
    pub fn bytes(&self, measure: impl FnOnce() -> Option<u64>) -> u64 {
        let changes = self.changes.load(Ordering::Acquire);
        let mut known = self.bytes.lock();
        let is_known = known.0 == changes + 1 && !self.has_grown.swap(false, Ordering::Relaxed);
        if !is_known && let Some(bytes) = measure() {
            *known = (changes + 1, bytes);
        }
        known.1
    }

    /// Whether blocks could not be read, which must not be forgotten.
    pub fn has_unreadable(&self) -> bool {
        !self.unreadable.lock().is_empty()
    }

    /// The summaries of the present state.
    pub fn summaries(&self) -> Vec<Summary> {
        let changes = self.changes.load(Ordering::Acquire);
        let summaries = self.summaries.lock();
        let present = summaries.iter().filter(|(after, _)| *after == changes);
        present.map(|(_, summary)| summary.clone()).collect()
    }
}
