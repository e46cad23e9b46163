//! [`Cells`] with AVX2.

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::cells::Cells;
use super::tables::{COMPRESSIONS, EXPANSIONS};

/// Calls an intrinsic that uses registers only, so the set is its only requirement.
macro_rules! with_proof {
    ($proof:ident, $call:expr) => {{
        let Avx2 { .. } = $proof;
        // SAFETY: an `Avx2` exists only where `detect` found every feature that
        // intrinsics in this file need, and the call reads and writes no memory.
        unsafe { $call }
    }};
}

/// All bits of the bytes whose bits are set in `mask`.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes_of_mask(mask: u32) -> __m256i {
    let which = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(mask.cast_signed()), which);
    _mm256_cmpeq_epi8(_mm256_and_si256(spread, bits), bits)
}

/// Bytes where the low and the high vector alternate in lanes of `LANE` bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn interleave<const LANE: usize>(low: __m256i, high: __m256i) -> [__m256i; 2] {
    let (first, last) = match LANE {
        1 => (_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)),
        2 => (_mm256_unpacklo_epi16(low, high), _mm256_unpackhi_epi16(low, high)),
        _ => (_mm256_unpacklo_epi32(low, high), _mm256_unpackhi_epi32(low, high)),
    };
    [_mm256_permute2x128_si256::<0x20>(first, last), _mm256_permute2x128_si256::<0x31>(first, last)]
}

/// The reverse of `interleave`.
#[inline]
#[target_feature(enable = "avx2")]
fn deinterleave<const LANE: usize>([first, last]: [__m256i; 2]) -> [__m256i; 2] {
    // In each 16 bytes, the lanes of the low vector first.
    let order = match LANE {
        1 => _mm256_setr_epi8(
            0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9,
            11, 13, 15,
        ),
        2 => _mm256_setr_epi8(
            0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10,
            11, 14, 15,
        ),
        _ => _mm256_setr_epi8(
            0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15, 0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12,
            13, 14, 15,
        ),
    };
    let first = _mm256_permute4x64_epi64::<0xd8>(_mm256_shuffle_epi8(first, order));
    let last = _mm256_permute4x64_epi64::<0xd8>(_mm256_shuffle_epi8(last, order));
    [_mm256_permute2x128_si256::<0x20>(first, last), _mm256_permute2x128_si256::<0x31>(first, last)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_left<const LANE: usize>(bytes: __m256i) -> __m256i {
    if LANE == 1 {
        let carried = _mm256_and_si256(_mm256_srli_epi16::<7>(bytes), _mm256_set1_epi8(1));
        return _mm256_or_si256(_mm256_add_epi8(bytes, bytes), carried);
    }
    _mm256_or_si256(_mm256_add_epi16(bytes, bytes), _mm256_srli_epi16::<15>(bytes))
}

#[inline]
#[target_feature(enable = "avx2")]
fn rotate_right<const LANE: usize>(bytes: __m256i) -> __m256i {
    if LANE == 1 {
        let moved = _mm256_and_si256(_mm256_srli_epi16::<1>(bytes), _mm256_set1_epi8(0x7f));
        let carried = _mm256_and_si256(_mm256_slli_epi16::<7>(bytes), _mm256_set1_epi8(-128));
        return _mm256_or_si256(moved, carried);
    }
    _mm256_or_si256(_mm256_srli_epi16::<1>(bytes), _mm256_slli_epi16::<15>(bytes))
}

/// Sixteen codes of the table that the low four bits of each byte select.
#[inline]
#[target_feature(enable = "avx2")]
fn look_up(codes: __m256i, table: __m128i) -> __m256i {
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
}

/// The place of each byte in `symbols`, by the bits of `mask` only. A byte that is not among them gets their number.
#[inline]
#[target_feature(enable = "avx2")]
fn code_of(bytes: __m256i, symbols: &[u8], mask: u8) -> __m256i {
    let bytes = _mm256_and_si256(bytes, _mm256_set1_epi8(mask.cast_signed()));
    let mut codes = _mm256_set1_epi8(symbols.len() as i8);
    // From the last, so that the first of equal ones counts.
    for (code, symbol) in symbols.iter().enumerate().rev() {
        let is_equal = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(symbol.cast_signed()));
        codes = _mm256_blendv_epi8(codes, _mm256_set1_epi8(code as i8), is_equal);
    }
    codes
}

/// Bit `j` of each byte, `up` = 7 - j.
#[inline]
#[target_feature(enable = "avx2")]
fn top_bits(bytes: __m256i, up: i32) -> u32 {
    _mm256_movemask_epi8(_mm256_sll_epi16(bytes, _mm_cvtsi32_si128(up))).cast_unsigned()
}

impl Avx2 {
    #[inline(always)]
    fn read_table(self, table: &[u8; 16]) -> __m128i {
        // SAFETY: the reference covers the 16 bytes; `self` proves AVX2, hence SSE2.
        unsafe { _mm_loadu_si128(table.as_ptr().cast()) }
    }
}

impl Cells for Avx2 {
    type Bytes = [__m256i; 2];

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> [__m256i; 2] {
        let mut out = [with_proof!(self, _mm256_setzero_si256()); 2];
        for (half, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *half = self.read(bytes);
        }
        out
    }

    #[inline(always)]
    fn store_bytes(self, codes: [__m256i; 2], bytes: &mut [u8; 64]) {
        for (half, bytes) in codes.into_iter().zip(bytes.as_chunks_mut().0) {
            self.write(half, bytes);
        }
    }

    #[inline(always)]
    fn or_bytes(self, [a, b]: [__m256i; 2], [c, d]: [__m256i; 2]) -> [__m256i; 2] {
        with_proof!(self, [_mm256_or_si256(a, c), _mm256_or_si256(b, d)])
    }

    #[inline(always)]
    fn bytes_of_bits<const WIDTH: usize>(self, words: [u64; WIDTH]) -> [__m256i; 2] {
        let mut out = [with_proof!(self, _mm256_setzero_si256()); 2];
        for (j, word) in words.iter().enumerate() {
            for (half, bits) in out.iter_mut().zip([*word as u32, (*word >> 32) as u32]) {
                *half = with_proof!(self, {
                    let set = _mm256_and_si256(bytes_of_mask(bits), _mm256_set1_epi8(1 << j));
                    _mm256_or_si256(*half, set)
                });
            }
        }
        out
    }

    #[inline(always)]
    fn bits_of_bytes<const WIDTH: usize>(self, [low, high]: [__m256i; 2]) -> [u64; WIDTH] {
        let mut words = [0; WIDTH];
        for (j, word) in words.iter_mut().enumerate() {
            let (low, high) = with_proof!(self, (top_bits(low, 7 - j as i32), top_bits(high, 7 - j as i32)));
            *word = u64::from(low) | u64::from(high) << 32;
        }
        words
    }

    #[inline(always)]
    fn look_up(self, [low, high]: [__m256i; 2], table: &[u8; 16]) -> [__m256i; 2] {
        let table = self.read_table(table);
        with_proof!(self, [look_up(low, table), look_up(high, table)])
    }

    #[inline(always)]
    fn codes(self, bytes: [__m256i; 2], symbols: &[u8], mask: u8, _: &[u8; 256]) -> [__m256i; 2] {
        // Comparisons, because a table of 256 bytes takes a load for each byte.
        with_proof!(self, [code_of(bytes[0], symbols, mask), code_of(bytes[1], symbols, mask)])
    }

    #[inline(always)]
    fn expand_bytes(self, bytes: [__m256i; 2], mask: u64, next: &[u8; 64]) -> [__m256i; 2] {
        if mask == 0 {
            return bytes;
        }
        let mut eights = [with_proof!(self, _mm_setzero_si128()); 8];
        let mut at = 0;
        for (eight, bits) in eights.iter_mut().zip(mask.to_le_bytes()) {
            // At most 8 bytes for each of the bytes before, so eight are left.
            let Some(source) = next.get(at..).and_then(|rest| rest.first_chunk::<8>()) else { break };
            // SAFETY: the references cover 8 bytes each; `self` proves AVX2, hence SSSE3.
            *eight = unsafe {
                let order = _mm_loadl_epi64(EXPANSIONS[usize::from(bits)].as_ptr().cast());
                _mm_shuffle_epi8(_mm_loadl_epi64(source.as_ptr().cast()), order)
            };
            at += bits.count_ones() as usize;
        }
        // Joined in registers: a load would wait until eight stores are done.
        let [a, b, c, d, e, f, g, h] = eights;
        let spread = with_proof!(
            self,
            [
                _mm256_set_m128i(_mm_unpacklo_epi64(c, d), _mm_unpacklo_epi64(a, b)),
                _mm256_set_m128i(_mm_unpacklo_epi64(g, h), _mm_unpacklo_epi64(e, f))
            ]
        );
        self.or_bytes(bytes, spread)
    }

    #[inline(always)]
    fn compress_bytes(self, bytes: [__m256i; 2], mask: u64, out: &mut [u8; 64]) {
        if mask == 0 {
            return;
        }
        let mut stored = [0; 64];
        self.store_bytes(bytes, &mut stored);
        let mut at = 0;
        for (i, eight) in stored.as_chunks::<8>().0.iter().enumerate() {
            let bits = (mask >> (8 * i)) as u8;
            // At most 8 bytes came of each of the eights before, so there is room for eight.
            let Some(place) = out.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<8>()) else { break };
            // SAFETY: the references cover 8 bytes each; `self` proves AVX2, hence SSSE3.
            *place = unsafe {
                let order = _mm_loadl_epi64(COMPRESSIONS[usize::from(bits)].as_ptr().cast());
                let source = _mm_loadl_epi64(eight.as_ptr().cast());
                _mm_cvtsi128_si64(_mm_shuffle_epi8(source, order)).to_le_bytes()
            };
            at += bits.count_ones() as usize;
        }
    }

    #[inline(always)]
    fn interleave<const LANE: usize>(self, low: [__m256i; 2], high: [__m256i; 2]) -> [[__m256i; 2]; 2] {
        with_proof!(self, [interleave::<LANE>(low[0], high[0]), interleave::<LANE>(low[1], high[1])])
    }

    #[inline(always)]
    fn deinterleave<const LANE: usize>(self, [first, last]: [[__m256i; 2]; 2]) -> [[__m256i; 2]; 2] {
        let [[a, b], [c, d]] = with_proof!(self, [deinterleave::<LANE>(first), deinterleave::<LANE>(last)]);
        [[a, c], [b, d]]
    }

    #[inline(always)]
    fn rotate_left<const LANE: usize>(self, bytes: [__m256i; 2]) -> [__m256i; 2] {
        let [low, high] = bytes;
        with_proof!(self, [rotate_left::<LANE>(low), rotate_left::<LANE>(high)])
    }

    #[inline(always)]
    fn rotate_right<const LANE: usize>(self, bytes: [__m256i; 2]) -> [__m256i; 2] {
        let [low, high] = bytes;
        with_proof!(self, [rotate_right::<LANE>(low), rotate_right::<LANE>(high)])
    }
}
