//! One record of `factor.dat`: a matrix as a product of three matrices.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 16 | object id |
//! | 16 | 4 | block index; `ffffffff`: the whole tensor; `fffffffe`: its difference from the lineage parent |
//! | 20 | 4 | m: rows |
//! | 24 | 4 | n: columns |
//! | 28 | 4 | k: rank |
//! | 32 | 4mk | U, f32, row-major |
//! | .. | 4k | S, f32 |
//! | .. | 4kn | V, f32, row-major |
//!
//! In a difference U and V are f16, of 2mk and 2kn bytes.
//!
//! `out[i][j] = sum over r of U[i][r] * S[r] * V[r][j]`, each term `(U[i][r] * S[r]) * V[r][j]`. The log holds the checksum.

use std::ops::Range;

use half::f16;

use crate::format::cursor::{Reader, Writer};
use crate::format::payload::element::{put_values, value};
use crate::model::{Dtype, Error, ObjectId, Result};

/// The block index of a record for the whole tensor.
pub const WHOLE_TENSOR: u32 = u32::MAX;

/// The block index of a record for the difference of the whole tensor from its lineage parent.
pub const DIFFERENCE: u32 = u32::MAX - 1;

/// Bytes before U.
const HEAD_BYTES: u64 = 32;

/// Elements that are added at a time.
const SUMS: usize = 4096;

/// A matrix of `rows` x `columns` as the product of three of rank `rank`.
#[derive(Clone, PartialEq, Debug)]
pub struct Factor {
    /// The object that it belongs to.
    pub object: ObjectId,
    /// The block of the object, [`WHOLE_TENSOR`] or [`DIFFERENCE`].
    pub block: u32,
    shape: FactorShape,
    /// `rows` x `rank`, row-major.
    left: Vec<f32>,
    /// `rank`.
    scales: Vec<f32>,
    /// `rank` x `columns`, row-major.
    right: Vec<f32>,
}

/// The sizes of a factorization.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FactorShape {
    /// Rows of the product, m.
    pub rows: u32,
    /// Columns of the product, n.
    pub columns: u32,
    /// Rank, k, at most the smaller of rows and columns.
    pub rank: u32,
}

impl FactorShape {
    /// Bytes of a record of this shape with a block index. Never overflows: three products of 32-bit numbers fit 128 bits.
    pub fn record_bytes(self, block: u32) -> u128 {
        let (rows, columns) = (u128::from(self.rows), u128::from(self.columns));
        let width = if block == DIFFERENCE { 2 } else { 4 };
        u128::from(HEAD_BYTES) + u128::from(self.rank) * (width * (rows + columns) + 4)
    }

    fn check(self) -> Result<(), String> {
        if self.rank > self.rows.min(self.columns) {
            let FactorShape { rows, columns, rank } = self;
            return Err(format!("factors of rank {rank} do not fit a {rows}x{columns} matrix"));
        }
        Ok(())
    }
}

impl Factor {
    /// A factorization of `shape`: `left` is U, `scales` S, `right` V. Those of a difference are rounded to f16.
    ///
    /// # Errors
    /// `Invalid` if the factors have another shape, the rank is too large, or a value is not finite.
    pub fn new(
        object: ObjectId,
        block: u32,
        shape: FactorShape,
        left: Vec<f32>,
        scales: Vec<f32>,
        right: Vec<f32>,
    ) -> Result<Factor> {
        shape.check().map_err(Error::invalid)?;
        let is = |factor: &[f32], rows: u32, columns: u32| {
            u64::try_from(factor.len()) == Ok(u64::from(rows) * u64::from(columns))
        };
        if !is(&left, shape.rows, shape.rank)
            || !is(&scales, shape.rank, 1)
            || !is(&right, shape.rank, shape.columns)
        {
            return Err(Error::invalid(format!(
                "factors of {}, {} and {} values for {shape:?}",
                left.len(),
                scales.len(),
                right.len()
            )));
        }
        let rounded = |values: Vec<f32>| match block {
            DIFFERENCE => values.into_iter().map(|value| f16::from_f32(value).to_f32()).collect(),
            _ => values,
        };
        let (left, right) = (rounded(left), rounded(right));
        let factor = Factor { object, block, shape, left, scales, right };
        factor.check_finite().map_err(Error::invalid)?;
        Ok(factor)
    }

    /// Reads a whole record. Allocates only after the length was found to match the shape.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Factor> {
        let mut input = Reader::new(bytes);
        let object = ObjectId(input.u128()?);
        let block = input.u32()?;
        let shape = FactorShape { rows: input.u32()?, columns: input.u32()?, rank: input.u32()? };
        shape.check().map_err(Error::corrupt)?;
        if u128::try_from(bytes.len()) != Ok(shape.record_bytes(block)) {
            return Err(Error::corrupt(format!(
                "factors of {} bytes do not fit their record of {}",
                shape.record_bytes(block),
                bytes.len()
            )));
        }
        let count = |rows: u32, columns: u32| {
            let count = u64::from(rows) * u64::from(columns);
            usize::try_from(count).map_err(|_| Error::corrupt("factor too large"))
        };
        let side = |input: &mut Reader, count: usize| match block {
            DIFFERENCE => (0..count).map(|_| Ok(f16::from_bits(input.u16()?).to_f32())).collect(),
            _ => input.f32s(count),
        };
        let factor = Factor {
            object,
            block,
            shape,
            left: side(&mut input, count(shape.rows, shape.rank)?)?,
            scales: input.f32s(count(shape.rank, 1)?)?,
            right: side(&mut input, count(shape.rank, shape.columns)?)?,
        };
        factor.check_finite().map_err(Error::corrupt)?;
        Ok(factor)
    }

    /// The record's bytes.
    pub fn write(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u128(self.object.0)
            .u32(self.block)
            .u32(self.shape.rows)
            .u32(self.shape.columns)
            .u32(self.shape.rank);
        self.put_side(&self.left, &mut out);
        out.f32s(&self.scales);
        self.put_side(&self.right, &mut out);
        out.into_bytes()
    }

    fn put_side(&self, values: &[f32], out: &mut Writer) {
        match self.block {
            DIFFERENCE => values.iter().for_each(|value| {
                out.u16(f16::from_f32(*value).to_bits());
            }),
            _ => {
                out.f32s(values);
            }
        }
    }

    /// The sizes.
    pub fn shape(&self) -> FactorShape {
        self.shape
    }

    /// Computes the product's `rows` into `out`, row-major.
    ///
    /// # Errors
    /// `Invalid` for rows outside the matrix or an `out` of another size.
    pub fn rows(&self, rows: Range<u32>, out: &mut [f32]) -> Result<()> {
        let columns = u64::from(self.shape.columns);
        let wanted = u64::from(rows.end.saturating_sub(rows.start)) * columns;
        if u64::try_from(out.len()) != Ok(wanted) {
            return Err(Error::invalid(format!(
                "rows {rows:?} of {columns} columns into {} values",
                out.len()
            )));
        }
        self.elements(u64::from(rows.start) * columns, out)
    }

    /// Computes the elements of the row-major product from number `start`, as many as `out` holds. Sums in
    /// f32, in ascending order of the rank.
    ///
    /// # Errors
    /// `Invalid` for elements outside the matrix.
    pub fn elements(&self, start: u64, out: &mut [f32]) -> Result<()> {
        let FactorShape { rows, columns, rank } = self.shape;
        let total = u64::from(rows) * u64::from(columns);
        let end = u64::try_from(out.len())
            .ok()
            .and_then(|count| start.checked_add(count))
            .filter(|end| *end <= total);
        if end.is_none() {
            return Err(Error::invalid(format!(
                "{} elements from {start} of a {rows}x{columns} matrix",
                out.len()
            )));
        }
        out.fill(0.0);
        if rank == 0 || out.is_empty() {
            return Ok(());
        }
        let (columns, rank) = (to_index(columns)?, to_index(rank)?);
        let (mut row, mut column) = (to_index(start)? / columns, to_index(start)? % columns);
        let mut rest = out;
        while !rest.is_empty() {
            let count = rest.len().min(columns - column);
            let (sums, later) = rest.split_at_mut(count);
            let weights = self.left.get(row * rank..(row + 1) * rank);
            let lines = self.right.chunks_exact(columns);
            let scaled = weights.unwrap_or_default().iter().zip(&self.scales);
            for ((weight, scale), line) in scaled.zip(lines) {
                let line = line.get(column..).unwrap_or_default();
                add_multiple(weight * scale, line, sums);
            }
            rest = later;
            (row, column) = (row + 1, 0);
        }
        Ok(())
    }

    /// Adds the elements of the product from number `start` to `elements`, of a quantizable type. Each sum is computed in
    /// f32 and rounded once, ties to even.
    ///
    /// # Errors
    /// `Invalid` for elements outside the matrix.
    pub fn add_to(&self, dtype: Dtype, start: u64, elements: &mut [u8]) -> Result<()> {
        let width = to_index(dtype.bytes())?.max(1);
        let mut sums = vec![0.0; SUMS.min(elements.len() / width)];
        let mut at = start;
        for part in elements.chunks_mut(SUMS * width) {
            let sums = sums.get_mut(..part.len() / width).unwrap_or_default();
            self.elements(at, sums)?;
            for (sum, element) in sums.iter_mut().zip(part.chunks_exact(width)) {
                *sum += value(dtype, element).unwrap_or(0.0);
            }
            put_values(dtype, sums, part);
            at = at.saturating_add(sums.len() as u64);
        }
        Ok(())
    }

    fn check_finite(&self) -> Result<(), String> {
        let factors = [("U", &self.left), ("S", &self.scales), ("V", &self.right)];
        for (name, values) in factors {
            if let Some(place) = values.iter().position(|value| !value.is_finite()) {
                return Err(format!("factor {name}: value {place} is not finite"));
            }
        }
        Ok(())
    }
}

/// Adds `factor` times each value of `line` to the sum at the same index.
fn add_multiple(factor: f32, line: &[f32], sums: &mut [f32]) {
    for (sum, value) in sums.iter_mut().zip(line) {
        *sum += factor * value;
    }
}

fn to_index(number: impl TryInto<usize>) -> Result<usize> {
    number.try_into().map_err(|_| Error::invalid("a matrix too large for this machine"))
}
