//! Encodes f32 as blocks of ggml.
//!
//! | type | d | code of a value x |
//! |---|---|---|
//! | Q8_0 | the largest magnitude / 127 | x / d, rounded, halves away from zero |
//! | Q4_0 | the value of the largest magnitude, the first of several, / -8 | x / d + 8.5 without its fraction, 0 to 15 |
//!
//! d is stored as f16. The codes follow from d before it is rounded, by a multiplication with its inverse. A code is 0 where
//! the product, or its sum with 8.5, is not finite. In a block with NaN d is NaN: of Q8_0 without a sign, of Q4_0 the first.
//!
//! Source: `quantize` of the Python package `gguf` 0.19, with NumPy 2.4 on x86-64. `quantize_row_q8_0_ref` and
//! `quantize_row_q4_0_ref` of `ggml-quants.c` give the same bytes of numbers whose d has a finite inverse.

use std::marker::PhantomData;

use half::f16;

use super::super::arch::{InstructionSet, Job, Kernel};
use super::SMALL;
use crate::model::{Dtype, Error, Result};

/// The types that are encoded.
pub const ENCODED_TYPES: [Dtype; 2] = [Dtype::Q8_0, Dtype::Q4_0];

/// Encodes little-endian f32 as blocks of a type.
///
/// Fails with [`Invalid`](crate::model::ErrorKind::Invalid) for a type that is not in [`ENCODED_TYPES`], and for values that are no
/// whole blocks, or that do not fill `out`.
pub fn quantize(dtype: Dtype, values: &[u8], out: &mut [u8]) -> Result<()> {
    quantize_on(InstructionSet::detected(), dtype, values, out)
}

/// [`quantize`] with this set of instructions.
pub fn quantize_on(set: InstructionSet, dtype: Dtype, values: &[u8], out: &mut [u8]) -> Result<()> {
    let count = values.len() as u64 / 4;
    let is_whole = values.len().is_multiple_of(4 * SMALL) && dtype.bytes_of(count) == Some(out.len() as u64);
    match dtype {
        Dtype::Q8_0 if is_whole => set.run(Quantize::<Q8, 34> { values, out, encoder: PhantomData }),
        Dtype::Q4_0 if is_whole => set.run(Quantize::<Q4, 18> { values, out, encoder: PhantomData }),
        _ => return Err(Error::invalid(format!("{count} values as {} bytes of {dtype} blocks", out.len()))),
    }
    Ok(())
}

/// Encodes blocks of `BYTES` bytes. The lengths have been checked.
struct Quantize<'a, E, const BYTES: usize> {
    values: &'a [u8],
    out: &'a mut [u8],
    encoder: PhantomData<E>,
}

/// Encodes a block. A trait for the reason that `Decoder` is one.
trait Encoder<const BYTES: usize> {
    fn encode(values: &[f32; SMALL], block: &mut [u8; BYTES]);
}

impl<E: Encoder<BYTES>, const BYTES: usize> Job for Quantize<'_, E, BYTES> {
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, _: K) {
        let blocks = self.out.as_chunks_mut::<BYTES>().0.iter_mut();
        for (bytes, block) in self.values.as_chunks::<{ 4 * SMALL }>().0.iter().zip(blocks) {
            let mut values = [0.0; SMALL];
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = f32::from_le_bytes(*bytes);
            }
            E::encode(&values, block);
        }
    }
}

/// The inverse of a scale, 0 for a scale of 0.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The bits of infinity.
const INFINITE: u32 = 0x7f80_0000;

/// The bits of the magnitude of a value, in the order of magnitudes. All NaN have the same, the largest.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    (value.to_bits() & 0x7fff_ffff).min(INFINITE + 1)
}

/// NaN as f16, with its sign and the upper bits of its payload.
#[inline(always)]
fn quiet(nan: f32) -> f16 {
    let bits = nan.to_bits();
    f16::from_bits(((bits >> 16) & 0x8000 | 0x7e00 | (bits >> 13) & 0x1ff) as u16)
}

struct Q8;

impl Encoder<34> for Q8 {
    #[inline(always)]
    fn encode(values: &[f32; SMALL], block: &mut [u8; 34]) {
        let mut most = 0;
        for value in values {
            most = magnitude(*value).max(most);
        }
        let scale = f32::from_bits(most) / 127.0;
        let inverse = inverse(scale);
        let (head, codes) = block.split_at_mut(2);
        let stored = if most > INFINITE { f16::NAN } else { f16::from_f32(scale) };
        head.copy_from_slice(&stored.to_le_bytes());
        for (code, value) in codes.iter_mut().zip(values) {
            let scaled = value * inverse;
            let scaled = if scaled.abs() <= 128.0 { scaled } else { 0.0 };
            // Halves go away from zero: the sum is exact, and the conversion drops the fraction. Just below a half it would be
            // rounded up, so the whole part is compared.
            let whole = scaled as i32;
            let rest = (scaled - whole as f32).abs();
            let step = if rest >= 0.5 { 1 } else { 0 };
            let rounded = if scaled < 0.0 { whole - step } else { whole + step };
            *code = rounded as i8 as u8;
        }
    }
}

struct Q4;

impl Encoder<18> for Q4 {
    #[inline(always)]
    fn encode(values: &[f32; SMALL], block: &mut [u8; 18]) {
        let mut most = values[0];
        let mut largest = magnitude(most);
        for value in values {
            let magnitude = magnitude(*value);
            let is_more = magnitude > largest;
            most = if is_more { *value } else { most };
            largest = if is_more { magnitude } else { largest };
        }
        let scale = most / -8.0;
        let inverse = inverse(scale);
        let (head, codes) = block.split_at_mut(2);
        let stored = if largest > INFINITE { quiet(most) } else { f16::from_f32(scale) };
        head.copy_from_slice(&stored.to_le_bytes());
        let (low, high) = values.split_at(SMALL / 2);
        let code = |scaled: f32| {
            let sum = scaled + 8.5;
            (if sum < 32.0 { sum } else { 0.0 } as u8).min(15)
        };
        for (to, (low, high)) in codes.iter_mut().zip(low.iter().zip(high)) {
            let [low, high] = [*low, *high].map(|value| code(value * inverse));
            *to = low | high << 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ENCODED_TYPES, quantize, quantize_on};
    use crate::codec::InstructionSet;
    use crate::model::Dtype;

    /// As `ggml-quants.c` writes it.
    fn expected(dtype: Dtype, values: &[f32]) -> Vec<u8> {
        let mut out = Vec::new();
        for block in values.chunks(32) {
            let first =
                block.iter().fold(0.0_f32, |one, other| if other.abs() > one.abs() { *other } else { one });
            let scale = match dtype {
                Dtype::Q8_0 => first.abs() / 127.0,
                _ => first / -8.0,
            };
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            out.extend(half::f16::from_f32(scale).to_le_bytes());
            let code = |value: &f32| (value * inverse + 8.5).trunc().clamp(0.0, 15.0) as u8;
            match dtype {
                Dtype::Q8_0 => out.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8)),
                _ => out.extend((0..16).map(|at| code(&block[at]) | code(&block[at + 16]) << 4)),
            }
        }
        out
    }

    #[test]
    fn blocks_are_those_of_the_reference_on_all_instruction_sets() {
        let mut state = 7_u32;
        let mut values: Vec<f32> = (0..64 * 32)
            .map(|at| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let value = (state >> 8) as f32 / 8_388_608.0 - 1.0;
                value * 10_f32.powi(at / 32 % 9 - 4)
            })
            .collect();
        values[..32].fill(0.0);
        values[64..96].fill(1.0);
        // Halves, and the largest magnitude twice with both signs.
        (0..32).for_each(|at| values[96 + at] = at as f32 - 15.5);
        values[96] = 127.0;
        values[128] = -3.0;
        values[129..159].fill(3.0);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for dtype in ENCODED_TYPES {
            let wanted = expected(dtype, &values);
            for set in InstructionSet::available() {
                let mut out = vec![0; wanted.len()];
                quantize_on(set, dtype, &bytes, &mut out).unwrap();
                assert!(out == wanted, "{dtype}");
            }
        }
        assert!(quantize(Dtype::Q8_0, &bytes[..124], &mut [0; 34]).is_err());
        assert!(quantize(Dtype::Q5_0, &bytes[..128], &mut [0; 22]).is_err());
        quantize(Dtype::Q4_0, &[0xff; 128], &mut [0; 18]).unwrap();
    }
}
