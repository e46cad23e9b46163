//! `.as` of a collection: the same bytes in other forms.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::log::catalog::{NodeEntry, NodeType};
use crate::model::{ENTER_BITS, EntryId, Error, ErrorKind, NameIn, Owner, READ_BITS, Result};
use crate::store::{Collection, Node, ROOT, State, Walk};
use crate::stream::Stream;
use crate::vfs::form::{self, Form, Item, Recipe, Shows};
use crate::vfs::tree::attr::{Attr, Kind};
use crate::vfs::tree::form_numbers::{FormNumbers, FormOf, ShownNode, no_number};
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
    /// The place of a directory of forms, or of something in it.
    pub(super) fn form_place(&self, view: &FormView) -> Option<Place> {
        self.numbered_place(view, FormNumbers::number)
    }

    /// The place of a view. `number` gives the numbers of forms with parameters.
    fn numbered_place(
        &self,
        view: &FormView,
        number: fn(&FormNumbers, FormOf) -> Option<u32>,
    ) -> Option<Place> {
        let collection = view.collection.state().number();
        let Some((form, item)) = &view.of else {
            return Some(Place::Form { collection, form: 0, node: EntryId(0) });
        };
        let node = item.node().map_or(EntryId(0), |node| node.entry.id);
        Some(match item.number_in(*form) {
            Some(form) => Place::Form { collection, form, node },
            None => Place::Numbered {
                form: number(self.form_numbers(), FormOf { collection, form: *form })?,
                node,
            },
        })
    }

    /// Counts a reply that names an inode to the kernel, which knows the inode until it has forgotten each such reply.
    /// Returns the attributes for the reply: the number of a form may have become free while they were made.
    pub fn name_in_reply(&self, attr: Attr, located: &Located) -> Result<Attr> {
        match (attr.ino.place(), located) {
            (Place::Numbered { .. }, Located::Form(view)) => {
                let ino = self.numbered_place(view, FormNumbers::named).and_then(Ino::of);
                Ok(Attr { ino: ino.ok_or_else(no_number)?, ..attr })
            }
            _ => Ok(attr),
        }
    }

    /// The node that a file of a form shows.
    pub(super) fn shown_by(&self, ino: Ino) -> Option<ShownNode> {
        match ino.place() {
            Place::Form { collection, node, .. } => Some(ShownNode { collection, node }),
            Place::Numbered { form, node } => {
                Some(ShownNode { collection: self.form_numbers().form(form)?.collection, node })
            }
            _ => None,
        }
    }

    /// Whether an inode is of a form, and shows one of these files.
    pub fn shows_any(&self, ino: Ino, files: &[Ino]) -> bool {
        let file = |ShownNode { collection, node }| Ino::of(Place::Node { collection, node });
        self.shown_by(ino).and_then(file).is_some_and(|file| files.contains(&file))
    }

    /// The view of an inode number: the directory of forms, or an item in it.
    pub(super) fn form(&self, collection: u32, form: u8, node: EntryId) -> Option<FormView> {
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

    /// The view of a node in a form with parameters, by the number of the form.
    pub(super) fn numbered_form(&self, number: u32, node: EntryId) -> Option<FormView> {
        let FormOf { collection, form } = self.form_numbers().form(number)?;
        let collection = self.numbered(collection).ok()??;
        let node = collection.state().shown(node)?;
        let form = self.with_present_adapter(form, &node)?;
        Some(FormView { collection, of: Some((form, Item::Node(node))) })
    }

    /// Looks up a name in a directory of forms.
    pub(super) fn form_named(&self, view: &FormView, name: &[u8]) -> Result<FormView> {
        if let Some(found) = self.adapter_named(view, name).or_else(|| self.rows_named(view, name)) {
            return found;
        }
        if let Some((form, Item::Node(node))) =
            view.of.as_ref().filter(|(form, item)| form::has_values(*form, item))
        {
            let found = form::value_named(&view.collection, *form, node, name)?;
            let of = |form| FormView {
                collection: view.collection.clone(),
                of: Some((form, Item::Node(node.clone()))),
            };
            return found.map(of).ok_or_else(|| no_name(name));
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
                let mut items: Vec<(Item, Vec<u8>)> =
                    find(name).map(|item| (item, name.to_vec())).into_iter().collect();
                if items.is_empty() && is_cast {
                    // Without a file of the name, the codes of a weight that is shown under it: of one scheme or another.
                    items.extend(form::names_of_codes(name).filter_map(|codes| Some((find(&codes)?, codes))));
                }
                drop(state);
                let is_model =
                    |node: &&Arc<Node>| matches!(form.shows(), Shows::Model(_)) && node.file().is_some();
                if let Some(node) = items.first().and_then(|(item, _)| item.node()).filter(is_model)
                    && !form::is_model_shown(&view.collection, *form, node.entry.id)
                {
                    return Err(no_name(name));
                }
                let hides_tensors = form::hides_tensors(*form);
                let is_shown = |(item, own): &(Item, Vec<u8>)| match item.node().filter(|_| hides_tensors) {
                    Some(node) => {
                        let shown = form::name_shown(&view.collection, *form, node, own);
                        shown.is_some_and(|shown| shown == name)
                    }
                    None => true,
                };
                let found = items.into_iter().find(is_shown).map(|(item, _)| (*form, item));
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
        if let Some(attr) = self.rows_attr(view, &directory, entry) {
            return attr;
        }
        let links = view.collection.state().links(entry.id).len().max(1) as u32;
        if view.of.as_ref().is_some_and(|(form, item)| form::has_values(*form, item)) && node.file().is_some()
        {
            // Users who may read the tensor may list its parts.
            let read = entry.mode & READ_BITS;
            return Attr { mode: directory.mode | read | read >> 2, ..directory };
        }
        match (&view.of, &entry.node_type) {
            (Some((_, Item::Whole)), _) | (Some(_), NodeType::File(_)) => {
                let sized = self.form_size(view);
                let sized = sized.inspect_err(|error| log::debug!("{}: {error}", view.path()));
                let is_unlogged = sized.is_err();
                let (bytes, inputs) = sized.unwrap_or_default();
                let of_all = |bits: u32, input: &Arc<Node>| {
                    // A directory among them leads to one of the files.
                    let classes = if input.file().is_some() { READ_CLASSES } else { ENTER_CLASSES };
                    bits & allowed(entry, &input.entry, classes)
                };
                let mode = match &view.of {
                    Some((_, Item::Whole)) => read_bits_of_all(&view.collection.state()),
                    _ => inputs.iter().fold(self.merged_mode(view, entry.mode & READ_BITS), of_all),
                };
                let files = inputs.iter().filter(|input| input.file().is_some());
                let mtime = files.map(|input| input.entry.mtime).fold(entry.mtime, Ord::max);
                let of_container = node.file().is_some_and(|file| file.container.is_some());
                Attr {
                    kind: Kind::File,
                    links,
                    mode,
                    of_container,
                    // The kernel asks again: it may be gone.
                    is_unlogged,
                    mtime,
                    ..directory
                }
                .of_bytes(bytes)
            }
            (Some(_), NodeType::Symlink(_)) => {
                let bytes = view.link_target().map_or(0, |target| target.len() as u64);
                Attr { kind: Kind::Symlink, links, mode: entry.mode, bytes, blocks: 1, ..directory }
            }
            _ => directory,
        }
    }

    /// The size of a file of a form, and the files that it follows from, beside the file that it shows.
    fn form_size(&self, view: &FormView) -> Result<(u64, Vec<Arc<Node>>)> {
        if let Some((form, Item::Node(node))) = &view.of
            && let Some(size) = form::size_of_model(&view.collection, *form, node.entry.id)
        {
            return size;
        }
        let recipe = self.recipe(view)?;
        Ok((recipe.bytes()?, recipe.inputs().to_vec()))
    }

    /// The current recipe of a file of a form.
    pub fn recipe(&self, view: &FormView) -> Result<Recipe> {
        let Some((form, item)) = &view.of else {
            return Err(Error::new(ErrorKind::IsDirectory, "not a file"));
        };
        if let Some(made) = self.merged_recipe(view).or_else(|| self.rows_recipe(view)) {
            return made;
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
        self.flush_rows(view)?;
        let inputs = match &view.of {
            Some((form, _)) => form::inputs(&view.collection, *form, node).0,
            None => Vec::new(),
        };
        self.flush_nodes(&view.collection, [node].into_iter().chain(inputs))
    }

    /// Flushes files of a collection, and those that share bytes with them. Queues the invalidations.
    pub(super) fn flush_nodes(
        &self,
        collection: &Arc<Collection>,
        nodes: impl IntoIterator<Item = EntryId>,
    ) -> Result<()> {
        let open = self.open_files.all().into_iter();
        let changed: Vec<EntryId> = open
            .filter(|open| Arc::ptr_eq(open.collection(), collection) && open.is_changed())
            .map(|open| open.node())
            .collect();
        if changed.is_empty() {
            return Ok(());
        }
        let inos: Vec<Ino> = {
            let state = collection.state();
            // Only files of one container share bytes.
            let container =
                |id: EntryId| state.node(id).and_then(|node| node.file()?.container).unwrap_or(id);
            let changed: HashSet<EntryId> = changed.into_iter().map(container).collect();
            let nodes = nodes.into_iter().filter(|node| changed.contains(&container(*node)));
            let number = state.number();
            nodes.filter_map(|node| Ino::of(Place::Node { collection: number, node })).collect()
        };
        for ino in inos.iter().copied().chain(inos.iter().flat_map(|ino| self.sharing(*ino))) {
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
        if let Some(ino) = self.form_place(view).and_then(Ino::of)
            && let Some(ShownNode { collection, node }) = self.shown_by(ino)
        {
            self.forms.note(collection, node, ino);
            self.note_adapter(ino);
        }
        recipe.stream(self.verify)
    }

    pub(super) fn above_form(&self, view: &FormView) -> Result<Located> {
        let state = view.collection.state();
        let node = |id| state.shown(id).ok_or_else(|| Error::corrupt("a directory without a node"));
        let of = |of| Ok(Located::Form(FormView { collection: view.collection.clone(), of }));
        match &view.of {
            None => Ok(Located::Node(FileView { collection: view.collection.clone(), node: node(ROOT)? })),
            Some((form, Item::Node(node))) if let Some(family) = form::family_above(*form, node.entry.id) => {
                of(Some((family, Item::Node(node.clone()))))
            }
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
        let form = view.of.as_ref().map(|(form, _)| *form);
        let is_model = form.is_some_and(|form| matches!(form.shows(), Shows::Model(_)));
        let form = form.filter(|form| is_model || form::hides_tensors(*form));
        let mut after = after;
        loop {
            let found = self.all_forms_after(view, after)?;
            let Some(((last, ..), form)) = found.last().zip(form) else { return Ok(found) };
            after = *last;
            // The names of weights depend on small tensors, which are read while the state is not locked.
            let named = |(place, name, view): (u64, Vec<u8>, FormView)| {
                let of = view.of.as_ref().and_then(|(_, item)| item.node()).cloned();
                let name = match of {
                    Some(node) if is_model => {
                        let is_shown = node.file().is_none()
                            || form::is_model_shown(&view.collection, form, node.entry.id);
                        is_shown.then_some(name)?
                    }
                    Some(node) => form::name_shown(&view.collection, form, &node, &name)?,
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

    /// Lists also the tensors that a form hides.
    fn all_forms_after(&self, view: &FormView, after: u64) -> Result<Vec<(u64, Vec<u8>, FormView)>> {
        let of = |form, item| FormView { collection: view.collection.clone(), of: Some((form, item)) };
        if let Some((form, Item::Node(node))) =
            view.of.as_ref().filter(|(form, item)| form::has_values(*form, item))
        {
            let values = form::values(&view.collection, *form, node)?.into_iter();
            let named = values.filter_map(|form| Some((form, form.value()?)));
            let placed = (1..).zip(named).filter(|(place, _)| *place > after).take(LISTED);
            let view = |(place, (form, name)): (u64, (Form, String))| {
                (place, name.into_bytes(), of(form, Item::Node(node.clone())))
            };
            return Ok(placed.map(view).collect());
        }
        match &view.of {
            None => {
                let root = view.collection.state().node(ROOT).cloned();
                let root = root.ok_or_else(|| Error::corrupt("a collection without a node"))?;
                let forms = (1..).zip(Form::ALL).map(|(place, form)| {
                    let view = of(form, Item::Node(root.clone()));
                    (place, form.name().as_bytes().to_vec(), view)
                });
                Ok(forms.filter(|(place, ..)| *place > after).collect())
            }
            Some((form, Item::Node(node))) => {
                let mut found = Vec::new();
                // A name may have two files, so the places are twice the place of the name, and one more.
                let mut last = Some((after / 2).saturating_sub(1));
                while let Some(next) = last.filter(|_| found.is_empty()) {
                    // The state is locked for some names at a time.
                    let from = ListedFrom { directory: node.entry.id, after, last: next };
                    let mut take = |place, name, item| found.push((place, name, of(*form, item)));
                    last = self.listed_of(&view.collection.state(), *form, &from, &mut take)?;
                }
                Ok(found)
            }
            Some(_) => Err(Error::new(ErrorKind::NotDirectory, "not a directory")),
        }
    }

    /// Lists the files of some names. Returns the place of the last of these names, if there may be more.
    fn listed_of(
        &self,
        state: &State,
        form: Form,
        from: &ListedFrom,
        take: &mut dyn FnMut(u64, Vec<u8>, Item),
    ) -> Result<Option<u64>> {
        let ListedFrom { directory, after, last } = *from;
        let whole = form.whole().filter(|_| directory == ROOT);
        if (after, last) == (0, 0) {
            // Beside the whole, the model of a directory, which has one name whatever its files are.
            let is_model = matches!(form.shows(), Shows::Model(_));
            let name = form::model_name();
            let model = is_model.then(|| form::model_in(state, directory, &name)).flatten();
            let first = match whole {
                Some(whole) => Some((whole.as_bytes().to_vec(), Item::Whole)),
                None => model.map(|node| (name, Item::Node(node))),
            };
            if let Some((name, item)) = first {
                take(1, name, item);
                return Ok(None);
            }
        }
        if form == Form::Sha256 {
            return Ok(None);
        }
        // A form of tensors shows no containers, so it shows their tensors.
        let with_tensors =
            form::lists_tensors(form, state, directory) || self.list_mode(state, directory) == ListMode::Both;
        let hides = |entry: &Node, of| form::hides(form, state, entry, of);
        let hides = with_tensors.then_some(&hides as &dyn Fn(&Node, _) -> bool);
        let listed = state.listed_hidden_by(directory, last, hides, LISTED);
        let listed = listed.ok_or_else(|| Error::new(ErrorKind::NotDirectory, "not a directory"))?;
        let last = listed.last().map(|(place, ..)| *place);
        for (place, name, id) in listed {
            let Some(node) = state.shown(id) else { continue };
            let names = form::names(form, state, NameIn { directory, name: &name }, &node);
            for (place, (name, item)) in (place.saturating_mul(2)..).zip(names) {
                let is_whole = whole.is_some_and(|whole| whole.as_bytes() == name);
                if place > after && !is_whole {
                    take(place, name, item);
                }
            }
        }
        Ok(last)
    }
}

/// The place in a directory of a form from which files are listed.
struct ListedFrom {
    /// The directory of the collection.
    directory: EntryId,
    /// The place of the last file that has been listed.
    after: u64,
    /// The place of the last name that has been looked at.
    last: u64,
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

/// The classes of `root` of which all users have the permission `asked` of an entry, as read bits. A user of a class may
/// be the owner of the entry, or in its group, unless `root` has the same owner or group.
pub(super) fn allowed(root: &NodeEntry, entry: &NodeEntry, asked: [u32; 3]) -> u32 {
    let [owner, group, others] = asked.map(|bit| entry.mode & bit != 0);
    let (has_same_owner, has_same_group) = (entry.uid == root.uid, entry.gid == root.gid);
    let by_owner = if has_same_owner { owner } else { group && others };
    let may_be_owner = has_same_owner || owner;
    let by_group = may_be_owner && group && (has_same_group || others);
    let by_others = may_be_owner && others && (has_same_group || group);
    [by_owner, by_group, by_others]
        .into_iter()
        .zip(READ_CLASSES)
        .filter(|(is_allowed, _)| *is_allowed)
        .map(|(_, bit)| bit)
        .sum()
}
