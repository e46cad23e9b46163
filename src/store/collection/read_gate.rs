//! The gate that keeps space from being reused while it is read.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

thread_local! {
    /// Whether this thread is inside a read: rebuilding a block reads others.
    static IS_READING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a read.
pub(in crate::store) fn is_reading() -> bool {
    IS_READING.get()
}

/// Locked for reading by every read of payloads, and for writing before space is reused, because a read
/// that began before a change may still use the old location.
#[derive(Default)]
pub(in crate::store) struct ReadGate {
    gate: RwLock<()>,
    /// The data files of each hold that lives. Held briefly; no other lock is taken with it.
    holds: Mutex<Vec<Weak<HashSet<u64>>>>,
}

/// Keeps all that a copy of the state names as it is: nothing is reclaimed while this lives.
pub(in crate::store) struct SpaceHold {
    /// The data files that the copy names.
    _data_files: Arc<HashSet<u64>>,
}

impl ReadGate {
    /// Begins a read. A nested read does not wait for writers that wait for the outer read.
    pub fn begin(&self) -> Reading<'_> {
        let was_reading = IS_READING.replace(true);
        let gate = if was_reading { self.gate.read_recursive() } else { self.gate.read() };
        Reading { _gate: gate, was_reading }
    }

    /// Waits for the reads in progress.
    pub fn wait(&self) {
        drop(self.gate.write());
    }

    /// Keeps space from being reclaimed, and these data files from being removed. The caller holds the
    /// lock of the writer, so that nothing is reclaimed meanwhile.
    pub fn hold(&self, data_files: HashSet<u64>) -> SpaceHold {
        let data_files = Arc::new(data_files);
        self.holds.lock().push(Arc::downgrade(&data_files));
        SpaceHold { _data_files: data_files }
    }

    /// Whether a hold lives.
    pub fn is_held(&self) -> bool {
        let mut holds = self.holds.lock();
        holds.retain(|hold| hold.strong_count() > 0);
        !holds.is_empty()
    }

    /// Whether a hold keeps a data file.
    pub fn holds_file(&self, number: u64) -> bool {
        let holds = self.holds.lock();
        holds.iter().filter_map(Weak::upgrade).any(|data_files| data_files.contains(&number))
    }
}

/// A read in progress, which keeps space from being reused.
pub(in crate::store) struct Reading<'a> {
    _gate: RwLockReadGuard<'a, ()>,
    was_reading: bool,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        IS_READING.set(self.was_reading);
    }
}
