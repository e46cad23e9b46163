//! Products of values and scales, rounded to elements.

use half::{bf16, f16};

use super::{Row, Spread};
use crate::codec::arch::{Job, Kernel, LANES};
use crate::model::Dtype;

/// Values to decode at a time: whole units of every alphabet, and whole vectors.
const STEP: usize = 256;
/// Most values of a unit.
const UNIT_MAX: usize = 8;

/// Memory for a step, which is not cleared before each row: to clear it takes as long as to decode 100 values.
pub(super) struct Scratch {
    values: [f32; STEP + UNIT_MAX],
    scales: [f32; STEP],
    zeros: [f32; STEP],
    products: [f32; STEP],
}

impl Scratch {
    pub const fn new() -> Scratch {
        Scratch {
            values: [0.0; STEP + UNIT_MAX],
            scales: [0.0; STEP],
            zeros: [0.0; STEP],
            products: [0.0; STEP],
        }
    }
}

/// Decodes a row to elements of `BYTES` bytes. The lengths have been checked.
pub(super) struct Products<'a, const BYTES: usize> {
    pub row: &'a Row<'a>,
    pub to: Dtype,
    pub out: &'a mut [u8],
    pub scratch: &'a mut Scratch,
}

/// How the products of a row are computed, so that each is rounded once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rounding {
    /// In f32, where only the last operation rounds.
    Plain,
    /// In f32 with the error of the product, from which it is rounded to odd.
    Odd,
    /// In f64, where no product of this crate's codes and scales is rounded.
    Wide,
}

/// Below this, 2^-100, a product and its error may lose bits in f32.
const TINY: f32 = f32::from_bits(27 << 23);

/// Numbers of a row, taken in steps.
struct Numbers<'a> {
    rest: &'a [f32],
    /// The length of a group, and the values that are left of the first.
    groups: Option<(usize, usize)>,
}

impl<'a> Numbers<'a> {
    #[inline(always)]
    fn new(spread: Spread<'a>) -> Numbers<'a> {
        match spread {
            Spread::Each(rest) => Numbers { rest, groups: None },
            Spread::Groups { len, first, numbers } => Numbers { rest: numbers, groups: Some((len, first)) },
        }
    }

    /// The numbers of the next `count` values, those of groups in `buffer`.
    #[inline(always)]
    fn take<'b>(&mut self, count: usize, buffer: &'b mut [f32; STEP]) -> &'b [f32]
    where
        'a: 'b,
    {
        let Some((len, left)) = &mut self.groups else {
            let (now, rest) = self.rest.split_at(count.min(self.rest.len()));
            self.rest = rest;
            return now;
        };
        let mut out = &mut buffer[..count];
        // Groups of the usual lengths are whole vectors, and whole groups a step.
        if *left == *len && len.is_multiple_of(16) && count.is_multiple_of(*len) {
            for (group, number) in out.chunks_exact_mut(*len).zip(self.rest) {
                group.as_chunks_mut::<16>().0.iter_mut().for_each(|vector| *vector = [*number; 16]);
            }
            self.rest = self.rest.get(count / *len..).unwrap_or_default();
            return &buffer[..count];
        }
        while !out.is_empty() {
            let now = (*left).min(out.len());
            let (here, after) = std::mem::take(&mut out).split_at_mut(now);
            here.fill(self.rest.first().copied().unwrap_or_default());
            *left -= here.len();
            if *left == 0 {
                self.rest = self.rest.get(1..).unwrap_or_default();
                *left = *len;
            }
            out = after;
            if *left == 0 {
                break;
            }
        }
        &buffer[..count]
    }
}

impl Row<'_> {
    /// How the products of this row are rounded once, to elements of `BYTES` bytes.
    #[inline(always)]
    fn rounding<K: Kernel, const BYTES: usize>(&self) -> Rounding {
        // 1.5 * 2^23 rounds to integers by an addition, which becomes vectors, as `trunc` does not. Nor does a loop with an
        // end in between.
        const INTEGERS: f32 = 12_582_912.0;
        let are_multiples = |numbers: &[f32], each: f32| {
            numbers.iter().fold(true, |all, zero| {
                let scaled = *zero * each;
                all & ((scaled + INTEGERS) - INTEGERS == scaled) & (zero.abs() <= 256.0)
            })
        };
        let is_short = self.alphabet.is_short();
        let zeros = self.zeros.map(|zeros| zeros.numbers());
        let has_integers = zeros.is_none_or(|zeros| is_short && are_multiples(zeros, 1.0));
        // Less than 2^9 in steps of 2^-14.
        let is_difference_exact = zeros.is_none_or(|zeros| {
            is_short && self.alphabet.is_integer() && (has_integers || are_multiples(zeros, 16_384.0))
        });
        if self.divisor != 1.0 || !is_difference_exact {
            return Rounding::Wide;
        }
        if BYTES == 4 && self.factor == 1.0 {
            return Rounding::Plain;
        }
        // The difference of a code and a zero point has one bit more than a code.
        let more = if zeros.is_some() { 0x1ff } else { 0xff };
        let bits = self.scales.numbers().iter().fold(0, |bits, scale| bits | scale.to_bits());
        let has_short_products = is_short && has_integers && bits & more == 0;
        match has_short_products {
            true if BYTES == 4 || self.factor == 1.0 => Rounding::Plain,
            false if self.factor != 1.0 => Rounding::Wide,
            _ if K::HAS_FUSED && BYTES == 2 => Rounding::Odd,
            _ => Rounding::Wide,
        }
    }
}

impl<const BYTES: usize> Job for Products<'_, BYTES> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let Products { row, to, out, scratch } = self;
        let Scratch { values: all_values, scales: scale_buffer, zeros: zero_buffer, products } = scratch;
        let rounding = row.rounding::<K, BYTES>();
        let (unit_bytes, unit_values) = row.alphabet.unit();
        let step_bytes = STEP / unit_values * unit_bytes;
        let mut scale_numbers = Numbers::new(row.scales);
        let mut zero_numbers = row.zeros.map(Numbers::new);
        let more = if row.skip == 0 { 0 } else { unit_bytes };
        for (i, out) in out.chunks_mut(STEP * BYTES).enumerate() {
            let count = out.len() / BYTES;
            let codes = row.codes.get(i * step_bytes..).unwrap_or_default();
            let codes = &codes[..codes.len().min(step_bytes + more)];
            row.alphabet.values(codes, all_values);
            let values = &mut all_values[row.skip..][..count];
            let scales = scale_numbers.take(count, scale_buffer);
            if let Some(numbers) = &mut zero_numbers {
                let zeros = numbers.take(count, zero_buffer);
                if rounding == Rounding::Wide {
                    wide::<BYTES>(row, values, Some(zeros), scales, products);
                    store::<K, BYTES>(kernel, to, &products[..count], out);
                    continue;
                }
                for (value, zero) in values.iter_mut().zip(zeros) {
                    *value -= *zero;
                }
            } else if rounding == Rounding::Wide {
                wide::<BYTES>(row, values, None, scales, products);
                store::<K, BYTES>(kernel, to, &products[..count], out);
                continue;
            }
            if rounding == Rounding::Odd {
                if !odd(values, scales, row.factor, products) {
                    wide::<BYTES>(row, values, None, scales, products);
                }
                store::<K, BYTES>(kernel, to, &products[..count], out);
            } else if BYTES == 4 {
                for ((value, scale), out) in values.iter().zip(scales).zip(out.as_chunks_mut().0) {
                    *out = (*value * *scale * row.factor).to_le_bytes();
                }
            } else {
                for (value, scale) in values.iter_mut().zip(scales) {
                    *value *= *scale;
                }
                store::<K, BYTES>(kernel, to, values, out);
            }
        }
    }
}

/// Products in f64.
#[inline(always)]
fn wide<const BYTES: usize>(
    row: &Row<'_>,
    values: &[f32],
    zeros: Option<&[f32]>,
    scales: &[f32],
    products: &mut [f32; STEP],
) {
    let (factor, divisor) = (f64::from(row.factor), f64::from(row.divisor));
    let none = [0.0; STEP];
    let numbers = values.iter().zip(zeros.unwrap_or(&none)).zip(scales).zip(products);
    let product =
        |value: f32, zero: f32, scale: f32| (f64::from(value) - f64::from(zero)) * f64::from(scale) * factor;
    let round = |product: f64| if BYTES == 4 { product as f32 } else { to_odd(product) };
    // A division takes as long as all else.
    if row.divisor == 1.0 {
        for (((value, zero), scale), out) in numbers {
            *out = round(product(*value, *zero, *scale));
        }
        return;
    }
    for (((value, zero), scale), out) in numbers {
        *out = round(product(*value, *zero, *scale) / divisor);
    }
}

/// Products rounded to odd. A product and its error are exact in f32, unless one is near the ends of the range: then this
/// returns false. With a factor, the products of values and scales must be exact.
#[inline(always)]
fn odd(values: &[f32], scales: &[f32], factor: f32, products: &mut [f32; STEP]) -> bool {
    let mut is_outside = false;
    let mut round = |a: f32, b: f32, product: f32| {
        let error = a.mul_add(b, -product);
        let bits = product.to_bits();
        is_outside |= (product.abs() < TINY) & (a != 0.0) & (b != 0.0);
        let is_above = (error.to_bits() ^ bits) >> 31;
        let odd = bits.wrapping_sub(is_above) | 1;
        // Neither is true of NaN.
        let is_inexact = (error < 0.0) | (error > 0.0);
        f32::from_bits(if is_inexact { odd } else { bits })
    };
    if factor == 1.0 {
        for ((value, scale), out) in values.iter().zip(scales).zip(products) {
            *out = round(*value, *scale, *value * *scale);
        }
        return !is_outside;
    }
    let mut is_exact = true;
    for ((value, scale), out) in values.iter().zip(scales).zip(products) {
        let product = *value * *scale;
        let is_lost = (product.abs() < TINY) & (*value != 0.0) & (*scale != 0.0);
        is_exact &= !is_lost & (product.abs() != f32::INFINITY);
        *out = round(product, factor, product * factor);
    }
    is_exact & !is_outside
}

/// Rounds to odd: a value that f32 cannot represent becomes the neighbour whose last bit is 1.
#[inline(always)]
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    let bits = near.to_bits();
    let odd = bits.wrapping_sub(u32::from(back.abs() > value.abs())) | 1;
    // Neither is true of NaN.
    let is_inexact = (back < value) | (back > value);
    f32::from_bits(if is_inexact { odd } else { bits })
}

/// Rounds to elements.
#[inline(always)]
fn store<K: Kernel, const BYTES: usize>(kernel: K, to: Dtype, values: &[f32], out: &mut [u8]) {
    if BYTES == 4 {
        for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
            *out = value.to_le_bytes();
        }
        return;
    }
    let (vectors, rest) = values.as_chunks::<LANES>();
    let (outs, out_rest) = out.as_chunks_mut::<{ 2 * LANES }>();
    for (vector, out) in vectors.iter().zip(outs) {
        let mut bytes = [0; 4 * LANES];
        let mut has_nan = false;
        for (value, bytes) in vector.iter().zip(bytes.as_chunks_mut().0) {
            has_nan |= value.is_nan();
            *bytes = value.to_le_bytes();
        }
        if has_nan {
            each(to, vector, out);
        } else if to == Dtype::F16 {
            kernel.store_f16(kernel.load_f32(&bytes), out);
        } else {
            kernel.store_bf16(kernel.load_f32(&bytes), out);
        }
    }
    each(to, rest, out_rest);
}

/// Rounds values of which some may be NaN.
#[inline(always)]
fn each(to: Dtype, values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = match to {
            Dtype::F16 => f16::from_f32(*value).to_le_bytes(),
            _ => bf16::from_f32(*value).to_le_bytes(),
        };
    }
}
