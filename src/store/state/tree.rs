//! The tree of names: the entries in the log, and `.tensors` of each directory.
//!
//! A directory `.tensors`, and each directory in it, has a node without an entry in the log. Its number
//! is above those of the log and is assigned when something first leads to it. Numbers are released if their paths
//! lead nowhere any more.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::files::safetensors::{has_codes, parts_of_weights, scheme};
use crate::format::log::catalog::{Content, FileEntry, NUMBER_MAX, NodeEntry};
use crate::model::{EntryId, TENSOR_NAME_PARTS_MAX, TensorNames, escape_component, is_variant};
use crate::store::state::by_id::ByEntry;
use crate::store::state::directory::Directory;
use crate::store::state::links::Links;
use crate::store::state::node::{Link, Node};
use crate::store::state::tensor_names::{DirectoryTensors, Leads, NamedTensor, NamedTensors, Scope};
use crate::store::state::{ROOT, State};

/// The directory of the tensors of a directory's containers.
pub const TENSORS_NAME: &str = ".tensors";
/// The lowest number of a node that the log does not have.
pub const COMPUTED_FIRST: u64 = NUMBER_MAX + 1;
/// The highest such number: an inode number of a control has room for no more.
const COMPUTED_LAST: u64 = COMPUTED_FIRST + (1 << 29) - 1;
/// A tensor's place in a listing is its number; this is added to the number of an entry for its place,
/// so entries follow.
const ENTRIES_AFTER: u64 = 1 << 48;
/// Added to the number of a container's first tensor, its place in a listing of `.tensors`.
const CONTAINERS_AFTER: u64 = 1 << 49;
/// Computed directories get this many numbers before unused ones are released.
const COMPUTED_KEPT: usize = 1024;
/// Names of a container under which its tensors have names: its first ones. Otherwise a log could name many tensors by many
/// links.
const CONTAINER_LINKS_MAX: usize = 256;

/// Names of tensors that are looked at together.
const LOOKED_AT: usize = 256;

/// Whether a name is that of a tensor, or else of a directory that the names of tensors make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IsTensor(pub bool);

/// Whether an entry hides a tensor, or a directory of tensors, of its name.
type Hides<'a> = &'a dyn Fn(&Node, IsTensor) -> bool;

/// A name in a directory: its place in listings, the name, and its node.
pub type ListedName = (u64, Arc<[u8]>, EntryId);

/// A directory that exists because of the names of tensors.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct TensorDirectory {
    /// The directory of the containers.
    directory: EntryId,
    scope: Scope,
    /// The path below, empty or with a slash at its end.
    prefix: Arc<[u8]>,
}

impl TensorDirectory {
    /// The number that it is given while it is free: the same in each daemon of a mount, unless two meet.
    fn first_number(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.directory.0.to_le_bytes());
        match &self.scope {
            Scope::Beside => hasher.update(&[0]),
            Scope::All => hasher.update(&[1]),
            Scope::Container(name) => hasher.update(&[2]).update(&name.len().to_le_bytes()).update(name),
        };
        hasher.update(&self.prefix);
        let digest = hasher.finalize();
        let (first, _) = digest.as_bytes().split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        COMPUTED_FIRST + u64::from_le_bytes(*first) % (COMPUTED_LAST - COMPUTED_FIRST + 1)
    }
}

/// The names in the log, the tensors of containers, and the directories that their names make.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub directories: ByEntry<Directory>,
    pub links: Links,
    /// The tensors of containers, by the directory of the containers.
    tensors: ByEntry<DirectoryTensors>,
    /// The containers with tensors in `tensors`, by these names.
    named: ByEntry<Vec<Link>>,
    /// Containers whose names or tensors the batch being applied has changed.
    renamed: BTreeSet<EntryId>,
    /// The batches that have changed containers so far.
    container_changes: u64,
    /// The containers of which some tensors are codes.
    with_codes: HashSet<EntryId>,
    /// The number of PyTorch checkpoints.
    checkpoints: usize,
    /// By container: its tensors that are parts of quantized weights.
    parts_of_weights: HashMap<EntryId, HashSet<EntryId>>,
    /// The directories that names of tensors make. A last lock.
    computed: Mutex<ComputedDirectories>,
}

/// The computed directories that were looked up.
#[derive(Debug, Default)]
pub(in crate::store) struct ComputedDirectories {
    by_number: HashMap<u64, Arc<TensorDirectory>>,
    numbers: HashMap<Arc<TensorDirectory>, u64>,
    /// The number of directories at which unused ones are released.
    most: usize,
}

/// How [`State::walk`] goes on after a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Into the directory that the name leads to, if it leads to one.
    Enter,
    /// With the next name.
    Pass,
    /// Not at all.
    End,
}

/// A name that [`State::walk`] visits.
pub struct Visited<'a> {
    /// The directory that has the name.
    pub directory: EntryId,
    /// The name.
    pub name: &'a Arc<[u8]>,
    /// The node that it leads to.
    pub node: &'a Arc<Node>,
}

impl State {
    /// A node, also one that the log does not have.
    pub fn shown(&self, id: EntryId) -> Option<Arc<Node>> {
        if id.0 < COMPUTED_FIRST {
            return self.node(id).cloned();
        }
        let computed = self.computed_directory(id)?;
        let above = self.node(computed.directory).filter(|_| self.is_there(&computed))?;
        let entry = NodeEntry { id, ..above.entry.clone() };
        Some(Arc::new(Node { entry, bytes: 0 }))
    }

    /// The node that a name in a directory leads to: an entry, `.tensors`, or, where the setting `plain`
    /// says so, a tensor of the name that no entry has.
    pub fn find(&self, directory: EntryId, name: &[u8]) -> Option<EntryId> {
        let found = self.find_any(directory, name)?;
        let is_there = State::is_computed(directory)
            || name == TENSORS_NAME.as_bytes()
            || self.directory(directory)?.get(name).is_some()
            || self.has_plain_names(directory);
        is_there.then_some(found)
    }

    /// The same in a tree where programs make no names, such as that of a form: a tensor has the name that
    /// no entry has, whatever the setting `plain` says.
    pub fn find_any(&self, directory: EntryId, name: &[u8]) -> Option<EntryId> {
        if let Some(computed) = self.computed_directory(directory) {
            return self.find_computed(&computed, name);
        }
        let entries = self.directory(directory)?;
        if name == TENSORS_NAME.as_bytes() {
            let prefix = Arc::default();
            return Some(self.number_of(TensorDirectory { directory, scope: Scope::All, prefix }));
        }
        entries.get(name).or_else(|| self.find_tensor(directory, name))
    }

    /// The same in a tree that shows some entries only, and gives other names: only an entry that `hides` tensors of its name
    /// comes before one.
    pub fn find_hidden_by(
        &self,
        directory: EntryId,
        name: &[u8],
        hides: &dyn Fn(&Node) -> bool,
    ) -> Option<EntryId> {
        let found = self.find_any(directory, name)?;
        let is_passed = !State::is_computed(found) && !State::is_computed(directory) && {
            let is_entry = self.directory(directory).and_then(|entries| entries.get(name)) == Some(found);
            is_entry && !self.node(found).is_some_and(|node| hides(node))
        };
        if is_passed { self.find_tensor(directory, name).or(Some(found)) } else { Some(found) }
    }

    /// Whether a name in a directory leads to a tensor or a directory of tensors, for want of an entry.
    pub fn is_of_tensors(&self, directory: EntryId, name: &[u8]) -> bool {
        let has_entry = self.directory(directory).is_some_and(|entries| entries.get(name).is_some());
        !has_entry && self.find(directory, name).is_some()
    }

    /// The tensor, or the directory of tensors, with a path that no entry has: of the containers in
    /// the directory, or else in the nearest one above.
    fn find_tensor(&self, directory: EntryId, name: &[u8]) -> Option<EntryId> {
        if self.tree.tensors.is_empty() {
            return None;
        }
        let (mut at, mut path) = (directory, name.to_vec());
        for _ in 0..TENSOR_NAME_PARTS_MAX {
            let tensors = self.tree.tensors.get(&at);
            match tensors.and_then(|tensors| tensors.find(&Scope::Beside, &path)) {
                Some(Leads::Tensor(part)) => return Some(part),
                Some(Leads::Directory) => return Some(self.below(at, Scope::Beside, &path)),
                None => {}
            }
            if at == ROOT {
                break;
            }
            let (above, link) = self.links(at).first()?;
            path = [link, &b"/"[..], &path].concat();
            at = *above;
        }
        None
    }

    fn find_computed(&self, of: &TensorDirectory, name: &[u8]) -> Option<EntryId> {
        let TensorDirectory { directory, scope, prefix } = of;
        let tensors = self.tree.tensors.get(directory)?;
        if let Some(name) = tensors.container(name).filter(|_| *scope == Scope::All && prefix.is_empty()) {
            return Some(self.container_directory(*directory, name));
        }
        let path = [prefix, name].concat();
        match tensors.find(scope, &path)? {
            Leads::Tensor(part) => Some(part),
            Leads::Directory => Some(self.below(*directory, scope.clone(), &path)),
        }
    }

    /// The names in a directory whose places come after `after`, in the order of their places; at most
    /// `most`. Those of tensors are among them in a computed directory, and where `with_tensors`
    /// says so. `None` if it is not a directory.
    pub fn listed(
        &self,
        directory: EntryId,
        after: u64,
        with_tensors: bool,
        most: usize,
    ) -> Option<Vec<ListedName>> {
        self.listed_hidden_by(directory, after, with_tensors.then_some(&|_, _| true), most)
    }

    /// The same with tensors that no entry `hides`. Without `hides` no tensors are listed.
    pub fn listed_hidden_by(
        &self,
        directory: EntryId,
        after: u64,
        hides: Option<Hides<'_>>,
        most: usize,
    ) -> Option<Vec<ListedName>> {
        if let Some(computed) = self.computed_directory(directory) {
            return Some(self.listed_computed(&computed, after, most));
        }
        let entries = self.directory(directory)?;
        if let Some(hides) = hides
            && after < ENTRIES_AFTER
        {
            let found = self.listed_beside(directory, after, hides, most);
            if !found.is_empty() {
                return Some(found);
            }
        }
        let later = entries.after(EntryId(after.saturating_sub(ENTRIES_AFTER))).take(most);
        Some(later.map(|(entry, name, node)| (entry.0 + ENTRIES_AFTER, name.clone(), node)).collect())
    }

    /// The tensors, and directories of tensors, for the names in a directory that no entry hides.
    fn listed_beside(
        &self,
        directory: EntryId,
        after: u64,
        hides: Hides<'_>,
        most: usize,
    ) -> Vec<ListedName> {
        let mut after = after;
        loop {
            let mut found = self.tensors_beside(directory, after, most);
            let Some((last, ..)) = found.last() else { return found };
            after = *last;
            found.retain(|(_, name, node)| self.leads_to(directory, name, *node, hides));
            if !found.is_empty() {
                return found;
            }
        }
    }

    /// The names of tensors in a directory that other names hide; at most `most`.
    pub fn hidden_beside(&self, directory: EntryId, hides: Hides<'_>, most: usize) -> Vec<ListedName> {
        let (mut after, mut hidden) = (0, Vec::new());
        while hidden.len() < most && !State::is_computed(directory) {
            let mut found = self.tensors_beside(directory, after, LOOKED_AT);
            let Some((last, ..)) = found.last() else { break };
            after = *last;
            found.retain(|(_, name, node)| {
                !State::is_computed(*node) && !self.leads_to(directory, name, *node, hides)
            });
            hidden.append(&mut found);
        }
        hidden.truncate(most);
        hidden
    }

    /// Whether a name in a directory leads to a tensor, or a directory of tensors, past entries that do not hide it.
    fn leads_to(&self, directory: EntryId, name: &[u8], node: EntryId, hides: Hides<'_>) -> bool {
        let is_tensor = IsTensor(!State::is_computed(node));
        self.find_hidden_by(directory, name, &|entry| hides(entry, is_tensor)) == Some(node)
    }

    /// The same, including names that entries or nearer containers have.
    fn tensors_beside(&self, directory: EntryId, after: u64, most: usize) -> Vec<ListedName> {
        let mut found = Vec::new();
        let (mut at, mut prefix) = (directory, Vec::new());
        for _ in 0..TENSOR_NAME_PARTS_MAX {
            if let Some(tensors) = self.tree.tensors.get(&at) {
                let listed = tensors.list(&Scope::Beside, &prefix, after, most);
                found.extend(self.numbered(at, &Scope::Beside, &prefix, listed));
            }
            let Some((above, link)) = self.links(at).first().filter(|_| at != ROOT) else { break };
            prefix = [link, &b"/"[..], &prefix].concat();
            at = *above;
        }
        found.sort_by_key(|(place, ..)| *place);
        found.truncate(most);
        found
    }

    fn listed_computed(&self, of: &TensorDirectory, after: u64, most: usize) -> Vec<ListedName> {
        let TensorDirectory { directory, scope, prefix } = of;
        let Some(tensors) = self.tree.tensors.get(directory) else { return Vec::new() };
        let listed = tensors.list(scope, prefix, after, most);
        if !listed.is_empty() || *scope != Scope::All || !prefix.is_empty() {
            return self.numbered(*directory, scope, prefix, listed);
        }
        let containers = tensors.containers_with_taken_names();
        let placed = containers.map(|(first, name)| (first.0 + CONTAINERS_AFTER, name));
        let later = placed.filter(|(place, _)| *place > after).take(most);
        later.map(|(place, name)| (place, name.clone(), self.container_directory(*directory, name))).collect()
    }

    fn numbered(
        &self,
        directory: EntryId,
        scope: &Scope,
        prefix: &[u8],
        listed: Vec<(u64, Arc<[u8]>, Leads)>,
    ) -> Vec<ListedName> {
        let node = |(place, name, leads): (u64, Arc<[u8]>, Leads)| match leads {
            Leads::Tensor(part) => (place, name, part),
            Leads::Directory => {
                let path = [prefix, &name].concat();
                (place, name, self.below(directory, scope.clone(), &path))
            }
        };
        listed.into_iter().map(node).collect()
    }

    /// The parent directory, also of a computed one.
    pub fn above(&self, id: EntryId) -> Option<EntryId> {
        let Some(computed) = self.computed_directory(id) else {
            return self.links(id).first().map(|(above, _)| *above);
        };
        let TensorDirectory { directory, scope, prefix } = &*computed;
        let shorter = prefix.strip_suffix(b"/").unwrap_or_default();
        let end = shorter.iter().rposition(|byte| *byte == b'/');
        Some(match (end, scope) {
            (Some(end), _) => self.below(*directory, scope.clone(), shorter.get(..end).unwrap_or_default()),
            (None, Scope::Beside) => *directory,
            (None, Scope::Container(name)) if !prefix.is_empty() => {
                self.container_directory(*directory, name)
            }
            (None, Scope::All) if prefix.is_empty() => *directory,
            (None, Scope::All | Scope::Container(_)) => {
                let all =
                    TensorDirectory { directory: *directory, scope: Scope::All, prefix: Arc::default() };
                self.number_of(all)
            }
        })
    }

    /// Whether a node is computed: names of tensors make it, and the log does not have it.
    pub fn is_computed(id: EntryId) -> bool {
        id.0 >= COMPUTED_FIRST
    }

    /// The directory in the log, and the names of the directories below it, for the place of a computed
    /// directory. `None` for one in `.tensors`.
    pub fn place_beside(&self, id: EntryId) -> Option<(EntryId, Vec<Vec<u8>>)> {
        let computed = self.computed_directory(id).filter(|computed| computed.scope == Scope::Beside)?;
        let names = computed.prefix.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        Some((computed.directory, names.map(<[u8]>::to_vec).collect()))
    }

    /// Visits each name below a directory; `visit` tells how to go on. Each directory is entered once, since a damaged
    /// catalog could contain a cycle of them.
    pub fn walk<'a>(&'a self, directory: EntryId, visit: &mut dyn FnMut(Visited<'a>) -> Walk) {
        let mut waiting = vec![directory];
        let mut seen = HashSet::from([directory]);
        while let Some(directory) = waiting.pop() {
            let Some(names) = self.directory(directory) else { continue };
            for (_, name, id) in names.after(EntryId(0)) {
                let Some(node) = self.node(id) else { continue };
                match visit(Visited { directory, name, node }) {
                    Walk::Enter if self.directory(id).is_some() && seen.insert(id) => waiting.push(id),
                    Walk::Enter | Walk::Pass => {}
                    Walk::End => return,
                }
            }
        }
    }

    /// The path of a name in a directory, below the collection.
    pub fn path_of_name(&self, directory: EntryId, name: &[u8]) -> Vec<u8> {
        joined(&[&self.path(directory), name])
    }

    /// The path of a node below the collection, by its first name; empty for the collection itself. A
    /// tensor of a container has a path that leads to it.
    pub fn path(&self, id: EntryId) -> Vec<u8> {
        if let Some(computed) = self.computed_directory(id) {
            let TensorDirectory { directory, scope, prefix } = &*computed;
            let (all, name): (&[u8], &[u8]) = match scope {
                Scope::Beside => (b"", b""),
                Scope::All => (TENSORS_NAME.as_bytes(), b""),
                Scope::Container(name) => (TENSORS_NAME.as_bytes(), name),
            };
            let below = prefix.strip_suffix(b"/").unwrap_or_default();
            return joined(&[&self.entry_path(*directory), all, name, below]);
        }
        let container = self.node(id).and_then(|node| node.file()).and_then(|file| file.container);
        container.map_or_else(|| self.entry_path(id), |container| self.tensor_path(container, id, true))
    }

    /// The path of a node below the collection; that of a tensor of a container leads through `.tensors`.
    pub fn path_to_write(&self, id: EntryId) -> Vec<u8> {
        let container = self.node(id).and_then(|node| node.file()).and_then(|file| file.container);
        container.map_or_else(|| self.path(id), |container| self.tensor_path(container, id, false))
    }

    fn entry_path(&self, id: EntryId) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut at = id;
        // A damaged catalog could have a cycle of directories.
        while at != ROOT && parts.len() <= self.nodes.len() {
            let Some((parent, name)) = self.links(at).first() else { break };
            parts.push(name);
            at = *parent;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// The path of a tensor: its plain name where it `may_be_plain` and leads to it, otherwise that in
    /// `.tensors`, or in the directory there of its container.
    fn tensor_path(&self, container: EntryId, part: EntryId, may_be_plain: bool) -> Vec<u8> {
        let found = self.links(container).first().and_then(|(directory, name)| {
            let tensors = self.tree.tensors.get(directory)?.tensors_of(name);
            let place = tensors.binary_search_by_key(&part, |tensor| tensor.part).ok()?;
            Some((*directory, name, &tensors.get(place)?.path))
        });
        let Some((directory, name, path)) = found else { return self.entry_path(container) };
        let above = self.entry_path(directory);
        let mut names = path.split(|byte| *byte == b'/');
        let mut leads = || names.try_fold(directory, |at, name| self.find(at, name));
        if may_be_plain && leads() == Some(part) {
            return joined(&[&above, path]);
        }
        let all = self.tree.tensors.get(&directory);
        let is_first = all.is_some_and(|all| all.find(&Scope::All, path) == Some(Leads::Tensor(part)));
        let of_container: &[u8] = if is_first { b"" } else { name };
        joined(&[&above, TENSORS_NAME.as_bytes(), of_container, path])
    }

    /// A tensor's own name: from its container's header; from the name of the file for `.npy` and
    /// `.cgeb` files, and for a tensor that is a file.
    pub fn tensor_name(&self, node: &Node) -> Option<Box<str>> {
        let file = node.file()?;
        let tensor = file.tensor.as_ref()?;
        let container = file.container.and_then(|id| self.node(id));
        let content = container.and_then(|node| node.file()).map(|file| file.content);
        let link = container.and_then(|node| self.links(node.entry.id).first());
        Some(match content.zip(link) {
            Some((content, (_, file))) => name_of_tensor(content, file, &tensor.name).into(),
            None => tensor.name.clone(),
        })
    }

    /// A tensor's own name after the path of its directory: that of its container, or of its file.
    pub fn own_path(&self, node: &Node) -> Option<String> {
        let name = self.tensor_name(node)?;
        let file = node.file().and_then(|file| file.container).unwrap_or(node.entry.id);
        let path = self.entry_path(file);
        let end = path.iter().rposition(|byte| *byte == b'/');
        let above = end.and_then(|end| path.get(..end)).map(String::from_utf8_lossy);
        Some(above.map_or_else(|| name.to_string(), |above| format!("{above}/{name}")))
    }

    /// The names of a container's tensors whose paths lead to others: these tensors open only below the
    /// container's directory in `.tensors`.
    pub fn taken_names(&self, container: EntryId) -> Vec<String> {
        let Some((directory, name)) = self.links(container).first() else { return Vec::new() };
        let taken = self.tree.tensors.get(directory).into_iter().flat_map(|tensors| tensors.taken(name));
        taken.map(|tensor| String::from_utf8_lossy(&tensor.path).into_owned()).collect()
    }

    /// Whether some tensors of a container are codes, as far as their names and types tell.
    pub fn has_codes(&self, container: EntryId) -> bool {
        self.tree.with_codes.contains(&container)
    }

    /// Whether a tensor is codes of a quantized weight, or scales of them, as far as the names and types of the
    /// container's tensors tell.
    pub fn is_part_of_weight(&self, tensor: EntryId) -> bool {
        let container = self.node(tensor).and_then(|node| node.file()?.container);
        let parts = container.and_then(|container| self.tree.parts_of_weights.get(&container));
        parts.is_some_and(|parts| parts.contains(&tensor))
    }

    /// The layouts of a container's quantized weights, or of one tensor of it. `None` for one that has none.
    pub fn layouts_of_weights(&self, node: EntryId) -> Option<String> {
        let file = self.node(node)?.file()?;
        let container = file.container.unwrap_or(node);
        let parts = self.tree.parts_of_weights.get(&container)?;
        if file.container.is_some() && !parts.contains(&node) {
            return None;
        }
        let tensors = parts.iter().filter_map(|part| self.node(*part)?.file()?.tensor.as_ref());
        let found = scheme(tensors.map(|tensor| (&*tensor.name, tensor.dtype, &tensor.shape)));
        Some(found.unwrap_or_else(|| "codes and scales of a layout without a name".to_owned()))
    }

    /// Notes that the node of a file was added, changed or removed. The names of tensors follow at the
    /// end of the batch.
    pub(super) fn note_file(&mut self, before: Option<&FileEntry>, id: EntryId, after: Option<&FileEntry>) {
        let name = |file: &FileEntry| file.tensor.as_ref().map(|tensor| tensor.name.clone());
        let of = |file: &FileEntry| {
            let elements = file.tensor.as_ref().map(|tensor| (tensor.dtype, tensor.shape.clone()));
            (file.content, file.container.map(|container| (container, name(file), elements)))
        };
        let is_container = |file: &&FileEntry| file.content.is_container();
        let objects = |file: Option<&FileEntry>| file.filter(is_container).map(|file| file.objects.clone());
        let count =
            |file: Option<&FileEntry>| usize::from(file.is_some_and(|file| file.content == Content::Torch));
        self.tree.checkpoints = (self.tree.checkpoints + count(after)).saturating_sub(count(before));
        if before.map(of) != after.map(of) || objects(before) != objects(after) {
            let is_container = [before, after].into_iter().flatten().any(|file| file.content.is_container());
            self.tree.renamed.extend(is_container.then_some(id));
            self.tree.renamed.extend([before, after].into_iter().flatten().filter_map(|file| file.container));
        }
    }

    /// The number of batches that have changed containers: their names, their tensors, or which indexes name them.
    pub fn container_changes(&self) -> u64 {
        self.tree.container_changes
    }

    /// Whether the collection has PyTorch checkpoints.
    pub fn has_checkpoints(&self) -> bool {
        self.tree.checkpoints > 0
    }

    /// Notes that a name of a node was added or removed.
    pub(super) fn note_name(&mut self, id: EntryId) {
        if self.is_shard_index(id) {
            self.note_shards(id);
        }
        let is_container =
            self.node(id).and_then(|node| node.file()).is_some_and(|file| file.content.is_container());
        if is_container || self.tree.named.contains_key(&id) {
            self.tree.renamed.insert(id);
        }
    }

    /// Names the tensors of the containers that the batch has changed.
    pub(super) fn name_tensors(&mut self) {
        let mut renamed = std::mem::take(&mut self.tree.renamed);
        renamed.extend(self.update_shard_indexes());
        self.tree.container_changes += u64::from(!renamed.is_empty());
        // All names go before any comes: a container may have the name that another one had.
        for id in &renamed {
            self.tree.with_codes.remove(id);
            self.tree.parts_of_weights.remove(id);
            for (directory, name) in self.tree.named.remove(id).iter().flatten() {
                let Some(tensors) = self.tree.tensors.get_mut(directory) else { continue };
                tensors.remove(name);
                if tensors.is_empty() {
                    self.tree.tensors.remove(directory);
                }
            }
        }
        let mut named = Vec::new();
        for id in renamed {
            let Some(file) = self.node(id).and_then(|node| node.file()) else { continue };
            let (tensors, is_by_file) = (self.named_tensors(id, file), is_named_by_file(file.content));
            let (has_codes, parts) = (self.has_code_tensors(file), self.weight_parts(file));
            let links = self.links(id).iter().take(CONTAINER_LINKS_MAX).cloned().collect::<Vec<_>>();
            if tensors.is_empty() || links.is_empty() {
                continue;
            }
            if has_codes {
                self.tree.with_codes.insert(id);
            }
            if !parts.is_empty() {
                self.tree.parts_of_weights.insert(id, parts);
            }
            for (directory, name) in &links {
                let tensors = if is_by_file {
                    by_file_name(name, &tensors)
                } else {
                    self.marked(*directory, name, tensors.clone())
                };
                named.push((*directory, name.clone(), tensors));
            }
            self.tree.named.insert(id, links);
        }
        // In the order of the tensors of one path, each of which is added behind the others.
        named.sort_by_cached_key(|(_, name, _)| (is_variant(name), name.clone()));
        for (directory, name, tensors) in named {
            self.tree.tensors.entry(directory).or_default().insert(&name, tensors);
        }
    }

    fn has_code_tensors(&self, container: &FileEntry) -> bool {
        let tensors = self.parts(container).filter_map(|part| part.file()?.tensor.as_ref());
        container.content.is_container()
            && has_codes(tensors.map(|tensor| (&*tensor.name, tensor.dtype, &tensor.shape)))
    }

    /// The tensors of a container that are parts of quantized weights. The types of GGUF have their scales inside.
    fn weight_parts(&self, container: &FileEntry) -> HashSet<EntryId> {
        use Content::{Npz, Onnx, Safetensors, Torch};
        if !matches!(container.content, Safetensors | Torch | Npz | Onnx) {
            return HashSet::new();
        }
        let tensors =
            || self.parts(container).filter_map(|node| Some((node.entry.id, node.file()?.tensor.as_ref()?)));
        let named = tensors().map(|(_, tensor)| (&*tensor.name, tensor.dtype, &tensor.shape));
        let are_parts = parts_of_weights(named);
        tensors().zip(are_parts).filter(|(_, is_part)| *is_part).map(|((id, _), _)| id).collect()
    }

    fn named_tensors(&self, id: EntryId, file: &FileEntry) -> NamedTensors {
        let parts = self.parts(file).filter(|_| file.content.is_container()).filter_map(|part| {
            let file = part.file().filter(|file| file.container == Some(id))?;
            Some((part.entry.id, &*file.tensor.as_ref()?.name))
        });
        let mut parts: Vec<(EntryId, &str)> = parts.collect();
        parts.sort_unstable();
        parts.dedup();
        let named = |(part, path): (EntryId, String)| {
            let path = path.into_bytes().into();
            NamedTensor { part, path, is_in_index: false }
        };
        if is_named_by_file(file.content) {
            return parts.into_iter().map(|(part, name)| named((part, name.to_owned()))).collect();
        }
        match TensorNames::new(parts.iter().map(|(_, name)| *name)) {
            Ok(names) => {
                parts.iter().map(|(part, name)| named((*part, names.path(name).join("/")))).collect()
            }
            Err(error) => {
                log::warn!("a container whose tensors have no names: {error}");
                Arc::default()
            }
        }
    }

    fn computed_directory(&self, id: EntryId) -> Option<Arc<TensorDirectory>> {
        if id.0 < COMPUTED_FIRST {
            return None;
        }
        self.tree.computed.lock().by_number.get(&id.0).cloned()
    }

    /// Whether a path leads to a computed directory.
    fn is_there(&self, of: &TensorDirectory) -> bool {
        let tensors = self.tree.tensors.get(&of.directory);
        let has_container = |name: &Arc<[u8]>| tensors.is_some_and(|all| all.container(name).is_some());
        match &of.scope {
            Scope::All if of.prefix.is_empty() => self.directory(of.directory).is_some(),
            Scope::Container(name) if of.prefix.is_empty() => has_container(name),
            scope => tensors.is_some_and(|all| all.has_below(scope, &of.prefix)),
        }
    }

    fn below(&self, directory: EntryId, scope: Scope, path: &[u8]) -> EntryId {
        let prefix = [path, b"/"].concat().into();
        self.number_of(TensorDirectory { directory, scope, prefix })
    }

    fn container_directory(&self, directory: EntryId, name: &Arc<[u8]>) -> EntryId {
        let scope = Scope::Container(name.clone());
        self.number_of(TensorDirectory { directory, scope, prefix: Arc::default() })
    }

    /// Removes the numbers of computed directories, which the kernel may know, and returns them.
    pub(in crate::store) fn take_computed(&mut self) -> ComputedDirectories {
        std::mem::take(self.tree.computed.get_mut())
    }

    /// Gives the computed directories the numbers that they had.
    pub(in crate::store) fn restore_computed(&mut self, computed: ComputedDirectories) {
        *self.tree.computed.get_mut() = computed;
    }

    /// The number of a computed directory.
    fn number_of(&self, of: TensorDirectory) -> EntryId {
        let mut computed = self.tree.computed.lock();
        if let Some(number) = computed.numbers.get(&of) {
            return EntryId(*number);
        }
        if computed.by_number.len() >= computed.most {
            computed.by_number.retain(|_, known| self.is_there(known));
            let ComputedDirectories { by_number, numbers, .. } = &mut *computed;
            numbers.retain(|_, number| by_number.contains_key(number));
            computed.most = (computed.by_number.len() * 2).max(COMPUTED_KEPT);
        }
        let first = of.first_number();
        let mut all = (first..=COMPUTED_LAST).chain(COMPUTED_FIRST..first);
        let number = all.find(|number| !computed.by_number.contains_key(number)).unwrap_or(first);
        let of = Arc::new(of);
        computed.by_number.insert(number, of.clone());
        computed.numbers.insert(of, number);
        EntryId(number)
    }
}

/// Whether the tensors of a container have its file's name.
fn is_named_by_file(container: Content) -> bool {
    matches!(container, Content::Npy | Content::Cgeb)
}

/// The name of a tensor with this own name in a container of this file name.
pub(in crate::store) fn name_of_tensor(container: Content, file: &[u8], own: &str) -> String {
    if is_named_by_file(container) {
        format!("{}{own}", String::from_utf8_lossy(stem(file)))
    } else {
        own.to_owned()
    }
}

/// A name without its suffix.
fn stem(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|byte| *byte == b'.').filter(|end| *end > 0);
    end.and_then(|end| name.get(..end)).unwrap_or(name)
}

/// The tensors of a container that have the name of its file before their own.
fn by_file_name(name: &[u8], tensors: &[NamedTensor]) -> NamedTensors {
    let named = |tensor: &NamedTensor| {
        let path = [stem(name), &tensor.path].concat();
        let path = match String::from_utf8(path) {
            Ok(text) => escape_component(&text).into_bytes(),
            Err(bytes) => bytes.into_bytes(),
        };
        NamedTensor { part: tensor.part, path: path.into(), is_in_index: false }
    };
    tensors.iter().map(named).collect()
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    let parts: Vec<&[u8]> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join(&b'/')
}
