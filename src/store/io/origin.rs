//! Objects whose exact bytes lie in a file outside the store.
//!
//! Invariants:
//! 1. An outside file is only read: never written, truncated, punched or removed.
//! 2. A block that was written loses its origin with the batch that records the write, and never gets
//!    one again.
//! 3. Data read from an outside file is trusted only while the file has the length that it had at
//!    import, and the checksum of the whole block agrees. While the modification time is the same too,
//!    a checksum is verified only once. The source of an object at a URL holds each read to the version at the import; if
//!    nobody has read the object, blocks in it have no checksums, and a cache compares what it keeps.
//! 4. A copy of a block is given up for an outside file only after the block was read from it under its
//!    present name: `open_by_name`. For an object at a URL, after its source has said that it has that version.

use std::cell::RefCell;

use crate::format::checksum;
use crate::model::{Error, ErrorKind, Result};
use crate::store::collection::open_object::OpenObject;
use crate::store::object::blocks::Block;
use crate::store::space::external_file::is_untouched;

thread_local! {
    /// The block that this thread compares. A block is as long as the limit from which the allocator asks the system,
    /// which is slower than the comparison.
    static ELEMENTS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl OpenObject {
    /// Reads the imported content of a block into `out`, which has the block's length. `false` if the
    /// block has no origin or was written since; `Corrupt` if the outside file has changed.
    pub fn read_origin(&self, index: u32, out: &mut [u8]) -> Result<bool> {
        let (Some(place), Some(origin)) = (self.object.origin_place(index), &self.object.origin) else {
            return Ok(false);
        };
        let failed = |error: &dyn std::fmt::Display| {
            let (path, id) = (origin.path(), self.object.entry.id);
            let text = format!("{path} at byte {}, block {index} of object {id}: {error}", place.offset);
            self.report_changed_origin(index, Error::corrupt(text))
        };
        if out.len() != place.len as usize {
            return Ok(false);
        }
        let file = match &self.extent {
            Some(Ok(file)) => file,
            Some(Err(gone)) if origin.file.object().is_some() => {
                return Err(Error::new(ErrorKind::Io, gone.clone()));
            }
            Some(Err(gone)) => {
                return Err(self.report_changed_origin(index, Error::corrupt(gone.clone())));
            }
            None => return Ok(false),
        };
        file.read_exact_at(out, place.offset).map_err(|error| match file.far() {
            // It says nothing of the bytes there.
            Some(_) => Error::io(origin.path(), error),
            None => failed(&error),
        })?;
        if self.is_unread {
            return Ok(true);
        }
        let found = checksum::of(out);
        if found != place.checksum {
            return Err(failed(&format!("crc {found:#010x} but the log says {:#010x}", place.checksum)));
        }
        Ok(true)
    }

    /// Whether the imported content of a block is still available, determined by reading it; of an object at a URL, by
    /// asking for its version. The errors are those of [`read_origin`](Self::read_origin).
    pub fn has_origin(&self, index: u32) -> Result<bool> {
        let Some(place) = self.object.origin_place(index) else { return Ok(false) };
        if let (Some(Ok(file)), Some(origin)) = (&self.extent, &self.object.origin)
            && let Some(far) = file.far()
        {
            let confirmed = far.confirm().map_err(|error| Error::io(origin.path(), error));
            return confirmed.map(|()| true).inspect_err(|error| self.note_damage(index, error));
        }
        ELEMENTS.with_borrow_mut(|elements| {
            elements.resize(place.len as usize, 0);
            self.read_origin(index, elements)
        })
    }

    /// Whether the bytes of a block, as it is stored, lie at a URL, and not here.
    pub fn is_far(&self, index: u32, block: &Block) -> bool {
        (block.stored.in_data || block.stored.is_absent())
            && self.object.origin.as_ref().is_some_and(|origin| origin.file.object().is_some())
            && self.object.origin_place(index).is_some()
    }

    /// Whether the imported content of a block lies at a URL, and nobody has read it.
    pub(in crate::store) fn is_unread_at_url(&self, index: u32) -> bool {
        self.object.origin.as_ref().is_some_and(|origin| origin.file.is_unread())
            && self.object.origin_place(index).is_some()
    }

    /// Whether earlier verifications of the data file's content are still valid.
    pub fn is_extent_untouched(&self) -> bool {
        match (&self.object.origin, &self.extent) {
            (Some(origin), Some(Ok(file))) => is_untouched(&**file, &origin.file).unwrap_or(false),
            _ => true,
        }
    }
}
