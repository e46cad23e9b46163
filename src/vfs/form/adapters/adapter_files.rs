//! The files of an adapter, by their numbers.

use crate::format::files::adapter_config::{CONFIG_NAME, WEIGHTS_NAMES};
use crate::model::EntryId;
use crate::store::State;

/// The files of an adapter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AdapterFiles {
    /// The number of their collection.
    pub collection: u32,
    /// Their directory.
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

/// The files of the adapter in a directory of a collection, if it has one.
pub fn files_in(state: &State, directory: EntryId) -> Option<AdapterFiles> {
    let names = state.directory(directory)?;
    let file = |name: &str| {
        let id = names.get(name.as_bytes())?;
        state.node(id)?.file().map(|_| id)
    };
    let config = file(CONFIG_NAME)?;
    let weights = WEIGHTS_NAMES.into_iter().find_map(file)?;
    Some(AdapterFiles { collection: state.number(), directory, config, weights })
}
