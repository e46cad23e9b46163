//! The table of open files.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use foldhash::quality::RandomState;
use parking_lot::Mutex;

use crate::model::{EntryId, Result};
use crate::store::Collection;
use crate::store::Verify;
use crate::vfs::open::file::OpenFile;

/// The open files, by collection and node.
#[derive(Default)]
pub struct OpenFiles {
    // The keys are numbers that this program assigns, never chosen by a user.
    open: Mutex<HashMap<(u32, EntryId), Weak<OpenFile>, RandomState>>,
}

impl OpenFiles {
    /// The open file of a node; opens it if needed.
    pub fn open(&self, collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Arc<OpenFile>> {
        let key = (collection.state().number(), node);
        let mut open = self.open.lock();
        if let Some(open_file) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(open_file);
        }
        let open_file = Arc::new(OpenFile::open(collection, node, verify)?);
        if open.len() > 1024 && open.len().is_power_of_two() {
            open.retain(|_, open_file| open_file.strong_count() > 0);
        }
        open.insert(key, Arc::downgrade(&open_file));
        Ok(open_file)
    }

    /// The open file of a node, if it is open.
    pub fn get(&self, number: u32, node: EntryId) -> Option<Arc<OpenFile>> {
        self.open.lock().get(&(number, node)).and_then(Weak::upgrade)
    }

    pub fn all(&self) -> Vec<Arc<OpenFile>> {
        self.open.lock().values().filter_map(Weak::upgrade).collect()
    }
}
