//! Sources of bytes that no object has.

use std::ops::Range;
use std::sync::Arc;

use crate::model::{Error, Result};

/// A range of bytes that is computed when it is read.
pub trait Computed: Send + Sync {
    /// The number of bytes, known without computing them.
    fn bytes(&self) -> u64;

    /// Writes the bytes of `range` to `out`. `range` must lie within the bytes, and `out` have its length.
    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()>;
}

impl Computed for Arc<[u8]> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let part = self.get(range.start as usize..range.end as usize);
        out.copy_from_slice(part.ok_or_else(|| Error::invalid("a range past the end of a literal"))?);
        Ok(())
    }
}
