//! Decodes the matrix of a weight as it is stored.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use crate::codec::InstructionSet;
use crate::codec::dequantize::{Alphabet, KnownProducts, Row, Spread};
use crate::format::files::safetensors::{Codes, Group, Weight};
use crate::model::{Dtype, Error, Result};
use crate::store::PageBuffer;
use crate::stream::dequantize::tables::{Numbers, Tables, list};
use crate::stream::dequantize::{Parts, part};
use crate::stream::{Computed, Stream};

/// Bytes of codes that are read with one call, and that stay in the second-level cache until they are decoded.
const STEP_BYTES: usize = 128 << 10;
/// Numbers of tables that are read with one call.
const NUMBERS_MAX: u64 = 64 << 10;
/// Values for each product of a group from which on products are looked up.
const VALUES_OF_PRODUCT: u64 = 4;

thread_local! {
    /// Memory for codes, while no read has it.
    static CODES: RefCell<PageBuffer> = const { RefCell::new(PageBuffer::new()) };
}

/// The values of a weight as elements, in the order of its codes.
pub(super) struct Rows {
    weight: Arc<Weight>,
    to: Dtype,
    codes: Stream,
    tables: Tables,
    /// The alphabet of the first row, or of the first part.
    alphabet: Alphabet,
    row_groups: Groups,
    column_groups: Groups,
}

/// Which row of the tables belongs to a row of a matrix, or which column to a column.
pub(super) enum Groups {
    /// As many rows, or columns, each.
    Of(u64),
    Listed(Vec<u32>),
}

/// Codes of values that follow each other in one row.
struct Place {
    row: u64,
    column: u64,
    /// Bytes of the codes, whole units.
    bytes: Range<u64>,
    /// Values to leave out at the front.
    skip: usize,
    shift: u32,
    /// Values until the codes continue elsewhere.
    left: u64,
}

/// The codes and numbers that were read last, for values that follow.
#[derive(Default)]
struct Known {
    codes: PageBuffer,
    /// The place of these codes.
    read: Range<u64>,
    numbers: Numbers,
    /// The products of a row of the tables, or that they are of no use.
    products: Option<(u64, Option<KnownProducts>)>,
}

/// The codes of some columns of a matrix, and their scales and zero points.
pub(super) struct Held {
    codes: Vec<u8>,
    /// The places of these codes in order, each with its offset in them.
    pieces: Vec<(Range<u64>, usize)>,
    numbers: Numbers,
}

impl Held {
    /// Bytes of memory, about.
    pub fn memory(&self) -> usize {
        let pieces = self.pieces.capacity() * size_of::<(Range<u64>, usize)>();
        self.codes.capacity() + pieces + self.numbers.memory()
    }

    /// The memory of its codes.
    pub fn into_memory(self) -> Vec<u8> {
        self.codes
    }

    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    fn find(&self, span: &Range<u64>) -> Option<&[u8]> {
        let before = self.pieces.partition_point(|(piece, _)| piece.start <= span.start);
        let (piece, offset) = self.pieces.get(before.checked_sub(1)?)?;
        let from = offset + (span.start - piece.start) as usize;
        self.codes.get(from..from + (span.end - span.start) as usize).filter(|_| span.end <= piece.end)
    }
}

impl Groups {
    fn new(parts: &Parts, group: &Group, count: u64, groups: u64) -> Result<Groups> {
        let name = match group {
            Group::Of(each) => return Ok(Groups::Of((*each).max(1))),
            Group::Listed(name) => name,
        };
        let found = list(parts, name, groups)?;
        if found.len() as u64 != count {
            return Err(Error::corrupt(format!("tensor {name:?} is too short")));
        }
        // Most lists have groups of one length in order.
        let len = found.iter().position(|group| *group != 0).unwrap_or(found.len()).max(1);
        let is_regular =
            found.chunks(len).zip(0_u32..).all(|(all, group)| all.iter().all(|one| *one == group));
        Ok(if is_regular { Groups::Of(len as u64) } else { Groups::Listed(found) })
    }

    fn of(&self, at: u64) -> u64 {
        match self {
            Groups::Of(each) => at / each,
            Groups::Listed(list) => list.get(at as usize).map_or(0, |group| u64::from(*group)),
        }
    }
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
        let row_groups = Groups::new(parts, &weight.row_group, weight.rows, weight.table_rows)?;
        let column_groups = Groups::new(parts, &weight.column_group, weight.columns, weight.table_columns)?;
        let tables = Tables::new(&weight, parts)?;
        Ok(Rows { to, codes, tables, alphabet, row_groups, column_groups, weight })
    }

    pub fn weight(&self) -> &Weight {
        &self.weight
    }

    pub fn to(&self) -> Dtype {
        self.to
    }

    /// A scale of all values.
    pub fn factor(&self) -> f32 {
        self.tables.factor
    }

    pub fn row_groups(&self) -> &Groups {
        &self.row_groups
    }

    /// Bytes of memory that a column of one matrix takes, about.
    pub fn bytes_of_column(&self) -> u64 {
        let weight = &self.weight;
        let codes = self.codes.bytes() / weight.matrices.saturating_mul(weight.columns).max(1);
        let each = match &self.column_groups {
            Groups::Of(columns) => *columns,
            Groups::Listed(_) => 1,
        };
        codes.saturating_add(weight.table_rows.saturating_mul(self.tables.bytes_of_number()) / each)
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
                let bytes = word * word_bytes..(word + left) * word_bytes;
                Place { row, column, bytes, skip: 0, shift, left }
            }
            Codes::Words { bits } => {
                let each = u64::from(32 / bits.max(1));
                let begin = (row / each * columns + column) * 4;
                let shift = (row % each) as u32 * bits;
                Place { row, column, bytes: begin..begin + left * 4, skip: 0, shift, left }
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
                let skip = (column % unit_values) as usize;
                Place { row, column, bytes: begin..end, skip, shift: 0, left }
            }
        }
    }

    /// The bytes of the first codes of a place.
    fn span(&self, place: &Place, count: u64) -> Range<u64> {
        let (unit_bytes, unit_values) = self.alphabet.unit();
        let needed = (count + place.skip as u64).div_ceil(unit_values as u64) * unit_bytes as u64;
        place.bytes.start..place.bytes.start + needed
    }

    /// The row of the tables for a row.
    fn table_row(&self, row: u64) -> u64 {
        let (matrix, row) = (row / self.weight.rows, row % self.weight.rows);
        matrix * self.weight.table_rows + self.row_groups.of(row)
    }

    /// The columns of the tables for some columns.
    fn table_columns(&self, columns: &Range<u64>) -> Result<Range<u64>> {
        let all = self.weight.table_columns;
        let found = match &self.column_groups {
            Groups::Of(each) => columns.start / each..columns.end.div_ceil(*each).min(all),
            Groups::Listed(_) => 0..all,
        };
        if found.is_empty() {
            return Err(Error::corrupt("a value of a weight without a scale"));
        }
        Ok(found)
    }

    /// The column of the tables for a column.
    pub fn table_column(&self, column: u64) -> u64 {
        self.column_groups.of(column)
    }

    /// Reads the codes of some columns of a matrix to `memory`, and their numbers.
    pub fn hold(&self, matrix: u64, columns: &Range<u64>, memory: Vec<u8>) -> Result<Held> {
        let weight = &self.weight;
        let mut spans: Vec<Range<u64>> = Vec::new();
        for row in matrix * weight.rows..(matrix + 1) * weight.rows {
            let mut column = columns.start;
            while column < columns.end {
                let place = self.place(row, column);
                let count = place.left.min(columns.end - column).max(1);
                let span = self.span(&place, count);
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
        let mut pieces: Vec<(Range<u64>, usize)> = Vec::new();
        for span in spans {
            match pieces.last_mut() {
                Some((last, _)) if span.start <= last.end => last.end = last.end.max(span.end),
                _ => pieces.push((span, 0)),
            }
        }
        let mut codes = memory;
        codes.resize(pieces.iter().map(|(piece, _)| (piece.end - piece.start) as usize).sum(), 0);
        let mut rest = codes.as_mut_slice();
        let bytes = rest.len();
        for (piece, offset) in &mut pieces {
            *offset = bytes - rest.len();
            let (now, after) = rest.split_at_mut((piece.end - piece.start) as usize);
            self.codes.read_exact(piece.start, now)?;
            rest = after;
        }
        let table_rows = matrix * weight.table_rows..(matrix + 1) * weight.table_rows;
        let table_rows = if table_rows.is_empty() { 0..1 } else { table_rows };
        let numbers = self.tables.read(table_rows, self.table_columns(columns)?)?;
        Ok(Held { codes, pieces, numbers })
    }

    /// The held codes of some columns of a row, and the values to leave out at the front.
    pub fn held_codes<'a>(
        &self,
        held: &'a Held,
        row: u64,
        columns: &Range<u64>,
    ) -> Result<(&'a [u8], usize)> {
        let place = self.place(row, columns.start);
        let span = self.span(&place, columns.end - columns.start);
        let found = held.find(&span).ok_or_else(|| Error::invalid("codes that were not read"))?;
        Ok((found, place.skip))
    }

    /// Decodes whole elements from an element on.
    fn decode(&self, first: u64, out: &mut [u8], known: &mut Known) -> Result<()> {
        let each = self.to.bytes() as usize;
        let (unit_bytes, unit_values) = self.alphabet.unit();
        let step = (STEP_BYTES / unit_bytes * unit_values) as u64;
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            let place = self.place(at / self.weight.columns, at % self.weight.columns);
            let values = (rest.len() / each) as u64;
            let count = place.left.min(values).min(step);
            let span = self.span(&place, count);
            if !(known.read.start <= span.start && span.end <= known.read.end) {
                // Codes of several rows are read at once where they follow each other.
                let more = values.min(step).div_ceil(unit_values as u64) * unit_bytes as u64;
                let end = span.end.max((span.start + more).min(self.codes.bytes()));
                known.read = 0..0;
                self.codes.read_exact(span.start, known.codes.sized((end - span.start) as usize))?;
                known.read = span.start..end;
            }
            self.know_numbers(&place, count, values, known)?;
            let Known { codes, read, numbers, products } = known;
            let until = (span.end - read.start) as usize;
            let codes = codes.sized(until).get((span.start - read.start) as usize..).unwrap_or_default();
            let products = products.as_ref().and_then(|(_, products)| products.as_ref());
            let (now, after) = std::mem::take(&mut rest).split_at_mut(count as usize * each);
            self.decode_row(&place, codes, numbers, products, now)?;
            at += count;
            rest = after;
        }
        Ok(())
    }

    /// Reads the numbers of the first `count` values of a place, if they are not known, and those of further rows, of
    /// `values` in all.
    fn know_numbers(&self, place: &Place, count: u64, values: u64, known: &mut Known) -> Result<()> {
        let table_row = self.table_row(place.row);
        let wanted = self.table_columns(&(place.column..place.column + count))?;
        if !known.numbers.has(table_row, &wanted) {
            let last = self.table_row(place.row + (place.column + values - 1) / self.weight.columns);
            let all = self.weight.table_columns;
            let more = match self.row_groups {
                Groups::Of(_) => last.saturating_sub(table_row).min(NUMBERS_MAX / all),
                Groups::Listed(_) => 0,
            };
            let wanted = if more > 0 { 0..all } else { wanted };
            known.numbers = self.tables.read(table_row..table_row + more + 1, wanted)?;
            // Bytes of compressed-tensors are the numbers plus 128.
            if self.weight.codes == Codes::Byte {
                known.numbers.add_to_zeros(128.0);
            }
            known.products = None;
        }
        if known.products.as_ref().is_none_or(|(row, _)| *row != table_row) {
            known.products = self.products(place, values, &known.numbers)?;
        }
        Ok(())
    }

    /// The products of codes and the scales of a place, if enough of the next `values` have these.
    fn products(
        &self,
        place: &Place,
        values: u64,
        numbers: &Numbers,
    ) -> Result<Option<(u64, Option<KnownProducts>)>> {
        let (Groups::Of(row_len), Groups::Of(_)) = (&self.row_groups, &self.column_groups) else {
            return Ok(None);
        };
        let (weight, row) = (&self.weight, place.row % self.weight.rows);
        let rows = (row_len - row % row_len).min(weight.rows - row);
        let with_these = values.min(rows.saturating_mul(weight.columns) - place.column);
        let table_row = self.table_row(place.row);
        let (scales, zeros) = numbers.row(table_row);
        let few = KnownProducts::OF_A_GROUP * VALUES_OF_PRODUCT * scales.len() as u64;
        if zeros.is_some() || weight.divisor != 1.0 || with_these < few {
            return Ok(None);
        }
        let set = InstructionSet::detected();
        let products = KnownProducts::new(set, &self.alphabet, scales, self.tables.factor, self.to)?;
        Ok(Some((table_row, products)))
    }

    /// Decodes values of one row.
    fn decode_row(
        &self,
        place: &Place,
        codes: &[u8],
        numbers: &Numbers,
        products: Option<&KnownProducts>,
        out: &mut [u8],
    ) -> Result<()> {
        let (weight, column) = (&self.weight, place.column);
        let count = out.len() as u64 / self.to.bytes();
        let wanted = self.table_columns(&(column..column + count))?;
        let skip = (wanted.start - numbers.columns().start) as usize;
        if let (Some(products), Groups::Of(len)) = (products, &self.column_groups) {
            let (len, first) = (*len as usize, (len - column % len) as usize);
            return products.decode(InstructionSet::detected(), codes, skip, len, first, out);
        }
        let (scales, zeros) = numbers.row(self.table_row(place.row));
        let gathered = |numbers: &[f32]| -> Option<Vec<f32>> {
            let Groups::Listed(list) = &self.column_groups else { return None };
            let list = list.get(column as usize..(column + count) as usize)?;
            list.iter().map(|group| numbers.get(*group as usize).copied()).collect()
        };
        let lists = [gathered(scales), zeros.and_then(gathered)];
        let groups = |numbers| match self.column_groups {
            Groups::Of(len) if len > 1 => {
                Spread::Groups { len: len as usize, first: (len - column % len) as usize, numbers }
            }
            _ => Spread::Each(numbers),
        };
        let scales = scales.get(skip..).unwrap_or_default();
        let zeros = zeros.map(|zeros| zeros.get(skip..).unwrap_or_default());
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

/// Reads a range of bytes by a function that reads whole elements of `each` bytes, from one on.
pub(super) fn read_elements(
    each: u64,
    range: Range<u64>,
    out: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let first = range.start / each;
    if range.start.is_multiple_of(each) && range.end.is_multiple_of(each) {
        return read(first, out);
    }
    let mut whole = vec![0; ((range.end.div_ceil(each) - first) * each) as usize];
    read(first, &mut whole)?;
    let skip = (range.start - first * each) as usize;
    if let Some(part) = whole.get(skip..skip + out.len()) {
        out.copy_from_slice(part);
    }
    Ok(())
}

impl Computed for Rows {
    fn bytes(&self) -> u64 {
        self.weight.shape.elements().saturating_mul(self.to.bytes())
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        // Taken, not borrowed: the codes may themselves be computed.
        let mut known = Known { codes: CODES.take(), ..Known::default() };
        let read =
            read_elements(self.to.bytes(), range, out, |first, out| self.decode(first, out, &mut known));
        CODES.set(known.codes);
        read
    }
}
