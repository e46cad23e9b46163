//! Decodes the matrix of a weight as it is stored.

use std::ops::Range;
use std::sync::Arc;

use crate::codec::dequantize::{Alphabet, Row, Spread};
use crate::format::files::safetensors::{Codes, Group, Weight};
use crate::model::{Dtype, Error, Result};
use crate::stream::dequantize::tables::{Tables, list};
use crate::stream::dequantize::{Parts, part};
use crate::stream::{Computed, Stream};

/// Values whose codes are read with one call.
const STEP: u64 = 64 << 10;

/// The values of a weight as elements, in the order of its codes.
pub(super) struct Rows {
    weight: Arc<Weight>,
    to: Dtype,
    codes: Stream,
    tables: Tables,
    /// The alphabet of the first row, or of the first part.
    alphabet: Alphabet,
    row_list: Option<Vec<u32>>,
    column_list: Option<Vec<u32>>,
}

/// Codes of values that follow each other in one row.
struct Place {
    /// Bytes of the codes, whole units.
    bytes: Range<u64>,
    /// Values to leave out at the front.
    skip: usize,
    shift: u32,
    /// Values until the codes continue elsewhere.
    left: u64,
}

/// The last bytes that were read, for values that follow.
#[derive(Default)]
pub(super) struct Known {
    codes: Vec<u8>,
    /// The place of these codes.
    read: Range<u64>,
    numbers: Option<Numbers>,
}

/// The codes of some columns of consecutive rows.
#[derive(Default)]
pub(super) struct Held {
    codes: Vec<u8>,
    /// The places of these codes in order, each with its offset in them.
    pieces: Vec<(Range<u64>, usize)>,
}

impl Held {
    /// Bytes of memory, about.
    pub fn memory(&self) -> usize {
        self.codes.capacity() + self.pieces.capacity() * size_of::<(Range<u64>, usize)>()
    }

    fn find(&self, span: &Range<u64>) -> Option<&[u8]> {
        let before = self.pieces.partition_point(|(piece, _)| piece.start <= span.start);
        let (piece, offset) = self.pieces.get(before.checked_sub(1)?)?;
        let from = offset + (span.start - piece.start) as usize;
        self.codes.get(from..from + (span.end - span.start) as usize).filter(|_| span.end <= piece.end)
    }
}

/// Numbers of one row of the tables.
struct Numbers {
    row: u64,
    columns: Range<u64>,
    scales: Vec<f32>,
    zeros: Option<Vec<f32>>,
}

impl Rows {
    pub fn new(weight: Arc<Weight>, parts: &Parts, to: Dtype) -> Result<Rows> {
        let alphabet = match &weight.codes {
            Codes::E4m3 => Alphabet::E4m3,
            Codes::E5m2 => Alphabet::E5m2,
            Codes::I8 => Alphabet::I8,
            Codes::Byte => Alphabet::Byte { shift: 0, mask: 255 },
            Codes::Int4 => Alphabet::int4(),
            Codes::E2m1 => Alphabet::e2m1(),
            Codes::Table(table) => Alphabet::high_first(table),
            Codes::Awq => Alphabet::Awq,
            Codes::Words { bits } => Alphabet::Word { shift: 0, mask: mask_of(*bits) },
            Codes::Parts { bits, word_bytes: 4 } => Alphabet::Word { shift: 0, mask: mask_of(*bits) },
            Codes::Parts { bits, .. } => Alphabet::Byte { shift: 0, mask: mask_of(*bits) as u8 },
        };
        let (codes, _) = part(parts, &weight.codes_name)?.clone();
        let listed = |group: &Group, count: u64, groups: u64| match group {
            Group::Of(_) => Ok(None),
            Group::Listed(name) => {
                let found = list(parts, name, groups)?;
                let is_whole = found.len() as u64 == count;
                is_whole
                    .then_some(Some(found))
                    .ok_or_else(|| Error::corrupt(format!("tensor {name:?} is too short")))
            }
        };
        let row_list = listed(&weight.row_group, weight.rows, weight.table_rows)?;
        let column_list = listed(&weight.column_group, weight.columns, weight.table_columns)?;
        let tables = Tables::new(&weight, parts)?;
        Ok(Rows { to, codes, tables, alphabet, row_list, column_list, weight })
    }

    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    pub fn element_bytes(&self) -> u64 {
        self.to.bytes()
    }

    /// Bytes of the codes of a column of one matrix, about.
    pub fn code_bytes_of_column(&self) -> u64 {
        self.codes.bytes() / self.weight.matrices.saturating_mul(self.weight.columns).max(1)
    }

    /// Where the codes of a row lie from a column on.
    fn place(&self, row: u64, column: u64) -> Place {
        let columns = self.weight.columns;
        let (unit_bytes, unit_values) = self.alphabet.unit();
        let (unit_bytes, unit_values) = (unit_bytes as u64, unit_values as u64);
        let left = columns - column;
        match self.weight.codes {
            Codes::Parts { bits, word_bytes } => {
                let words = (self.codes.bytes() / word_bytes).max(1);
                let at = row * columns + column;
                let (part, word) = (at / words, at % words);
                let shift = (match word_bytes {
                    // Ten numbers of three bits, the first at the top of 30 bits.
                    4 => 30,
                    _ => 8,
                } as u32)
                    .saturating_sub(bits * (part as u32 + 1));
                let left = left.min(words - word);
                Place { bytes: word * word_bytes..(word + left) * word_bytes, skip: 0, shift, left }
            }
            Codes::Words { bits } => {
                let each = u64::from(32 / bits.max(1));
                let begin = (row / each * columns + column) * 4;
                Place { bytes: begin..begin + left * 4, skip: 0, shift: (row % each) as u32 * bits, left }
            }
            _ => {
                let row_bytes = match self.weight.codes {
                    // Rows of words end with whole words.
                    Codes::Int4 | Codes::Byte => {
                        (columns * unit_bytes).div_ceil(unit_values).next_multiple_of(4)
                    }
                    _ => columns.div_ceil(unit_values) * unit_bytes,
                };
                let begin = row * row_bytes + column / unit_values * unit_bytes;
                let end = row * row_bytes + columns.div_ceil(unit_values) * unit_bytes;
                Place { bytes: begin..end, skip: (column % unit_values) as usize, shift: 0, left }
            }
        }
    }

    /// The row of the tables for a row, and the columns for columns.
    fn table_row(&self, row: u64) -> u64 {
        let weight = &self.weight;
        let (matrix, row) = (row / weight.rows, row % weight.rows);
        let group = match (&self.row_list, &weight.row_group) {
            (Some(list), _) => list.get(row as usize).map_or(0, |group| u64::from(*group)),
            (None, Group::Of(rows)) => row / (*rows).max(1),
            (None, Group::Listed(_)) => 0,
        };
        matrix * weight.table_rows + group
    }

    /// Reads the codes of some columns of a matrix, so that the columns can be decoded a few at a time.
    pub fn hold(&self, matrix: u64, columns: &Range<u64>) -> Result<Held> {
        let (unit_bytes, unit_values) = self.alphabet.unit();
        let rows = matrix * self.weight.rows..(matrix + 1) * self.weight.rows;
        let mut spans: Vec<Range<u64>> = Vec::new();
        for row in rows {
            let mut column = columns.start;
            while column < columns.end {
                let place = self.place(row, column);
                let count = place.left.min(columns.end - column).max(1);
                let needed = (count + place.skip as u64).div_ceil(unit_values as u64) * unit_bytes as u64;
                let span = place.bytes.start..place.bytes.start + needed;
                // Several rows may have their codes in the same words, and most rows follow each other.
                match spans.last_mut() {
                    Some(last) if (last.start..=last.end).contains(&span.start) => {
                        last.end = last.end.max(span.end)
                    }
                    _ => spans.push(span),
                }
                column += count;
            }
        }
        spans.sort_unstable_by_key(|span| span.start);
        let mut held = Held::default();
        for span in spans {
            match held.pieces.last_mut() {
                Some((last, _)) if span.start <= last.end => last.end = last.end.max(span.end),
                _ => held.pieces.push((span, 0)),
            }
        }
        held.codes.reserve(held.pieces.iter().map(|(piece, _)| (piece.end - piece.start) as usize).sum());
        for (piece, offset) in &mut held.pieces {
            *offset = held.codes.len();
            held.codes.resize(*offset + (piece.end - piece.start) as usize, 0);
            self.codes.read_exact(piece.start, held.codes.get_mut(*offset..).unwrap_or_default())?;
        }
        Ok(held)
    }

    /// Decodes whole elements from an element on. Codes that are not `held` are read.
    pub fn decode(&self, first: u64, out: &mut [u8], held: &Held, known: &mut Known) -> Result<()> {
        let (each, columns) = (self.to.bytes() as usize, self.weight.columns);
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            let (row, column) = (at / columns, at % columns);
            let place = self.place(row, column);
            let count = place.left.min((rest.len() / each) as u64).min(STEP);
            let (unit_bytes, unit_values) = self.alphabet.unit();
            let needed = (count + place.skip as u64).div_ceil(unit_values as u64) * unit_bytes as u64;
            let span = place.bytes.start..place.bytes.start + needed;
            let Known { codes, read, numbers } = known;
            let found = held.find(&span);
            if found.is_none() && !(read.start <= span.start && span.end <= read.end) {
                // Codes of several rows are read at once where they follow each other.
                let values = ((rest.len() / each) as u64).min(STEP);
                let more = values.div_ceil(unit_values as u64) * unit_bytes as u64;
                let end = span.end.max((span.start + more).min(self.codes.bytes()));
                codes.resize((end - span.start) as usize, 0);
                self.codes.read_exact(span.start, codes)?;
                *read = span.start..end;
            }
            let codes = found.unwrap_or_else(|| {
                let from = (span.start - read.start) as usize;
                codes.get(from..from + (span.end - span.start) as usize).unwrap_or_default()
            });
            let (now, after) = std::mem::take(&mut rest).split_at_mut(count as usize * each);
            self.decode_row(row, column, &place, codes, numbers, now)?;
            at += count;
            rest = after;
        }
        Ok(())
    }

    /// Decodes values of one row, whose codes are known.
    fn decode_row(
        &self,
        row: u64,
        column: u64,
        place: &Place,
        codes: &[u8],
        known: &mut Option<Numbers>,
        out: &mut [u8],
    ) -> Result<()> {
        let weight = &self.weight;
        let count = out.len() as u64 / self.to.bytes();
        let group = match (&self.column_list, &weight.column_group) {
            (None, Group::Of(columns)) => (*columns).max(1),
            _ => weight.columns,
        };
        let wanted = match &self.column_list {
            Some(_) => 0..weight.table_columns,
            None => column / group..((column + count - 1) / group + 1).min(weight.table_columns),
        };
        if wanted.is_empty() {
            return Err(Error::corrupt("a value of a weight without a scale"));
        }
        let table_row = self.table_row(row);
        let has = |numbers: &Numbers| {
            numbers.row == table_row
                && numbers.columns.start <= wanted.start
                && wanted.end <= numbers.columns.end
        };
        if !known.as_ref().is_some_and(has) {
            let (scales, mut zeros) = self.tables.read(table_row, wanted.start, wanted.end - wanted.start)?;
            if let Some(zeros) = zeros.as_mut().filter(|_| weight.codes == Codes::Byte) {
                zeros.iter_mut().for_each(|zero| *zero += 128.0);
            }
            *known = Some(Numbers { row: table_row, columns: wanted.clone(), scales, zeros });
        }
        let Some(Numbers { columns, scales, zeros, .. }) = known else { return Ok(()) };
        let skip = (wanted.start - columns.start) as usize;
        let gathered = |numbers: &[f32]| -> Option<Vec<f32>> {
            let list = self.column_list.as_ref()?.get(column as usize..(column + count) as usize)?;
            list.iter().map(|group| numbers.get(*group as usize).copied()).collect()
        };
        let lists = [gathered(scales), zeros.as_deref().and_then(gathered)];
        let groups = |numbers| match group {
            1 => Spread::Each(numbers),
            len => Spread::Groups { len: len as usize, first: (len - column % len) as usize, numbers },
        };
        let scales = scales.get(skip..).unwrap_or_default();
        let zeros = zeros.as_ref().map(|zeros| zeros.get(skip..).unwrap_or_default());
        let [scale_list, zero_list] = &lists;
        let alphabet = match &self.alphabet {
            Alphabet::Byte { mask, .. } => &Alphabet::Byte { shift: place.shift, mask: *mask },
            Alphabet::Word { mask, .. } => &Alphabet::Word { shift: place.shift, mask: *mask },
            other => other,
        };
        let zeros = match (zeros, zero_list) {
            (Some(_), Some(list)) => Some(Spread::Each(list)),
            (Some(zeros), None) => Some(groups(zeros)),
            // Bytes of compressed-tensors are the numbers plus 128.
            (None, _) if self.weight.codes == Codes::Byte => {
                Some(Spread::Groups { len: usize::MAX, first: usize::MAX, numbers: &[128.0] })
            }
            (None, _) => None,
        };
        Row {
            alphabet,
            codes,
            skip: place.skip,
            scales: scale_list.as_ref().map_or_else(|| groups(scales), |list| Spread::Each(list)),
            zeros,
            factor: self.tables.factor,
            divisor: weight.divisor,
        }
        .decode(self.to, out)
    }
}

fn mask_of(bits: u32) -> u32 {
    (1_u32 << bits.min(31)) - 1
}

impl Computed for Rows {
    fn bytes(&self) -> u64 {
        self.weight.shape.elements().saturating_mul(self.to.bytes())
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let each = self.to.bytes();
        if range.start.is_multiple_of(each) && range.end.is_multiple_of(each) {
            return self.decode(range.start / each, out, &Held::default(), &mut Known::default());
        }
        let first = range.start / each;
        let mut whole = vec![0; ((range.end.div_ceil(each) - first) * each) as usize];
        self.decode(first, &mut whole, &Held::default(), &mut Known::default())?;
        let skip = (range.start - first * each) as usize;
        if let Some(part) = whole.get(skip..skip + out.len()) {
            out.copy_from_slice(part);
        }
        Ok(())
    }
}
