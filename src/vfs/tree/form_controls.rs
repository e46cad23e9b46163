//! The mirrors of forms in trees of controls: `.ctl/extents/.as/FORM/...` is about the file `.as/FORM/...`. Only forms whose
//! files can be pinned have them.

use std::sync::Arc;

use crate::model::{EntryId, Result};
use crate::store::{Collection, Node, ROOT};
use crate::vfs::form::Shows;
use crate::vfs::tree::attr::Attr;
use crate::vfs::tree::ino::{Ino, MIRRORED_FORMS, Place};
use crate::vfs::tree::list::{FIRST_OFFSET, Listed};
use crate::vfs::tree::location::{Control, ControlView, FORMS_NAME, FormView, Located, Scope, no_name};
use crate::vfs::tree::vfs::Vfs;

impl ControlView {
    /// A mirror of the directory of forms, or of something in it.
    fn of_form(&self, form: FormView) -> ControlView {
        ControlView { node: None, form: Some(form), ..self.clone() }
    }

    /// The mirror of the directory of forms, if `name` leads to it from the root of a tree.
    pub(super) fn forms_named(&self, collection: &Arc<Collection>, name: &[u8]) -> Option<ControlView> {
        let is_root = self.node.is_none() && MIRRORED_FORMS.contains(&self.place);
        let forms = FormView { collection: collection.clone(), of: None };
        (is_root && name == FORMS_NAME.as_bytes()).then(|| self.of_form(forms))
    }

    /// The place of a mirror. `None` for any other control.
    pub(super) fn form_place(&self) -> Option<Place> {
        let FormView { collection, of } = self.form.as_ref()?;
        let (collection, place) = (collection.state().number(), self.place);
        let (form, item) = of.as_ref()?;
        let node = item.node().map_or(EntryId(0), |node| node.entry.id);
        Some(Place::FormControl { collection, place, form: item.number_in(*form)?, node })
    }
}

impl Vfs {
    /// The mirror that an inode number leads to, if its collection and node exist.
    pub(super) fn form_control(
        &self,
        collection: u32,
        place: u32,
        form: u8,
        node: EntryId,
    ) -> Option<ControlView> {
        let form = self.form(collection, form, node)?;
        let collection = form.collection.clone();
        Some(ControlView { scope: Scope::Collection(collection), place, node: None, form: Some(form) })
    }

    /// Looks up a name in a mirror.
    pub(super) fn form_control_named(
        &self,
        view: &ControlView,
        form: &FormView,
        name: &[u8],
    ) -> Result<ControlView> {
        let found = self.form_named(form, name)?;
        if self.is_mirrored(&found) { Ok(view.of_form(found)) } else { Err(no_name(name)) }
    }

    /// Whether mirrors contain a file or directory of a form.
    fn is_mirrored(&self, view: &FormView) -> bool {
        let Some((form, item)) = &view.of else { return true };
        let may_be_pinned = item.number_in(*form).is_some() && form.shows() != Shows::Digests;
        may_be_pinned && item.node().is_some_and(|node| self.is_in_tree(node))
    }

    /// The attributes of a mirror.
    pub(super) fn form_control_attr(&self, ino: Ino, row: &Control, form: &FormView) -> Option<Attr> {
        Some(self.tree_attr(ino, row, node_of(form)?.as_ref()))
    }

    /// The directory above a mirror.
    pub(super) fn above_form_control(&self, view: &ControlView, form: &FormView) -> Result<ControlView> {
        Ok(match self.above_form(form)? {
            Located::Form(above) => view.of_form(above),
            _ => ControlView { form: None, ..view.clone() },
        })
    }

    /// Lists a mirror after a place, until `take` returns `false`.
    pub(super) fn list_form_control(
        &self,
        view: &ControlView,
        form: &FormView,
        after: u64,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<()> {
        let mut after = after;
        loop {
            let some = self.forms_after(form, after)?;
            let Some((last, ..)) = some.last() else { return Ok(()) };
            after = *last;
            for (place, name, found) in some {
                if !self.is_mirrored(&found) {
                    continue;
                }
                let located = Located::Control(view.of_form(found));
                // A node with too large a number has no mirror.
                let Ok(ino) = self.ino(&located) else { continue };
                let attr = self.attr(ino, &located);
                if !take(Listed { offset: place + FIRST_OFFSET, name, attr }) {
                    return Ok(());
                }
            }
        }
    }
}

/// The node that a file or directory of a form shows.
fn node_of(form: &FormView) -> Option<Arc<Node>> {
    let shown = form.of.as_ref().and_then(|(_, item)| item.node()).map_or(ROOT, |node| node.entry.id);
    form.collection.state().shown(shown)
}
