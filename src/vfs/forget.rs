//! What the kernel must forget.

use std::collections::BTreeSet;

use crate::model::EntryId;
use crate::open::Changes;
use crate::store::Collection;
use crate::vfs::ino::{Ino, Place};
use crate::vfs::tree::Vfs;

/// What the kernel must forget.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Invalidation {
    /// Inodes whose bytes or attributes changed without the kernel.
    pub nodes: Vec<Ino>,
}

impl Invalidation {
    /// With one more inode.
    pub fn and(mut self, also: Option<Ino>) -> Invalidation {
        self.nodes.extend(also);
        self
    }

    /// Whether there is nothing to forget.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

impl Vfs {
    /// Notes what the kernel must forget whether or not the request comes to its end.
    pub fn queue_invalidation(&self, forget: Invalidation) {
        self.pending_invalidations.lock().nodes.extend(forget.nodes);
    }

    /// What the kernel must forget, of requests that could not say so themselves. Who takes it
    /// tells the kernel before anybody can find that nothing is owed: `Invalidator` does.
    pub fn take_pending_invalidations(&self) -> Invalidation {
        std::mem::take(&mut *self.pending_invalidations.lock())
    }

    /// What the kernel must forget of nodes whose bytes changed.
    pub fn invalidate_nodes(
        &self,
        collection: &Collection,
        nodes: impl IntoIterator<Item = EntryId>,
    ) -> Invalidation {
        self.forget(collection, Changes { nodes: nodes.into_iter().collect(), names: Vec::new() }, None)
    }

    /// What the kernel must forget after changes, one of them perhaps by a write to a file: the
    /// kernel has that file's bytes, and not those of its forms.
    pub(super) fn forget(
        &self,
        collection: &Collection,
        changes: Changes,
        written: Option<EntryId>,
    ) -> Invalidation {
        let number = collection.state().number();
        let ino = |node| Ino::of(Place::Node { collection: number, node });
        // Of names that went the kernel asks anyway; their directories changed.
        let above = changes.names.into_iter().map(|(parent, _)| parent);
        let nodes: BTreeSet<EntryId> = {
            let state = collection.state();
            // The index beside a batch says the hash of the batch.
            let indexes = changes.nodes.iter().filter_map(|node| state.index_beside(*node));
            let mut indexes: Vec<EntryId> = indexes.collect();
            // The batch that is a form of the vectors has all parts in it.
            let files = changes.nodes.iter().filter_map(|node| state.node(*node)?.file());
            let parts = files.filter(|file| file.records.is_some()).flat_map(|file| state.parts(file));
            indexes.extend(parts.map(|part| part.entry.id));
            changes.nodes.into_iter().chain(indexes).chain(above).collect()
        };
        nodes
            .iter()
            .filter_map(|node| self.open_files.get(number, *node))
            .for_each(|open_file| open_file.note_forgotten());
        let changed: BTreeSet<EntryId> = nodes.iter().copied().chain(written).collect();
        let forms = self.forms.of(number, &changed);
        Invalidation { nodes: nodes.into_iter().filter_map(ino).chain(forms).collect() }
    }
}
