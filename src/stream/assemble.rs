//! Reads a range of a stream into one buffer.

use std::ops::Range;
use std::sync::Arc;

use crate::model::{Error, Result};
use crate::store::{Assembly, OpenObject};
use crate::stream::batch::AssembledBatch;
use crate::stream::byte_source::Computed;
use crate::stream::plan::Plan;
use crate::stream::strides::Strided;

/// A segment of a stream.
#[derive(Clone)]
pub enum Segment {
    /// A whole object, with blocks of any tiers.
    Object(OpenObject),
    /// Bytes that are computed on read.
    Computed(Arc<dyn Computed>),
}

impl Segment {
    /// A segment of constant bytes.
    pub fn literal(bytes: impl Into<Arc<[u8]>>) -> Segment {
        let bytes: Arc<[u8]> = bytes.into();
        Segment::Computed(Arc::new(bytes))
    }

    fn bytes(&self) -> u64 {
        match self {
            Segment::Object(object) => object.bytes(),
            Segment::Computed(computed) => computed.bytes(),
        }
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        match self {
            Segment::Object(object) => object.read_or_gather(range.start, out),
            Segment::Computed(computed) => computed.read(range, out),
        }
    }
}

/// Segments in a row that read as one range of bytes.
///
/// A stream is what a program sees of a file: the objects of a container one after the other, with literal or computed
/// bytes between them, such as the header of a form or the records of an embedding batch. It is made from the parts of
/// a file when the file is opened, costs a few words a segment, and holds the objects so that they stay readable.
///
/// A read finds the segments of its range by binary search in the plan, and each fills its part of the caller's buffer:
/// an object decodes blocks, verified, straight into it; a computed segment casts, dequantizes or interleaves. A stream
/// has no position and no lock of its own. Any number of threads read from one.
#[derive(Clone)]
pub struct Stream {
    segments: Vec<Segment>,
    plan: Plan,
}

impl Stream {
    /// The stream of `segments`. Fails with `Corrupt` above 2^63 - 1 bytes in total.
    pub fn new(segments: Vec<Segment>) -> Result<Stream> {
        let plan = Plan::new(segments.iter().map(Segment::bytes))?;
        Ok(Stream { segments, plan })
    }

    /// The stream of a file: its concatenated objects, or what is assembled from them.
    pub fn of_file(objects: Vec<OpenObject>, assembly: Option<&Assembly>) -> Result<Stream> {
        let objects = objects.into_iter().map(Segment::Object);
        match assembly {
            Some(Assembly::View(elements)) => {
                let strided = Strided::new(elements.clone(), Stream::new(objects.collect())?);
                Stream::new(vec![Segment::Computed(Arc::new(strided))])
            }
            Some(Assembly::Batch(runs)) => {
                let parts = objects.map(|object| Stream::new(vec![object])).collect::<Result<_>>()?;
                let batch = AssembledBatch::new(runs.clone(), parts)?;
                Stream::new(vec![Segment::Computed(Arc::new(batch))])
            }
            None => Stream::new(objects.collect()),
        }
    }

    /// Bytes of the stream.
    pub fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    /// Reads from `offset` until `out` is full or the stream ends. Returns the number of bytes.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let wanted = (out.len() as u64).min(self.bytes().saturating_sub(offset)) as usize;
        let mut rest = &mut out[..wanted];
        for piece in self.plan.pieces(offset..offset + wanted as u64) {
            let len = (piece.range.end - piece.range.start) as usize;
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            let segment = self.segments.get(piece.segment);
            segment
                .ok_or_else(|| Error::invalid("a piece refers to a missing segment"))?
                .read(piece.range, here)?;
            rest = after;
        }
        Ok(wanted)
    }

    /// Fills `out` from `offset`. Fails with `Invalid` if the stream ends before.
    pub fn read_exact(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if self.read(offset, out)? == out.len() {
            Ok(())
        } else {
            Err(Error::invalid("a range past the end of a stream"))
        }
    }
}
