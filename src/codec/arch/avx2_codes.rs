//! AVX2: converts the codes of a group from and to streams and floats.

use std::arch::x86_64::*;

use super::avx2::halves;
use super::kernel::Spread;
use super::tables::{Join, quarter};

/// For each quarter, the bytes of its two runs of eight codes, one run per 64-bit lane.
const fn split(bits: usize) -> [[u8; 16]; 4] {
    let mut index = [[0x80; 16]; 4];
    let mut i = 0;
    while i < 64 {
        if i % 8 < bits {
            let at = i / 8 * bits + i % 8;
            index[i / 16][i % 16] = (at - quarter(bits, i / 16)) as u8;
        }
        i += 1;
    }
    index
}

/// The shuffles that begin with a stream of `BITS` bits.
struct Split<const BITS: usize>;

impl<const BITS: usize> Split<BITS> {
    const ORDERS: [[u8; 16]; 4] = split(BITS);
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn read(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Loads the sixteen bytes of the stream at `at`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn read_at(stream: &[u8], at: usize) -> __m128i {
    match stream[at..].first_chunk() {
        Some(bytes) => read(bytes),
        None => _mm_setzero_si128(),
    }
}

/// The runs of two quarters of a stream, from quarter `number`.
#[inline]
#[target_feature(enable = "avx2")]
fn runs<const BITS: usize>(stream: &[u8], number: usize) -> __m256i {
    let split = &Split::<BITS>::ORDERS;
    let low = _mm_shuffle_epi8(read_at(stream, quarter(BITS, number)), read(&split[number]));
    let next = number + 1;
    let high = _mm_shuffle_epi8(read_at(stream, quarter(BITS, next)), read(&split[next]));
    _mm256_set_m128i(high, low)
}

/// One step of spreading or gathering codes.
#[inline]
#[target_feature(enable = "avx2")]
fn merge(value: __m256i, moved: __m256i, stay: u64, go: u64) -> __m256i {
    _mm256_or_si256(
        _mm256_and_si256(value, _mm256_set1_epi64x(stay as i64)),
        _mm256_and_si256(moved, _mm256_set1_epi64x(go as i64)),
    )
}

/// Codes of 3, 5 or 7 bits, spread over bytes as [`Spread`] says.
#[inline]
#[target_feature(enable = "avx2")]
fn spread<const BITS: usize>(runs: __m256i) -> __m256i {
    let mut codes = runs;
    for (distance, stay, go, _) in Spread::<BITS>::STEPS {
        let moved = _mm256_sll_epi64(codes, _mm_cvtsi32_si128(distance as i32));
        codes = merge(codes, moved, stay, go);
    }
    codes
}

/// The reverse of `spread`.
#[inline]
#[target_feature(enable = "avx2")]
fn gather<const BITS: usize>(codes: __m256i) -> __m256i {
    let mut runs = codes;
    let [halves, quarters, eighths] = Spread::<BITS>::STEPS;
    for (distance, stay, _, go) in [eighths, quarters, halves] {
        let moved = _mm256_srl_epi64(runs, _mm_cvtsi32_si128(distance as i32));
        runs = merge(runs, moved, stay, go);
    }
    runs
}

/// The unsigned codes, of 3, 5 or 7 bits, of a stream of `8 * BITS` bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn expand<const BITS: usize>(stream: &[u8]) -> [__m256i; 2] {
    let stream = &stream[..8 * BITS];
    [spread::<BITS>(runs::<BITS>(stream, 0)), spread::<BITS>(runs::<BITS>(stream, 2))]
}

/// The reverse of `expand`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn compress<const BITS: usize>(codes: [__m256i; 2], stream: &mut [u8]) {
    let join = read(&Join::<BITS>::ORDER);
    let [a, b] = halves(gather::<BITS>(codes[0]));
    let [c, d] = halves(gather::<BITS>(codes[1]));
    // Each quarter is stored as a whole vector, whose unused end the next one overwrites.
    let mut bytes = [0; 64];
    for (number, runs) in [a, b, c, d].into_iter().enumerate() {
        if let Some(bytes) = bytes[2 * BITS * number..].first_chunk_mut::<16>() {
            // SAFETY: the reference covers the 16 bytes.
            unsafe {
                _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm_shuffle_epi8(runs, join));
            }
        }
    }
    stream.copy_from_slice(&bytes[..8 * BITS]);
}

/// Sixteen signed bytes as f32.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(codes: __m128i) -> [__m256; 2] {
    let high = _mm_unpackhi_epi64(codes, codes);
    [_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))]
}

/// Signed bytes as f32.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn lanes_of(codes: [__m256i; 2]) -> [[__m256; 2]; 4] {
    let [a, b] = halves(codes[0]);
    let [c, d] = halves(codes[1]);
    [widen(a), widen(b), widen(c), widen(d)]
}

/// Integers as 16-bit lanes, in each 128-bit half low before high.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow(values: [__m256; 2]) -> __m256i {
    _mm256_packs_epi32(_mm256_cvtps_epi32(values[0]), _mm256_cvtps_epi32(values[1]))
}

/// Integers in -128..=127 as signed bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn bytes_of(values: [[__m256; 2]; 4]) -> [__m256i; 2] {
    // Packing works in 128-bit halves, so groups of four bytes must be reordered.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let low = _mm256_packs_epi16(narrow(values[0]), narrow(values[1]));
    let high = _mm256_packs_epi16(narrow(values[2]), narrow(values[3]));
    [_mm256_permutevar8x32_epi32(low, order), _mm256_permutevar8x32_epi32(high, order)]
}
