//! An index that stands beside its embedding batch: it says the hash of the batch as that
//! reads now.
//!
//! The index is a plain file and is stored as it came. Where the batch does not read as it
//! came in, readers see the hash of what is served in place of the one that is stored.

use std::ops::Range;

use crate::edit::layout::Layout;
use crate::edit::live::Live;
use crate::format::cgei::{self, HEAD_BYTES};
use crate::model::{EntryId, Result};
use crate::stream::batch_hash;

/// Where an index has the hash.
const HASH: Range<u64> = 16..24;

impl Live {
    /// Whether it is named as the index of a batch beside it.
    pub fn is_index(&self) -> bool {
        self.collection.state().batch_beside(self.node).is_some()
    }

    /// Puts the hash of the batch as it reads now into what was read of its index from `offset`
    /// on.
    pub(super) fn show_hash(&self, layout: &Layout, offset: u64, out: &mut [u8]) -> Result<()> {
        if offset >= HASH.end || offset + out.len() as u64 <= HASH.start || layout.records.is_some() {
            return Ok(());
        }
        let batch = self.collection.state().batch_beside(self.node);
        let Some(batch) = batch.filter(|_| layout.bytes() >= HEAD_BYTES) else { return Ok(()) };
        let mut head = [0; HEAD_BYTES as usize];
        layout.stream.read(0, &mut head)?;
        let is_its = cgei::parse_head(&head, layout.bytes()).is_ok_and(|(count, _)| self.has(batch, count));
        if !is_its {
            return Ok(());
        }
        let hash = batch_hash(&self.collection, batch, self.verify)?;
        // As it came in, also where the index says something else.
        let Some(hash) = hash.filter(|hash| self.collection.first_hash(batch) != Some(*hash)) else {
            return Ok(());
        };
        for (place, byte) in HASH.zip(hash.to_be_bytes()) {
            if let Some(shown) = place.checked_sub(offset).and_then(|place| out.get_mut(place as usize)) {
                *shown = byte;
            }
        }
        Ok(())
    }

    fn has(&self, batch: EntryId, count: u64) -> bool {
        let state = self.collection.state();
        let records = state.node(batch).and_then(|node| node.file()?.records.as_ref());
        records.is_some_and(|records| records.records() == count)
    }
}
