//! Names and nodes of an imported file.

use std::collections::{HashMap, HashSet};

use crate::format::log::catalog::{Entry, FileEntry, NodeEntry, NodeType};
use crate::format::log::record::Record;
use crate::ingest::Origin;
use crate::model::{EntryId, Error, ErrorKind, MODE_BITS, ObjectId, PERMISSIONS, Result};
use crate::store::Batch;
use crate::store::allow_until_written;
use crate::store::{Link, Node, ROOT, State};
use crate::store::{now_nanoseconds, now_seconds};

/// Collects the changes of names for one batch.
pub(super) struct Names<'a> {
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
    /// Directories that become empty by the removed names, once computed. A directory that gets a
    /// name again is removed from the set, with those above it.
    going: Option<HashSet<EntryId>>,
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
            going: None,
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
            at = self.directory(at, name)?.ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                Error::invalid(format!("{name} is a file, so nothing can stand in it"))
            })?;
        }
        Ok(at)
    }

    /// The directory `name` in another, created if the name is free. `None` where another kind of
    /// node has the name.
    pub fn directory(&mut self, parent: EntryId, name: &[u8]) -> Result<Option<EntryId>> {
        if let Some(node) = self.find(parent, name) {
            return Ok(self.is_directory(node).then_some(node));
        }
        let node = self.number();
        self.node(node, 0o755, NodeType::Directory);
        self.made_directories.insert(node);
        self.name(parent, name, node);
        Ok(Some(node))
    }

    /// Names a tensor of a container. `false` where the name is taken.
    pub fn part(&mut self, parent: EntryId, path: &[String], node: EntryId) -> Result<bool> {
        let Some((name, above)) = path.split_last() else { return Ok(false) };
        let mut at = parent;
        for directory in above {
            let is_new = self.find(at, directory.as_bytes()).is_none();
            let Some(found) = self.directory(at, directory.as_bytes())? else { return Ok(false) };
            if is_new {
                self.batch.make_for_tensors(found);
            }
            at = found;
        }
        if let Some(existing) = self.find(at, name.as_bytes())
            && !self.is_emptied(existing)
        {
            return Ok(false);
        }
        self.name(at, name.as_bytes(), node);
        Ok(true)
    }

    /// Whether a directory becomes empty by the removed names, and is removed too.
    fn is_emptied(&mut self, directory: EntryId) -> bool {
        if !self.state.is_made_for_tensors(directory) {
            return false;
        }
        if self.going.is_none() {
            self.going = Some(self.emptied().into_iter().map(|(_, emptied)| emptied).collect());
        }
        self.going.as_ref().is_some_and(|going| going.contains(&directory))
    }

    /// The directories that become empty by the removed names: the name of each, and the directory.
    fn emptied(&self) -> Vec<(Link, EntryId)> {
        let used: HashSet<EntryId> = self.made.iter().map(|(parent, ..)| *parent).collect();
        let parents = self.gone.iter().map(|(parent, _)| *parent);
        self.state.emptied(parents, |directory| used.contains(&directory))
    }

    pub fn name(&mut self, parent: EntryId, name: &[u8], node: EntryId) {
        if let Some(going) = &mut self.going {
            let mut at = parent;
            while going.remove(&at)
                && let Some((above, _)) = self.state.links(at).first()
            {
                at = *above;
            }
        }
        // Written at the end, after the nodes that the names lead to.
        self.made.push((parent, name.to_vec(), node));
        self.made_nodes.insert((parent, name.to_vec()), node);
    }

    pub fn node(&mut self, id: EntryId, mode: u32, node_type: NodeType) {
        let (uid, gid) = self.origin.owner;
        self.batch.entry(Entry::Node(Box::new(NodeEntry {
            id,
            mode,
            uid,
            gid,
            atime: self.origin.atime,
            mtime: self.origin.mtime,
            ctime: self.now,
            created_at: now_seconds(),
            node_type,
        })));
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

    /// Allows lossy moves of an imported file, because the user still has the source.
    pub fn allow_loss(&mut self, node: EntryId) {
        self.batch.entry(allow_until_written(node));
    }

    /// Removes the tensors of a file, and its objects.
    pub fn empty(&mut self, node: &Node) {
        let Some(file) = node.file() else { return };
        let parts: Vec<EntryId> = self.state.parts(file).map(|part| part.entry.id).collect();
        for part in parts {
            self.remove_names(part);
            self.batch.entry(Entry::NodeRemoved(part));
        }
        for object in &file.objects {
            self.batch.record(Record::Delete { object: *object });
        }
    }

    /// Removes the file that has a name, and its tensors. Fails with `Exists` where a directory or a
    /// tensor of another file has the name.
    pub fn replace(&mut self, parent: EntryId, name: &[u8]) -> Result<()> {
        let Some(old) = self.find(parent, name).and_then(|node| self.state.node(node)) else {
            return Ok(());
        };
        let taken = |by: &str| {
            let path = String::from_utf8_lossy(&self.state.path(old.entry.id)).into_owned();
            Error::new(ErrorKind::Exists, format!("{path} is {by}; choose another name, or remove it first"))
        };
        let mut nodes = vec![old.entry.id];
        let mut objects: &[ObjectId] = &[];
        match &old.entry.node_type {
            NodeType::Directory => return Err(taken("a directory")),
            NodeType::File(file) if file.container.is_some() => {
                return Err(taken("a tensor that belongs to another file"));
            }
            NodeType::Symlink(_) => {}
            NodeType::File(file) => {
                nodes.extend(self.state.parts(file).map(|node| node.entry.id));
                objects = &file.objects;
            }
        }
        if let [first, _, ..] = self.state.links(old.entry.id) {
            // It keeps its other names; its tensors lie next to the first.
            let was_first = *first == (parent, name.into());
            self.remove_name(parent, name);
            if was_first && old.file().is_some() {
                nodes.iter().skip(1).for_each(|part| self.remove_names(*part));
                self.batch.recognize_again(old.entry.id);
            }
            return Ok(());
        }
        for &node in &nodes {
            self.remove_names(node);
            self.batch.entry(Entry::NodeRemoved(node));
        }
        for object in objects {
            self.batch.record(Record::Delete { object: *object });
        }
        Ok(())
    }

    pub fn remove_names(&mut self, node: EntryId) {
        let state = self.state;
        for (parent, name) in state.links(node) {
            self.remove_name(*parent, name);
        }
    }

    pub fn remove_name(&mut self, parent: EntryId, name: &[u8]) {
        self.batch.entry(Entry::NameRemoved { parent, name: name.into() });
        self.gone.insert((parent, name.to_vec()));
        self.going = None;
    }

    pub fn finish(self) {
        let emptied = self.emptied();
        let Names { batch, state, made, gone, mut last_entry, .. } = self;
        for ((parent, name), directory) in emptied {
            batch.entry(Entry::NameRemoved { parent, name });
            batch.entry(Entry::NodeRemoved(directory));
        }
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
