//! The pinned copy that has the bytes of a file or of a form in one piece.

use std::sync::Arc;

use crate::control::context::Context;
use crate::model::{Error, ErrorKind, ObjectId, Result};
use crate::store::{Collection, Pin, PinnedCopy};
use crate::stream::may_show_other_hash;
use crate::vfs::form::{has_other_sources, pin_of};
use crate::vfs::{ControlView, FileView, FormView, Ino, Place};

/// A file or a form, as a part of a copy.
pub(super) struct CopyPart {
    pub collection: Arc<Collection>,
    /// The pin that the copy belongs to.
    pub pin: Pin,
    pub copy: Arc<PinnedCopy>,
    /// Offset of the bytes in the copy.
    pub offset: u64,
    /// Length of the part.
    pub bytes: u64,
}

impl CopyPart {
    /// The path of the copy below the store.
    pub fn path(&self) -> String {
        self.collection.pinned_path(self.copy.number)
    }

    /// Compares the copy with its BLAKE3, and reports a corrupt one. A copy that was removed meanwhile is not corrupt.
    pub fn is_corrupt(&self) -> bool {
        let Self { collection, pin, copy, .. } = self;
        !collection.is_still_sound(*pin, copy, &|| false) && collection.has_copy(*pin, copy)
    }
}

/// The copy that has the present bytes of a mirrored file, if there is one, and it was not found corrupt.
pub(super) fn part_of_copy(context: &Context) -> Result<Option<CopyPart>> {
    let ControlView { form, .. } = context.view;
    let (part, is_current) = match form {
        Some(form) => {
            let of = form.of.as_ref();
            let is_current =
                of.is_some_and(|(shown, item)| !has_other_sources(&form.collection, *shown, item));
            (of_form(form)?, is_current)
        }
        None => {
            let view = context.file()?;
            let is_current = !may_show_other_hash(&view.collection, view.node.entry.id);
            (of_file(&view), is_current)
        }
    };
    let Some(part) = part.filter(|_| is_current) else { return Ok(None) };
    // A write that waits for a batch is in no copy.
    let objects = part.collection.objects_of(part.pin.node)?;
    let node = Place::Node { collection: part.collection.state().number(), node: part.pin.node };
    let open_file = Ino::of(node).and_then(|ino| context.mounted.vfs.open_file(ino));
    let is_written = open_file.is_some_and(|open_file| open_file.is_changed())
        || objects.iter().any(|object| object.is_dirty());
    let is_out = is_written || part.collection.damage().is_some() || part.copy.is_sound() == Some(false);
    Ok(Some(part).filter(|_| !is_out))
}

/// The part of the copy of a file, or of the container of a tensor.
fn of_file(view: &FileView) -> Option<CopyPart> {
    let collection = &view.collection;
    let state = collection.state();
    let file = state.node(view.node.entry.id)?.file()?;
    let pin = Pin::file(view.node.entry.id);
    if let Some(copy) = state.copy_of(pin).cloned() {
        let bytes = copy.bytes;
        return Some(CopyPart { collection: collection.clone(), pin, copy, offset: 0, bytes });
    }
    let pin = Pin::file(file.container?);
    let copy = state.copy_of(pin)?.clone();
    let container = state.node(pin.node)?.file()?;
    // The objects of a view, and those of a batch, lie in another order.
    if file.view.is_some() || container.records.is_some() {
        return None;
    }
    let first = file.objects.first()?;
    let place = container.objects.iter().position(|object| object == first)?;
    let there = container.objects.get(place..)?.get(..file.objects.len())?;
    let bytes = |ids: &[ObjectId]| -> u64 {
        ids.iter().filter_map(|id| state.object(*id)).map(|object| object.logged_layout().bytes).sum()
    };
    let is_there = there.iter().eq(file.objects.iter());
    is_there.then_some(())?;
    let (offset, bytes) = (bytes(container.objects.get(..place)?), bytes(there));
    Some(CopyPart { collection: collection.clone(), pin, copy, offset, bytes })
}

/// The copy of a form's file.
fn of_form(view: &FormView) -> Result<Option<CopyPart>> {
    let directory = || Error::new(ErrorKind::IsDirectory, "is a directory of control files");
    let (form, item) = view.of.as_ref().ok_or_else(directory)?;
    let pin = match pin_of(&view.collection, *form, item) {
        // It cannot be pinned.
        Err(error) if error.kind() == ErrorKind::Denied => return Ok(None),
        pin => pin?,
    };
    let copy = view.collection.state().copy_of(pin).cloned();
    Ok(copy.map(|copy| {
        let (collection, bytes) = (view.collection.clone(), copy.bytes);
        CopyPart { collection, pin, copy, offset: 0, bytes }
    }))
}
