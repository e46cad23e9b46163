//! Checksums of blocks that were written, taken from the bytes as they come: what is known
//! then need not be read back when the log is to say it.
//!
//! Of a dirty block `WriteState::dirty` has the checksum of its first bytes, and how many they are.
//! It goes on where a write follows them, and is forgotten before a write changes them. Both
//! happen while `WriteState::writing` is held.

use crate::format::checksum;
use crate::format::log::record::Stored;
use crate::model::Result;
use crate::store::io::read::OpenObject;
use crate::store::object::Object;

impl Stored {
    /// The place of a dirty block after `bytes` were written there behind `skip` others.
    pub(in crate::store) fn after_write(self, skip: usize, bytes: &[u8]) -> Stored {
        if skip != self.len as usize {
            // They lie behind bytes of which nothing is known.
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
    /// The CRC32C of the `len` bytes from `at` on, if these are one block, dirty and in the data
    /// file, and all of it is known. It stays true while nobody writes to the object.
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
    /// Writes to a dirty block where it lies.
    pub(in crate::store) fn put_over(
        &self,
        index: u32,
        stored: Stored,
        skip: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let mut stored = stored;
        if skip < stored.len as usize {
            // Before it fails, too.
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
