//! Bytes that are computed when they are read.

use std::ops::Range;

use crate::model::{Dtype, Result};
use crate::stream::Stream;
use crate::stream::byte_source::Computed;
use crate::stream::cast::cast;

/// Bytes to cast at a time.
const CAST_BYTES: usize = 64 << 10;

/// Casts floats from one type to another, quantized ones included.
pub struct Cast {
    /// The source of the elements.
    pub source: Stream,
    /// Their type in the source.
    pub from: Dtype,
    /// The type to cast to.
    pub to: Dtype,
}

impl Computed for Cast {
    fn bytes(&self) -> u64 {
        self.from.elements_in(self.source.bytes()).saturating_mul(self.to.bytes())
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let (each, narrow) = self.from.block();
        let wide = each * self.to.bytes();
        let mut done = 0;
        let mut source = Vec::new();
        let mut target = Vec::new();
        while done < out.len() {
            let at = range.start + done as u64;
            let first = at / wide;
            let skip = (at % wide) as usize;
            let blocks = ((out.len() - done + skip) as u64).div_ceil(wide).min(CAST_BYTES as u64 / wide);
            source.resize((blocks * narrow) as usize, 0);
            self.source.read_exact(first * narrow, &mut source)?;
            let whole = (blocks * wide) as usize;
            let here = &mut out[done..];
            if skip == 0 && here.len() >= whole {
                cast(self.from, self.to, &source, &mut here[..whole])?;
                done += whole;
                continue;
            }
            target.resize(whole, 0);
            cast(self.from, self.to, &source, &mut target)?;
            let part = &target[skip..];
            let len = part.len().min(here.len());
            if let Some((to, from)) = here.get_mut(..len).zip(part.get(..len)) {
                to.copy_from_slice(from);
            }
            done += len;
        }
        Ok(())
    }
}

impl Computed for Stream {
    fn bytes(&self) -> u64 {
        Stream::bytes(self)
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        self.read_exact(range.start, out)
    }
}

/// A number of zero bytes.
pub struct Zeros(pub u64);

impl Computed for Zeros {
    fn bytes(&self) -> u64 {
        self.0
    }

    fn read(&self, _: Range<u64>, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }
}
