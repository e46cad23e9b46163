//! The header of a record of a `.cgeb` file, and where the fields of the record lie.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 4 | magic `CGEB` |
//! | 4 | 2 | version: 1 or 2 |
//! | 6 | 2 | flags: 0 in version 1; bit 0 floats are little-endian, bit 1 content hash covers the payload, bits 2-3 aux is 0 raw, 1 an LZ4 block after its length as u32 little-endian, 2 a Zstandard frame |
//! | 8 | 4 | dimension |
//! | 12 | 1 | number of experts |
//! | 13 | 1 | top k |
//! | 14 | 2 | zero |
//! | 16 | 8 | content hash: with bit 1 the first 8 bytes of blake3(vector, weights, selected, aux as stored), else the producer's own |
//! | 24 | 8 | pipeline latency in microseconds |
//! | 32 | 8 | offset of aux from the record's start, 0 for none |
//! | 40 | 8 | length of aux |
//! | 48 | 16 | zero |
//! | 64 | 4 dimension | vector, f32 |
//! | .. | 4 experts | weights, f32 |
//! | .. | top k | selected experts, u8 |
//! | .. | .. | aux |
//!
//! Numbers of the header are big-endian; floats are big-endian without bit 0. In a file
//! every record begins at a multiple of [`RECORD_ALIGNMENT`]; bytes between records are zero.
//! The last record of a file has all its padding, or none.

use std::ops::Range;

use super::error::CgebError;
use crate::format::cursor::Reader;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;

/// Alignment of records in a file, in bytes.
pub const RECORD_ALIGNMENT: u64 = 4096;

const MAGIC: [u8; 4] = *b"CGEB";
const FLAG_LITTLE_ENDIAN: u16 = 1;
const FLAG_HASHED: u16 = 1 << 1;
const AUX_SHIFT: u16 = 2;

/// The version of a record and the byte order of its floats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// Version 1, big-endian floats.
    One,
    /// Version 2, big-endian floats.
    TwoBig,
    /// Version 2, little-endian floats, which need no conversion on common machines.
    TwoLittle,
}

/// How aux is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AuxEncoding {
    /// Unencoded.
    #[default]
    Raw,
    /// The uncompressed length as u32 little-endian, then an LZ4 block.
    Lz4,
    /// A Zstandard frame.
    Zstandard,
}

/// The kind and value of a content hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContentHash {
    /// The producer's own number.
    Own(u64),
    /// The first 8 bytes, big-endian, of the blake3 of the payload. Not in version 1.
    OfPayload(u64),
}

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Version and byte order.
    pub layout: Layout,
    /// How aux is stored: raw in version 1.
    pub aux_encoding: AuxEncoding,
    /// Values of the vector.
    pub dimension: u32,
    /// Weights.
    pub experts: u8,
    /// Selected experts.
    pub top_k: u8,
    /// The content hash.
    pub content_hash: ContentHash,
    /// Latency in microseconds as measured by the producer.
    pub pipeline_latency_us: u64,
    /// Offset of aux from the record's start; 0 if there is none.
    pub aux_offset: u64,
    /// Bytes of aux.
    pub aux_length: u64,
}

impl Header {
    /// Reads the header at the start of `bytes`. Reads nothing else of the record, so the work does
    /// not depend on its length.
    ///
    /// # Errors
    /// All of [`CgebError`] except those of hashes, indexes and writing; `Truncated` only for
    /// the header itself and `AuxOutside` only for an aux whose end overflows.
    pub fn parse(bytes: &[u8]) -> Result<Header, CgebError> {
        let mut input = Reader::new(bytes);
        let truncated = |_| CgebError::Truncated { needed: HEADER_BYTES as u64, present: bytes.len() as u64 };
        let magic = input.array().map_err(truncated)?;
        if magic != MAGIC {
            return Err(CgebError::WrongMagic { found: magic });
        }
        let version = input.u16_be().map_err(truncated)?;
        if !matches!(version, 1 | 2) {
            return Err(CgebError::UnsupportedVersion { version });
        }
        let flags = input.u16_be().map_err(truncated)?;
        let (layout, aux_encoding) = flags_of(version, flags)?;
        let dimension = input.u32_be().map_err(truncated)?;
        let experts = input.u8().map_err(truncated)?;
        let top_k = input.u8().map_err(truncated)?;
        zero(input.bytes(2).map_err(truncated)?, 14)?;
        let hash = input.u64_be().map_err(truncated)?;
        let header = Header {
            layout,
            aux_encoding,
            dimension,
            experts,
            top_k,
            content_hash: if flags & FLAG_HASHED != 0 {
                ContentHash::OfPayload(hash)
            } else {
                ContentHash::Own(hash)
            },
            pipeline_latency_us: input.u64_be().map_err(truncated)?,
            aux_offset: input.u64_be().map_err(truncated)?,
            aux_length: input.u64_be().map_err(truncated)?,
        };
        zero(input.bytes(16).map_err(truncated)?, 48)?;
        header.check_aux()?;
        Ok(header)
    }

    /// The header's bytes. Allocates nothing. The result of a version 1 with flags cannot be parsed.
    pub fn write(&self) -> [u8; HEADER_BYTES] {
        let (ContentHash::Own(hash) | ContentHash::OfPayload(hash)) = self.content_hash;
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        };
        put(0, &MAGIC);
        put(4, &self.version().to_be_bytes());
        put(6, &self.flags().to_be_bytes());
        put(8, &self.dimension.to_be_bytes());
        put(12, &[self.experts, self.top_k]);
        put(16, &hash.to_be_bytes());
        put(24, &self.pipeline_latency_us.to_be_bytes());
        put(32, &self.aux_offset.to_be_bytes());
        put(40, &self.aux_length.to_be_bytes());
        bytes
    }

    /// The version number.
    pub fn version(&self) -> u16 {
        match self.layout {
            Layout::One => 1,
            Layout::TwoBig | Layout::TwoLittle => 2,
        }
    }

    fn flags(&self) -> u16 {
        let order = match self.layout {
            Layout::One | Layout::TwoBig => 0,
            Layout::TwoLittle => FLAG_LITTLE_ENDIAN,
        };
        let hashed = match self.content_hash {
            ContentHash::Own(_) => 0,
            ContentHash::OfPayload(_) => FLAG_HASHED,
        };
        let aux = match self.aux_encoding {
            AuxEncoding::Raw => 0,
            AuxEncoding::Lz4 => 1,
            AuxEncoding::Zstandard => 2,
        };
        order | hashed | aux << AUX_SHIFT
    }

    /// The range of the vector in the record.
    pub fn vector_range(&self) -> Range<u64> {
        let start = HEADER_BYTES as u64;
        start..start + 4 * u64::from(self.dimension)
    }

    /// The range of the weights.
    pub fn weights_range(&self) -> Range<u64> {
        let start = self.vector_range().end;
        start..start + 4 * u64::from(self.experts)
    }

    /// The range of the selected experts.
    pub fn selected_range(&self) -> Range<u64> {
        let start = self.weights_range().end;
        start..start + u64::from(self.top_k)
    }

    /// The range of aux, after all other fields, possibly with a gap. Empty without aux.
    pub fn aux_range(&self) -> Range<u64> {
        let start = match self.aux_offset {
            0 => self.selected_range().end,
            offset => offset,
        };
        start..start.saturating_add(self.aux_length)
    }

    /// Bytes of the record.
    pub fn record_bytes(&self) -> u64 {
        self.aux_range().end
    }

    /// Bytes from the start of this record to the start of the next in a file, a multiple of
    /// [`RECORD_ALIGNMENT`]. `None` on overflow.
    pub fn stride(&self) -> Option<u64> {
        self.record_bytes().checked_next_multiple_of(RECORD_ALIGNMENT)
    }

    /// Refuses flags in version 1.
    pub(super) fn check_version(&self) -> Result<(), CgebError> {
        flags_of(self.version(), self.flags()).map(|_| ())
    }

    pub(super) fn check_aux(&self) -> Result<(), CgebError> {
        let (offset, length) = (self.aux_offset, self.aux_length);
        let fixed = self.selected_range().end;
        let none = offset == 0 && length == 0;
        if !none && offset < fixed {
            return Err(CgebError::AuxOverlaps { offset, fixed });
        }
        match offset.checked_add(length) {
            Some(_) => Ok(()),
            None => Err(CgebError::AuxOutside { offset, length, present: u64::MAX }),
        }
    }
}

fn flags_of(version: u16, flags: u16) -> Result<(Layout, AuxEncoding), CgebError> {
    let unknown = CgebError::UnsupportedFlags { version, flags };
    if version == 1 {
        let plain = (Layout::One, AuxEncoding::Raw);
        return if flags == 0 { Ok(plain) } else { Err(unknown) };
    }
    let layout = if flags & FLAG_LITTLE_ENDIAN != 0 { Layout::TwoLittle } else { Layout::TwoBig };
    match flags >> AUX_SHIFT {
        0 => Ok((layout, AuxEncoding::Raw)),
        1 => Ok((layout, AuxEncoding::Lz4)),
        2 => Ok((layout, AuxEncoding::Zstandard)),
        _ => Err(unknown),
    }
}

/// Refuses reserved bytes, at `start` of a record or an index, that are not zero.
pub(in crate::format::files) fn zero(bytes: &[u8], start: u64) -> Result<(), CgebError> {
    match bytes.iter().position(|byte| *byte != 0) {
        Some(place) => Err(CgebError::ReservedNotZero { at: start + place as u64 }),
        None => Ok(()),
    }
}

/// The first 8 bytes of a hash as a big-endian number, for content hashes and the data hash of an
/// index.
pub fn leading_hash(hasher: &blake3::Hasher) -> u64 {
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_be_bytes(bytes)
}
