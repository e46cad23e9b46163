//! An index that stands beside its embedding batch: it says the hash of the batch as that
//! reads now.
//!
//! The index is a plain file and is stored as it came. Where the batch does not read as it
//! came in, readers see the hash of what is served in place of the one that is stored.

use crate::model::Result;
use crate::open::file::OpenFile;
use crate::open::layout::Layout;
use crate::stream::{HASH, put_hash, shown_hash};

impl OpenFile {
    /// Whether it is named as the index of a batch beside it.
    pub fn is_index(&self) -> bool {
        self.collection.state().batch_beside(self.node).is_some()
    }

    /// Puts the hash of the batch as it reads now into what was read of its index from `offset`
    /// on.
    pub(super) fn show_hash(&self, layout: &Layout, offset: u64, out: &mut [u8]) -> Result<()> {
        let is_outside = offset >= HASH.end || offset + out.len() as u64 <= HASH.start;
        if is_outside || layout.records.is_some() {
            return Ok(());
        }
        if let Some(hash) = shown_hash(&self.collection, self.node, &layout.stream, self.verify)? {
            put_hash(hash, offset, out);
        }
        Ok(())
    }
}
