//! Fetching a range of a stream into one buffer.

use std::ops::Range;
use std::sync::Arc;

use crate::format::cgeb::Runs;
use crate::model::{Dtype, Error, Result};
use crate::store::read::OpenObject;
use crate::stream::batch::Stitched;
use crate::stream::cast::cast;
use crate::stream::index::read_offsets;
use crate::stream::plan::Plan;

/// Bytes that are cast at a time.
const CAST_BYTES: usize = 64 << 10;

/// A stretch of bytes.
#[derive(Clone)]
pub enum Segment {
    /// A whole object, in whatever tier its blocks are.
    Object(OpenObject),
    /// An object of floats as another type.
    Cast {
        /// Where the elements come from.
        object: OpenObject,
        /// The type that is shown.
        to: Dtype,
    },
    /// Bytes that are not stored.
    Literal(Arc<[u8]>),
    /// So many zeros.
    Zeros(u64),
    /// An embedding batch, of its parts.
    Batch(Stitched),
    /// The offsets of the records of an embedding batch, as its index has them.
    Offsets(Arc<Runs>),
}

impl Segment {
    fn bytes(&self) -> u64 {
        match self {
            Segment::Object(object) => object.bytes(),
            Segment::Cast { object, to } => object.bytes() / object.object().entry.dtype.bytes() * to.bytes(),
            Segment::Literal(bytes) => bytes.len() as u64,
            Segment::Zeros(count) => *count,
            Segment::Batch(batch) => batch.bytes(),
            Segment::Offsets(runs) => 8 * runs.records(),
        }
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        match self {
            Segment::Object(object) => object.read(range.start, out),
            Segment::Cast { object, to } => read_cast(object, *to, range.start, out),
            Segment::Literal(bytes) => {
                let part = bytes.get(range.start as usize..range.end as usize);
                out.copy_from_slice(part.ok_or_else(|| Error::invalid("a range past a literal's end"))?);
                Ok(())
            }
            Segment::Batch(batch) => batch.read(range.start, out),
            Segment::Offsets(runs) => read_offsets(runs, range, out),
            Segment::Zeros(_) => {
                out.fill(0);
                Ok(())
            }
        }
    }
}

/// Segments, one after the other, as one run of bytes.
#[derive(Clone)]
pub struct Stream {
    segments: Vec<Segment>,
    plan: Plan,
}

impl Stream {
    /// The stream of `segments`. `Corrupt` past 2^63 - 1 bytes in all.
    pub fn new(segments: Vec<Segment>) -> Result<Stream> {
        let plan = Plan::new(segments.iter().map(Segment::bytes))?;
        Ok(Stream { segments, plan })
    }

    /// The stream of a file: its objects one after the other, or, where it is an embedding
    /// batch, stitched of them.
    pub fn of_file(objects: Vec<OpenObject>, records: Option<&Arc<Runs>>) -> Result<Stream> {
        match records {
            Some(runs) => Stream::new(vec![Segment::Batch(Stitched::new(runs.clone(), objects)?)]),
            None => Stream::new(objects.into_iter().map(Segment::Object).collect()),
        }
    }

    /// Bytes of the stream.
    pub fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    /// Reads from `offset` on until `out` is full or the stream ends. The bytes read.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let wanted = (out.len() as u64).min(self.bytes().saturating_sub(offset)) as usize;
        let mut rest = out.get_mut(..wanted).unwrap_or_default();
        for piece in self.plan.pieces(offset..offset + wanted as u64) {
            let len = (piece.range.end - piece.range.start) as usize;
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            let segment = self.segments.get(piece.segment);
            segment.ok_or_else(|| Error::invalid("a piece of no segment"))?.read(piece.range, here)?;
            rest = after;
        }
        Ok(wanted)
    }
}

fn read_cast(object: &OpenObject, to: Dtype, from_byte: u64, out: &mut [u8]) -> Result<()> {
    let from = object.object().entry.dtype;
    let (narrow, wide) = (from.bytes(), to.bytes());
    let mut done = 0;
    let mut source = Vec::new();
    let mut target = Vec::new();
    while done < out.len() {
        let at = from_byte + done as u64;
        let first = at / wide;
        let skip = (at % wide) as usize;
        let elements = ((out.len() - done + skip) as u64).div_ceil(wide).min(CAST_BYTES as u64 / wide);
        source.resize((elements * narrow) as usize, 0);
        target.resize((elements * wide) as usize, 0);
        object.read(first * narrow, &mut source)?;
        cast(from, to, &source, &mut target)?;
        let part = target.get(skip..).unwrap_or_default();
        let len = part.len().min(out.len() - done);
        if let Some((to, from)) = out.get_mut(done..done + len).zip(part.get(..len)) {
            to.copy_from_slice(from);
        }
        done += len;
    }
    Ok(())
}
