//! Decodes the IQ types, whose blocks name points of the lattices in [`grids`].

use super::grids::{self, eights, fours};
use super::{LARGE, SMALL, half, take};

/// The levels of the points of the IQ2 types.
const TWO_BITS: [i8; 3] = [8, 25, 43];
/// Points of eight values.
static IQ2_XXS: [[i8; 8]; 256] = eights(grids::IQ2_XXS, TWO_BITS);
static IQ2_XS: [[i8; 8]; 512] = eights(grids::IQ2_XS, TWO_BITS);
static IQ2_S: [[i8; 8]; 1024] = eights(grids::IQ2_S, TWO_BITS);
/// Eight times the points of the IQ1 types, because one eighth is added to their values or subtracted.
static IQ1_S: [[i8; 8]; 2048] = eights(grids::IQ1_S, [-8, 0, 8]);
/// Points of four values.
static IQ3_XXS: [[i8; 4]; 256] = fours(grids::IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);
static IQ3_S: [[i8; 4]; 512] = fours(grids::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

/// For each byte of sign bits the signs of eight values: 0, or -1 for a minus.
static SIGNS: [[i8; 8]; 256] = {
    let mut out = [[0; 8]; 256];
    let mut i = 0;
    while i < 256 {
        let mut j = 0;
        while j < 8 {
            out[i][j] = -((i >> j & 1) as i8);
            j += 1;
        }
        i += 1;
    }
    out
};

/// Eight sign bits of which seven are stored: the number of minuses is even.
#[inline(always)]
fn even(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The values of a point with their signs.
#[inline(always)]
fn with_signs(point: [i8; 8], signs: u8) -> [i8; 8] {
    let mut out = point;
    for (value, sign) in out.iter_mut().zip(SIGNS[usize::from(signs)]) {
        *value = (*value ^ sign) - sign;
    }
    out
}

/// Two points of four values.
#[inline(always)]
fn pair([a, b, c, d]: [i8; 4], [e, f, g, h]: [i8; 4]) -> [i8; 8] {
    [a, b, c, d, e, f, g, h]
}

/// Values of 32 codes, of which 16 have the same scale.
#[inline(always)]
fn scaled_halves(one: f32, other: f32, codes: [i8; SMALL]) -> [f32; SMALL] {
    let mut out = [one; SMALL];
    out[16..].fill(other);
    for (value, code) in out.iter_mut().zip(codes) {
        *value *= f32::from(code);
    }
    out
}

/// The values of 32 codes.
#[inline(always)]
fn scaled_row(scale: f32, codes: [i8; SMALL]) -> [f32; SMALL] {
    scaled_halves(scale, scale, codes)
}

#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let d = half(block);
    let mut out = [0.0; LARGE];
    for out in out.as_chunks_mut::<SMALL>().0 {
        let (points, signs) = (take::<4>(block), u32::from_le_bytes(*take(block)));
        let mut codes = [0; SMALL];
        for (i, (codes, point)) in codes.as_chunks_mut().0.iter_mut().zip(points).enumerate() {
            *codes = with_signs(IQ2_XXS[usize::from(*point)], even(signs >> (7 * i)));
        }
        *out = scaled_row(d * (0.5 + (signs >> 28) as f32) * 0.25, codes);
    }
    out
}

/// The two scales of a row of an IQ2_XS or IQ2_S block.
#[inline(always)]
fn two_scales(d: f32, scales: u8) -> (f32, f32) {
    (d * (0.5 + f32::from(scales & 15)) * 0.25, d * (0.5 + f32::from(scales >> 4)) * 0.25)
}

#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let d = half(block);
    let (points, scales) = (take::<64>(block), take::<8>(block));
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let mut codes = [0; SMALL];
        let points = points[i * 8..][..8].as_chunks().0;
        for (codes, point) in codes.as_chunks_mut().0.iter_mut().zip(points) {
            let point = u16::from_le_bytes(*point);
            *codes = with_signs(IQ2_XS[usize::from(point & 511)], even(u32::from(point >> 9)));
        }
        let (one, other) = two_scales(d, scales[i]);
        *out = scaled_halves(one, other, codes);
    }
    out
}

#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let d = half(block);
    let (points, signs) = (take::<32>(block), take::<32>(block));
    let (high, scales) = (take::<8>(block), take::<8>(block));
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let mut codes = [0; SMALL];
        for (j, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            let point = usize::from(points[i * 4 + j]) | usize::from(high[i] >> (2 * j) & 3) << 8;
            *codes = with_signs(IQ2_S[point], signs[i * 4 + j]);
        }
        let (one, other) = two_scales(d, scales[i]);
        *out = scaled_halves(one, other, codes);
    }
    out
}

#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let d = half(block);
    let (points, rows) = (take::<64>(block), take::<32>(block));
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let signs = u32::from_le_bytes(*take(&mut &rows[i * 4..]));
        let mut codes = [0; SMALL];
        for (j, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            let [one, other] = *take(&mut &points[i * 8 + j * 2..]);
            let point = pair(IQ3_XXS[usize::from(one)], IQ3_XXS[usize::from(other)]);
            *codes = with_signs(point, even(signs >> (7 * j)));
        }
        *out = scaled_row(d * (0.5 + (signs >> 28) as f32) * 0.5, codes);
    }
    out
}

#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let d = half(block);
    let (points, high) = (take::<64>(block), take::<8>(block));
    let (signs, scales) = (take::<32>(block), take::<4>(block));
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let mut codes = [0; SMALL];
        for (j, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            let [one, other] = *take(&mut &points[i * 8 + j * 2..]);
            let high = usize::from(high[i] >> (2 * j));
            let one = IQ3_S[usize::from(one) | (high & 1) << 8];
            let other = IQ3_S[usize::from(other) | (high >> 1 & 1) << 8];
            *codes = with_signs(pair(one, other), signs[i * 4 + j]);
        }
        let scale = scales[i / 2] >> (i % 2 * 4) & 15;
        *out = scaled_row(d * f32::from(1 + 2 * scale), codes);
    }
    out
}

/// Eight times a point of the IQ1 types with one eighth added, or subtracted.
#[inline(always)]
fn moved_point(point: u16, is_less: bool) -> [i8; 8] {
    let delta = if is_less { -1 } else { 1 };
    let mut out = IQ1_S[usize::from(point & 2047)];
    for value in &mut out {
        *value += delta;
    }
    out
}

#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let d = half(block);
    let (points, rows) = (take::<32>(block), take::<16>(block));
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let row = u16::from_le_bytes(*take(&mut &rows[i * 2..]));
        let mut codes = [0; SMALL];
        for (j, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            let point = u16::from(points[i * 4 + j]) | (row >> (3 * j) & 7) << 8;
            *codes = moved_point(point, row & 0x8000 != 0);
        }
        let scale = d * f32::from(2 * (row >> 12 & 7) + 1);
        *out = scaled_row(scale * 0.125, codes);
    }
    out
}

#[inline(always)]
pub(super) fn iq1_m(block: &[u8; 56]) -> [f32; LARGE] {
    let block = &mut block.as_slice();
    let (points, high) = (take::<32>(block), take::<16>(block));
    let mut scales = [0; 4];
    let mut d = 0;
    for (i, scales) in scales.iter_mut().enumerate() {
        *scales = u16::from_le_bytes(*take(block));
        // The upper four bits are a quarter of d.
        d |= (*scales >> 12) << (4 * i);
    }
    let d = half(&mut d.to_le_bytes().as_slice());
    let mut out = [0.0; LARGE];
    for (i, out) in out.as_chunks_mut::<SMALL>().0.iter_mut().enumerate() {
        let mut codes = [0; SMALL];
        for (j, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
            let high = high[i * 2 + j / 2] >> (j % 2 * 4);
            let point = u16::from(points[i * 4 + j]) | u16::from(high & 7) << 8;
            *codes = moved_point(point, high & 8 != 0);
        }
        let scales = scales[i / 2] >> (i % 2 * 6);
        let of = |scale: u16| d * f32::from(2 * (scale & 7) + 1) * 0.125;
        *out = scaled_halves(of(scales), of(scales >> 3), codes);
    }
    out
}
