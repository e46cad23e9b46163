//! NEON: converts the codes of a group from and to streams and floats.

use std::arch::aarch64::*;

use super::kernel::Spread;
use super::tables::{Join, quarter};
use crate::codec::payload::largest_code;

/// For each quarter of a stream, the byte that each code begins in, or the one `after` it. A place past the quarter's
/// sixteen bytes gives a zero.
const fn bytes_of_codes(bits: usize, after: usize) -> [[u8; 16]; 4] {
    let mut places = [[0; 16]; 4];
    let mut i = 0;
    while i < 64 {
        places[i / 16][i % 16] = (i * bits / 8 + after - quarter(bits, i / 16)) as u8;
        i += 1;
    }
    places
}

/// For each code of a quarter, `up` minus its first bit in its byte.
const fn shifts(bits: usize, up: i8) -> [u8; 16] {
    let mut shifts = [0; 16];
    let mut i = 0;
    while i < 16 {
        shifts[i] = (up - (i * bits % 8) as i8).cast_unsigned();
        i += 1;
    }
    shifts
}

/// The places of the codes of `BITS` bits.
struct Places<const BITS: usize>;

impl<const BITS: usize> Places<BITS> {
    const BYTES: [[[u8; 16]; 4]; 2] = [bytes_of_codes(BITS, 0), bytes_of_codes(BITS, 1)];
    const SHIFTS: [[u8; 16]; 2] = [shifts(BITS, 0), shifts(BITS, 8)];
}

/// For each quarter of a vector, its bytes as the highest ones of lanes of 32 bits; zeros below.
static HIGHEST: [[u8; 16]; 4] = {
    let mut places = [[0x80; 16]; 4];
    let mut i = 0;
    while i < 16 {
        places[i / 4][i % 4 * 4 + 3] = i as u8;
        i += 1;
    }
    places
};

#[inline]
#[target_feature(enable = "neon")]
fn read(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference covers the 16 bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn read_signed(bytes: &[u8; 16]) -> int8x16_t {
    vreinterpretq_s8_u8(read(bytes))
}

/// The unsigned codes of quarter `number` of a stream.
#[inline]
#[target_feature(enable = "neon")]
fn expand_quarter<const BITS: usize>(stream: &[u8], number: usize) -> uint8x16_t {
    let Some(bytes) = stream[quarter(BITS, number)..].first_chunk() else { return vdupq_n_u8(0) };
    let bytes = read(bytes);
    let ([first, next], [down, up]) = (&Places::<BITS>::BYTES, &Places::<BITS>::SHIFTS);
    let first = vshlq_u8(vqtbl1q_u8(bytes, read(&first[number])), read_signed(down));
    let next = vshlq_u8(vqtbl1q_u8(bytes, read(&next[number])), read_signed(up));
    vandq_u8(vorrq_u8(first, next), vdupq_n_u8((1 << BITS) - 1))
}

/// The unsigned codes, of 3, 5 or 7 bits, of a stream of `8 * BITS` bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn expand<const BITS: usize>(stream: &[u8]) -> [uint8x16_t; 4] {
    let stream = &stream[..8 * BITS];
    [
        expand_quarter::<BITS>(stream, 0),
        expand_quarter::<BITS>(stream, 1),
        expand_quarter::<BITS>(stream, 2),
        expand_quarter::<BITS>(stream, 3),
    ]
}

/// Joins the codes of each eight bytes, of 3, 5 or 7 bits, as [`Spread`] says. The bytes after the first `BITS` of each run
/// are meaningless.
#[inline]
#[target_feature(enable = "neon")]
fn gather<const BITS: usize>(codes: uint8x16_t) -> uint8x16_t {
    let mut runs = vreinterpretq_u64_u8(codes);
    let [halves, quarters, eighths] = Spread::<BITS>::STEPS;
    for (distance, _, _, go) in [eighths, quarters, halves] {
        let moved = vshlq_u64(runs, vdupq_n_s64(-i64::from(distance)));
        runs = vbslq_u64(vdupq_n_u64(go), moved, runs);
    }
    vreinterpretq_u8_u64(runs)
}

/// The reverse of `expand`.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn compress<const BITS: usize>(codes: [uint8x16_t; 4], stream: &mut [u8]) {
    let join = read(&Join::<BITS>::ORDER);
    // Each quarter is stored as a whole vector, whose unused end the next one overwrites.
    let mut bytes = [0; 64];
    for (number, codes) in codes.into_iter().enumerate() {
        if let Some(bytes) = bytes[2 * BITS * number..].first_chunk_mut::<16>() {
            let joined = vqtbl1q_u8(gather::<BITS>(codes), join);
            // SAFETY: the reference covers the 16 bytes.
            unsafe { vst1q_u8(bytes.as_mut_ptr(), joined) }
        }
    }
    stream.copy_from_slice(&bytes[..8 * BITS]);
}

/// Four signed bytes of `codes`, at `places`, as f32.
#[inline]
#[target_feature(enable = "neon")]
fn widen_four(codes: uint8x16_t, places: &[u8; 16]) -> float32x4_t {
    // As the highest bytes of integers they have their signs, and the conversion takes 24 binary places off.
    vcvtq_n_f32_s32::<24>(vreinterpretq_s32_u8(vqtbl1q_u8(codes, read(places))))
}

/// Sixteen signed bytes as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn widen(codes: uint8x16_t) -> [float32x4_t; 4] {
    let [a, b, c, d] = &HIGHEST;
    [widen_four(codes, a), widen_four(codes, b), widen_four(codes, c), widen_four(codes, d)]
}

/// The lower halves of eight integers.
#[inline]
#[target_feature(enable = "neon")]
fn lower_halves(low: float32x4_t, high: float32x4_t) -> uint16x8_t {
    let low = vreinterpretq_u16_s32(vcvtq_s32_f32(low));
    vuzp1q_u16(low, vreinterpretq_u16_s32(vcvtq_s32_f32(high)))
}

/// Sixteen integers in -128..=127 as signed bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn narrow([a, b, c, d]: [float32x4_t; 4]) -> uint8x16_t {
    let low = vreinterpretq_u8_u16(lower_halves(a, b));
    vuzp1q_u8(low, vreinterpretq_u8_u16(lower_halves(c, d)))
}

/// The bits of four values, and the number whose addition rounds their upper halves, ties to even.
#[inline]
#[target_feature(enable = "neon")]
fn bits_and_rounding(value: float32x4_t) -> (uint32x4_t, uint32x4_t) {
    let bits = vreinterpretq_u32_f32(value);
    // All bits set, where the upper half is odd, is one less than zero.
    let odd = vtstq_u32(bits, vdupq_n_u32(1 << 16));
    (bits, vsubq_u32(vdupq_n_u32(0x7fff), odd))
}

/// Eight values, none a NaN, as bf16, ties to even.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn narrow_bf16(low: float32x4_t, high: float32x4_t) -> uint16x8_t {
    let (bits, rounding) = bits_and_rounding(low);
    let four = vaddhn_u32(bits, rounding);
    let (bits, rounding) = bits_and_rounding(high);
    vaddhn_high_u32(four, bits, rounding)
}

/// The products of sixteen codes of `BITS` bits, from `first` on, with a scale, as bf16: the lower bytes and the upper.
#[inline]
#[target_feature(enable = "neon")]
fn products<const BITS: usize>(first: i8, scale: f32) -> [uint8x16_t; 2] {
    let sixteen = vcombine_u8(vcreate_u8(0x0706_0504_0302_0100), vcreate_u8(0x0f0e_0d0c_0b0a_0908));
    let offset = vdupq_n_u8((first - largest_code(BITS)).cast_unsigned());
    let [a, b, c, d] = widen(vaddq_u8(sixteen, offset));
    let low = narrow_bf16(vmulq_n_f32(a, scale), vmulq_n_f32(b, scale));
    let high = narrow_bf16(vmulq_n_f32(c, scale), vmulq_n_f32(d, scale));
    let (low, high) = (vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
    [vuzp1q_u8(low, high), vuzp2q_u8(low, high)]
}

/// The products of unsigned codes, of 3 or 5 bits, with a scale, as bf16.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn bf16_products<const BITS: usize>(codes: [uint8x16_t; 4], scale: f32) -> [[uint8x16_t; 2]; 4] {
    // There are at most 32 codes, so the product of each is rounded once and then looked up.
    let [low, high] = products::<BITS>(0, scale);
    let [more_low, more_high] = if BITS == 3 { [low, high] } else { products::<BITS>(16, scale) };
    let mut out = [[low; 2]; 4];
    for (out, codes) in out.iter_mut().zip(codes) {
        let low = vqtbl2q_u8(uint8x16x2_t(low, more_low), codes);
        let high = vqtbl2q_u8(uint8x16x2_t(high, more_high), codes);
        *out = [vzip1q_u8(low, high), vzip2q_u8(low, high)];
    }
    out
}
