//! Notifies the mount of name changes that the kernel did not request, and marks files whose type must
//! be determined again because their name changed.

use crate::format::log::catalog::{Entry, NodeType};
use crate::model::EntryId;
use crate::store::batch::Batch;
use crate::store::state::State;
use crate::store::state::node_settings::PLAIN;
use crate::store::state::settings_table::{RECOGNIZE_AGAIN, SHARDS};

impl State {
    /// Whether a file's first name has changed since it was last examined.
    pub fn must_be_recognized_again(&self, node: EntryId) -> bool {
        self.setting(node, RECOGNIZE_AGAIN).is_some()
    }

    /// The files whose first name changed and that have not been examined since.
    pub fn to_be_recognized_again(&self) -> impl Iterator<Item = EntryId> {
        self.set_nodes(RECOGNIZE_AGAIN).map(|(node, _)| node)
    }
}

impl Batch {
    /// Marks a file whose first name changes. A later batch records its type under the new name; after a
    /// crash in between, the mark shows that this is still to do.
    pub fn recognize_again(&mut self, node: EntryId) {
        self.entry(Entry::Setting { node, key: RECOGNIZE_AGAIN.to_owned(), value: Some(String::new()) });
    }

    /// Removes the mark.
    pub fn was_recognized_again(&mut self, node: EntryId) {
        self.entry(Entry::Setting { node, key: RECOGNIZE_AGAIN.to_owned(), value: None });
    }

    /// Whether a name that the kernel may have looked up leads elsewhere or nowhere after this batch,
    /// without a request of the kernel. This concerns names of tensors if a container or its name is
    /// added or removed, or an index of a sharded model, and plain names if `plain` is set or a directory moves to where
    /// it is off.
    pub(in crate::store) fn takes_names(&self, before: &State) -> bool {
        let file = |id: EntryId| before.node(id).and_then(|node| node.file());
        let names_tensors =
            |id| before.is_shard_index(id) || file(id).is_some_and(|file| file.content.is_container());
        self.entries().any(|entry| match entry {
            Entry::Name { parent, name, node, .. } => {
                let other = before.find_any(*parent, name).filter(|before| before != node);
                let has_plain_names = before.directory(*node).is_some() && before.has_plain_names(*node);
                names_tensors(*node)
                    || has_plain_names
                    || other.is_some() && !self.is_requested_by_kernel(*parent, name)
            }
            Entry::NameRemoved { parent, name } => {
                let entry = before.directory(*parent).and_then(|directory| directory.get(name));
                entry.is_some_and(names_tensors)
                    || entry.is_some() && !self.is_requested_by_kernel(*parent, name)
            }
            Entry::Node(node) => {
                let is_part = match &node.node_type {
                    NodeType::File(file) => file.container.is_some(),
                    _ => false,
                };
                is_part && file(node.id).is_none()
            }
            Entry::NodeRemoved(id) => {
                before.is_shard_index(*id) || file(*id).is_some_and(|file| file.container.is_some())
            }
            Entry::Setting { key, .. } => key == SHARDS || key == PLAIN,
            _ => false,
        })
    }
}
