//! A `.cgei` file: where the records of a `.cgeb` file begin.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 4 | magic `CGEI` |
//! | 4 | 2 | version: 1 |
//! | 6 | 2 | zero |
//! | 8 | 8 | number of records |
//! | 16 | 8 | data hash: the first 8 bytes of blake3 of the `.cgeb` file |
//! | 24 | 8 each | the records' offsets in the `.cgeb` file, ascending |
//!
//! All numbers are big-endian.

use crate::format::cgeb::{CgebError, RECORD_ALIGNMENT, zero};
use crate::format::cursor::{Reader, Writer};

const MAGIC: [u8; 4] = *b"CGEI";
const VERSION: u16 = 1;
const HEAD_BYTES: u64 = 24;

/// Where the records of a file begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Index {
    /// The first 8 bytes, big-endian, of the blake3 of the file that it is of;
    /// [`leading_hash`](crate::format::cgeb::leading_hash) computes it.
    pub data_hash: u64,
    /// The records' offsets in bytes: ascending multiples of [`RECORD_ALIGNMENT`].
    pub offsets: Vec<u64>,
}

impl Index {
    /// Reads a whole index. Nothing is allocated before the length is what the number of
    /// records says.
    ///
    /// # Errors
    /// `WrongMagic`, `UnsupportedVersion`, `ReservedNotZero`, `Truncated`,
    /// `TrailingBytes`, `WrongOffset`.
    pub fn parse(bytes: &[u8]) -> Result<Index, CgebError> {
        let present = bytes.len() as u64;
        let truncated = |needed| move |_| CgebError::Truncated { needed, present };
        let short = truncated(HEAD_BYTES);
        let mut input = Reader::new(bytes);
        let magic = input.array().map_err(short)?;
        if magic != MAGIC {
            return Err(CgebError::WrongMagic { found: magic });
        }
        let version = input.u16_be().map_err(short)?;
        if version != VERSION {
            return Err(CgebError::UnsupportedVersion { version });
        }
        zero(input.bytes(2).map_err(short)?, 6)?;
        let count = input.u64_be().map_err(short)?;
        let data_hash = input.u64_be().map_err(short)?;
        let end = count.saturating_mul(8).saturating_add(HEAD_BYTES);
        if end < present {
            return Err(CgebError::TrailingBytes { end, present });
        }
        let short = truncated(end);
        let (offsets, _) =
            input.bytes(usize::try_from(end - HEAD_BYTES).unwrap_or(usize::MAX)).map_err(short)?.as_chunks();
        let offsets: Vec<u64> = offsets.iter().copied().map(u64::from_be_bytes).collect();
        check_offsets(&offsets)?;
        Ok(Index { data_hash, offsets })
    }

    /// The index's bytes.
    ///
    /// # Errors
    /// `WrongOffset`.
    pub fn write(&self) -> Result<Vec<u8>, CgebError> {
        check_offsets(&self.offsets)?;
        let mut out = Writer::new();
        out.bytes(&MAGIC).u16_be(VERSION).zeros(2).u64_be(self.offsets.len() as u64).u64_be(self.data_hash);
        for offset in &self.offsets {
            out.u64_be(*offset);
        }
        Ok(out.into_bytes())
    }

    /// Whether it is of the file whose data hash is `computed`.
    ///
    /// # Errors
    /// `HashMismatch`.
    pub fn verify(&self, computed: u64) -> Result<(), CgebError> {
        let stored = self.data_hash;
        if stored == computed { Ok(()) } else { Err(CgebError::HashMismatch { stored, computed }) }
    }
}

fn check_offsets(offsets: &[u64]) -> Result<(), CgebError> {
    let mut lowest = 0;
    for (number, offset) in (0..).zip(offsets.iter().copied()) {
        if offset < lowest || offset % RECORD_ALIGNMENT != 0 {
            return Err(CgebError::WrongOffset { number, offset });
        }
        lowest = offset.saturating_add(1);
    }
    Ok(())
}
