//! Removes files that an earlier import of the same directory created, if that directory no longer has them.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::log::catalog::{Entry, NodeType};
use crate::ingest::bytes::options::Origin;
use crate::ingest::find::provenance::{Provenance, place, place_of};
use crate::ingest::find::walk::Walked;
use crate::ingest::publish::compare::is_unread;
use crate::ingest::publish::names::Names;
use crate::model::{EntryId, Result};
use crate::store::Collection;
use crate::store::ROOT;
use crate::store::Touched;

/// A name to remove.
pub(in crate::ingest) struct Removal {
    parent: EntryId,
    name: Vec<u8>,
    /// The file or link that has the name.
    pub node: EntryId,
    pub path: String,
    pub bytes: u64,
    /// Whether it still has the imported bytes.
    pub is_untouched: bool,
}

/// Names that imports of the same directories created and that these directories no longer have. Names
/// from other imports or programs are not among them.
pub(in crate::ingest) fn removals(collection: &Collection, walked: &Walked) -> Vec<Removal> {
    let found = walked.found.iter().map(|found| place_of(&found.root, &found.target));
    let links = walked.links.iter().map(|link| place_of(&link.root, &link.target));
    let present: HashSet<String> = found.chain(links).collect();
    let state = collection.state();
    let mut removals = Vec::new();
    for (node, provenance) in Provenance::all(&state) {
        for (parent, name) in state.links(node).iter() {
            let path = state.path_of_name(*parent, name);
            let mut places = walked.roots.iter().map(|root| place(root, &path));
            if places.any(|place| provenance.places.contains(&place) && !present.contains(&place)) {
                let there = state.node(node);
                let bytes = there.map_or(0, |node| node.bytes);
                let file = there.and_then(|node| node.file());
                // Of a file that nobody has read, its length and its place say that it is the same.
                let is_untouched = file.is_none_or(|file| {
                    provenance.is_of(file) || (bytes > 0 && is_unread(&state, file, |it| it.bytes == bytes))
                });
                let (name, path) = (name.to_vec(), String::from_utf8_lossy(&path).into_owned());
                removals.push(Removal { parent: *parent, name, node, path, bytes, is_untouched });
            }
        }
    }
    removals.sort_by(|one, other| one.path.cmp(&other.path));
    removals
}

/// Removes a name, the file if it was its last, and directories that become empty. Returns the nodes that
/// change.
pub(in crate::ingest) fn remove(
    collection: &Arc<Collection>,
    removal: &Removal,
    origin: &Origin,
) -> Result<Vec<EntryId>> {
    let mut changed = collection.record(Touched::default(), |batch, state| {
        let node = state.directory(removal.parent).and_then(|directory| directory.get(&removal.name));
        if node != Some(removal.node) {
            return Ok(Vec::new());
        }
        let file = state.node(removal.node).and_then(|node| node.file());
        let parts = file.into_iter().flat_map(|file| state.parts(file)).map(|part| part.entry.id);
        let changed = [removal.node, removal.parent].into_iter().chain(parts).collect();
        let mut names = Names::new(batch, state, origin);
        names.replace(removal.parent, &removal.name)?;
        names.finish();
        Ok(changed)
    })?;
    let mut at = removal.parent;
    while let Some(above) = remove_if_empty(collection, at)? {
        changed.push(above);
        at = above;
    }
    Ok(changed)
}

/// Removes an empty directory below the root. Returns the directory above it.
fn remove_if_empty(collection: &Collection, directory: EntryId) -> Result<Option<EntryId>> {
    collection.record(Touched::default(), |batch, state| {
        let is_empty = state.directory(directory).is_some_and(|found| found.is_empty());
        let is_directory =
            state.node(directory).is_some_and(|node| node.entry.node_type == NodeType::Directory);
        let Some((parent, name)) = state.links(directory).first() else { return Ok(None) };
        if directory == ROOT || !is_empty || !is_directory {
            return Ok(None);
        }
        batch.entry(Entry::NameRemoved { parent: *parent, name: name.clone() });
        batch.entry(Entry::NodeRemoved(directory));
        Ok(Some(*parent))
    })
}
