//! Space in tier files: which bytes are free.
//!
//! Invariants:
//! 1. Every payload begins on a multiple of 64 bytes; its slot reaches to the next.
//! 2. A byte is in a slot that was handed out, or free, or past the end; never two of
//!    these.

use std::collections::BTreeMap;

/// Slots are rounded up to this many bytes.
pub const SLOT_ALIGN: u64 = 64;

/// The free space of one file.
#[derive(Debug, Default)]
pub struct Slots {
    /// Offset and length of what is free before `end`. No two touch.
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Slots {
    /// The space that is left by `used`: offset and length of every payload, in any
    /// order.
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

    /// Where `len` bytes can be written: the first gap that is large enough, or the end.
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

    /// Gives back the slot of a payload of `len` bytes. Nobody may read it any more.
    pub fn give_back(&mut self, offset: u64, len: u64) {
        let mut at = offset;
        let mut end = offset + len.next_multiple_of(SLOT_ALIGN);
        if let Some(after) = self.free.remove(&end) {
            end += after;
        }
        let before = self.free.range(..at).next_back().map(|(at, len)| (*at, *len));
        if let Some((begin, _)) = before.filter(|(begin, len)| begin + len == at) {
            self.free.remove(&begin);
            at = begin;
        }
        if end == self.end {
            self.end = at;
        } else {
            self.free.insert(at, end - at);
        }
    }

    /// Bytes up to the last slot in use.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes free before the end.
    pub fn free_bytes(&self) -> u64 {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;

    #[test]
    fn what_is_given_back_joins_what_is_free_beside_it() {
        let mut slots = Slots::default();
        let at: Vec<u64> = (0..5).map(|_| slots.take(100)).collect();
        assert_eq!(at, [0, 128, 256, 384, 512]);
        for place in [1, 3, 2] {
            slots.give_back(at[place], 100);
        }
        assert_eq!(slots.take(384), 128);
        slots.give_back(128, 384);
        slots.give_back(512, 100);
        assert_eq!((slots.end(), slots.free_bytes()), (128, 0));
        slots.give_back(0, 100);
        assert_eq!((slots.end(), slots.free_bytes()), (0, 0));
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
