//! Control directories: `.ctl` of the mount, of a tenant, of a collection, and the trees in them that
//! mirror a collection. A layer above passes the table of control files and implements them.

use std::sync::Arc;

use crate::model::{ENTER_BITS, EntryId, Error, ErrorKind, OWNER_BITS, READ_BITS, Result};
use crate::store::{Node, ROOT};
use crate::vfs::tree::attr::{Attr, Kind, STAT_BLOCK_BYTES};
use crate::vfs::tree::ino::{Ino, Owner};
use crate::vfs::tree::location::{
    Control, ControlView, FORMS_NAME, FileView, Located, Scope, Shape, no_name,
};
use crate::vfs::tree::vfs::Vfs;

impl Vfs {
    /// The control of an inode number, if its scope and node exist.
    pub(super) fn control(&self, owner: Owner, place: u32, node: EntryId) -> Option<ControlView> {
        let scope = match owner {
            Owner::Mount => Scope::Mount,
            Owner::Tenant(number) => Scope::Tenant(self.tenant_numbered(number)?),
            Owner::Collection(number) => Scope::Collection(self.numbered(number).ok()??),
        };
        if let (Scope::Collection(collection), ROOT) = (&scope, node) {
            let tree = ControlView { scope: scope.clone(), place, node: None, form: None };
            if let Some(forms) = tree.forms_named(collection, FORMS_NAME.as_bytes()) {
                return Some(forms);
            }
        }
        let node = match (&scope, node) {
            (_, EntryId(0)) => None,
            (Scope::Collection(collection), node) => Some(collection.state().shown(node)?),
            _ => return None,
        };
        Some(ControlView { scope, place, node, form: None })
    }

    /// The row of the table; `None` for a control directory.
    pub fn row(&self, view: &ControlView) -> Option<&'static Control> {
        self.controls.of(&view.scope).get((view.place as usize).checked_sub(1)?)
    }

    /// Looks up a name in a control directory, or in a tree of one.
    pub(super) fn control_named(&self, view: ControlView, name: &[u8]) -> Result<ControlView> {
        if let Some(form) = &view.form {
            return self.form_control_named(&view, form, name);
        }
        match (&view.scope, self.directory_of(&view)?) {
            (Scope::Collection(collection), Some(directory)) => {
                if let Some(forms) = view.forms_named(collection, name) {
                    return Ok(forms);
                }
                let state = collection.state();
                let found = state.find_any(directory.entry.id, name).and_then(|found| state.shown(found));
                let found = found.ok_or_else(|| no_name(name))?;
                drop(state);
                if self.is_in_tree(&found) {
                    Ok(ControlView { node: Some(found), ..view })
                } else {
                    Err(no_name(name))
                }
            }
            _ => {
                let rows = self.controls.of(&view.scope);
                let place = rows.iter().position(|row| row.name.as_bytes() == name);
                let place = place.ok_or_else(|| no_name(name))? as u32 + 1;
                Ok(ControlView { place, ..view })
            }
        }
    }

    /// The directory of the collection that a directory of a tree mirrors; `None` for a control
    /// directory. Fails with `NotDirectory` for a file.
    pub(super) fn directory_of(&self, view: &ControlView) -> Result<Option<Arc<Node>>> {
        let not_directory = || Error::new(ErrorKind::NotDirectory, "a control file is not a directory");
        if view.place == 0 {
            return Ok(None);
        }
        if self.row(view).is_none_or(|row| row.shape != Shape::Tree) {
            return Err(not_directory());
        }
        match (&view.node, &view.scope) {
            (Some(node), _) if node.file().is_none() => Ok(Some(node.clone())),
            (None, Scope::Collection(collection)) => {
                let node = collection.state().node(ROOT).cloned();
                node.map(Some).ok_or_else(|| Error::corrupt("a collection without a node"))
            }
            _ => Err(not_directory()),
        }
    }

    /// Whether trees contain a node: they contain no symbolic links.
    pub(super) fn is_in_tree(&self, node: &Node) -> bool {
        node.file().is_some()
            || matches!(node.entry.node_type, crate::format::log::catalog::NodeType::Directory)
    }

    /// The attributes of a control.
    pub(super) fn control_attr(&self, ino: Ino, view: &ControlView) -> Attr {
        let row = self.row(view);
        if let Some(row) = row.filter(|row| row.shape == Shape::Tree)
            && let Scope::Collection(collection) = &view.scope
        {
            if let Some(attr) = view.form.as_ref().and_then(|form| self.form_control_attr(ino, row, form)) {
                return attr;
            }
            // The root of a tree mirrors the collection's own directory.
            let root = || collection.state().node(ROOT).cloned();
            if let Some(node) = view.node.clone().or_else(root) {
                return self.tree_attr(ino, row, &node);
            }
        }
        let owner = match &view.scope {
            Scope::Collection(collection) if !row.is_some_and(|row| row.is_private) => {
                let node = collection.state().node(ROOT).cloned();
                node.map_or(self.mounted.by, |node| node.entry.owner())
            }
            Scope::Tenant(name) => self.tenant_owner(name),
            _ => self.mounted.by,
        };
        let attr = Attr::directory(ino, ENTER_BITS, self.mounted.at, owner);
        match row {
            Some(row) => {
                let (start, end) = self.store().events().range();
                let bytes = if row.shape == Shape::Growing { end - start } else { 0 };
                let blocks = bytes.div_ceil(STAT_BLOCK_BYTES);
                Attr { kind: Kind::File, links: 1, mode: row.mode, bytes, blocks, ..attr }
            }
            None => attr,
        }
    }

    /// The attributes of a directory or a file in a tree. Users who may read or enter the mirrored
    /// node may do so here.
    pub(super) fn tree_attr(&self, ino: Ino, row: &Control, node: &Node) -> Attr {
        let entry = &node.entry;
        let (owner, may) =
            if row.is_private { (self.mounted.by, OWNER_BITS) } else { (entry.owner(), entry.mode) };
        let directory = Attr::directory(ino, ENTER_BITS & may, entry.ctime, owner);
        match node.file() {
            Some(_) => Attr { kind: Kind::File, links: 1, mode: row.mode & READ_BITS & may, ..directory },
            None => directory,
        }
    }

    /// The directory above a control.
    pub(super) fn above_control(&self, view: &ControlView) -> Result<Located> {
        if let Some(form) = &view.form {
            return self.above_form_control(view, form).map(Located::Control);
        }
        let above = match (&view.scope, &view.node) {
            (Scope::Collection(collection), Some(node)) => {
                let state = collection.state();
                let parent = state.above(node.entry.id).filter(|parent| *parent != ROOT);
                ControlView { node: parent.and_then(|parent| state.shown(parent)), ..view.clone() }
            }
            _ if view.place > 0 => ControlView::top(view.scope.clone()),
            (Scope::Mount, _) => return Ok(Located::Root),
            (Scope::Tenant(tenant), _) => return Ok(Located::Tenant(tenant.clone())),
            (Scope::Collection(collection), _) => {
                let node = collection.state().node(ROOT).cloned();
                let node = node.ok_or_else(|| Error::corrupt("a collection without a node"))?;
                return Ok(Located::Node(FileView { collection: collection.clone(), node }));
            }
        };
        Ok(Located::Control(above))
    }
}
