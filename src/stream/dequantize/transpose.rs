//! Shows the matrices of a weight with rows and columns exchanged.
//!
//! A row that is shown has a value of every stored row. So the stored rows are decoded for a band of columns, and the band is
//! kept, since the next read usually continues in it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::model::Result;
use crate::stream::Computed;
use crate::stream::dequantize::rows::{Known, Rows};

/// Bytes of a band of decoded columns. Longer pieces of rows cost fewer reads.
const BAND_BYTES: u64 = 32 << 20;
/// Columns of a band are a multiple of this.
const BAND_COLUMNS: u64 = 64;
/// Bytes of all bands that are kept. At least one is kept.
const BANDS_BYTES_MAX: usize = 160 << 20;
/// Stored rows that change places at a time.
const SQUARE: usize = 16;

/// Columns of a matrix, in the order in which they are shown.
struct Band {
    /// The number of the weight that they belong to.
    owner: u64,
    matrix: u64,
    columns: Range<u64>,
    values: Vec<u8>,
}

/// The last bands of all weights: a file has hundreds of weights, and is read from one to the next. Held while no other lock is
/// taken.
static BANDS: Mutex<VecDeque<Arc<Band>>> = Mutex::new(VecDeque::new());
/// The number of the next owner of bands.
static NEXT_OWNER: AtomicU64 = AtomicU64::new(0);

/// The values of a weight, rows and columns exchanged.
pub(super) struct Exchanged {
    rows: Rows,
    owner: u64,
    /// Held while a band is decoded, reads of the disk included: readers beside each other want the same band.
    turn: Mutex<()>,
}

impl Drop for Exchanged {
    fn drop(&mut self) {
        BANDS.lock().retain(|band| band.owner != self.owner);
    }
}

impl Exchanged {
    pub fn new(rows: Rows) -> Exchanged {
        Exchanged { rows, owner: NEXT_OWNER.fetch_add(1, Ordering::Relaxed), turn: Mutex::new(()) }
    }

    /// Columns of a band.
    fn band_columns(&self) -> u64 {
        let weight = self.rows.weight();
        let column = weight.rows.saturating_mul(self.rows.element_bytes()).max(1);
        (BAND_BYTES / column)
            .next_multiple_of(BAND_COLUMNS)
            .clamp(BAND_COLUMNS, weight.columns.max(BAND_COLUMNS))
    }

    /// The band that has a column.
    fn band(&self, matrix: u64, column: u64) -> Result<Arc<Band>> {
        let has = |band: &&Arc<Band>| {
            band.owner == self.owner && band.matrix == matrix && band.columns.contains(&column)
        };
        let known = || BANDS.lock().iter().find(has).cloned();
        if let Some(band) = known() {
            return Ok(band);
        }
        let _turn = self.turn.lock();
        if let Some(band) = known() {
            return Ok(band);
        }
        let each = self.band_columns();
        let first = column / each * each;
        let columns = first..(first + each).min(self.rows.weight().columns);
        let values = self.decode(matrix, &columns)?;
        let band = Arc::new(Band { owner: self.owner, matrix, columns, values });
        let mut bands = BANDS.lock();
        bands.push_back(band.clone());
        while bands.len() > 1 && bands.iter().map(|band| band.values.len()).sum::<usize>() > BANDS_BYTES_MAX {
            bands.pop_front();
        }
        Ok(band)
    }

    fn decode(&self, matrix: u64, columns: &Range<u64>) -> Result<Vec<u8>> {
        let weight = self.rows.weight();
        let each = self.rows.element_bytes() as usize;
        let width = (columns.end - columns.start) as usize;
        let height = weight.rows as usize;
        let is_whole = width as u64 == weight.columns;
        let mut known = Known::default();
        let mut out = vec![0; width * height * each];
        let mut stored = vec![0; SQUARE * width * each];
        for first in (0..height).step_by(SQUARE) {
            let count = SQUARE.min(height - first);
            for (i, row) in stored.chunks_exact_mut(width * each).take(count).enumerate() {
                let row_number = matrix * weight.rows + (first + i) as u64;
                let ahead = if is_whole { (height - first - i - 1) * width } else { 0 };
                let begin = row_number * weight.columns + columns.start;
                self.rows.decode(begin, row, ahead as u64, &mut known)?;
            }
            match each {
                4 => exchange::<4>(&stored, width, count, first, height, &mut out),
                _ => exchange::<2>(&stored, width, count, first, height, &mut out),
            }
        }
        Ok(out)
    }
}

/// Puts `count` stored rows of `width` values, from the row `first` on, into shown rows of `height` values.
fn exchange<const BYTES: usize>(
    stored: &[u8],
    width: usize,
    count: usize,
    first: usize,
    height: usize,
    out: &mut [u8],
) {
    let (stored, out) = (stored.as_chunks::<BYTES>().0, out.as_chunks_mut::<BYTES>().0);
    for (column, shown) in out.chunks_exact_mut(height).take(width).enumerate() {
        let shown = shown.get_mut(first..first + count).unwrap_or_default();
        for (value, row) in shown.iter_mut().zip(stored.chunks_exact(width)) {
            if let Some(from) = row.get(column) {
                *value = *from;
            }
        }
    }
}

impl Computed for Exchanged {
    fn bytes(&self) -> u64 {
        self.rows.bytes()
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let weight = self.rows.weight();
        let row_bytes = weight.rows * self.rows.element_bytes();
        let mut at = range.start;
        let mut rest = out;
        while !rest.is_empty() {
            // A shown row is a stored column.
            let shown = at / row_bytes;
            let band = self.band(shown / weight.columns, shown % weight.columns)?;
            let begin = (band.matrix * weight.columns + band.columns.start) * row_bytes;
            let from = band.values.get((at - begin) as usize..).unwrap_or_default();
            let len = from.len().min(rest.len());
            let (now, after) = std::mem::take(&mut rest).split_at_mut(len);
            now.copy_from_slice(from.get(..len).unwrap_or_default());
            at += len as u64;
            rest = after;
        }
        Ok(())
    }
}
