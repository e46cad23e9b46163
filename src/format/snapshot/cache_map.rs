//! The map of a cached file: which of its pieces are there, where they stand, and their digests, so that the
//! file can be checked without its remote.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 4 | magic `TFCM` |
//! | 4 | 2 | version 1 |
//! | 6 | 2 | flags 0 |
//! | 8 | 8 | bytes of the file |
//! | 16 | 4 | number of pieces |
//! | 20 | 4 | number of stretches |
//! | 24 | .. | a bit a piece, the first in the lowest bit of the first byte |
//! | .. | 32 a piece | BLAKE3 of its bytes in the order of the file, zeros if it is not there |
//! | .. | 16 a stretch | offset u64, len u32, piece u32; in the order of the file |
//! | .. | 4 | CRC32C of everything before |

use crate::format::checksum;
use crate::format::cursor::{Reader, Writer};
use crate::model::{Error, Result};

const MAGIC: [u8; 4] = *b"TFCM";
const VERSION: u16 = 1;
/// Bytes of a piece's BLAKE3.
pub const DIGEST_BYTES: usize = 32;
const STRETCH_BYTES: usize = 16;

/// The BLAKE3 of a piece's bytes.
pub type Digest = [u8; DIGEST_BYTES];

/// The pieces that are there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bits {
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

    /// The number of pieces, there or not.
    pub fn count(&self) -> u32 {
        self.count
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

    /// Takes the bits of `count` pieces.
    fn read(reader: &mut Reader, count: u32) -> Result<Bits> {
        let mut found = Bits::none(0);
        found.bytes = reader.bytes((count as usize).div_ceil(8))?.to_vec();
        found.count = count;
        found.set = found.bytes.iter().map(|byte| byte.count_ones()).sum();
        // Bits behind the last piece would make the file look whole.
        if (count..count.next_multiple_of(8)).any(|piece| found.has(piece)) {
            return Err(Error::corrupt("it has pieces behind the last"));
        }
        Ok(found)
    }
}

/// Where bytes of a piece stand in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Their offset in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The place of the piece.
    pub piece: u32,
}

/// The map of a cached file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Bytes of the file.
    pub bytes: u64,
    /// The pieces that are there.
    pub bits: Bits,
    /// For each piece, the BLAKE3 of its bytes in the order of the file; zeros if it is not there.
    pub digests: Vec<Digest>,
    /// Where the pieces stand, in the order of the file.
    pub stretches: Vec<Stretch>,
}

impl Map {
    /// The bytes of the map on disk.
    pub fn to_bytes(&self) -> Vec<u8> {
        let len = 28 + self.bits.bytes.len() + self.digests.len() * DIGEST_BYTES;
        let mut out = Writer::with_capacity(len + self.stretches.len() * STRETCH_BYTES);
        out.bytes(&MAGIC).u16(VERSION).u16(0).u64(self.bytes);
        out.u32(self.bits.count).u32(self.stretches.len() as u32).bytes(&self.bits.bytes);
        for digest in &self.digests {
            out.bytes(digest);
        }
        for stretch in &self.stretches {
            out.u64(stretch.offset).u32(stretch.len).u32(stretch.piece);
        }
        let checksum = checksum::of(out.as_slice());
        out.u32(checksum);
        out.into_bytes()
    }

    /// Reads a map.
    pub fn parse(map: &[u8]) -> Result<Map> {
        let mut reader = Reader::new(map);
        if reader.array()? != MAGIC || reader.u16()? != VERSION || reader.u16()? != 0 {
            return Err(Error::corrupt("it is no map"));
        }
        let (bytes, pieces, stretches) = (reader.u64()?, reader.u32()?, reader.u32()? as usize);
        let bits = Bits::read(&mut reader, pieces)?;
        // Both are taken from bytes that are there, so that a wrong number costs no memory.
        let digests = reader.bytes((pieces as usize).saturating_mul(DIGEST_BYTES))?;
        let digests = digests.as_chunks::<DIGEST_BYTES>().0.to_vec();
        let mut described = Reader::new(reader.bytes(stretches.saturating_mul(STRETCH_BYTES))?);
        let stretch = |_| {
            let (offset, len, piece) = (described.u64()?, described.u32()?, described.u32()?);
            Ok(Stretch { offset, len, piece })
        };
        let stretches = (0..stretches).map(stretch).collect::<Result<Vec<_>>>()?;
        let hashed = map.get(..reader.position()).unwrap_or_default();
        if reader.u32()? != checksum::of(hashed) || reader.remaining() != 0 {
            return Err(Error::corrupt("its checksum differs"));
        }
        Ok(Map { bytes, bits, digests, stretches })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Bits, Map, Stretch};

    fn map(set: &[bool], stretches: &[(u64, u32, u32)]) -> Map {
        let mut bits = Bits::none(set.len() as u32);
        for (piece, is_there) in (0..).zip(set) {
            bits.set(piece, !is_there);
            bits.set(piece, *is_there);
        }
        let stretch =
            |(offset, len, piece): &(u64, u32, u32)| Stretch { offset: *offset, len: *len, piece: *piece };
        Map {
            bytes: 0x1234,
            bits,
            digests: (0..set.len()).map(|piece| [piece as u8; 32]).collect(),
            stretches: stretches.iter().map(stretch).collect(),
        }
    }

    #[test]
    fn a_map_has_these_bytes() {
        let mut set = [false; 10];
        (set[0], set[9]) = (true, true);
        let bytes = map(&set, &[(7, 5, 9)]).to_bytes();
        assert_eq!(bytes[..8], *b"TFCM\x01\0\0\0");
        assert_eq!(bytes[8..26], [0x34, 0x12, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0, 0, 1, 2]);
        assert_eq!(bytes[26 + 9 * 32..26 + 10 * 32], [9; 32]);
        assert_eq!(bytes[26 + 320..][..16], [7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!(bytes.len(), 26 + 320 + 16 + 4);
    }

    proptest! {
        #[test]
        fn maps_are_read_as_they_were_written(
            set in prop::collection::vec(any::<bool>(), 0..70),
            stretches in prop::collection::vec(any::<(u64, u32, u32)>(), 0..9),
        ) {
            let map = map(&set, &stretches);
            prop_assert!((0..).zip(&set).all(|(piece, is_there)| map.bits.has(piece) == *is_there));
            prop_assert_eq!(map.bits.is_full(), set.iter().all(|is_there| *is_there));
            prop_assert_eq!(Map::parse(&map.to_bytes()).unwrap(), map);
        }

        #[test]
        fn damaged_maps_are_refused(at: prop::sample::Index, bit in 0_u8..8) {
            let mut bytes = map(&[true, false, true], &[(0, 9, 0), (9, 1, 2)]).to_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(Map::parse(&bytes).is_err());
            bytes[at] ^= 1 << bit;
            prop_assert!(Map::parse(&bytes[..at]).is_err());
        }
    }
}
