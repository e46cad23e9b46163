//! Names and nodes of an imported file.

use std::collections::{HashMap, HashSet};

use crate::format::log::catalog::{Entry, FileEntry, NodeEntry, NodeType};
use crate::format::log::record::Record;
use crate::ingest::bytes::options::Origin;
use crate::ingest::recognize::data_files::put_data_files;
use crate::model::{EntryId, Error, ErrorKind, MODE_BITS, PERMISSIONS, Result, Tier};
use crate::store::Batch;
use crate::store::allow_until_written;
use crate::store::now_nanoseconds;
use crate::store::{Node, ROOT, State};

/// Collects the changes of names for one batch.
pub(in crate::ingest) struct Names<'a> {
    batch: &'a mut Batch,
    state: &'a State,
    origin: &'a Origin,
    last_entry: u64,
    /// Names that this batch creates: directory, name, node.
    made: Vec<(EntryId, Vec<u8>, EntryId)>,
    /// The same, by directory and name.
    made_nodes: HashMap<(EntryId, Vec<u8>), EntryId>,
    /// Names that this batch removes.
    gone: HashSet<(EntryId, Vec<u8>)>,
    /// Directories that this batch creates.
    made_directories: HashSet<EntryId>,
    now: i64,
}

impl<'a> Names<'a> {
    pub fn new(batch: &'a mut Batch, state: &'a State, origin: &'a Origin) -> Names<'a> {
        Names {
            batch,
            state,
            origin,
            last_entry: state.last_entry(),
            made: Vec::new(),
            made_nodes: HashMap::new(),
            gone: HashSet::new(),
            made_directories: HashSet::new(),
            now: now_nanoseconds(),
        }
    }

    pub fn number(&mut self) -> EntryId {
        self.last_entry += 1;
        EntryId(self.last_entry)
    }

    pub fn find(&self, parent: EntryId, name: &[u8]) -> Option<EntryId> {
        let key = (parent, name.to_vec());
        if let Some(node) = self.made_nodes.get(&key) {
            return Some(*node);
        }
        if self.gone.contains(&key) {
            return None;
        }
        self.state.directory(parent)?.get(name)
    }

    pub fn is_directory(&self, node: EntryId) -> bool {
        self.made_directories.contains(&node)
            || self.state.node(node).is_some_and(|node| node.entry.node_type == NodeType::Directory)
    }

    /// The directory at a path. Creates missing ones.
    pub fn directories(&mut self, path: &[Vec<u8>]) -> Result<EntryId> {
        let mut at = ROOT;
        for name in path {
            at = match self.find(at, name) {
                Some(node) if self.is_directory(node) => node,
                Some(_) => {
                    let name = String::from_utf8_lossy(name);
                    return Err(Error::invalid(format!("{name} is a file, not a directory")));
                }
                None => {
                    let node = self.number();
                    self.node(node, 0o755, NodeType::Directory);
                    self.made_directories.insert(node);
                    self.name(at, name, node);
                    node
                }
            };
        }
        Ok(at)
    }

    pub fn name(&mut self, parent: EntryId, name: &[u8], node: EntryId) {
        // Written at the end, after the nodes that the names lead to.
        self.made.push((parent, name.to_vec(), node));
        self.made_nodes.insert((parent, name.to_vec()), node);
    }

    pub fn node(&mut self, id: EntryId, mode: u32, node_type: NodeType) {
        let Origin { owner, atime, mtime, .. } = *self.origin;
        self.batch.node(NodeEntry { atime, mtime, ..NodeEntry::new(id, mode, owner, self.now, node_type) });
    }

    pub fn file(&mut self, id: EntryId, file: FileEntry) {
        // The set-user-ID bits of a file do not extend to its tensors.
        let bits = if file.container.is_some() { PERMISSIONS } else { MODE_BITS };
        let mode = self.origin.mode & bits;
        self.node(id, mode, NodeType::File(Box::new(file)));
    }

    pub fn entries(&mut self, entries: impl Iterator<Item = Entry>) {
        entries.for_each(|entry| self.batch.entry(entry));
    }

    /// Records the data files of the file `node` in `directory`.
    pub fn data_files(&mut self, directory: EntryId, node: EntryId, data_files: &[String]) {
        put_data_files(self.batch, self.state, directory, node, data_files);
    }

    /// Records the containers that the index `node` names.
    pub fn shards(&mut self, node: EntryId, shards: Option<String>) {
        self.batch.put_shards(self.state, node, shards);
    }

    /// Allows lossy moves of an imported file down to the tier that it was imported in, because the user still has the
    /// source.
    pub fn allow_loss(&mut self, node: EntryId, down_to: Tier) {
        self.batch.entry(allow_until_written(node, Some(down_to)));
    }

    /// Removes the tensors of a file, and its objects.
    pub fn empty(&mut self, node: &Node) {
        let Some(file) = node.file() else { return };
        let parts: Vec<EntryId> = self.state.parts(file).map(|part| part.entry.id).collect();
        parts.into_iter().for_each(|part| self.batch.entry(Entry::NodeRemoved(part)));
        for object in self.state.own_objects(node.entry.id, file) {
            self.batch.record(Record::Delete { object });
        }
    }

    /// The settings that a file has which replaces the one with a name.
    pub fn kept_settings(&self, parent: EntryId, name: &[u8]) -> Vec<(String, String)> {
        self.find(parent, name).map(|node| self.state.settings_of_user(node)).unwrap_or_default()
    }

    /// Gives a file the settings of the one that it replaces.
    pub fn keep_settings(&mut self, node: EntryId, settings: Vec<(String, String)>) {
        for (key, value) in settings {
            self.batch.entry(Entry::Setting { node, key, value: Some(value) });
        }
    }

    /// Removes the file that has a name, and its tensors. Fails with `Exists` where a directory has the
    /// name.
    pub fn replace(&mut self, parent: EntryId, name: &[u8]) -> Result<()> {
        let Some(old) = self.find(parent, name).and_then(|node| self.state.node(node)) else {
            return Ok(());
        };
        if old.entry.node_type == NodeType::Directory {
            let path = String::from_utf8_lossy(&self.state.path(old.entry.id)).into_owned();
            let text = format!("{path} is a directory; choose another name, or remove it first");
            return Err(Error::new(ErrorKind::Exists, text));
        }
        self.remove_name(parent, name);
        let links = self.state.links(old.entry.id);
        if let Some(first) = links.first().filter(|_| links.len() > 1) {
            // It keeps its other names.
            if *first == (parent, name.into()) && old.file().is_some() {
                self.batch.recognize_again(old.entry.id);
            }
            return Ok(());
        }
        self.empty(old);
        self.batch.entry(Entry::NodeRemoved(old.entry.id));
        Ok(())
    }

    fn remove_name(&mut self, parent: EntryId, name: &[u8]) {
        self.batch.entry(Entry::NameRemoved { parent, name: name.into() });
        self.gone.insert((parent, name.to_vec()));
    }

    pub fn finish(self) {
        let Names { batch, state, made, gone, mut last_entry, .. } = self;
        for (parent, name, node) in made {
            let place = (parent, name);
            // Keeping the entry number makes a concurrent listing show the name once.
            let before = state.directory(parent).filter(|_| gone.contains(&place));
            let entry = before.and_then(|directory| directory.entry(&place.1)).unwrap_or_else(|| {
                last_entry += 1;
                EntryId(last_entry)
            });
            batch.entry(Entry::Name { parent, entry, name: place.1.into(), node });
        }
    }
}
