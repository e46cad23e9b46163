//! Invalidations: cached pages and attributes that the kernel must drop.

use std::collections::BTreeSet;

use crate::format::log::catalog::Content;
use crate::model::{EntryId, Result};
use crate::store::Collection;
use crate::stream::index_beside;
use crate::vfs::form::is_config;
use crate::vfs::open::Changes;
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::vfs::Vfs;

impl Vfs {
    /// Queues an invalidation that the kernel must receive whether or not the request succeeds.
    pub fn queue_invalidation(&self, forget: Invalidation) {
        self.pending_invalidations.lock().nodes.extend(forget.nodes);
    }

    /// Notes that the kernel may cache pages of a tensor under the number of its plain name, if it is one.
    pub fn note_plain_open(&self, number: Ino) {
        if let Place::Node { collection, node } = number.place()
            && number.is_plain()
        {
            self.forms.note(collection, node, number);
        }
    }

    /// Takes the invalidations of requests that could not send them themselves. The caller tells the
    /// kernel before anybody can find the queue empty, as `Invalidator` does.
    pub fn take_pending_invalidations(&self) -> Invalidation {
        std::mem::take(&mut *self.pending_invalidations.lock())
    }

    /// The invalidation for nodes whose bytes changed.
    pub fn invalidate_nodes(
        &self,
        collection: &Collection,
        nodes: impl IntoIterator<Item = EntryId>,
    ) -> Invalidation {
        self.forget(collection, Changes { nodes: nodes.into_iter().collect() }, None)
    }

    /// The invalidation for changes; queues it if the request failed after them.
    pub(super) fn forget_or_queue(
        &self,
        collection: &Collection,
        changes: Changes,
        written: Option<EntryId>,
        done: Result<()>,
    ) -> Result<Invalidation> {
        let forget = self.forget(collection, changes, written);
        match done {
            Ok(()) => Ok(forget),
            Err(error) => {
                self.queue_invalidation(forget);
                Err(error)
            }
        }
    }

    /// The invalidation for changes. The kernel has the bytes of a file that it wrote itself,
    /// `written`, but not those of the file's forms and of its plain name.
    pub(super) fn forget(
        &self,
        collection: &Collection,
        changes: Changes,
        written: Option<EntryId>,
    ) -> Invalidation {
        let number = collection.state().number();
        let ino = |node| Ino::of(Place::Node { collection: number, node });
        let nodes: BTreeSet<EntryId> = {
            let state = collection.state();
            // The index next to a batch contains the hash of the batch.
            let indexes = changes.nodes.iter().filter_map(|node| index_beside(&state, *node));
            let mut indexes: Vec<EntryId> = indexes.collect();
            // The batch that is a form of the vectors contains all parts.
            let files = changes.nodes.iter().filter_map(|node| state.node(*node)?.file());
            let parts = files.filter(|file| file.records.is_some()).flat_map(|file| state.parts(file));
            indexes.extend(parts.map(|part| part.entry.id));
            // A view shows the bytes of other tensors of its container.
            let changed = changes.nodes.iter().filter_map(|node| state.node(*node)?.file());
            let containers = changed.filter_map(|file| match file.container {
                Some(container) => state.node(container)?.file(),
                None => Some(file),
            });
            indexes.extend(containers.flat_map(|container| state.views(container)).map(|view| view.entry.id));
            changes.nodes.into_iter().chain(indexes).collect()
        };
        nodes
            .iter()
            .filter_map(|node| self.open_files.get(number, *node))
            .for_each(|open_file| open_file.note_forgotten());
        let mut changed: BTreeSet<EntryId> = nodes.iter().copied().chain(written).collect();
        if self.forms.has_any(number) {
            // A file with an adapter is noted for the adapter's container, whichever of its tensors changes.
            let containers: Vec<EntryId> = {
                let state = collection.state();
                changed.iter().filter_map(|node| state.node(*node)?.file()?.container).collect()
            };
            changed.extend(containers);
            // A cast shows a weight with the scales that other tensors have, also those of other shards, and as the
            // configuration of the model says.
            let state = collection.state();
            let container = |node: &EntryId| {
                let file = state.node(*node)?.file()?;
                Some(file.container.unwrap_or(*node))
            };
            let is_read = |id: &EntryId, name: &[u8]| {
                let file = state.node(*id).and_then(|node| node.file());
                file.is_some_and(|file| file.content == Content::Safetensors) || is_config(name)
            };
            let mut directories: BTreeSet<EntryId> = BTreeSet::new();
            for id in changed.iter().filter_map(container) {
                let links = state.links(id).iter().filter(|(_, name)| is_read(&id, name));
                directories.extend(links.map(|(directory, _)| *directory));
            }
            let files = directories.iter().filter_map(|directory| state.directory(*directory));
            let files =
                files.flat_map(|directory| directory.after(EntryId(0))).filter_map(|(.., id)| state.node(id));
            let containers =
                files.filter(|node| node.file().is_some_and(|file| file.content == Content::Safetensors));
            let parts = containers.flat_map(|node| {
                let parts = node.file().into_iter().flat_map(|file| state.parts(file));
                parts.map(|part| part.entry.id).chain([node.entry.id])
            });
            let parts: Vec<EntryId> = parts.collect();
            drop(state);
            changed.extend(parts);
        }
        let forms = self.forms.of(number, &changed);
        Invalidation { nodes: nodes.into_iter().filter_map(ino).chain(forms).collect() }
    }
}
