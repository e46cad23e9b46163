//! Settings of nodes, as the log says them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::model::EntryId;
use crate::store::state::State;

/// The settings of all nodes, by node and key. One map: many nodes have one each, and a map of one
/// takes half a kilobyte.
pub(super) type Settings<'a> = BTreeMap<(EntryId, Cow<'a, str>), Box<str>>;

impl State {
    /// A node's own setting.
    pub fn setting<'a>(&'a self, node: EntryId, key: &'a str) -> Option<&'a str> {
        let settings: &Settings<'a> = &self.settings;
        settings.get(&(node, Cow::Borrowed(key))).map(AsRef::as_ref)
    }

    /// Takes in a setting of a node; without a value it has none any more.
    pub(super) fn set(&mut self, node: EntryId, key: String, value: Option<String>) {
        let key = (node, Cow::Owned(key));
        match value {
            Some(value) => self.settings.insert(key, value.into()),
            None => self.settings.remove(&key),
        };
    }

    /// A node is gone, and its settings with it.
    pub(super) fn forget_settings(&mut self, node: EntryId) {
        let keys: Vec<String> = self.settings_of(node).map(|(key, _)| key.to_owned()).collect();
        for key in keys {
            self.set(node, key, None);
        }
    }

    /// Whether some node has a setting of its own with this value.
    pub fn has_setting(&self, key: &str, value: &str) -> bool {
        self.set_nodes(key).any(|(_, own)| own == value)
    }

    /// The nodes that have a setting of their own, with its value, in no order.
    pub fn set_nodes(&self, key: &str) -> impl Iterator<Item = (EntryId, &str)> {
        let of_key = self.settings.iter().filter(move |((_, own), _)| own == key);
        of_key.map(|((node, _), value)| (*node, value.as_ref()))
    }

    /// All settings of a node's own.
    pub fn settings_of(&self, node: EntryId) -> impl Iterator<Item = (&str, &str)> {
        let after = self.settings.range((node, Cow::Borrowed(""))..);
        let own = after.take_while(move |((of, _), _)| *of == node);
        own.map(|((_, key), value)| (key.as_ref(), value.as_ref()))
    }

    /// A node's setting, or that of the container that it is a part of, or that of the nearest
    /// directory above it that has one.
    pub fn inherited<'a>(&'a self, node: EntryId, key: &'a str) -> Option<&'a str> {
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
