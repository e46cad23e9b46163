//! Names that go without a program having taken them away: a mount is told.

use std::sync::{Arc, OnceLock};

use crate::format::catalog::Entry;
use crate::store::log::Batch;
use crate::store::state::State;
use crate::store::{Collection, Store};

/// Who is told, once somebody is there. It is called with the locks of a writer held.
pub(super) type Told = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

impl Store {
    /// Says who is to be told, before the batch counts as recorded, that names lead elsewhere or
    /// nowhere; only the first who says so is told. `tell` takes no lock of a store.
    pub fn tell_of_names(&self, tell: impl Fn() + Send + Sync + 'static) {
        self.names.get_or_init(|| Box::new(tell));
    }
}

impl Collection {
    /// Tells that names lead elsewhere, or nowhere.
    pub fn names_are_old(&self) {
        if let Some(tell) = self.names.get() {
            tell();
        }
    }
}

impl Batch {
    /// Whether a name that somebody may have looked up leads elsewhere after this batch, or
    /// nowhere, and whoever keeps it did not ask for that.
    pub(super) fn takes_names(&self, before: &State) -> bool {
        self.entries().any(|entry| {
            let (parent, name, after) = match entry {
                Entry::Name { parent, name, node, .. } => (parent, name, Some(*node)),
                Entry::NameRemoved { parent, name } => (parent, name, None),
                _ => return false,
            };
            let node = before.directory(*parent).and_then(|directory| directory.get(name));
            node.is_some() && node != after && !self.is_asked_for(*parent, name)
        })
    }
}
