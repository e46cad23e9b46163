//! The lock of a collection's state.
//!
//! A thread that reads the state must not begin to read it again: where another waits to change it, the second reading
//! waits for the change, and the change for the first reading. Builds with debug assertions, those of the tests among them, end a
//! thread that does. The state changes only while the journal's writer is held, so a thread that holds it may.

use std::ops::Deref;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::store::state::State;

/// A state that many threads read.
pub(in crate::store) struct StateLock(RwLock<State>);

/// The state, while a thread reads it.
pub struct StateGuard<'a> {
    state: RwLockReadGuard<'a, State>,
    _reading: Reading,
}

impl StateLock {
    pub fn new(state: State) -> StateLock {
        StateLock(RwLock::new(state))
    }

    pub fn read(&self) -> StateGuard<'_> {
        let reading = Reading::begin(self);
        StateGuard { state: self.0.read(), _reading: reading }
    }

    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, State>> {
        self.0.try_read()
    }

    /// Reads the state in a thread that holds the journal's writer: nobody can wait to change it.
    pub fn read_as_writer(&self) -> RwLockReadGuard<'_, State> {
        self.0.read()
    }

    /// Changes the state. The thread holds the journal's writer, or the collection alone.
    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        Reading::assert_none(self);
        self.0.write()
    }

    pub fn get_mut(&mut self) -> &mut State {
        self.0.get_mut()
    }
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

#[cfg(debug_assertions)]
thread_local! {
    /// The locks whose states this thread reads.
    static READ: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Notes that this thread reads the state of a lock.
#[cfg(debug_assertions)]
struct Reading(usize);

#[cfg(debug_assertions)]
impl Reading {
    fn begin(lock: &StateLock) -> Reading {
        Reading::assert_none(lock);
        let place = std::ptr::from_ref(lock).addr();
        READ.with_borrow_mut(|read| read.push(place));
        Reading(place)
    }

    fn assert_none(lock: &StateLock) {
        let place = std::ptr::from_ref(lock).addr();
        let is_read = READ.with_borrow(|read| read.contains(&place));
        assert!(!is_read, "this thread reads the state of the collection already");
    }
}

#[cfg(debug_assertions)]
impl Drop for Reading {
    fn drop(&mut self) {
        READ.with_borrow_mut(|read| {
            if let Some(at) = read.iter().rposition(|place| *place == self.0) {
                read.swap_remove(at);
            }
        });
    }
}

#[cfg(not(debug_assertions))]
struct Reading;

#[cfg(not(debug_assertions))]
impl Reading {
    fn begin(_lock: &StateLock) -> Reading {
        Reading
    }

    fn assert_none(_lock: &StateLock) {}
}
