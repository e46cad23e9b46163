//! The layout of the records of a `.cgeb` file as runs. The store keeps it for an imported batch, next
//! to the batch's tensors.
//!
//! A run is a sequence of records whose headers agree in layout, in whether the hash covers the payload,
//! and in the offset and length of aux. A batch of uniform records has one run, whatever its length.
//!
//! The parts of a batch of N records: the vectors, N x D f32; the weights, N x E f32; the
//! selected experts, N x K bytes; and the rest, for each record its header and then its aux.
//! Their floats are little-endian. The parts of weights and selected experts are omitted if empty.
//!
//! The file ends with the padding of the last record, or without any of it.

use std::ops::Range;

use super::{ContentHash, HEADER_BYTES, Header, Layout, RECORD_ALIGNMENT};

/// Largest number of runs of a batch. They stay in memory while the store is open.
pub const RUNS_MAX: usize = 1 << 20;

/// Consecutive records that differ only in content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Number of records.
    pub count: u64,
    /// Version and byte order.
    pub layout: Layout,
    /// Whether the content hash covers the payload.
    pub is_hashed: bool,
    /// Offset of aux from a record's start; 0 if there is none.
    pub aux_offset: u64,
    /// Bytes of aux.
    pub aux_length: u64,
}

/// The sizes that all records of a batch share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Values of a vector.
    pub dimension: u32,
    /// Weights.
    pub experts: u8,
    /// Selected experts.
    pub top_k: u8,
}

/// A part of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The vectors.
    Vectors,
    /// The weights.
    Weights,
    /// The selected experts.
    Selected,
    /// Headers and aux.
    Rest,
}

/// A run and its location.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedRun {
    /// The run.
    pub run: Run,
    /// The number of its first record.
    pub first: u64,
    /// Its start in the file.
    pub start: u64,
    /// Its start in the rest.
    pub rest: u64,
    /// Bytes from the start of a record to the start of the next.
    pub stride: u64,
}

/// All runs of a batch, with at least one record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runs {
    sizes: Sizes,
    placed: Vec<PlacedRun>,
    records: u64,
    bytes: u64,
    rest_bytes: u64,
    /// Whether the file ends with the padding of its last record.
    is_padded: bool,
}

impl Sizes {
    /// The sizes of a record.
    pub fn of(header: &Header) -> Sizes {
        Sizes { dimension: header.dimension, experts: header.experts, top_k: header.top_k }
    }

    /// Bytes of a record's vector.
    pub fn vector_bytes(&self) -> u64 {
        4 * u64::from(self.dimension)
    }

    /// Bytes of a record's weights.
    pub fn weights_bytes(&self) -> u64 {
        4 * u64::from(self.experts)
    }

    /// Bytes of a record before its aux.
    pub fn fixed_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.vector_bytes() + self.weights_bytes() + u64::from(self.top_k)
    }
}

impl Run {
    /// The run of one record.
    pub fn of(header: &Header) -> Run {
        Run {
            count: 1,
            layout: header.layout,
            is_hashed: matches!(header.content_hash, ContentHash::OfPayload(_)),
            aux_offset: header.aux_offset,
            aux_length: header.aux_length,
        }
    }

    /// Bytes of a record in the rest. Adding a run checks that this does not overflow.
    pub fn rest_stride(&self) -> u64 {
        (HEADER_BYTES as u64).saturating_add(self.aux_length)
    }

    fn end(&self, sizes: &Sizes) -> Option<u64> {
        let fixed = sizes.fixed_bytes();
        match (self.aux_offset, self.aux_length) {
            (0, 0) => Some(fixed),
            (offset, length) if offset >= fixed => offset.checked_add(length),
            _ => None,
        }
    }
}

impl Runs {
    /// The runs of a batch. `None` if no file can have them: no records, an aux that overlaps other
    /// fields, flags in version 1, or more than 2^63 - 1 bytes.
    pub fn new(sizes: Sizes, runs: impl IntoIterator<Item = Run>) -> Option<Runs> {
        let mut all =
            Runs { sizes, placed: Vec::new(), records: 0, bytes: 0, rest_bytes: 0, is_padded: true };
        for run in runs {
            all.push(run)?;
        }
        (all.records > 0).then_some(all)
    }

    fn push(&mut self, run: Run) -> Option<()> {
        let is_flagged = run.layout == Layout::One && run.is_hashed;
        if run.count == 0 || is_flagged || self.placed.len() >= RUNS_MAX || !self.is_padded {
            return None;
        }
        let stride = run.end(&self.sizes)?.checked_next_multiple_of(RECORD_ALIGNMENT)?;
        let most = i64::MAX as u64;
        let grown =
            |from: u64, each: u64| from.checked_add(each.checked_mul(run.count)?).filter(|it| *it <= most);
        let (bytes, rest_bytes) = (
            grown(self.bytes, stride)?,
            grown(self.rest_bytes, (HEADER_BYTES as u64).checked_add(run.aux_length)?)?,
        );
        let records = self.records.checked_add(run.count)?;
        let placed = PlacedRun { run, first: self.records, start: self.bytes, rest: self.rest_bytes, stride };
        match self.placed.last_mut().filter(|last| Run { count: last.run.count, ..run } == last.run) {
            Some(last) => last.run.count += run.count,
            None => self.placed.push(placed),
        }
        (self.bytes, self.rest_bytes, self.records) = (bytes, rest_bytes, records);
        Some(())
    }

    /// Adds a record. `None` if no file can have the resulting batch, or if it has too many runs.
    pub fn add(runs: Option<Runs>, header: &Header) -> Option<Runs> {
        let mut runs = match runs {
            Some(runs) => runs,
            None => return Runs::new(Sizes::of(header), [Run::of(header)]),
        };
        runs.push(Run::of(header))?;
        Some(runs)
    }

    /// The same batch in a file that ends with the last byte of its last record. `None` if there is no padding to omit.
    pub fn without_last_padding(mut self) -> Option<Runs> {
        let last = self.placed.last().filter(|_| self.is_padded)?;
        let padding = last.stride.checked_sub(last.run.end(&self.sizes)?).filter(|padding| *padding > 0)?;
        self.bytes = self.bytes.checked_sub(padding)?;
        self.is_padded = false;
        Some(self)
    }

    /// Whether the file ends with the padding of its last record. True for a last record that has no padding.
    pub fn is_padded(&self) -> bool {
        self.is_padded
    }

    /// The sizes of each record.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The number of records, at least one.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The runs, in the order of the file.
    pub fn placed(&self) -> &[PlacedRun] {
        &self.placed
    }

    /// The parts of the batch, in the order of its objects.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let Sizes { experts, top_k, .. } = self.sizes;
        let is_there = move |part: &Part| match part {
            Part::Vectors | Part::Rest => true,
            Part::Weights => experts > 0,
            Part::Selected => top_k > 0,
        };
        [Part::Vectors, Part::Weights, Part::Selected, Part::Rest].into_iter().filter(is_there)
    }

    /// Bytes of a part.
    pub fn part_bytes(&self, part: Part) -> u64 {
        match part {
            // At most the size of the file, which does not overflow.
            Part::Vectors => self.records.saturating_mul(self.sizes.vector_bytes()),
            Part::Weights => self.records.saturating_mul(self.sizes.weights_bytes()),
            Part::Selected => self.records.saturating_mul(u64::from(self.sizes.top_k)),
            Part::Rest => self.rest_bytes,
        }
    }

    /// The run that contains byte `offset` of the file.
    pub fn run_at(&self, offset: u64) -> Option<&PlacedRun> {
        let after = self.placed.partition_point(|placed| placed.start <= offset);
        self.placed.get(after.checked_sub(1)?).filter(|_| offset < self.bytes)
    }

    /// The offset of record `number` in the file.
    pub fn offset(&self, number: u64) -> Option<u64> {
        let after = self.placed.partition_point(|placed| placed.first <= number);
        let placed = self.placed.get(after.checked_sub(1)?).filter(|_| number < self.records)?;
        Some(placed.start + (number - placed.first) * placed.stride)
    }

    /// The number of the record that contains byte `offset` of the file, and its offset in the rest.
    fn record_at(&self, offset: u64) -> Option<(u64, u64)> {
        let placed = self.run_at(offset)?;
        let inside = (offset - placed.start) / placed.stride;
        Some((placed.first + inside, placed.rest + inside * placed.run.rest_stride()))
    }

    /// The range of each part that supplies the bytes of the file in `range`, in whole records.
    pub fn part_ranges(&self, range: Range<u64>) -> Vec<(Part, Range<u64>)> {
        let end = range.end.min(self.bytes);
        let Some(last) = end.checked_sub(1).filter(|last| range.start <= *last) else { return Vec::new() };
        let Some(((from, rest), (until, until_rest))) = self.record_at(range.start).zip(self.record_at(last))
        else {
            return Vec::new();
        };
        let rest_end = until_rest + self.run_at(last).map_or(0, |placed| placed.run.rest_stride());
        let of = |part| match part {
            Part::Vectors => from * self.sizes.vector_bytes()..(until + 1) * self.sizes.vector_bytes(),
            Part::Weights => from * self.sizes.weights_bytes()..(until + 1) * self.sizes.weights_bytes(),
            Part::Selected => from * u64::from(self.sizes.top_k)..(until + 1) * u64::from(self.sizes.top_k),
            Part::Rest => rest..rest_end,
        };
        self.parts().map(|part| (part, of(part))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, Run, Runs, Sizes};
    use crate::format::files::cgeb::Layout;

    const SIZES: Sizes = Sizes { dimension: 1536, experts: 8, top_k: 2 };
    const RUN: Run =
        Run { count: 1, layout: Layout::TwoLittle, is_hashed: true, aux_offset: 0, aux_length: 0 };

    #[test]
    fn equal_records_form_one_run() {
        let runs = Runs::new(SIZES, (0..1000).map(|_| RUN)).unwrap();
        assert_eq!(runs.placed().len(), 1);
        assert_eq!((runs.records(), runs.bytes()), (1000, 1000 * 8192));
        assert_eq!(runs.offset(999), Some(999 * 8192));
        assert_eq!(runs.offset(1000), None);
        assert_eq!(runs.part_bytes(Part::Rest), 64_000);
    }

    #[test]
    fn impossible_runs_are_refused() {
        let long = Run { count: u64::MAX / 4096, ..RUN };
        let over = Run { aux_offset: 100, aux_length: 1, ..RUN };
        let flagged = Run { layout: Layout::One, ..RUN };
        let endless = Run { aux_offset: u64::MAX, aux_length: 1, ..RUN };
        for bad in [long, over, flagged, endless, Run { count: 0, ..RUN }] {
            assert_eq!(Runs::new(SIZES, [bad]), None, "{bad:?}");
        }
        assert_eq!(Runs::new(SIZES, []), None);
    }

    #[test]
    fn a_file_may_end_without_the_padding_of_its_last_record_only() {
        let aux = Run { aux_offset: 8000, aux_length: 192, ..RUN };
        let runs = Runs::new(SIZES, [aux, RUN, RUN]).unwrap();
        let short = runs.clone().without_last_padding().unwrap();
        assert_eq!((runs.bytes(), short.bytes()), (3 * 8192, 2 * 8192 + 6242));
        assert_ne!(runs, short);
        assert_eq!((short.records(), short.offset(2)), (3, Some(2 * 8192)));
        assert_eq!(short.run_at(2 * 8192 + 6242), None);
        assert_eq!(short.part_ranges(2 * 8192 + 6241..u64::MAX), runs.part_ranges(2 * 8192 + 6241..u64::MAX));
        assert_eq!(short.clone().without_last_padding(), None);
        assert_eq!(Runs::new(SIZES, [aux]).unwrap().without_last_padding(), None, "it fills its pages");
    }

    #[test]
    fn the_parts_of_a_range_are_those_of_its_records() {
        let aux = Run { aux_offset: 8000, aux_length: 300, ..RUN };
        let runs = Runs::new(SIZES, [RUN, aux, aux, RUN]).unwrap();
        assert_eq!(runs.bytes(), 8192 + 2 * 12_288 + 8192);
        let ranges = runs.part_ranges(8192..8193);
        assert_eq!(ranges.first(), Some(&(Part::Vectors, 6144..12_288)));
        assert_eq!(ranges.last(), Some(&(Part::Rest, 64..64 + 364)));
        assert_eq!(runs.part_ranges(0..u64::MAX).last(), Some(&(Part::Rest, 0..256 + 600)));
        assert!(runs.part_ranges(runs.bytes()..u64::MAX).is_empty());
    }
}
