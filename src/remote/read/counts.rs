//! Counts of the traffic for each collection of a remote.
//!
//! A remote decides how many collections it has, and monitoring stores a series for each name forever. So the collections
//! that a mount opens first have counts of their own, and all others share one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::format::snapshot::manifest::Manifest;
use crate::model::OwnedCollectionName;
use crate::remote::client::failure::Failure;
use crate::store::CollectionTraffic;

/// Collections with counts of their own.
const NAMED_MAX: usize = 100;

/// The traffic for one collection, or for all that share these counts.
#[derive(Default)]
pub struct Counted {
    hits: AtomicU64,
    misses: AtomicU64,
    requests: AtomicU64,
    received: AtomicU64,
    failures: AtomicU64,
    snapshot: AtomicU64,
    created_at: AtomicU64,
}

impl Counted {
    /// Counts a read that found its bytes in the cache, or that waited for the remote.
    pub fn was_read(&self, is_hit: bool) {
        let counter = if is_hit { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request for a piece or a part of one.
    pub fn was_asked(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes that came.
    pub fn came(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a request that was given up, unless a disk of this machine is the reason.
    pub fn failed(&self, failure: &Failure) {
        if !matches!(failure, Failure::Local(_)) {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn shown(&self, collection: Option<OwnedCollectionName>) -> CollectionTraffic {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CollectionTraffic {
            collection,
            snapshot: count(&self.snapshot),
            created_at: count(&self.created_at),
            cache_hits: count(&self.hits),
            cache_misses: count(&self.misses),
            requests: count(&self.requests),
            received_bytes: count(&self.received),
            failures: count(&self.failures),
        }
    }
}

/// The counts of a remote.
#[derive(Default)]
pub struct Counts {
    named: Mutex<BTreeMap<OwnedCollectionName, Arc<Counted>>>,
    others: Arc<Counted>,
}

impl Counts {
    /// The counts of the collection of a snapshot.
    pub fn of(&self, manifest: &Manifest) -> Arc<Counted> {
        let name = OwnedCollectionName::new(&*manifest.collection.tenant, &*manifest.collection.name);
        let mut named = self.named.lock();
        match named.get(&name) {
            Some(counted) => counted.clone(),
            None if named.len() < NAMED_MAX => named.entry(name).or_default().clone(),
            None => self.others.clone(),
        }
    }

    /// Notes which snapshot of a collection is shown now. Collections that share counts have no such number.
    pub fn show(&self, manifest: &Manifest) {
        let counted = self.of(manifest);
        if !Arc::ptr_eq(&counted, &self.others) {
            counted.snapshot.store(manifest.number, Ordering::Relaxed);
            counted.created_at.store(manifest.created_at, Ordering::Relaxed);
        }
    }

    /// Those of each collection, and of all others together if there are any.
    pub fn shown(&self) -> Vec<CollectionTraffic> {
        let named = self.named.lock();
        let of_others = (named.len() == NAMED_MAX).then(|| self.others.shown(None));
        let each = named.iter().map(|(name, counted)| counted.shown(Some(name.clone())));
        each.chain(of_others).collect()
    }
}
