//! `.as/merged` of a collection: the collection with the adapter of another directory added.
//!
//! `.as/merged/ADAPTER` names a collection of the same tenant whose root has an adapter, or a directory below one:
//! `COLLECTION:DIRECTORY:DIRECTORY`. A base and the files of an adapter are a pair. In this mount each pair has a number,
//! which takes the place of a collection's number in inode numbers with the form's number [`MERGED_NUMBER`]. So a file
//! whose adapter is replaced has another inode number, and the pages of the old one are not shown.
//!
//! The kernel may have pages of a merged file. [`Vfs::note_merged`] notes it for the base and for both files of the adapter,
//! so a change of any of them invalidates the pages.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::files::adapter_config::CONFIG_NAME;
use crate::format::log::catalog::NodeType;
use crate::model::{ENTER_BITS, EntryId, Error, ErrorKind, NAME_BYTES_MAX, READ_BITS, Result};
use crate::store::{Collection, Node, ROOT, State, Walk};
use crate::vfs::form::{
    self, Adapter, AdapterFiles, Form, Item, MERGED_NAME, MERGED_NUMBER, Merge, Recipe, files_in,
};
use crate::vfs::tree::forms::{ENTER_CLASSES, READ_CLASSES, allowed};
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::location::{FormView, Located, no_name};
use crate::vfs::tree::vfs::Vfs;

/// Stands for `/` in the name of an adapter's directory.
const SEPARATOR: u8 = b':';
/// Numbers of pairs are below this one, as those of collections are.
const NUMBER_END: u32 = (1 << 23) - 16;
/// Adapters that are kept open.
const KEPT_MAX: usize = 8;

/// A name in a directory of forms: its place, the name and the view.
type ListedForm = (u64, Vec<u8>, FormView);

/// A base, by the number of its collection, and the adapter that is added. Without an adapter, the directory of all.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pair {
    base: u32,
    adapter: Option<AdapterFiles>,
}

/// The pairs that were looked up, and some adapters.
#[derive(Default)]
pub(super) struct Merges {
    pairs: Mutex<HashMap<u32, Pair>>,
    /// The one that was used last comes last.
    adapters: Mutex<Vec<Arc<Adapter>>>,
}

impl Merges {
    /// The number of a pair: a hash, or the next number that no other pair has.
    fn merge(&self, pair: Pair) -> Result<Merge> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&pair.base.to_le_bytes());
        if let Some(AdapterFiles { collection, directory, config, weights }) = pair.adapter {
            hasher.update(&collection.to_le_bytes());
            for id in [directory, config, weights] {
                hasher.update(&id.0.to_le_bytes());
            }
        }
        let digest = hasher.finalize();
        let (first, _) = digest.as_bytes().split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let mut number = u32::from_le_bytes(*first) % (NUMBER_END - 1) + 1;
        let mut pairs = self.pairs.lock();
        if pairs.len() >= NUMBER_END as usize / 2 {
            return Err(Error::unsupported(
                "more than 2^22 bases with an adapter were looked up; mount again",
            ));
        }
        while pairs.get(&number).is_some_and(|known| *known != pair) {
            number = number % (NUMBER_END - 1) + 1;
        }
        pairs.insert(number, pair);
        Ok(Merge { number, adapter: pair.adapter })
    }

    fn pair(&self, number: u32) -> Option<Pair> {
        self.pairs.lock().get(&number).copied()
    }

    /// An adapter in its present state.
    fn adapter(&self, collection: &Arc<Collection>, files: AdapterFiles) -> Result<Arc<Adapter>> {
        let kept = self.adapters.lock().clone();
        let adapter = match kept.into_iter().find(|known| known.is_current(collection, files)) {
            Some(known) => known,
            None => Arc::new(Adapter::open(collection, files)?),
        };
        let mut adapters = self.adapters.lock();
        adapters.retain(|known| !known.is_of(files));
        if adapters.len() >= KEPT_MAX {
            adapters.remove(0);
        }
        adapters.push(adapter.clone());
        Ok(adapter)
    }
}

impl Vfs {
    /// The directory of all adapters of a base.
    fn all_merges(&self, collection: &Arc<Collection>) -> Result<FormView> {
        let (base, root) = {
            let state = collection.state();
            (state.number(), state.node(ROOT).cloned())
        };
        let root = root.ok_or_else(|| Error::corrupt("a collection without a node"))?;
        let merge = self.merges.merge(Pair { base, adapter: None })?;
        let of = Some((Form::Merged(merge), Item::Node(root)));
        Ok(FormView { collection: collection.clone(), of })
    }

    /// A node of a base with an adapter.
    fn merged(&self, base: &Arc<Collection>, adapter: AdapterFiles, node: Arc<Node>) -> Result<FormView> {
        let number = base.state().number();
        let merge = self.merges.merge(Pair { base: number, adapter: Some(adapter) })?;
        Ok(FormView { collection: base.clone(), of: Some((Form::Merged(merge), Item::Node(node))) })
    }

    /// The view of an inode number of the form. `None` if the base or the adapter is gone, and for a file whose adapter was
    /// replaced.
    pub(super) fn merged_view(&self, number: u32, node: EntryId) -> Option<FormView> {
        let Pair { base, adapter } = self.merges.pair(number)?;
        let base = self.numbered(base).ok()??;
        let Some(adapter) = adapter else { return self.all_merges(&base).ok() };
        let collection = self.numbered(adapter.collection).ok()??;
        let now = files_in(&collection.state(), adapter.directory)?;
        let node = base.state().shown(node)?;
        let is_same = now == adapter || node.entry.node_type == NodeType::Directory;
        is_same.then(|| self.merged(&base, now, node).ok())?
    }

    /// The collection of an adapter.
    fn collection_of(&self, files: AdapterFiles) -> Result<Arc<Collection>> {
        let gone = || Error::new(ErrorKind::Gone, "the collection of the adapter is gone");
        self.numbered(files.collection)?.ok_or_else(gone)
    }

    /// The adapter of a view, in its present state.
    fn adapter_of(&self, files: AdapterFiles) -> Result<Arc<Adapter>> {
        self.merges.adapter(&self.collection_of(files)?, files)
    }

    /// Looks up a name in the directory of forms, or of all adapters.
    pub(super) fn merge_named(&self, view: &FormView, name: &[u8]) -> Option<Result<FormView>> {
        match &view.of {
            None => (name == MERGED_NAME.as_bytes()).then(|| self.all_merges(&view.collection)),
            Some((Form::Merged(Merge { adapter: None, .. }), _)) => Some(self.adapter_named(view, name)),
            Some(_) => None,
        }
    }

    fn adapter_named(&self, view: &FormView, name: &[u8]) -> Result<FormView> {
        let root = || {
            let root = view.collection.state().node(ROOT).cloned();
            root.ok_or_else(|| Error::corrupt("a collection without a node"))
        };
        // A label may contain the separator, so each part of the name is tried.
        let ends = name.iter().enumerate().filter(|(_, byte)| **byte == SEPARATOR).map(|(at, _)| at);
        for end in [name.len()].into_iter().chain(ends) {
            let (label, path) = name.split_at_checked(end).unwrap_or((name, &[]));
            let Ok(label) = std::str::from_utf8(label) else { continue };
            let collection = match self.collection_named(view.collection.tenant(), label) {
                Ok(collection) => collection,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let state = collection.state();
            let mut parts = path.split(|byte| *byte == SEPARATOR).skip(1);
            let directory = parts.try_fold(ROOT, |at, part| state.directory(at)?.get(part));
            let found = directory.and_then(|directory| files_in(&state, directory));
            drop(state);
            if let Some(files) = found {
                return self.merged(&view.collection, files, root()?);
            }
        }
        Err(no_name(name))
    }

    /// Lists the adapters that fit a base after a place, each with its place. Opens the collections of the tenant.
    pub(super) fn merges_after(&self, view: &FormView, after: u64) -> Result<Option<Vec<ListedForm>>> {
        let Some((Form::Merged(Merge { adapter: None, .. }), Item::Node(root))) = &view.of else {
            return Ok(None);
        };
        let base = &view.collection;
        let mut found = Vec::new();
        for label in self.store().collections(base.tenant())? {
            let collection = match self.collection_named(base.tenant(), &label) {
                Ok(collection) => collection,
                Err(error) => {
                    log::debug!("{label} is left out of the adapters: {error}");
                    continue;
                }
            };
            let adapters = adapters_in(&collection.state());
            for (path, files) in adapters {
                let mut name = label.clone().into_bytes();
                for part in &path {
                    name.push(SEPARATOR);
                    name.extend_from_slice(part);
                }
                if name.len() > NAME_BYTES_MAX || path.iter().any(|part| part.contains(&SEPARATOR)) {
                    continue;
                }
                // Directories that not everybody who may enter the base may enter have no place in its listing.
                let all = allowed(&root.entry, &root.entry, ENTER_CLASSES);
                let is_open = self.bits_above_adapter(files, root) & all == all;
                let fits = || self.adapter_of(files).and_then(|adapter| form::fits(base, &adapter));
                if is_open && fits().is_ok() {
                    let view = self.merged(base, files, root.clone())?;
                    let number = match view.number() {
                        Place::Form { collection, .. } => u64::from(collection),
                        _ => continue,
                    };
                    found.push((number, name, view));
                }
            }
        }
        found.retain(|(place, ..)| *place > after);
        found.sort_by_key(|(place, ..)| *place);
        Ok(Some(found))
    }

    /// The entry of the form in the directory of forms.
    pub(super) fn merges_entry(&self, collection: &Arc<Collection>) -> Result<(u64, Vec<u8>, FormView)> {
        Ok((u64::from(MERGED_NUMBER), MERGED_NAME.as_bytes().to_vec(), self.all_merges(collection)?))
    }

    /// The directory above a view of the form, if it is a root.
    pub(super) fn above_merged(&self, view: &FormView) -> Option<Result<Located>> {
        let Some((Form::Merged(Merge { adapter, .. }), Item::Node(node))) = &view.of else { return None };
        match adapter {
            None => Some(Ok(Located::Form(FormView { collection: view.collection.clone(), of: None }))),
            Some(_) => (node.entry.id == ROOT).then(|| self.all_merges(&view.collection).map(Located::Form)),
        }
    }

    /// The recipe of a file of the form.
    pub(super) fn merged_recipe(&self, view: &FormView) -> Option<Result<Recipe>> {
        let (files, item) = adapter_files(view)?;
        Some(form::plan_merged(&view.collection, self.adapter_of(files), item))
    }

    /// The adapter of a file of the form, for its content.
    pub(super) fn adapter_of_view(&self, view: &FormView) -> Option<Result<Arc<Adapter>>> {
        Some(self.adapter_of(adapter_files(view)?.0))
    }

    /// Why a file or directory of the form shows no sums.
    pub fn why_not_merged(&self, view: &FormView) -> Option<String> {
        let (files, item) = adapter_files(view)?;
        let adapter = self.adapter_of(files);
        let is_file = item.node().is_some_and(|node| node.file().is_some());
        let done = match adapter {
            Ok(adapter) if is_file => form::plan_merged(&view.collection, Ok(adapter), item).map(drop),
            Ok(adapter) => form::fits(&view.collection, &adapter),
            Err(error) => Err(error),
        };
        done.err().map(|error| error.to_string())
    }

    /// The nodes that the bytes of a file of a form follow from, as their logs now record them.
    pub fn nodes_of_form(&self, view: &FormView) -> Vec<Option<Arc<Node>>> {
        let Some((_, item)) = &view.of else { return Vec::new() };
        let own = item.node().and_then(|node| view.collection.state().node(node.entry.id).cloned());
        let mut found = vec![own];
        if let Some((files, _)) = adapter_files(view) {
            let collection = self.collection_of(files).ok();
            let node = |id| collection.as_ref().and_then(|collection| collection.state().node(id).cloned());
            found.extend([node(files.config), node(files.weights)]);
        }
        found
    }

    /// The inode numbers of the files that a file of the form follows from, by the number of the pair.
    pub(super) fn sources_of_merged(&self, place: Place) -> Vec<Ino> {
        let Place::Form { collection, form: MERGED_NUMBER, node } = place else { return Vec::new() };
        let Some(pair) = self.merges.pair(collection) else { return Vec::new() };
        let own = Ino::of(Place::Node { collection: pair.base, node });
        let files = pair.adapter.map(|files| {
            [files.config, files.weights]
                .map(|node| Ino::of(Place::Node { collection: files.collection, node }))
        });
        own.into_iter().chain(files.into_iter().flatten().flatten()).collect()
    }

    /// Notes that the kernel may cache pages of a file of the form.
    pub(super) fn note_merged(&self, place: Place, ino: Ino) {
        for source in self.sources_of_merged(place) {
            if let Place::Node { collection, node } = source.place() {
                self.forms.note(collection, node, ino);
            }
        }
    }

    /// Handles a forget of the kernel for a file of the form.
    pub(super) fn forget_merged(&self, ino: Ino) {
        for source in self.sources_of_merged(ino.place()) {
            if let Place::Node { collection, node } = source.place() {
                self.forms.forget_at(collection, node, ino);
            }
        }
    }

    /// The permissions that an adapter leaves to the owner, the group and all others of a node of the base, as read bits. A class
    /// that cannot read both files of the adapter, or enter a directory above them, has none.
    pub(super) fn bits_of_adapter(&self, files: AdapterFiles, node: &Node) -> u32 {
        let mut bits = self.bits_above_adapter(files, node);
        let Ok(collection) = self.collection_of(files) else { return 0 };
        let state = collection.state();
        for id in [files.config, files.weights] {
            bits &= state.node(id).map_or(0, |file| allowed(&node.entry, &file.entry, READ_CLASSES));
        }
        bits
    }

    /// The classes that may enter each directory above an adapter, as read bits.
    fn bits_above_adapter(&self, files: AdapterFiles, node: &Node) -> u32 {
        let Ok(collection) = self.collection_of(files) else { return 0 };
        let state = collection.state();
        let mut bits = READ_CLASSES.into_iter().fold(0, |bits, bit| bits | bit);
        let mut at = Some(files.directory);
        while let Some(directory) = at {
            let entry = state.node(directory).map(|directory| &directory.entry);
            bits &= entry.map_or(0, |entry| allowed(&node.entry, entry, ENTER_CLASSES));
            at = (directory != ROOT).then(|| state.above(directory)).flatten();
        }
        bits
    }

    /// The mode of a file or directory of the form: what the base and the adapter both allow.
    pub(super) fn merged_mode(&self, view: &FormView, mode: u32) -> u32 {
        let Some((files, item)) = adapter_files(view) else { return mode };
        let Some(node) = item.node() else { return 0 };
        let read = self.bits_of_adapter(files, node) & READ_BITS;
        // Whoever may not read an adapter may not enter its directory either.
        mode & (read | read >> 2) & ENTER_BITS
    }

    /// Flushes the files of the adapter of a view.
    pub(super) fn flush_adapter(&self, view: &FormView) -> Result<()> {
        let Some((files, _)) = adapter_files(view) else { return Ok(()) };
        let collection = self.collection_of(files)?;
        for id in [files.config, files.weights] {
            let node = collection.state().node(id).cloned();
            if let Some(node) = node {
                // The flush of a file is that of the form that shows it as it is.
                let of = Some((Form::F32, Item::Node(node)));
                self.flush_for_form(&FormView { collection: collection.clone(), of })?;
            }
        }
        Ok(())
    }
}

/// The adapter of a view of the form, and the item that it shows.
fn adapter_files(view: &FormView) -> Option<(AdapterFiles, &Item)> {
    match &view.of {
        Some((Form::Merged(Merge { adapter: Some(files), .. }), item)) => Some((*files, item)),
        _ => None,
    }
}

/// The adapters of a collection, each with the path of its directory.
fn adapters_in(state: &State) -> Vec<(Vec<Arc<[u8]>>, AdapterFiles)> {
    let mut directories = Vec::new();
    state.walk(ROOT, &mut |visited| {
        if **visited.name == *CONFIG_NAME.as_bytes() {
            directories.push(visited.directory);
        }
        Walk::Enter
    });
    let path = |directory: EntryId| {
        let path = state.path(directory);
        let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        parts.map(Arc::from).collect()
    };
    directories
        .into_iter()
        .filter_map(|directory| Some((path(directory), files_in(state, directory)?)))
        .collect()
}
