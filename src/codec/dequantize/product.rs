//! Products of values and scales, rounded to elements.

use half::{bf16, f16};

use super::{Row, Spread};
use crate::codec::arch::{Job, Kernel, LANES};
use crate::model::Dtype;

/// Values to decode at a time: whole units of every alphabet, and whole vectors.
const STEP: usize = 256;
/// Most values of a unit.
const UNIT_MAX: usize = 8;

/// Decodes a row to elements of `BYTES` bytes, in f64 if `IS_WIDE`. The lengths have been checked.
pub(super) struct Products<'a, const BYTES: usize, const IS_WIDE: bool> {
    pub row: &'a Row<'a>,
    pub to: Dtype,
    pub out: &'a mut [u8],
}

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

    /// The numbers of the next values.
    #[inline(always)]
    fn take(&mut self, out: &mut [f32]) {
        let Some((len, left)) = &mut self.groups else {
            let (now, rest) = self.rest.split_at(out.len().min(self.rest.len()));
            for (number, value) in out.iter_mut().zip(now) {
                *number = *value;
            }
            self.rest = rest;
            return;
        };
        let mut out = out;
        while !out.is_empty() {
            let now = (*left).min(out.len());
            let (here, after) = std::mem::take(&mut out).split_at_mut(now);
            let number = self.rest.first().copied().unwrap_or_default();
            // Groups of the usual lengths are whole vectors.
            match here.as_chunks_mut::<16>() {
                (vectors, []) => vectors.iter_mut().for_each(|vector| *vector = [number; 16]),
                _ => here.fill(number),
            }
            *left -= here.len();
            if *left == 0 {
                self.rest = self.rest.get(1..).unwrap_or_default();
                *left = *len;
            }
            out = after;
            if *left == 0 {
                return;
            }
        }
    }
}

impl<const BYTES: usize, const IS_WIDE: bool> Job for Products<'_, BYTES, IS_WIDE> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) {
        let Products { row, to, out } = self;
        let (unit_bytes, unit_values) = row.alphabet.unit();
        let step_bytes = STEP / unit_values * unit_bytes;
        let mut values = [0.0; STEP + UNIT_MAX];
        let (mut scales, mut zeros) = ([0.0; STEP], [0.0; STEP]);
        let mut scale_numbers = Numbers::new(row.scales);
        let mut zero_numbers = row.zeros.map(Numbers::new);
        let more = if row.skip == 0 { 0 } else { unit_bytes };
        for (i, out) in out.chunks_mut(STEP * BYTES).enumerate() {
            let count = out.len() / BYTES;
            let codes = row.codes.get(i * step_bytes..).unwrap_or_default();
            let codes = &codes[..codes.len().min(step_bytes + more)];
            row.alphabet.values(codes, &mut values);
            scale_numbers.take(&mut scales[..count]);
            if let Some(numbers) = &mut zero_numbers {
                numbers.take(&mut zeros[..count]);
            }
            let values = &mut values[row.skip..][..STEP];
            if IS_WIDE {
                let (factor, divisor) = (f64::from(row.factor), f64::from(row.divisor));
                for ((value, zero), scale) in values.iter_mut().zip(&zeros).zip(&scales) {
                    let product = (f64::from(*value) - f64::from(*zero)) * f64::from(*scale) * factor;
                    let product = product / divisor;
                    *value = if BYTES == 4 { product as f32 } else { to_odd(product) };
                }
            } else if zero_numbers.is_some() {
                for ((value, zero), scale) in values.iter_mut().zip(&zeros).zip(&scales) {
                    *value = (*value - *zero) * *scale * row.factor;
                }
            } else {
                for (value, scale) in values.iter_mut().zip(&scales) {
                    *value = *value * *scale * row.factor;
                }
            }
            store::<K, BYTES>(kernel, to, &values[..count], out);
        }
    }
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

/// The same for values that may be NaN.
#[inline(always)]
fn each(to: Dtype, values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = match to {
            Dtype::F16 => f16::from_f32(*value).to_le_bytes(),
            _ => bf16::from_f32(*value).to_le_bytes(),
        };
    }
}
