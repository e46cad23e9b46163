//! A `.cgei` file: the offsets of the records of a `.cgeb` file.
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

use crate::format::cursor::{Reader, Writer};
use crate::format::files::cgeb::{CgebError, RECORD_ALIGNMENT, zero};

const MAGIC: [u8; 4] = *b"CGEI";
const VERSION: u16 = 1;
/// Bytes before the offsets.
pub const HEAD_BYTES: u64 = 24;

/// The bytes before the offsets of an index of `count` records.
pub fn head(count: u64, data_hash: u64) -> Vec<u8> {
    let mut out = Writer::with_capacity(HEAD_BYTES as usize);
    out.bytes(&MAGIC).u16_be(VERSION).zeros(2).u64_be(count).u64_be(data_hash);
    out.into_bytes()
}

/// Reads the number of records and the data hash at the start of an index of `present` bytes.
/// `bytes` are the first of them.
///
/// # Errors
/// `WrongMagic`, `UnsupportedVersion`, `ReservedNotZero`, `Truncated`, `TrailingBytes`.
pub fn parse_head(bytes: &[u8], present: u64) -> Result<(u64, u64), CgebError> {
    let short = |_| CgebError::Truncated { needed: HEAD_BYTES, present };
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
    match end.cmp(&present) {
        std::cmp::Ordering::Less => Err(CgebError::TrailingBytes { end, present }),
        std::cmp::Ordering::Greater => Err(CgebError::Truncated { needed: end, present }),
        std::cmp::Ordering::Equal => Ok((count, data_hash)),
    }
}

/// An index that borrows its bytes, at any alignment.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedIndex<'a> {
    /// The data hash, as in [`Index`].
    pub data_hash: u64,
    offsets: &'a [[u8; 8]],
}

impl<'a> BorrowedIndex<'a> {
    /// The index in `bytes`. Allocates nothing and reads only the head; the offsets are not checked.
    ///
    /// # Errors
    /// Those of [`parse_head`].
    pub fn borrow(bytes: &'a [u8]) -> Result<BorrowedIndex<'a>, CgebError> {
        let (_, data_hash) = parse_head(bytes, bytes.len() as u64)?;
        let (offsets, _) = bytes.get(HEAD_BYTES as usize..).unwrap_or_default().as_chunks();
        Ok(BorrowedIndex { data_hash, offsets })
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// Byte offset of record `number`.
    pub fn offset(&self, number: usize) -> Option<u64> {
        self.offsets.get(number).copied().map(u64::from_be_bytes)
    }

    /// All offsets, in order.
    pub fn offsets(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        self.offsets.iter().copied().map(u64::from_be_bytes)
    }

    /// Checks that the offsets are possible for records and ascend.
    ///
    /// # Errors
    /// `WrongOffset`.
    pub fn check(&self) -> Result<(), CgebError> {
        check_offsets(self.offsets())
    }
}

/// The offsets of the records of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Index {
    /// The first 8 bytes, big-endian, of the blake3 of the `.cgeb` file;
    /// [`leading_hash`](crate::format::files::cgeb::leading_hash) computes it.
    pub data_hash: u64,
    /// The records' offsets in bytes: ascending multiples of [`RECORD_ALIGNMENT`].
    pub offsets: Vec<u64>,
}

impl Index {
    /// Reads a whole index. Allocates only after the length was found to match the number of records, so work and memory
    /// follow from the length and need no budget.
    ///
    /// # Errors
    /// `WrongMagic`, `UnsupportedVersion`, `ReservedNotZero`, `Truncated`,
    /// `TrailingBytes`, `WrongOffset`.
    pub fn parse(bytes: &[u8]) -> Result<Index, CgebError> {
        let borrowed = BorrowedIndex::borrow(bytes)?;
        borrowed.check()?;
        Ok(Index { data_hash: borrowed.data_hash, offsets: borrowed.offsets().collect() })
    }

    /// The index's bytes.
    ///
    /// # Errors
    /// `WrongOffset`.
    pub fn write(&self) -> Result<Vec<u8>, CgebError> {
        check_offsets(self.offsets.iter().copied())?;
        let mut out = Writer::new();
        out.bytes(&head(self.offsets.len() as u64, self.data_hash));
        for offset in &self.offsets {
            out.u64_be(*offset);
        }
        Ok(out.into_bytes())
    }

    /// Checks that the index belongs to the file with the data hash `computed`.
    ///
    /// # Errors
    /// `HashMismatch`.
    pub fn verify(&self, computed: u64) -> Result<(), CgebError> {
        let stored = self.data_hash;
        if stored == computed { Ok(()) } else { Err(CgebError::HashMismatch { stored, computed }) }
    }
}

fn check_offsets(offsets: impl Iterator<Item = u64>) -> Result<(), CgebError> {
    let mut lowest = 0;
    for (number, offset) in (0..).zip(offsets) {
        if offset < lowest || offset % RECORD_ALIGNMENT != 0 {
            return Err(CgebError::WrongOffset { number, offset });
        }
        lowest = offset.saturating_add(1);
    }
    Ok(())
}
