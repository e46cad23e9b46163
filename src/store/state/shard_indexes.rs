//! The indexes of sharded models in memory: which of them name a container of a directory, and with which tensors.
//! `sharded_models.rs` keeps them up to date.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use smallvec::SmallVec;

use crate::format::files::shard_index;
use crate::model::EntryId;
use crate::store::state::by_id::ByEntry;

/// The directory of a container, and its name there.
pub(super) type Place = (EntryId, Box<[u8]>);

/// The indexes of a collection.
#[derive(Debug, Default)]
pub(super) struct ShardIndexes {
    /// By directory and the name of a container: the indexes that name it.
    by_container: ByEntry<HashMap<Box<[u8]>, BTreeSet<EntryId>>>,
    known: ByEntry<Index>,
    /// Files whose setting or names the batch being applied has changed.
    changed: BTreeSet<EntryId>,
}

/// An index, as the last batch left it.
#[derive(Debug, Default)]
struct Index {
    directories: SmallVec<[EntryId; 1]>,
    /// By the name of a container: the range of its tensors in the text of the setting.
    containers: HashMap<Box<[u8]>, Range<usize>>,
}

impl Index {
    fn places(&self) -> impl Iterator<Item = Place> {
        let of = move |directory: &EntryId| {
            let directory = *directory;
            self.containers.keys().map(move |name| (directory, name.clone()))
        };
        self.directories.iter().flat_map(of)
    }
}

impl ShardIndexes {
    /// Notes that a file was added, changed or removed that is an index, or was one.
    pub fn note(&mut self, id: EntryId) {
        self.changed.insert(id);
    }

    /// The files that were noted.
    pub fn take_changed(&mut self) -> BTreeSet<EntryId> {
        std::mem::take(&mut self.changed)
    }

    /// The indexes, in arbitrary order.
    pub fn ids(&self) -> impl Iterator<Item = EntryId> {
        self.known.keys().copied()
    }

    /// Whether a file was an index before the batch being applied.
    pub fn has(&self, id: EntryId) -> bool {
        self.known.contains_key(&id)
    }

    /// Replaces an index by one with these lines in these directories, or removes it. Returns the places of the
    /// containers that it named before and names now.
    pub fn replace(
        &mut self,
        id: EntryId,
        directories: impl Iterator<Item = EntryId>,
        lines: Option<&str>,
    ) -> Vec<Place> {
        let before = self.known.remove(&id).unwrap_or_default();
        let mut places: Vec<Place> = before.places().collect();
        for (directory, name) in &places {
            let Some(containers) = self.by_container.get_mut(directory) else { continue };
            if let Some(indexes) = containers.get_mut(name) {
                indexes.remove(&id);
                if indexes.is_empty() {
                    containers.remove(name);
                }
            }
            if containers.is_empty() {
                self.by_container.remove(directory);
            }
        }
        let Some(lines) = lines else { return places };
        let files = shard_index::files(lines).into_iter();
        let containers = files.map(|(name, range)| (name.as_bytes().into(), range)).collect();
        let now = Index { directories: directories.collect(), containers };
        for (directory, name) in now.places() {
            self.by_container.entry(directory).or_default().entry(name.clone()).or_default().insert(id);
            places.push((directory, name));
        }
        self.known.insert(id, now);
        places
    }

    /// The indexes that name a container, each with the range of its tensors in the text of the setting.
    pub fn of<'a>(
        &'a self,
        directory: EntryId,
        name: &'a [u8],
    ) -> impl Iterator<Item = (EntryId, Range<usize>)> + 'a {
        let indexes = self.by_container.get(&directory).and_then(|containers| containers.get(name));
        let range = move |id: &EntryId| Some((*id, self.known.get(id)?.containers.get(name)?.clone()));
        indexes.into_iter().flatten().filter_map(range)
    }
}
