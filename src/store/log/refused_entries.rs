//! The nodes and names that a damaged log describes and its state did not accept.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::format::log::catalog::{Entry, NodeEntry};
use crate::model::EntryId;

/// A name: the directory, the number of its entry, its bytes, and the node that it leads to.
pub(in crate::store) type RefusedName = (EntryId, EntryId, Arc<[u8]>, EntryId);

/// Refused nodes and names that no later entry replaces. An entry costs constant work, however many were refused.
#[derive(Default)]
pub(in crate::store) struct RefusedEntries {
    nodes: BTreeMap<EntryId, NodeEntry>,
    /// Names by their place in the log.
    names: BTreeMap<u64, RefusedName>,
    /// The places of the names of each directory.
    places: HashMap<EntryId, HashMap<Arc<[u8]>, u64>>,
    /// The names that led to each node, some of which have been replaced.
    leading: HashMap<EntryId, Vec<u64>>,
    /// The highest number of a node or an entry that is or was among them.
    last_entry: u64,
}

impl RefusedEntries {
    /// Adds an entry that was refused. Of entries other than nodes and names the subject is gone, or the state implies
    /// them.
    pub fn push(&mut self, entry: Entry) {
        match entry {
            Entry::Node(node) => {
                self.last_entry = self.last_entry.max(node.id.0);
                self.nodes.insert(node.id, *node);
            }
            Entry::Name { parent, entry, name, node } => {
                self.last_entry = self.last_entry.max(parent.0).max(entry.0).max(node.0);
                let place = self.names.last_key_value().map_or(0, |(last, _)| last + 1);
                self.places.entry(parent).or_default().insert(name.clone(), place);
                self.leading.entry(node).or_default().push(place);
                self.names.insert(place, (parent, entry, name, node));
            }
            _ => {}
        }
    }

    /// Removes the entries that `entry`, a later one, replaces.
    pub fn replace(&mut self, entry: &Entry) {
        match entry {
            Entry::Node(node) => {
                self.nodes.remove(&node.id);
            }
            Entry::NodeRemoved(id) => {
                self.nodes.remove(id);
                let below = self.places.remove(id).unwrap_or_default();
                for place in below.into_values().chain(self.leading.remove(id).unwrap_or_default()) {
                    self.remove_name(place);
                }
            }
            Entry::Name { parent, name, .. } | Entry::NameRemoved { parent, name } => {
                let place = self.places.get_mut(parent).and_then(|names| names.remove(name));
                place.into_iter().for_each(|place| self.remove_name(place));
            }
            _ => {}
        }
    }

    fn remove_name(&mut self, place: u64) {
        let Some((parent, _, name, _)) = self.names.remove(&place) else { return };
        if let Some(names) = self.places.get_mut(&parent) {
            names.remove(&name);
        }
    }

    /// The highest number of a node or an entry that was refused; 0 for none.
    pub fn last_entry(&self) -> u64 {
        self.last_entry
    }

    /// The nodes, and the names in the order of the log.
    pub fn into_parts(self) -> (BTreeMap<EntryId, NodeEntry>, Vec<RefusedName>) {
        (self.nodes, self.names.into_values().collect())
    }
}
