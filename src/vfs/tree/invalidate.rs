//! Invalidations: cached pages and attributes that the kernel must drop.

use std::collections::BTreeSet;

use crate::format::files::shard_index;
use crate::format::log::catalog::Content;
use crate::ingest::may_be_recognized;
use crate::model::{EntryId, NameIn, Result};
use crate::store::{Collection, State};
use crate::stream::index_beside;
use crate::vfs::form::{anchors_of, is_config};
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
            let container = |node: &EntryId| Some(state.node(*node)?.file()?.container.unwrap_or(*node));
            let containers: BTreeSet<EntryId> = changes.nodes.iter().filter_map(container).collect();
            let containers = containers.iter().filter_map(|container| state.node(*container)?.file());
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
            let models: Vec<EntryId> = directories.iter().flat_map(|id| models(&state, *id)).collect();
            // The GGUF file of a model follows from most files of its directory.
            let anchors = anchors_of(&state, &changed);
            drop(state);
            changed.extend(anchors);
            changed.extend(models);
            changed.extend(self.directories_of_rows(collection, &changed));
        }
        let forms = self.forms.of(number, &changed);
        Invalidation { nodes: nodes.into_iter().filter_map(ino).chain(forms).collect() }
    }

    /// The invalidation for the forms of a directory from which a name is gone that other files follow from: that of a
    /// model's configuration, or of a container that may have had scales.
    pub(super) fn forget_name(
        &self,
        collection: &Collection,
        NameIn { directory, name }: NameIn<'_>,
    ) -> Invalidation {
        let number = collection.state().number();
        if !self.forms.has_any(number) {
            return Invalidation::default();
        }
        let mut changed: BTreeSet<EntryId> =
            self.directories_of_rows(collection, &BTreeSet::from([directory])).into_iter().collect();
        if is_config(name) || may_be_recognized(name) {
            changed.extend(models(&collection.state(), directory));
        }
        Invalidation { nodes: self.forms.of(number, &changed) }
    }
}

/// The safetensors files of a directory with their tensors, and the files that describe their model.
fn models(state: &State, directory: EntryId) -> impl Iterator<Item = EntryId> {
    let names = state.directory(directory).into_iter().flat_map(|names| names.after(EntryId(0)));
    let nodes = names.filter_map(|(_, name, id)| Some((name, state.node(id)?, state.node(id)?.file()?)));
    let nodes = nodes.filter(|(name, _, file)| {
        file.content == Content::Safetensors || is_config(name) || shard_index::is_name(name)
    });
    nodes.flat_map(|(_, node, file)| {
        let parts = state.parts(file).filter(|_| file.content == Content::Safetensors);
        parts.map(|part| part.entry.id).chain([node.entry.id])
    })
}
