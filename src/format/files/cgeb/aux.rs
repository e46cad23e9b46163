//! Encodes and decodes the auxiliary data that a producer stores with an embedding.
//!
//! An LZ4 block follows its uncompressed length as u32 little-endian (lz4_Block_format.md of the LZ4
//! project). A Zstandard frame is as in RFC 8878.

use std::borrow::Cow;

use super::{AuxEncoding, CgebError};
use crate::format::zstandard::{self, Undecoded};

const LZ4_DAMAGED: CgebError = CgebError::AuxDamaged { encoding: "LZ4 block after its length" };
const ZSTANDARD_DAMAGED: CgebError = CgebError::AuxDamaged { encoding: "Zstandard frame" };

impl AuxEncoding {
    /// Decodes `stored` to at most `bytes_max` bytes. Checks the length in `stored` before it allocates.
    /// Returns raw or empty data unchanged.
    ///
    /// # Errors
    /// `AuxDamaged`, `AuxTooLong`.
    pub fn decode(self, stored: &[u8], bytes_max: usize) -> Result<Cow<'_, [u8]>, CgebError> {
        let too_long = CgebError::AuxTooLong { most: bytes_max as u64 };
        if stored.len() > bytes_max && self == AuxEncoding::Raw {
            return Err(too_long);
        }
        match self {
            AuxEncoding::Raw => Ok(Cow::Borrowed(stored)),
            _ if stored.is_empty() => Ok(Cow::Borrowed(stored)),
            AuxEncoding::Lz4 => {
                let (len, block) = stored.split_first_chunk().ok_or(LZ4_DAMAGED)?;
                let len = u32::from_le_bytes(*len) as usize;
                if len > bytes_max {
                    return Err(too_long);
                }
                // A byte of a block decodes to at most 255 bytes.
                if len > block.len().saturating_mul(255) {
                    return Err(LZ4_DAMAGED);
                }
                let mut out = vec![0; len];
                match lz4_flex::block::decompress_into(block, &mut out) {
                    Ok(count) if count == len => Ok(Cow::Owned(out)),
                    _ => Err(LZ4_DAMAGED),
                }
            }
            AuxEncoding::Zstandard => {
                zstandard::decode(stored, bytes_max).map(Cow::Owned).map_err(|undecoded| match undecoded {
                    Undecoded::TooLong => too_long,
                    Undecoded::Damaged => ZSTANDARD_DAMAGED,
                })
            }
        }
    }

    /// Encodes `bytes`.
    ///
    /// # Errors
    /// `AuxTooLong` for more bytes than the length of an LZ4 block can hold.
    pub fn encode(self, bytes: &[u8]) -> Result<Cow<'_, [u8]>, CgebError> {
        match self {
            AuxEncoding::Raw => Ok(Cow::Borrowed(bytes)),
            AuxEncoding::Lz4 if u32::try_from(bytes.len()).is_err() => {
                Err(CgebError::AuxTooLong { most: u64::from(u32::MAX) })
            }
            AuxEncoding::Lz4 => Ok(Cow::Owned(lz4_flex::block::compress_prepend_size(bytes))),
            AuxEncoding::Zstandard => Ok(Cow::Owned(zstandard::encode(bytes))),
        }
    }
}
