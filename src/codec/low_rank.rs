//! Adds a product of two narrow matrices to elements, as an adapter does: `element + scale * (left · right)`.
//!
//! The order of the operations, each a fused multiplication and addition in f32, which rounds once, defines the bits of the
//! result:
//!
//! 1. `sum = 0`; for each `k` from 0 up, `sum = fma(left[row, k], right[k, column], sum)`.
//! 2. `value = fma(sum, scale, element)`, where the element is widened without loss.
//! 3. The value is rounded once to the element's type, to nearest, ties to even. A NaN becomes the positive quiet one.
//!
//! `right` is packed in panels of `LANES` columns ([`Panels`]), and several rows share each panel that is loaded.

use half::{bf16, f16};

use super::arch::{InstructionSet, Job, Kernel, LANES};
use crate::model::{Dtype, Error, Result};

/// Bytes of panels to apply to all rows before the next ones, which fit a first-level cache.
const PANEL_BYTES: usize = 16 << 10;
/// Bytes of a vector.
const VECTOR_BYTES: usize = 4 * LANES;

/// `right` of a product: its columns in panels of `LANES`, each with one vector for each `k`. Columns after the last
/// one are zeros.
#[derive(Clone, PartialEq, Debug)]
pub struct Panels {
    rank: usize,
    columns: usize,
    /// Little-endian, as vectors are loaded.
    vectors: Vec<[u8; VECTOR_BYTES]>,
}

impl Panels {
    /// Panels of `columns` columns, all zeros.
    pub fn zeros(rank: usize, columns: usize) -> Panels {
        Panels { rank, columns, vectors: vec![[0; VECTOR_BYTES]; rank * columns.div_ceil(LANES)] }
    }

    /// Writes the numbers of row `k`, from column `first` on. Leaves those out that have no place.
    pub fn set_row(&mut self, k: usize, first: usize, numbers: impl IntoIterator<Item = f32>) {
        for (column, number) in (first..self.columns).zip(numbers) {
            self.set(k, column, number);
        }
    }

    /// Writes the number of row `k` in a column, if it has a place.
    pub fn set(&mut self, k: usize, column: usize, number: f32) {
        if k >= self.rank || column >= self.columns {
            return;
        }
        let vector = self.vectors.get_mut(column / LANES * self.rank + k);
        if let Some(place) = vector.and_then(|vector| vector.as_chunks_mut().0.get_mut(column % LANES)) {
            *place = number.to_le_bytes();
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.vectors.len() * VECTOR_BYTES
    }
}

/// A product to add to elements.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// For each row, as many numbers as `right` has rows.
    pub left: &'a [f32],
    /// The other matrix.
    pub right: &'a Panels,
    /// The column of `right` of the first element of each row.
    pub first_column: usize,
    /// The factor of all sums.
    pub scale: f32,
}

impl Product<'_> {
    /// Adds the product to rows of little-endian elements of a type, all of one length.
    ///
    /// Fails with [`Invalid`](crate::model::ErrorKind::Invalid) for a type other than f32, f16 and bf16, and for rows or
    /// columns without numbers.
    pub fn add_to(&self, dtype: Dtype, rows: &mut [&mut [u8]]) -> Result<()> {
        self.add_with(InstructionSet::detected(), dtype, rows)
    }

    /// [`Product::add_to`] with an instruction set.
    pub fn add_with(&self, set: InstructionSet, dtype: Dtype, rows: &mut [&mut [u8]]) -> Result<()> {
        let bytes = rows.first().map_or(0, |row| row.len());
        let columns = bytes / dtype.bytes().max(1) as usize;
        let are_whole =
            rows.iter().all(|row| row.len() == bytes) && columns * dtype.bytes() as usize == bytes;
        let has_numbers = self.left.len() == rows.len() * self.right.rank
            && self.first_column + columns <= self.right.columns;
        if !are_whole || !has_numbers {
            return Err(Error::invalid("rows and columns of a product that has other ones"));
        }
        match dtype {
            Dtype::F32 => set.run(Added::<F32> { product: self, rows, element: F32 }),
            Dtype::F16 => set.run(Added::<F16> { product: self, rows, element: F16 }),
            Dtype::Bf16 => set.run(Added::<Bf16> { product: self, rows, element: Bf16 }),
            _ => return Err(Error::invalid(format!("a product is not added to {dtype}"))),
        }
        Ok(())
    }
}

/// A type of elements.
trait Element: Copy {
    const BYTES: usize;
    /// Sixteen elements.
    fn load<K: Kernel>(self, kernel: K, bytes: &[u8]) -> K::Lanes;
    /// Sixteen values, none a NaN, rounded.
    fn store<K: Kernel>(self, kernel: K, values: K::Lanes, bytes: &mut [u8]);
    /// One value, rounded.
    fn put(self, value: f32, bytes: &mut [u8]);
}

#[derive(Clone, Copy)]
struct F32;
#[derive(Clone, Copy)]
struct F16;
#[derive(Clone, Copy)]
struct Bf16;

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    fn load<K: Kernel>(self, kernel: K, bytes: &[u8]) -> K::Lanes {
        bytes.first_chunk().map_or_else(|| kernel.splat(0.0), |bytes| kernel.load_f32(bytes))
    }

    #[inline(always)]
    fn store<K: Kernel>(self, kernel: K, values: K::Lanes, bytes: &mut [u8]) {
        if let Some(bytes) = bytes.first_chunk_mut() {
            kernel.store_f32(values, bytes);
        }
    }

    #[inline(always)]
    fn put(self, value: f32, bytes: &mut [u8]) {
        bytes.copy_from_slice(
            &(if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value }).to_le_bytes(),
        );
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load<K: Kernel>(self, kernel: K, bytes: &[u8]) -> K::Lanes {
        bytes.first_chunk().map_or_else(|| kernel.splat(0.0), |bytes| kernel.load_f16(bytes))
    }

    #[inline(always)]
    fn store<K: Kernel>(self, kernel: K, values: K::Lanes, bytes: &mut [u8]) {
        if let Some(bytes) = bytes.first_chunk_mut() {
            kernel.store_f16(values, bytes);
        }
    }

    #[inline(always)]
    fn put(self, value: f32, bytes: &mut [u8]) {
        let value = if value.is_nan() { f16::NAN } else { f16::from_f32(value) };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn load<K: Kernel>(self, kernel: K, bytes: &[u8]) -> K::Lanes {
        bytes.first_chunk().map_or_else(|| kernel.splat(0.0), |bytes| kernel.load_bf16(bytes))
    }

    #[inline(always)]
    fn store<K: Kernel>(self, kernel: K, values: K::Lanes, bytes: &mut [u8]) {
        if let Some(bytes) = bytes.first_chunk_mut() {
            kernel.store_bf16(values, bytes);
        }
    }

    #[inline(always)]
    fn put(self, value: f32, bytes: &mut [u8]) {
        let value = if value.is_nan() { bf16::NAN } else { bf16::from_f32(value) };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// Adds a product to rows of elements. The lengths have been checked.
struct Added<'a, 'b, E> {
    product: &'a Product<'a>,
    rows: &'a mut [&'b mut [u8]],
    element: E,
}

impl<E: Element> Job for Added<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        // As many sums as the registers hold.
        if K::HAS_WIDE_REGISTERS { self.add::<K, 8>(kernel) } else { self.add::<K, 4>(kernel) }
    }
}

impl<E: Element> Added<'_, '_, E> {
    /// Adds the product, to so many rows at a time.
    #[inline(always)]
    fn add<K: Kernel, const ROWS: usize>(self, kernel: K) {
        let Added { product, rows, element } = self;
        let Product { left, right, first_column, scale } = *product;
        let rank = right.rank.max(1);
        let columns = rows.first().map_or(0, |row| row.len()) / E::BYTES;
        if right.rank == 0 || columns == 0 {
            return;
        }
        let each = (PANEL_BYTES / (rank * VECTOR_BYTES)).max(1);
        let (first, end) = (first_column / LANES, (first_column + columns).div_ceil(LANES));
        let panels = right.vectors.get(first * rank..end * rank).unwrap_or_default();
        let mut interleaved: Vec<[f32; ROWS]> = vec![[0.0; ROWS]; rank];
        // Columns of the first panel that the rows lack.
        let mut lacking = first_column % LANES;
        let mut begin = 0;
        for part in panels.chunks(each * rank) {
            let mut next = begin;
            let groups = rows.chunks_mut(ROWS).zip(left.chunks(ROWS * rank));
            for (group, numbers) in groups {
                for (row, numbers) in numbers.chunks_exact(rank).enumerate() {
                    for (together, number) in interleaved.iter_mut().zip(numbers) {
                        if let Some(place) = together.get_mut(row) {
                            *place = *number;
                        }
                    }
                }
                let (mut at, mut skip) = (begin, lacking);
                for panel in part.chunks_exact(rank) {
                    let sums = sums::<K, ROWS>(kernel, &interleaved, panel);
                    for (row, sum) in group.iter_mut().zip(sums) {
                        add::<K, E>(kernel, element, row, Place { at, skip }, Scaled { sum, scale });
                    }
                    at += LANES - skip;
                    skip = 0;
                }
                next = at;
            }
            (begin, lacking) = (next, 0);
        }
    }
}

/// The sums of rows in the columns of a panel.
#[inline(always)]
fn sums<K: Kernel, const ROWS: usize>(
    kernel: K,
    left: &[[f32; ROWS]],
    panel: &[[u8; VECTOR_BYTES]],
) -> [K::Lanes; ROWS] {
    let mut sums = [kernel.splat(0.0); ROWS];
    for (numbers, vector) in left.iter().zip(panel) {
        let vector = kernel.load_f32(vector);
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = kernel.mul_add(kernel.splat(*number), vector, *sum);
        }
    }
    sums
}

/// A place in a row for the columns of a panel.
#[derive(Clone, Copy)]
struct Place {
    /// The first element.
    at: usize,
    /// Columns of the panel before it, which the row lacks.
    skip: usize,
}

/// Sixteen sums and their factor.
struct Scaled<K: Kernel> {
    sum: K::Lanes,
    scale: f32,
}

impl<K: Kernel> Scaled<K> {
    #[inline(always)]
    fn add_to(&self, kernel: K, elements: K::Lanes) -> K::Lanes {
        kernel.mul_add(self.sum, kernel.splat(self.scale), elements)
    }
}

/// Adds sixteen sums to the elements of a row, as far as the row has them.
#[inline(always)]
fn add<K: Kernel, E: Element>(
    kernel: K,
    element: E,
    row: &mut [u8],
    Place { at, skip }: Place,
    scaled: Scaled<K>,
) {
    if skip == 0
        && let Some(place) = row.get_mut(at * E::BYTES..(at + LANES) * E::BYTES)
    {
        let values = scaled.add_to(kernel, element.load(kernel, place));
        if are_numbers(kernel, values) {
            element.store(kernel, values, place);
            return;
        }
    }
    let end = (at + LANES - skip).min(row.len() / E::BYTES);
    if let Some(place) = row.get_mut(at * E::BYTES..end * E::BYTES) {
        add_some::<K, E>(kernel, element, place, skip, scaled);
    }
}

/// Adds sums to less than sixteen elements, or to some that become a NaN.
#[inline(always)]
fn add_some<K: Kernel, E: Element>(kernel: K, element: E, place: &mut [u8], skip: usize, scaled: Scaled<K>) {
    let (mut elements, mut wide) = ([0; VECTOR_BYTES], [0; VECTOR_BYTES]);
    if let Some(own) = elements.get_mut(skip * E::BYTES..skip * E::BYTES + place.len()) {
        own.copy_from_slice(place);
    }
    kernel.store_f32(scaled.add_to(kernel, element.load(kernel, &elements)), &mut wide);
    let values = wide.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).skip(skip);
    for (place, value) in place.chunks_exact_mut(E::BYTES).zip(values) {
        element.put(value, place);
    }
}

/// Whether no value is a NaN.
#[inline(always)]
fn are_numbers<K: Kernel>(kernel: K, values: K::Lanes) -> bool {
    // A NaN is neither less than infinity nor more than its negative, infinity itself is not a NaN.
    let finite = kernel.less(values, kernel.splat(f32::INFINITY));
    let below = kernel.less(kernel.splat(f32::NEG_INFINITY), values);
    (finite | below) == u16::MAX
}
