//! Checksums of written blocks, computed from the bytes as they arrive, so that blocks need not be read
//! back before the log records them.
//!
//! `WriteState::dirty` has the checksum of the first bytes of each dirty block, and their number. A
//! write that follows them extends the checksum; a write that changes them drops it first. Both happen
//! while `WriteState::writing` is locked.

use crate::format::checksum;
use crate::format::log::record::Stored;
use crate::model::Result;
use crate::store::io::read::OpenObject;
use crate::store::object::Object;

impl Stored {
    /// The state of a dirty block after `bytes` were written to it at offset `skip`.
    pub(in crate::store) fn after_write(self, skip: usize, bytes: &[u8]) -> Stored {
        if skip != self.len as usize {
            // The bytes before them have no checksum.
            return self;
        }
        let checksum = match skip {
            0 => checksum::of(bytes),
            _ => checksum::continued(self.checksum, bytes),
        };
        Stored { checksum, len: self.len + bytes.len() as u32, ..self }
    }
}

impl Object {
    /// The CRC32C of the `len` bytes at `at`, if they are one dirty block in the data file whose
    /// checksum covers all of it. It stays valid while nobody writes to the object.
    pub fn known_checksum(&self, at: u64, len: usize) -> Option<u32> {
        let layout = self.layout();
        let index = layout.index(at);
        if layout.start(index) != at || layout.len(index) != len {
            return None;
        }
        let written = self.existing_write_state()?.dirty.read().get(&index).copied();
        written.filter(|stored| stored.in_data && stored.len as usize == len).map(|stored| stored.checksum)
    }
}

impl OpenObject {
    /// Writes to a dirty block in place.
    pub(in crate::store) fn put_over(
        &self,
        index: u32,
        stored: Stored,
        skip: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let mut stored = stored;
        if skip < stored.len as usize {
            // Dropped first, because the write may fail halfway.
            stored = Stored { checksum: 0, len: 0, ..stored };
            self.object.write_state().dirty.write().insert(index, stored);
        }
        {
            let _whole = self.object.write_state().in_place.write();
            self.put(&stored, skip as u64, bytes)?;
        }
        let after = stored.after_write(skip, bytes);
        if after.len != stored.len {
            self.object.write_state().dirty.write().insert(index, after);
        }
        Ok(())
    }
}
