//! Reads `.cgeb` files: whether their parts can reproduce a file, where its records lie, and the bytes of its parts.

use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::cgeb::{
    CgebError, ContentHash, HEADER_BYTES, Header, Layout, Part, RUNS_MAX, Runs, Sizes, leading_hash,
};
use crate::model::{Error, Result};
use crate::store::disk::File;

/// Bytes of the file that are buffered at a time: whole pages.
const WINDOW_BYTES: u64 = 1 << 20;
/// A piece that a scan yields.
pub(in crate::ingest) enum Found<'a> {
    /// The next bytes of the file.
    Source(&'a [u8]),
    /// The next bytes of a part; floats are little-endian.
    Part(Part, &'a [u8]),
}

/// Where the records of a file lie. Fails where the parts cannot reproduce the file byte for byte;
/// the error names the record and the reason. The last record has all its padding, or none. A step is a record of at
/// least 4 KiB, the last record, or a field of one, so the budget suffices.
pub(in crate::ingest) fn scan(source: &Arc<dyn File>, bytes: u64, budget: &mut Budget) -> Result<Runs> {
    read(source, bytes, budget, &mut |_| Ok(()))
}

/// Checks a whole file: formats, zeros, hashes. Returns where its records lie, and the data hash for
/// its index. The error names the bad record and the reason.
pub fn check_batch(source: &Arc<dyn File>) -> Result<(Runs, u64)> {
    let bytes = source.len().map_err(|error| Error::io("asking for its size", error))?;
    let mut hasher = blake3::Hasher::new();
    let runs = read(source, bytes, &mut Budget::default(), &mut |found| {
        if let Found::Source(bytes) = found {
            hasher.update(bytes);
        }
        Ok(())
    })?;
    Ok((runs, leading_hash(&hasher)))
}

/// Reads and checks the whole file once, and passes on its pieces.
pub(in crate::ingest) fn read(
    source: &Arc<dyn File>,
    bytes: u64,
    budget: &mut Budget,
    found: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<Runs> {
    let mut window = Window { source, bytes, at: 0, held: Vec::new(), used: 0, budget };
    let mut runs: Option<Runs> = None;
    let mut number = 0_u64;
    while window.at < bytes {
        let start = window.at;
        let record = record(&mut window, runs.as_ref().map(Runs::sizes), found);
        let header = record.map_err(|error| error.at(format!("record {number} at byte {start}")))?;
        runs = Some(Runs::add(runs, &header).ok_or_else(|| {
            Error::unsupported(format!(
                "record {number} at byte {start}: more than {RUNS_MAX} changes of layout from record to record"
            ))
        })?);
        number += 1;
        let records_end = runs.as_ref().map_or(0, Runs::bytes);
        if records_end > bytes {
            runs = runs.and_then(Runs::without_last_padding);
        }
    }
    runs.ok_or_else(|| Error::from(CgebError::Truncated { needed: HEADER_BYTES as u64, present: 0 }))
}

/// Reads one record and the padding after it, if the file does not end before that.
fn record(
    window: &mut Window<'_>,
    sizes: Option<Sizes>,
    found: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<Header> {
    let start = window.at;
    let left = window.bytes - start;
    // Records begin at windows, or whole pages after them, so the header is in one piece.
    let bytes = window.next(HEADER_BYTES as u64, found)?;
    let header = Header::parse(bytes)?;
    found(Found::Part(Part::Rest, bytes))?;
    let own = Sizes::of(&header);
    if let Some(sizes) = sizes.filter(|sizes| *sizes != own) {
        let text = |sizes: Sizes| format!("{} x {} x {}", sizes.dimension, sizes.experts, sizes.top_k);
        return Err(Error::unsupported(format!(
            "its dimension, experts and top k are {}, those of the records before it {}",
            text(own),
            text(sizes)
        )));
    }
    if own.fixed_bytes() > left {
        return Err(CgebError::Truncated { needed: own.fixed_bytes(), present: left }.into());
    }
    let (offset, length) = (header.aux_offset, header.aux_length);
    if header.record_bytes() > left {
        return Err(CgebError::AuxOutside { offset, length, present: left }.into());
    }
    // A file that ends in the middle of the padding was cut off.
    let stride = header.stride().map(|stride| if header.record_bytes() == left { left } else { stride });
    let stride = stride.filter(|stride| *stride <= left);
    let stride =
        stride.ok_or(CgebError::Truncated { needed: header.stride().unwrap_or(u64::MAX), present: left })?;
    let mut hasher = match header.content_hash {
        ContentHash::OfPayload(_) => Some(blake3::Hasher::new()),
        ContentHash::Own(_) => None,
    };
    let aux = header.aux_range();
    for (part, end) in [
        (Some(Part::Vectors), header.vector_range().end),
        (Some(Part::Weights), header.weights_range().end),
        (Some(Part::Selected), header.selected_range().end),
        (None, aux.start),
        (Some(Part::Rest), aux.end),
        (None, stride),
    ] {
        field(window, Field { part, start, end: start + end }, header.layout, hasher.as_mut(), found)?;
    }
    if let (ContentHash::OfPayload(stored), Some(hasher)) = (header.content_hash, hasher) {
        let computed = leading_hash(&hasher);
        if stored != computed {
            return Err(CgebError::HashMismatch { stored, computed }.into());
        }
    }
    Ok(header)
}

/// A field of a record.
struct Field {
    /// The part that it belongs to; `None` for padding.
    part: Option<Part>,
    /// Where the record begins in the file.
    start: u64,
    /// Where the field ends in the file.
    end: u64,
}

/// Reads up to the end of a field. Bytes of no part must be zero.
fn field(
    window: &mut Window<'_>,
    Field { part, start, end }: Field,
    layout: Layout,
    mut hasher: Option<&mut blake3::Hasher>,
    found: &mut dyn FnMut(Found<'_>) -> Result<()>,
) -> Result<()> {
    let is_turned = layout != Layout::TwoLittle && matches!(part, Some(Part::Vectors | Part::Weights));
    while window.at < end {
        let at = window.at;
        let bytes = window.next(end - at, found)?;
        let Some(part) = part else {
            // One pass over all bytes, because most of them are zero.
            if bytes.iter().fold(0, |any, byte| any | byte) != 0 {
                let place = bytes.iter().take_while(|byte| **byte == 0).count() as u64;
                return Err(CgebError::ReservedNotZero { at: at - start + place }.into());
            }
            continue;
        };
        if let Some(hasher) = hasher.as_deref_mut() {
            hasher.update(bytes);
        }
        if is_turned {
            // Windows are whole pages, and fields begin at whole floats.
            bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|float| float.reverse());
        }
        found(Found::Part(part, bytes))?;
    }
    Ok(())
}

/// The file, read window by window.
struct Window<'a> {
    source: &'a Arc<dyn File>,
    /// Bytes of the file.
    bytes: u64,
    /// Offset of the next byte in the file.
    at: u64,
    held: Vec<u8>,
    /// Bytes of the window that were returned.
    used: usize,
    budget: &'a mut Budget,
}

impl Window<'_> {
    /// The next bytes: at least one and at most `most`, as many as are buffered. The file must have
    /// that many.
    fn next(&mut self, most: u64, found: &mut dyn FnMut(Found<'_>) -> Result<()>) -> Result<&mut [u8]> {
        self.budget.take(1)?;
        if self.used == self.held.len() {
            let len = (self.bytes - self.at).min(WINDOW_BYTES);
            self.held.resize(len as usize, 0);
            let read = self.source.read_exact_at(&mut self.held, self.at);
            read.map_err(|error| Error::io("reading it", error))?;
            self.budget.add_read(len);
            found(Found::Source(&self.held))?;
            self.used = 0;
        }
        let len = ((self.held.len() - self.used) as u64).min(most);
        let from = self.used;
        self.used += len as usize;
        self.at += len;
        Ok(self.held.get_mut(from..self.used).unwrap_or_default())
    }
}
