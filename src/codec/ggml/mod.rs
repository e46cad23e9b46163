//! Decodes the quantized blocks of ggml, as GGUF files have them, to f32; `quantize.rs` encodes some.
//!
//! Source: `ggml-common.h` and `ggml-quants.c` of <https://github.com/ggml-org/ggml>. The values agree bit
//! for bit with `dequantize` of the Python package `gguf` 0.19. Numbers are little-endian; d, m and dmin are
//! f16; "nibbles" are the low four bits of each byte, then the high four.
//!
//! | type | values | fields of a block | value |
//! |---|---|---|---|
//! | Q4_0 | 32 | d, 16 bytes of nibbles q | d (q - 8) |
//! | Q4_1 | 32 | d, m, nibbles q | d q + m |
//! | Q5_0 | 32 | d, u32 of fifth bits, nibbles q | d (q - 16) |
//! | Q5_1 | 32 | d, m, u32 of fifth bits, nibbles q | d q + m |
//! | Q8_0 | 32 | d, 32 i8 q | d q |
//! | Q2_K | 256 | 16 scales (nibbles s, t), 64 bytes of 2-bit q, d, dmin | (d s) q - dmin t |
//! | Q3_K | 256 | 32 bytes of third bits h, 64 bytes of 2-bit q, 12 bytes of 6-bit scales s, d | (d (s - 32)) (q - 4 (1 - h)) |
//! | Q4_K | 256 | d, dmin, 12 bytes of 6-bit s and t, 128 bytes of nibbles q | (d s) q - dmin t |
//! | Q5_K | 256 | d, dmin, 12 bytes of 6-bit s and t, 32 bytes of fifth bits, nibbles q | (d s) q - dmin t |
//! | Q6_K | 256 | 128 bytes of nibbles, 64 bytes of 2 upper bits, 16 i8 s, d | (d s) (q - 32) |
//! | IQ4_NL | 32 | d, nibbles q | d table\[q\] |
//! | IQ4_XS | 256 | d, u16 of upper bits of 6-bit s, 4 bytes of nibbles of s, nibbles q | (d (s - 32)) table\[q\] |
//! | MXFP4 | 32 | a power of two e, nibbles q | 2^(e - 128) (twice the e2m1 value of q) |
//! | NVFP4 | 64 | 4 e4m3 s, each for 16 values, nibbles q of each 8 bytes | s (e2m1 value of q); s has no sign, and is 0 for NaN |
//! | Q1_0 | 128 | d, 16 bytes of bits q | d (2 q - 1) |
//! | Q2_0 | 64 | d, 16 bytes of 2-bit q, lowest first | d (q - 1) |
//! | TQ1_0 | 256 | 48 bytes of five digits q of base 3, 4 bytes of four, d | d (q - 1) |
//! | TQ2_0 | 256 | 64 bytes of 2-bit q, d | d (q - 1) |
//! | IQ1_S | 256 | d, 32 lower bytes of points, 8 u16: 3 upper bits of 4 points, 3-bit s, sign t | d (2 s + 1) (p + t/8) |
//! | IQ1_M | 256 | 32 lower bytes of points, 16 bytes: 3 upper bits and t of 2 points, 4 u16: 3-bit s, a quarter of d | d (2 s + 1) (p + t/8) |
//! | IQ2_XXS | 256 | d, 8 times 4 points and u32: 7 signs of each point, 4-bit s | d (s + 1/2) / 4 p |
//! | IQ2_XS | 256 | d, 32 u16: 9 bits of a point, 7 signs, 8 bytes of nibbles s | d (s + 1/2) / 4 p |
//! | IQ2_S | 256 | d, 32 lower bytes of points, 32 bytes of signs, 8 bytes of 2 upper bits, 8 bytes of nibbles s | d (s + 1/2) / 4 p |
//! | IQ3_XXS | 256 | d, 64 points of 4 values, 8 u32: 7 signs of each 8 values, 4-bit s | d (s + 1/2) / 2 p |
//! | IQ3_S | 256 | d, 64 lower bytes of points, 8 bytes of upper bits, 32 bytes of signs, 4 bytes of nibbles s | d (2 s + 1) p |
//!
//! p are the values of the points in `grids.rs` with their signs. Of eight signs seven are stored where the number of minuses is
//! even. `gguf` 0.19 does not decode Q1_0 and Q2_0; their values are those of `ggml-quants.c`.

mod few_bits;
mod grids;
mod lattice;
mod quantize;

use std::marker::PhantomData;

use half::f16;

use super::arch::{InstructionSet, Job, Kernel};
use crate::model::{Dtype, Error, Result};
use few_bits::{MEDIUM, Q1_0_VALUES, nvfp4, q1_0, q2_0, tq1_0, tq2_0};
pub use quantize::{ENCODED_TYPES, quantize, quantize_on};

use lattice::{iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};

/// The types that are decoded.
pub const TYPES: [Dtype; 25] = [
    Dtype::Q4_0,
    Dtype::Q4_1,
    Dtype::Q5_0,
    Dtype::Q5_1,
    Dtype::Q8_0,
    Dtype::Q2_K,
    Dtype::Q3_K,
    Dtype::Q4_K,
    Dtype::Q5_K,
    Dtype::Q6_K,
    Dtype::IQ4_NL,
    Dtype::IQ4_XS,
    Dtype::MXFP4,
    Dtype::Q1_0,
    Dtype::Q2_0,
    Dtype::TQ1_0,
    Dtype::TQ2_0,
    Dtype::IQ1_S,
    Dtype::IQ1_M,
    Dtype::IQ2_XXS,
    Dtype::IQ2_XS,
    Dtype::IQ2_S,
    Dtype::IQ3_XXS,
    Dtype::IQ3_S,
    Dtype::NVFP4,
];

/// Decodes whole blocks of a type to little-endian f32.
///
/// Fails with [`Invalid`](crate::model::ErrorKind::Invalid) for a type that is not in [`TYPES`], and if
/// `blocks` are not whole blocks, or `out` has not four bytes for each of their values.
pub fn dequantize(dtype: Dtype, blocks: &[u8], out: &mut [u8]) -> Result<()> {
    dequantize_on(InstructionSet::detected(), dtype, blocks, out)
}

/// [`dequantize`] with this set of instructions.
pub fn dequantize_on(set: InstructionSet, dtype: Dtype, blocks: &[u8], out: &mut [u8]) -> Result<()> {
    let values = dtype.elements_in(blocks.len() as u64);
    if dtype.bytes_of(values) != Some(blocks.len() as u64) || values.checked_mul(4) != Some(out.len() as u64)
    {
        return Err(Error::invalid(format!(
            "{} bytes of {dtype} blocks do not give {} bytes of f32",
            blocks.len(),
            out.len()
        )));
    }
    match dtype {
        Dtype::Q4_0 => set.run(Dequantize::<Q40, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q4_1 => set.run(Dequantize::<Q41, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q5_0 => set.run(Dequantize::<Q50, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q5_1 => set.run(Dequantize::<Q51, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q8_0 => set.run(Dequantize::<Q80, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q2_K => set.run(Dequantize::<Q2K, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q3_K => set.run(Dequantize::<Q3K, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q4_K => set.run(Dequantize::<Q4K, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q5_K => set.run(Dequantize::<Q5K, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q6_K => set.run(Dequantize::<Q6K, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::IQ4_NL => set.run(Dequantize::<Iq4Nl, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::IQ4_XS => set.run(Dequantize::<Iq4Xs, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::MXFP4 => set.run(Dequantize::<Mxfp4, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q1_0 => set.run(Dequantize::<Q10, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::Q2_0 => set.run(Dequantize::<Q20, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::TQ1_0 => set.run(Dequantize::<Tq10, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::TQ2_0 => set.run(Dequantize::<Tq20, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::IQ1_S => set.run(Dequantize::<Iq1S, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::IQ1_M => set.run(Dequantize::<Iq1M, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::IQ2_XXS => set.run(Dequantize::<Iq2Xxs, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::IQ2_XS => set.run(Dequantize::<Iq2Xs, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::IQ2_S => set.run(Dequantize::<Iq2S, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::IQ3_XXS => set.run(Dequantize::<Iq3Xxs, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::IQ3_S => set.run(Dequantize::<Iq3S, _, _> { blocks, out, decoder: PhantomData }),
        Dtype::NVFP4 => set.run(Dequantize::<Nvfp4, _, _> { blocks, out, decoder: PhantomData }),
        _ => return Err(Error::invalid(format!("{dtype} blocks are not decoded"))),
    }
    Ok(())
}

/// Values of a small block.
const SMALL: usize = 32;
/// Values of a block of the "K" types.
const LARGE: usize = 256;

/// Decodes blocks of `BYTES` bytes to `VALUES` values each. The lengths have been checked.
struct Dequantize<'a, D, const BYTES: usize, const VALUES: usize> {
    blocks: &'a [u8],
    out: &'a mut [u8],
    decoder: PhantomData<D>,
}

/// Decodes a block. A trait, because a function that is passed as a value is not always inlined, and would then be
/// compiled for no instruction set. Nor are `array::map` and `array::from_fn`, so this file has loops; only tables, which
/// no set looks up in, are faster by `map`.
trait Decoder<const BYTES: usize, const VALUES: usize> {
    fn decode(block: &[u8; BYTES]) -> [f32; VALUES];
}

macro_rules! decoders {
    ($($name:ident: $bytes:literal to $values:ident by $function:ident,)*) => {$(
        struct $name;
        impl Decoder<$bytes, $values> for $name {
            #[inline(always)]
            fn decode(block: &[u8; $bytes]) -> [f32; $values] {
                $function(block)
            }
        }
    )*};
}

decoders! {
    Q40: 18 to SMALL by q4_0,
    Q41: 20 to SMALL by q4_1,
    Q50: 22 to SMALL by q5_0,
    Q51: 24 to SMALL by q5_1,
    Q80: 34 to SMALL by q8_0,
    Q2K: 84 to LARGE by q2_k,
    Q3K: 110 to LARGE by q3_k,
    Q4K: 144 to LARGE by q4_k,
    Q5K: 176 to LARGE by q5_k,
    Q6K: 210 to LARGE by q6_k,
    Iq4Nl: 18 to SMALL by iq4_nl,
    Iq4Xs: 136 to LARGE by iq4_xs,
    Mxfp4: 17 to SMALL by mxfp4,
    Q10: 18 to Q1_0_VALUES by q1_0,
    Q20: 18 to MEDIUM by q2_0,
    Tq10: 54 to LARGE by tq1_0,
    Tq20: 66 to LARGE by tq2_0,
    Iq1S: 50 to LARGE by iq1_s,
    Iq1M: 56 to LARGE by iq1_m,
    Iq2Xxs: 66 to LARGE by iq2_xxs,
    Iq2Xs: 74 to LARGE by iq2_xs,
    Iq2S: 82 to LARGE by iq2_s,
    Iq3Xxs: 98 to LARGE by iq3_xxs,
    Iq3S: 110 to LARGE by iq3_s,
    Nvfp4: 36 to MEDIUM by nvfp4,
}

impl<D, const BYTES: usize, const VALUES: usize> Job for Dequantize<'_, D, BYTES, VALUES>
where
    D: Decoder<BYTES, VALUES>,
{
    type Output = ();

    #[inline(always)]
    fn run<K: Kernel>(self, _: K) {
        let outs = self.out.chunks_exact_mut(VALUES * 4);
        for (block, out) in self.blocks.as_chunks().0.iter().zip(outs) {
            let values = D::decode(block);
            for (bytes, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                *bytes = value.to_le_bytes();
            }
        }
    }
}

/// The next `LEN` bytes of a block.
#[inline(always)]
fn take<'a, const LEN: usize>(block: &mut &'a [u8]) -> &'a [u8; LEN] {
    const { assert!(LEN <= 128) };
    // Blocks are arrays, so the compiler knows their lengths.
    match block.split_first_chunk() {
        Some((first, rest)) => {
            *block = rest;
            first
        }
        None => &[0; LEN],
    }
}

/// The next two bytes as an f16.
#[inline(always)]
fn half(block: &mut &[u8]) -> f32 {
    f16::from_le_bytes(*take(block)).to_f32()
}

/// The low four bits of 16 bytes, then the high four.
#[inline(always)]
fn nibbles(bytes: &[u8; 16]) -> [u8; SMALL] {
    let mut out = [0; SMALL];
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
    out
}

/// The same, with a fifth bit each.
#[inline(always)]
fn five_bits(bytes: &[u8; 16], fifth: &[u8; 4]) -> [u8; SMALL] {
    let (mut out, fifth) = (nibbles(bytes), u32::from_le_bytes(*fifth));
    for (i, code) in out.iter_mut().enumerate() {
        *code |= ((fifth >> i & 1) as u8) << 4;
    }
    out
}

/// Values `d (code + offset)`.
#[inline(always)]
fn scaled(d: f32, codes: [u8; SMALL], offset: i8) -> [f32; SMALL] {
    let mut out = [0.0; SMALL];
    for (value, code) in out.iter_mut().zip(&codes) {
        *value = d * f32::from(*code as i8 + offset);
    }
    out
}

/// Values `d code + m`.
#[inline(always)]
fn moved(d: f32, codes: [u8; SMALL], m: f32) -> [f32; SMALL] {
    let mut out = [0.0; SMALL];
    for (value, code) in out.iter_mut().zip(&codes) {
        *value = d * f32::from(*code) + m;
    }
    out
}

/// Values `d table[code]` of codes of four bits.
#[inline(always)]
fn looked_up(d: f32, codes: [u8; SMALL], table: &[i8; 16]) -> [f32; SMALL] {
    let codes = codes.map(|code| table[usize::from(code & 15)] as u8);
    scaled(d, codes, 0)
}

#[inline(always)]
fn q4_0(block: &[u8; 18]) -> [f32; SMALL] {
    let block = &mut block.as_slice();
    let d = half(block);
    scaled(d, nibbles(take(block)), -8)
}

#[inline(always)]
fn q4_1(block: &[u8; 20]) -> [f32; SMALL] {
    let block = &mut block.as_slice();
    let (d, m) = (half(block), half(block));
    moved(d, nibbles(take(block)), m)
}

#[inline(always)]
fn q5_0(block: &[u8; 22]) -> [f32; SMALL] {
    let block = &mut block.as_slice();
    let (d, fifth) = (half(block), take(block));
    scaled(d, five_bits(take(block), fifth), -16)
}

#[inline(always)]
fn q5_1(block: &[u8; 24]) -> [f32; SMALL] {
    let block = &mut block.as_slice();
    let (d, m, fifth) = (half(block), half(block), take(block));
    moved(d, five_bits(take(block), fifth), m)
}

#[inline(always)]
fn q8_0(block: &[u8; 34]) -> [f32; SMALL] {
    let block = &mut block.as_slice();
    let d = half(block);
    scaled(d, *take(block), 0)
}

#[inline(always)]
fn q2_k(block: &[u8; 84]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let (scales, codes) = (take::<16>(block), take::<64>(block));
    let (d, dmin) = (half(block), half(block));
    let mut out = [0.0; LARGE];
    let rows = out.as_chunks_mut::<SMALL>().0.iter_mut().zip(scales.as_chunks::<2>().0);
    for (i, (out, [one, other])) in rows.enumerate() {
        let (scale, min) = (halves(one & 15, other & 15), halves(one >> 4, other >> 4));
        // 32 bytes hold 128 values: the lowest two bits of each, then the next two.
        let codes = &codes[i / 4 * 32..][..32];
        for (((value, code), scale), min) in out.iter_mut().zip(codes).zip(scale).zip(min) {
            *value = d * scale * f32::from(code >> (i % 4 * 2) & 3) - dmin * min;
        }
    }
    out
}

/// A value for each of 32 codes, of which 16 have the same. Loops over 16 codes do not become vectors.
#[inline(always)]
fn halves(one: u8, other: u8) -> [f32; SMALL] {
    let mut out = [f32::from(one); SMALL];
    out[16..].fill(f32::from(other));
    out
}

#[inline(always)]
fn q3_k(block: &[u8; 110]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let (third, codes, packed) = (take::<32>(block), take::<64>(block), take::<12>(block));
    let d = half(block);
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        let scale = d * f32::from((low | high << 4) as i8 - 32);
        let (first, shift) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2 * 2);
        let codes = codes[first..first + 16].iter().zip(&third[i % 2 * 16..][..16]);
        for (value, (code, third)) in out.iter_mut().zip(codes) {
            // The third bit is stored inverted.
            let offset = (!third >> (i / 2) & 1) << 2;
            *value = scale * f32::from((code >> shift & 3) as i8 - offset as i8);
        }
    }
    out
}

/// The eight scales and minima, of 6 bits, of a Q4_K or Q5_K block.
#[inline(always)]
fn scales_and_minima(packed: &[u8; 12]) -> [(f32, f32); 8] {
    let mut out = [(0.0, 0.0); 8];
    for (i, out) in out.iter_mut().enumerate() {
        let (scale, min) = if i < 4 {
            (packed[i] & 63, packed[4 + i] & 63)
        } else {
            let low = packed[4 + i];
            (low & 15 | packed[i - 4] >> 2 & 48, low >> 4 | packed[i] >> 2 & 48)
        };
        *out = (f32::from(scale), f32::from(min));
    }
    out
}

#[inline(always)]
fn q4_k(block: &[u8; 144]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let (d, dmin) = (half(block), half(block));
    let (scales, codes) = (scales_and_minima(take(block)), take::<128>(block));
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let (scale, min) = (d * scales[i].0, dmin * scales[i].1);
        for (value, code) in out.iter_mut().zip(&codes[i / 2 * SMALL..][..SMALL]) {
            *value = scale * f32::from(code >> (i % 2 * 4) & 15) - min;
        }
    }
    out
}

#[inline(always)]
fn q5_k(block: &[u8; 176]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let (d, dmin) = (half(block), half(block));
    let scales = scales_and_minima(take(block));
    let (fifth, codes) = (take::<32>(block), take::<128>(block));
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let (scale, min) = (d * scales[i].0, dmin * scales[i].1);
        let codes = codes[i / 2 * SMALL..][..SMALL].iter().zip(fifth);
        for (value, (code, fifth)) in out.iter_mut().zip(codes) {
            let code = code >> (i % 2 * 4) & 15 | (fifth >> i & 1) << 4;
            *value = scale * f32::from(code) - min;
        }
    }
    out
}

#[inline(always)]
fn q6_k(block: &[u8; 210]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let (low, high, scales) = (take::<128>(block), take::<64>(block), take::<16>(block));
    let d = half(block);
    let mut out = [0.0; LARGE];
    let rows = out.as_chunks_mut::<SMALL>().0.iter_mut().zip(scales.as_chunks::<2>().0);
    for (i, (out, [one, other])) in rows.enumerate() {
        let mut scale = [d * f32::from(*one as i8); SMALL];
        scale[16..].fill(d * f32::from(*other as i8));
        // 64 bytes of nibbles and 32 of upper bits hold 128 values.
        let (part, row) = (i / 4, i % 4);
        let low = &low[part * 64 + row % 2 * 32..][..32];
        let high = &high[part * 32..][..32];
        for ((value, scale), (low, high)) in out.iter_mut().zip(scale).zip(low.iter().zip(high)) {
            let code = low >> (row / 2 * 4) & 15 | (high >> (row * 2) & 3) << 4;
            *value = scale * f32::from(code as i8 - 32);
        }
    }
    out
}

/// The values of the codes of IQ4_NL and IQ4_XS.
const NONLINEAR: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[inline(always)]
fn iq4_nl(block: &[u8; 18]) -> [f32; SMALL] {
    let block = &mut block.as_slice();
    let d = half(block);
    looked_up(d, nibbles(take(block)), &NONLINEAR)
}

#[inline(always)]
fn iq4_xs(block: &[u8; 136]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let (d, high) = (half(block), u16::from_le_bytes(*take(block)));
    let (low, codes) = (take::<4>(block), take::<128>(block));
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let scale = low[i / 2] >> (i % 2 * 4) & 15 | ((high >> (2 * i) & 3) as u8) << 4;
        let scale = d * f32::from(scale as i8 - 32);
        let Some(codes) = codes[i * 16..].first_chunk() else { continue };
        *out = looked_up(scale, nibbles(codes), &NONLINEAR);
    }
    out
}

/// The values of e2m1 codes, doubled.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

#[inline(always)]
fn mxfp4(block: &[u8; 17]) -> [f32; SMALL] {
    let block = &mut block.as_slice();
    let [exponent] = *take(block);
    // Half of 2^(e - 127), since the table has doubled values. The two smallest are subnormal.
    let bits = if exponent < 2 { 0x0020_0000 << exponent } else { u32::from(exponent - 1) << 23 };
    let d = f32::from_bits(bits);
    looked_up(d, nibbles(take(block)), &E2M1)
}
