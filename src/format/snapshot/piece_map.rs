//! The map of a sparse file that consists of pieces: where their bytes stand in the file, and the state of each. Files
//! of clones and files of a cache have one.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 4 | magic `TFCL` |
//! | 4 | 2 | version 1 |
//! | 6 | 2 | flags: bit 0 if the file can be checked without its remote |
//! | 8 | 4 | number of pieces |
//! | 12 | 4 | number of extents |
//! | 16 | 45 each | pieces: name 32, generation u32, stored bytes u32, raw bytes u32, encoding u8 |
//! | .. | 20 each | extents, ascending: offset in the file u64, piece u32, offset in the piece u32, bytes u32 |
//! | .. | 8 | with bit 0: bytes of the file |
//! | .. | 4 | CRC32C of everything before |
//! | .. | 1 each | states of the pieces: `R` remote, `H` here, `O` own |
//! | .. | 32 each | with bit 0: BLAKE3 of the bytes of each piece in the order of the file; any bytes if it is not here |
//!
//! States and digests are written in place, so they are in no checksum. Any other byte of a state means *own*: such
//! bytes are neither replaced nor given back, and blocks have checksums. With bit 0 nothing is own, and any byte but
//! `H` means *remote*. The processes that share a cache tell each other by such bytes: `A` arrived, compared and written, but
//! perhaps not durable; `S` suspect, bytes that were wrong and that somebody may have open.

use crate::format::checksum;
use crate::format::cursor::{Reader, Writer};
use crate::format::snapshot::manifest::{EXTENTS_MAX, FileExtent, PIECES_MAX, Piece};
use crate::format::snapshot::pieces::PIECE_BYTES_MAX;
use crate::format::snapshot::wire::{PIECE_BYTES, read_piece, write_piece};
use crate::model::{Error, Result};

const MAGIC: [u8; 4] = *b"TFCL";
const VERSION: u16 = 1;
/// The flag of a map with the length of its file and digests.
const CHECKED: u16 = 1;
const HEAD_BYTES: usize = 16;
const EXTENT_BYTES: usize = 20;
const LENGTH_BYTES: usize = 8;
/// Bytes of a piece's BLAKE3.
pub const DIGEST_BYTES: usize = 32;

/// The longest map, in bytes.
pub const MAP_BYTES_MAX: u64 = (HEAD_BYTES
    + PIECES_MAX * (PIECE_BYTES + 1 + DIGEST_BYTES)
    + EXTENTS_MAX * EXTENT_BYTES
    + LENGTH_BYTES
    + 4) as u64;

/// The state of a piece of a cache whose bytes were compared and written, but may not be durable.
pub const ARRIVED: u8 = b'A';
/// The state of a piece of a cache that had wrong bytes, which somebody may have open.
pub const SUSPECT: u8 = b'S';

/// The BLAKE3 of a piece's bytes.
pub type Digest = [u8; DIGEST_BYTES];

/// Where the bytes of a piece are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PieceState {
    /// In the remote only.
    Remote,
    /// In the remote, and in the file.
    Here,
    /// In the file. The remote lacks some of them, or has others.
    Own,
}

/// The values by which a file is checked without its remote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileCheck {
    /// Bytes of the file.
    pub bytes: u64,
    /// For each piece that is here, the BLAKE3 of its bytes in the order of the file.
    pub digests: Vec<Digest>,
}

/// The pieces of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PieceMap {
    /// The pieces.
    pub pieces: Vec<Piece>,
    /// The places of their bytes in the file, ascending. They do not overlap.
    pub extents: Vec<FileExtent>,
    /// The state of each piece.
    pub states: Vec<PieceState>,
    /// Of a file that can be checked without its remote.
    pub check: Option<FileCheck>,
}

/// The places in a map that are written in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapPlaces {
    states: u64,
    pieces: u64,
}

impl PieceState {
    /// Its byte in a map.
    pub fn byte(self) -> u8 {
        match self {
            PieceState::Remote => b'R',
            PieceState::Here => b'H',
            PieceState::Own => b'O',
        }
    }

    fn from_byte(byte: u8, is_checked: bool) -> PieceState {
        match byte {
            b'H' => PieceState::Here,
            b'R' => PieceState::Remote,
            _ if is_checked => PieceState::Remote,
            _ => PieceState::Own,
        }
    }
}

impl MapPlaces {
    /// The places in the map of a file with these numbers of pieces and extents.
    pub fn of(pieces: usize, extents: usize, is_checked: bool) -> MapPlaces {
        let length = if is_checked { LENGTH_BYTES } else { 0 };
        let described =
            pieces.saturating_mul(PIECE_BYTES).saturating_add(extents.saturating_mul(EXTENT_BYTES));
        let states = described.saturating_add(HEAD_BYTES + length + 4);
        MapPlaces { states: states as u64, pieces: pieces as u64 }
    }

    /// Where the state of a piece stands.
    pub fn state(&self, piece: u32) -> u64 {
        self.states.saturating_add(u64::from(piece))
    }

    /// Where the digest of a piece stands, if the map has digests.
    pub fn digest(&self, piece: u32) -> u64 {
        let before = self.states.saturating_add(self.pieces);
        before.saturating_add(u64::from(piece).saturating_mul(DIGEST_BYTES as u64))
    }
}

impl PieceMap {
    /// Where its states and digests stand.
    pub fn places(&self) -> MapPlaces {
        MapPlaces::of(self.pieces.len(), self.extents.len(), self.check.is_some())
    }

    /// The bytes of the map.
    pub fn to_bytes(&self) -> Vec<u8> {
        let digests = self.check.as_ref().map_or(0, |check| check.digests.len() * DIGEST_BYTES);
        let mut out = Writer::with_capacity(self.places().states as usize + self.states.len() + digests);
        let flags = if self.check.is_some() { CHECKED } else { 0 };
        out.bytes(&MAGIC).u16(VERSION).u16(flags);
        out.u32(self.pieces.len() as u32).u32(self.extents.len() as u32);
        self.pieces.iter().for_each(|piece| write_piece(&mut out, piece));
        for extent in &self.extents {
            out.u64(extent.offset).u32(extent.piece).u32(extent.piece_offset).u32(extent.len);
        }
        if let Some(check) = &self.check {
            out.u64(check.bytes);
        }
        let checksum = checksum::of(out.as_slice());
        out.u32(checksum);
        for state in &self.states {
            out.u8(state.byte());
        }
        for digest in self.check.iter().flat_map(|check| &check.digests) {
            out.bytes(digest);
        }
        out.into_bytes()
    }

    /// Reads a map.
    pub fn parse(bytes: &[u8]) -> Result<PieceMap> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != MAGIC {
            return Err(Error::corrupt("it does not begin with TFCL"));
        }
        let (version, flags) = (reader.u16()?, reader.u16()?);
        if version != VERSION || flags & !CHECKED != 0 {
            let text = format!("version {version} with flags {flags:#x}, which a newer tierfs may know");
            return Err(Error::unsupported(text));
        }
        let is_checked = flags & CHECKED != 0;
        let (pieces, extents) = (reader.u32()? as usize, reader.u32()? as usize);
        let places = MapPlaces::of(pieces, extents, is_checked);
        let end = if is_checked { places.digest(pieces as u32) } else { places.state(pieces as u32) };
        // The lists are taken from bytes that are there, so that a wrong number costs no memory.
        if end != bytes.len() as u64 {
            return Err(Error::corrupt(format!("{pieces} pieces and {extents} extents do not fit it")));
        }
        let mut map = PieceMap::default();
        for _ in 0..pieces {
            let piece = read_piece(&mut reader)?;
            if u64::from(piece.stored.max(piece.raw)) > PIECE_BYTES_MAX {
                let text = format!("a piece of {} bytes that stand for {}", piece.stored, piece.raw);
                return Err(Error::corrupt(text));
            }
            map.pieces.push(piece);
        }
        let mut end = 0;
        for _ in 0..extents {
            let extent = read_extent(&mut reader, &map.pieces)?;
            if extent.offset < end {
                return Err(Error::corrupt("two extents overlap"));
            }
            end = extent.end();
            map.extents.push(extent);
        }
        let length = if is_checked { Some(reader.u64()?) } else { None };
        let hashed = bytes.get(..reader.position()).unwrap_or_default();
        if reader.u32()? != checksum::of(hashed) {
            return Err(Error::corrupt("its checksum differs"));
        }
        let states = reader.bytes(pieces)?;
        map.states = states.iter().map(|byte| PieceState::from_byte(*byte, is_checked)).collect();
        if let Some(bytes) = length {
            let digests = reader.bytes(pieces.saturating_mul(DIGEST_BYTES))?;
            map.check = Some(FileCheck { bytes, digests: digests.as_chunks::<DIGEST_BYTES>().0.to_vec() });
        }
        Ok(map)
    }
}

fn read_extent(reader: &mut Reader<'_>, pieces: &[Piece]) -> Result<FileExtent> {
    let extent = FileExtent {
        offset: reader.u64()?,
        piece: reader.u32()?,
        piece_offset: reader.u32()?,
        len: reader.u32()?,
    };
    let inside = pieces
        .get(extent.piece as usize)
        .zip(extent.piece_offset.checked_add(extent.len))
        .is_some_and(|(piece, end)| end <= piece.raw);
    if !inside || extent.len == 0 || extent.offset.checked_add(u64::from(extent.len)).is_none() {
        return Err(Error::corrupt("an extent goes past its piece or its file"));
    }
    Ok(extent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{FileCheck, PieceMap, PieceState};
    use crate::format::snapshot::keys::PieceName;
    use crate::format::snapshot::manifest::{FileExtent, Piece, PieceEncoding};

    fn map(lens: &[(u32, u32)], is_checked: bool) -> PieceMap {
        let mut map = PieceMap::default();
        let mut at = 0;
        let states: &[PieceState] = match is_checked {
            true => &[PieceState::Remote, PieceState::Here],
            false => &[PieceState::Remote, PieceState::Here, PieceState::Own],
        };
        for (number, (gap, len)) in (0..).zip(lens) {
            let name = PieceName { digest: [number as u8; 32], generation: number };
            map.pieces.push(Piece { name, stored: *len, raw: *len, encoding: PieceEncoding::Raw });
            let offset = at + u64::from(*gap);
            map.extents.push(FileExtent { offset, piece: number, piece_offset: 0, len: *len });
            at = offset + u64::from(*len);
            map.states.push(states[number as usize % states.len()]);
        }
        let digests = (0..lens.len()).map(|number| [number as u8 + 100; 32]).collect();
        map.check = is_checked.then_some(FileCheck { bytes: 0x1234, digests });
        map
    }

    #[test]
    fn a_map_has_these_bytes() {
        let bytes = map(&[(5, 7)], false).to_bytes();
        assert_eq!(bytes[..16], *b"TFCL\x01\0\0\0\x01\0\0\0\x01\0\0\0");
        assert_eq!(bytes[16..61], [&[0; 36][..], &[7, 0, 0, 0, 7, 0, 0, 0, 0]].concat());
        assert_eq!(bytes[61..81], [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!((bytes.len(), bytes[85]), (86, b'R'));
        let checked = map(&[(5, 7)], true);
        let bytes = checked.to_bytes();
        assert_eq!(bytes[..8], *b"TFCL\x01\0\x01\0");
        assert_eq!(bytes[81..89], [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!((bytes.len(), bytes[93], &bytes[94..]), (126, b'R', &[100; 32][..]));
        assert_eq!((checked.places().state(0), checked.places().digest(0)), (93, 94));
    }

    #[test]
    fn a_state_that_is_unknown_is_own_or_remote_where_nothing_is_own() {
        for (is_checked, unknown) in [(false, PieceState::Own), (true, PieceState::Remote)] {
            let map = map(&[(0, 7), (3, 2)], is_checked);
            let mut bytes = map.to_bytes();
            for byte in [0, b'O', 0xff] {
                bytes[map.places().state(0) as usize] = byte;
                assert_eq!(PieceMap::parse(&bytes).unwrap().states, [unknown, PieceState::Here]);
            }
        }
    }

    proptest! {
        #[test]
        fn maps_are_read_as_they_were_written(
            lens in prop::collection::vec((0_u32..9, 1_u32..999), 0..20),
            is_checked in any::<bool>(),
        ) {
            let map = map(&lens, is_checked);
            prop_assert_eq!(PieceMap::parse(&map.to_bytes()).unwrap(), map);
        }

        #[test]
        fn damaged_maps_are_refused(at in 0_usize..10_000, bit in 0_u8..8, is_checked in any::<bool>()) {
            let map = map(&[(0, 100), (64, 7), (0, 9)], is_checked);
            let mut bytes = map.to_bytes();
            let at = at % map.places().state(0) as usize;
            bytes[at] ^= 1 << bit;
            prop_assert!(PieceMap::parse(&bytes).is_err());
            bytes[at] ^= 1 << bit;
            prop_assert!(PieceMap::parse(&bytes[..at]).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), flags in 0_u8..3) {
            let mut bytes = bytes;
            PieceMap::parse(&bytes).ok();
            bytes.splice(..0, [b"TFCL\x01\0".as_slice(), &[flags, 0]].concat());
            PieceMap::parse(&bytes).ok();
        }
    }
}
