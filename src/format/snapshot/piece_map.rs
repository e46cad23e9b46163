//! The map of a file of a clone: the pieces that its bytes came from, and the state of each.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 4 | magic `TFCL` |
//! | 4 | 2 | version 1 |
//! | 6 | 2 | flags 0 |
//! | 8 | 4 | number of pieces |
//! | 12 | 4 | number of extents |
//! | 16 | 45 each | pieces: name 32, generation u32, stored bytes u32, raw bytes u32, encoding u8 |
//! | .. | 20 each | extents, ascending: offset in the file u64, piece u32, offset in the piece u32, bytes u32 |
//! | .. | 4 | CRC32C of everything before |
//! | .. | 1 each | states of the pieces: `R` remote, `H` here, `O` own |
//!
//! The states are written in place, one byte at a time, so they are in no checksum. Any other byte means
//! *own*: such bytes are neither replaced nor given back, and blocks have checksums.

use crate::format::checksum;
use crate::format::cursor::{Reader, Writer};
use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::manifest::{EXTENTS_MAX, FileExtent, PIECES_MAX, Piece, PieceEncoding};
use crate::format::snapshot::pieces::PIECE_BYTES_MAX;
use crate::model::{Error, Result};

const MAGIC: [u8; 4] = *b"TFCL";
const VERSION: u16 = 1;
const HEAD_BYTES: usize = 16;
const PIECE_BYTES: usize = 45;
const EXTENT_BYTES: usize = 20;

/// The longest map, in bytes.
pub const MAP_BYTES_MAX: u64 =
    (HEAD_BYTES + PIECES_MAX * (PIECE_BYTES + 1) + EXTENTS_MAX * EXTENT_BYTES + 4) as u64;

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

/// The pieces of a file of a clone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PieceMap {
    /// The pieces.
    pub pieces: Vec<Piece>,
    /// The places of their bytes in the file, ascending. They do not overlap.
    pub extents: Vec<FileExtent>,
    /// The state of each piece.
    pub states: Vec<PieceState>,
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

    fn from_byte(byte: u8) -> PieceState {
        match byte {
            b'R' => PieceState::Remote,
            b'H' => PieceState::Here,
            _ => PieceState::Own,
        }
    }
}

impl PieceMap {
    /// Where the states begin in the map of a file.
    pub fn states_at(&self) -> u64 {
        (HEAD_BYTES + self.pieces.len() * PIECE_BYTES + self.extents.len() * EXTENT_BYTES + 4) as u64
    }

    /// The bytes of the map.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(self.states_at() as usize + self.states.len());
        out.bytes(&MAGIC).u16(VERSION).u16(0).u32(self.pieces.len() as u32).u32(self.extents.len() as u32);
        for piece in &self.pieces {
            out.bytes(&piece.name.digest).u32(piece.name.generation);
            out.u32(piece.stored).u32(piece.raw).u8(piece.encoding.byte());
        }
        for extent in &self.extents {
            out.u64(extent.offset).u32(extent.piece).u32(extent.piece_offset).u32(extent.len);
        }
        let checksum = checksum::of(out.as_slice());
        out.u32(checksum);
        for state in &self.states {
            out.u8(state.byte());
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
        if (version, flags) != (VERSION, 0) {
            let text = format!("version {version} with flags {flags:#x}, which a newer tierfs may know");
            return Err(Error::unsupported(text));
        }
        let (pieces, extents) = (reader.u32()? as usize, reader.u32()? as usize);
        let described =
            pieces.saturating_mul(PIECE_BYTES).saturating_add(extents.saturating_mul(EXTENT_BYTES));
        if described.saturating_add(pieces).saturating_add(4) != reader.remaining() {
            return Err(Error::corrupt(format!("{pieces} pieces and {extents} extents do not fit it")));
        }
        let mut map = PieceMap::default();
        for _ in 0..pieces {
            map.pieces.push(read_piece(&mut reader)?);
        }
        let mut end = 0;
        for _ in 0..extents {
            let extent = read_extent(&mut reader, &map.pieces)?;
            if extent.offset < end {
                return Err(Error::corrupt("extents that overlap"));
            }
            end = extent.end();
            map.extents.push(extent);
        }
        let hashed = bytes.get(..reader.position()).unwrap_or_default();
        if reader.u32()? != checksum::of(hashed) {
            return Err(Error::corrupt("its checksum differs"));
        }
        map.states = reader.bytes(pieces)?.iter().map(|byte| PieceState::from_byte(*byte)).collect();
        Ok(map)
    }
}

fn read_piece(reader: &mut Reader<'_>) -> Result<Piece> {
    let name = PieceName { digest: reader.array()?, generation: reader.u32()? };
    let (stored, raw) = (reader.u32()?, reader.u32()?);
    let encoding = PieceEncoding::from_byte(reader.u8()?)?;
    if u64::from(stored.max(raw)) > PIECE_BYTES_MAX {
        return Err(Error::corrupt(format!("a piece of {stored} bytes that stand for {raw}")));
    }
    Ok(Piece { name, stored, raw, encoding })
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
        return Err(Error::corrupt("an extent outside its piece or its file"));
    }
    Ok(extent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{PieceMap, PieceState};
    use crate::format::snapshot::keys::PieceName;
    use crate::format::snapshot::manifest::{FileExtent, Piece, PieceEncoding};

    fn map(lens: &[(u32, u32)]) -> PieceMap {
        let mut map = PieceMap::default();
        let mut at = 0;
        for (number, (gap, len)) in (0..).zip(lens) {
            let name = PieceName { digest: [number as u8; 32], generation: number };
            map.pieces.push(Piece { name, stored: *len, raw: *len, encoding: PieceEncoding::Raw });
            let offset = at + u64::from(*gap);
            map.extents.push(FileExtent { offset, piece: number, piece_offset: 0, len: *len });
            at = offset + u64::from(*len);
            map.states.push([PieceState::Remote, PieceState::Here, PieceState::Own][number as usize % 3]);
        }
        map
    }

    #[test]
    fn a_map_has_these_bytes() {
        let bytes = map(&[(5, 7)]).to_bytes();
        assert_eq!(bytes[..16], *b"TFCL\x01\0\0\0\x01\0\0\0\x01\0\0\0");
        assert_eq!(bytes[16..61], [&[0; 36][..], &[7, 0, 0, 0, 7, 0, 0, 0, 0]].concat());
        assert_eq!(bytes[61..81], [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!((bytes.len(), bytes[85]), (86, b'R'));
    }

    #[test]
    fn a_state_that_is_unknown_is_own() {
        let mut bytes = map(&[(0, 7), (3, 2)]).to_bytes();
        let at = map(&[(0, 7), (3, 2)]).states_at() as usize;
        assert_eq!(bytes.len(), at + 2);
        bytes[at] = 0;
        assert_eq!(PieceMap::parse(&bytes).unwrap().states, [PieceState::Own, PieceState::Here]);
    }

    proptest! {
        #[test]
        fn maps_are_read_as_they_were_written(lens in prop::collection::vec((0_u32..9, 1_u32..999), 0..20)) {
            let map = map(&lens);
            let bytes = map.to_bytes();
            prop_assert_eq!(bytes.len() as u64, map.states_at() + map.states.len() as u64);
            prop_assert_eq!(PieceMap::parse(&bytes).unwrap(), map);
        }

        #[test]
        fn damaged_maps_are_refused(at in 0_usize..10_000, bit in 0_u8..8) {
            let map = map(&[(0, 100), (64, 7), (0, 9)]);
            let mut bytes = map.to_bytes();
            let at = at % map.states_at() as usize;
            bytes[at] ^= 1 << bit;
            prop_assert!(PieceMap::parse(&bytes).is_err());
            bytes[at] ^= 1 << bit;
            prop_assert!(PieceMap::parse(&bytes[..at]).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = bytes;
            PieceMap::parse(&bytes).ok();
            bytes.splice(..0, *b"TFCL\x01\0\0\0");
            PieceMap::parse(&bytes).ok();
        }
    }
}
