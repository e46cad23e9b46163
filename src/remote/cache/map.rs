//! Which pieces of a cached file are there.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 4 | magic `TFCM` |
//! | 4 | 2 | version 1 |
//! | 6 | 2 | flags 0 |
//! | 8 | 8 | bytes of the file |
//! | 16 | 4 | number of pieces |
//! | 20 | .. | a bit a piece, the first in the lowest bit of the first byte |
//! | .. | 4 | CRC32C of everything before |

use crate::format::checksum;
use crate::format::cursor::{Reader, Writer};
use crate::model::{Error, Result};

const MAGIC: [u8; 4] = *b"TFCM";
const VERSION: u16 = 1;

/// The pieces that are there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bits {
    bytes: Vec<u8>,
    count: u32,
    set: u32,
}

impl Bits {
    /// No piece of `count`.
    pub fn none(count: u32) -> Bits {
        Bits { bytes: vec![0; (count as usize).div_ceil(8)], count, set: 0 }
    }

    /// Whether a piece is there.
    pub fn has(&self, piece: u32) -> bool {
        self.bytes.get(piece as usize / 8).is_some_and(|byte| byte >> (piece % 8) & 1 == 1)
    }

    /// Whether all pieces are there.
    pub fn is_full(&self) -> bool {
        self.set == self.count
    }

    /// Notes that a piece is there, or is not.
    pub fn set(&mut self, piece: u32, is_there: bool) {
        if self.has(piece) == is_there || piece >= self.count {
            return;
        }
        if let Some(byte) = self.bytes.get_mut(piece as usize / 8) {
            *byte ^= 1 << (piece % 8);
        }
        self.set = if is_there { self.set + 1 } else { self.set - 1 };
    }

    /// The map of a file of `bytes` bytes.
    pub fn to_bytes(&self, bytes: u64) -> Vec<u8> {
        let mut out = Writer::with_capacity(24 + self.bytes.len());
        out.bytes(&MAGIC).u16(VERSION).u16(0).u64(bytes).u32(self.count).bytes(&self.bytes);
        let checksum = checksum::of(out.as_slice());
        out.u32(checksum);
        out.into_bytes()
    }

    /// Reads the map of a file of `bytes` bytes in `count` pieces.
    pub fn parse(map: &[u8], bytes: u64, count: u32) -> Result<Bits> {
        let mut reader = Reader::new(map);
        let is_known = reader.array()? == MAGIC && reader.u16()? == VERSION && reader.u16()? == 0;
        if !is_known || reader.u64()? != bytes || reader.u32()? != count {
            return Err(Error::corrupt("it is the map of another file"));
        }
        let mut found = Bits::none(count);
        found.bytes = reader.bytes(found.bytes.len())?.to_vec();
        let hashed = map.get(..reader.position()).unwrap_or_default();
        if reader.u32()? != checksum::of(hashed) || reader.remaining() != 0 {
            return Err(Error::corrupt("its checksum differs"));
        }
        let set: u32 = found.bytes.iter().map(|byte| byte.count_ones()).sum();
        found.set = set;
        // Bits behind the last piece would make the file look whole.
        if (count..count.next_multiple_of(8)).any(|piece| found.has(piece)) {
            return Err(Error::corrupt("it has pieces behind the last"));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Bits;

    #[test]
    fn a_map_has_these_bytes() {
        let mut bits = Bits::none(10);
        bits.set(0, true);
        bits.set(9, true);
        let map = bits.to_bytes(0x1234);
        assert_eq!(map[..8], *b"TFCM\x01\0\0\0");
        assert_eq!(map[8..22], [0x34, 0x12, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 1, 2]);
        assert_eq!(map.len(), 26);
    }

    proptest! {
        #[test]
        fn maps_are_read_as_they_were_written(set in prop::collection::vec(any::<bool>(), 0..70), bytes: u64) {
            let mut bits = Bits::none(set.len() as u32);
            for (piece, is_there) in (0..).zip(&set) {
                bits.set(piece, !is_there);
                bits.set(piece, *is_there);
            }
            prop_assert!((0..).zip(&set).all(|(piece, is_there)| bits.has(piece) == *is_there));
            prop_assert_eq!(bits.is_full(), set.iter().all(|is_there| *is_there));
            let map = bits.to_bytes(bytes);
            prop_assert_eq!(Bits::parse(&map, bytes, set.len() as u32).unwrap(), bits);
            prop_assert!(Bits::parse(&map, bytes ^ 1, set.len() as u32).is_err());
            prop_assert!(Bits::parse(&map, bytes, set.len() as u32 + 1).is_err());
        }

        #[test]
        fn damaged_maps_are_refused(at in 0_usize..30, bit in 0_u8..8) {
            let mut bits = Bits::none(40);
            bits.set(7, true);
            let mut map = bits.to_bytes(99);
            let at = at % map.len();
            map[at] ^= 1 << bit;
            prop_assert!(Bits::parse(&map, 99, 40).is_err());
            map[at] ^= 1 << bit;
            prop_assert!(Bits::parse(&map[..at], 99, 40).is_err());
        }
    }
}
