//! The check that nobody outside the store holds a data file, before its bytes change or go.
//!
//! Invariant:
//! 1. A data file is changed only by the holder of an [`Alone`] of it. Nobody outside the store has the file open
//!    or mapped then, and nobody is shown it.
//!
//! A program that reads a file directly is counted while it has a descriptor. A mapping outlives its descriptor, and
//! this process too, so the system is asked as well ([`File::is_held`]).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::model::Instant;
use crate::store::disk::File;
use crate::store::disk::change::Change;

/// How long a file that somebody holds is taken as held by syncs, which would otherwise ask for each slot.
pub(in crate::store) const ASKED_EVERY: Duration = Duration::from_millis(100);

/// The data files of a collection that are shown to programs or changed, by number.
#[derive(Default)]
pub(in crate::store) struct Shown {
    files: Mutex<ShownFiles>,
}

#[derive(Default)]
struct ShownFiles {
    readers: HashMap<u64, Weak<()>>,
    /// How many change a file.
    changing: HashMap<u64, u32>,
    /// When the system last said that somebody holds a file.
    held: HashMap<u64, Instant>,
}

impl ShownFiles {
    fn has_readers(&self, file: u64) -> bool {
        self.readers.get(&file).is_some_and(|readers| readers.strong_count() > 0)
    }
}

/// The right to change bytes of a data file.
pub(in crate::store) struct Alone<'a> {
    shown: &'a Shown,
    number: u64,
    /// The operation.
    pub change: Change,
    /// The file.
    pub file: Arc<dyn File>,
}

impl Shown {
    /// Keeps the bytes of a data file in place while the returned value lives, because somebody reads
    /// the file directly. `None` while the file is changed.
    pub fn read_directly(&self, file: u64) -> Option<Arc<()>> {
        let mut files = self.files.lock();
        if files.changing.contains_key(&file) {
            return None;
        }
        files.readers.retain(|_, readers| readers.strong_count() > 0);
        if let Some(readers) = files.readers.get(&file).and_then(Weak::upgrade) {
            return Some(readers);
        }
        let new = Arc::new(());
        files.readers.insert(file, Arc::downgrade(&new));
        Some(new)
    }

    /// Whether somebody reads a data file directly by a descriptor.
    pub fn has_readers(&self, file: u64) -> bool {
        self.files.lock().has_readers(file)
    }

    /// The right to change the data file `number`; `None` if somebody may see its bytes.
    pub fn alone(&self, change: Change, number: u64, file: Arc<dyn File>) -> Option<Alone<'_>> {
        {
            let mut files = self.files.lock();
            let was_held = files.held.get(&number).is_some_and(|asked| asked.elapsed() < ASKED_EVERY);
            if files.has_readers(number) || (was_held && change == Change::Reclaim) {
                return None;
            }
            *files.changing.entry(number).or_default() += 1;
        }
        let alone = Alone { shown: self, number, change, file };
        let is_held = alone.file.is_held().unwrap_or_else(|error| {
            log::debug!("data file {number:016x} stays as it is: {error}");
            true
        });
        if is_held {
            self.files.lock().held.insert(number, Instant::now());
            return None;
        }
        self.files.lock().held.remove(&number);
        Some(alone)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let mut files = self.shown.files.lock();
        if let Some(count) = files.changing.get_mut(&self.number) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                files.changing.remove(&self.number);
            }
        }
    }
}
