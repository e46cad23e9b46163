//! The names in one directory.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::EntryId;
use crate::store::state::by_id::ByName;

/// The names in one directory.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    by_name: ByName<EntryId>,
    by_entry: BTreeMap<EntryId, (Arc<[u8]>, EntryId)>,
    /// How many of the names lead to directories. The state maintains it.
    directories: u32,
}

impl Directory {
    /// The node that `name` leads to.
    pub fn get(&self, name: &[u8]) -> Option<EntryId> {
        let entry = self.by_name.get(name)?;
        self.by_entry.get(entry).map(|(_, node)| *node)
    }

    /// The entry number of `name`.
    pub fn entry(&self, name: &[u8]) -> Option<EntryId> {
        self.by_name.get(name).copied()
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.by_entry.len()
    }

    /// The names after `entry`, in the order of their entry numbers: entry, name, node.
    pub fn after(&self, entry: EntryId) -> impl Iterator<Item = (EntryId, &Arc<[u8]>, EntryId)> {
        let later = (std::ops::Bound::Excluded(entry), std::ops::Bound::Unbounded);
        self.by_entry.range(later).map(|(entry, (name, node))| (*entry, name, *node))
    }

    /// How many of the names lead to directories.
    pub fn directories(&self) -> u32 {
        self.directories
    }

    /// Counts a name of a directory that was added or removed.
    pub(in crate::store) fn count_directory(&mut self, change: i32) {
        self.directories = self.directories.saturating_add_signed(change);
    }

    /// Whether the directory has no names.
    pub fn is_empty(&self) -> bool {
        self.by_entry.is_empty()
    }

    /// Inserts a name and returns the node that it led to before.
    pub(in crate::store) fn insert(
        &mut self,
        name: Arc<[u8]>,
        entry: EntryId,
        node: EntryId,
    ) -> Option<EntryId> {
        let before = self.by_name.insert(name.clone(), entry);
        let replaced = before.and_then(|before| self.by_entry.remove(&before));
        self.by_entry.insert(entry, (name, node));
        replaced.map(|(_, node)| node)
    }

    /// Removes a name and returns its node.
    pub(in crate::store) fn remove(&mut self, name: &[u8]) -> Option<EntryId> {
        let entry = self.by_name.remove(name)?;
        self.by_entry.remove(&entry).map(|(_, node)| node)
    }
}
