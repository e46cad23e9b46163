//! Which files may be read where they lie, without the daemon.

use std::sync::Arc;

use crate::edit::Live;
use crate::model::{Error, ErrorKind, Result};
use crate::namespace::ino::{Ino, Place};
use crate::namespace::tree::{Located, Namespace};
use crate::store::backing::Backing;
use crate::store::read::Verify;

impl Namespace {
    /// The physical file that may be shown for a file as it is now, if there is one.
    pub fn backing(&self, ino: Ino) -> Option<Backing> {
        if self.verify != Verify::First {
            return None;
        }
        // Asked before the log: what it says then is not older.
        let live = self.live(ino);
        if live.as_ref().is_some_and(|live| live.is_changed()) {
            return None;
        }
        match self.locate(ino) {
            Ok(Located::Node(view)) => {
                view.node.file()?;
                let objects = view.collection.objects_of(view.node.entry.id).ok()?;
                view.collection.backing_of(objects)
            }
            Ok(_) => None,
            // Its last name went; it may be open, or be opened through a descriptor.
            Err(_) => live?.backing(),
        }
    }

    /// A file, opened, of which the last name may have gone.
    pub fn open_numbered(&self, ino: Ino) -> Result<Arc<Live>> {
        match self.locate(ino) {
            Ok(Located::Node(view)) => self.open(&view),
            Ok(_) => Err(Error::new(ErrorKind::IsDirectory, "not a file")),
            Err(error) => self.live(ino).ok_or(error),
        }
    }

    /// The other files that have bytes of a file: the tensors of a container, the container
    /// of a tensor.
    pub fn sharing(&self, ino: Ino) -> Vec<Ino> {
        let Ok(Located::Node(view)) = self.locate(ino) else { return Vec::new() };
        let state = view.collection.state();
        let Some(file) = view.node.file() else { return Vec::new() };
        let others = state.parts(file).map(|part| part.entry.id).chain(file.container);
        let number = state.number();
        others.filter_map(|node| Ino::of(Place::Node { collection: number, node })).collect()
    }
}
