//! Shows a matrix of floats as an embedding batch, with its index.
//!
//! Every row is a record without experts: version 2, little-endian, with the hash of its vector.
//! The layout is in [`cgeb`](crate::format::files::cgeb).

use std::ops::Range;

use crate::format::files::cgeb::{
    AuxEncoding, ContentHash, HEADER_BYTES, Header, Layout, RECORD_ALIGNMENT, leading_hash,
};
use crate::format::files::cgei::Index;
use crate::model::{Error, Result};
use crate::stream::{Computed, Stream};

/// Largest row length that is shown as a batch. A whole record is built in memory.
pub const DIMENSION_MAX: u32 = 1 << 20;
/// Largest number of rows that is shown as a batch. The whole index is built in memory.
pub const ROWS_MAX: u64 = 1 << 24;
/// Bytes of rows to fetch with one call.
const FETCH_BYTES_MAX: u64 = 1 << 20;
/// Bytes to hash at a time.
const HASH_BYTES: usize = 1 << 20;

/// Shows rows of f32 as records.
pub struct Rows {
    source: Stream,
    rows: u64,
    header: Header,
}

impl Rows {
    /// The records of `rows` rows of `dimension` little-endian f32 each.
    pub fn new(source: Stream, rows: u64, dimension: u32) -> Rows {
        let header = Header {
            layout: Layout::TwoLittle,
            aux_encoding: AuxEncoding::Raw,
            dimension,
            experts: 0,
            top_k: 0,
            content_hash: ContentHash::OfPayload(0),
            pipeline_latency_us: 0,
            aux_offset: 0,
            aux_length: 0,
        };
        Rows { source, rows, header }
    }

    /// Total bytes of `rows` records of `dimension` values; `None` on overflow.
    pub fn bytes_of(rows: u64, dimension: u32) -> Option<u64> {
        rows.checked_mul(stride(dimension))
    }

    fn row_bytes(&self) -> u64 {
        4 * u64::from(self.header.dimension)
    }

    /// Writes the given records to `out`, leaving out the first `skip` bytes of the first record.
    fn lay_out(&self, records: Range<u64>, skip: u64, out: &mut [u8]) -> Result<()> {
        let (row, stride) = (self.row_bytes() as usize, stride(self.header.dimension) as usize);
        let mut rows = vec![0; (records.end - records.start) as usize * row];
        self.source.read_exact(records.start * row as u64, &mut rows)?;
        let (mut rest, mut skip) = (out, skip as usize);
        let mut part = Vec::new();
        for vector in rows.chunks_exact(row.max(1)) {
            let len = rest.len().min(stride - skip);
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            if len == stride {
                self.put(vector, here);
            } else {
                part.resize(stride, 0);
                self.put(vector, &mut part);
                here.copy_from_slice(part.get(skip..skip + len).unwrap_or_default());
            }
            rest = after;
            skip = 0;
        }
        Ok(())
    }

    fn put(&self, vector: &[u8], record: &mut [u8]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(vector);
        let content_hash = ContentHash::OfPayload(leading_hash(&hasher));
        let header = Header { content_hash, ..self.header }.write();
        let (head, rest) = record.split_at_mut(HEADER_BYTES.min(record.len()));
        let (values, padding) = rest.split_at_mut(vector.len().min(rest.len()));
        head.copy_from_slice(header.get(..head.len()).unwrap_or_default());
        values.copy_from_slice(vector.get(..values.len()).unwrap_or_default());
        padding.fill(0);
    }
}

impl Computed for Rows {
    fn bytes(&self) -> u64 {
        self.rows.saturating_mul(stride(self.header.dimension))
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let stride = stride(self.header.dimension);
        let step = (FETCH_BYTES_MAX / stride).max(1);
        let mut at = range.start;
        let mut rest = out;
        while !rest.is_empty() {
            let first = at / stride;
            let until = (first + step).min(range.end.div_ceil(stride));
            let len = (until * stride - at).min(rest.len() as u64) as usize;
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            self.lay_out(first..until, at % stride, here)?;
            at += len as u64;
            rest = after;
        }
        Ok(())
    }
}

/// Bytes from one record to the next.
fn stride(dimension: u32) -> u64 {
    (HEADER_BYTES as u64 + 4 * u64::from(dimension)).next_multiple_of(RECORD_ALIGNMENT)
}

/// Bytes of the index of `rows` records; `None` on overflow.
pub fn index_bytes(rows: u64) -> Option<u64> {
    rows.checked_mul(8)?.checked_add(24)
}

/// The index of a batch of records of `dimension` values. Reads the whole batch for its hash.
pub fn index(batch: &Stream, rows: u64, dimension: u32) -> Result<Vec<u8>> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; HASH_BYTES];
    let mut at = 0;
    while at < batch.bytes() {
        let count = batch.read(at, &mut chunk)?;
        let here = chunk.get(..count).filter(|here| !here.is_empty());
        hasher.update(here.ok_or_else(|| Error::invalid("the batch ends early"))?);
        at += count as u64;
    }
    let offsets = (0..rows).map(|row| row * stride(dimension)).collect();
    let index = Index { data_hash: leading_hash(&hasher), offsets };
    index.write().map_err(|error| Error::invalid(error.to_string()))
}
