//! Rows of f32, each after its length: the layout of `.fvecs` files.

use std::ops::Range;

use crate::model::Result;
use crate::stream::{Computed, Stream};

/// Bytes of rows to fetch with one call.
const FETCH_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the length before a row.
const PREFIX_BYTES: u64 = 4;

/// Bytes of rows, each after its length.
pub(super) fn bytes_of_vectors(rows: u64, dimension: u64) -> Option<u64> {
    rows.checked_mul(dimension.checked_mul(4)?.checked_add(PREFIX_BYTES)?)
}

/// Rows of f32, each after its length.
pub(super) struct Vectors {
    pub source: Stream,
    pub rows: u64,
    pub dimension: u64,
}

impl Vectors {
    fn row_bytes(&self) -> u64 {
        self.dimension.saturating_mul(4)
    }
}

impl Computed for Vectors {
    fn bytes(&self) -> u64 {
        bytes_of_vectors(self.rows, self.dimension).unwrap_or(u64::MAX)
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let (row, stride) = (self.row_bytes(), self.row_bytes() + PREFIX_BYTES);
        let prefix = u32::try_from(self.dimension).unwrap_or(u32::MAX).to_le_bytes();
        let step = (FETCH_BYTES_MAX / stride).max(1);
        let (mut at, mut rest, mut rows) = (range.start, out, Vec::new());
        while !rest.is_empty() {
            let first = at / stride;
            let until = (first + step).min((at + rest.len() as u64).div_ceil(stride));
            rows.resize(((until - first) * row) as usize, 0);
            self.source.read_exact(first * row, &mut rows)?;
            for vector in rows.chunks_exact(row as usize) {
                let skip = (at % stride) as usize;
                let len = (stride as usize - skip).min(rest.len());
                let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
                match here.split_first_chunk_mut::<4>() {
                    Some((head, values)) if skip == 0 && values.len() == vector.len() => {
                        *head = prefix;
                        values.copy_from_slice(vector);
                    }
                    _ => {
                        let bytes = prefix.iter().chain(vector).skip(skip);
                        here.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
                    }
                }
                rest = after;
                at += len as u64;
            }
        }
        Ok(())
    }
}
