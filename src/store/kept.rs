//! Settings of nodes, as the log says them.

use crate::model::EntryId;
use crate::store::state::State;

impl State {
    /// A node's own setting.
    pub fn setting(&self, node: EntryId, key: &str) -> Option<&str> {
        self.settings.get(&node)?.get(key).map(String::as_str)
    }

    /// Whether some node has a setting of its own with this value.
    pub fn has_setting(&self, key: &str, value: &str) -> bool {
        self.settings.values().any(|settings| settings.get(key).is_some_and(|own| own == value))
    }

    /// All settings of a node's own.
    pub fn settings_of(&self, node: EntryId) -> impl Iterator<Item = (&str, &str)> {
        self.settings.get(&node).into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// A node's setting, or that of the container that it is a part of, or that of the nearest
    /// directory above it that has one.
    pub fn inherited(&self, node: EntryId, key: &str) -> Option<&str> {
        let mut at = node;
        for _ in 0..=self.nodes.len() {
            if let Some(value) = self.setting(at, key) {
                return Some(value);
            }
            let container = self.node(at).and_then(|node| node.file()).and_then(|file| file.container);
            at = match container {
                Some(container) => container,
                None => self.links(at).first()?.0,
            };
        }
        None
    }
}
