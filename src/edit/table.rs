//! The files that are open.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use foldhash::quality::RandomState;
use parking_lot::Mutex;

use crate::edit::live::Live;
use crate::model::{EntryId, Result};
use crate::store::Collection;
use crate::store::read::Verify;

/// The files that are open, by collection and node.
#[derive(Default)]
pub struct LiveTable {
    // Its keys are numbers that were given out one by one.
    open: Mutex<HashMap<(u32, EntryId), Weak<Live>, RandomState>>,
}

impl LiveTable {
    /// A file, opened if it is not open yet.
    pub fn open(&self, collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Arc<Live>> {
        let key = (collection.state().number(), node);
        let mut open = self.open.lock();
        if let Some(live) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(live);
        }
        let live = Arc::new(Live::open(collection, node, verify)?);
        if open.len() > 1024 && open.len().is_power_of_two() {
            open.retain(|_, live| live.strong_count() > 0);
        }
        open.insert(key, Arc::downgrade(&live));
        Ok(live)
    }

    /// A file, if it is open.
    pub fn get(&self, number: u32, node: EntryId) -> Option<Arc<Live>> {
        self.open.lock().get(&(number, node)).and_then(Weak::upgrade)
    }

    /// All files that are open.
    pub fn all(&self) -> Vec<Arc<Live>> {
        self.open.lock().values().filter_map(Weak::upgrade).collect()
    }
}
