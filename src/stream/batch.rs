//! Embedding batches that were taken apart, as the file that they came from.
//!
//! Of each run of records the place of a byte is arithmetic. Of records that are small the
//! rows of many are fetched with one read of each part; of large ones only what is wanted.
//! What lies between a record's fields and after it is zero. A hash that covers the payload
//! is that of what is served, always.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use crate::format::cgeb::{HEADER_BYTES, Layout, Part, PlacedRun, Runs, leading_hash};
use crate::model::{Error, Result};
use crate::store::read::OpenObject;

/// Where the content hash lies in a record.
const HASH: Range<u64> = 16..24;
/// Bytes of parts that are held at a time.
const HELD_BYTES: u64 = 1 << 20;
/// Records whose parts are larger are not fetched whole.
const SMALL_BYTES: u64 = 64 << 10;
/// Bytes of a large record that are hashed at a time: whole floats.
const HASHED_BYTES: u64 = 256 << 10;

/// The parts of a batch and where its records lie.
#[derive(Clone)]
pub struct Stitched {
    runs: Arc<Runs>,
    /// In the order of [`Runs::parts`].
    parts: Vec<OpenObject>,
}

/// What is held of each part while records are stitched.
#[derive(Default)]
struct Rows {
    vectors: Vec<u8>,
    weights: Vec<u8>,
    selected: Vec<u8>,
    rest: Vec<u8>,
}

thread_local! {
    /// Kept, so that reading allocates nothing.
    static ROWS: RefCell<Rows> = RefCell::default();
}

/// A stretch of a record that lies in one part.
struct Field {
    part: Part,
    /// Where it lies in the record.
    place: Range<u64>,
    /// Where it begins in the part.
    at: u64,
}

impl Stitched {
    /// The batch of these parts. `Corrupt` where they have other sizes.
    pub fn new(runs: Arc<Runs>, parts: Vec<OpenObject>) -> Result<Stitched> {
        let sizes = parts.iter().map(OpenObject::bytes);
        if !sizes.eq(runs.parts().map(|part| runs.part_bytes(part))) {
            return Err(Error::corrupt("an embedding batch whose parts have other sizes"));
        }
        Ok(Stitched { runs, parts })
    }

    /// Where the records lie.
    pub fn runs(&self) -> &Arc<Runs> {
        &self.runs
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.runs.bytes()
    }

    /// Reads the bytes from `at` on into `out`; they must lie inside.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let mut rows = ROWS.take();
        let read = self.read_with(&mut rows, at, out);
        ROWS.set(rows);
        read
    }

    fn read_with(&self, rows: &mut Rows, mut at: u64, mut out: &mut [u8]) -> Result<()> {
        let sizes = self.runs.sizes();
        while !out.is_empty() {
            let placed = self.runs.run_at(at);
            let placed = placed.ok_or_else(|| Error::invalid("a range past the end of a batch"))?;
            let number = (at - placed.start) / placed.stride;
            let held = sizes.fixed_bytes().saturating_add(placed.run.aux_length);
            let left = placed.run.count - number;
            let wanted =
                (at - placed.start - number * placed.stride + out.len() as u64).div_ceil(placed.stride);
            let count = if held > SMALL_BYTES { 1 } else { wanted.min(left).min((HELD_BYTES / held).max(1)) };
            let start = placed.start + number * placed.stride;
            let end = start + count * placed.stride;
            let len = (end - at).min(out.len() as u64) as usize;
            let (here, after) = std::mem::take(&mut out).split_at_mut(len);
            if held > SMALL_BYTES {
                self.read_large(placed, number, at - start, here)?;
            } else {
                self.fetch(rows, placed, number, count)?;
                self.stitch(rows, placed, at - start, here);
            }
            at += len as u64;
            out = after;
        }
        Ok(())
    }

    fn part(&self, part: Part) -> Option<&OpenObject> {
        self.parts.get(self.runs.parts().position(|known| known == part)?)
    }

    fn read_part(&self, part: Part, at: u64, out: &mut [u8]) -> Result<()> {
        match self.part(part) {
            Some(object) if !out.is_empty() => object.read(at, out),
            _ => Ok(()),
        }
    }

    /// Fetches the parts of `count` records of a run, floats in the records' byte order.
    fn fetch(&self, rows: &mut Rows, placed: &PlacedRun, number: u64, count: u64) -> Result<()> {
        let sizes = self.runs.sizes();
        let first = placed.first + number;
        let each = [
            (Part::Vectors, &mut rows.vectors, first * sizes.vector_bytes(), sizes.vector_bytes()),
            (Part::Weights, &mut rows.weights, first * sizes.weights_bytes(), sizes.weights_bytes()),
            (Part::Selected, &mut rows.selected, first * u64::from(sizes.top_k), u64::from(sizes.top_k)),
            (
                Part::Rest,
                &mut rows.rest,
                placed.rest + number * placed.run.rest_stride(),
                placed.run.rest_stride(),
            ),
        ];
        for (part, buffer, at, bytes) in each {
            buffer.resize((bytes * count) as usize, 0);
            self.read_part(part, at, buffer)?;
            if matches!(part, Part::Vectors | Part::Weights) {
                to_layout(placed.run.layout, buffer);
            }
        }
        Ok(())
    }

    /// Puts fetched records together; `skip` bytes of the first are not wanted.
    fn stitch(&self, rows: &Rows, placed: &PlacedRun, skip: u64, out: &mut [u8]) {
        let sizes = self.runs.sizes();
        let row = |buffer: &'_ [u8], bytes: u64, place: usize| {
            let bytes = bytes as usize;
            place * bytes..((place + 1) * bytes).min(buffer.len())
        };
        let (mut skip, mut rest_of_out) = (skip, out);
        for (place, rest) in rows.rest.chunks_exact(placed.run.rest_stride() as usize).enumerate() {
            let vector = row(&rows.vectors, sizes.vector_bytes(), place);
            let weights = row(&rows.weights, sizes.weights_bytes(), place);
            let selected = row(&rows.selected, u64::from(sizes.top_k), place);
            let (header, aux) = rest.split_at_checked(HEADER_BYTES).unwrap_or_default();
            let payload = [
                rows.vectors.get(vector).unwrap_or_default(),
                rows.weights.get(weights).unwrap_or_default(),
                rows.selected.get(selected).unwrap_or_default(),
                aux,
            ];
            let len = ((placed.stride - skip) as usize).min(rest_of_out.len());
            let (here, after) = std::mem::take(&mut rest_of_out).split_at_mut(len);
            here.fill(0);
            copy(here, skip, 0, header);
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

    /// Reads a part of one record from `skip` on; nothing else of it is fetched, but for its
    /// hash.
    fn read_large(&self, placed: &PlacedRun, number: u64, skip: u64, out: &mut [u8]) -> Result<()> {
        let layout = placed.run.layout;
        let end = skip + out.len() as u64;
        let fields = self.fields(placed, number);
        out.fill(0);
        for field in &fields {
            let (from, until) = (field.place.start.max(skip), field.place.end.min(end));
            if from < until {
                let here = out.get_mut((from - skip) as usize..(until - skip) as usize).unwrap_or_default();
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
                    let here = chunk.get_mut(..(len - at).min(HASHED_BYTES) as usize).unwrap_or_default();
                    self.read_field(field, layout, at, here)?;
                    hasher.update(here);
                    at += here.len() as u64;
                }
            }
            copy(out, skip, HASH.start, &leading_hash(&hasher).to_be_bytes());
        }
        Ok(())
    }

    /// Reads from byte `from` of a field on.
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
                here.copy_from_slice(word.get(inside..inside + len).unwrap_or_default());
            }
            from += len as u64;
            rest = after;
        }
        Ok(())
    }
}

/// Little-endian floats in the byte order of a record.
fn to_layout(layout: Layout, floats: &mut [u8]) {
    if layout != Layout::TwoLittle {
        floats.as_chunks_mut::<4>().0.iter_mut().for_each(|float| float.reverse());
    }
}

/// Puts what lies at `place` of a record where it lies in `out`, which begins at `skip`.
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
