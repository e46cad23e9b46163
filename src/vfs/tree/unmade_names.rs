//! The names of tenants and collections that were looked up before they exist (`unmade.rs`).

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::vfs::tree::ino::{Ino, Place};

/// The mode of the root, and of directories that are made.
pub(super) const MODE: u32 = 0o755;
/// Beyond so many names all are forgotten. The kernel looks up again those that it still knows.
const NAMES_MAX: usize = 1 << 14;

/// A tenant or a collection that nobody has made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unmade {
    pub tenant: String,
    /// The name of the collection; `None` for the tenant itself.
    pub collection: Option<String>,
}

/// The names that were looked up, by their places.
#[derive(Default)]
pub(super) struct UnmadeNames(Mutex<HashMap<Place, Unmade>>);

impl UnmadeNames {
    /// Keeps the name of a place. Returns whether no other name has it.
    pub fn note(&self, place: Place, unmade: &Unmade) -> bool {
        let mut names = self.0.lock();
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.entry(place).or_insert_with(|| unmade.clone()) == unmade
    }

    pub fn get(&self, place: Place) -> Option<Unmade> {
        self.0.lock().get(&place).cloned()
    }

    pub fn forget(&self, place: Place) {
        self.0.lock().remove(&place);
    }
}

impl Unmade {
    pub(super) fn place(&self) -> Place {
        match &self.collection {
            None => Place::Tenant(Ino::tenant_hash(&self.tenant)),
            Some(collection) => Place::Unmade(Ino::tenant_hash(&format!("{}/{collection}", self.tenant))),
        }
    }
}
