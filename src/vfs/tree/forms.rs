//! `.as` of a collection: the same bytes in other forms.

use std::sync::Arc;

use crate::format::log::catalog::{NodeEntry, NodeType};
use crate::model::{ENTER_BITS, EntryId, Error, ErrorKind, NameIn, Owner, READ_BITS, Result};
use crate::store::{Collection, Node, ROOT, State, Walk};
use crate::stream::Stream;
use crate::vfs::form::{self, Form, Item, MERGED_NUMBER, Recipe, Shows};
use crate::vfs::tree::attr::{Attr, Kind};
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::list::LISTED;
use crate::vfs::tree::list_mode::ListMode;
use crate::vfs::tree::location::{FileView, FormView, Located, WHOLE, no_name};
use crate::vfs::tree::vfs::Vfs;

/// The read permissions of the owner, the group and all others.
pub(super) const READ_CLASSES: [u32; 3] = [0o400, 0o040, 0o004];
/// Their search permissions for directories.
pub(super) const ENTER_CLASSES: [u32; 3] = [0o100, 0o010, 0o001];

impl Vfs {
    /// The view of an inode number: the directory of forms, or an item in it.
    pub(super) fn form(&self, collection: u32, form: u8, node: EntryId) -> Option<FormView> {
        if form == MERGED_NUMBER {
            return self.merged_view(collection, node);
        }
        let collection = self.numbered(collection).ok()??;
        let of = match Form::from_number(form) {
            None => None,
            Some((form, _)) if node == WHOLE => Some((form, Item::Whole)),
            Some((form, is_index)) => {
                let node = collection.state().shown(node)?;
                Some((form, if is_index { Item::Index(node) } else { Item::Node(node) }))
            }
        };
        Some(FormView { collection, of })
    }

    /// Looks up a name in a directory of forms.
    pub(super) fn form_named(&self, view: &FormView, name: &[u8]) -> Result<FormView> {
        if let Some(found) = self.merge_named(view, name) {
            return found;
        }
        let state = view.collection.state();
        let of = match &view.of {
            None => {
                let root = state.node(ROOT).cloned();
                Form::from_name(name).zip(root.map(Item::Node))
            }
            Some((form, Item::Node(directory))) if directory.entry.node_type == NodeType::Directory => {
                let find = |name: &[u8]| form::find(*form, &state, directory.entry.id, name);
                let is_cast = matches!(form.shows(), Shows::Cast(_));
                let item = find(name);
                // Without a file of the name, the codes of a weight that is shown under it.
                let of_codes = || form::names_of_codes(name).find_map(|codes| Some((find(&codes)?, codes)));
                let found = match item {
                    Some(item) => Some((item, name.to_vec())),
                    None if is_cast => of_codes(),
                    None => None,
                };
                drop(state);
                let is_shown = |(item, own): &(Item, Vec<u8>)| match item.node().filter(|_| is_cast) {
                    Some(node) => {
                        form::name_in_cast(&view.collection, node, own).is_some_and(|shown| shown == name)
                    }
                    None => true,
                };
                let found = found.filter(is_shown).map(|(item, _)| (*form, item));
                return found
                    .map(|of| FormView { collection: view.collection.clone(), of: Some(of) })
                    .ok_or_else(|| no_name(name));
            }
            Some(_) => return Err(Error::new(ErrorKind::NotDirectory, "not a directory")),
        };
        drop(state);
        match of {
            Some(of) => Ok(FormView { collection: view.collection.clone(), of: Some(of) }),
            None => Err(no_name(name)),
        }
    }

    /// The attributes of a form. A file that cannot be planned has no bytes.
    pub(super) fn form_attr(&self, ino: Ino, view: &FormView) -> Attr {
        let node = |node: &Arc<Node>| view.collection.state().node(node.entry.id).unwrap_or(node).clone();
        let root = || view.collection.state().node(ROOT).cloned();
        let found = view.of.as_ref().and_then(|(_, item)| item.node()).map(node).or_else(root);
        let Some(node) = found else {
            return Attr::directory(ino, ENTER_BITS, self.mounted.at, self.mounted.by);
        };
        let entry = &node.entry;
        let directory = Attr::directory(
            ino,
            entry.mode & ENTER_BITS,
            entry.mtime,
            Owner { uid: entry.uid, gid: entry.gid },
        );
        let directory =
            Attr { atime: entry.atime, mode: self.merged_mode(view, directory.mode), ..directory };
        let links = view.collection.state().links(entry.id).len().max(1) as u32;
        match (&view.of, &entry.node_type) {
            (Some((_, Item::Whole)), _) | (Some(_), NodeType::File(_)) => {
                let recipe = self.recipe(view).and_then(|recipe| recipe.bytes());
                let recipe = recipe.inspect_err(|error| log::debug!("{}: {error}", view.path()));
                let mode = match &view.of {
                    Some((_, Item::Whole)) => read_bits_of_all(&view.collection.state()),
                    _ => self.merged_mode(view, entry.mode & READ_BITS),
                };
                let of_container = node.file().is_some_and(|file| file.container.is_some());
                Attr {
                    kind: Kind::File,
                    links,
                    mode,
                    of_container,
                    // The kernel asks again: it may be gone.
                    is_unlogged: recipe.is_err(),
                    ..directory
                }
                .of_bytes(recipe.unwrap_or_default())
            }
            (Some(_), NodeType::Symlink(target)) => {
                let bytes = target.len() as u64;
                Attr { kind: Kind::Symlink, links, mode: entry.mode, bytes, blocks: 1, ..directory }
            }
            _ => directory,
        }
    }

    /// The current recipe of a file of a form.
    pub fn recipe(&self, view: &FormView) -> Result<Recipe> {
        let Some((form, item)) = &view.of else {
            return Err(Error::new(ErrorKind::IsDirectory, "not a file"));
        };
        if let Some(merged) = self.merged_recipe(view) {
            return merged;
        }
        let published = self.published(view)?;
        form::plan(&view.collection, published.as_ref(), self.store().settings(), *form, item)
    }

    /// The collection as after the move that a form shows, if the remote has that variant.
    pub fn published(&self, view: &FormView) -> Result<Option<Arc<Collection>>> {
        match &view.of {
            Some((form, _)) => form::published(self.store(), &view.collection, *form),
            None => Ok(None),
        }
    }

    /// Flushes the files that a file of a form is made of, because its header depends on them. Queues
    /// the invalidations.
    pub fn flush_for_form(&self, view: &FormView) -> Result<()> {
        let node = view.of.as_ref().and_then(|(_, item)| item.node()).map(|node| node.entry.id);
        let Some(node) = node else { return self.flush_all(&view.collection) };
        self.flush_adapter(view)?;
        let number = view.collection.state().number();
        let Some(ino) = Ino::of(Place::Node { collection: number, node }) else { return Ok(()) };
        for ino in [ino].into_iter().chain(self.sharing(ino)) {
            if let Some(open_file) = self.open_file(ino).filter(|open_file| open_file.is_changed()) {
                match self.flush_and_queue(&open_file) {
                    // The log has no room for these writes. The form reads them where they lie, if the size is the logged one.
                    Err(error) if error.kind() == ErrorKind::Full && open_file.has_logged_size() => {}
                    flushed => flushed?,
                }
            }
        }
        Ok(())
    }

    /// Opens a file of a form as a stream of its current bytes. Notes that the kernel may cache its
    /// pages.
    pub fn open_form(&self, view: &FormView, recipe: &Recipe) -> Result<Stream> {
        match (view.number(), Ino::of(view.number())) {
            (place @ Place::Form { form: MERGED_NUMBER, .. }, Some(ino)) => self.note_merged(place, ino),
            (Place::Form { collection, node, .. }, Some(ino)) => self.forms.note(collection, node, ino),
            _ => {}
        }
        recipe.stream(self.verify)
    }

    pub(super) fn above_form(&self, view: &FormView) -> Result<Located> {
        if let Some(above) = self.above_merged(view) {
            return above;
        }
        let state = view.collection.state();
        let node = |id| state.shown(id).ok_or_else(|| Error::corrupt("a directory without a node"));
        let of = |of| Ok(Located::Form(FormView { collection: view.collection.clone(), of }));
        match &view.of {
            None => Ok(Located::Node(FileView { collection: view.collection.clone(), node: node(ROOT)? })),
            Some((_, Item::Node(directory))) if directory.entry.id == ROOT => of(None),
            Some((form, item)) => {
                let parent = item.node().and_then(|node| state.above(node.entry.id)).unwrap_or(ROOT);
                of(Some((*form, Item::Node(node(parent)?))))
            }
        }
    }

    /// Lists the directory of forms, or one in it, after `after`. Each name comes with its place.
    pub(super) fn forms_after(&self, view: &FormView, after: u64) -> Result<Vec<(u64, Vec<u8>, FormView)>> {
        if let Some(merges) = self.merges_after(view, after)? {
            return Ok(merges);
        }
        let is_cast = view.of.as_ref().is_some_and(|(form, _)| matches!(form.shows(), Shows::Cast(_)));
        let mut after = after;
        loop {
            let found = self.all_forms_after(view, after)?;
            let Some((last, ..)) = found.last().filter(|_| is_cast) else { return Ok(found) };
            after = *last;
            // The names of weights depend on small tensors, which are read while the state is not locked.
            let named = |(place, name, view): (u64, Vec<u8>, FormView)| {
                let node = view.of.as_ref().and_then(|(_, item)| item.node()).cloned();
                let name = match node {
                    Some(node) => form::name_in_cast(&view.collection, &node, &name)?,
                    None => name,
                };
                Some((place, name, view))
            };
            let shown: Vec<_> = found.into_iter().filter_map(named).collect();
            if !shown.is_empty() {
                return Ok(shown);
            }
        }
    }

    /// The same, with the tensors that a form hides.
    fn all_forms_after(&self, view: &FormView, after: u64) -> Result<Vec<(u64, Vec<u8>, FormView)>> {
        let merges = match &view.of {
            None => Some(self.merges_entry(&view.collection)?),
            Some(_) => None,
        };
        let state = view.collection.state();
        let of = |form, item| FormView { collection: view.collection.clone(), of: Some((form, item)) };
        let root = || {
            let root = state.node(ROOT).cloned();
            root.ok_or_else(|| Error::corrupt("a collection without a node"))
        };
        match &view.of {
            None => {
                let root = root()?;
                let forms = Form::ALL.into_iter().map(|form| {
                    let view = of(form, Item::Node(root.clone()));
                    (u64::from(form.number()), form.name().as_bytes().to_vec(), view)
                });
                Ok(forms.chain(merges).filter(|(place, ..)| *place > after).collect())
            }
            Some((form, Item::Node(node))) => self.listed_of(&state, *form, node.entry.id, after, &of),
            Some(_) => Err(Error::new(ErrorKind::NotDirectory, "not a directory")),
        }
    }

    fn listed_of(
        &self,
        state: &State,
        form: Form,
        directory: EntryId,
        after: u64,
        of: &dyn Fn(Form, Item) -> FormView,
    ) -> Result<Vec<(u64, Vec<u8>, FormView)>> {
        // A name may have two files, so the places are twice the place of the name, and one more.
        let mut found = Vec::new();
        // A form of tensors shows no containers, so it shows their tensors.
        let with_tensors =
            form::lists_tensors(form, state, directory) || self.list_mode(state, directory) == ListMode::Both;
        let whole = form.whole().filter(|_| directory == ROOT);
        if let Some(whole) = whole.filter(|_| after == 0) {
            found.push((1, whole.as_bytes().to_vec(), of(form, Item::Whole)));
        }
        if form == Form::Sha256 {
            return Ok(found);
        }
        let mut last = (after / 2).saturating_sub(1);
        while found.is_empty() {
            let listed = state.listed(directory, last, with_tensors, LISTED);
            let listed = listed.ok_or_else(|| Error::new(ErrorKind::NotDirectory, "not a directory"))?;
            let Some((next, ..)) = listed.last() else { break };
            last = *next;
            for (place, name, id) in listed {
                let Some(node) = state.shown(id) else { continue };
                let place_of = NameIn { directory, name: &name };
                let names = form::names(form, state, place_of, &node);
                for (place, (name, item)) in (place.saturating_mul(2)..).zip(names) {
                    let is_whole = whole.is_some_and(|whole| whole.as_bytes() == name);
                    if place > after && !is_whole {
                        found.push((place, name, of(form, item)));
                    }
                }
            }
        }
        Ok(found)
    }
}

/// The mode of a file that shows a whole collection and has its owner. A class of users may read it
/// if every user of the class may list each directory and read each file below, by every name.
fn read_bits_of_all(state: &State) -> u32 {
    let Some(root) = state.node(ROOT).map(|node| &node.entry) else { return 0 };
    let mut bits = READ_CLASSES.into_iter().fold(0, |bits, bit| bits | bit) & root.mode;
    state.walk(ROOT, &mut |visited| {
        let entry = &visited.node.entry;
        match &entry.node_type {
            NodeType::File(file) => {
                let tensors = state.parts(file).map(|part| &part.entry).chain([entry]);
                bits = tensors.fold(bits, |bits, entry| bits & allowed(root, entry, READ_CLASSES));
            }
            NodeType::Directory => {
                bits &= allowed(root, entry, ENTER_CLASSES) & allowed(root, entry, READ_CLASSES);
            }
            NodeType::Symlink(_) => {}
        }
        Walk::Enter
    });
    bits
}

/// The classes of `root` that have the permission `asked` of an entry, as read bits. A class whose
/// owner or group differs there counts as others.
pub(super) fn allowed(root: &NodeEntry, entry: &NodeEntry, asked: [u32; 3]) -> u32 {
    let [owner, group, others] = asked.map(|bit| entry.mode & bit != 0);
    let by_owner = if entry.uid == root.uid { owner } else { others };
    let by_group = if entry.gid == root.gid { group } else { others };
    [by_owner, by_group, others]
        .into_iter()
        .zip(READ_CLASSES)
        .filter(|(is_allowed, _)| *is_allowed)
        .map(|(_, bit)| bit)
        .sum()
}
