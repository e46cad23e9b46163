//! Settings of nodes as recorded in the log.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::format::log::catalog::{Digests, Entry, FileEntry, NodeType};
use crate::model::{Back, EntryId, LOSSES, Loss, Tail, Thresholds, Tier};
use crate::store::batch::Batch;
use crate::store::state::ROOT;
use crate::store::state::State;
use crate::store::state::settings_table::{BACK, ByNode, OF_ARRIVALS, SHARDS, TAIL, UNIT, UNREAD, rare};

/// Setting that says whether precision may be reduced.
pub const LOSSY: &str = "lossy";
/// Setting that says how exact blocks of arriving tensors are stored.
pub const PACK: &str = "pack";
/// Setting that says how the encoder chooses scales.
pub const ENCODER: &str = "encoder";
/// Setting of directories that says whether tensors also open by their plain names there.
pub const PLAIN: &str = "plain";
/// Its values, the default first.
pub const PLAINS: [&str; 2] = ["off", "on"];
/// The beginning of its value if an import allowed a reduction: the user has the source of the imported bytes, but not of
/// bytes written over them. Such a value reads as the one of `LOSSES` with the same tier.
const UNTIL_WRITTEN: &str = "until_written";

/// The value of `lossy` that the value of an import reads as.
fn shown(logged: &str) -> Option<&'static str> {
    let tier = logged.strip_prefix(UNTIL_WRITTEN)?;
    LOSSES.into_iter().find(|value| value.strip_prefix("allow") == Some(tier))
}

impl State {
    /// A node's own setting.
    pub fn setting<'a>(&'a self, node: EntryId, key: &'a str) -> Option<&'a str> {
        let value = self.logged_setting(node, key);
        if key == LOSSY { value.map(|value| shown(value).unwrap_or(value)) } else { value }
    }

    /// Whether the checksums of blocks in data files are those of their places.
    pub fn is_unread(&self) -> bool {
        self.logged_setting(ROOT, UNREAD).is_some()
    }

    /// A node's own setting, as recorded in the log.
    fn logged_setting<'a>(&'a self, node: EntryId, key: &'a str) -> Option<&'a str> {
        let settings: &ByNode<'a> = &self.settings.all;
        settings.get(&(node, Cow::Borrowed(key))).map(AsRef::as_ref)
    }

    /// Applies a setting of a node; `None` removes it.
    pub(in crate::store) fn set(&mut self, node: EntryId, key: String, value: Option<String>) {
        if let Some(nodes) = rare(&key).and_then(|place| self.settings.rare.get_mut(place)) {
            if value.is_some() {
                nodes.insert(node)
            } else {
                nodes.remove(&node)
            };
        }
        if key == SHARDS {
            self.note_shards(node);
        }
        let key = (node, Cow::Owned(key));
        match value {
            Some(value) => self.settings.all.insert(key, value.into()),
            None => self.settings.all.remove(&key),
        };
    }

    /// Removes the settings of a deleted node.
    pub(in crate::store) fn forget_settings(&mut self, node: EntryId) {
        let keys: Vec<String> = self.settings_of(node).map(|(key, _)| key.to_owned()).collect();
        for key in keys {
            self.set(node, key, None);
        }
    }

    /// The nodes that have a setting of their own, with its value, in arbitrary order.
    pub fn set_nodes<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (EntryId, &'a str)> {
        let few = rare(key).and_then(|place| self.settings.rare.get(place));
        let all = few.is_none().then(|| self.settings.all.iter()).into_iter().flatten();
        let of_key = all.filter(move |((_, own), _)| own == key);
        let of_key = of_key.map(|((node, _), value)| (*node, value.as_ref()));
        let few = few.into_iter().flatten();
        // Only one of the two has any.
        of_key.chain(few.filter_map(move |node| Some((*node, self.logged_setting(*node, key)?))))
    }

    /// The thresholds of a node, of which `store` has the defaults. A value that no program could have set does not count.
    pub(in crate::store) fn thresholds(&self, node: EntryId, store: &Thresholds) -> Thresholds {
        let mut found = *store;
        // Most collections set none of them.
        for (threshold, _) in self.settings.thresholds().filter(|(_, nodes)| !nodes.is_empty()) {
            let text = self.inherited(node, threshold.name);
            if let Some(value) = text.and_then(|text| threshold.parse(text).ok()) {
                threshold.set(&mut found, value);
            }
        }
        found
    }

    /// All of a node's own settings.
    pub fn settings_of(&self, node: EntryId) -> impl Iterator<Item = (&str, &str)> {
        let after = self.settings.all.range((node, Cow::Borrowed(""))..);
        let own = after.take_while(move |((of, _), _)| *of == node);
        own.map(|((_, key), value)| (key.as_ref(), value.as_ref()))
    }

    /// A node's own setting, else that of its container, else that of the nearest directory above that
    /// has one. The consent of an import hides none that allows more.
    pub fn inherited<'a>(&'a self, node: EntryId, key: &'a str) -> Option<&'a str> {
        self.inherited_from(node, key).map(|(_, value)| value)
    }

    /// As [`inherited`](Self::inherited), with the node that has it.
    pub fn inherited_from<'a>(&'a self, node: EntryId, key: &'a str) -> Option<(EntryId, &'a str)> {
        let (mut at, mut of_import) = (node, None);
        for _ in 0..=self.nodes.len() {
            if let Some(value) = self.setting(at, key) {
                if key != LOSSY || !self.is_allowed_until_written(at) {
                    let covers =
                        |(_, import): &(EntryId, &str)| Loss::parse(import).covers(Loss::parse(value));
                    return of_import.filter(covers).or(Some((at, value)));
                }
                let covers = |(_, known): (EntryId, &str)| Loss::parse(known).covers(Loss::parse(value));
                if !of_import.is_some_and(covers) {
                    of_import = Some((at, value));
                }
            }
            let container = self.node(at).and_then(|node| node.file()).and_then(|file| file.container);
            at = match container {
                Some(container) => container,
                None => match self.above(at) {
                    Some(above) => above,
                    None => break,
                },
            };
        }
        of_import
    }
}

/// The entry by which an import shows the plain names of tensors in a collection that it makes.
pub fn show_plain_names(directory: EntryId) -> Entry {
    let [_, on] = PLAINS;
    Entry::Setting { node: directory, key: PLAIN.to_owned(), value: Some(on.to_owned()) }
}

/// The entry by which a program that makes a name ends the plain names in a directory and below.
pub fn end_plain_names(directory: EntryId) -> Entry {
    let [off, _] = PLAINS;
    Entry::Setting { node: directory, key: PLAIN.to_owned(), value: Some(off.to_owned()) }
}

impl State {
    /// Whether tensors also open by their plain names in a directory. Programs make names where they do
    /// not, since the kernel asks for no creation of a name that a lookup has found.
    pub fn has_plain_names(&self, directory: EntryId) -> bool {
        let [_, on] = PLAINS;
        self.inherited(directory, PLAIN) == Some(on)
    }
}

/// The entry by which an import allows that a file's precision is reduced: down to a tier, or by any amount.
pub fn allow_until_written(node: EntryId, down_to: Option<Tier>) -> Entry {
    let tier = down_to.map_or_else(String::new, |tier| format!(":{tier}"));
    Entry::Setting { node, key: LOSSY.to_owned(), value: Some(format!("{UNTIL_WRITTEN}{tier}")) }
}

impl State {
    /// Whether any directory or file has a setting for what arrives.
    pub fn has_settings_of_arrivals(&self) -> bool {
        let nodes = |key: &&str| rare(key).and_then(|place| self.settings.rare.get(place));
        OF_ARRIVALS.iter().filter_map(nodes).any(|nodes| !nodes.is_empty())
    }

    /// The tail of a tensor, as its directories say.
    pub fn tail(&self, node: EntryId) -> Option<Tail> {
        let back = Back::parse(self.inherited(node, BACK)?).ok()?;
        let rows = self.inherited(node, TAIL)?.parse().ok().filter(|rows| *rows > 0)?;
        Some(Tail { rows, back })
    }

    /// Whether any directory has tiers for the rows behind a tail.
    pub fn has_tails(&self) -> bool {
        self.is_set_anywhere(BACK)
    }

    /// Whether any node says in which units the policy moves tensors.
    pub fn has_units(&self) -> bool {
        self.is_set_anywhere(UNIT)
    }

    fn is_set_anywhere(&self, key: &str) -> bool {
        rare(key).and_then(|place| self.settings.rare.get(place)).is_some_and(|nodes| !nodes.is_empty())
    }

    /// Whether a person, rather than an import, allowed a reduction of the file's precision.
    pub fn is_loss_asked_for(&self, node: EntryId) -> bool {
        let found = self.inherited_from(node, LOSSY).filter(|(_, value)| Loss::parse(value) != Loss::Deny);
        found.is_some_and(|(from, _)| !self.is_allowed_until_written(from))
    }

    /// Whether an import allowed it for this node.
    pub fn is_allowed_until_written(&self, node: EntryId) -> bool {
        self.logged_setting(node, LOSSY).is_some_and(|value| shown(value).is_some())
    }

    /// Ends what imports have allowed for files whose content the batch changes.
    pub(in crate::store) fn end_consent(&self, batch: &mut Batch) {
        let (mut ended, mut removed) = (HashSet::new(), HashSet::new());
        for entry in batch.entries() {
            match entry {
                Entry::Node(node) => {
                    let before = self.node(node.id).and_then(|node| node.file());
                    if let (Some(before), NodeType::File(file)) = (before, &node.node_type)
                        && self.is_allowed_until_written(node.id)
                        && is_other_content(before, file)
                    {
                        ended.insert(node.id);
                    }
                }
                Entry::Written { node, .. } => {
                    let before = self.node(*node).and_then(|node| node.file());
                    if before.is_some_and(|file| file.digests != Digests::Outdated)
                        && self.is_allowed_until_written(*node)
                    {
                        ended.insert(*node);
                    }
                }
                Entry::NodeRemoved(node) => {
                    removed.insert(*node);
                }
                _ => {}
            }
        }
        for &node in ended.difference(&removed) {
            batch.entry(Entry::Setting { node, key: LOSSY.to_owned(), value: None });
        }
    }
}

/// Whether a file's content was replaced or written to. Its digests tell: they stay the same if the
/// same bytes are stored again.
fn is_other_content(before: &FileEntry, after: &FileEntry) -> bool {
    match (&before.digests, &after.digests) {
        (Digests::Recorded(before), Digests::Recorded(after)) => before != after,
        (one, other) => one != other || before.objects != after.objects,
    }
}
