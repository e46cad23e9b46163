//! Sharded models. A file with the setting `shards` is the index of one and says which container of its directory a tensor
//! is in. That tensor comes before others of its name (`tensor_names.rs`).

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crate::format::files::shard_index;
use crate::format::log::catalog::Entry;
use crate::model::EntryId;
use crate::store::batch::Batch;
use crate::store::state::State;
use crate::store::state::settings_table::SHARDS;
use crate::store::state::tensor_names::{NamedTensor, NamedTensors};

/// Most indexes that are asked about one container. Without a limit a directory of many small ones would take long.
const INDEXES_MAX: usize = 16;
/// Most directories in which an index is one: the first that have it. Otherwise a log could name many containers by many
/// links.
const DIRECTORIES_MAX: usize = 16;

impl State {
    /// Notes that the setting `shards` of a file, or a name of a file that has it, was added, changed or removed.
    pub(super) fn note_shards(&mut self, id: EntryId) {
        self.shard_indexes.note(id);
    }

    /// Whether a file is recorded as an index, or was before the batch being applied.
    pub fn is_shard_index(&self, id: EntryId) -> bool {
        self.shard_indexes.has(id) || self.setting(id, SHARDS).is_some()
    }

    /// The indexes that name a container of a directory.
    pub fn indexes_of<'a>(
        &'a self,
        directory: EntryId,
        container: &'a [u8],
    ) -> impl Iterator<Item = EntryId> + 'a {
        self.shard_indexes.of(directory, container).take(INDEXES_MAX).map(|(id, _)| id)
    }

    /// Whether an index names both of two containers of a directory.
    pub fn are_in_one_index(&self, directory: EntryId, one: &[u8], other: &[u8]) -> bool {
        self.indexes_of(directory, one).any(|id| self.indexes_of(directory, other).any(|other| other == id))
    }

    /// Whether these are not the containers that a file is recorded to name. `None` for a file that is not an index.
    pub fn has_other_shards(&self, id: EntryId, shards: Option<&str>) -> bool {
        self.setting(id, SHARDS) != shards
    }

    /// Takes the changes of the batch. Returns the containers whose tensors the indexes name differently now.
    pub(super) fn update_shard_indexes(&mut self) -> BTreeSet<EntryId> {
        let mut renamed = BTreeSet::new();
        let mut indexes = std::mem::take(&mut self.shard_indexes);
        for id in indexes.take_changed() {
            let directories = self.links(id).iter().take(DIRECTORIES_MAX).map(|(directory, _)| *directory);
            for (directory, name) in indexes.replace(id, directories, self.setting(id, SHARDS)) {
                renamed.extend(self.directory(directory).and_then(|names| names.get(&name)));
            }
        }
        self.shard_indexes = indexes;
        renamed
    }

    /// The tensors of the container with this name in a directory, those marked that an index says are in it.
    pub(super) fn marked(&self, directory: EntryId, name: &[u8], tensors: NamedTensors) -> NamedTensors {
        let mut names: HashSet<&str> = HashSet::new();
        for (id, range) in self.shard_indexes.of(directory, name).take(INDEXES_MAX) {
            let lines = self.setting(id, SHARDS).and_then(|text| text.get(range));
            names.extend(shard_index::tensors(lines.unwrap_or_default()));
        }
        if names.is_empty() {
            return tensors;
        }
        let mark = |tensor: &NamedTensor| {
            let found = self.node(tensor.part).and_then(|node| node.file()?.tensor.as_ref());
            let is_in_index = found.is_some_and(|found| names.contains(&*found.name));
            NamedTensor { is_in_index, path: Arc::clone(&tensor.path), ..*tensor }
        };
        tensors.iter().map(mark).collect()
    }

    /// The first shard that the log records for an index. `None` for other files.
    pub fn first_shard(&self, id: EntryId) -> Option<&str> {
        self.setting(id, SHARDS)?.lines().next()
    }

    /// The names of the shards that an index names and that are not there, relative to its directory.
    pub fn missing_shards(&self, index: EntryId) -> Vec<String> {
        let Some((lines, (directory, _))) = self.setting(index, SHARDS).zip(self.links(index).first()) else {
            return Vec::new();
        };
        let is_there = |path: &str| {
            let mut names = path.split('/').filter(|name| *name != ".");
            names.try_fold(*directory, |at, name| self.directory(at)?.get(name.as_bytes())).is_some()
        };
        let files = shard_index::files(lines).into_iter().map(|(name, _)| name);
        files.filter(|path| !is_there(path)).map(str::to_owned).collect()
    }

    /// Bytes of the texts of all indexes.
    pub(super) fn shard_index_bytes(&self) -> u64 {
        let texts = self.shard_indexes.ids().filter_map(|id| self.setting(id, SHARDS));
        texts.map(|text| text.len() as u64).sum()
    }
}

impl Batch {
    /// Records the containers that an index names; `None` for a file that is not an index. The batch also changes the bytes or
    /// the name of the file, or is the first after one that did.
    pub fn put_shards(&mut self, state: &State, node: EntryId, shards: Option<String>) {
        if state.has_other_shards(node, shards.as_deref()) {
            self.entry(Entry::Setting { node, key: SHARDS.to_owned(), value: shards });
        }
    }
}
