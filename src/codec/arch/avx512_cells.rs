//! [`Cells`] with AVX-512, VBMI and VBMI2.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::cells::Cells;

/// Calls an intrinsic that uses registers only, so the set is its only requirement.
macro_rules! with_proof {
    ($proof:ident, $call:expr) => {{
        let Avx512 { .. } = $proof;
        // SAFETY: an `Avx512` exists only where `detect` found every feature that
        // intrinsics in this file need, and the call reads and writes no memory.
        unsafe { $call }
    }};
}

/// For lanes of `LANE` bytes, the bytes of two vectors that form vector `HALF` of the interleaved ones.
/// Numbers from 64 on count in the second.
const fn interleaved<const LANE: usize>(half: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 64 {
        let (lane, byte) = ((64 * half + i) / LANE, i % LANE);
        out[i] = (64 * (lane % 2) + lane / 2 * LANE + byte) as u8;
        i += 1;
    }
    out
}

/// For lanes of `LANE` bytes, the bytes of two interleaved vectors that belong to vector `which`.
const fn deinterleaved<const LANE: usize>(which: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 64 {
        out[i] = (i / LANE * 2 * LANE + which * LANE + i % LANE) as u8;
        i += 1;
    }
    out
}

struct Order<const LANE: usize>;

impl<const LANE: usize> Order<LANE> {
    const INTERLEAVED: [[u8; 64]; 2] = [interleaved::<LANE>(0), interleaved::<LANE>(1)];
    const DEINTERLEAVED: [[u8; 64]; 2] = [deinterleaved::<LANE>(0), deinterleaved::<LANE>(1)];
}

/// Rotates bytes left by `LEFT` bits, the sum of which with `RIGHT` is 8.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn rotate_bytes<const LEFT: u32, const RIGHT: u32>(bytes: __m512i) -> __m512i {
    let left = _mm512_slli_epi16::<LEFT>(bytes);
    let right = _mm512_srli_epi16::<RIGHT>(bytes);
    let upper = _mm512_set1_epi8((0xffu32 << LEFT) as i8);
    // Bits of `left` where `upper` is set, else those of `right`.
    _mm512_ternarylogic_epi32::<0xca>(upper, left, right)
}

impl<const BF16: bool> Avx512<BF16> {
    #[inline(always)]
    fn permute_both(self, [a, b]: [__m512i; 2], order: &[u8; 64]) -> __m512i {
        let order = self.load_bytes(order);
        with_proof!(self, _mm512_permutex2var_epi8(a, order, b))
    }
}

impl<const BF16: bool> Cells for Avx512<BF16> {
    type Bytes = __m512i;

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> __m512i {
        self.read(bytes)
    }

    #[inline(always)]
    fn store_bytes(self, codes: __m512i, bytes: &mut [u8; 64]) {
        self.write(codes, bytes);
    }

    #[inline(always)]
    fn or_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        with_proof!(self, _mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn bytes_of_bits<const WIDTH: usize>(self, words: [u64; WIDTH]) -> __m512i {
        let mut bytes = with_proof!(self, _mm512_maskz_mov_epi8(words[0], _mm512_set1_epi8(1)));
        for (j, word) in words.iter().enumerate().skip(1) {
            // The bits of the codes are disjoint, so adding sets them.
            bytes = with_proof!(self, _mm512_mask_add_epi8(bytes, *word, bytes, _mm512_set1_epi8(1 << j)));
        }
        bytes
    }

    #[inline(always)]
    fn bits_of_bytes<const WIDTH: usize>(self, bytes: __m512i) -> [u64; WIDTH] {
        let mut words = [0; WIDTH];
        for (j, word) in words.iter_mut().enumerate() {
            *word = with_proof!(self, _mm512_test_epi8_mask(bytes, _mm512_set1_epi8(1 << j)));
        }
        words
    }

    #[inline(always)]
    fn look_up(self, codes: __m512i, table: &[u8; 16]) -> __m512i {
        let table = self.read_quarter(Some(table));
        with_proof!(self, _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes))
    }

    #[inline(always)]
    fn codes(self, bytes: __m512i, _: &[u8], _: u8, table: &[u8; 256]) -> __m512i {
        let mut quarters = [bytes; 4];
        for (quarter, table) in quarters.iter_mut().zip(table.as_chunks().0) {
            *quarter = self.load_bytes(table);
        }
        let [a, b, c, d] = quarters;
        with_proof!(self, {
            let low = _mm512_permutex2var_epi8(a, bytes, b);
            let high = _mm512_permutex2var_epi8(c, bytes, d);
            _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(bytes), high)
        })
    }

    #[inline(always)]
    fn expand_bytes(self, bytes: __m512i, mask: u64, next: &[u8; 64]) -> __m512i {
        let next = self.load_bytes(next);
        with_proof!(self, _mm512_mask_expand_epi8(bytes, mask, next))
    }

    #[inline(always)]
    fn compress_bytes(self, bytes: __m512i, mask: u64, out: &mut [u8; 64]) {
        // To a register first, because the form that stores is slow on Zen 4.
        let packed = with_proof!(self, _mm512_maskz_compress_epi8(mask, bytes));
        self.store_bytes(packed, out);
    }

    #[inline(always)]
    fn interleave<const LANE: usize>(self, low: __m512i, high: __m512i) -> [__m512i; 2] {
        let [first, last] = &Order::<LANE>::INTERLEAVED;
        [self.permute_both([low, high], first), self.permute_both([low, high], last)]
    }

    #[inline(always)]
    fn deinterleave<const LANE: usize>(self, both: [__m512i; 2]) -> [__m512i; 2] {
        let [low, high] = &Order::<LANE>::DEINTERLEAVED;
        [self.permute_both(both, low), self.permute_both(both, high)]
    }

    #[inline(always)]
    fn rotate_left<const LANE: usize>(self, bytes: __m512i) -> __m512i {
        if LANE == 1 {
            return with_proof!(self, rotate_bytes::<1, 7>(bytes));
        }
        with_proof!(self, _mm512_shldi_epi16::<1>(bytes, bytes))
    }

    #[inline(always)]
    fn rotate_right<const LANE: usize>(self, bytes: __m512i) -> __m512i {
        if LANE == 1 {
            return with_proof!(self, rotate_bytes::<7, 1>(bytes));
        }
        with_proof!(self, _mm512_shrdi_epi16::<1>(bytes, bytes))
    }
}
