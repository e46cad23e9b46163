//! Which physical file has a file's bytes from end to end, so that they can be read there.
//!
//! Blocks that the log describes are never written in place (`object` 1), and a data file
//! is not used again for other bytes: who reads the physical file sees what it was, and at
//! most what was written behind its end since.

use std::sync::Arc;

use crate::model::{Error, Result};
use crate::store::Collection;
use crate::store::disk::{File, Open};
use crate::store::object::Object;
use crate::store::pinned::PinnedCopy;

/// A physical file that has a file's bytes, offset by offset. What lies in it is not given
/// back while this lives.
#[derive(Clone, Debug)]
pub struct Backing {
    path: String,
    /// Its number, where it is a file outside the store.
    outside: Option<u64>,
    _objects: Vec<Arc<Object>>,
    /// Its stretches are not given back to the disk while somebody has this.
    _shown: Option<Arc<()>>,
    /// Where it is the copy of a pinned file, the copy.
    _copy: Option<Arc<PinnedCopy>>,
}

impl Backing {
    /// Its path: in the store, where it is never used for other bytes, or of a file outside.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl Collection {
    /// The physical file that may be shown for a file of these objects: the data file,
    /// where all of them lie in it as they are read now, each block was checked since the
    /// store was opened, and nothing else lies in it.
    pub fn backing_of(&self, objects: Vec<Arc<Object>>) -> Option<Backing> {
        if self.damage().is_some() {
            return None;
        }
        let first = objects.iter().find(|object| object.bytes() > 0)?;
        let number = first.home()?.file;
        if !first.lies_in(number, 0) {
            return None;
        }
        // Before it is looked at: a block that leaves it afterwards leaves its bytes.
        let shown = self.show_data_file(number);
        let bytes = bytes_in(number, &objects)?;
        let file = self.data_file(number).ok()?;
        let len = file.len().ok()?;
        // A file outside the store fails here when it is not what it was.
        file.read_at(&mut [], 0).ok()?;
        let origin = first.origin.as_ref();
        let path = origin.map_or_else(|| self.data_path(number), |origin| origin.path());
        let outside = origin.map(|_| number);
        (len == bytes).then_some(Backing {
            path,
            outside,
            _objects: objects,
            _shown: Some(shown),
            _copy: None,
        })
    }

    /// The copy of a pinned file of these objects that may be shown: one that is sound, while
    /// nothing was written that no batch describes.
    pub fn backing_of_copy(&self, copy: &Arc<PinnedCopy>, objects: Vec<Arc<Object>>) -> Option<Backing> {
        let is_dirty = objects.iter().any(|object| object.is_dirty());
        if self.damage().is_some() || is_dirty || copy.is_sound() != Some(true) {
            return None;
        }
        let path = self.pinned_path(copy.number);
        Some(Backing { path, outside: None, _objects: objects, _shown: None, _copy: Some(copy.clone()) })
    }

    /// Opens a physical file to be read, on its own.
    pub fn open_backing(&self, backing: &Backing) -> Result<Arc<dyn File>> {
        if let Some(number) = backing.outside {
            // As it was found, whatever has its name now.
            return self.data_file(number);
        }
        let path = backing.path();
        self.disk.open(path, Open::Read).map_err(|error| Error::io(format!("opening {path}"), error))
    }
}

/// The bytes of objects that lie one after the other in a data file from its start, all of
/// them exact, checked and unchanged; `None` where they do not.
fn bytes_in(number: u64, objects: &[Arc<Object>]) -> Option<u64> {
    let mut end = 0;
    for object in objects {
        if !object.lies_in(number, end) {
            return None;
        }
        end += object.bytes();
    }
    Some(end)
}

impl Object {
    /// Whether all of it lies in a data file from `offset` on, checked and unchanged.
    fn lies_in(&self, number: u64, offset: u64) -> bool {
        let cut = self.cut();
        if self.is_dirty() {
            return false;
        }
        if cut.bytes == 0 {
            return true;
        }
        self.home().is_some_and(|home| home.file == number && home.offset == offset)
            && self.checked.all(cut.blocks())
            && self.blocks.read().lie_at(offset, cut)
    }
}
