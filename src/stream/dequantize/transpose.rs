//! Shows the matrices of a weight with rows and columns exchanged.
//!
//! A row that is shown has a value of every stored row. So the codes of many columns are read at once, with their scales, and
//! kept. A read takes those of its columns in words, each with the codes of several stored rows, and exchanges the words. Then
//! the codes of a shown row follow each other and are decoded as those of any other row.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::codec::dequantize::{Alphabet, Row, Spread};
use crate::format::files::safetensors::Codes;
use crate::model::{Error, Result};
use crate::stream::Computed;
use crate::stream::dequantize::rows::{Groups, Held, Rows, read_elements};

/// Bytes of codes and numbers that are read at once. Longer pieces of rows cost fewer reads.
const HELD_BYTES: u64 = 32 << 20;
/// Bytes that are kept. Those of at least one piece are.
const HELD_BYTES_MAX: usize = 160 << 20;
/// Most rows of a weight and of its tables, of which each takes memory. Layers of models have less than 2^18.
const ROWS_MAX: u64 = 1 << 22;
/// Bytes of shown codes that are made at a time, unless one shown row has more.
const SHOWN_BYTES: usize = 256 << 10;
/// Columns that are exchanged at a time.
const COLUMNS_MAX: usize = 256;
/// Rows of words and columns that change places at a time: a row has a line of the cache.
const SQUARE: usize = 16;
/// Bytes between the shown rows. Without them the rows compete for the same sets of the cache.
const GAP_BYTES: usize = 64;
const WORD_BYTES: usize = 4;

/// Columns of a matrix of a weight.
#[derive(Clone, PartialEq)]
struct Columns {
    /// The number of the weight.
    owner: u64,
    matrix: u64,
    range: Range<u64>,
}

/// The codes that were used last, of all weights: a file has hundreds of weights, and is read from one to the next.
struct Kept {
    all: VecDeque<(Columns, Arc<Held>)>,
    /// Memory of codes that are no longer kept. The system would give fresh pages, one by one.
    spare: Vec<u8>,
}

impl Kept {
    fn get(&mut self, columns: &Columns) -> Option<Arc<Held>> {
        let at = self.all.iter().position(|(of, _)| of == columns)?;
        let used = self.all.remove(at)?;
        let found = used.1.clone();
        self.all.push_back(used);
        Some(found)
    }

    /// Adds codes. Those that were used longest ago go while there are too many.
    fn add(&mut self, columns: Columns, held: Arc<Held>) {
        self.all.push_back((columns, held));
        while self.all.len() > 1
            && self.all.iter().map(|(_, held)| held.memory()).sum::<usize>() > HELD_BYTES_MAX
        {
            let oldest = self.all.pop_front().and_then(|(_, held)| Arc::into_inner(held));
            if let Some(oldest) = oldest {
                self.spare = oldest.into_memory();
            }
        }
    }
}

/// Held while no other lock is taken.
static KEPT: Mutex<Kept> = Mutex::new(Kept { all: VecDeque::new(), spare: Vec::new() });

/// The number of the next owner of columns.
static NEXT_OWNER: AtomicU64 = AtomicU64::new(0);

/// Memory for the rows that a read shows.
#[derive(Default)]
struct Shown {
    /// Some rows of words of the columns, and the codes of one row.
    words: Vec<u32>,
    codes: Vec<u8>,
    /// The words of each column, and the bytes from one to the next.
    shown: Vec<u8>,
    row_bytes: usize,
    /// The numbers of a column, and those of each value if the rows are listed.
    scales: Vec<f32>,
    zeros: Vec<f32>,
    scale_list: Vec<f32>,
    zero_list: Vec<f32>,
}

thread_local! {
    static SHOWN: RefCell<Shown> = RefCell::default();
}

/// The values of a weight, rows and columns exchanged.
pub(super) struct Exchanged {
    rows: Rows,
    /// The alphabet of a shown row, and the bits of a code in its words.
    alphabet: Alphabet,
    bits: u32,
    owner: u64,
    /// Held while codes are read: readers beside each other want the same.
    reading: Mutex<()>,
}

impl Drop for Exchanged {
    fn drop(&mut self) {
        let mut kept = KEPT.lock();
        kept.all.retain(|(columns, _)| columns.owner != self.owner);
        if kept.all.is_empty() {
            kept.spare = Vec::new();
        }
    }
}

impl Exchanged {
    /// Fails with `NotSupported` for more than 2^22 rows of codes or of scales, and for codes of which no model has such
    /// weights.
    pub fn new(rows: Rows) -> Result<Exchanged> {
        if rows.weight().rows.max(rows.weight().table_rows) > ROWS_MAX {
            return Err(Error::unsupported(
                "a transposed weight of more than 2^22 rows of codes or of scales",
            ));
        }
        let (alphabet, bits) = match rows.weight().codes {
            Codes::E2m1 => (Alphabet::e2m1(), 4),
            Codes::Awq | Codes::Words { bits: 4 } => (Alphabet::unsigned(), 4),
            Codes::Words { bits: bits @ (2 | 8) } => (Alphabet::Byte { shift: 0, mask: 255 }, bits),
            _ => return Err(Error::unsupported("a transposed weight of such codes")),
        };
        let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
        Ok(Exchanged { rows, alphabet, bits, owner, reading: Mutex::default() })
    }

    /// Stored rows whose codes a word has.
    fn rows_of_word(&self) -> u64 {
        u64::from(u32::BITS / self.bits)
    }

    /// The columns whose codes are read together with a column.
    fn around(&self, matrix: u64, column: u64) -> Columns {
        let fitting = HELD_BYTES / self.rows.bytes_of_column().max(1);
        // Whole lines of the cache of all codes.
        let each = if fitting < 128 { fitting.max(1) } else { fitting / 128 * 128 };
        let first = column / each * each;
        let end = first.saturating_add(each).min(self.rows.weight().columns);
        Columns { owner: self.owner, matrix, range: first..end }
    }

    /// The codes of some columns.
    fn held(&self, columns: &Columns) -> Result<Arc<Held>> {
        let known = || KEPT.lock().get(columns);
        if let Some(held) = known() {
            return Ok(held);
        }
        let _reading = self.reading.lock();
        if let Some(held) = known() {
            return Ok(held);
        }
        let memory = std::mem::take(&mut KEPT.lock().spare);
        let held = Arc::new(self.rows.hold(columns.matrix, &columns.range, memory)?);
        KEPT.lock().add(columns.clone(), held.clone());
        Ok(held)
    }

    /// Decodes whole elements from an element on.
    fn decode(&self, first: u64, out: &mut [u8], shown: &mut Shown) -> Result<()> {
        let weight = self.rows.weight();
        let each = self.rows.to().bytes();
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            // A shown row is a stored column.
            let (column, row) = (at / weight.rows, at % weight.rows);
            let (matrix, column) = (column / weight.columns, column % weight.columns);
            let piece = self.around(matrix, column);
            let values = rest.len() as u64 / each;
            let (rows, columns) = if row == 0 && values >= weight.rows {
                (0..weight.rows, column..(column + values / weight.rows).min(piece.range.end))
            } else {
                (row..(row + values).min(weight.rows), column..column + 1)
            };
            let held = self.held(&piece)?;
            let columns = columns.start..columns.end.min(columns.start + self.columns_at_once(&rows));
            self.exchange(&held, matrix, &columns, &rows, shown)?;
            let row_bytes = ((rows.end - rows.start) * each) as usize;
            let bytes = (columns.end - columns.start) as usize * row_bytes;
            let (now, after) = std::mem::take(&mut rest).split_at_mut(bytes);
            self.decode_shown(&held, &columns, &rows, shown, now)?;
            at += bytes as u64 / each;
            rest = after;
        }
        Ok(())
    }

    /// The rows of words that have some rows.
    fn words_of(&self, rows: &Range<u64>) -> Range<u64> {
        rows.start / self.rows_of_word()..rows.end.div_ceil(self.rows_of_word())
    }

    fn row_bytes_of(&self, rows: &Range<u64>) -> usize {
        let words = self.words_of(rows);
        (words.end - words.start) as usize * WORD_BYTES + GAP_BYTES
    }

    fn columns_at_once(&self, rows: &Range<u64>) -> u64 {
        (SHOWN_BYTES / self.row_bytes_of(rows)).clamp(1, COLUMNS_MAX) as u64
    }

    /// Puts the codes of each of these columns behind each other.
    fn exchange(
        &self,
        held: &Held,
        matrix: u64,
        columns: &Range<u64>,
        rows: &Range<u64>,
        shown: &mut Shown,
    ) -> Result<()> {
        let Shown { words, codes, shown, row_bytes, .. } = shown;
        let (weight, width) = (self.rows.weight(), (columns.end - columns.start) as usize);
        *row_bytes = self.row_bytes_of(rows);
        shown.resize(width * *row_bytes, 0);
        let all = self.words_of(rows);
        for begin in all.clone().step_by(SQUARE) {
            let end = all.end.min(begin + SQUARE as u64);
            words.clear();
            words.resize(SQUARE * width, 0);
            for (word, to) in (begin..end).zip(words.chunks_exact_mut(width)) {
                self.words(held, matrix * weight.rows + word * self.rows_of_word(), columns, codes, to)?;
            }
            let from = (begin - all.start) as usize * WORD_BYTES;
            let until = (end - all.start) as usize * WORD_BYTES;
            for (place, shown) in shown.chunks_mut(SQUARE * *row_bytes).enumerate() {
                let mut square = [[0; SQUARE]; SQUARE];
                for (square, row) in square.iter_mut().zip(words.chunks_exact(width)) {
                    let row = row.get(place * SQUARE..).unwrap_or_default();
                    for (word, from) in square.iter_mut().zip(row) {
                        *word = *from;
                    }
                }
                for (column, shown) in shown.chunks_exact_mut(*row_bytes).enumerate().take(SQUARE) {
                    let line: [u32; SQUARE] = std::array::from_fn(|row| square[row][column]);
                    let to = shown.get_mut(from..until).unwrap_or_default();
                    for (to, word) in to.as_chunks_mut().0.iter_mut().zip(line) {
                        *to = word.to_le_bytes();
                    }
                }
            }
        }
        Ok(())
    }

    /// The words of some columns, each with the codes of some rows from `first` on, that of the first in the lowest bits. The
    /// words are 0.
    fn words(
        &self,
        held: &Held,
        first: u64,
        columns: &Range<u64>,
        codes: &mut Vec<u8>,
        words: &mut [u32],
    ) -> Result<()> {
        let weight = self.rows.weight();
        let left = weight.rows - first % weight.rows;
        let rows = first..first + left.min(self.rows_of_word());
        for (row, shift) in rows.zip((0..).step_by(self.bits as usize)) {
            let (bytes, skip) = self.rows.held_codes(held, row, columns)?;
            codes.clear();
            match weight.codes {
                // These are such words.
                Codes::Words { .. } => {
                    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
                        *word = u32::from_le_bytes(*bytes);
                    }
                    return Ok(());
                }
                Codes::Awq => codes.extend(bytes.as_chunks().0.iter().flat_map(|word| {
                    let word = u32::from_le_bytes(*word);
                    [0, 16, 4, 20, 8, 24, 12, 28].map(|shift| (word >> shift) as u8 & 15)
                })),
                _ => codes.extend(bytes.iter().flat_map(|pair| [pair & 15, pair >> 4])),
            }
            for (word, code) in words.iter_mut().zip(codes.get(skip..).unwrap_or_default()) {
                *word |= u32::from(*code) << shift;
            }
        }
        Ok(())
    }

    /// Decodes columns whose codes have been exchanged.
    fn decode_shown(
        &self,
        held: &Held,
        columns: &Range<u64>,
        rows: &Range<u64>,
        shown: &mut Shown,
        out: &mut [u8],
    ) -> Result<()> {
        let Shown { codes, shown, row_bytes, scales, zeros, scale_list, zero_list, .. } = shown;
        let to = self.rows.to();
        let first_group = match self.rows.row_groups() {
            Groups::Of(len) => rows.start / len,
            Groups::Listed(_) => 0,
        };
        let skip = (rows.start % self.rows_of_word()) as usize;
        let mut known = None;
        let outs = out.chunks_exact_mut((rows.end - rows.start) as usize * to.bytes() as usize);
        for ((column, shown), out) in columns.clone().zip(shown.chunks_exact(*row_bytes)).zip(outs) {
            let table_column = self.rows.table_column(column);
            if known != Some(table_column) {
                held.numbers().column(table_column, first_group, scales, zeros);
                if let Groups::Listed(list) = self.rows.row_groups() {
                    let list = list.get(rows.start as usize..rows.end as usize).unwrap_or_default();
                    gather(list, scales, scale_list);
                    if held.numbers().has_zeros() {
                        gather(list, zeros, zero_list);
                    }
                }
                known = Some(table_column);
            }
            let spread = |numbers, list| match self.rows.row_groups() {
                Groups::Listed(_) => Spread::Each(list),
                Groups::Of(1) => Spread::Each(numbers),
                Groups::Of(len) => {
                    Spread::Groups { len: *len as usize, first: (len - rows.start % len) as usize, numbers }
                }
            };
            let (shown, skip) = match self.bits {
                2 => {
                    codes.clear();
                    codes.extend(shown.iter().flat_map(|byte| [0, 2, 4, 6].map(|shift| byte >> shift & 3)));
                    (codes.as_slice(), skip)
                }
                _ => (shown, skip),
            };
            let values = self.alphabet.unit().1;
            Row {
                alphabet: &self.alphabet,
                codes: shown.get(skip / values..).unwrap_or_default(),
                skip: skip % values,
                scales: spread(scales, scale_list),
                zeros: held.numbers().has_zeros().then(|| spread(zeros, zero_list)),
                factor: self.rows.factor(),
                divisor: self.rows.weight().divisor,
            }
            .decode(to, out)?;
        }
        Ok(())
    }
}

/// The numbers at the places of a list, all of which have one.
fn gather(list: &[u32], numbers: &[f32], to: &mut Vec<f32>) {
    to.clear();
    to.extend(list.iter().map(|place| numbers.get(*place as usize).copied().unwrap_or(f32::NAN)));
}

impl Computed for Exchanged {
    fn bytes(&self) -> u64 {
        self.rows.bytes()
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        // Taken, not borrowed: the codes may themselves be computed.
        let mut shown = SHOWN.take();
        let each = self.rows.to().bytes();
        let read = read_elements(each, range, out, |first, out| self.decode(first, out, &mut shown));
        SHOWN.set(shown);
        read
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
    /// Several rows of words of each kind, of which the last squares are cut.
    const ROWS: u64 = 560;
    /// Columns of several squares, and a part.
    const COLUMNS: u64 = 408;
    const E2M1: [f32; 16] =
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

    fn stream(bytes: Vec<u8>) -> Stream {
        Stream::new(vec![Segment::literal(bytes)]).unwrap()
    }

    /// The groups of rows that a weight has.
    #[derive(Clone, Copy, Debug)]
    enum RowGroups {
        Of(u64),
        /// As `Of` says, but by a list.
        ListedOf(u64),
        Listed(fn(u64) -> u64),
    }

    impl RowGroups {
        fn of(self, row: u64) -> u64 {
            match self {
                RowGroups::Of(len) | RowGroups::ListedOf(len) => row / len,
                RowGroups::Listed(of) => of(row),
            }
        }
    }

    /// A weight with scales and zero points for each group of rows and each 24 columns, and its values as they are shown, by
    /// a plain loop.
    fn weight(codes: Codes, groups: RowGroups, has_zeros: bool, to: Dtype) -> (Exchanged, Vec<u8>) {
        const EACH: u64 = 24;
        let bits = if let Codes::Words { bits } = codes { bits } else { 4 };
        let code = |row: u64, column: u64| ((row * 31 + column * 7 + row * column / 3) % (1 << bits)) as u32;
        let (table_rows, table_columns) =
            ((0..ROWS).map(|row| groups.of(row)).max().unwrap() + 1, COLUMNS / EACH);
        let number = |at: u64| at * 7919 / 13;
        let scale = |at: u64| (number(at) % 61 + 1) as f32 / 64.0;
        let zero = |at: u64| if has_zeros { (number(at) % 17) as f32 } else { 0.0 };
        let mut bytes = Vec::new();
        let rows = MATRICES * ROWS;
        match codes {
            Codes::Words { .. } => {
                let each = u64::from(32 / bits);
                for row in (0..rows).step_by(each as usize) {
                    for column in 0..COLUMNS {
                        let word = (0..each).map(|place| code(row + place, column) << (bits * place as u32));
                        bytes.extend(word.sum::<u32>().to_le_bytes());
                    }
                }
            }
            Codes::Awq => {
                for (row, eight) in (0..rows).flat_map(|row| (0..COLUMNS / 8).map(move |eight| (row, eight)))
                {
                    let places = [0, 4, 1, 5, 2, 6, 3, 7].into_iter().enumerate();
                    let word =
                        places.map(|(value, place)| code(row, eight * 8 + value as u64) << (4 * place));
                    bytes.extend(word.sum::<u32>().to_le_bytes());
                }
            }
            _ => {
                for (row, pair) in (0..rows).flat_map(|row| (0..COLUMNS / 2).map(move |pair| (row, pair))) {
                    bytes.push((code(row, 2 * pair) | code(row, 2 * pair + 1) << 4) as u8);
                }
            }
        }
        let mut shown = Vec::new();
        for (matrix, column) in
            (0..MATRICES).flat_map(|matrix| (0..COLUMNS).map(move |column| (matrix, column)))
        {
            for row in 0..ROWS {
                let code = code(matrix * ROWS + row, column);
                let value = if codes == Codes::E2m1 { E2M1[code as usize] } else { code as f32 };
                let at = (matrix * table_rows + groups.of(row)) * table_columns + column / EACH;
                let value = (value - zero(at)) * scale(at);
                match to {
                    Dtype::F32 => shown.extend(value.to_le_bytes()),
                    _ => shown.extend(bf16::from_f32(value).to_le_bytes()),
                }
            }
        }
        let weight = Weight {
            name: "w".into(),
            shape: Shape::new(&[MATRICES, COLUMNS, ROWS]).unwrap(),
            codes_name: "codes".into(),
            scales_name: "scales".into(),
            zeros_name: has_zeros.then(|| "zeros".into()),
            codes,
            scales: Scales::Plain,
            zeros: Zeros::Plain,
            matrices: MATRICES,
            rows: ROWS,
            columns: COLUMNS,
            is_transposed: true,
            row_group: match groups {
                RowGroups::Of(len) => Group::Of(len),
                _ => Group::Listed("list".into()),
            },
            column_group: Group::Of(EACH),
            table_columns,
            table_rows,
            divisor: 1.0,
            parts: Vec::new(),
        };
        let table = |number: &dyn Fn(u64) -> f32| {
            let all = (0..MATRICES * table_rows * table_columns).flat_map(|at| number(at).to_le_bytes());
            (stream(all.collect()), Dtype::F32)
        };
        let list = (0..ROWS).flat_map(|row| (groups.of(row) as u32).to_le_bytes()).collect();
        let parts = HashMap::from([
            ("codes".to_owned(), (stream(bytes), Dtype::I8)),
            ("scales".to_owned(), table(&scale)),
            ("zeros".to_owned(), table(&zero)),
            ("list".to_owned(), (stream(list), Dtype::I32)),
        ]);
        (Exchanged::new(Rows::new(Arc::new(weight), &parts, to).unwrap()).unwrap(), shown)
    }

    #[test]
    fn any_range_of_a_transposed_weight_equals_a_plain_loop() {
        let mixed = RowGroups::Listed(|row| row * 7 % 11);
        for (codes, groups, has_zeros, to) in [
            (Codes::Words { bits: 4 }, RowGroups::Of(32), true, Dtype::Bf16),
            (Codes::Words { bits: 4 }, RowGroups::ListedOf(96), true, Dtype::Bf16),
            (Codes::Words { bits: 4 }, mixed, true, Dtype::Bf16),
            (Codes::Words { bits: 4 }, RowGroups::Of(24), false, Dtype::F32),
            (Codes::Words { bits: 2 }, RowGroups::Of(64), true, Dtype::Bf16),
            (Codes::Words { bits: 8 }, mixed, false, Dtype::F32),
            (Codes::Awq, RowGroups::Of(128), true, Dtype::Bf16),
            (Codes::E2m1, RowGroups::Of(1), false, Dtype::Bf16),
        ] {
            let (exchanged, shown) = weight(codes.clone(), groups, has_zeros, to);
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
                let is_same = found == shown[range.start as usize..range.end as usize];
                assert!(is_same, "{codes:?} {groups:?} {to}: {range:?} of {row} each");
            }
        }
    }
}
