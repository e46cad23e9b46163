//! One slot of `meta.log`: 128 bytes with a checksum.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 1 | type |
//! | 1 | 16 | object_id |
//! | 17 | 4 | block_index |
//! | 21 | 87 | body, unused bytes zero |
//! | 108 | 4 | generation of the log, low 32 bits |
//! | 112 | 8 | sequence number |
//! | 120 | 4 | CRC32C of bytes 0..120 |
//! | 124 | 4 | zero |
//!
//! All numbers are little-endian. A record may be followed by payload slots, which
//! have no structure of their own. The record's length and checksum cover them.

use crate::format::checksum;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 128;
/// The highest sequence number of a record, and the highest number of a batch.
pub const SEQUENCE_MAX: u64 = i64::MAX as u64;

const BODY_AT: usize = 21;
const GENERATION_AT: usize = 108;
const SEQUENCE_AT: usize = 112;
const CHECKSUM_AT: usize = 120;
const ZERO_AT: usize = 124;

/// The bytes of one slot, valid or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawSlot(pub [u8; SLOT_BYTES]);

impl RawSlot {
    /// A slot with an empty body.
    pub fn new(kind: u8, object: u128, block: u32) -> RawSlot {
        let mut slot = RawSlot([0; SLOT_BYTES]);
        slot.put(0, [kind]);
        slot.put(1, object.to_le_bytes());
        slot.put(17, block.to_le_bytes());
        slot
    }

    /// The `N` bytes at `AT`. The bounds are checked at compile time.
    #[inline]
    pub fn get<const AT: usize, const N: usize>(&self) -> [u8; N] {
        const { assert!(AT + N <= SLOT_BYTES) };
        let found = self.0.get(AT..).and_then(|rest| rest.first_chunk());
        found.copied().unwrap_or([0; N])
    }

    /// Writes bytes at `at`. Writes nothing if they exceed the slot, which only a bug of the
    /// caller can cause.
    #[inline]
    pub fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        debug_assert!(at + N <= SLOT_BYTES);
        if let Some(place) = self.0.get_mut(at..at + N) {
            place.copy_from_slice(&bytes);
        }
    }

    /// Writes a field of the body, which starts at byte 21.
    pub fn body<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> &mut RawSlot {
        debug_assert!(at >= BODY_AT && at + N <= GENERATION_AT);
        self.put(at, bytes);
        self
    }

    /// The type byte.
    pub fn kind(&self) -> u8 {
        u8::from_le_bytes(self.get::<0, 1>())
    }

    /// The object of the record; 0 if there is none.
    pub fn object(&self) -> u128 {
        u128::from_le_bytes(self.get::<1, 16>())
    }

    /// The block of the record.
    pub fn block(&self) -> u32 {
        u32::from_le_bytes(self.get::<17, 4>())
    }

    /// The low 32 bits of the generation of its log.
    pub fn generation(&self) -> u32 {
        u32::from_le_bytes(self.get::<GENERATION_AT, 4>())
    }

    /// The sequence number.
    pub fn sequence(&self) -> u64 {
        u64::from_le_bytes(self.get::<SEQUENCE_AT, 8>())
    }

    /// Whether it can belong to a log of this generation, with at least this sequence number.
    #[inline]
    pub fn is_of(&self, generation: u64, sequence_min: u64) -> bool {
        self.generation() == generation as u32 && (sequence_min..=SEQUENCE_MAX).contains(&self.sequence())
    }

    /// The checksum field.
    pub fn checksum(&self) -> u32 {
        u32::from_le_bytes(self.get::<CHECKSUM_AT, 4>())
    }

    /// Completes the slot: sets generation, sequence number and checksum.
    pub fn seal(&mut self, generation: u64, sequence: u64) {
        self.put(GENERATION_AT, (generation as u32).to_le_bytes());
        self.put(SEQUENCE_AT, sequence.to_le_bytes());
        self.put(CHECKSUM_AT, checksum::of(self.covered()).to_le_bytes());
        self.put(ZERO_AT, [0; 4]);
    }

    /// Whether the checksum matches and the last four bytes are zero.
    pub fn is_intact(&self) -> bool {
        self.get::<ZERO_AT, 4>() == [0; 4] && checksum::of(self.covered()) == self.checksum()
    }

    /// The slot with a single flipped bit corrected, if that makes it intact. At this length the
    /// CRC distinguishes all single bits.
    pub fn corrected(&self) -> Option<RawSlot> {
        let mut slot = *self;
        for bit in 0..SLOT_BYTES * 8 {
            slot.flip(bit);
            if slot.is_intact() {
                return Some(slot);
            }
            slot.flip(bit);
        }
        None
    }

    fn flip(&mut self, bit: usize) {
        if let Some(byte) = self.0.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    fn covered(&self) -> &[u8] {
        self.0.get(..CHECKSUM_AT).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::{RawSlot, SLOT_BYTES};

    #[test]
    fn every_single_flipped_bit_is_found_and_corrected() {
        let mut slot = RawSlot::new(2, 0x0123_4567_89ab_cdef, 7);
        slot.body(21, [3; 40]).seal(5, 99);
        assert!(slot.is_intact());
        for bit in 0..SLOT_BYTES * 8 {
            let mut bad = slot;
            bad.flip(bit);
            assert!(!bad.is_intact(), "bit {bit}");
            assert_eq!(bad.corrected(), Some(slot), "bit {bit}");
        }
    }

    #[test]
    fn two_flipped_bits_are_not_corrected_as_one() {
        let mut slot = RawSlot::new(0, 1, 0);
        slot.seal(1, 1);
        for (a, b) in [(0, 1), (5, 700), (960, 961), (992, 993)] {
            let mut bad = slot;
            bad.flip(a);
            bad.flip(b);
            assert_eq!(bad.corrected(), None, "bits {a} and {b}");
        }
    }
}
