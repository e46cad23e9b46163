//! The files of an adapter, by their numbers. A name may be a symbolic link, as in a hub's cache; links with relative
//! paths are followed inside the collection.

use std::collections::BTreeSet;

use crate::format::files::adapter_config::{CONFIG_NAME, WEIGHTS_NAMES};
use crate::format::log::catalog::NodeType;
use crate::model::{EntryId, NameIn};
use crate::store::{ROOT, State};
use crate::vfs::form::symbolic_links::file_named;

/// The files of an adapter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AdapterFiles {
    /// The number of their collection.
    pub collection: u32,
    /// The directory with their names.
    pub directory: EntryId,
    pub config: EntryId,
    /// The container of the tensors.
    pub weights: EntryId,
}

impl std::fmt::Display for AdapterFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let AdapterFiles { collection, directory, config, weights } = self;
        write!(f, "{collection}:{}:{}:{}", directory.0, config.0, weights.0)
    }
}

impl AdapterFiles {
    /// The directories above the files, and those that symbolic links lead through.
    pub fn directories(self, state: &State) -> BTreeSet<EntryId> {
        let mut entered = BTreeSet::from([self.directory]);
        for name in WEIGHTS_NAMES.into_iter().chain([CONFIG_NAME]) {
            let name = NameIn { directory: self.directory, name: name.as_bytes() };
            file_named(state, name, &mut |directory| {
                entered.insert(directory);
            });
        }
        for directory in entered.clone() {
            let mut at = directory;
            while at != ROOT
                && let Some(above) = state.above(at)
                && entered.insert(above)
            {
                at = above;
            }
        }
        entered
    }

    /// Whether a node is one of the files, or a symbolic link to one, in the collection of the state.
    pub fn has(self, state: &State, node: EntryId) -> bool {
        let is_own = |id: EntryId| [self.config, self.weights].contains(&id);
        if self.collection != state.number() {
            return false;
        }
        if is_own(node) {
            return true;
        }
        let is_link =
            state.node(node).is_some_and(|node| matches!(node.entry.node_type, NodeType::Symlink(_)));
        let mut leads = state.links(node).iter().filter_map(|(directory, name)| {
            file_named(state, NameIn { directory: *directory, name }, &mut |_| ())
        });
        is_link && leads.any(|found| is_own(found.entry.id))
    }
}

/// The files of the adapter in a directory of a collection, if it has one.
pub fn files_in(state: &State, directory: EntryId) -> Option<AdapterFiles> {
    let file = |name: &str| {
        let name = NameIn { directory, name: name.as_bytes() };
        Some(file_named(state, name, &mut |_| ())?.entry.id)
    };
    let config = file(CONFIG_NAME)?;
    let weights = WEIGHTS_NAMES.into_iter().find_map(file)?;
    Some(AdapterFiles { collection: state.number(), directory, config, weights })
}
