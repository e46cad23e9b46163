//! Applies the entries of the catalog: they make and change nodes, names, settings and objects.

use std::sync::Arc;

use crate::format::log::catalog::{Digests, Entry, NodeEntry, NodeType, ObjectEntry};
use crate::model::{EntryId, Error, Result};
use crate::store::object::Object;
use crate::store::object::origin::Origin;
use crate::store::state::State;
use crate::store::state::by_id::ById;
use crate::store::state::freed_space::Freed;
use crate::store::state::node::{Link, Node};
use crate::store::state::settings_table::JOINED;

impl State {
    /// Applies a catalog entry.
    pub fn apply_entry(&mut self, entry: Entry) -> Result<()> {
        match entry {
            Entry::Collection { number, created_at, last_entry } => {
                self.header.last_entry = self.header.last_entry.max(last_entry);
                self.header.number = number;
                self.header.created_at = created_at;
                Ok(())
            }
            Entry::Object(entry) => self.apply_object(entry),
            Entry::Outside(outside) => self.data_files.add_outside(outside),
            Entry::Node(node) => self.apply_node(*node),
            Entry::Written { node, mtime, ctime } => self.apply_written(node, mtime, ctime),
            Entry::NodeRemoved(id) => {
                self.remove_node(id);
                Ok(())
            }
            Entry::Name { parent, entry, name, node } => {
                self.header.last_entry = self.header.last_entry.max(entry.0);
                self.apply_name((parent, name), entry, node)
            }
            Entry::NameRemoved { parent, name } => {
                let directory = self.tree.directories.get_mut(&parent).ok_or_else(|| no_directory(parent))?;
                if let Some(node) = directory.remove(&name) {
                    self.unlink(node, (parent, name));
                }
                Ok(())
            }
            Entry::Setting { node, key, value } => {
                self.note_setting(node, &key, value.as_deref());
                // The end of a replay does this for all of them.
                if let Some(sources) =
                    value.as_deref().filter(|_| key == JOINED && self.sizes.files.is_none())
                {
                    self.note_joined(node, sources);
                }
                self.set(node, key, value);
                Ok(())
            }
        }
    }

    fn apply_object(&mut self, entry: ObjectEntry) -> Result<()> {
        match self.objects.get(&entry.id).map(|known| &known.0) {
            Some(object) if object.dtype() != entry.dtype && object.logged_layout().bytes == entry.bytes => {
                // The writer of the entry does not know sizes written since.
                object.retyped(entry.dtype)?;
            }
            Some(object) => {
                object.retyped(entry.dtype)?;
                let gone = object.resized(entry.bytes);
                self.sizes.objects.push(object.clone());
                self.freed.extend(gone.into_iter().map(Freed::Payload));
                State::count(&mut self.counted, object);
            }
            None => {
                let object = self.object_of(entry)?;
                if let Some(extent) = object.extent() {
                    self.data_files.add_object(extent.file);
                }
                State::count(&mut self.counted, &object);
                self.objects.insert(ById(Arc::new(object)));
            }
        }
        Ok(())
    }

    /// A new object for a catalog entry. Its data file may be an outside file.
    pub(in crate::store) fn object_of(&self, entry: ObjectEntry) -> Result<Object> {
        let outside = entry.extent.and_then(|extent| Some((extent, self.outside(extent.file)?)));
        // The object may have grown since, so its end may exceed the file: such blocks lie elsewhere.
        let Some((extent, outside)) = outside else { return Ok(Object::new(entry)) };
        if extent.offset > outside.bytes {
            return Err(Error::corrupt(format!("object {} lies past the end of its outside file", entry.id)));
        }
        Ok(Object::of_outside(entry, Origin::new(outside.clone())))
    }

    fn apply_node(&mut self, node: NodeEntry) -> Result<()> {
        self.header.last_entry = self.header.last_entry.max(node.id.0);
        let mut bytes = 0;
        match &node.node_type {
            NodeType::Directory => {
                let known = self.tree.directories.len();
                self.tree.directories.entry(node.id).or_default();
                if self.tree.directories.len() > known {
                    self.count_directory(node.id, 1);
                }
            }
            NodeType::Symlink(target) => bytes = target.len() as u64,
            NodeType::File(file) => {
                bytes = self.bytes_of(file)?;
                if file.container.is_some() {
                    if !self.links(node.id).is_empty() {
                        return Err(named_tensor(node.id));
                    }
                    let parts = file.objects.iter().filter_map(|object| self.object(*object));
                    parts.for_each(|part| part.set_part_of(node.id));
                }
            }
        }
        let node = Arc::new(Node { entry: node, bytes });
        let before = self.nodes.replace(ById(node.clone())).map(|known| known.0);
        State::count_node(&mut self.counted, before.as_ref(), Some(&node));
        self.leave_objects(node.entry.id, before.as_ref().and_then(|node| node.file()), node.file());
        self.note_file(before.as_ref().and_then(|node| node.file()), node.entry.id, node.file());
        Ok(())
    }

    /// Applies a write to a file. Without a clone of its objects, of which a container has thousands.
    fn apply_written(&mut self, id: EntryId, mtime: i64, ctime: i64) -> Result<()> {
        let no_file = || Error::corrupt(format!("a write names node {}, which is not a file", id.0));
        let file = self.node(id).and_then(|node| node.file()).ok_or_else(no_file)?;
        let waits = self.sizes.files.is_some() && file.objects.len() > 1;
        let bytes = if waits { None } else { Some(self.bytes_of(file)?) };
        if let Some(stale) = self.sizes.files.as_mut().filter(|_| waits) {
            stale.insert(id);
        }
        let Some(ById(mut known)) = self.nodes.take(&id) else { return Err(no_file()) };
        let node = Arc::make_mut(&mut known);
        (node.entry.mtime, node.entry.ctime) = (mtime, ctime);
        node.bytes = bytes.unwrap_or(node.bytes);
        if let NodeType::File(file) = &mut node.entry.node_type {
            file.digests = Digests::Outdated;
        }
        self.nodes.insert(ById(known));
        Ok(())
    }

    fn remove_node(&mut self, id: EntryId) {
        let before = self.nodes.take(&id).map(|known| known.0);
        State::count_node(&mut self.counted, before.as_ref(), None);
        self.leave_objects(id, before.as_ref().and_then(|node| node.file()), None);
        self.note_file(before.as_ref().and_then(|node| node.file()), id, None);
        self.count_directory(id, -1);
        self.tree.directories.remove(&id);
        let names = self.tree.links.remove_all(id);
        State::count_names(&mut self.counted, names, 0);
        self.forget_settings(id);
        self.unpin_all(id);
    }

    /// Makes a name, in place of another node's if there is one.
    fn apply_name(&mut self, link: Link, entry: EntryId, node: EntryId) -> Result<()> {
        let Some(found) = self.node(node) else {
            return Err(Error::corrupt(format!("a name leads to node {}, which does not exist", node.0)));
        };
        if found.file().is_some_and(|file| file.container.is_some()) {
            return Err(named_tensor(node));
        }
        let parent = link.0;
        let directory = self.tree.directories.get_mut(&parent).ok_or_else(|| no_directory(parent))?;
        if let Some(replaced) = directory.insert(link.1.clone(), entry, node) {
            self.unlink(replaced, link.clone());
        }
        let names = self.tree.links.add(node, link);
        State::count_names(&mut self.counted, names.saturating_sub(1), names);
        self.count_name(parent, node, 1);
        self.note_name(node);
        Ok(())
    }

    fn unlink(&mut self, node: EntryId, link: Link) {
        let (before, now) = self.tree.links.remove(node, &link);
        State::count_names(&mut self.counted, before, now);
        self.count_name(link.0, node, -1);
        self.note_name(node);
    }

    /// Counts a name that was added or removed, if the node is a directory.
    fn count_name(&mut self, parent: EntryId, node: EntryId, change: i32) {
        if self.tree.directories.contains_key(&node)
            && let Some(above) = self.tree.directories.get_mut(&parent)
        {
            above.count_directory(change);
        }
    }

    /// Counts the names of a node that becomes a directory, or stops being one.
    fn count_directory(&mut self, node: EntryId, change: i32) {
        if !self.tree.directories.contains_key(&node) {
            return;
        }
        for (parent, _) in self.tree.links.of(node).iter() {
            if let Some(above) = self.tree.directories.get_mut(parent) {
                above.count_directory(change);
            }
        }
    }
}

fn named_tensor(id: EntryId) -> Error {
    Error::corrupt(format!("a name leads to node {}, which is a tensor of a container", id.0))
}

fn no_directory(id: EntryId) -> Error {
    Error::corrupt(format!("a name stands in node {}, which is not a directory", id.0))
}
