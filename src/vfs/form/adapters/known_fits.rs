//! The collections that an adapter was compared with.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::model::Result;
use crate::store::Collection;
use crate::vfs::form::adapters::kept_refusal::KeptRefusal;

const KNOWN_MAX: usize = 16;

/// Whether an adapter fits collections in their present state. The latest comes last.
#[derive(Default)]
pub(super) struct KnownFits(Mutex<Vec<KnownFit>>);

struct KnownFit {
    collection: Weak<Collection>,
    /// Its number of changes before the comparison.
    changes: u64,
    fits: Result<(), KeptRefusal>,
}

impl KnownFits {
    /// The answer of `compare`, which is asked once for each change of the collection.
    pub fn of(&self, collection: &Arc<Collection>, compare: impl FnOnce() -> Result<()>) -> Result<()> {
        let changes = collection.changes();
        let is_of = |known: &KnownFit| std::ptr::eq(known.collection.as_ptr(), Arc::as_ptr(collection));
        let known = self
            .0
            .lock()
            .iter()
            .find(|known| is_of(known) && known.changes == changes)
            .map(|known| known.fits.clone());
        if let Some(known) = known {
            return known.map_err(KeptRefusal::error);
        }
        let fits = compare();
        let kept = match &fits {
            Ok(()) => Ok(()),
            Err(error) => match KeptRefusal::of(error) {
                Some(kept) => Err(kept),
                None => return fits,
            },
        };
        let mut known = self.0.lock();
        known.retain(|known| !is_of(known) && known.collection.strong_count() > 0);
        if known.len() >= KNOWN_MAX {
            known.remove(0);
        }
        known.push(KnownFit { collection: Arc::downgrade(collection), changes, fits: kept });
        fits
    }

    /// Bytes of memory, about.
    pub fn memory(&self) -> usize {
        let all = self.0.lock();
        let refusals = all.iter().map(|known| known.fits.as_ref().err().map_or(0, KeptRefusal::memory));
        all.len() * size_of::<KnownFit>() + refusals.sum::<usize>()
    }
}
