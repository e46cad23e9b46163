//! Reads and writes records.

use std::ops::Range;

use super::{AuxEncoding, CgebError, ContentHash, HEADER_BYTES, Header, Layout, leading_hash};

/// A record that borrows its bytes, at any alignment.
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
    /// The producer's auxiliary data, encoded as the header says.
    pub aux: &'a [u8],
}

/// A decoded record that owns its data.
#[derive(Clone, PartialEq, Debug)]
pub struct OwnedRecord {
    /// The header.
    pub header: Header,
    /// The embedding.
    pub vector: Vec<f32>,
    /// One weight an expert.
    pub weights: Vec<f32>,
    /// The numbers of the experts that were selected.
    pub selected: Vec<u8>,
    /// The producer's auxiliary data, decoded.
    pub aux: Vec<u8>,
}

/// Floats of a record, converted on access.
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
    /// The record at the start of `bytes`, which may be longer. Allocates nothing and reads only
    /// the header.
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

    /// Verifies the content hash and decodes everything, an encoded aux to at most `aux_bytes_max`
    /// bytes.
    ///
    /// # Errors
    /// `HashMismatch`, and those of [`AuxEncoding::decode`].
    pub fn decode(&self, aux_bytes_max: usize) -> Result<OwnedRecord, CgebError> {
        self.verify()?;
        Ok(OwnedRecord {
            header: self.header,
            vector: self.vector.iter().collect(),
            weights: self.weights.iter().collect(),
            selected: self.selected.to_vec(),
            aux: self.header.aux_encoding.decode(self.aux, aux_bytes_max)?.into_owned(),
        })
    }

    /// The hash of the payload: the first 8 bytes of blake3 of vector, weights, selected experts and
    /// aux, all as stored.
    pub fn payload_hash(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(self.vector.as_bytes())
            .update(self.weights.as_bytes())
            .update(self.selected)
            .update(self.aux);
        leading_hash(&hasher)
    }

    /// Verifies that the payload matches the content hash. A producer's own hash cannot be verified and
    /// passes.
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
    /// The number of values.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the number of values is 0.
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
    /// The auxiliary data, already encoded.
    pub aux: &'a [u8],
    /// How `aux` is encoded.
    pub aux_encoding: AuxEncoding,
    /// Latency in microseconds.
    pub pipeline_latency_us: u64,
    /// The producer's own hash, or `None` to hash the payload.
    pub own_hash: Option<u64>,
}

impl NewRecord<'_> {
    /// Bytes of the record. `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        let floats = (self.vector.len() as u64).checked_add(self.weights.len() as u64)?.checked_mul(4)?;
        let rest = (self.selected.len() as u64).checked_add(self.aux.len() as u64)?;
        floats.checked_add(rest)?.checked_add(HEADER_BYTES as u64)
    }

    /// The record's bytes, aux right after the selected experts.
    ///
    /// # Errors
    /// `TooMany` for more values than the header can hold; `UnsupportedFlags` for an encoded aux or
    /// a hash of the payload in version 1.
    pub fn write(&self) -> Result<Vec<u8>, CgebError> {
        self.header()?;
        let mut bytes = vec![0; self.bytes().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)];
        self.write_into(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the record to the start of a buffer, as [`write`](Self::write) does. Returns the number of
    /// bytes. Allocates nothing.
    ///
    /// # Errors
    /// Those of [`write`](Self::write), and `NoRoom`. After an error nothing was written.
    pub fn write_into(&self, out: &mut [u8]) -> Result<usize, CgebError> {
        let mut header = self.header()?;
        let present = out.len() as u64;
        let needed = self.bytes().unwrap_or(u64::MAX);
        let record = usize::try_from(needed).ok().and_then(|needed| out.get_mut(..needed));
        let (head, payload) = record
            .and_then(|record| record.split_first_chunk_mut::<HEADER_BYTES>())
            .ok_or(CgebError::NoRoom { needed, present })?;
        let (vector, rest) = payload.split_at_mut(4 * self.vector.len());
        let (weights, rest) = rest.split_at_mut(4 * self.weights.len());
        let (selected, aux) = rest.split_at_mut(self.selected.len());
        put(self.layout, self.vector, vector);
        put(self.layout, self.weights, weights);
        selected.copy_from_slice(self.selected);
        aux.copy_from_slice(self.aux);
        if self.own_hash.is_none() {
            let mut hasher = blake3::Hasher::new();
            hasher.update(payload);
            header.content_hash = ContentHash::OfPayload(leading_hash(&hasher));
        }
        *head = header.write();
        Ok(needed as usize)
    }

    fn header(&self) -> Result<Header, CgebError> {
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
        Ok(header)
    }
}

fn put(layout: Layout, values: &[f32], out: &mut [u8]) {
    let places = out.as_chunks_mut().0.iter_mut().zip(values);
    match layout {
        Layout::One | Layout::TwoBig => places.for_each(|(place, value)| *place = value.to_be_bytes()),
        Layout::TwoLittle => places.for_each(|(place, value)| *place = value.to_le_bytes()),
    }
}
