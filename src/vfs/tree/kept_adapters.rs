//! Adapters, and refusals of adapters, that are kept for the files that they are added to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::model::Result;
use crate::store::Collection;
use crate::stream::Tiles;
use crate::vfs::form::{Adapter, AdapterFiles, AdapterNodes, KeptRefusal, OpenAdapter};

/// Most bytes of memory that they take, unless one alone takes more.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Bytes that an entry counts for beside its adapter. It takes fewer, but thousands of entries would be searched slowly.
const ENTRY_BYTES: usize = 16 << 10;

/// The adapters that were used last.
#[derive(Default)]
pub(super) struct KeptAdapters {
    /// The latest comes last.
    entries: Mutex<Vec<Arc<Entry>>>,
    tiles: Arc<Tiles>,
}

struct Entry {
    files: AdapterFiles,
    /// The bytes of its adapter or refusal, which the adapter counts.
    bytes: Mutex<Arc<AtomicUsize>>,
    /// Held while the adapter is opened, so that it is opened once.
    opened: Mutex<Option<Opened>>,
}

impl Entry {
    fn memory(&self) -> usize {
        ENTRY_BYTES + self.bytes.lock().load(Ordering::Relaxed)
    }
}

/// An adapter in a state of its files.
struct Opened {
    nodes: AdapterNodes,
    adapter: Result<Arc<Adapter>, KeptRefusal>,
}

impl KeptAdapters {
    /// An adapter in its present state.
    pub fn adapter(&self, collection: &Arc<Collection>, files: AdapterFiles) -> Result<OpenAdapter> {
        let entry = self.entry(files);
        let adapter = self.opened(&entry, collection);
        self.drop_oldest();
        Ok(OpenAdapter::new(collection.clone(), adapter?))
    }

    fn entry(&self, files: AdapterFiles) -> Arc<Entry> {
        let mut entries = self.entries.lock();
        let known = entries.iter().position(|entry| entry.files == files);
        let entry = match known {
            Some(at) => entries.remove(at),
            None => Arc::new(Entry { files, bytes: Mutex::default(), opened: Mutex::default() }),
        };
        entries.push(entry.clone());
        entry
    }

    fn opened(&self, entry: &Entry, collection: &Arc<Collection>) -> Result<Arc<Adapter>> {
        let mut opened = entry.opened.lock();
        let nodes = AdapterNodes::of(&collection.state(), entry.files)?;
        if let Some(known) = opened.as_ref().filter(|known| known.nodes.are(&nodes)) {
            return known.adapter.clone().map_err(KeptRefusal::error);
        }
        *opened = None;
        let adapter = match Adapter::open(collection, nodes.clone(), &self.tiles) {
            Ok(adapter) => Ok(Arc::new(adapter)),
            Err(error) => Err(KeptRefusal::of(&error).ok_or(error)?),
        };
        *entry.bytes.lock() = match &adapter {
            Ok(adapter) => adapter.memory().clone(),
            Err(refusal) => Arc::new(AtomicUsize::new(refusal.memory())),
        };
        let found = adapter.clone().map_err(KeptRefusal::error);
        *opened = Some(Opened { nodes, adapter });
        found
    }

    fn drop_oldest(&self) {
        let mut entries = self.entries.lock();
        let mut bytes: usize = entries.iter().map(|entry| entry.memory()).sum();
        let is_kept = |entry: &Arc<Entry>| {
            let own = entry.memory();
            let fits = bytes <= KEPT_BYTES_MAX;
            bytes = bytes.saturating_sub(if fits { 0 } else { own });
            fits
        };
        let latest = entries.pop();
        entries.retain(is_kept);
        entries.extend(latest);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{KEPT_BYTES_MAX, KeptAdapters};
    use crate::model::EntryId;
    use crate::vfs::form::AdapterFiles;

    #[test]
    fn memory_that_an_adapter_takes_after_it_was_opened_counts() {
        let kept = KeptAdapters::default();
        let of = |directory: u64| {
            let [config, weights] = [EntryId(directory + 1), EntryId(directory + 2)];
            kept.entry(AdapterFiles { collection: 1, directory: EntryId(directory), config, weights })
        };
        let left = || {
            kept.drop_oldest();
            kept.entries.lock().iter().map(|entry| entry.files.directory.0).collect::<Vec<_>>()
        };
        let bytes = Arc::new(AtomicUsize::default());
        *of(10).bytes.lock() = bytes.clone();
        of(20);
        of(30);
        assert_eq!(left(), [10, 20, 30]);
        bytes.store(KEPT_BYTES_MAX, Ordering::Relaxed);
        assert_eq!(left(), [20, 30]);
    }
}
