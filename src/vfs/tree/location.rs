//! The targets of paths: tenants, nodes of collections, controls, forms.

use std::sync::Arc;

use crate::format::log::catalog::NodeType;
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::{Collection, Node, ROOT, Store};
use crate::vfs::form::{self, Form, Item};
use crate::vfs::tree::ino::{Owner, Place};
use crate::vfs::tree::tag_places::TagsView;

/// The control directory of the mount, of each tenant and of each collection. Listings hide it, as they
/// hide [`TENSORS_NAME`](crate::store::TENSORS_NAME) of each directory of a collection.
pub const CONTROL_NAME: &str = ".ctl";

/// The directory of forms in each collection. Listings hide it.
pub const FORMS_NAME: &str = ".as";

/// The node that stands for the whole collection.
pub(super) const WHOLE: EntryId = EntryId(0);

/// The target of a path.
#[derive(Clone)]
pub enum Located {
    /// The directory of tenants.
    Root,
    Tenant(String),
    /// A node of a collection.
    Node(FileView),
    /// A control directory, or something in it.
    Control(ControlView),
    /// The directory of a collection's forms, or something in it.
    Form(FormView),
    /// The directory of tags, or something in it.
    Tags(TagsView),
}

impl Located {
    /// The target of a symbolic link.
    pub fn link_target(&self) -> Result<Vec<u8>> {
        let none = || Error::invalid("not a symbolic link");
        match self {
            Located::Node(view) => match &view.node.entry.node_type {
                NodeType::Symlink(target) => Ok(target.clone()),
                _ => Err(none()),
            },
            Located::Tags(view) => view.target().ok_or_else(none),
            Located::Form(view) => view.link_target().ok_or_else(none),
            _ => Err(none()),
        }
    }
}

/// A node of a collection, as of its lookup.
#[derive(Clone)]
pub struct FileView {
    pub collection: Arc<Collection>,
    pub node: Arc<Node>,
}

impl FileView {
    /// Its path in the mount.
    pub fn path(&self) -> String {
        let below = self.collection.state().path(self.node.entry.id);
        match below.is_empty() {
            true => self.collection.path(),
            false => format!("{}/{}", self.collection.path(), String::from_utf8_lossy(&below)),
        }
    }
}

/// The directory of forms, or something in it.
#[derive(Clone)]
pub struct FormView {
    pub collection: Arc<Collection>,
    /// Which form, and which item of it; `None` for the directory of forms itself.
    pub of: Option<(Form, Item)>,
}

impl FormView {
    /// The target of a symbolic link, as the form shows it.
    pub(super) fn link_target(&self) -> Option<Vec<u8>> {
        let (form, item) = self.of.as_ref()?;
        form::link_target(*form, &self.collection.state(), item.node()?)
    }

    /// The path of its source in the mount.
    pub fn path(&self) -> String {
        match self.of.as_ref().and_then(|(_, item)| item.node()) {
            Some(node) => FileView { collection: self.collection.clone(), node: node.clone() }.path(),
            None => self.collection.path(),
        }
    }
}

/// A row in the table of control files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    pub name: &'static str,
    /// The kind of file.
    pub shape: Shape,
    /// Permission bits. In a tree they mask those of the files.
    pub mode: u32,
    /// Whether only the user who runs the mount has access, for any owner of the collection.
    pub is_private: bool,
}

/// The kind of a control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    File,
    /// The event log: it grows while it is open, and its size is exact.
    Growing,
    /// A directory that mirrors the collection: a file for each of its files.
    Tree,
}

/// The tables of control files, in the order of their places.
#[derive(Clone, Copy, Debug)]
pub struct Controls {
    pub mount: &'static [Control],
    pub tenant: &'static [Control],
    pub collection: &'static [Control],
}

impl Controls {
    /// The table of a scope.
    pub fn of(&self, scope: &Scope) -> &'static [Control] {
        match scope {
            Scope::Mount => self.mount,
            Scope::Tenant(_) => self.tenant,
            Scope::Collection(_) => self.collection,
        }
    }
}

/// The scope of a control.
#[derive(Clone)]
pub enum Scope {
    Mount,
    Tenant(String),
    Collection(Arc<Collection>),
}

/// A control directory, or something in it.
#[derive(Clone)]
pub struct ControlView {
    pub scope: Scope,
    /// The place in the table, counted from 1; 0 is the directory itself.
    pub place: u32,
    /// In a tree, the node that it mirrors; `None` for the tree itself.
    pub node: Option<Arc<Node>>,
    /// In a tree, the directory of forms or the file of a form that it mirrors instead.
    pub form: Option<FormView>,
}

impl ControlView {
    pub fn top(scope: Scope) -> ControlView {
        ControlView { scope, place: 0, node: None, form: None }
    }

    /// In a tree, the file of the collection that it mirrors.
    pub fn file(&self) -> Option<FileView> {
        match (&self.scope, &self.node) {
            (Scope::Collection(collection), Some(node)) => {
                Some(FileView { collection: collection.clone(), node: node.clone() })
            }
            _ => None,
        }
    }

    /// Whether it mirrors a file, of the collection or of a form.
    pub fn mirrors_file(&self) -> bool {
        let shown = self.form.as_ref().and_then(|form| form.of.as_ref()?.1.node());
        self.node.as_ref().or(shown).is_some_and(|node| node.file().is_some())
    }

    /// The path of its scope in the mount; empty for the mount itself.
    pub fn path(&self) -> String {
        if let Some(form) = &self.form {
            return form.path();
        }
        match (&self.scope, self.file()) {
            (_, Some(file)) => file.path(),
            (Scope::Mount, _) => String::new(),
            (Scope::Tenant(tenant), _) => tenant.clone(),
            (Scope::Collection(collection), _) => collection.path(),
        }
    }

    pub(super) fn number_in(&self, store: &Store) -> Place {
        let owner = match &self.scope {
            Scope::Mount => Owner::Mount,
            Scope::Tenant(name) => Owner::Tenant(store.tenant_number(name)),
            Scope::Collection(collection) => Owner::Collection(collection.state().number()),
        };
        if let Some(place) = self.form_place() {
            return place;
        }
        // The root of a tree has no node, so the number of the collection's own directory stands for the directory of forms.
        let none = if self.form.is_some() { ROOT } else { EntryId(0) };
        let node = self.node.as_ref().map_or(none, |node| node.entry.id);
        Place::Control { owner, place: self.place, node }
    }
}

/// The error of a name that leads nowhere.
pub(super) fn no_name(name: &[u8]) -> Error {
    Error::new(ErrorKind::NotFound, format!("{}: there is no such file", String::from_utf8_lossy(name)))
}
