//! A record, borrowed from the bytes it lies in.

use std::ops::Range;

use super::{AuxEncoding, CgebError, ContentHash, HEADER_BYTES, Header, Layout, leading_hash};
use crate::format::cursor::Writer;

/// A record in the bytes it lies in, at any alignment.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The header.
    pub header: Header,
    /// The embedding.
    pub vector: Floats<'a>,
    /// One weight an expert.
    pub weights: Floats<'a>,
    /// The numbers of the experts that were selected.
    pub selected: &'a [u8],
    /// What else the producer stored, encoded as the header says.
    pub aux: &'a [u8],
}

/// Floats of a record, read one by one.
#[derive(Clone, Copy, Debug)]
pub struct Floats<'a> {
    bytes: &'a [[u8; 4]],
    layout: Layout,
}

/// The values of [`Floats`] in order.
#[derive(Clone, Debug)]
pub struct FloatsIter<'a> {
    bytes: std::slice::Iter<'a, [u8; 4]>,
    layout: Layout,
}

impl<'a> Record<'a> {
    /// The record at the start of `bytes`, which may go on after it. Allocates nothing and
    /// reads only the header.
    ///
    /// # Errors
    /// Those of [`Header::parse`], `Truncated`, and `AuxOutside`.
    pub fn borrow(bytes: &'a [u8]) -> Result<Record<'a>, CgebError> {
        let header = Header::parse(bytes)?;
        let present = bytes.len() as u64;
        let part = |range: Range<u64>| {
            let start = usize::try_from(range.start).ok()?;
            bytes.get(start..usize::try_from(range.end).ok()?)
        };
        let truncated = || CgebError::Truncated { needed: header.selected_range().end, present };
        let floats = |range| {
            let (bytes, _) = part(range).ok_or_else(truncated)?.as_chunks();
            Ok(Floats { bytes, layout: header.layout })
        };
        Ok(Record {
            vector: floats(header.vector_range())?,
            weights: floats(header.weights_range())?,
            selected: part(header.selected_range()).ok_or_else(truncated)?,
            aux: part(header.aux_range()).ok_or(CgebError::AuxOutside {
                offset: header.aux_offset,
                length: header.aux_length,
                present,
            })?,
            header,
        })
    }

    /// The hash of the payload: the first 8 bytes of blake3 of vector, weights, selected
    /// experts and aux as they are stored.
    pub fn payload_hash(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(self.vector.as_bytes())
            .update(self.weights.as_bytes())
            .update(self.selected)
            .update(self.aux);
        leading_hash(&hasher)
    }

    /// Whether the payload is the one that the content hash covers. A hash of the
    /// producer's own says nothing and is taken as right.
    ///
    /// # Errors
    /// `HashMismatch`.
    pub fn verify(&self) -> Result<(), CgebError> {
        let ContentHash::OfPayload(stored) = self.header.content_hash else {
            return Ok(());
        };
        let computed = self.payload_hash();
        if stored == computed { Ok(()) } else { Err(CgebError::HashMismatch { stored, computed }) }
    }
}

impl<'a> Floats<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The value at `place`.
    pub fn get(&self, place: usize) -> Option<f32> {
        self.bytes.get(place).map(|bytes| value(self.layout, *bytes))
    }

    /// All values, in order.
    pub fn iter(&self) -> FloatsIter<'a> {
        FloatsIter { bytes: self.bytes.iter(), layout: self.layout }
    }

    /// The bytes, in the record's byte order.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes.as_flattened()
    }
}

impl<'a> IntoIterator for Floats<'a> {
    type Item = f32;
    type IntoIter = FloatsIter<'a>;

    fn into_iter(self) -> FloatsIter<'a> {
        self.iter()
    }
}

impl Iterator for FloatsIter<'_> {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        self.bytes.next().map(|bytes| value(self.layout, *bytes))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.bytes.size_hint()
    }
}

impl ExactSizeIterator for FloatsIter<'_> {}

fn value(layout: Layout, bytes: [u8; 4]) -> f32 {
    match layout {
        Layout::One | Layout::TwoBig => f32::from_be_bytes(bytes),
        Layout::TwoLittle => f32::from_le_bytes(bytes),
    }
}

/// A record to write.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// Version and byte order.
    pub layout: Layout,
    /// The embedding.
    pub vector: &'a [f32],
    /// One weight an expert.
    pub weights: &'a [f32],
    /// The numbers of the selected experts.
    pub selected: &'a [u8],
    /// What else to store, encoded already.
    pub aux: &'a [u8],
    /// How `aux` is encoded.
    pub aux_encoding: AuxEncoding,
    /// Microseconds.
    pub pipeline_latency_us: u64,
    /// The producer's own hash, or `None` for that of the payload.
    pub own_hash: Option<u64>,
}

impl NewRecord<'_> {
    /// The record's bytes, aux right after the selected experts.
    ///
    /// # Errors
    /// `TooMany` for more values than the header can count; `UnsupportedFlags` for an
    /// encoded aux or the hash of the payload in version 1.
    pub fn write(&self) -> Result<Vec<u8>, CgebError> {
        let too_many = |count, most| CgebError::TooMany { count, most };
        let mut header = Header {
            layout: self.layout,
            aux_encoding: self.aux_encoding,
            dimension: u32::try_from(self.vector.len()).map_err(|_| too_many(self.vector.len(), u32::MAX))?,
            experts: u8::try_from(self.weights.len())
                .map_err(|_| too_many(self.weights.len(), u32::from(u8::MAX)))?,
            top_k: u8::try_from(self.selected.len())
                .map_err(|_| too_many(self.selected.len(), u32::from(u8::MAX)))?,
            content_hash: match self.own_hash {
                Some(hash) => ContentHash::Own(hash),
                None => ContentHash::OfPayload(0),
            },
            pipeline_latency_us: self.pipeline_latency_us,
            aux_offset: 0,
            aux_length: self.aux.len() as u64,
        };
        if !self.aux.is_empty() {
            header.aux_offset = header.selected_range().end;
        }
        header.check_version()?;
        let mut out = Writer::new();
        out.zeros(HEADER_BYTES);
        for value in self.vector.iter().chain(self.weights) {
            match self.layout {
                Layout::One | Layout::TwoBig => out.f32_be(*value),
                Layout::TwoLittle => out.f32(*value),
            };
        }
        out.bytes(self.selected).bytes(self.aux);
        let mut bytes = out.into_bytes();
        if let Some((head, payload)) = bytes.split_first_chunk_mut() {
            if self.own_hash.is_none() {
                let mut hasher = blake3::Hasher::new();
                hasher.update(payload);
                header.content_hash = ContentHash::OfPayload(leading_hash(&hasher));
            }
            *head = header.write();
        }
        Ok(bytes)
    }
}
