//! Elements to which the product of two narrow matrices is added when they are read.
//!
//! The rows of the left matrix that a range needs are read each time. The right one, which all ranges need, is kept in
//! tiles of columns (`tiles.rs`).

use std::ops::Range;
use std::sync::Arc;

use crate::codec::low_rank::{Panels, Product};
use crate::model::{Dtype, Error, Result};
use crate::store::Object;
use crate::stream::Stream;
use crate::stream::byte_source::Computed;
use crate::stream::cast::cast;
use crate::stream::tiles::{ObjectVersion, OwnTiles, TilePlace};

/// Most bytes of a tile, unless one panel has more.
const TILE_BYTES: u64 = 2 << 20;
/// Most bytes of numbers of the left matrix that are held at a time, unless one row has more.
const LEFT_BYTES: u64 = 1 << 20;
/// Most elements that are computed at a time where the base has another type.
const WIDE_ELEMENTS: u64 = 256 << 10;
/// Tiles begin at multiples of this many columns.
const TILE_COLUMNS: u64 = 64;

/// A matrix of a product.
pub struct Factor {
    /// Its elements.
    pub source: Stream,
    /// Their type: f32, f16 or bf16.
    pub dtype: Dtype,
    /// The objects that they come from, for tiles that are kept.
    pub objects: Vec<Arc<Object>>,
    /// Whether the elements of one `k` follow each other.
    pub is_by_rank: bool,
}

/// A product that is added to a matrix.
pub struct Factors {
    pub left: Factor,
    pub right: Factor,
    pub rows: u64,
    pub columns: u64,
    pub rank: u64,
    pub scale: f32,
    /// The tiles of the right matrix and of others.
    pub tiles: Arc<OwnTiles>,
    /// The number of the right matrix among those.
    pub number: u64,
}

/// The elements of a base, of type `from`, with a product added, as elements of type `to`.
pub struct LowRank {
    pub base: Stream,
    pub from: Dtype,
    pub to: Dtype,
    /// `None` where the base itself is shown.
    pub factors: Option<Factors>,
}

impl Factor {
    /// Elements from `first` on, as f32.
    fn numbers(&self, first: u64, count: usize) -> Result<Vec<f32>> {
        let each = self.dtype.bytes() as usize;
        let mut bytes = vec![0; count * each];
        self.source.read_exact(first * each as u64, &mut bytes)?;
        let mut wide = vec![0; count * 4];
        cast(self.dtype, Dtype::F32, &bytes, &mut wide)?;
        Ok(wide.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// The versions of its objects. `None` while one is written to.
    fn versions(&self) -> Option<Vec<ObjectVersion>> {
        let version = |object: &Arc<Object>| {
            let changes = object.changes();
            (!object.is_dirty()).then_some(ObjectVersion { object: object.entry.id, changes })
        };
        self.objects.iter().map(version).collect()
    }
}

impl Factors {
    /// The numbers of rows of the left matrix, row by row.
    fn left_of(&self, rows: Range<u64>) -> Result<Vec<f32>> {
        let (count, rank) = ((rows.end - rows.start) as usize, self.rank as usize);
        if !self.left.is_by_rank {
            return self.left.numbers(rows.start * self.rank, count * rank);
        }
        let mut found = vec![0.0; count * rank];
        for k in 0..rank {
            let numbers = self.left.numbers(k as u64 * self.rows + rows.start, count)?;
            for (row, number) in found.chunks_exact_mut(rank).zip(numbers) {
                if let Some(place) = row.get_mut(k) {
                    *place = number;
                }
            }
        }
        Ok(found)
    }

    /// Columns of the right matrix.
    fn right_of(&self, columns: Range<u64>) -> Result<Panels> {
        let (count, rank) = ((columns.end - columns.start) as usize, self.rank as usize);
        let mut panels = Panels::zeros(rank, count);
        if self.right.is_by_rank {
            for k in 0..rank {
                let numbers = self.right.numbers(k as u64 * self.columns + columns.start, count)?;
                panels.set_row(k, 0, numbers);
            }
        } else {
            let numbers = self.right.numbers(columns.start * self.rank, count * rank)?;
            for (column, numbers) in numbers.chunks_exact(rank).enumerate() {
                for (k, number) in numbers.iter().enumerate() {
                    panels.set(k, column, *number);
                }
            }
        }
        Ok(panels)
    }

    /// Columns of a tile.
    fn tile_columns(&self) -> u64 {
        (TILE_BYTES / (4 * self.rank.max(1)) / TILE_COLUMNS * TILE_COLUMNS).max(TILE_COLUMNS)
    }

    /// The tile that begins with a column.
    fn tile(&self, first_column: u64) -> Result<Arc<Panels>> {
        let versions = self.right.versions();
        let place = TilePlace { matrix: self.number, first_column };
        let known = versions.as_ref().and_then(|now| self.tiles.find(place, now));
        if let Some(known) = known {
            return Ok(known);
        }
        let end = (first_column + self.tile_columns()).min(self.columns);
        let panels = Arc::new(self.right_of(first_column..end)?);
        if let Some(versions) = versions {
            self.tiles.keep(place, versions, panels.clone());
        }
        Ok(panels)
    }

    /// Adds the product to elements from an element on.
    fn add_to(&self, dtype: Dtype, first: u64, out: &mut [u8]) -> Result<()> {
        let each = dtype.bytes();
        let mut at = first;
        let mut rest = out;
        while !rest.is_empty() {
            let (row, column) = (at / self.columns, at % self.columns);
            let count = rest.len() as u64 / each;
            // The rest of a row, whole rows, or the beginning of one.
            let elements = if column > 0 || count < self.columns {
                count.min(self.columns - column)
            } else {
                count / self.columns * self.columns
            };
            let (here, after) = std::mem::take(&mut rest).split_at_mut((elements * each) as usize);
            let columns = column..column + elements.min(self.columns);
            self.add_to_rows(dtype, row, columns, here)?;
            at += elements;
            rest = after;
        }
        Ok(())
    }

    /// Adds the product to the elements of consecutive rows in the same columns.
    fn add_to_rows(&self, dtype: Dtype, first_row: u64, columns: Range<u64>, out: &mut [u8]) -> Result<()> {
        let each = dtype.bytes();
        let row_bytes = ((columns.end - columns.start) * each) as usize;
        let most = (LEFT_BYTES / (4 * self.rank.max(1))).max(1);
        let wide = self.tile_columns();
        let mut row = first_row;
        for part in out.chunks_mut(row_bytes * most as usize) {
            let count = (part.len() / row_bytes) as u64;
            let left = self.left_of(row..row + count)?;
            let mut column = columns.start;
            while column < columns.end {
                let begin = column / wide * wide;
                let end = (begin + wide).min(columns.end);
                let panels = self.tile(begin)?;
                let bytes =
                    ((column - columns.start) * each) as usize..((end - columns.start) * each) as usize;
                let mut rows: Vec<&mut [u8]> =
                    part.chunks_mut(row_bytes).filter_map(|row| row.get_mut(bytes.clone())).collect();
                let first_column = (column - begin) as usize;
                let product = Product { left: &left, right: &panels, first_column, scale: self.scale };
                product.add_to(dtype, &mut rows)?;
                column = end;
            }
            row += count;
        }
        Ok(())
    }
}

impl LowRank {
    /// Writes whole elements from an element on.
    fn write(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let factors = self.factors.as_ref().filter(|factors| factors.rank > 0 && factors.columns > 0);
        if self.from == self.to {
            self.base.read_exact(first * self.to.bytes(), out)?;
            return factors.map_or(Ok(()), |factors| factors.add_to(self.to, first, out));
        }
        // The sum is rounded once, so it is made in f32.
        let (narrow, each) = (self.from.bytes(), self.to.bytes());
        let mut at = first;
        for part in out.chunks_mut((WIDE_ELEMENTS * each) as usize) {
            let count = part.len() as u64 / each;
            let mut stored = vec![0; (count * narrow) as usize];
            self.base.read_exact(at * narrow, &mut stored)?;
            let mut wide = vec![0; (count * 4) as usize];
            cast(self.from, Dtype::F32, &stored, &mut wide)?;
            if let Some(factors) = factors {
                factors.add_to(Dtype::F32, at, &mut wide)?;
            }
            cast(Dtype::F32, self.to, &wide, part)?;
            at += count;
        }
        Ok(())
    }
}

impl Computed for LowRank {
    fn bytes(&self) -> u64 {
        self.from.elements_in(self.base.bytes()).saturating_mul(self.to.bytes())
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let each = self.to.bytes();
        let first = range.start / each;
        if range.start.is_multiple_of(each) && range.end.is_multiple_of(each) {
            return self.write(first, out);
        }
        let end = range.end.div_ceil(each);
        let mut whole = vec![0; ((end - first) * each) as usize];
        self.write(first, &mut whole)?;
        let skip = (range.start - first * each) as usize;
        let part = whole.get(skip..skip + out.len());
        out.copy_from_slice(part.ok_or_else(|| Error::invalid("a range past the end of a tensor"))?);
        Ok(())
    }
}
