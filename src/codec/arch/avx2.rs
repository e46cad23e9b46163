//! AVX2 with F16C and FMA: Haswell, Zen and later. The few processors with AVX2 that lack one of these (of VIA) run the
//! scalar code, and `tierfs bench` names it.

use std::arch::x86_64::*;

use super::avx2_codes;
use super::avx2_products::{self, round_to_upper_half};
use super::cells::Cells;
use super::kernel::{Group, Job, Kernel, store_f32_each};

/// Proof that the processor supports the set. Only [`Avx2::detect`] creates it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    /// The proof, if the processor and the operating system support the whole set.
    pub(super) fn detect() -> Option<Avx2> {
        let has_all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("popcnt");
        has_all.then_some(Avx2(()))
    }
}

/// Calls an intrinsic that uses registers only, so the set is its only requirement.
macro_rules! with_proof {
    ($proof:ident, $call:expr) => {{
        let Avx2(()) = $proof;
        // SAFETY: an `Avx2` exists only where `detect` found every feature that
        // intrinsics in this file need, and the call reads and writes no memory.
        unsafe { $call }
    }};
}

impl Avx2 {
    #[inline(always)]
    pub(super) fn read(self, bytes: &[u8; 32]) -> __m256i {
        // SAFETY: the reference covers the 32 bytes; `self` proves AVX.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    pub(super) fn write(self, value: __m256i, bytes: &mut [u8; 32]) {
        // SAFETY: the reference covers the 32 bytes; `self` proves AVX.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
    }
}

// These are functions with the target features, because closures would be compiled without them.

/// The two halves of a vector.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn halves(both: __m256i) -> [__m128i; 2] {
    [_mm256_castsi256_si128(both), _mm256_extracti128_si256::<1>(both)]
}

#[inline]
#[target_feature(enable = "avx2")]
fn widen_bf16(eight: __m128i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(eight)))
}

/// The bits of bf16 in 32-bit lanes, rounded ties to even.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow_bf16(value: __m256) -> __m256i {
    _mm256_srli_epi32::<16>(round_to_upper_half(value))
}

/// All bits of the lanes whose bit of `mask` is set.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes_of_mask(mask: u16) -> __m256 {
    let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let bits = _mm256_and_si256(_mm256_set1_epi32(i32::from(mask)), lanes);
    _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, lanes))
}

/// Adds four differences in f64 to the maxima and the sums of squares.
#[inline]
#[target_feature(enable = "avx2")]
fn more_difference(largest: __m256d, sums: __m256d, a: __m128, b: __m128) -> (__m256d, __m256d) {
    let difference = _mm256_sub_pd(_mm256_cvtps_pd(a), _mm256_cvtps_pd(b));
    let magnitude = _mm256_andnot_pd(_mm256_set1_pd(-0.0), difference);
    let largest = _mm256_max_pd(largest, magnitude);
    (largest, _mm256_add_pd(sums, _mm256_mul_pd(difference, difference)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn magnitude_bits(value: __m256) -> __m256i {
    _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(i32::MAX))
}

#[inline]
#[target_feature(enable = "avx2")]
fn larger_magnitude(a: __m256, b: __m256) -> __m256 {
    _mm256_castsi256_ps(_mm256_max_epi32(magnitude_bits(a), magnitude_bits(b)))
}

impl Kernel for Avx2 {
    type Lanes = [__m256; 2];
    const HAS_FUSED: bool = true;

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "avx2,f16c,fma,popcnt")]
        fn compiled<J: Job>(kernel: Avx2, job: J) -> J::Output {
            job.run(kernel)
        }
        // SAFETY: `self` proves that the processor has the features.
        unsafe { compiled(self, job) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [__m256; 2] {
        [with_proof!(self, _mm256_set1_ps(value)); 2]
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> [__m256; 2] {
        // SAFETY: the reference covers the 64 bytes; `self` proves AVX.
        unsafe {
            let first: *const f32 = bytes.as_ptr().cast();
            [_mm256_loadu_ps(first), _mm256_loadu_ps(first.add(8))]
        }
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> [__m256; 2] {
        let both = self.read(bytes);
        with_proof!(self, {
            let [low, high] = halves(both);
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        })
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> [__m256; 2] {
        let both = self.read(bytes);
        with_proof!(self, {
            let [low, high] = halves(both);
            [widen_bf16(low), widen_bf16(high)]
        })
    }

    #[inline(always)]
    fn store_f32(self, values: [__m256; 2], bytes: &mut [u8; 64]) {
        // SAFETY: the reference covers the 64 bytes; `self` proves AVX.
        unsafe {
            let first: *mut f32 = bytes.as_mut_ptr().cast();
            _mm256_storeu_ps(first, values[0]);
            _mm256_storeu_ps(first.add(8), values[1]);
        }
    }

    #[inline(always)]
    fn store_f16(self, values: [__m256; 2], bytes: &mut [u8; 32]) {
        let both = with_proof!(self, {
            let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values[0]);
            let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values[1]);
            _mm256_set_m128i(high, low)
        });
        self.write(both, bytes);
    }

    #[inline(always)]
    fn store_bf16(self, values: [__m256; 2], bytes: &mut [u8; 32]) {
        // Packing works in 128-bit halves, so the middle quarters must be swapped afterwards.
        let rounded = with_proof!(
            self,
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(
                narrow_bf16(values[0]),
                narrow_bf16(values[1])
            ))
        );
        self.write(rounded, bytes);
    }

    #[inline(always)]
    fn store_f32_products<const BITS: usize>(self, stream: &[u8], scale: f32, bytes: &mut [u8; 256]) {
        match BITS {
            // SAFETY: `self` proves the set.
            3 => unsafe { avx2_products::store_f32_looked_up(stream, scale, bytes) },
            // SAFETY: `self` proves the set.
            5 | 7 => unsafe { avx2_products::store_f32::<BITS>(stream, scale, bytes) },
            _ => store_f32_each::<Self, BITS>(self, stream, scale, bytes),
        }
    }

    #[inline(always)]
    fn store_bf16_products<const BITS: usize>(self, stream: &[u8], scale: f32, bytes: &mut [u8; 128]) {
        match BITS {
            // SAFETY: `self` proves the set.
            3 => unsafe { avx2_products::store_bf16_looked_up(stream, scale, bytes) },
            // SAFETY: `self` proves the set.
            _ => unsafe { avx2_products::store_bf16::<BITS>(stream, scale, bytes) },
        }
    }

    #[inline(always)]
    fn look_up_pairs<const IS_UPPER_FIRST: bool>(
        self,
        products: &[u8; 32],
        codes: &[u8; 16],
        bytes: &mut [u8; 64],
    ) {
        // SAFETY: `self` proves the set.
        unsafe { avx2_products::look_up_pairs::<IS_UPPER_FIRST>(products, codes, bytes) }
    }

    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_proof!(self, [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn sub(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_proof!(self, [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_proof!(self, [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn mul_add(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        with_proof!(self, [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }

    #[inline(always)]
    fn div(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_proof!(self, [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn min(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_proof!(self, [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn max(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_proof!(self, [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
    }

    #[inline(always)]
    fn less(self, a: [__m256; 2], b: [__m256; 2]) -> u16 {
        let [low, high] = with_proof!(
            self,
            [
                _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0])),
                _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1]))
            ]
        );
        (low | high << 8) as u16
    }

    #[inline(always)]
    fn select(self, mask: u16, set: [__m256; 2], clear: [__m256; 2]) -> [__m256; 2] {
        with_proof!(
            self,
            [
                _mm256_blendv_ps(clear[0], set[0], lanes_of_mask(mask)),
                _mm256_blendv_ps(clear[1], set[1], lanes_of_mask(mask >> 8))
            ]
        )
    }

    #[inline(always)]
    fn sum(self, values: [__m256; 2]) -> f32 {
        with_proof!(self, {
            let eight = _mm256_add_ps(values[0], values[1]);
            let upper = _mm256_extractf128_ps::<1>(eight);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), upper);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn difference(self, a: Group<Self>, b: Group<Self>) -> (f64, f64) {
        with_proof!(self, {
            let zero = _mm256_setzero_pd();
            let (mut low, mut high) = ((zero, zero), (zero, zero));
            for i in 0..4 {
                for half in 0..2 {
                    let (a, b) = (a[i][half], b[i][half]);
                    let (low_a, low_b) = (_mm256_castps256_ps128(a), _mm256_castps256_ps128(b));
                    low = more_difference(low.0, low.1, low_a, low_b);
                    let high_a = _mm256_extractf128_ps::<1>(a);
                    let high_b = _mm256_extractf128_ps::<1>(b);
                    high = more_difference(high.0, high.1, high_a, high_b);
                }
            }
            let largest = _mm256_max_pd(low.0, high.0);
            let upper = _mm256_extractf128_pd::<1>(largest);
            let largest = _mm_max_pd(_mm256_castpd256_pd128(largest), upper);
            let largest = _mm_max_sd(largest, _mm_unpackhi_pd(largest, largest));
            let four = _mm256_add_pd(low.1, high.1);
            let upper = _mm256_extractf128_pd::<1>(four);
            let two = _mm_add_pd(_mm256_castpd256_pd128(four), upper);
            let sum = _mm_add_sd(two, _mm_unpackhi_pd(two, two));
            (_mm_cvtsd_f64(largest), _mm_cvtsd_f64(sum))
        })
    }

    #[inline(always)]
    fn larger_magnitude(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        with_proof!(self, [larger_magnitude(a[0], b[0]), larger_magnitude(a[1], b[1])])
    }

    #[inline(always)]
    fn largest(self, values: [__m256; 2]) -> f32 {
        with_proof!(self, {
            let [a, b] = [_mm256_castps_si256(values[0]), _mm256_castps_si256(values[1])];
            let eight = _mm256_max_epi32(a, b);
            let upper = _mm256_extracti128_si256::<1>(eight);
            let four = _mm_max_epi32(_mm256_castsi256_si128(eight), upper);
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b11_10>(four));
            let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b01>(two));
            f32::from_bits(_mm_cvtsi128_si32(one) as u32)
        })
    }

    #[inline(always)]
    fn shift_codes(self, codes: [__m256i; 2], offset: i8) -> [__m256i; 2] {
        with_proof!(self, {
            let offset = _mm256_set1_epi8(offset);
            [_mm256_add_epi8(codes[0], offset), _mm256_add_epi8(codes[1], offset)]
        })
    }

    #[inline(always)]
    fn expand<const BITS: usize>(self, stream: &[u8]) -> [__m256i; 2] {
        if BITS == 8 {
            return match stream.first_chunk() {
                Some(bytes) => self.load_bytes(bytes),
                None => [with_proof!(self, _mm256_setzero_si256()); 2],
            };
        }
        // SAFETY: `self` proves the set.
        unsafe { avx2_codes::expand::<BITS>(stream) }
    }

    #[inline(always)]
    fn compress<const BITS: usize>(self, codes: [__m256i; 2], stream: &mut [u8]) {
        if BITS == 8 {
            if let Some(bytes) = stream.first_chunk_mut() {
                self.store_bytes(codes, bytes);
            }
            return;
        }
        // SAFETY: `self` proves the set.
        unsafe { avx2_codes::compress::<BITS>(codes, stream) }
    }

    #[inline(always)]
    fn lanes_of(self, codes: [__m256i; 2]) -> Group<Self> {
        with_proof!(self, avx2_codes::lanes_of(codes))
    }

    #[inline(always)]
    fn bytes_of(self, values: Group<Self>) -> [__m256i; 2] {
        with_proof!(self, avx2_codes::bytes_of(values))
    }
}
