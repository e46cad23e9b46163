//! Assembles embedding batches from the parts that an import split them into.
//!
//! The position of a byte in a run of records follows by arithmetic. For small records, one read of
//! each part fetches the rows of many. For large records, only the requested bytes are fetched. Bytes
//! between the fields of a record and after it are zero. A hash that covers the payload is always the
//! hash of the payload that is served.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use crate::format::files::cgeb::{HEADER_BYTES, Layout, Part, PlacedRun, Runs, leading_hash};
use crate::model::{Error, Result};
use crate::stream::Stream;
use crate::stream::byte_source::Computed;

/// Position of the content hash in a record.
const HASH: Range<u64> = 16..24;
/// Bytes of parts to buffer at a time.
const HELD_BYTES: u64 = 1 << 20;
/// Largest record, in bytes of its parts, that is fetched whole.
const SMALL_BYTES: u64 = 64 << 10;
/// Bytes of a large record to hash at a time; a multiple of the float size.
const HASHED_BYTES: u64 = 256 << 10;

/// The parts of a batch and the layout of its records.
pub struct AssembledBatch {
    runs: Arc<Runs>,
    /// The parts in the order of [`Runs::parts`].
    parts: Vec<Stream>,
}

/// Buffers of the parts while records are assembled.
#[derive(Default)]
struct Rows {
    /// The runs, and the number of records of each.
    spans: Vec<(PlacedRun, u64)>,
    vectors: Vec<u8>,
    weights: Vec<u8>,
    selected: Vec<u8>,
    rest: Vec<u8>,
}

thread_local! {
    /// Kept per thread, so that a read does not allocate.
    static ROWS: RefCell<Rows> = RefCell::default();
}

/// A field of a record, which lies in one part.
struct Field {
    part: Part,
    /// Position in the record.
    place: Range<u64>,
    /// Start in the part.
    at: u64,
}

impl AssembledBatch {
    /// The batch of these parts. Fails with `Corrupt` if their sizes do not match the runs.
    pub fn new(runs: Arc<Runs>, parts: Vec<Stream>) -> Result<AssembledBatch> {
        let sizes = parts.iter().map(Stream::bytes);
        if !sizes.eq(runs.parts().map(|part| runs.part_bytes(part))) {
            return Err(Error::corrupt("an embedding batch whose parts have other sizes"));
        }
        Ok(AssembledBatch { runs, parts })
    }

    fn read_with(&self, rows: &mut Rows, mut at: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let placed = self.runs.run_at(at);
            let placed = placed.ok_or_else(|| Error::invalid("a range past the end of a batch"))?;
            let number = (at - placed.start) / placed.stride;
            let start = placed.start + number * placed.stride;
            let is_large = self.held_bytes(placed) > SMALL_BYTES;
            let end = if is_large {
                start + placed.stride
            } else {
                self.fetch(rows, placed, number, at + out.len() as u64)?
            };
            let len = (end - at).min(out.len() as u64) as usize;
            let (here, after) = std::mem::take(&mut out).split_at_mut(len);
            if is_large {
                self.read_large(placed, number, at - start, here)?
            } else {
                self.stitch(rows, at - start, here)
            }
            at += len as u64;
            out = after;
        }
        Ok(())
    }

    /// Bytes of one record in all parts.
    fn held_bytes(&self, placed: &PlacedRun) -> u64 {
        self.runs.sizes().fixed_bytes().saturating_add(placed.run.aux_length)
    }

    fn part(&self, part: Part) -> Option<&Stream> {
        self.parts.get(self.runs.parts().position(|known| known == part)?)
    }

    fn read_part(&self, part: Part, at: u64, out: &mut [u8]) -> Result<()> {
        match self.part(part) {
            Some(stream) if !out.is_empty() => stream.read_exact(at, out),
            _ => Ok(()),
        }
    }

    /// Fetches the parts of small records, from record `number` of a run on and from later runs too, up
    /// to byte `until` of the file or until the buffers are full. Returns the end of the last record.
    fn fetch(&self, rows: &mut Rows, placed: &PlacedRun, number: u64, until: u64) -> Result<u64> {
        let sizes = self.runs.sizes();
        let first = placed.first + number;
        let rest_at = placed.rest + number * placed.run.rest_stride();
        let mut end = placed.start + number * placed.stride;
        let (mut number, mut count, mut rest_bytes, mut held) = (number, 0, 0, 0);
        rows.spans.clear();
        let index = self.runs.placed().partition_point(|other| other.start < placed.start);
        for placed in self.runs.placed().iter().skip(index) {
            let each = self.held_bytes(placed);
            if end >= until || held >= HELD_BYTES || each > SMALL_BYTES {
                break;
            }
            let left = placed.run.count - number;
            let taken =
                left.min((until - end).div_ceil(placed.stride)).min(((HELD_BYTES - held) / each).max(1));
            rows.spans.push((*placed, taken));
            held += taken * each;
            count += taken;
            rest_bytes += taken * placed.run.rest_stride();
            end += taken * placed.stride;
            if taken < left {
                break;
            }
            number = 0;
        }
        let (vector, weights, top_k) = (sizes.vector_bytes(), sizes.weights_bytes(), u64::from(sizes.top_k));
        for (part, buffer, at, bytes) in [
            (Part::Vectors, &mut rows.vectors, first * vector, count * vector),
            (Part::Weights, &mut rows.weights, first * weights, count * weights),
            (Part::Selected, &mut rows.selected, first * top_k, count * top_k),
            (Part::Rest, &mut rows.rest, rest_at, rest_bytes),
        ] {
            buffer.resize(bytes as usize, 0);
            self.read_part(part, at, buffer)?;
        }
        Ok(end)
    }

    /// Assembles fetched records in `out`, without the first `skip` bytes of the first record.
    fn stitch(&self, rows: &mut Rows, skip: u64, out: &mut [u8]) {
        let sizes = self.runs.sizes();
        let Rows { spans, vectors, weights, selected, rest } = rows;
        let mut left =
            (vectors.as_mut_slice(), weights.as_mut_slice(), selected.as_mut_slice(), rest.as_mut_slice());
        let (mut skip, mut rest_of_out) = (skip, out);
        let records = spans.iter().flat_map(|(placed, count)| (0..*count).map(move |_| placed));
        for placed in records {
            let vector = next(&mut left.0, sizes.vector_bytes());
            let weights = next(&mut left.1, sizes.weights_bytes());
            let selected = next(&mut left.2, u64::from(sizes.top_k));
            let header = next(&mut left.3, HEADER_BYTES as u64);
            let aux = next(&mut left.3, placed.run.aux_length);
            to_layout(placed.run.layout, vector);
            to_layout(placed.run.layout, weights);
            let len = ((placed.stride - skip) as usize).min(rest_of_out.len());
            let (here, after) = std::mem::take(&mut rest_of_out).split_at_mut(len);
            here.fill(0);
            copy(here, skip, 0, header);
            let payload: [&[u8]; 4] = [vector, weights, selected, aux];
            for (bytes, field) in payload.into_iter().zip(self.fields(placed, 0).iter().skip(1)) {
                copy(here, skip, field.place.start, bytes);
            }
            if placed.run.is_hashed && skip < HASH.end && HASH.start < skip + len as u64 {
                let mut hasher = blake3::Hasher::new();
                for bytes in payload {
                    hasher.update(bytes);
                }
                copy(here, skip, HASH.start, &leading_hash(&hasher).to_be_bytes());
            }
            (rest_of_out, skip) = (after, 0);
        }
    }

    /// The fields of a record of a run, in the order of the file: header, vector, weights,
    /// selected experts, aux.
    fn fields(&self, placed: &PlacedRun, number: u64) -> [Field; 5] {
        let sizes = self.runs.sizes();
        let record = placed.first + number;
        let rest = placed.rest + number * placed.run.rest_stride();
        let header = HEADER_BYTES as u64;
        let weights = header + sizes.vector_bytes();
        let selected = weights + sizes.weights_bytes();
        let aux = placed.run.aux_offset.max(sizes.fixed_bytes());
        let field = |part, place, at| Field { part, place, at };
        [
            field(Part::Rest, 0..header, rest),
            field(Part::Vectors, header..weights, record * sizes.vector_bytes()),
            field(Part::Weights, weights..selected, record * sizes.weights_bytes()),
            field(Part::Selected, selected..sizes.fixed_bytes(), record * u64::from(sizes.top_k)),
            field(Part::Rest, aux..aux + placed.run.aux_length, rest + header),
        ]
    }

    /// Reads a part of one record from `skip`. Fetches only that part, or the whole payload if the part
    /// includes the hash.
    fn read_large(&self, placed: &PlacedRun, number: u64, skip: u64, out: &mut [u8]) -> Result<()> {
        let layout = placed.run.layout;
        let end = skip + out.len() as u64;
        let fields = self.fields(placed, number);
        out.fill(0);
        for field in &fields {
            let (from, until) = (field.place.start.max(skip), field.place.end.min(end));
            if from < until {
                let here = &mut out[(from - skip) as usize..(until - skip) as usize];
                self.read_field(field, layout, from - field.place.start, here)?;
            }
        }
        if placed.run.is_hashed && skip < HASH.end && HASH.start < end {
            let mut hasher = blake3::Hasher::new();
            let mut chunk = vec![0; HASHED_BYTES as usize];
            for field in fields.iter().skip(1) {
                let len = field.place.end - field.place.start;
                let mut at = 0;
                while at < len {
                    let here = &mut chunk[..(len - at).min(HASHED_BYTES) as usize];
                    self.read_field(field, layout, at, here)?;
                    hasher.update(here);
                    at += here.len() as u64;
                }
            }
            copy(out, skip, HASH.start, &leading_hash(&hasher).to_be_bytes());
        }
        Ok(())
    }

    /// Reads a field from its byte `from`.
    fn read_field(&self, field: &Field, layout: Layout, from: u64, out: &mut [u8]) -> Result<()> {
        if layout == Layout::TwoLittle || !matches!(field.part, Part::Vectors | Part::Weights) {
            return self.read_part(field.part, field.at + from, out);
        }
        let (mut from, mut rest) = (from, out);
        while !rest.is_empty() {
            let inside = (from % 4) as usize;
            let is_whole = inside == 0 && rest.len() >= 4;
            let len = if is_whole { rest.len() / 4 * 4 } else { (4 - inside).min(rest.len()) };
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            if is_whole {
                self.read_part(field.part, field.at + from, here)?;
                to_layout(layout, here);
            } else {
                let mut word = [0; 4];
                self.read_part(field.part, field.at + from - inside as u64, &mut word)?;
                to_layout(layout, &mut word);
                here.copy_from_slice(&word[inside..inside + len]);
            }
            from += len as u64;
            rest = after;
        }
        Ok(())
    }
}

impl Computed for AssembledBatch {
    fn bytes(&self) -> u64 {
        self.runs.bytes()
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        // Taken, not borrowed: a part may itself read from another batch.
        let mut rows = ROWS.take();
        let read = self.read_with(&mut rows, range.start, out);
        ROWS.set(rows);
        read
    }
}

/// Takes the next bytes of a part, or all that remain if fewer.
fn next<'a>(left: &mut &'a mut [u8], bytes: u64) -> &'a mut [u8] {
    let all = std::mem::take(left);
    let (here, after) = all.split_at_mut((bytes as usize).min(all.len()));
    *left = after;
    here
}

/// Converts little-endian floats to the byte order of a record.
fn to_layout(layout: Layout, floats: &mut [u8]) {
    if layout != Layout::TwoLittle {
        floats.as_chunks_mut::<4>().0.iter_mut().for_each(|float| float.reverse());
    }
}

/// Copies `bytes`, which lie at `place` of a record, to their position in `out`, which starts at `skip`.
fn copy(out: &mut [u8], skip: u64, place: u64, bytes: &[u8]) {
    let from = place.max(skip);
    let until = (place + bytes.len() as u64).min(skip + out.len() as u64);
    if from < until {
        let target = out.get_mut((from - skip) as usize..(until - skip) as usize);
        let source = bytes.get((from - place) as usize..(until - place) as usize);
        if let Some((target, source)) = target.zip(source) {
            target.copy_from_slice(source);
        }
    }
}
