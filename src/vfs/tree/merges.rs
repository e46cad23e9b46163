//! `.as/merged` of a collection: the collection with the adapter of another directory added.
//!
//! `.as/merged/ADAPTER` names a collection of the same tenant whose root has an adapter, or a directory below one:
//! `COLLECTION:DIRECTORY:DIRECTORY`. The form of a base with an adapter contains the numbers of the adapter's files, and
//! `form_numbers.rs` gives it a number. So a file whose adapter is replaced has another inode number, and the pages of the
//! old one are not shown.
//!
//! The kernel may have pages of a merged file. [`Vfs::note_adapter`] notes it for both files of the adapter, as
//! [`Vfs::open_form`] does for the base, so a change of any of them invalidates the pages.

use std::sync::Arc;

use crate::format::files::adapter_config::CONFIG_NAME;
use crate::format::log::catalog::NodeType;
use crate::model::{ENTER_BITS, EntryId, Error, ErrorKind, NAME_BYTES_MAX, READ_BITS, Result};
use crate::store::{Collection, Node, ROOT, State, Walk};
use crate::vfs::form::{self, AdapterFiles, Form, Item, OpenAdapter, Recipe, files_in};
use crate::vfs::tree::form_numbers::{FormOf, ShownNode};
use crate::vfs::tree::forms::{ENTER_CLASSES, READ_CLASSES, allowed};
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::location::{FormView, no_name};
use crate::vfs::tree::vfs::Vfs;

/// Stands for `/` in the name of an adapter's directory.
const SEPARATOR: u8 = b':';

/// A name in a directory of forms: its place, the name and the view.
type ListedForm = (u64, Vec<u8>, FormView);

impl Vfs {
    /// A form with the present files of the adapter's directory, for a node of the base. `None` if the adapter is gone, and
    /// for a file whose adapter was replaced. Another form as it is.
    pub(super) fn with_present_adapter(&self, form: Form, node: &Node) -> Option<Form> {
        let Form::Merged(files) = form else { return Some(form) };
        let collection = self.numbered(files.collection).ok()??;
        let now = files_in(&collection.state(), files.directory)?;
        (now == files || node.entry.node_type == NodeType::Directory).then_some(Form::Merged(now))
    }

    /// The collection of an adapter.
    fn collection_of(&self, files: AdapterFiles) -> Result<Arc<Collection>> {
        let gone = || Error::new(ErrorKind::Gone, "the collection of the adapter is gone");
        self.numbered(files.collection)?.ok_or_else(gone)
    }

    /// The adapter of a view, in its present state.
    fn adapter_of(&self, files: AdapterFiles) -> Result<OpenAdapter> {
        self.kept_adapters().adapter(&self.collection_of(files)?, files)
    }

    /// Looks up a name in the directory of all adapters of a base.
    pub(super) fn adapter_named(&self, view: &FormView, name: &[u8]) -> Option<Result<FormView>> {
        let root = root_of_merges(view)?;
        let found = self.adapter_files_named(view, name).map(|files| merged(view, root, files));
        Some(found)
    }

    fn adapter_files_named(&self, view: &FormView, name: &[u8]) -> Result<AdapterFiles> {
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
                return Ok(files);
            }
        }
        Err(no_name(name))
    }

    /// The adapters of a collection, which is opened unless it is known that it has none.
    fn adapters_in(&self, tenant: &str, label: &str) -> Result<Arc<AdaptersIn>> {
        let known = self.store().closed_summary::<AdaptersIn>(tenant, label);
        if let Some(known) = known.filter(|known| known.0.is_empty()) {
            return Ok(known);
        }
        let collection = self.collection_named(tenant, label)?;
        Ok(collection.summarized_once(|| AdaptersIn(adapters_in(&collection.state()))))
    }

    /// Lists the adapters that fit a base after a place, each with its place. Opens the collections of the tenant.
    pub(super) fn merges_after(&self, view: &FormView, after: u64) -> Result<Option<Vec<ListedForm>>> {
        let Some(root) = root_of_merges(view) else { return Ok(None) };
        let base = &view.collection;
        let mut found = Vec::new();
        let labels = self.store().collections(base.tenant())?;
        for (label, in_it) in self.store().each(labels, |label| self.adapters_in(base.tenant(), label)) {
            let adapters = match in_it {
                Ok(adapters) => adapters,
                Err(error) => {
                    log::debug!("{label} is left out of the adapters: {error}");
                    continue;
                }
            };
            for (path, files) in &adapters.0 {
                let files = *files;
                let mut name = label.clone().into_bytes();
                for part in path {
                    name.push(SEPARATOR);
                    name.extend_from_slice(part);
                }
                if name.len() > NAME_BYTES_MAX || path.iter().any(|part| part.contains(&SEPARATOR)) {
                    continue;
                }
                // Directories that not everybody who may enter the base may enter have no place in its listing.
                let fits = || self.adapter_of(files).and_then(|adapter| form::fits(base, &adapter));
                if self.is_open_to_all(files, root) && fits().is_ok() {
                    let view = merged(view, root, files);
                    if let Some(Place::Numbered { form, .. }) = self.form_place(&view) {
                        found.push((u64::from(form), name, view));
                    }
                }
            }
        }
        found.retain(|(place, ..)| *place > after);
        found.sort_by_key(|(place, ..)| *place);
        Ok(Some(found))
    }

    /// The recipe of a file of the form.
    pub(super) fn merged_recipe(&self, view: &FormView) -> Option<Result<Recipe>> {
        let (files, item) = adapter_files(view)?;
        Some(form::plan_merged(&view.collection, self.adapter_of(files), item))
    }

    /// The adapter of a file of the form, for its content.
    pub(super) fn adapter_of_view(&self, view: &FormView) -> Option<Result<OpenAdapter>> {
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

    /// The files of the adapter that a file of the form follows from, by their inode numbers.
    pub(super) fn adapter_sources(&self, ino: Ino) -> Vec<Ino> {
        let nodes = self.adapter_nodes(ino).into_iter();
        nodes.filter_map(|ShownNode { collection, node }| Ino::of(Place::Node { collection, node })).collect()
    }

    fn adapter_nodes(&self, ino: Ino) -> Vec<ShownNode> {
        let Place::Numbered { form, .. } = ino.place() else { return Vec::new() };
        let Some(FormOf { form: Form::Merged(files), .. }) = self.form_numbers().form(form) else {
            return Vec::new();
        };
        let shown = |node| ShownNode { collection: files.collection, node };
        vec![shown(files.config), shown(files.weights)]
    }

    /// Notes for the files of its adapter that the kernel may cache pages of a file of the form.
    pub(super) fn note_adapter(&self, ino: Ino) {
        for ShownNode { collection, node } in self.adapter_nodes(ino) {
            self.forms.note(collection, node, ino);
        }
    }

    /// Handles a forget of the kernel for a file of the form.
    pub(super) fn forget_adapter(&self, ino: Ino) {
        for shown in self.adapter_nodes(ino) {
            self.forms.forget(ino, Some(shown));
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
        let all = READ_CLASSES.into_iter().fold(0, |bits, bit| bits | bit);
        files.directories(&state).into_iter().fold(all, |bits, directory| {
            let entry = state.node(directory).map(|directory| &directory.entry);
            bits & entry.map_or(0, |entry| allowed(&node.entry, entry, ENTER_CLASSES))
        })
    }

    /// The directories that lead to an adapter, if the view is the root of a base with it, and whether everybody who may enter
    /// the base may enter them.
    pub fn directories_of_adapter(&self, view: &FormView) -> Option<AdapterDirectories> {
        let (files, item) = adapter_files(view)?;
        let root = item.node().filter(|node| node.entry.id == ROOT)?;
        let are_open = self.is_open_to_all(files, root);
        let collection = self.collection_of(files).ok();
        let nodes = collection.iter().flat_map(|collection| {
            let state = collection.state();
            let directories = files.directories(&state).into_iter();
            directories.filter_map(|id| state.node(id).cloned()).collect::<Vec<_>>()
        });
        Some(AdapterDirectories { nodes: nodes.collect(), are_open })
    }

    fn is_open_to_all(&self, files: AdapterFiles, root: &Node) -> bool {
        let all = allowed(&root.entry, &root.entry, ENTER_CLASSES);
        self.bits_above_adapter(files, root) & all == all
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
        self.flush_nodes(&self.collection_of(files)?, [files.config, files.weights])
    }
}

/// The root of a base, if the view is the directory of its adapters.
fn root_of_merges(view: &FormView) -> Option<&Arc<Node>> {
    match &view.of {
        Some((Form::Merges, Item::Node(root))) => Some(root),
        _ => None,
    }
}

/// The root of a base with an adapter.
fn merged(view: &FormView, root: &Arc<Node>, files: AdapterFiles) -> FormView {
    FormView {
        collection: view.collection.clone(),
        of: Some((Form::Merged(files), Item::Node(root.clone()))),
    }
}

/// The adapter of a view of the form, and the item that it shows.
fn adapter_files(view: &FormView) -> Option<(AdapterFiles, &Item)> {
    match &view.of {
        Some((Form::Merged(files), item)) => Some((*files, item)),
        _ => None,
    }
}

/// [`adapters_in`] of a collection.
struct AdaptersIn(Vec<(Vec<Arc<[u8]>>, AdapterFiles)>);

/// The directories that lead to an adapter.
pub struct AdapterDirectories {
    pub nodes: Vec<Arc<Node>>,
    /// Whether everybody who may enter the base may enter them.
    pub are_open: bool,
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
