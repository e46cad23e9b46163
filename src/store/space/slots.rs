//! The free space of tier files.
//!
//! Invariants:
//! 1. Every payload begins on a multiple of 64 bytes; its slot ends at the next multiple.
//! 2. A byte is in exactly one of these: a slot in use, a free stretch, or the space past the end.

use std::collections::BTreeMap;
use std::ops::Range;

pub use crate::format::log::block_record::SLOT_ALIGN;

/// The free space of one file.
#[derive(Debug, Default)]
pub struct Slots {
    /// Offset and length of the free stretches before `end`. No two are adjacent.
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Slots {
    /// The free space around `used`, which has the offset and length of every payload, in any order.
    pub fn around(used: impl Iterator<Item = (u64, u64)>) -> Slots {
        let mut used: Vec<(u64, u64)> = used.filter(|(_, len)| *len > 0).collect();
        used.sort_unstable();
        let mut slots = Slots::default();
        for (offset, len) in used {
            if offset > slots.end {
                slots.free.insert(slots.end, offset - slots.end);
            }
            slots.end = slots.end.max((offset + len).next_multiple_of(SLOT_ALIGN));
        }
        slots
    }

    /// Reserves `len` bytes in the first gap that is large enough, or at the end. Returns the offset.
    pub fn take(&mut self, len: u64) -> u64 {
        let len = len.next_multiple_of(SLOT_ALIGN);
        let gap = self.free.iter().find(|(_, free)| **free >= len).map(|(at, free)| (*at, *free));
        match gap {
            Some((at, free)) => {
                self.free.remove(&at);
                if free > len {
                    self.free.insert(at + len, free - len);
                }
                at
            }
            None => {
                let at = self.end;
                self.end += len;
                at
            }
        }
    }

    /// Reserves `len` bytes that end before `limit`, if there is such a gap.
    pub fn take_before(&mut self, len: u64, limit: u64) -> Option<u64> {
        let len = len.next_multiple_of(SLOT_ALIGN);
        let (at, free) = self.free.range(..limit).find(|(_, free)| **free >= len)?;
        let (at, free) = (*at, *free);
        if at + len > limit {
            return None;
        }
        self.free.remove(&at);
        if free > len {
            self.free.insert(at + len, free - len);
        }
        Some(at)
    }

    /// Frees a slot of `len` bytes at `at`, which must be in use. Returns the free stretch that
    /// contains it.
    pub fn give(&mut self, at: u64, len: u64) -> Range<u64> {
        let (mut at, mut end) = (at, at + len.next_multiple_of(SLOT_ALIGN));
        debug_assert!(end <= self.end, "a slot past the end");
        if let Some((&before, &free)) = self.free.range(..at).next_back()
            && before + free == at
        {
            self.free.remove(&before);
            at = before;
        }
        if let Some(free) = self.free.remove(&end) {
            end += free;
        }
        if end >= self.end {
            self.end = at;
        } else {
            self.free.insert(at, end - at);
        }
        at..end
    }

    /// Offset of the end of the last slot in use.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Number of free bytes before the end.
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn a_freed_slot_joins_its_neighbours_and_the_end() {
        let mut slots = Slots::default();
        let taken: Vec<u64> = (0..5).map(|_| slots.take(100)).collect();
        for place in [1, 3, 2] {
            slots.give(taken[place], 100);
        }
        assert_eq!((slots.free_bytes(), slots.end()), (384, 640));
        assert_eq!(slots.take(384), 128);
        slots.give(128, 384);
        slots.give(taken[4], 100);
        assert_eq!((slots.free_bytes(), slots.end()), (0, 128));
    }

    #[test]
    fn a_slot_before_a_limit_is_a_gap_that_ends_before_it() {
        let mut slots = Slots::around([(128, 64), (256, 64), (512, 64)].into_iter());
        assert_eq!(slots.take_before(192, 512), Some(320));
        assert_eq!(slots.take_before(129, 512), None);
        assert_eq!(slots.take_before(64, 64), Some(0));
        assert_eq!(slots.take_before(64, 100), None);
        assert_eq!((slots.free_bytes(), slots.end()), (128, 576));
    }

    #[test]
    fn gaps_are_used_before_the_end() {
        let mut slots = Slots::around([(320, 10), (0, 100)].into_iter());
        assert_eq!((slots.end(), slots.free_bytes()), (384, 192));
        assert_eq!(slots.take(65), 128);
        assert_eq!(slots.take(128), 384);
        assert_eq!(slots.take(1), 256);
        assert_eq!(slots.take(1), 512);
        assert_eq!(slots.free_bytes(), 0);
    }
}
