//! Shows the matrices of a weight with rows and columns exchanged.
//!
//! A row that is shown has a value of every stored row. So the codes of many columns are read at once and kept. A read of
//! many shown rows decodes their columns into the reply. For a read of few, a band of columns is decoded and kept, since
//! the next read usually continues in it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::model::{Error, Result};
use crate::stream::Computed;
use crate::stream::dequantize::rows::{Held, Known, Rows};

/// Bytes of codes that are read at once. Longer pieces of rows cost fewer reads.
const CODES_BYTES: u64 = 32 << 20;
/// Bytes of codes that are kept. Those of at least one piece are.
const CODES_BYTES_MAX: usize = 96 << 20;
/// Most columns of a band, and most bytes unless one column has more.
const BAND_COLUMNS: u64 = 64;
const BAND_BYTES: u64 = 16 << 20;
/// Bytes of the bands that are kept. At least one is kept.
const BANDS_BYTES_MAX: usize = 64 << 20;
/// Most rows of a weight, of which each takes memory for its place. Layers of models have less than 2^18.
const ROWS_MAX: u64 = 1 << 22;
/// Columns from which on a read decodes for itself: each call for fewer values costs more than the values.
const DIRECT_COLUMNS_MIN: u64 = 32;
/// Readers that decode bands of one weight at a time.
const TURNS: usize = 4;
/// Stored rows and columns that change places at a time.
const SQUARE: usize = 16;
/// Columns and stored rows that are decoded before they change places. With 16 stored rows, of which each shown row takes
/// half a cache line, the same work took two to three times as long.
const NARROW: usize = 256;
const STRIP: usize = 256;
/// Bytes between the stored rows of a strip. Without them the rows compete for the same sets of the cache.
const GAP_BYTES: usize = 64;

/// Columns of a matrix of a weight.
#[derive(Clone, PartialEq)]
struct Columns {
    /// The number of the weight.
    owner: u64,
    matrix: u64,
    range: Range<u64>,
}

/// Things about columns that were used last, of all weights: a file has hundreds of weights, and is read from one to the
/// next.
struct Last<T> {
    all: VecDeque<(Columns, Arc<T>)>,
}

impl<T> Last<T> {
    const fn new() -> Last<T> {
        Last { all: VecDeque::new() }
    }

    fn get(&self, columns: &Columns) -> Option<Arc<T>> {
        self.all.iter().find(|(of, _)| of == columns).map(|(_, found)| found.clone())
    }

    /// Adds a thing. The oldest go while there are more than `most` bytes.
    fn add(&mut self, columns: Columns, thing: Arc<T>, most: usize, bytes: fn(&T) -> usize) {
        self.all.push_back((columns, thing));
        while self.all.len() > 1 && self.all.iter().map(|(_, thing)| bytes(thing)).sum::<usize>() > most {
            self.all.pop_front();
        }
    }
}

/// Codes, and decoded values in the order in which they are shown. Each is held while no other lock is taken.
static CODES: Mutex<Last<Held>> = Mutex::new(Last::new());
static BANDS: Mutex<Last<Vec<u8>>> = Mutex::new(Last::new());

/// The number of the next owner of columns.
static NEXT_OWNER: AtomicU64 = AtomicU64::new(0);

/// The values of a weight, rows and columns exchanged.
pub(super) struct Exchanged {
    rows: Rows,
    owner: u64,
    /// Held while codes are read: readers beside each other want the same.
    reading: Mutex<()>,
    /// Held while a band is decoded, by the number of the band.
    turns: [Mutex<()>; TURNS],
}

impl Drop for Exchanged {
    fn drop(&mut self) {
        CODES.lock().all.retain(|(columns, _)| columns.owner != self.owner);
        BANDS.lock().all.retain(|(columns, _)| columns.owner != self.owner);
    }
}

impl Exchanged {
    /// Fails with `NotSupported` for more than 2^22 rows.
    pub fn new(rows: Rows) -> Result<Exchanged> {
        if rows.weight().rows > ROWS_MAX {
            return Err(Error::unsupported("a transposed weight of more than 2^22 rows of codes"));
        }
        let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
        Ok(Exchanged { rows, owner, reading: Mutex::default(), turns: Default::default() })
    }

    /// Columns of a band, a power of two.
    fn band_columns(&self) -> u64 {
        let fitting = (BAND_BYTES / self.row_bytes().max(1)).clamp(1, BAND_COLUMNS);
        1 << fitting.ilog2()
    }

    /// Bytes of a shown row.
    fn row_bytes(&self) -> u64 {
        self.rows.weight().rows * self.rows.element_bytes()
    }

    /// The piece of `each` columns that has a column.
    fn around(&self, matrix: u64, column: u64, each: u64) -> Columns {
        let first = column / each * each;
        let end = (first + each).min(self.rows.weight().columns);
        Columns { owner: self.owner, matrix, range: first..end }
    }

    /// Columns whose codes are read at once, a multiple of those of a band.
    fn columns_at_once(&self) -> u64 {
        let band = self.band_columns();
        (CODES_BYTES / self.rows.code_bytes_of_column().max(1)).next_multiple_of(band).max(band)
    }

    /// The codes of a column and its neighbours.
    fn codes(&self, matrix: u64, column: u64) -> Result<Arc<Held>> {
        let columns = self.around(matrix, column, self.columns_at_once());
        let known = || CODES.lock().get(&columns);
        if let Some(held) = known() {
            return Ok(held);
        }
        let _reading = self.reading.lock();
        if let Some(held) = known() {
            return Ok(held);
        }
        let held = Arc::new(self.rows.hold(matrix, &columns.range)?);
        CODES.lock().add(columns, held.clone(), CODES_BYTES_MAX, Held::memory);
        Ok(held)
    }

    /// The values of a band.
    fn band(&self, columns: Columns) -> Result<Arc<Vec<u8>>> {
        let known = || BANDS.lock().get(&columns);
        if let Some(band) = known() {
            return Ok(band);
        }
        let turn = (columns.range.start / self.band_columns()) as usize % TURNS;
        let _turn = self.turns.get(turn).map(|turn| turn.lock());
        if let Some(band) = known() {
            return Ok(band);
        }
        let count = columns.range.end - columns.range.start;
        let mut band = vec![0; (count * self.row_bytes()) as usize];
        self.decode(columns.matrix, columns.range.start, 0, &mut band)?;
        let band = Arc::new(band);
        BANDS.lock().add(columns, band.clone(), BANDS_BYTES_MAX, Vec::capacity);
        Ok(band)
    }

    /// Decodes columns from byte `skip` of the shown row of the first on. They are columns of one piece of codes.
    fn decode(&self, matrix: u64, first: u64, skip: usize, out: &mut [u8]) -> Result<()> {
        let codes = self.codes(matrix, first)?;
        let row_bytes = self.row_bytes() as usize;
        // Only the first shown row and the last can be cut.
        let head_bytes = if skip == 0 { 0 } else { (row_bytes - skip).min(out.len()) };
        let (head, rest) = out.split_at_mut(head_bytes);
        let tail_bytes = rest.len() % row_bytes;
        let (whole, tail) = rest.split_at_mut(rest.len() - tail_bytes);
        let mut cut = [head.len(), tail.len()].map(|bytes| vec![0; if bytes > 0 { row_bytes } else { 0 }]);
        let [head_row, tail_row] = &mut cut;
        let shown = head_row.chunks_exact_mut(row_bytes).chain(whole.chunks_exact_mut(row_bytes));
        let mut shown: Vec<&mut [u8]> = shown.chain(tail_row.chunks_exact_mut(row_bytes)).collect();
        let mut column = first;
        for shown in shown.chunks_mut(NARROW) {
            self.decode_narrow(matrix, column, &codes, shown)?;
            column += shown.len() as u64;
        }
        let [head_row, tail_row] = &cut;
        head.copy_from_slice(head_row.get(skip..skip + head.len()).unwrap_or_default());
        tail.copy_from_slice(tail_row.get(..tail.len()).unwrap_or_default());
        Ok(())
    }

    /// Decodes a few columns, each into a shown row.
    fn decode_narrow(&self, matrix: u64, first: u64, codes: &Held, shown: &mut [&mut [u8]]) -> Result<()> {
        let weight = self.rows.weight();
        let each = self.rows.element_bytes() as usize;
        let height = weight.rows as usize;
        let row_bytes = shown.len() * each + GAP_BYTES;
        let mut stored = vec![0; STRIP.min(height) * row_bytes];
        let mut known = Known::default();
        for begin in (0..height).step_by(STRIP) {
            let rows = begin..(begin + STRIP).min(height);
            for (stored, row) in stored.chunks_exact_mut(row_bytes).zip(rows.clone()) {
                let at = (matrix * weight.rows + row as u64) * weight.columns + first;
                let values = stored.get_mut(..shown.len() * each).unwrap_or_default();
                self.rows.decode(at, values, codes, &mut known)?;
            }
            match each {
                4 => exchange::<4>(&stored, row_bytes, rows, shown),
                _ => exchange::<2>(&stored, row_bytes, rows, shown),
            }
        }
        Ok(())
    }
}

/// Puts the stored rows with these numbers into shown rows.
fn exchange<const BYTES: usize>(
    stored: &[u8],
    row_bytes: usize,
    rows: Range<usize>,
    shown: &mut [&mut [u8]],
) {
    for (place, shown) in shown.chunks_mut(SQUARE).enumerate() {
        for begin in rows.clone().step_by(SQUARE) {
            let end = (begin + SQUARE).min(rows.end);
            let stored = stored.chunks_exact(row_bytes).skip(begin - rows.start).take(end - begin);
            let mut square = [[[0; BYTES]; SQUARE]; SQUARE];
            for (square, row) in square.iter_mut().zip(stored) {
                let row = row.as_chunks::<BYTES>().0.get(place * SQUARE..).unwrap_or_default();
                for (value, from) in square.iter_mut().zip(row) {
                    *value = *from;
                }
            }
            for (column, shown) in shown.iter_mut().enumerate() {
                let shown = shown.as_chunks_mut::<BYTES>().0.get_mut(begin..end).unwrap_or_default();
                for (value, row) in shown.iter_mut().zip(&square) {
                    *value = row[column];
                }
            }
        }
    }
}

impl Computed for Exchanged {
    fn bytes(&self) -> u64 {
        self.rows.bytes()
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let (columns, row_bytes) = (self.rows.weight().columns, self.row_bytes());
        let mut at = range.start;
        let mut rest = out;
        while !rest.is_empty() {
            // A shown row is a stored column.
            let (matrix, column, skip) = (at / row_bytes / columns, at / row_bytes % columns, at % row_bytes);
            let is_direct = rest.len() as u64 / row_bytes >= DIRECT_COLUMNS_MIN;
            let each = if is_direct { self.columns_at_once() } else { self.band_columns() };
            let piece = self.around(matrix, column, each);
            let left = (piece.range.end - column) * row_bytes - skip;
            let len = left.min(rest.len() as u64) as usize;
            let (now, after) = std::mem::take(&mut rest).split_at_mut(len);
            if is_direct {
                self.decode(matrix, column, skip as usize, now)?;
            } else {
                let from = ((column - piece.range.start) * row_bytes + skip) as usize;
                now.copy_from_slice(self.band(piece)?.get(from..from + len).unwrap_or_default());
            }
            at += len as u64;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use half::bf16;

    use super::Exchanged;
    use crate::format::files::safetensors::{Codes, Group, Scales, Weight, Zeros};
    use crate::model::{Dtype, Shape};
    use crate::stream::dequantize::rows::Rows;
    use crate::stream::{Computed, Segment, Stream};

    const MATRICES: u64 = 2;
    /// Several strips, of which the last is cut.
    const ROWS: u64 = 552;
    /// Several times as many columns as a read of few shown rows decodes, and a part.
    const COLUMNS: u64 = 408;

    fn stream(bytes: Vec<u8>) -> Stream {
        Stream::new(vec![Segment::literal(bytes)]).unwrap()
    }

    /// A weight with a scale for each row, its values as they are shown, by a plain loop.
    fn weight(codes: Codes, to: Dtype) -> (Exchanged, Vec<u8>) {
        let code = |row: u64, column: u64| (row * 31 + column * 7 + row * column) % 16;
        let scale = |row: u64| (row % 61 + 1) as f32 / 64.0;
        let rows = MATRICES * ROWS;
        let mut bytes = Vec::new();
        for row in (0..rows).step_by(if codes == Codes::I8 { 1 } else { 8 }) {
            for column in 0..COLUMNS {
                match codes {
                    Codes::I8 => bytes.push(code(row, column) as u8),
                    _ => {
                        let word = (0..8).map(|place| (code(row + place, column) as u32) << (4 * place));
                        bytes.extend(word.sum::<u32>().to_le_bytes());
                    }
                }
            }
        }
        let scales: Vec<u8> = (0..rows).flat_map(|row| scale(row).to_le_bytes()).collect();
        let mut shown = Vec::new();
        for matrix in 0..MATRICES {
            for column in 0..COLUMNS {
                for row in matrix * ROWS..(matrix + 1) * ROWS {
                    let value = code(row, column) as f32 * scale(row);
                    match to {
                        Dtype::F32 => shown.extend(value.to_le_bytes()),
                        _ => shown.extend(bf16::from_f32(value).to_le_bytes()),
                    }
                }
            }
        }
        let weight = Weight {
            name: "w".into(),
            shape: Shape::new(&[MATRICES, COLUMNS, ROWS]).unwrap(),
            codes_name: "codes".into(),
            scales_name: "scales".into(),
            zeros_name: None,
            codes,
            scales: Scales::Plain,
            zeros: Zeros::Plain,
            matrices: MATRICES,
            rows: ROWS,
            columns: COLUMNS,
            is_transposed: true,
            row_group: Group::Of(1),
            column_group: Group::Of(COLUMNS),
            table_columns: 1,
            table_rows: ROWS,
            divisor: 1.0,
            parts: Vec::new(),
        };
        let parts = HashMap::from([
            ("codes".to_owned(), (stream(bytes), Dtype::I8)),
            ("scales".to_owned(), (stream(scales), Dtype::F32)),
        ]);
        (Exchanged::new(Rows::new(Arc::new(weight), &parts, to).unwrap()).unwrap(), shown)
    }

    #[test]
    fn any_range_of_a_transposed_weight_equals_a_plain_loop() {
        for (codes, to) in [
            (Codes::I8, Dtype::Bf16),
            (Codes::Words { bits: 4 }, Dtype::F32),
            (Codes::Words { bits: 4 }, Dtype::Bf16),
        ] {
            let (exchanged, shown) = weight(codes, to);
            let bytes = shown.len() as u64;
            assert_eq!(exchanged.bytes(), bytes);
            let row = ROWS * to.bytes();
            let mut ranges = vec![0..bytes, 1..bytes - 1, row..2 * row, 0..40 * row, row - 1..50 * row + 3];
            ranges.extend((0..60).map(|at| {
                let first = at * 7919 * row / 8 % bytes;
                first..(first + 1 + at * at * 211 % (200 * row)).min(bytes)
            }));
            for range in ranges {
                let mut found = vec![0; (range.end - range.start) as usize];
                exchanged.read(range.clone(), &mut found).unwrap();
                assert!(found == shown[range.start as usize..range.end as usize], "{range:?} of {row} each");
            }
        }
    }
}
