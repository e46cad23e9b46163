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
use crate::stream::dequantize::rows::{Held, Known, Rows};
use crate::trace;

/// Bytes of a band of decoded columns. Longer pieces of rows cost fewer reads.
const BAND_BYTES: u64 = 32 << 20;
/// Columns of a band are a multiple of this.
const BAND_COLUMNS: u64 = 64;
/// Bytes of all bands that are kept. At least one is kept.
const BANDS_BYTES_MAX: usize = 160 << 20;
/// Stored rows that change places at a time.
const SQUARE: usize = 16;
/// Columns whose shown rows are filled at a time, so that the pages of these stay in the tables of the processor.
const NARROW: u64 = 256;

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
static BANDS: Mutex<Bands> = Mutex::new(Bands { kept: VecDeque::new(), spare: Vec::new() });

struct Bands {
    kept: VecDeque<Arc<Band>>,
    /// The memory of a band that was dropped: fresh pages cost as much as a quarter of a decode.
    spare: Vec<u8>,
}
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
        let mut bands = BANDS.lock();
        bands.kept.retain(|band| band.owner != self.owner);
        if bands.kept.is_empty() {
            bands.spare = Vec::new();
        }
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
        let known = || BANDS.lock().kept.iter().find(has).cloned();
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
        let spare = std::mem::take(&mut BANDS.lock().spare);
        let values = self.decode(matrix, &columns, spare)?;
        let band = Arc::new(Band { owner: self.owner, matrix, columns, values });
        let mut bands = BANDS.lock();
        let Bands { kept, spare } = &mut *bands;
        kept.push_back(band.clone());
        while kept.len() > 1
            && kept.iter().map(|band| band.values.capacity()).sum::<usize>() > BANDS_BYTES_MAX
        {
            let dropped = kept.pop_front().and_then(Arc::into_inner).map(|band| band.values);
            if let Some(values) = dropped.filter(|values| values.capacity() as u64 <= 2 * BAND_BYTES) {
                *spare = values;
            }
        }
        Ok(band)
    }

    /// Decodes a band on several cores: its readers wait for it. `out` is memory to use again.
    fn decode(&self, matrix: u64, columns: &Range<u64>, mut out: Vec<u8>) -> Result<Vec<u8>> {
        let column_bytes = (self.rows.weight().rows * self.rows.element_bytes()) as usize;
        let count = columns.end - columns.start;
        // Once for all cores: whole rows follow each other.
        let held = self.rows.hold(matrix, columns)?;
        out.resize(count as usize * column_bytes, 0);
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let each = count.div_ceil(threads as u64).next_multiple_of(NARROW);
        let begins = (columns.start..columns.end).step_by(each as usize);
        let parts = Mutex::new(begins.zip(out.chunks_mut(each as usize * column_bytes)));
        let first_error = Mutex::new(None);
        let work = || {
            while first_error.lock().is_none() {
                let Some((begin, out)) = next_of(&parts) else { return };
                let part = begin..(begin + each).min(columns.end);
                let decoded = self.decode_columns(matrix, &part, &held, out);
                if let Err(error) = decoded {
                    first_error.lock().get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..count.div_ceil(each) {
                // If no thread can be started, this one does the work alone.
                let started = std::thread::Builder::new().spawn_scoped(scope, trace::carried(work));
                started.map(drop).unwrap_or_else(|error| log::debug!("decoding a weight: {error}"));
            }
            work();
        });
        first_error.into_inner().map_or(Ok(out), Err)
    }

    fn decode_columns(&self, matrix: u64, columns: &Range<u64>, held: &Held, out: &mut [u8]) -> Result<()> {
        let weight = self.rows.weight();
        let each = self.rows.element_bytes() as usize;
        let height = weight.rows as usize;
        let mut known = Known::default();
        let mut stored = vec![0; SQUARE * NARROW as usize * each];
        let narrow = out.chunks_mut(NARROW as usize * height * each);
        for (begin, out) in (columns.start..columns.end).step_by(NARROW as usize).zip(narrow) {
            let width = (columns.end - begin).min(NARROW) as usize;
            for first in (0..height).step_by(SQUARE) {
                let count = SQUARE.min(height - first);
                for (row, i) in stored.chunks_exact_mut(width * each).zip(0..count) {
                    let row_number = matrix * weight.rows + (first + i) as u64;
                    self.rows.decode(row_number * weight.columns + begin, row, held, &mut known)?;
                }
                let place = Place { width, count, first, height };
                match each {
                    4 => exchange::<4>(&stored, place, out),
                    _ => exchange::<2>(&stored, place, out),
                }
            }
        }
        Ok(())
    }
}

/// The next item. The lock is released before the item is used.
fn next_of<T>(items: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    items.lock().next()
}

/// Where stored rows are shown.
struct Place {
    /// The values of a stored row.
    width: usize,
    /// The number of stored rows, at most a square, and the first of them.
    count: usize,
    first: usize,
    /// The values of a shown row.
    height: usize,
}

/// Puts stored rows into shown rows.
fn exchange<const BYTES: usize>(stored: &[u8], place: Place, out: &mut [u8]) {
    let Place { width, count, first, height } = place;
    let (stored, out) = (stored.as_chunks::<BYTES>().0, out.as_chunks_mut::<BYTES>().0);
    for (place, shown) in out.chunks_mut(SQUARE * height).enumerate() {
        let column = place * SQUARE;
        let rows = stored.chunks_exact(width).take(count);
        let rows = rows.map(|row| row.get(column..).unwrap_or_default());
        let mut squares = [[[0; BYTES]; SQUARE]; SQUARE];
        for (square, row) in squares.iter_mut().zip(rows) {
            for (value, from) in square.iter_mut().zip(row) {
                *value = *from;
            }
        }
        for (column, shown) in shown.chunks_exact_mut(height).enumerate().take(SQUARE) {
            let shown = shown.get_mut(first..first + count).unwrap_or_default();
            for (value, square) in shown.iter_mut().zip(&squares) {
                *value = square[column];
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
