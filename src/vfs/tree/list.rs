//! Directory listings.

use std::sync::Arc;

use crate::engine::LIST;
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::{Node, ROOT, State, version_in};
use crate::vfs::tree::attr::Attr;
use crate::vfs::tree::ino::{Ino, Owner, Place};
use crate::vfs::tree::list_mode::ListMode;
use crate::vfs::tree::location::{ControlView, FileView, FormView, Located, Scope};
use crate::vfs::tree::tag_places::Viewer;
use crate::vfs::tree::vfs::{Vfs, is_plain_name};

/// Offsets 1 and 2 are `.` and `..`; names follow by their places.
pub(super) const FIRST_OFFSET: u64 = 2;

/// How many names are looked up at a time.
pub(super) const LISTED: usize = 128;

/// Versions have places from here on in a directory of forms, which has fewer forms.
const VERSIONS_PLACE: u64 = 1 << 20;

/// A name in a directory.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Offset at which a later listing continues. It is derived from the name's or the tensor's own
    /// number, so that it stays the same while others are created and removed.
    pub offset: u64,
    pub name: Vec<u8>,
    pub attr: Attr,
}

/// The attributes of a collection's own directory, if it has one.
struct RootAttr(Option<Attr>);

impl Vfs {
    /// The list mode of a directory: its own setting, else that of a directory above, else the
    /// mount option.
    pub fn list_mode(&self, state: &State, directory: EntryId) -> ListMode {
        state.inherited(directory, LIST.name).and_then(ListMode::from_name).unwrap_or(self.listed_by_default)
    }

    /// Lists a directory after `offset`, 0 for all of it, until `take` returns `false`. `.` and `..`
    /// come first; the unlisted directories are left out.
    pub fn list(&self, ino: Ino, offset: u64, take: &mut dyn FnMut(Listed) -> bool) -> Result<()> {
        let located = self.locate(ino)?;
        if !self.list_dots(ino, &located, offset, take)? {
            return Ok(());
        }
        let after = offset.saturating_sub(FIRST_OFFSET);
        match &located {
            Located::Root => {
                let names = self.store().tenants()?;
                let attr_of = |name: &str| self.attr_of(&Located::Tenant(self.tenant_named(name)?));
                Self::list_names(self.store().each(names, attr_of), after, take)
            }
            Located::Tenant(tenant) => {
                let mut names = self.store().collections(tenant)?;
                let (mut unopened, mut failed) = (Vec::new(), None);
                match self.store().list_directories(tenant) {
                    Ok(None) => {}
                    directories => {
                        let known = directories.as_ref().ok().and_then(|known| known.clone());
                        failed = directories.err();
                        names.retain(|name| match self.unopened_attr(tenant, name) {
                            Some(attr) => {
                                unopened.push((name.clone(), Ok(attr)));
                                false
                            }
                            // Whoever looks it up waits for the remote, and gets the error. Names that are newer than the
                            // entries are opened.
                            None => {
                                known.as_ref().is_some_and(|known| !known.left_out.contains(name))
                                    || self.is_entered(tenant, name)
                                    || self.store().has_open(tenant, name)
                            }
                        });
                    }
                }
                if let Some(error) = failed.filter(|_| unopened.is_empty() && names.is_empty()) {
                    return Err(error);
                }
                let attr_of = |name: &str| self.attr_of_collection(tenant, name);
                // Open collections of a remote need no thread that waits for it.
                let is_near =
                    |name: &String| self.store().shows_snapshots() && self.store().has_open(tenant, name);
                let (near, far): (Vec<_>, Vec<_>) = names.into_iter().partition(is_near);
                let near = near.into_iter().map(|name| {
                    let attr = attr_of(&name);
                    (name, attr)
                });
                let others = near.chain(self.store().each(far, attr_of));
                Self::list_names(unopened.into_iter().chain(others), after, take)
            }
            Located::Node(view) => self.list_node(view, after, take, &|attr, _| Some(attr)),
            Located::Tags(view) => self.list_tagged(view, Viewer::All, offset, take),
            Located::Form(view) => {
                let mut after = after;
                loop {
                    let some = self.forms_after(view, after)?;
                    let Some((last, ..)) = some.last() else {
                        return self.list_versions(view, after, take);
                    };
                    after = *last;
                    for (place, name, view) in some {
                        let located = Located::Form(view);
                        let attr = self.attr(self.ino(&located)?, &located);
                        // The number may have become free while the attributes were made.
                        let attr = Attr { ino: self.ino(&located)?, ..attr };
                        if !take(Listed { offset: place + FIRST_OFFSET, name, attr }) {
                            return Ok(());
                        }
                    }
                }
            }
            Located::Control(view) if let Some(form) = &view.form => {
                self.list_form_control(view, form, after, take)
            }
            Located::Control(view) => match (&view.scope, self.directory_of(view)?) {
                (Scope::Collection(collection), Some(node)) => {
                    let below = FileView { collection: collection.clone(), node };
                    self.list_node(&below, after, take, &|attr, node| {
                        let row = self.row(view).filter(|_| self.is_in_tree(node))?;
                        Some(self.tree_attr(tree_ino(attr.ino, view.place)?, row, node))
                    })
                }
                _ => {
                    let controls = self.controls.of(&view.scope).iter().zip(1..);
                    let names = controls.map(|(control, place)| {
                        let view = ControlView { place, ..view.clone() };
                        (control.name.to_owned(), self.attr_of(&Located::Control(view)))
                    });
                    Self::list_names(names, after, take)
                }
            },
        }
    }

    /// Lists the versions of a collection, behind its forms.
    fn list_versions(&self, view: &FormView, after: u64, take: &mut dyn FnMut(Listed) -> bool) -> Result<()> {
        let collection = &view.collection;
        if view.of.is_some() || version_in(collection.name()).is_some() || self.store().shows_snapshots() {
            return Ok(());
        }
        for number in self.store().version_numbers(collection.place())? {
            let (place, name) = (VERSIONS_PLACE.saturating_add(number), format!("@{number}"));
            if place <= after {
                continue;
            }
            match self.version_named(collection, name.as_bytes()).and_then(|located| self.attr_of(&located)) {
                Ok(attr) => {
                    let listed = Listed { offset: place + FIRST_OFFSET, name: name.into_bytes(), attr };
                    if !take(listed) {
                        return Ok(());
                    }
                }
                // Damaged: the others can still be listed.
                Err(error) => log::warn!("{name} is left out of the listing: {error}"),
            }
        }
        Ok(())
    }

    /// Lists `.` and `..` after `offset`. Returns whether `take` goes on.
    pub(super) fn list_dots(
        &self,
        ino: Ino,
        located: &Located,
        offset: u64,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<bool> {
        if offset >= FIRST_OFFSET {
            return Ok(true);
        }
        let parent = self.parent(located)?;
        let own = self.attr(ino, located);
        for (place, (name, attr)) in [(".", own), ("..", parent)].into_iter().enumerate() {
            let listed = Listed { offset: place as u64 + 1, name: name.into(), attr };
            if offset < listed.offset && !take(listed) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The attributes of the parent directory; the mount is its own parent.
    fn parent(&self, located: &Located) -> Result<Attr> {
        let above = match located {
            Located::Root | Located::Tenant(_) => Located::Root,
            Located::Control(view) => self.above_control(view)?,
            Located::Form(view) => self.above_form(view)?,
            Located::Tags(view) => self.above_tags(view),
            Located::Node(FileView { collection, node }) => {
                let state = collection.state();
                let above = state.above(node.entry.id).and_then(|above| state.shown(above));
                match above {
                    Some(node) => Located::Node(FileView { collection: collection.clone(), node }),
                    None => Located::Tenant(collection.tenant().to_owned()),
                }
            }
        };
        Ok(self.attr(self.ino(&above)?, &above))
    }

    /// Lists names without numbers in a log. Their places derive from their targets, so that creating or
    /// removing a name moves no other.
    fn list_names(
        names: impl Iterator<Item = (String, Result<Attr>)>,
        after: u64,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<()> {
        let mut found = Vec::new();
        for (name, attr) in names {
            match attr {
                Ok(attr) => found.push((place_of(attr.ino), attr, name)),
                // Incomplete or damaged: the others can still be listed.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => log::warn!("{name} is left out of the listing: {error}"),
            }
        }
        found.sort_by_key(|(place, ..)| *place);
        for (place, attr, name) in found.into_iter().filter(|(place, ..)| *place > after) {
            if !take(Listed { offset: place + FIRST_OFFSET, name: name.into_bytes(), attr }) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn attr_of(&self, located: &Located) -> Result<Attr> {
        Ok(self.attr(self.ino(located)?, located))
    }

    /// The attributes of a collection's directory. One that was closed since they were last computed is not opened.
    fn attr_of_collection(&self, tenant: &str, name: &str) -> Result<Attr> {
        let known = match self.store().closed_summary::<RootAttr>(tenant, name) {
            Some(known) => known,
            None => {
                let collection = self.collection_named(tenant, name)?;
                collection.summarized(|| {
                    let node = collection.state().node(ROOT).cloned();
                    let view = node.map(|node| FileView { collection: collection.clone(), node });
                    RootAttr(view.and_then(|view| self.attr_of(&Located::Node(view)).ok()))
                })
            }
        };
        known.0.ok_or_else(|| Error::corrupt("a collection without a node"))
    }

    /// Lists a directory of a collection. `shown_as` gives the attributes of each node, or `None` to
    /// leave it out; it runs under the lock of the collection's state.
    fn list_node(
        &self,
        view: &FileView,
        after: u64,
        take: &mut dyn FnMut(Listed) -> bool,
        shown_as: &dyn Fn(Attr, &Arc<Node>) -> Option<Attr>,
    ) -> Result<()> {
        let mut after = after;
        while let Some((last, some)) = self.some_after(view, after, shown_as)? {
            after = last;
            for listed in some {
                if !take(listed) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Some names after a place, with the last place; `None` if there are no more.
    fn some_after(
        &self,
        view: &FileView,
        after: u64,
        shown_as: &dyn Fn(Attr, &Arc<Node>) -> Option<Attr>,
    ) -> Result<Option<(u64, Vec<Listed>)>> {
        // Read before the log, so that the log's answer is at least as new.
        let written = self.written_in(&view.collection);
        let state = view.collection.state();
        let directory = view.node.entry.id;
        let with_tensors =
            self.list_mode(&state, directory) == ListMode::Both && state.has_plain_names(directory);
        let listed = state.listed(directory, after, with_tensors, LISTED);
        let listed = listed.ok_or_else(|| Error::new(ErrorKind::NotDirectory, "not a directory"))?;
        let Some((last, ..)) = listed.last() else { return Ok(None) };
        let (last, number) = (*last, state.number());
        let shown = listed.into_iter().filter_map(|(place, name, node)| {
            let node = state.shown(node)?;
            let ino = Ino::of(Place::Node { collection: number, node: node.entry.id })?;
            let plain = ino.plain().filter(|_| is_plain_name(&state, directory, &node));
            let attr = Attr::node(plain.unwrap_or(ino), &node, &state);
            let attr = attr.with(written.get(&node.entry.id).copied());
            let attr = shown_as(attr, &node)?;
            Some(Listed { offset: place + FIRST_OFFSET, name: name.to_vec(), attr })
        });
        Ok(Some((last, shown.collect())))
    }
}

/// The inode number of a node's mirror in a tree of controls.
fn tree_ino(node: Ino, place: u32) -> Option<Ino> {
    match node.place() {
        Place::Node { collection, node } => {
            Ino::of(Place::Control { owner: Owner::Collection(collection), place, node })
        }
        _ => None,
    }
}

/// The place of a name without a number in a log: its collection's number, its tenant's, or its
/// place in the table of control files.
fn place_of(ino: Ino) -> u64 {
    match ino.place() {
        Place::Root => 0,
        Place::Tenant(number) => number,
        Place::Node { collection, .. } => u64::from(collection),
        Place::Control { place, .. } | Place::FormControl { place, .. } => u64::from(place),
        Place::Form { form, .. } => u64::from(form),
        Place::Numbered { form, .. } => u64::from(form),
    }
}
