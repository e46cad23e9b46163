//! The blocks of an object that could not be read, until they can.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::format::log::record::Stored;
use crate::model::beginning;
use crate::store::object::blocks::Block;

/// Most bytes of a kept reason.
const WHY_BYTES_MAX: usize = 1000;

/// The blocks of an object that could not be read. A corrupt block counts until it reads again, is healed or is
/// overwritten.
#[derive(Debug, Default)]
pub(in crate::store) struct FailedReads {
    /// Whether there are any, so that reads of sound objects take no lock.
    are_any: AtomicBool,
    /// `None` for none. A last lock.
    inner: Mutex<Option<Box<Inner>>>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Corrupt blocks, as the log described them when they were found.
    corrupt: HashMap<u32, Stored>,
    /// Corrupt blocks that were told of. They stay when they are overwritten: a flush may still read what was there.
    told: HashMap<u32, Stored>,
    /// Why the corrupt block that was found last is corrupt.
    why: String,
    /// The last block that could not be read for another reason, and the reason.
    other: Option<(u32, String)>,
    /// Blocks that can be read, and whose outside file has changed.
    origins: HashSet<u32>,
}

/// The blocks of an object that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable {
    /// Number of corrupt blocks.
    pub corrupt: u64,
    /// Why one of them, or another block, could not be read.
    pub why: String,
}

impl FailedReads {
    /// Notes that a block is corrupt. Returns whether that was not known.
    pub fn note_corrupt(&self, index: u32, stored: &Stored, why: &str) -> bool {
        let mut inner = self.inner.lock();
        let inner = inner.get_or_insert_default();
        inner.corrupt.insert(index, *stored);
        // The length that a reader asks for tells no blocks apart.
        let place = Stored { len: 0, ..*stored };
        let is_new = inner.told.insert(index, place) != Some(place);
        if is_new || inner.why.is_empty() {
            beginning(why, WHY_BYTES_MAX).clone_into(&mut inner.why);
        }
        self.are_any.store(true, Ordering::Relaxed);
        is_new
    }

    /// Notes that a block could not be read for a reason that may pass.
    pub fn note_other(&self, index: u32, why: &str) {
        let other = (index, beginning(why, WHY_BYTES_MAX).to_owned());
        self.inner.lock().get_or_insert_default().other = Some(other);
        self.are_any.store(true, Ordering::Relaxed);
    }

    /// Notes that the outside file of a block that has a payload too has changed. Returns whether that was not known.
    pub fn note_origin(&self, index: u32) -> bool {
        self.inner.lock().get_or_insert_default().origins.insert(index)
    }

    /// Notes that these blocks, which are few, were read from their own payloads, or were healed.
    pub fn note_readable(&self, range: RangeInclusive<u32>) {
        if self.are_any.load(Ordering::Relaxed)
            && let Some(inner) = self.inner.lock().as_deref_mut()
        {
            inner.told.retain(|index, _| !range.contains(index));
        }
        self.forget(range);
    }

    fn forget(&self, blocks: impl IntoIterator<Item = u32>) {
        if !self.are_any.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = self.inner.lock();
        let Some(inner) = inner.as_deref_mut() else { return };
        for index in blocks {
            inner.corrupt.remove(&index);
            if inner.other.as_ref().is_some_and(|(other, _)| *other == index) {
                inner.other = None;
            }
        }
        self.are_any.store(!inner.corrupt.is_empty() || inner.other.is_some(), Ordering::Relaxed);
    }

    /// The blocks that cannot be read now. `block` gives the present state of a block.
    pub fn present(&self, block: impl Fn(u32) -> Option<Block>) -> Option<Unreadable> {
        if !self.are_any.load(Ordering::Relaxed) {
            return None;
        }
        let copied = |inner: &Inner| -> Vec<(u32, Stored)> {
            inner.corrupt.iter().map(|(index, stored)| (*index, *stored)).collect()
        };
        // No other lock is taken with this one.
        let corrupt = self.inner.lock().as_deref().map(copied).unwrap_or_default();
        let gone: Vec<u32> = corrupt
            .iter()
            .filter(|(index, before)| described(block(*index)) != *before)
            .map(|(index, _)| *index)
            .collect();
        self.forget(gone);
        let inner = self.inner.lock();
        let inner = inner.as_deref()?;
        let corrupt = inner.corrupt.len() as u64;
        let other = inner.other.as_ref().map(|(_, why)| why.clone());
        if corrupt > 0 {
            return Some(Unreadable { corrupt, why: inner.why.clone() });
        }
        other.map(|why| Unreadable { corrupt, why })
    }
}

/// The place of a block by the log; that of an absent one for a block that no record describes.
pub(in crate::store) fn described(block: Option<Block>) -> Stored {
    block.map_or(Stored::ABSENT, |block| block.stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Tier;

    fn block(place: u64) -> Option<Block> {
        Some(Block { epoch: 1, stored: stored(place), since: 0 })
    }

    fn stored(place: u64) -> Stored {
        Stored::in_slot(Tier::Exact, 64 * place)
    }

    #[test]
    fn a_corrupt_block_counts_until_it_reads_again_or_is_overwritten() {
        let failed = FailedReads::default();
        assert_eq!(failed.present(|_| block(1)), None);
        assert!(failed.note_corrupt(3, &stored(1), "crc") && !failed.note_corrupt(3, &stored(1), "again"));
        failed.note_corrupt(5, &stored(1), "second");
        let two = Unreadable { corrupt: 2, why: "second".to_owned() };
        assert_eq!(failed.present(|_| block(1)), Some(two));
        failed.note_readable(0..=4);
        assert_eq!(failed.present(|_| block(1)).map(|found| found.corrupt), Some(1));
        assert_eq!(failed.present(|_| block(2)), None);
        assert_eq!(failed.present(|_| block(1)), None, "it was overwritten meanwhile");
    }

    #[test]
    fn another_failure_is_told_until_that_block_reads_again() {
        let failed = FailedReads::default();
        failed.note_other(7, "timeout");
        assert_eq!(failed.present(|_| block(1)), Some(Unreadable { corrupt: 0, why: "timeout".to_owned() }));
        failed.note_readable(0..=6);
        assert!(failed.present(|_| block(1)).is_some());
        failed.note_readable(7..=7);
        assert_eq!(failed.present(|_| block(1)), None);
    }
}
