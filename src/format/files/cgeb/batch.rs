//! Writes a `.cgeb` file record by record, and its index.

use std::io::Write;

use super::{NewRecord, RECORD_ALIGNMENT, leading_hash};
use crate::format::files::cgei::Index;
use crate::model::{Error, Result};

/// Writes aligned records in order. Keeps one record and all offsets in memory. After an error the
/// output is not a valid batch.
pub struct BatchWriter<W> {
    out: W,
    at: u64,
    offsets: Vec<u64>,
    hasher: blake3::Hasher,
    record: Vec<u8>,
}

impl<W: Write> BatchWriter<W> {
    /// Starts a batch.
    pub fn new(out: W) -> BatchWriter<W> {
        BatchWriter { out, at: 0, offsets: Vec::new(), hasher: blake3::Hasher::new(), record: Vec::new() }
    }

    /// Writes a record and the zeros after it. Returns its byte offset.
    ///
    /// # Errors
    /// Those of [`NewRecord::write`] as `Invalid` or `Unsupported`; those of `out`.
    pub fn push(&mut self, record: &NewRecord<'_>) -> Result<u64> {
        let bytes = record.bytes().and_then(|bytes| bytes.checked_next_multiple_of(RECORD_ALIGNMENT));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| Error::invalid("a record of more bytes than memory has"))?;
        self.record.resize(bytes, 0);
        let end = record.write_into(&mut self.record)?;
        self.record.get_mut(end..).unwrap_or_default().fill(0);
        self.hasher.update(&self.record);
        self.out.write_all(&self.record).map_err(|error| Error::io("writing a record", error))?;
        let offset = self.at;
        self.offsets.push(offset);
        self.at += bytes as u64;
        Ok(offset)
    }

    /// Ends the batch. Returns the output and the index.
    ///
    /// # Errors
    /// Those of `out`, which is flushed.
    pub fn finish(mut self) -> Result<(W, Index)> {
        self.out.flush().map_err(|error| Error::io("writing a batch", error))?;
        Ok((self.out, Index { data_hash: leading_hash(&self.hasher), offsets: self.offsets }))
    }
}
