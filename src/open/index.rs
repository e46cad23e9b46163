//! The index next to an embedding batch, which contains the hash of the batch.
//!
//! The index is a plain file and is stored unchanged. Where the batch no longer reads as it was
//! imported, readers see the hash of the bytes served instead of the stored one.

use crate::model::Result;
use crate::open::file::OpenFile;
use crate::open::layout::Layout;
use crate::stream::{HASH, batch_beside, put_hash, shown_hash};

impl OpenFile {
    /// Whether the file is named as the index of a batch in the same directory.
    pub fn is_index(&self) -> bool {
        batch_beside(&self.collection.state(), self.node).is_some()
    }

    /// Puts the current hash of the batch into `out`, which was read from its index at `offset`.
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
