//! The open collections of a store. Those that nobody uses are closed when all together take more memory than the
//! setting `idle_memory_max`, the least recently used first, and opened again at their next use.
//!
//! Invariants:
//! 1. A collection is open once at most: it is closed by the owner of its only reference, under the lock that it is
//!    opened under.
//! 2. Its log alone leads to the state of a closed collection, and everything in the log is durable and recorded as
//!    durable, so no sync misses it. The parts of the state that no log has are in [`Closed`].
//! 3. Collections stay open that others need (lineage), that the periodic work looks at (`policy`), that have pins, or
//!    that have problems to show.
//!
//! The map has the only lasting reference to a collection. A request, an open file and a job have one each while they
//! need it; `LookedUp` has a weak one and opens the collection again. `Collection::is_settled`
//! (`store/collection/idle.rs`) says whether closing would lose something, and is asked again once the reference is the
//! last one. [`Closed`] keeps the numbers of computed directories, which the kernel may know, the meter of the tenant's
//! use, and summaries for `.ctl/status`, metrics and listings, so that these open a collection once. The log of a
//! closed collection is durable as a whole, so it is not synced when it is opened again. A rename closes collections
//! too, and keeps the numbers in the same way.
//!
//! Collections of remotes stay open: their next opening could show another snapshot. Code that goes through all
//! collections (`Store::all_collections`) holds one at a time. The memory is an estimate (`store/state/memory.rs`),
//! compared when a collection is opened and every few seconds by the thread that syncs.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::OwnedCollectionName;
use crate::store::collection::Collection;
use crate::store::collection::footprint::Summary;
use crate::store::collection::lineage::relatives;
use crate::store::collection::usage_file::SaveUsage;
use crate::store::log::checkpoint::Checkpoint;
use crate::store::quota::Meter;
use crate::store::state::tree::ComputedDirectories;

/// Collections by tenant and name. A place is in one of the two maps at most.
#[derive(Default)]
pub(in crate::store) struct OpenCollections {
    open: HashMap<OwnedCollectionName, Arc<Collection>>,
    closed: HashMap<OwnedCollectionName, Closed>,
    /// Bytes of memory of the open ones when they were last measured, and of those opened since.
    bytes: u64,
    /// Value of `bytes` after the last look for collections to close.
    looked_at: u64,
    /// Bytes of memory of all that were ever closed.
    closed_bytes: u64,
}

/// The state of a closed collection that no log has.
#[derive(Default)]
pub(in crate::store) struct Closed {
    /// Counts its use for its tenant. `None` after a rename.
    pub meter: Option<Arc<Meter>>,
    /// The numbers that the kernel knows of its computed directories.
    pub computed: ComputedDirectories,
    /// The summaries of its last state.
    pub summaries: Vec<Summary>,
    /// The last rewrite of its log.
    pub checkpoint: Option<Checkpoint>,
    /// Whether everything in its log is durable.
    pub is_durable: bool,
}

impl OpenCollections {
    pub fn get(&self, place: &OwnedCollectionName) -> Option<&Arc<Collection>> {
        self.open.get(place)
    }

    pub fn values(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.open.values()
    }

    pub fn insert(&mut self, place: OwnedCollectionName, collection: Arc<Collection>) {
        self.bytes = self.bytes.saturating_add(collection.memory());
        self.open.insert(place, collection);
    }

    /// Removes an open collection.
    pub fn remove(&mut self, place: &OwnedCollectionName) -> Option<Arc<Collection>> {
        self.open.remove(place)
    }

    /// The collection at a place that was closed there.
    pub fn closed(&self, place: &OwnedCollectionName) -> Option<&Closed> {
        self.closed.get(place)
    }

    /// Notes a collection that was closed.
    pub fn note_closed(&mut self, place: OwnedCollectionName, closed: Closed) {
        self.closed.insert(place, closed);
    }

    /// Forgets that a collection was closed.
    pub fn take_closed(&mut self, place: &OwnedCollectionName) -> Option<Closed> {
        self.closed.remove(place)
    }

    /// Bytes of memory of all that were closed because nobody used them.
    pub fn closed_bytes(&self) -> u64 {
        self.closed_bytes
    }

    /// Whether collections were opened that may take the memory beyond `limit` bytes.
    pub fn may_exceed(&self, limit: u64) -> bool {
        // Where nothing could be closed, a look pays only after some growth.
        self.bytes > limit.max(self.looked_at.saturating_add(limit / 8))
    }

    /// Closes collections that nobody uses until all take at most `limit` bytes less an eighth. Returns them; to free
    /// their memory takes a while.
    pub fn close_unused(&mut self, limit: u64) -> Vec<Collection> {
        self.bytes = self.open.values().map(|collection| collection.memory()).sum();
        let mut gone = Vec::new();
        if self.bytes > limit {
            let is_unused = |(_, collection): &(&OwnedCollectionName, &Arc<Collection>)| {
                Arc::strong_count(collection) == 1 && collection.is_settled()
            };
            let unused = self.open.iter().filter(is_unused);
            let mut unused: Vec<_> =
                unused.map(|(place, collection)| (collection.footprint.used(), place.clone())).collect();
            unused.sort_unstable();
            for (_, place) in unused {
                if self.bytes <= limit - limit / 8 {
                    break;
                }
                gone.extend(self.close(place));
            }
        }
        self.looked_at = self.bytes;
        gone
    }

    /// Closes a collection unless somebody uses it or has changed it meanwhile.
    fn close(&mut self, place: OwnedCollectionName) -> Option<Collection> {
        let collection = Arc::try_unwrap(self.open.remove(&place)?);
        let mut collection = match collection {
            Ok(collection) if collection.is_settled() => collection,
            Ok(changed) => {
                let changed = Arc::new(changed);
                changed.note_children(&changed);
                // They know it by its former reference.
                for relative in relatives(&changed.state()) {
                    if let Some(relative) = self.open.get(&relative) {
                        changed.relate(relative);
                    }
                }
                self.open.insert(place, changed);
                return None;
            }
            Err(used) => {
                self.open.insert(place, used);
                return None;
            }
        };
        let memory = collection.memory();
        self.bytes = self.bytes.saturating_sub(memory);
        self.closed_bytes = self.closed_bytes.saturating_add(memory);
        collection.save_usage(SaveUsage::Now);
        self.closed.insert(place, Closed::of(&mut collection));
        Some(collection)
    }
}

impl Closed {
    /// That of a collection that is being closed.
    pub fn of(collection: &mut Collection) -> Closed {
        Closed {
            meter: Some(collection.meter().clone()),
            computed: collection.take_computed(),
            summaries: collection.footprint.summaries(),
            checkpoint: collection.last_checkpoint(),
            is_durable: collection.is_settled(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::format::log::catalog::Entry;
    use crate::model::{Owner, StoreId};
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::{Access, Collection, POLICY, ROOT, Store, Touched};

    fn set(collection: &Collection, key: &str) {
        let entry = Entry::Setting { node: ROOT, key: key.to_owned(), value: Some("1".to_owned()) };
        let filled = collection.record(Touched::default(), |batch, _| {
            batch.entry(entry);
            Ok(())
        });
        filled.unwrap();
    }

    #[test]
    fn a_collection_is_closed_once_nobody_uses_it_and_its_log_says_that_all_is_durable() {
        let disk = Arc::new(MemoryDisk::new());
        Store::create(&*disk, StoreId(1)).unwrap();
        let mut store = Store::open(disk, Access::Write, "a test").unwrap();
        store.set_idle_memory_max(0);
        let open = || store.open_collections().len();
        let first = store.collection_made("t", "first", Owner { uid: 0, gid: 0 }).unwrap();
        set(&first, "list");
        store.close_unused();
        assert_eq!(open(), 1, "it is in use");
        drop(first);
        store.close_unused();
        assert_eq!(open(), 1, "it has records that are not durable");
        let first = store.collection("t", "first").unwrap();
        first.sync().unwrap();
        assert_eq!(*first.summarized(|| 7_u8), 7);
        drop(first);
        store.close_unused();
        assert_eq!(open(), 0);
        assert_eq!(store.closed_summary::<u8>("t", "first").as_deref(), Some(&7));
        let first = store.collection("t", "first").unwrap();
        assert!(store.closed_summary::<u8>("t", "first").is_none(), "it may change now");
        assert_eq!(first.state().setting(ROOT, "list"), Some("1"));
        first.summarized(|| 8_u8);
        assert_eq!(*first.summarized_once(|| 9_u8), 8, "it is known");
        let changes = first.changes();
        set(&first, "cache");
        assert!(first.changes() > changes);
        assert_eq!(*first.summarized_once(|| 9_u8), 9, "it has changed");
        set(&first, "list");
        first.sync().unwrap();
        let second = store.collection_made("t", "second", Owner { uid: 0, gid: 0 }).unwrap();
        set(&second, POLICY);
        second.sync().unwrap();
        drop((first, second));
        store.close_unused();
        assert_eq!(open(), 1, "the periodic work needs the second");
        assert!(store.closed_summary::<u8>("t", "first").is_none(), "it has changed since");
        assert_eq!(store.collection("t", "second").unwrap().state().number(), 2);
    }
}
