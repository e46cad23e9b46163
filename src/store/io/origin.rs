//! Objects whose exact bytes lie in a file outside the store.
//!
//! Invariants:
//! 1. An outside file is only read: never written, truncated, punched or removed.
//! 2. A block that was written loses its origin with the batch that records the write, and never gets
//!    one again.
//! 3. Data read from an outside file is trusted only while the file has the length that it had at
//!    import, and the checksum of the whole block agrees. While the modification time is the same too,
//!    a checksum is verified only once.
//! 4. A copy of a block is given up for an outside file only after the block was read from it under its
//!    present name: `open_by_name`.

use std::cell::RefCell;

use crate::format::checksum;
use crate::model::{Error, Result};
use crate::store::collection::open_object::OpenObject;
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
            Some(Err(gone)) => {
                return Err(self.report_changed_origin(index, Error::corrupt(gone.clone())));
            }
            None => return Ok(false),
        };
        file.read_exact_at(out, place.offset).map_err(|error| failed(&error))?;
        let found = checksum::of(out);
        if found != place.checksum {
            return Err(failed(&format!("crc {found:#010x} but the log says {:#010x}", place.checksum)));
        }
        Ok(true)
    }

    /// Whether the imported content of a block is still available, determined by reading it. The errors
    /// are those of [`read_origin`](Self::read_origin).
    pub fn has_origin(&self, index: u32) -> Result<bool> {
        let Some(place) = self.object.origin_place(index) else { return Ok(false) };
        ELEMENTS.with_borrow_mut(|elements| {
            elements.resize(place.len as usize, 0);
            self.read_origin(index, elements)
        })
    }

    /// Whether earlier verifications of the data file's content are still valid.
    pub fn is_extent_untouched(&self) -> bool {
        match (&self.object.origin, &self.extent) {
            (Some(origin), Some(Ok(file))) => is_untouched(&**file, &origin.file).unwrap_or(false),
            _ => true,
        }
    }
}
