//! AVX2: decodes a group of codes to f32 or bf16, sixteen at a time, straight from its stream.

use std::arch::x86_64::*;

use super::avx2::halves;
use super::avx2_codes::read_at;
use super::tables::quarter;
use crate::codec::payload::largest_code;

/// The sixteen codes of a quarter, in 16-bit lanes: lane i has code i, or, if `HALVES`, lanes 2 i and 2 i + 1 have codes i
/// and i + 8.
struct Sixteen<const BITS: usize, const HALVES: bool>;

impl<const BITS: usize, const HALVES: bool> Sixteen<BITS, HALVES> {
    /// For each quarter, the two bytes of its sixteen that contain a code. A place past them gives a zero.
    const SPLIT: [[u8; 32]; 4] = {
        let mut split = [[0x80; 32]; 4];
        let mut i = 0;
        while i < 64 {
            let (number, lane) = (i / 16, i % 16);
            let code = 16 * number + Self::code(lane);
            let at = code * BITS / 8 - quarter(BITS, number);
            split[number][2 * lane] = at as u8;
            if at + 1 < 16 {
                split[number][2 * lane + 1] = (at + 1) as u8;
            }
            i += 1;
        }
        split
    };

    /// The factors that make the code of each lane its highest bits.
    const FACTORS: [u8; 32] = {
        let mut factors = [0; 32];
        let mut lane = 0;
        while lane < 16 {
            let factor = 1_u16 << (16 - BITS - Self::code(lane) * BITS % 8);
            [factors[2 * lane], factors[2 * lane + 1]] = factor.to_le_bytes();
            lane += 1;
        }
        factors
    };

    const fn code(lane: usize) -> usize {
        if HALVES { lane / 2 + lane % 2 * 8 } else { lane }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn read_both(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn write_both(value: __m256i, bytes: &mut [u8; 32]) {
    // SAFETY: the reference covers the 32 bytes.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
}

/// The codes of quarter `number` in the highest bits of 16-bit lanes, above other bits.
#[inline]
#[target_feature(enable = "avx2")]
fn highest<const BITS: usize, const HALVES: bool>(stream: &[u8], number: usize) -> __m256i {
    let bytes = _mm256_broadcastsi128_si256(read_at(stream, quarter(BITS, number)));
    let pairs = _mm256_shuffle_epi8(bytes, read_both(&Sixteen::<BITS, HALVES>::SPLIT[number]));
    _mm256_mullo_epi16(pairs, read_both(&Sixteen::<BITS, HALVES>::FACTORS))
}

/// The signed codes of quarter `number`, those of the lower and those of the upper 16-bit lanes, as f32.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes<const BITS: usize, const HALVES: bool>(stream: &[u8], number: usize) -> [__m256; 2] {
    let codes = if BITS == 8 {
        _mm256_cvtepi8_epi16(read_at(stream, 16 * number))
    } else {
        let codes = highest::<BITS, HALVES>(stream, number);
        let codes = _mm256_srl_epi16(codes, _mm_cvtsi32_si128(16 - BITS as i32));
        _mm256_sub_epi16(codes, _mm256_set1_epi16(i16::from(largest_code(BITS))))
    };
    // Products with 1 and 0 extend the signs of the lower lanes.
    let lower = _mm256_madd_epi16(codes, _mm256_set1_epi32(1));
    [_mm256_cvtepi32_ps(lower), _mm256_cvtepi32_ps(_mm256_srai_epi32::<16>(codes))]
}

/// The bits of the products, rounded ties to even to their upper halves. The lower halves are meaningless.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn round_to_upper_half(values: __m256) -> __m256i {
    let bits = _mm256_castps_si256(values);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    _mm256_add_epi32(bits, half)
}

/// The values as bf16, ties to even: those of `even` in the even lanes, those of `odd` in the odd ones.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow_both(even: __m256, odd: __m256) -> __m256i {
    let [even, odd] = [_mm256_castps_si256(even), _mm256_castps_si256(odd)];
    let upper = _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(even), odd);
    let lower = _mm256_blend_epi16::<0xaa>(even, _mm256_slli_epi32::<16>(odd));
    // A lower half rounds up if it is above 0x8000, or equal to it below an odd upper half: one less for an even upper
    // half leaves the highest bit to say so. Steps for both at once take two instructions less than two roundings.
    let is_even = _mm256_andnot_si256(upper, _mm256_set1_epi16(1));
    let rounds_up = _mm256_srai_epi16::<15>(_mm256_subs_epu16(lower, is_even));
    _mm256_sub_epi16(upper, rounds_up)
}

/// The products of a group's codes, of 5, 7 or 8 bits, with `scale`, as bf16.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_bf16<const BITS: usize>(stream: &[u8], scale: f32, bytes: &mut [u8; 128]) {
    let stream = &stream[..8 * BITS];
    let scale = _mm256_set1_ps(scale);
    for (number, bytes) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
        let [even, odd] = lanes::<BITS, false>(stream, number);
        write_both(narrow_both(_mm256_mul_ps(even, scale), _mm256_mul_ps(odd, scale)), bytes);
    }
}

/// The products of the eight codes of 3 bits with `scale`.
#[inline]
#[target_feature(enable = "avx2")]
fn eight_products(scale: f32) -> __m256 {
    _mm256_mul_ps(_mm256_setr_ps(-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0), _mm256_set1_ps(scale))
}

/// As [`store_bf16`] for 3 bits: eight products have sixteen bytes, so each is rounded once and then looked up.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_bf16_looked_up(stream: &[u8], scale: f32, bytes: &mut [u8; 128]) {
    let stream = &stream[..24];
    let products = _mm256_srli_epi32::<16>(round_to_upper_half(eight_products(scale)));
    let products = _mm256_permute4x64_epi64::<0b10_00_10_00>(_mm256_packus_epi32(products, products));
    for (number, bytes) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
        let codes = _mm256_and_si256(highest::<3, false>(stream, number), _mm256_set1_epi16(0x7 << 13));
        // The factor moves the code down by 12 and by 4 bits: both bytes then have twice the code.
        let twice = _mm256_mulhi_epu16(codes, _mm256_set1_epi16(0x1010));
        let places = _mm256_or_si256(twice, _mm256_set1_epi16(0x100));
        write_both(_mm256_shuffle_epi8(products, places), bytes);
    }
}

/// The products of a group's codes, of 5 or 7 bits, with `scale`, as f32.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_f32<const BITS: usize>(stream: &[u8], scale: f32, bytes: &mut [u8; 256]) {
    let stream = &stream[..8 * BITS];
    let scale = _mm256_set1_ps(scale);
    for (number, both) in bytes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        let eights = lanes::<BITS, true>(stream, number);
        for (eight, bytes) in eights.into_iter().zip(both.as_chunks_mut().0) {
            write_both(_mm256_castps_si256(_mm256_mul_ps(eight, scale)), bytes);
        }
    }
}

/// As [`store_f32`] for 3 bits: a permutation looks up eight products by the low bits of its lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_f32_looked_up(stream: &[u8], scale: f32, bytes: &mut [u8; 256]) {
    let stream = &stream[..24];
    let products = eight_products(scale);
    let starts = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
    let last_starts = _mm256_setr_epi32(8, 11, 14, 17, 20, 23, 26, 29);
    for (number, bytes) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
        // The last eight codes are in the upper bytes of the last four.
        let (at, starts) = if number < 7 { (3 * number, starts) } else { (20, last_starts) };
        let Some(codes) = stream[at..].first_chunk() else { break };
        let codes = _mm256_srlv_epi32(_mm256_set1_epi32(i32::from_le_bytes(*codes)), starts);
        write_both(_mm256_castps_si256(_mm256_permutevar8x32_ps(products, codes)), bytes);
    }
}

/// The products that sixteen bytes of two codes of four bits name.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn look_up_pairs<const IS_UPPER_FIRST: bool>(
    products: &[u8; 32],
    codes: &[u8; 16],
    bytes: &mut [u8; 64],
) {
    // The lower byte of each product, then the upper bytes.
    let split =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    let split = _mm256_shuffle_epi8(read_both(products), split);
    let [lower, upper] = halves(_mm256_permute4x64_epi64::<0b11_01_10_00>(split));
    let [lower, upper] = [_mm256_broadcastsi128_si256(lower), _mm256_broadcastsi128_si256(upper)];
    let low = _mm_set1_epi8(15);
    let codes = read_at(codes, 0);
    let [first, second] = [_mm_and_si128(codes, low), _mm_and_si128(_mm_srli_epi16::<4>(codes), low)];
    let [first, second] = if IS_UPPER_FIRST { [second, first] } else { [first, second] };
    let codes = _mm256_set_m128i(_mm_unpackhi_epi8(first, second), _mm_unpacklo_epi8(first, second));
    let [lower, upper] = [_mm256_shuffle_epi8(lower, codes), _mm256_shuffle_epi8(upper, codes)];
    // Interleaving works in 128-bit halves: quarters 0 and 2 of the products, and quarters 1 and 3.
    let [even, odd] = [_mm256_unpacklo_epi8(lower, upper), _mm256_unpackhi_epi8(lower, upper)];
    let (outs, _) = bytes.as_chunks_mut();
    let ordered =
        [_mm256_permute2x128_si256::<0x20>(even, odd), _mm256_permute2x128_si256::<0x31>(even, odd)];
    for (value, out) in ordered.into_iter().zip(outs) {
        write_both(value, out);
    }
}
