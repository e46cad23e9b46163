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
    bytes: AtomicUsize,
    /// Held while the adapter is opened, so that it is opened once.
    opened: Mutex<Option<Opened>>,
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
            None => Arc::new(Entry { files, bytes: AtomicUsize::new(ENTRY_BYTES), opened: Mutex::default() }),
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
        let bytes = adapter.as_ref().map_or_else(|refusal| refusal.memory(), |adapter| adapter.memory());
        entry.bytes.store(ENTRY_BYTES + bytes, Ordering::Relaxed);
        let found = adapter.clone().map_err(KeptRefusal::error);
        *opened = Some(Opened { nodes, adapter });
        found
    }

    fn drop_oldest(&self) {
        let mut entries = self.entries.lock();
        let mut bytes: usize = entries.iter().map(|entry| entry.bytes.load(Ordering::Relaxed)).sum();
        let is_kept = |entry: &Arc<Entry>| {
            let own = entry.bytes.load(Ordering::Relaxed);
            let fits = bytes <= KEPT_BYTES_MAX;
            bytes -= if fits { 0 } else { own };
            fits
        };
        let latest = entries.pop();
        entries.retain(is_kept);
        entries.extend(latest);
    }
}
