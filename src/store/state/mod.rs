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
//!    files that are not a variant of another (`is_variant` in `model/name.rs`), then by name of the container, then by
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
mod apply_entries;
mod apply_records;
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
mod object_files;
pub(in crate::store) mod pinned_copy;
pub(in crate::store) mod pins;
pub(in crate::store) mod program_attributes;
pub(in crate::store) mod settings_table;
mod shard_indexes;
mod sharded_models;
mod shared_objects;
mod tensor_names;
pub(in crate::store) mod tree;
pub(in crate::store) mod used_space;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::format::log::catalog::{FileEntry, OutsideFile};
use crate::model::{EntryId, ObjectId, Result};
use crate::store::object::Object;
use crate::store::object::blocks::{Block, BlockLayout};
use crate::store::quota::Counted;
use crate::store::state::by_id::{ById, Set};
use crate::store::state::data_files::DataFiles;
use crate::store::state::directory::Directory;
use crate::store::state::freed_space::Freed;
use crate::store::state::links::Names;
use crate::store::state::node::Node;
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
/// and change nodes, names, settings, objects and pins. Records of blocks change objects. `freed` collects the space
/// of replaced and removed blocks, which the collection returns once the batch is durable.
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
    pub(in crate::store) counted: Counted,
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

    /// The same without unwritten zeros, as far as these are easily counted.
    pub fn stored_without_holes(&self, file: &FileEntry) -> u64 {
        let objects = file.objects.iter().filter_map(|object| self.object(*object));
        objects.map(|object| object.stored().saturating_sub(object.unwritten())).sum()
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

    /// Called when a whole batch has been applied.
    pub(in crate::store) fn batch_ended(&mut self) {
        self.sizes.objects.drain(..).for_each(|object| object.batch_ended());
        if self.sizes.files.is_none() {
            self.name_tensors();
        }
    }

    /// A state into which a log is replayed. Facts that take work for each tensor of a container, and follow from the
    /// state alone, wait for [`end_replay`](Self::end_replay), so that a log with many changes of a large container
    /// takes no longer than its bytes.
    pub(in crate::store) fn replayed() -> State {
        let sizes = ChangedSizes { files: Some(BTreeSet::new()), ..ChangedSizes::default() };
        State { sizes, ..State::default() }
    }

    /// Completes the state of a replayed log. `Corrupt` if a file has no size; the others have theirs.
    pub(in crate::store) fn end_replay(&mut self) -> Result<()> {
        self.name_tensors();
        self.note_all_joined();
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
}
