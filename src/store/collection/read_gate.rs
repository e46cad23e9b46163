//! The gate that keeps space from being reused while it is read.

use std::cell::Cell;

use parking_lot::{RwLock, RwLockReadGuard};

thread_local! {
    /// Whether this thread is inside a read: rebuilding a block reads others.
    static IS_READING: Cell<bool> = const { Cell::new(false) };
}

/// Locked for reading by every read of payloads, and for writing before space is reused, because a read
/// that began before a change may still use the old location.
#[derive(Default)]
pub(in crate::store) struct ReadGate(RwLock<()>);

impl ReadGate {
    /// Begins a read. A nested read does not wait for writers that wait for the outer read.
    pub fn begin(&self) -> Reading<'_> {
        let was_reading = IS_READING.replace(true);
        let gate = if was_reading { self.0.read_recursive() } else { self.0.read() };
        Reading { _gate: gate, was_reading }
    }

    /// Waits for the reads in progress.
    pub fn wait(&self) {
        drop(self.0.write());
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
