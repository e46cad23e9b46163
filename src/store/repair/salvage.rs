//! Corrects the tree of a damaged log: removes names that lead nowhere, gives nameless nodes a name in
//! `lost+found`, and reports files whose objects are gone.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::format::files::cgeb::Runs;
use crate::format::log::catalog::{Content, Entry, FileEntry, NodeEntry, NodeType, ObjectEntry, ObjectIds};
use crate::format::log::record::Record;
use crate::model::{
    CollectionName, Dtype, EntryId, ObjectId, Owner, Result, SeedId, TensorId, escape_component,
};
use crate::store::clock::{now_nanoseconds, now_seconds};
use crate::store::log::refused_entries::{RefusedEntries, RefusedName};
use crate::store::repair::set_aside::Reasons;
use crate::store::repair::{Lost, LostBlocks, lost_whole, unnamed};
use crate::store::state::directory::Directory;
use crate::store::state::node::Link;
use crate::store::state::tree::name_of_tensor;
use crate::store::state::{ROOT, State};

/// Directory for things that have lost their names.
const FOUND_NAME: &str = "lost+found";
/// No access for others.
const FOUND_MODE: u32 = 0o700;
/// Block size of an object of which only the length is known.
const BLOCK_BYTES: u32 = 16 << 10;

/// The corrections.
#[derive(Default)]
pub(in crate::store) struct RepairedTree {
    /// Files that were lost completely.
    pub lost: Vec<Lost>,
    /// Things that got another name.
    pub moved: Vec<String>,
}

struct TreeRepair<'a> {
    state: &'a mut State,
    next: u64,
    place: CollectionName<'a>,
    found: Option<EntryId>,
    out: RepairedTree,
}

/// Makes the state consistent. `refused` has the entries that it did not accept; `lost` receives the
/// blocks of objects that are created for files of which only the length is known.
pub(in crate::store) fn repair_tree(
    state: &mut State,
    refused: RefusedEntries,
    lost: &mut LostBlocks,
    reasons: &Reasons,
    number: u32,
    place: CollectionName<'_>,
) -> Result<RepairedTree> {
    let next = refused.last_entry().max(state.last_entry()).max(ROOT.0) + 1;
    let mut repair = TreeRepair { state, next, place, found: None, out: RepairedTree::default() };
    repair.root(number)?;
    let (nodes, names) = refused.into_parts();
    repair.nodes(nodes, lost)?;
    repair.names(names)?;
    repair.unnamed()?;
    repair.orphans(lost, reasons)?;
    repair.state.mark_joined();
    repair.state.batch_ended();
    Ok(repair.out)
}

/// Gives objects without a file names in `lost+found`. Removes those without a readable block.
pub(in crate::store) fn name_unowned(
    state: &mut State,
    lost: &LostBlocks,
    reasons: &Reasons,
    place: CollectionName<'_>,
) -> Result<RepairedTree> {
    let next = state.last_entry().max(ROOT.0) + 1;
    let mut repair = TreeRepair { state, next, place, found: None, out: RepairedTree::default() };
    repair.orphans(lost, reasons)?;
    Ok(repair.out)
}

impl TreeRepair<'_> {
    fn fresh(&mut self) -> EntryId {
        self.next += 1;
        EntryId(self.next - 1)
    }

    fn path(&self, node: EntryId) -> String {
        String::from_utf8_lossy(&self.state.path(node)).into_owned()
    }

    /// The owner of recovered files: the owner of the collection if everything in it has the same owner,
    /// else root.
    fn owner(&self) -> Owner {
        let Some(root) = self.state.node(ROOT).map(|root| &root.entry) else { return Owner::default() };
        let is_all = self.state.nodes().all(|node| node.entry.uid == root.uid);
        if is_all { Owner { uid: root.uid, gid: root.gid } } else { Owner::default() }
    }

    fn directory(&mut self, id: EntryId, mode: u32) -> Result<()> {
        let node = NodeEntry::new(id, mode, self.owner(), now_nanoseconds(), NodeType::Directory);
        self.state.apply_entry(Entry::Node(Box::new(node)))
    }

    fn name(&mut self, parent: EntryId, name: &str, node: EntryId) -> Result<()> {
        let entry = self.fresh();
        self.state.apply_entry(Entry::Name { parent, entry, name: name.as_bytes().into(), node })
    }

    /// Ensures the collection's own directory and number.
    fn root(&mut self, number: u32) -> Result<()> {
        if self.state.node(ROOT).is_none() {
            self.directory(ROOT, 0o755)?;
        }
        if self.state.number() == 0 {
            self.state.apply_entry(Entry::Collection { number, created_at: now_seconds(), last_entry: 0 })?;
        }
        Ok(())
    }

    /// The directory for nameless things, created when it is first needed.
    fn found(&mut self) -> Result<EntryId> {
        if let Some(found) = self.found {
            return Ok(found);
        }
        let known = self.state.directory(ROOT).and_then(|root| root.get(FOUND_NAME.as_bytes()));
        let is_ours = |id: &EntryId| {
            let entry = self.state.node(*id).map(|node| &node.entry);
            let is_closed =
                entry.is_some_and(|entry| entry.mode == FOUND_MODE && entry.uid == self.owner().uid);
            is_closed && self.state.directory(*id).is_some()
        };
        if let Some(id) = known.filter(is_ours) {
            self.found = Some(id);
            return Ok(id);
        }
        let id = self.fresh();
        self.directory(id, FOUND_MODE)?;
        let taken = |name: &str, state: &State| {
            state.directory(ROOT).is_some_and(|root| root.get(name.as_bytes()).is_some())
        };
        let mut name = FOUND_NAME.to_owned();
        if taken(&name, self.state) {
            name = format!("{FOUND_NAME}-{}", id.0);
        }
        self.name(ROOT, &name, id)?;
        self.found = Some(id);
        Ok(id)
    }

    /// Gives a node a name in `lost+found`.
    fn rescue(&mut self, what: &str, id: EntryId) -> Result<()> {
        let found = self.found()?;
        let name = unnamed(what, id);
        self.name(found, &name, id)?;
        self.out.moved.push(self.path(id));
        Ok(())
    }

    /// Ensures that every file has all its objects; removes the others.
    fn nodes(&mut self, refused: BTreeMap<EntryId, NodeEntry>, lost: &mut LostBlocks) -> Result<()> {
        let known: Vec<NodeEntry> = self.state.nodes().map(|node| node.entry.clone()).collect();
        let is_whole = |state: &State, entry: &NodeEntry| match &entry.node_type {
            NodeType::File(file) => file.objects.iter().all(|id| state.object(*id).is_some()),
            _ => true,
        };
        let mut all: BTreeMap<EntryId, NodeEntry> = refused;
        // A complete node stays as it was; later entries cannot change it.
        for entry in known {
            if is_whole(self.state, &entry) || !all.contains_key(&entry.id) {
                all.insert(entry.id, entry);
            }
        }
        for file in all.values().filter_map(file_of) {
            self.lost_object(file, lost)?;
        }
        let (whole, broken): (Vec<_>, Vec<_>) =
            all.into_values().partition(|entry| is_whole(self.state, entry));
        // The directory for the tensors of a removed container, and the name of its file.
        let mut places: HashMap<EntryId, (Content, Link)> = HashMap::new();
        for entry in broken {
            let content = file_of(&entry).map(|file| file.content);
            places.extend(content.zip(self.state.links(entry.id).first().cloned()).map(|it| (entry.id, it)));
            self.remove(entry.id)?;
        }
        let (mut alone, mut views) = (Vec::new(), Vec::new());
        let objects = whole.iter().filter_map(|entry| Some((entry.id, file_of(entry)?.objects.clone())));
        let objects: HashMap<EntryId, ObjectIds> = objects.collect();
        for entry in whole {
            let container = file_of(&entry).and_then(|file| file.container);
            let name =
                file_of(&entry).and_then(|file| file.tensor.as_ref()).map(|tensor| tensor.name.clone());
            let is_view = file_of(&entry).is_some_and(|file| file.view.is_some());
            let entry = self.fitting(entry, &objects);
            if container.is_some() && file_of(&entry).is_some_and(|file| file.container.is_none()) {
                if is_view {
                    // Its elements were those of the container.
                    views.extend(container.zip(name));
                    self.remove(entry.id)?;
                    continue;
                }
                alone.extend(container.zip(name).map(|(container, name)| (entry.id, container, name)));
            }
            self.state.apply_entry(Entry::Node(Box::new(entry)))?;
        }
        for (id, container, name) in alone {
            let Some((content, (parent, file))) = places.get(&container) else { continue };
            let name = escape_component(&name_of_tensor(*content, file, &name));
            let is_free = |found: &Directory| found.get(name.as_bytes()).is_none();
            if self.state.directory(*parent).is_some_and(is_free) {
                self.name(*parent, &name, id)?;
                self.out.moved.push(self.path(id));
            }
        }
        for (container, name) in views {
            let above = places.get(&container).map(|(content, (parent, file))| {
                let name = escape_component(&name_of_tensor(*content, file, &name));
                format!("{}/{name}", self.path(*parent))
            });
            let path = above.unwrap_or_else(|| name.to_string());
            self.out.lost.push(lost_whole(path.trim_start_matches('/').to_owned()));
        }
        Ok(())
    }

    /// Creates an object without blocks for a tensor of which only the length is known.
    fn lost_object(&mut self, file: &FileEntry, lost: &mut LostBlocks) -> Result<()> {
        let ([id], Some(tensor)) = (file.objects.as_slice(), &file.tensor) else { return Ok(()) };
        let own = tensor.dtype.bytes_of(tensor.shape.elements());
        // The object of a view has no bytes.
        let Some(bytes) = (if file.view.is_some() { Some(0) } else { own }) else { return Ok(()) };
        if self.state.object(*id).is_some() || bytes.div_ceil(u64::from(BLOCK_BYTES)) >= u64::from(u32::MAX) {
            return Ok(());
        }
        let blocks = bytes.div_ceil(u64::from(BLOCK_BYTES)) as u32;
        if blocks > 0 {
            lost.insert(*id, std::iter::once(0..blocks).collect());
        }
        self.state.apply_entry(Entry::Object(ObjectEntry {
            id: *id,
            tensor: TensorId(0),
            seed: SeedId(0),
            creation: 1,
            dtype: tensor.dtype,
            bytes,
            block_bytes: BLOCK_BYTES,
            extent: None,
            parent: None,
        }))
    }

    /// Adapts an entry to its objects. A tensor without its container becomes a file of its own; a file
    /// with another length than its tensor becomes a plain file.
    fn fitting(&self, mut entry: NodeEntry, objects: &HashMap<EntryId, ObjectIds>) -> NodeEntry {
        let NodeType::File(file) = &mut entry.node_type else { return entry };
        let is_alone = |container: &EntryId| {
            objects.get(container).is_none_or(|all| file.objects.iter().any(|id| !all.contains(id)))
        };
        if file.container.as_ref().is_some_and(is_alone) {
            file.container = None;
            file.content = Content::Tensor;
            if file.view.take().is_some() {
                file.tensor = None;
            }
        }
        if file.records.as_ref().is_some_and(|records| !self.has_parts(records, &file.objects)) {
            file.records = None;
            file.content = Content::Plain;
        }
        let bytes: u64 =
            file.objects.iter().filter_map(|id| self.state.object(*id)).map(|it| it.bytes()).sum();
        let agrees = |tensor: &crate::format::log::catalog::TensorEntry| {
            tensor.dtype.bytes_of(tensor.shape.elements()) == Some(bytes)
        };
        if file.view.is_none() && !file.tensor.as_ref().is_none_or(agrees) {
            file.tensor = None;
        }
        if file.tensor.is_none() && file.content == Content::Tensor {
            file.content = Content::Plain;
        }
        entry
    }

    fn has_parts(&self, records: &Runs, objects: &[ObjectId]) -> bool {
        let found = objects.iter().map(|id| self.state.object(*id).map(|object| object.bytes()));
        found.eq(records.parts().map(|part| Some(records.part_bytes(part))))
    }

    /// Removes a file with a missing object, and its names.
    fn remove(&mut self, id: EntryId) -> Result<()> {
        let names: Vec<_> = self.state.links(id).iter().cloned().collect();
        for (parent, name) in names {
            let above = self.path(parent);
            let name_shown = String::from_utf8_lossy(&name).into_owned();
            let path = if above.is_empty() { name_shown } else { format!("{above}/{name_shown}") };
            self.out.lost.push(lost_whole(path));
            self.state.apply_entry(Entry::NameRemoved { parent, name })?;
        }
        self.state.apply_entry(Entry::NodeRemoved(id))
    }

    /// Adds names that were refused because their directory or their node was missing.
    fn names(&mut self, refused: Vec<RefusedName>) -> Result<()> {
        for (parent, ..) in &refused {
            if self.state.directory(*parent).is_none() {
                // The directory's own name may be among the refused ones.
                self.directory(*parent, 0o700)?;
            }
        }
        for (parent, entry, name, node) in refused {
            let is_taken = self.state.directory(parent).is_some_and(|found| found.get(&name).is_some());
            if self.state.node(node).is_none() {
                let above = self.path(parent);
                let shown = String::from_utf8_lossy(&name).into_owned();
                let path = if above.is_empty() { shown } else { format!("{above}/{shown}") };
                self.out.lost.push(lost_whole(path));
            } else if !is_taken {
                self.state.apply_entry(Entry::Name { parent, entry, name, node })?;
            }
        }
        Ok(())
    }

    /// Removes names that lead nowhere, and names nodes without one.
    fn unnamed(&mut self) -> Result<()> {
        let ids: Vec<EntryId> = self.state.nodes().map(|node| node.entry.id).collect();
        let mut dangling = Vec::new();
        for parent in &ids {
            let Some(directory) = self.state.directory(*parent) else { continue };
            let leads = directory.after(EntryId(0));
            let gone = leads.filter(|(_, _, node)| self.state.node(*node).is_none());
            dangling.extend(gone.map(|(_, name, _)| (*parent, name.clone())));
        }
        for (parent, name) in dangling {
            self.state.apply_entry(Entry::NameRemoved { parent, name })?;
        }
        let mut nameless: Vec<(EntryId, &str)> = Vec::new();
        for node in self.state.nodes() {
            let id = node.entry.id;
            let is_part = node.file().is_some_and(|file| file.container.is_some());
            if id != ROOT && !is_part && self.state.links(id).is_empty() {
                nameless.push((
                    id,
                    if node.entry.node_type == NodeType::Directory { "directory" } else { "file" },
                ));
            }
        }
        nameless.sort_unstable();
        nameless.into_iter().try_for_each(|(id, what)| self.rescue(what, id))
    }

    /// Turns objects without a file into files, if something of them is readable.
    fn orphans(&mut self, lost: &LostBlocks, reasons: &Reasons) -> Result<()> {
        let owned: HashSet<ObjectId> =
            self.state.nodes().filter_map(|node| node.file()).flat_map(|file| file.objects.clone()).collect();
        let mut orphans: Vec<(ObjectId, u32, Dtype)> = Vec::new();
        for object in self.state.objects().filter(|object| !owned.contains(&object.entry.id)) {
            orphans.push((object.entry.id, object.layout().blocks(), object.dtype()));
        }
        orphans.sort_unstable_by_key(|(id, ..)| *id);
        for (id, blocks, _) in orphans {
            let gone: usize = lost.get(&id).into_iter().flatten().map(|range| range.len()).sum();
            if gone >= blocks as usize {
                let record = Record::Delete { object: id };
                self.state.apply_record(&record, 0, &[])?;
                continue;
            }
            let node = self.fresh();
            let found = || format!("found by a repair in {} without a file", self.place);
            let why = reasons.get(&id).cloned().unwrap_or_else(found);
            let file = FileEntry { why: why.into(), ..FileEntry::new(Content::Plain, [id]) };
            let file = NodeType::File(Box::new(file));
            let entry = NodeEntry::new(node, 0o600, self.owner(), now_nanoseconds(), file);
            self.state.apply_entry(Entry::Node(Box::new(entry)))?;
            self.rescue("object", node)?;
        }
        Ok(())
    }
}

fn file_of(entry: &NodeEntry) -> Option<&FileEntry> {
    match &entry.node_type {
        NodeType::File(file) => Some(file),
        _ => None,
    }
}
