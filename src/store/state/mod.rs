//! State of a collection as recorded in its log: names, nodes, settings, objects.
//!
//! # Names of tensors
//!
//! The log has the entries of directories (`directory.rs`). Names of tensors follow from containers:
//!
//! 1. A tensor is a node with the number of its container and its own name, as the header of the container has it. For
//!    `.npy` and `.cgeb` that name is what follows the stem of the file, so a rename changes no node.
//! 2. At the end of a batch `State::name_tensors` (`tree.rs`) adds and removes the tensors of the containers that the
//!    batch named, renamed or changed, once for each name of a container, in the `DirectoryTensors` of that directory
//!    (`tensor_names.rs`). These map escaped paths to tensors. Of several tensors with one path the first has it, in
//!    this order: tensors that the index of a sharded model says are in their container (`sharded_models.rs`), tensors of
//!    files that are no variant of another (`is_variant` in `model/name.rs`), then by name of the container, then by
//!    name of the tensor. Of a tensor `a` and a tensor `a/b` of another container the first has its name.
//! 3. `State::find` leads from a directory and a name to a node: an entry; `.tensors`; or, without an entry and where
//!    the setting `plain` is on, the tensor of that path, of the containers in the directory or in the nearest one
//!    above. `State::find_any`, for `.as` and `.ctl`, ignores the setting. `State::listed` lists by number, so that a
//!    listing can continue at a number.
//! 4. `.tensors`, the directories in it, and those at the place of a tensor's path have nodes that only the memory has
//!    (`State::shown`). Their numbers begin at `COMPUTED_FIRST` and are given at the first use; `vfs/tree/ino.rs` marks
//!    them with the highest bit of the number of a node.
//! 5. A program that makes a file in a directory at the place of a tensor's path makes that directory an entry of the
//!    log (`vfs/tree/change.rs`); in `.tensors` it gets EPERM. The batch that makes a name for a program sets
//!    `plain=off` on the directory (`vfs/open/names.rs`), because the kernel sends no CREATE for a name that a lookup
//!    has found.
//!
//! Code that changes where plain names lead: `State::has_plain_names`, `is_plain_name` in `vfs/tree/vfs.rs`,
//! `Dispatcher::only_read`.

pub(in crate::store) mod apply_blocks;
pub(in crate::store) mod assembly;
pub(in crate::store) mod by_id;
pub(in crate::store) mod data_files;
pub(in crate::store) mod directory;
pub(in crate::store) mod freed_space;
mod links;
mod memory;
pub(in crate::store) mod names;
pub(in crate::store) mod node;
pub(in crate::store) mod node_settings;
pub(in crate::store) mod pinned_copy;
pub(in crate::store) mod pins;
pub(in crate::store) mod program_attributes;
pub(in crate::store) mod settings_table;
mod shard_indexes;
mod sharded_models;
mod tensor_names;
pub(in crate::store) mod tree;
pub(in crate::store) mod used_space;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::format::log::block_record::{BlockRecord, of_slot_run};
use crate::format::log::catalog::{Digests, Entry, FileEntry, NodeType, ObjectEntry, OutsideFile};
use crate::format::log::record::Record;
use crate::model::{EntryId, Error, ObjectId, Result, Tier};
use crate::store::object::Object;
use crate::store::object::blocks::{Block, BlockLayout, Checksums, Run};
use crate::store::object::factors::factor_link_of;
use crate::store::object::links::link_of;
use crate::store::object::origin::{Origin, OriginRun};
use crate::store::quota::Use;
use crate::store::state::by_id::{ById, Set};
use crate::store::state::data_files::DataFiles;
use crate::store::state::directory::Directory;
use crate::store::state::freed_space::Freed;
use crate::store::state::links::Names;
use crate::store::state::node::{Link, Node};
use crate::store::state::pins::Pins;
use crate::store::state::settings_table::Settings;
use crate::store::state::shard_indexes::ShardIndexes;
use crate::store::state::tree::Tree;

/// The node of a collection's own directory.
pub const ROOT: EntryId = EntryId(1);

/// The log's information about the collection itself.
#[derive(Debug, Default)]
struct Header {
    number: u32,
    created_at: u64,
    last_entry: u64,
}

/// Sizes that wait for the end of a batch, or of a replay.
#[derive(Debug, Default)]
struct ChangedSizes {
    /// Objects that the batch being applied has resized.
    objects: Vec<Arc<Object>>,
    /// During a replay: files of several objects whose sizes may differ from those at their last Node record.
    files: Option<BTreeSet<EntryId>>,
}

/// State of a collection: all that its log says, in memory.
///
/// `apply_entry` and `apply_record` are the only ways in which the state changes, for a replay and for a batch that was
/// just appended, so both lead to the same state; the tests of histories compare the two. Entries of the catalog make
/// and change nodes, names, settings, objects and pins. Records of blocks change objects. What a batch replaced or
/// removed is collected in `freed`, from which the collection returns space once the batch is durable.
///
/// Facts that follow from the log but are not in it are kept up to date here as well: names of tensors, sizes of files, counts
/// for quotas, use of data files. During a replay some of these wait for its end, so that the work stays linear in the
/// bytes of the log. The state does no I/O.
#[derive(Debug, Default)]
pub struct State {
    header: Header,
    pub(in crate::store) nodes: Set<Node>,
    tree: Tree,
    pub(in crate::store) settings: Settings,
    objects: Set<Object>,
    /// The pins, with their copies.
    pub(in crate::store) pins: Pins,
    /// Space freed by the last batch.
    pub(in crate::store) freed: Vec<Freed>,
    sizes: ChangedSizes,
    /// Space in use; `quota` counts it.
    pub(in crate::store) used: Use,
    data_files: DataFiles,
    shard_indexes: ShardIndexes,
    /// Sequence number of the last record that only relocated a block.
    pub(in crate::store) relocated: u64,
}

impl State {
    /// The collection's number in the store.
    pub fn number(&self) -> u32 {
        self.header.number
    }

    /// Time of the collection's creation, in seconds since 1970.
    pub fn created_at(&self) -> u64 {
        self.header.created_at
    }

    /// A node.
    pub fn node(&self, id: EntryId) -> Option<&Arc<Node>> {
        self.nodes.get(&id).map(|known| &known.0)
    }

    /// All nodes, in arbitrary order.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.iter().map(|known| &known.0)
    }

    /// The names in a directory.
    pub fn directory(&self, id: EntryId) -> Option<&Directory> {
        self.tree.directories.get(&id)
    }

    /// The names of a node.
    pub fn links(&self, id: EntryId) -> Names<'_> {
        self.tree.links.of(id)
    }

    /// An object.
    pub fn object(&self, id: ObjectId) -> Option<&Arc<Object>> {
        self.objects.get(&id).map(|known| &known.0)
    }

    /// The size of an object, the state of its block `index`, and the number of described blocks, as
    /// recorded in the log. While the state is locked, no batch is applied.
    pub fn logged_block(&self, object: &Object, index: u32) -> (BlockLayout, Option<Block>, u32) {
        let (layout, blocks) = (object.logged_layout(), object.blocks.read());
        (layout, blocks.get(index, layout), object.described())
    }

    /// Whether any object lies in a data file.
    pub fn has_extent(&self, file: u64) -> bool {
        self.data_files.has_objects(file)
    }

    /// The outside file that serves as a data file.
    pub fn outside(&self, file: u64) -> Option<&Arc<OutsideFile>> {
        self.data_files.outside(file)
    }

    /// The outside files that serve as data files, in arbitrary order.
    pub fn outside_files(&self) -> impl Iterator<Item = &Arc<OutsideFile>> {
        self.data_files.outside_files()
    }

    /// All objects, in arbitrary order.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.iter().map(|known| &known.0)
    }

    /// The node of the tensor that an object of a container belongs to.
    pub fn part_of(&self, object: ObjectId) -> Option<EntryId> {
        self.object(object).and_then(|object| object.part_of())
    }

    /// The objects of a file that do not exist: the log is damaged then.
    pub fn missing_objects(&self, node: &Node) -> Vec<ObjectId> {
        let objects = node.file().into_iter().flat_map(|file| file.objects.iter().copied());
        objects.filter(|id| self.object(*id).is_none()).collect()
    }

    /// The tensors of a container, in the order of their bytes in it.
    pub fn parts(&self, container: &FileEntry) -> impl Iterator<Item = &Arc<Node>> {
        container.objects.iter().filter_map(|object| self.node(self.part_of(*object)?))
    }

    /// Payload bytes of a file's objects, with those of a container's tensors.
    pub fn stored(&self, file: &FileEntry) -> u64 {
        file.objects.iter().filter_map(|object| self.object(*object)).map(|object| object.stored()).sum()
    }

    /// The highest number ever given to an entry, a name or a node.
    pub fn last_entry(&self) -> u64 {
        self.header.last_entry
    }

    /// Reserves space for more objects and nodes, because a table that grows step by step is copied
    /// each time.
    pub(in crate::store) fn make_room(&mut self, objects: usize, nodes: usize) {
        self.objects.reserve(objects);
        self.nodes.reserve(nodes);
        self.tree.links.reserve(nodes);
    }

    /// Drops the list of freed space. Valid during replay, when there are no readers.
    pub(in crate::store) fn forget_freed(&mut self) {
        self.freed.drain(..).for_each(Freed::forget);
    }

    /// Applies a catalog entry.
    pub fn apply_entry(&mut self, entry: Entry) -> Result<()> {
        match entry {
            Entry::Collection { number, created_at, last_entry } => {
                self.header.last_entry = self.header.last_entry.max(last_entry);
                self.header.number = number;
                self.header.created_at = created_at;
            }
            Entry::Object(entry) => match self.objects.get(&entry.id).map(|known| &known.0) {
                Some(object)
                    if object.dtype() != entry.dtype && object.logged_layout().bytes == entry.bytes =>
                {
                    // The writer of the entry does not know sizes written since.
                    object.retyped(entry.dtype)?;
                }
                Some(object) => {
                    object.retyped(entry.dtype)?;
                    let gone = object.resized(entry.bytes);
                    self.sizes.objects.push(object.clone());
                    self.freed.extend(gone.into_iter().map(Freed::Payload));
                    State::count(&mut self.used, object);
                }
                None => {
                    let object = self.object_of(entry)?;
                    if let Some(extent) = object.extent() {
                        self.data_files.add_object(extent.file);
                    }
                    State::count(&mut self.used, &object);
                    self.objects.insert(ById(Arc::new(object)));
                }
            },
            Entry::Outside(outside) => self.data_files.add_outside(outside)?,
            Entry::Node(node) => {
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
                let node = Arc::new(Node { entry: *node, bytes });
                let before = self.nodes.replace(ById(node.clone())).map(|known| known.0);
                State::count_node(&mut self.used, before.as_ref(), Some(&node));
                self.note_file(before.as_ref().and_then(|node| node.file()), node.entry.id, node.file());
            }
            Entry::Written { node: id, mtime, ctime } => {
                return self.apply_written(id, mtime, ctime);
            }
            Entry::NodeRemoved(id) => {
                let before = self.nodes.take(&id).map(|known| known.0);
                State::count_node(&mut self.used, before.as_ref(), None);
                self.note_file(before.as_ref().and_then(|node| node.file()), id, None);
                self.count_directory(id, -1);
                self.tree.directories.remove(&id);
                let names = self.tree.links.remove_all(id);
                State::count_names(&mut self.used, names, 0);
                self.forget_settings(id);
                self.unpin_all(id);
            }
            Entry::Name { parent, entry, name, node } => {
                self.header.last_entry = self.header.last_entry.max(entry.0);
                let Some(found) = self.node(node) else {
                    return Err(Error::corrupt(format!(
                        "a name leads to node {}, which does not exist",
                        node.0
                    )));
                };
                if found.file().is_some_and(|file| file.container.is_some()) {
                    return Err(named_tensor(node));
                }
                let directory = self.tree.directories.get_mut(&parent).ok_or_else(|| no_directory(parent))?;
                if let Some(replaced) = directory.insert(name.clone(), entry, node) {
                    self.unlink(replaced, (parent, name.clone()));
                }
                let names = self.tree.links.add(node, (parent, name));
                State::count_names(&mut self.used, names.saturating_sub(1), names);
                self.count_name(parent, node, 1);
                self.note_name(node);
            }
            Entry::NameRemoved { parent, name } => {
                let directory = self.tree.directories.get_mut(&parent).ok_or_else(|| no_directory(parent))?;
                if let Some(node) = directory.remove(&name) {
                    self.unlink(node, (parent, name));
                }
            }
            Entry::Setting { node, key, value } => {
                self.note_setting(node, &key, value.as_deref());
                self.set(node, key, value);
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

    /// Applies a record about blocks. `payload` follows it in the log: the array of a run.
    pub fn apply_record(&mut self, record: &Record, sequence: u64, payload: &[u8]) -> Result<()> {
        if let Some(placed) = BlockRecord::of(record, sequence) {
            return self.apply_blocks(&[placed], |_, error| Err(error));
        }
        match *record {
            Record::SlotRun { object, stored, .. } => {
                let found = self.known(object)?.clone();
                let payload_len = |block| found.payload_len(block, stored.tier);
                let records = of_slot_run(record, sequence, payload, payload_len)?;
                self.apply_blocks(&records, |_, error| Err(error))
            }
            Record::CreateRun { object, block, stored, created_at, .. } => {
                let checksums = checksums_of(payload);
                let found = self.known(object)?.clone();
                let since = created_at as u32;
                if let (Some(origin), Some(extent)) = (&found.origin, found.extent()) {
                    if block != 0 || stored.offset != extent.offset {
                        return Err(Error::corrupt(format!(
                            "a run of object {object} begins at block {block} and byte {}, not at block 0 and \
                             byte {}",
                            stored.offset, extent.offset
                        )));
                    }
                    origin.set_run(OriginRun { epoch: sequence, since, checksums: checksums.clone() });
                }
                let run = Run { epoch: sequence, offset: stored.offset, since, checksums };
                let replaced = found.set_run(block, run)?;
                self.freed.extend(replaced.into_iter().map(Freed::Payload));
                State::count(&mut self.used, &found);
                Ok(())
            }
            Record::EmptyRun { object, block, count, stored, created_at } => {
                let found = self.known(object)?.clone();
                let range = block..block.saturating_add(count);
                let empty = Block { epoch: sequence, stored, since: created_at as u32 };
                let (replaced, deltas) = found.set_empty(range.clone(), empty)?;
                if let Some(origin) = &found.origin {
                    origin.sever_all(range);
                }
                self.freed.extend(replaced.into_iter().map(Freed::Payload));
                self.freed.extend(deltas.into_iter().map(|(index, epoch, links)| Freed::Deltas {
                    object: found.clone(),
                    index,
                    epoch,
                    links,
                }));
                let ended = found.end_factor();
                State::count(&mut self.used, &found);
                self.freed.extend(ended.map(|link| Freed::EndedFactor { object: found, link }));
                Ok(())
            }
            Record::Delete { object } => {
                if let Some(ById(removed)) = self.objects.take(&object) {
                    State::uncount(&mut self.used, &removed);
                    if let Some(extent) = removed.extent() {
                        self.data_files.remove_object(extent.file);
                    }
                    self.freed.push(Freed::Object(removed));
                }
                Ok(())
            }
            Record::Delta { .. } => {
                let unknown = || Error::unsupported("a delta of a kind that this program does not know");
                let (object, index, base_epoch, chain_len, link) = link_of(record).ok_or_else(unknown)?;
                let found = self.known(object)?.clone();
                let replaced = found.link(index, base_epoch, link, chain_len)?;
                let before = found.blocks.read().get(index, found.logged_layout());
                if let Some(origin) = &found.origin
                    && before.is_some_and(|block| block.stored.tier != Tier::Absent)
                {
                    origin.sever(index);
                }
                State::count(&mut self.used, &found);
                self.freed.push(Freed::Links(replaced));
                Ok(())
            }
            Record::Factor { object, .. } => {
                let unknown =
                    || Error::unsupported("a factor of one block, which this program does not know");
                let link = factor_link_of(record, sequence).ok_or_else(unknown)?;
                let found = self.known(object)?.clone();
                let replaced = found.factored(link)?;
                State::count(&mut self.used, &found);
                self.freed.extend(replaced.map(Freed::Factor));
                Ok(())
            }
            // Create and Migrate are about one block each and were applied above.
            Record::Create { .. }
            | Record::Migrate { .. }
            | Record::Catalog { .. }
            | Record::Commit { .. }
            | Record::Small { .. }
            | Record::Header { .. } => Ok(()),
        }
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

    /// Called when a whole batch has been applied.
    pub(in crate::store) fn batch_ended(&mut self) {
        self.sizes.objects.drain(..).for_each(|object| object.batch_ended());
        if self.sizes.files.is_none() {
            self.name_tensors();
        }
    }

    /// A state into which a log is replayed. What costs as much as a container has tensors, and follows from the state
    /// alone, waits for [`end_replay`](Self::end_replay), so that a log with many changes of a large container takes no
    /// longer than its bytes.
    pub(in crate::store) fn replayed() -> State {
        let sizes = ChangedSizes { files: Some(BTreeSet::new()), ..ChangedSizes::default() };
        State { sizes, ..State::default() }
    }

    /// Completes the state of a replayed log. `Corrupt` if a file has no size; the others have theirs.
    pub(in crate::store) fn end_replay(&mut self) -> Result<()> {
        self.name_tensors();
        let mut done = Ok(());
        for id in self.sizes.files.take().unwrap_or_default() {
            let sized = self.set_size(id).map_err(|error| error.at(format_args!("node {}", id.0)));
            done = done.and(sized);
        }
        done
    }

    /// Gives a file the size of its objects.
    fn set_size(&mut self, id: EntryId) -> Result<()> {
        let Some(file) = self.node(id).and_then(|node| node.file()) else { return Ok(()) };
        let bytes = self.bytes_of(file)?;
        if let Some(ById(mut known)) = self.nodes.take(&id) {
            Arc::make_mut(&mut known).bytes = bytes;
            self.nodes.insert(ById(known));
        }
        Ok(())
    }

    pub(in crate::store) fn known(&self, id: ObjectId) -> Result<&Arc<Object>> {
        self.object(id)
            .ok_or_else(|| Error::corrupt(format!("a record names object {id}, which does not exist")))
    }

    fn unlink(&mut self, node: EntryId, link: Link) {
        let (before, now) = self.tree.links.remove(node, &link);
        State::count_names(&mut self.used, before, now);
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

/// The checksums of a run, from its payload.
fn checksums_of(payload: &[u8]) -> Checksums {
    let numbers = payload.as_chunks().0;
    let mut checksums = Checksums::with_capacity(numbers.len());
    checksums.extend(numbers.iter().map(|number| u32::from_le_bytes(*number)));
    checksums
}
