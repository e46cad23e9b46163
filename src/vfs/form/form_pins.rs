//! Pins of files in forms.

use std::sync::Arc;

use crate::engine::Forms;
use crate::format::log::catalog::Content;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Pin;
use crate::store::Verify;
use crate::store::{Collection, Store};
use crate::stream::Stream;
use crate::vfs::form::kind::{Form, Shows};
use crate::vfs::form::names::Item;
use crate::vfs::form::plan::{plan, published};
use crate::vfs::form::weights::objects_beside;

/// Provides the bytes of pinned files in forms.
pub struct PinnedForms(pub Arc<Store>);

/// The pin of a file in a form. Fails with `Denied` for a file that is made of several files.
pub fn pin_of(collection: &Collection, form: Form, item: &Item) -> Result<Pin> {
    let refused = |text: &str| Err(Error::new(ErrorKind::Denied, text));
    let node = match item {
        Item::Whole => return refused("this form is assembled from many files; pin those files"),
        Item::Node(node) | Item::Index(node) => node,
    };
    if matches!(form, Form::Merged(_)) {
        return refused("this form follows the files of two directories; pin those, or export it");
    }
    if matches!(form, Form::Rows(_)) {
        return refused("this form follows the files of a directory; pin those");
    }
    let Some(file) = node.file() else {
        return refused("only files of a form can be pinned, not its directories");
    };
    if let Shows::Model(_) = form.shows() {
        return refused("this form is made of several files; pin those files");
    }
    let state = collection.state();
    let container = file.container.and_then(|id| state.node(id)).and_then(|node| node.file());
    if form == Form::Cgeb && container.is_some_and(|container| container.content == Content::Cgeb) {
        return refused("this form shows the imported batch and its index; pin the batch itself");
    }
    match item.number_in(form) {
        Some(form) => Ok(Pin { node: node.entry.id, form }),
        None => {
            refused("files of this form cannot be pinned; export it, or pin the files that it is made of")
        }
    }
}

/// Whether the bytes of a form's file follow from other files too, whose changes do not end its copy: codes of weights have
/// their scales in other tensors.
pub fn has_other_sources(collection: &Arc<Collection>, form: Form, item: &Item) -> bool {
    let is_cast = matches!(form.shows(), Shows::Cast(_));
    is_cast && item.node().is_none_or(|node| !objects_beside(collection, node).is_empty())
}

impl Forms for PinnedForms {
    fn stream(&self, collection: &Arc<Collection>, pin: Pin, verify: Verify) -> Result<Stream> {
        let none = || Error::new(ErrorKind::NotFound, "the form does not exist");
        let (form, is_index) = Form::from_number(pin.form).ok_or_else(none)?;
        let node = collection.state().node(pin.node).cloned().ok_or_else(none)?;
        let item = if is_index { Item::Index(node) } else { Item::Node(node) };
        let published = published(&self.0, collection, form)?;
        plan(collection, published.as_ref(), self.0.settings(), form, &item)?.stream(verify)
    }
}
