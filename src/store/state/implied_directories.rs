//! Implied directories: created for the names of tensors, and removed with the last name in them.

use std::collections::HashMap;

use crate::format::log::catalog::Entry;
use crate::model::EntryId;
use crate::store::batch::Batch;
use crate::store::state::State;
use crate::store::state::directory::Directory;
use crate::store::state::node::Link;

/// Setting of a directory that was created because the name of a container's tensor has a slash.
const MADE_FOR_TENSORS: &str = "made_for_tensors";

impl State {
    /// Whether a directory is removed with the last name in it.
    pub fn is_made_for_tensors(&self, directory: EntryId) -> bool {
        self.setting(directory, MADE_FOR_TENSORS).is_some()
    }

    /// The directories to remove when names are removed, with the name of each, inner ones first.
    /// `parents` has the directory of each removed name. `is_used` tells which directories get a name
    /// from the same batch.
    pub fn emptied(
        &self,
        parents: impl IntoIterator<Item = EntryId>,
        is_used: impl Fn(EntryId) -> bool,
    ) -> Vec<(Link, EntryId)> {
        let mut gone: Vec<EntryId> = parents.into_iter().collect();
        let mut left: HashMap<EntryId, usize> = HashMap::new();
        let mut emptied = Vec::new();
        while let Some(directory) = gone.pop() {
            let names = || self.directory(directory).map_or(0, Directory::len);
            let left = left.entry(directory).or_insert_with(names);
            *left = left.saturating_sub(1);
            if *left > 0 || is_used(directory) || !self.is_made_for_tensors(directory) {
                continue;
            }
            if let [link] = self.links(directory) {
                emptied.push((link.clone(), directory));
                gone.push(link.0);
            }
        }
        emptied
    }
}

impl Batch {
    /// Marks a directory as implied: it is removed with the last name in it.
    pub fn make_for_tensors(&mut self, directory: EntryId) {
        let (key, value) = (MADE_FOR_TENSORS.to_owned(), Some(String::new()));
        self.entry(Entry::Setting { node: directory, key, value });
    }

    /// Removes that mark: the directory stays when it becomes empty.
    pub fn keep_directory(&mut self, directory: EntryId) {
        let key = MADE_FOR_TENSORS.to_owned();
        self.entry(Entry::Setting { node: directory, key, value: None });
    }
}
