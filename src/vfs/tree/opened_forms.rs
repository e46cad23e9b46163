//! The files of forms, and the plain names of tensors, that the kernel may have pages of.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;

use crate::model::{EntryId, Instant};
use crate::vfs::tree::form_numbers::ShownNode;
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::location::WHOLE;

/// Other threads may open the file again before this one handles an earlier forget.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// Files, with the times of their last opens.
type Times = BTreeMap<Ino, Instant>;

/// Files of forms, and plain names of tensors, that were opened since the kernel looked them up, and of which
/// it may cache pages. By collection, then by node, with 0 for the whole collection.
#[derive(Default)]
pub(super) struct OpenedForms(Mutex<BTreeMap<u32, BTreeMap<EntryId, Times>>>);

impl OpenedForms {
    /// Notes that an opened file shows a node.
    pub fn note(&self, collection: u32, node: EntryId, ino: Ino) {
        self.0.lock().entry(collection).or_default().entry(node).or_default().insert(ino, Instant::now());
    }

    /// Handles a forget of the kernel for an inode number. The kernel drops the pages of an inode that it
    /// forgets; where it may have opened the file again since, the note stays. `shown` is the node that a file of a
    /// form shows.
    pub fn forget(&self, ino: Ino, shown: Option<ShownNode>) {
        let (collection, node) = match (shown, ino.place()) {
            (Some(shown), _) => (shown.collection, shown.node),
            (None, Place::Node { collection, node }) if ino.is_plain() => (collection, node),
            _ => return,
        };
        let mut opened = self.0.lock();
        let Some(nodes) = opened.get_mut(&collection) else { return };
        if let Some(inos) = nodes.get_mut(&node) {
            if inos.get(&ino).is_some_and(|noted| noted.elapsed() >= FORGOTTEN_AFTER) {
                inos.remove(&ino);
            }
            if inos.is_empty() {
                nodes.remove(&node);
            }
        }
        if nodes.is_empty() {
            opened.remove(&collection);
        }
    }

    /// Whether a file of a collection was opened.
    pub fn has_any(&self, collection: u32) -> bool {
        self.0.lock().contains_key(&collection)
    }

    /// The files that show these nodes.
    pub fn of(&self, collection: u32, nodes: &BTreeSet<EntryId>) -> Vec<Ino> {
        let opened = self.0.lock();
        let Some(known) = opened.get(&collection).filter(|_| !nodes.is_empty()) else { return Vec::new() };
        nodes
            .iter()
            .chain([&WHOLE])
            .filter_map(|node| known.get(node))
            .flat_map(BTreeMap::keys)
            .copied()
            .collect()
    }
}
