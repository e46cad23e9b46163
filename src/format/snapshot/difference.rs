//! A piece that is stored as its difference from bytes of other pieces: the content of its Zstandard frame.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 1 | version 1 |
//! | 1 | 1 | number of bases, 1 to 8 |
//! | 2 | 2 | zero |
//! | 4 | 4 | number of stretches |
//! | 8 | 32 | BLAKE3 of the bytes that the piece stands for |
//! | 40 | 45 each | bases: pieces as in a manifest, none of them a difference |
//! | .. | 13 each | stretches, which make up the piece in order |
//! | .. | .. | for each stretch its bytes, or its changes |
//!
//! A stretch: bytes u32, element type u8, base u32 (0xFFFFFFFF for none), offset in the bytes of the base u32. Without a
//! base its bytes follow as they are. With one, each 65,536 elements of it, the last ones perhaps fewer, have a kind
//! u8: 0 equal; 1 sparse, 2 ladder, each with the bytes of a payload u32 and the payload (`codec/sparse.rs`,
//! `codec/difference.rs`); 3 the bytes as they are. Types whose elements have not 2, 4 or 8 bytes count as bytes.

use crate::format::cursor::{Reader, Writer};
use crate::format::snapshot::manifest::{Piece, PieceEncoding};
use crate::format::snapshot::pieces::PIECE_BYTES_MAX;
use crate::format::snapshot::wire::{PIECE_BYTES, read_piece, write_piece};
use crate::format::values::read_dtype;
use crate::model::{Dtype, Error, Result};

const VERSION: u8 = 1;
/// The most pieces that a difference is from.
pub(super) const BASES_MAX: usize = 8;
/// The most bytes that they stand for together: a reader has them all in memory.
const BASES_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a stretch.
pub(super) const STRETCH_BYTES: usize = 13;
/// Stands for no base.
const NONE: u32 = u32::MAX;

/// Consecutive bytes of a piece, and the equally many bytes of another piece that they are a difference from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BaseStretch {
    /// Bytes.
    pub len: u32,
    /// The type of their elements.
    pub dtype: Dtype,
    /// The index of a piece in a list, and the offset in the bytes that it stands for.
    pub base: Option<(u32, u32)>,
}

/// The head of such a piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DifferenceHead {
    /// BLAKE3 of the bytes that the piece stands for.
    pub digest: [u8; 32],
    /// The pieces that it is a difference from.
    pub bases: Vec<Piece>,
    /// Its stretches, with indexes into `bases`.
    pub stretches: Vec<BaseStretch>,
}

impl DifferenceHead {
    /// Appends the head.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut head = Writer::new();
        head.u8(VERSION).u8(self.bases.len() as u8).u16(0).u32(self.stretches.len() as u32);
        head.bytes(&self.digest);
        self.bases.iter().for_each(|base| write_piece(&mut head, base));
        self.stretches.iter().for_each(|stretch| write_stretch(&mut head, stretch));
        out.extend(head.into_bytes());
    }

    /// Reads the head of a piece of `raw` bytes, and returns what follows it. `Corrupt` if it contradicts itself.
    pub fn parse(bytes: &[u8], raw: u32) -> Result<(DifferenceHead, &[u8])> {
        let mut reader = Reader::new(bytes);
        let (version, bases, zero) = (reader.u8()?, usize::from(reader.u8()?), reader.u16()?);
        if version != VERSION {
            return Err(Error::unsupported(format!("version {version} of a difference")));
        }
        if !(1..=BASES_MAX).contains(&bases) || zero != 0 {
            return Err(Error::corrupt(format!("a difference from {bases} pieces")));
        }
        let count = reader.u32()? as usize;
        let digest = reader.array()?;
        // The lists are taken from bytes that are there, so that a wrong number costs no memory.
        let (described, stretches) =
            (reader.bytes(bases * PIECE_BYTES)?, reader.bytes(count.saturating_mul(STRETCH_BYTES))?);
        let (mut described, mut listed) = (Reader::new(described), Reader::new(stretches));
        let bases = (0..bases).map(|_| read_piece(&mut described)).collect::<Result<Vec<_>>>()?;
        let stretches = (0..count).map(|_| read_stretch(&mut listed)).collect::<Result<Vec<_>>>()?;
        let is_whole = |piece: &Piece| {
            piece.encoding != PieceEncoding::Difference
                && u64::from(piece.stored.max(piece.raw)) < PIECE_BYTES_MAX
        };
        if !bases.iter().all(is_whole) || !are_allowed(&bases) {
            return Err(Error::corrupt("a difference from a difference, or from too many bytes"));
        }
        check_stretches(&stretches, raw, |base| bases.get(base as usize).map(|piece| piece.raw))
            .map_err(Error::corrupt)?;
        let rest = bytes.get(reader.position()..).unwrap_or_default();
        Ok((DifferenceHead { digest, bases, stretches }, rest))
    }
}

/// Whether a piece may be a difference from these.
pub fn are_allowed(bases: &[Piece]) -> bool {
    let bytes: u64 = bases.iter().map(|base| u64::from(base.raw)).sum();
    bases.len() <= BASES_MAX && bytes <= BASES_BYTES_MAX
}

/// Why stretches do not make up a piece of `raw` bytes. `raw_of` has the bytes that a base stands for.
pub(super) fn check_stretches(
    stretches: &[BaseStretch],
    raw: u32,
    raw_of: impl Fn(u32) -> Option<u32>,
) -> std::result::Result<(), String> {
    let sum: u64 = stretches.iter().map(|stretch| u64::from(stretch.len)).sum();
    if sum != u64::from(raw) {
        return Err(format!("the stretches of a difference have {sum} bytes of {raw}"));
    }
    let is_inside = |stretch: &BaseStretch| {
        stretch.base.is_none_or(|(base, offset)| {
            raw_of(base).zip(offset.checked_add(stretch.len)).is_some_and(|(raw, end)| end <= raw)
        })
    };
    if stretches.iter().all(|stretch| stretch.len > 0 && is_inside(stretch)) {
        Ok(())
    } else {
        Err("a stretch of a difference goes past its base".to_owned())
    }
}

pub(super) fn write_stretch(out: &mut Writer, stretch: &BaseStretch) {
    let (base, offset) = stretch.base.unwrap_or((NONE, 0));
    out.u32(stretch.len).u8(stretch.dtype.code()).u32(base).u32(offset);
}

pub(super) fn read_stretch(reader: &mut Reader<'_>) -> Result<BaseStretch> {
    let (len, dtype) = (reader.u32()?, read_dtype(reader)?);
    let (base, offset) = (reader.u32()?, reader.u32()?);
    Ok(BaseStretch { len, dtype, base: (base != NONE).then_some((base, offset)) })
}
