//! Decodes the types of two, three and four levels, and NVFP4.

use super::{E2M1, LARGE, SMALL, half, scaled, take};

/// Values of a Q1_0 block.
pub(super) const Q1_0_VALUES: usize = 128;
/// Values of a Q2_0 or NVFP4 block.
pub(super) const MEDIUM: usize = 64;

#[inline(always)]
pub(super) fn q1_0(block: &[u8; 18]) -> [f32; Q1_0_VALUES] {
    let block = &mut block.as_slice();
    let d = half(block).to_bits();
    let mut out = [0.0; Q1_0_VALUES];
    for (out, bits) in out.as_chunks_mut::<SMALL>().0.iter_mut().zip(take::<16>(block).as_chunks().0) {
        let bits = !u32::from_le_bytes(*bits);
        for (i, value) in out.iter_mut().enumerate() {
            // A clear bit changes the sign of d.
            *value = f32::from_bits(d ^ (bits >> i & 1) << 31);
        }
    }
    out
}

#[inline(always)]
pub(super) fn q2_0(block: &[u8; 18]) -> [f32; MEDIUM] {
    let block = &mut block.as_slice();
    let d = half(block);
    let mut out = [0.0; MEDIUM];
    for (out, bits) in out.as_chunks_mut::<16>().0.iter_mut().zip(take::<16>(block).as_chunks().0) {
        let bits = u32::from_le_bytes(*bits);
        for (i, value) in out.iter_mut().enumerate() {
            *value = d * ((bits >> (2 * i) & 3) as i32 - 1) as f32;
        }
    }
    out
}

#[inline(always)]
pub(super) fn tq2_0(block: &[u8; 66]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let codes = take::<64>(block);
    let d = half(block);
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        // 32 bytes hold 128 values: the lowest two bits of each, then the next two.
        let mut row = [0; SMALL];
        for (code, byte) in row.iter_mut().zip(&codes[i / 4 * SMALL..]) {
            *code = byte >> (i % 4 * 2) & 3;
        }
        *out = scaled(d, row, -1);
    }
    out
}

/// The powers of three that bring each digit of a byte of five digits to its top.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// The digits at one place of bytes in base three, which are fractions of 256.
#[inline(always)]
fn digits<const N: usize>(d: f32, bytes: &[u8], power: u8, out: &mut [f32; N]) {
    for (value, byte) in out.iter_mut().zip(bytes) {
        let digit = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as i16 - 1;
        *value = d * f32::from(digit);
    }
}

#[inline(always)]
pub(super) fn tq1_0(block: &[u8; 54]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let (first, second, last) = (take::<32>(block), take::<16>(block), take::<4>(block));
    let d = half(block);
    let mut out = [0.0; LARGE];
    let (of_first, rest) = out.split_at_mut(160);
    let (of_second, of_last) = rest.split_at_mut(80);
    for (out, power) in of_first.as_chunks_mut::<32>().0.iter_mut().zip(POWERS) {
        digits(d, first, power, out);
    }
    for (out, power) in of_second.as_chunks_mut::<16>().0.iter_mut().zip(POWERS) {
        digits(d, second, power, out);
    }
    for (out, power) in of_last.as_chunks_mut::<4>().0.iter_mut().zip(POWERS) {
        digits(d, last, power, out);
    }
    out
}

/// Half of the value of an e4m3 number without its sign. ggml takes the code of NaN for 0.
#[inline(always)]
fn half_of_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 15), u32::from(code & 7));
    match (code, exponent) {
        (0x7f, _) => 0.0,
        // 2^-10 m: the value is m 2^-9.
        (_, 0) => mantissa as f32 * (1.0 / 1024.0),
        _ => f32::from_bits((exponent + 119) << 23 | mantissa << 20),
    }
}

#[inline(always)]
pub(super) fn nvfp4(block: &[u8; 36]) -> [f32; MEDIUM] {
    let block = &mut block.as_slice();
    let scales = take::<4>(block);
    let mut out = [0.0; MEDIUM];
    for (out, scale) in out.as_chunks_mut::<16>().0.iter_mut().zip(scales) {
        let (codes, scale) = (take::<8>(block), half_of_e4m3(*scale));
        let (low, high) = out.split_at_mut(8);
        for ((low, high), code) in low.iter_mut().zip(high).zip(codes) {
            *low = scale * f32::from(E2M1[usize::from(code & 15)]);
            *high = scale * f32::from(E2M1[usize::from(code >> 4)]);
        }
    }
    out
}
