//! The names of a container's tensors.

use crate::format::log::catalog::{Entry, FileEntry};
use crate::open::Name;
use crate::store::Batch;
use crate::store::State;

/// Removes the names of a container's tensors, and the directories that were created for them.
/// Returns the removed names.
pub(super) fn remove_parts(batch: &mut Batch, state: &State, file: &FileEntry) -> Vec<Name> {
    let mut gone = Vec::new();
    for part in state.parts(file) {
        for (parent, name) in state.links(part.entry.id) {
            batch.entry(Entry::NameRemoved { parent: *parent, name: name.clone() });
            gone.push((*parent, name.to_vec()));
        }
        batch.entry(Entry::NodeRemoved(part.entry.id));
    }
    for ((parent, name), directory) in state.emptied(gone.iter().map(|(parent, _)| *parent), |_| false) {
        batch.entry(Entry::NameRemoved { parent, name: name.clone() });
        batch.entry(Entry::NodeRemoved(directory));
        gone.push((parent, name.to_vec()));
    }
    gone
}
