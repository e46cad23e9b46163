//! AVX-512 with byte permutations (F, BW, DQ, VL, VBMI, VBMI2): Ice Lake, Zen 4 and later; with
//! BF16 too: Zen 4, Sapphire Rapids and later.

use std::arch::x86_64::*;

use super::avx512_codes::{Permutations, UPPER_HALVES, Words};
use super::kernel::{Group, Job, Kernel, store_bf16_each};

/// Proof that the processor supports the set and, with `BF16`, the conversion to bf16. Only
/// [`Avx512::detect`] creates it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Avx512<const BF16: bool>(());

impl<const BF16: bool> Avx512<BF16> {
    /// The proof, if the processor and the operating system support the whole set.
    pub(super) fn detect() -> Option<Avx512<BF16>> {
        let has_all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("popcnt")
            && (!BF16 || is_x86_feature_detected!("avx512bf16"));
        has_all.then_some(Avx512(()))
    }
}

/// Calls an intrinsic that uses registers only, so the set is its only requirement.
macro_rules! with_proof {
    ($proof:ident, $call:expr) => {{
        let Avx512(()) = $proof;
        // SAFETY: an `Avx512` exists only where `detect` found every feature that
        // intrinsics in this file need, and the call reads and writes no memory.
        unsafe { $call }
    }};
}

// These are functions with the target features, because closures would be compiled without them.

/// Sixteen signed bytes as f32.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen(codes: __m128i) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))
}

/// The bits of sixteen values, rounded ties to even to their upper halves. The lower halves
/// are meaningless.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_to_upper_half(values: __m512) -> __m512i {
    let bits = _mm512_castps_si512(values);
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    _mm512_add_epi32(bits, half)
}

/// Thirty-two bf16 as a plain vector.
#[inline]
#[target_feature(enable = "avx512f")]
fn bits_of_bf16(values: __m512bh) -> __m512i {
    // SAFETY: both have 64 bytes, and every bit pattern is valid.
    unsafe { std::mem::transmute(values) }
}

/// Sixteen integers as signed bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn narrow(values: __m512) -> __m128i {
    _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(values))
}

/// Adds eight differences in f64 to the maxima and the sums of squares.
#[inline]
#[target_feature(enable = "avx512f")]
fn more_difference(largest: __m512d, sums: __m512d, a: __m256, b: __m256) -> (__m512d, __m512d) {
    let difference = _mm512_sub_pd(_mm512_cvtps_pd(a), _mm512_cvtps_pd(b));
    let largest = _mm512_max_pd(largest, _mm512_abs_pd(difference));
    (largest, _mm512_add_pd(sums, _mm512_mul_pd(difference, difference)))
}

impl<const BF16: bool> Avx512<BF16> {
    #[inline(always)]
    pub(super) fn read(self, bytes: &[u8; 64]) -> __m512i {
        // SAFETY: the reference covers the 64 bytes; `self` proves AVX-512.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    pub(super) fn write(self, value: __m512i, bytes: &mut [u8; 64]) {
        // SAFETY: the reference covers the 64 bytes; `self` proves AVX-512.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), value) }
    }

    #[inline(always)]
    fn read_half(self, bytes: &[u8; 32]) -> __m256i {
        // SAFETY: the reference covers the 32 bytes; `self` proves AVX-512, hence AVX.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    /// Loads a stream of 24 to 64 bytes as its first and its last part, 16 or 32 bytes each.
    #[inline(always)]
    fn read_parts(self, stream: &[u8]) -> __m512i {
        // Two loads, because one masked load costs more on Zen 5.
        if let (Some(first), Some(last)) = (stream.first_chunk(), stream.last_chunk()) {
            let (first, last) = (self.read_half(first), self.read_half(last));
            return with_proof!(self, _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), last));
        }
        let (first, last) = (self.read_quarter(stream.first_chunk()), self.read_quarter(stream.last_chunk()));
        with_proof!(self, _mm512_inserti32x4::<1>(_mm512_castsi128_si512(first), last))
    }

    /// A pair as bf16, ties to even. No value may be subnormal if the conversion instruction is used.
    #[inline(always)]
    fn narrow(self, [low, high]: [__m512; 2]) -> __m512i {
        if BF16 {
            return with_proof!(self, bits_of_bf16(_mm512_cvtne2ps_pbh(high, low)));
        }
        let upper_halves = self.read(&UPPER_HALVES);
        // Both at once, because narrowing stores are slow on Zen 4 and 5.
        with_proof!(self, {
            let (low, high) = (round_to_upper_half(low), round_to_upper_half(high));
            _mm512_permutex2var_epi16(low, upper_halves, high)
        })
    }

    #[inline(always)]
    pub(super) fn read_quarter(self, bytes: Option<&[u8; 16]>) -> __m128i {
        let bytes = bytes.unwrap_or(&[0; 16]);
        // SAFETY: the reference covers the 16 bytes; `self` proves AVX-512, hence SSE2.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn write_half(self, value: __m256i, bytes: &mut [u8; 32]) {
        // SAFETY: the reference covers the 32 bytes; `self` proves AVX-512, hence AVX.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
    }
}

impl<const BF16: bool> Kernel for Avx512<BF16> {
    type Lanes = __m512;
    const HAS_WIDE_REGISTERS: bool = true;
    const HAS_FUSED: bool = true;

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,popcnt")]
        fn compiled<J: Job>(kernel: Avx512<false>, job: J) -> J::Output {
            job.run(kernel)
        }
        #[target_feature(
            enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,popcnt,avx512bf16"
        )]
        fn compiled_bf16<J: Job>(kernel: Avx512<true>, job: J) -> J::Output {
            job.run(kernel)
        }
        // SAFETY: `self` proves that the processor has the features.
        unsafe {
            if BF16 && J::STORES_BF16 { compiled_bf16(Avx512(()), job) } else { compiled(Avx512(()), job) }
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        with_proof!(self, _mm512_set1_ps(value))
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> __m512 {
        let bits = self.read(bytes);
        with_proof!(self, _mm512_castsi512_ps(bits))
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> __m512 {
        let bits = self.read_half(bytes);
        with_proof!(self, _mm512_cvtph_ps(bits))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> __m512 {
        let bits = self.read_half(bytes);
        with_proof!(self, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))))
    }

    #[inline(always)]
    fn store_f32(self, values: __m512, bytes: &mut [u8; 64]) {
        self.write(with_proof!(self, _mm512_castps_si512(values)), bytes);
    }

    #[inline(always)]
    fn store_f16(self, values: __m512, bytes: &mut [u8; 32]) {
        let bits = with_proof!(self, _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values));
        self.write_half(bits, bytes);
    }

    #[inline(always)]
    fn store_bf16(self, values: __m512, bytes: &mut [u8; 32]) {
        let rounded = with_proof!(self, {
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(round_to_upper_half(values)))
        });
        self.write_half(rounded, bytes);
    }

    #[inline(always)]
    fn store_bf16_pair(self, pair: [__m512; 2], bytes: &mut [u8; 64]) {
        self.write(self.narrow(pair), bytes);
    }

    #[inline(always)]
    fn store_bf16_products<const BITS: usize>(self, stream: &[u8], scale: f32, bytes: &mut [u8; 128]) {
        if BITS > 5 {
            return store_bf16_each::<Self, BITS>(self, stream, scale, bytes);
        }
        // There are at most 32 codes, so the product of each is rounded once and then looked up.
        let all =
            Words::<BITS>::CODES.each_ref().map(|codes| self.mul(self.load_f32(codes), self.splat(scale)));
        let products = self.narrow(all);
        let packed = self.read_parts(stream);
        for (half, bytes) in bytes.as_chunks_mut().0.iter_mut().enumerate() {
            let split = self.read(&Words::<BITS>::SPLIT[half]);
            let starts = self.read(&Words::<BITS>::STARTS[half]);
            // Other bits of a lane do not matter: the lookup uses five bits, and eight products
            // are repeated four times.
            let found = with_proof!(self, {
                let codes = _mm512_srlv_epi16(_mm512_permutexvar_epi8(split, packed), starts);
                _mm512_permutexvar_epi16(codes, products)
            });
            self.write(found, bytes);
        }
    }

    #[inline(always)]
    fn look_up_pairs<const IS_UPPER_FIRST: bool>(
        self,
        products: &[u8; 32],
        codes: &[u8; 16],
        bytes: &mut [u8; 64],
    ) {
        let (products, codes) = (self.read_half(products), self.read_quarter(Some(codes)));
        // The look-up uses five bits of a lane. The products are there twice, so only four count, and other bits may be
        // those of the other code.
        let found = with_proof!(self, {
            let products = _mm512_broadcast_i64x4(products);
            let pairs = _mm512_cvtepu8_epi32(codes);
            let codes = if IS_UPPER_FIRST {
                _mm512_or_si512(_mm512_srli_epi32::<4>(pairs), _mm512_slli_epi32::<16>(pairs))
            } else {
                _mm512_or_si512(pairs, _mm512_slli_epi32::<12>(pairs))
            };
            _mm512_permutexvar_epi16(codes, products)
        });
        self.write(found, bytes);
    }

    const HAS_LONG_TABLES: bool = true;

    #[inline(always)]
    fn look_up_signed(self, products: &[u8; 256], codes: &[u8; 64], bytes: &mut [u8; 128]) {
        let [lower, more_lower, upper, more_upper] = products.as_chunks::<64>().0 else { return };
        let [lower, more_lower, upper, more_upper] =
            [lower, more_lower, upper, more_upper].map(|quarter| self.read(quarter));
        let codes = self.read(codes);
        let halves = with_proof!(self, {
            // Interleaving works in 128-bit lanes: it takes the lower half of each lane, then the upper.
            let codes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), codes);
            let signs = _mm512_and_si512(codes, _mm512_set1_epi8(i8::MIN));
            let lower = _mm512_permutex2var_epi8(lower, codes, more_lower);
            let upper = _mm512_xor_si512(_mm512_permutex2var_epi8(upper, codes, more_upper), signs);
            [_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)]
        });
        for (half, bytes) in halves.into_iter().zip(bytes.as_chunks_mut().0) {
            self.write(half, bytes);
        }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        with_proof!(self, _mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        with_proof!(self, _mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        with_proof!(self, _mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        with_proof!(self, _mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        with_proof!(self, _mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        with_proof!(self, _mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        with_proof!(self, _mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn less(self, a: __m512, b: __m512) -> u16 {
        with_proof!(self, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }

    #[inline(always)]
    fn select(self, mask: u16, set: __m512, clear: __m512) -> __m512 {
        with_proof!(self, _mm512_mask_blend_ps(mask, clear, set))
    }

    #[inline(always)]
    fn sum(self, values: __m512) -> f32 {
        with_proof!(self, {
            let upper = _mm512_extractf32x8_ps::<1>(values);
            let eight = _mm256_add_ps(_mm512_castps512_ps256(values), upper);
            let upper = _mm256_extractf128_ps::<1>(eight);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), upper);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn difference(self, a: Group<Self>, b: Group<Self>) -> (f64, f64) {
        with_proof!(self, {
            let (mut largest, mut sums) = (_mm512_setzero_pd(), _mm512_setzero_pd());
            for i in 0..4 {
                let (low_a, low_b) = (_mm512_castps512_ps256(a[i]), _mm512_castps512_ps256(b[i]));
                (largest, sums) = more_difference(largest, sums, low_a, low_b);
                let high_a = _mm512_extractf32x8_ps::<1>(a[i]);
                let high_b = _mm512_extractf32x8_ps::<1>(b[i]);
                (largest, sums) = more_difference(largest, sums, high_a, high_b);
            }
            let four = _mm256_add_pd(_mm512_castpd512_pd256(sums), _mm512_extractf64x4_pd::<1>(sums));
            let two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd::<1>(four));
            let sum = _mm_add_sd(two, _mm_unpackhi_pd(two, two));
            (_mm512_reduce_max_pd(largest), _mm_cvtsd_f64(sum))
        })
    }

    #[inline(always)]
    fn larger_magnitude(self, a: __m512, b: __m512) -> __m512 {
        with_proof!(self, {
            let positive = _mm512_set1_epi32(i32::MAX);
            let a = _mm512_and_si512(_mm512_castps_si512(a), positive);
            let b = _mm512_and_si512(_mm512_castps_si512(b), positive);
            _mm512_castsi512_ps(_mm512_max_epi32(a, b))
        })
    }

    #[inline(always)]
    fn largest(self, values: __m512) -> f32 {
        with_proof!(self, f32::from_bits(_mm512_reduce_max_epu32(_mm512_castps_si512(values))))
    }

    #[inline(always)]
    fn shift_codes(self, codes: __m512i, offset: i8) -> __m512i {
        with_proof!(self, _mm512_add_epi8(codes, _mm512_set1_epi8(offset)))
    }

    #[inline(always)]
    fn expand<const BITS: usize>(self, stream: &[u8]) -> __m512i {
        assert_eq!(stream.len(), 8 * BITS);
        if let (8, Some(codes)) = (BITS, stream.first_chunk()) {
            return self.read(codes);
        }
        let packed = self.read_parts(stream);
        let split = self.read(&Permutations::<BITS>::SPLIT);
        let starts = self.read(&Permutations::<BITS>::STARTS);
        with_proof!(self, {
            let lanes = _mm512_permutexvar_epi8(split, packed);
            let codes = _mm512_multishift_epi64_epi8(starts, lanes);
            _mm512_and_si512(codes, _mm512_set1_epi8(((1 << BITS) - 1) as i8))
        })
    }

    #[inline(always)]
    fn compress<const BITS: usize>(self, codes: __m512i, stream: &mut [u8]) {
        assert_eq!(stream.len(), 8 * BITS);
        let join = self.read(&Permutations::<BITS>::JOIN);
        let packed = with_proof!(self, {
            if BITS == 8 {
                codes
            } else {
                // Combines pairs to a + b * 2^BITS: bytes, then 16-bit lanes, then halves.
                let second = _mm512_set1_epi16(1 | 1 << (BITS + 8));
                let pairs = _mm512_maddubs_epi16(second, codes);
                let second = _mm512_set1_epi32(1 | 1 << (2 * BITS + 16));
                let fours = _mm512_madd_epi16(pairs, second);
                let low = _mm512_and_si512(fours, _mm512_set1_epi64((1 << (4 * BITS)) - 1));
                let high = _mm512_slli_epi64::<32>(_mm512_srli_epi64::<32>(fours));
                let high = _mm512_srlv_epi64(high, _mm512_set1_epi64(32 - 4 * BITS as i64));
                _mm512_permutexvar_epi8(join, _mm512_or_si512(low, high))
            }
        });
        // SAFETY: the mask selects the first 8 * BITS bytes, which the check above has shown to
        // exist, and no other byte is accessed; `self` proves AVX-512.
        unsafe {
            _mm512_mask_storeu_epi8(stream.as_mut_ptr().cast(), Permutations::<BITS>::STREAM, packed);
        }
    }

    #[inline(always)]
    fn lanes_of(self, codes: __m512i) -> Group<Self> {
        with_proof!(
            self,
            [
                widen(_mm512_castsi512_si128(codes)),
                widen(_mm512_extracti32x4_epi32::<1>(codes)),
                widen(_mm512_extracti32x4_epi32::<2>(codes)),
                widen(_mm512_extracti32x4_epi32::<3>(codes)),
            ]
        )
    }

    #[inline(always)]
    fn bytes_of(self, values: Group<Self>) -> __m512i {
        with_proof!(self, {
            let low = _mm512_castsi128_si512(narrow(values[0]));
            let low = _mm512_inserti32x4::<1>(low, narrow(values[1]));
            let low = _mm512_inserti32x4::<2>(low, narrow(values[2]));
            _mm512_inserti32x4::<3>(low, narrow(values[3]))
        })
    }
}
