//! Shows the matrices of a weight with rows and columns exchanged.
//!
//! A row that is shown has a value of every stored row. So the stored rows are decoded for a band of columns, and the band is
//! kept, since the next read usually continues in it.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::model::Result;
use crate::stream::Computed;
use crate::stream::dequantize::rows::Rows;

/// Bytes of a band of decoded columns.
const BAND_BYTES: u64 = 4 << 20;
/// Fewest columns of a band: shorter pieces of rows cost more than their values.
const BAND_COLUMNS_MIN: u64 = 64;
/// Bands that are kept for readers at different places.
const BANDS_MAX: usize = 4;
/// Side of the squares in which values change places.
const SQUARE: usize = 16;

/// Columns of a matrix, in the order in which they are shown.
struct Band {
    matrix: u64,
    columns: Range<u64>,
    values: Vec<u8>,
}

/// The values of a weight, rows and columns exchanged.
pub(super) struct Exchanged {
    rows: Rows,
    /// The last bands. Held while no other lock is taken, and not while a band is decoded.
    bands: Mutex<Vec<Arc<Band>>>,
}

impl Exchanged {
    pub fn new(rows: Rows) -> Exchanged {
        Exchanged { rows, bands: Mutex::default() }
    }

    /// Columns of a band.
    fn band_columns(&self) -> u64 {
        let weight = self.rows.weight();
        let column = weight.rows.saturating_mul(self.rows.element_bytes()).max(1);
        (BAND_BYTES / column).next_multiple_of(BAND_COLUMNS_MIN).clamp(BAND_COLUMNS_MIN, weight.columns.max(1))
    }

    /// The band that has a column.
    fn band(&self, matrix: u64, column: u64) -> Result<Arc<Band>> {
        let has = |band: &&Arc<Band>| band.matrix == matrix && band.columns.contains(&column);
        let known = self.bands.lock().unwrap_or_else(PoisonError::into_inner).iter().find(has).cloned();
        if let Some(band) = known {
            return Ok(band);
        }
        let each = self.band_columns();
        let first = column / each * each;
        let columns = first..(first + each).min(self.rows.weight().columns);
        let values = self.decode(matrix, &columns)?;
        let band = Arc::new(Band { matrix, columns, values });
        let mut bands = self.bands.lock().unwrap_or_else(PoisonError::into_inner);
        if bands.len() >= BANDS_MAX {
            bands.remove(0);
        }
        bands.push(band.clone());
        Ok(band)
    }

    fn decode(&self, matrix: u64, columns: &Range<u64>) -> Result<Vec<u8>> {
        let weight = self.rows.weight();
        let each = self.rows.element_bytes() as usize;
        let width = (columns.end - columns.start) as usize;
        let height = weight.rows as usize;
        let mut out = vec![0; width * height * each];
        let mut stored = vec![0; SQUARE * width * each];
        for first in (0..height).step_by(SQUARE) {
            let count = SQUARE.min(height - first);
            for (i, row) in stored.chunks_exact_mut(width * each).take(count).enumerate() {
                let row_number = matrix * weight.rows + (first + i) as u64;
                self.rows.decode(row_number * weight.columns + columns.start, row)?;
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
