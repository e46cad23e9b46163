//! Adapters that are kept open for the files that they are added to.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::Result;
use crate::store::Collection;
use crate::vfs::form::{Adapter, AdapterFiles};

const KEPT_MAX: usize = 8;

/// The adapters that were used last. The latest comes last.
#[derive(Default)]
pub(super) struct KeptAdapters(Mutex<Vec<Arc<Adapter>>>);

impl KeptAdapters {
    /// An adapter in its present state.
    pub fn adapter(&self, collection: &Arc<Collection>, files: AdapterFiles) -> Result<Arc<Adapter>> {
        let kept = self.0.lock().clone();
        let adapter = match kept.into_iter().find(|known| known.is_current(collection, files)) {
            Some(known) => known,
            None => Arc::new(Adapter::open(collection, files)?),
        };
        let mut adapters = self.0.lock();
        adapters.retain(|known| !known.is_of(files));
        if adapters.len() >= KEPT_MAX {
            adapters.remove(0);
        }
        adapters.push(adapter.clone());
        Ok(adapter)
    }
}
