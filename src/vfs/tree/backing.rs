//! The choice of files that the kernel may read by passthrough, without the daemon.

use std::sync::Arc;

use crate::model::{Error, ErrorKind, Result};
use crate::store::Collection;
use crate::store::Object;
use crate::store::Pin;
use crate::store::Verify;
use crate::store::{Backing, Unchecked};
use crate::stream::may_show_other_hash;
use crate::vfs::form;
use crate::vfs::open::OpenFile;
use crate::vfs::tree::form_numbers::ShownNode;
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::location::{FileView, Located};
use crate::vfs::tree::vfs::Vfs;

impl Vfs {
    /// The physical file whose bytes equal those of a file now, if there is one.
    pub fn backing(&self, ino: Ino) -> Option<Backing> {
        if self.verify != Verify::First {
            return None;
        }
        // Checked first, because most files are tensors somewhere in a container.
        if let Place::Node { collection, node } = ino.place() {
            let collection = self.numbered(collection).ok().flatten();
            let is_never = collection.is_some_and(|collection| {
                let state = collection.state();
                state.node(node).is_some_and(|node| state.is_never_backed(node))
            });
            if is_never {
                return None;
            }
        }
        // Read before the log, so that the log's answer is at least as new.
        let open_file = self.open_file(ino);
        if open_file.as_ref().is_some_and(|open_file| open_file.is_changed()) {
            return None;
        }
        match self.locate(ino) {
            Ok(Located::Node(view)) => {
                view.node.file()?;
                let (collection, node) = (&view.collection, view.node.entry.id);
                let (objects, assembly) = collection.parts_of(node).ok()?;
                if may_show_other_hash(collection, node) {
                    return None;
                }
                let copied = self.copy_of(collection, Pin::file(node), &objects);
                let whole = || collection.backing_of(objects).filter(|_| assembly.is_none());
                copied.or_else(whole)
            }
            Ok(Located::Form(view)) => {
                let (form, item) = view.of.as_ref()?;
                let collection = &view.collection;
                let pin = form::pin_of(collection, *form, item).ok()?;
                // Checked for each name that is looked up, and few are pinned.
                collection.state().pins_of(pin.node).find(|known| *known == pin)?;
                if form::has_other_sources(collection, *form, item) {
                    return None;
                }
                let source =
                    Ino::of(Place::Node { collection: collection.state().number(), node: pin.node })?;
                if self.open_file(source).is_some_and(|open_file| open_file.is_changed()) {
                    return None;
                }
                self.copy_of(collection, pin, &collection.objects_of(pin.node).ok()?)
            }
            Ok(_) => None,
            // The last name is gone, but the file may be open, or be opened through a descriptor.
            Err(_) => open_file?.backing(),
        }
    }

    /// A file of at least `bytes_min` bytes that the kernel could read by passthrough if all of its
    /// blocks were verified, and whose unverified blocks seem to be in the page cache.
    pub fn unchecked(&self, ino: Ino, bytes_min: u64) -> Option<Unchecked> {
        if self.verify != Verify::First {
            return None;
        }
        let Ok(Located::Node(view)) = self.locate(ino) else { return None };
        let (collection, node) = (&view.collection, view.node.entry.id);
        // Checked first, because most opened files are small, or lie somewhere in a container.
        let bytes: u64 = {
            let state = collection.state();
            let objects = view.node.file()?.objects.iter();
            objects.filter_map(|id| state.object(*id)).map(|object| object.bytes()).sum()
        };
        if bytes < bytes_min || self.open_file(ino).is_some_and(|open_file| open_file.is_changed()) {
            return None;
        }
        let (objects, assembly) = collection.parts_of(node).ok()?;
        if assembly.is_some() || may_show_other_hash(collection, node) {
            return None;
        }
        collection.unchecked_of(&objects)
    }

    /// The copy of a pinned item. Queues a copy that must still be compared or created.
    fn copy_of(&self, collection: &Arc<Collection>, pin: Pin, objects: &[Arc<Object>]) -> Option<Backing> {
        let (copy, lacks) = {
            let state = collection.state();
            (state.copy_of(pin).cloned(), state.lacks_copy(pin))
        };
        let is_looked_at = copy.as_ref().map_or(!lacks, |copy| copy.is_sound() == Some(true));
        if !is_looked_at {
            self.engine().note_pin(collection, pin);
        }
        collection.backing_of_copy(&copy?, objects.to_vec())
    }

    /// Queues the missing copies of pinned items of these files.
    pub fn note_pins(&self, files: impl IntoIterator<Item = Ino>) {
        for ino in files {
            let Ok(Located::Node(view)) = self.locate(ino) else { continue };
            let lacking: Vec<Pin> = {
                let state = view.collection.state();
                state.pins_of(view.node.entry.id).filter(|pin| state.lacks_copy(*pin)).collect()
            };
            lacking.into_iter().for_each(|pin| self.engine().note_pin(&view.collection, pin));
        }
    }

    /// Opens a file whose last name may be gone.
    pub fn open_numbered(&self, ino: Ino) -> Result<Arc<OpenFile>> {
        match self.locate(ino) {
            Ok(Located::Node(view)) => self.open(&view),
            Ok(Located::Form(view)) => match view.of.as_ref().and_then(|(_, item)| item.node()) {
                Some(node) => {
                    self.open(&FileView { collection: view.collection.clone(), node: node.clone() })
                }
                None => Err(Error::new(ErrorKind::IsDirectory, "not a file")),
            },
            Ok(_) => Err(Error::new(ErrorKind::IsDirectory, "not a file")),
            Err(error) => self.open_file(ino).ok_or(error),
        }
    }

    /// The other files that share bytes with a file: the tensors of a container, the container of a tensor, and its
    /// views. For a form, also the files that it is made of.
    pub fn sharing(&self, ino: Ino) -> Vec<Ino> {
        if let Some(ShownNode { collection, node }) = self.shown_by(ino) {
            let sources =
                Ino::of(Place::Node { collection, node }).into_iter().chain(self.adapter_sources(ino));
            return sources.flat_map(|own| self.sharing(own).into_iter().chain([own])).collect();
        }
        let Ok(Located::Node(view)) = self.locate(ino) else { return Vec::new() };
        let state = view.collection.state();
        let Some(file) = view.node.file() else { return Vec::new() };
        let own = view.node.entry.id;
        let container = file.container.and_then(|container| state.node(container)?.file());
        let views = container.into_iter().flat_map(|container| state.views(container));
        // The objects of a view are those of other tensors.
        let under = file.view.as_ref().and_then(|_| state.parts_of(file).ok()).map(|(objects, _)| objects);
        let under = under.into_iter().flatten().filter_map(|object| state.part_of(object.entry.id));
        let parts = state.parts(file).chain(views).map(|part| part.entry.id).chain(under);
        let others = parts.chain(file.container).filter(|id| *id != own);
        let number = state.number();
        others.filter_map(|node| Ino::of(Place::Node { collection: number, node })).collect()
    }
}
