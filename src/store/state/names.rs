//! Names that go without a program having taken them away: a mount is told. Files that may be
//! something else under the name that they have now: they are marked.

use std::sync::{Arc, OnceLock};

use crate::format::log::catalog::Entry;
use crate::model::EntryId;
use crate::store::log::append::Batch;
use crate::store::state::State;
use crate::store::{Collection, Store};

/// The setting that says that a file was given another first name, and not looked at since.
const LOOK_AGAIN: &str = "look_again";

/// Who is told, once somebody is there. It is called with the locks of a writer held.
pub(in crate::store) type NameWatcher = Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>;

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

impl State {
    /// Whether a file was given another first name, and not looked at since.
    pub fn must_be_looked_at(&self, node: EntryId) -> bool {
        self.setting(node, LOOK_AGAIN).is_some()
    }

    /// The files that were given another first name, and not looked at since.
    pub fn to_be_looked_at(&self) -> impl Iterator<Item = EntryId> {
        self.set_nodes(LOOK_AGAIN).map(|(node, _)| node)
    }
}

impl Batch {
    /// Marks a file whose first name becomes another: what it is under that, and the names of its
    /// tensors, come with another batch, and who is killed before it must find it.
    pub fn have_looked_at(&mut self, node: EntryId) {
        self.entry(Entry::Setting { node, key: LOOK_AGAIN.to_owned(), value: Some(String::new()) });
    }

    /// Takes the mark away.
    pub fn was_looked_at(&mut self, node: EntryId) {
        self.entry(Entry::Setting { node, key: LOOK_AGAIN.to_owned(), value: None });
    }

    /// Whether a name that somebody may have looked up leads elsewhere after this batch, or
    /// nowhere, and whoever keeps it did not ask for that.
    pub(in crate::store) fn takes_names(&self, before: &State) -> bool {
        self.entries().any(|entry| {
            let (parent, name, after) = match entry {
                Entry::Name { parent, name, node, .. } => (parent, name, Some(*node)),
                Entry::NameRemoved { parent, name } => (parent, name, None),
                _ => return false,
            };
            let node = before.directory(*parent).and_then(|directory| directory.get(name));
            node.is_some() && node != after && !self.is_requested_by_kernel(*parent, name)
        })
    }
}
