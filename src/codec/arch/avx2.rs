//! AVX2 with F16C: Haswell, Zen and later.

use std::arch::x86_64::*;

use super::{Group, Job, Kernel, Spread};

/// Proof that the processor has the set: made by [`Avx2::detect`] only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    /// The proof, where the processor and the system have all of the set.
    pub(super) fn detect() -> Option<Avx2> {
        let has_all = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        has_all.then_some(Avx2(()))
    }
}

/// Calls an intrinsic that touches registers only: what it needs is the set.
macro_rules! with_proof {
    ($proof:ident, $call:expr) => {{
        let Avx2(()) = $proof;
        // SAFETY: an `Avx2` exists only where `detect` found every feature that
        // intrinsics in this file need, and the call reads and writes no memory.
        unsafe { $call }
    }};
}

/// Where a quarter of a stream of `8 * bits` bytes, sixteen codes, is read so that
/// sixteen bytes are within the stream.
const fn quarter(bits: usize, number: usize) -> usize {
    let at = 2 * bits * number;
    let last = 8 * bits - 16;
    if at < last { at } else { last }
}

/// For each quarter, the bytes of its two runs of eight codes, one run a 64-bit lane.
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

/// Closes the gap between a quarter's two runs.
const fn join(bits: usize) -> [u8; 16] {
    let mut index = [0x80; 16];
    let mut i = 0;
    while i < 2 * bits {
        index[i] = (i / bits * 8 + i % bits) as u8;
        i += 1;
    }
    index
}

/// The byte shuffles of streams of `BITS` bits.
struct Shuffles<const BITS: usize>;

impl<const BITS: usize> Shuffles<BITS> {
    const SPLIT: [[u8; 16]; 4] = split(BITS);
    const JOIN: [u8; 16] = join(BITS);
}

impl Avx2 {
    #[inline(always)]
    fn read(self, bytes: &[u8; 32]) -> __m256i {
        // SAFETY: the reference covers the 32 bytes; `self` proves AVX.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn write(self, value: __m256i, bytes: &mut [u8; 32]) {
        // SAFETY: the reference covers the 32 bytes; `self` proves AVX.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
    }

    #[inline(always)]
    fn read_half(self, bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the reference covers the 16 bytes; every x86_64 has SSE2.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn write_half(self, value: __m128i, bytes: &mut [u8; 16]) {
        // SAFETY: the reference covers the 16 bytes; every x86_64 has SSE2.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), value) }
    }

    /// Eight values from each half of `bytes`.
    #[inline(always)]
    fn halves(self, bytes: &[u8; 32]) -> [__m128i; 2] {
        let both = self.read(bytes);
        with_proof!(
            self,
            [
                _mm256_castsi256_si128(both),
                _mm256_extracti128_si256::<1>(both)
            ]
        )
    }

    #[inline(always)]
    fn pairs(
        self,
        a: [__m256; 2],
        b: [__m256; 2],
        operation: impl Fn(__m256, __m256) -> __m256,
    ) -> [__m256; 2] {
        [operation(a[0], b[0]), operation(a[1], b[1])]
    }

    /// One step of spreading or gathering codes: see [`Spread`].
    #[inline(always)]
    fn merge(self, value: __m256i, moved: __m256i, stay: u64, go: u64) -> __m256i {
        with_proof!(
            self,
            _mm256_or_si256(
                _mm256_and_si256(value, _mm256_set1_epi64x(stay as i64)),
                _mm256_and_si256(moved, _mm256_set1_epi64x(go as i64)),
            )
        )
    }
}

impl Kernel for Avx2 {
    type Lanes = [__m256; 2];
    type Bytes = [__m256i; 2];

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "avx2,f16c")]
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
        let (first, rest) = bytes.split_at(32);
        let mut out = self.splat(0.0);
        for (lanes, bytes) in out.iter_mut().zip([first, rest]) {
            if let Some(bytes) = bytes.first_chunk() {
                let bits = self.read(bytes);
                *lanes = with_proof!(self, _mm256_castsi256_ps(bits));
            }
        }
        out
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> [__m256; 2] {
        self.halves(bytes)
            .map(|eight| with_proof!(self, _mm256_cvtph_ps(eight)))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> [__m256; 2] {
        self.halves(bytes).map(|eight| {
            with_proof!(
                self,
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(eight)))
            )
        })
    }

    #[inline(always)]
    fn store_f32(self, values: [__m256; 2], bytes: &mut [u8; 64]) {
        for (value, bytes) in values.into_iter().zip(bytes.as_chunks_mut().0) {
            self.write(with_proof!(self, _mm256_castps_si256(value)), bytes);
        }
    }

    #[inline(always)]
    fn store_f16(self, values: [__m256; 2], bytes: &mut [u8; 32]) {
        for (value, bytes) in values.into_iter().zip(bytes.as_chunks_mut().0) {
            let bits = with_proof!(self, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(value));
            self.write_half(bits, bytes);
        }
    }

    #[inline(always)]
    fn store_bf16(self, values: [__m256; 2], bytes: &mut [u8; 32]) {
        let [a, b] = values.map(|value| {
            with_proof!(self, {
                let bits = _mm256_castps_si256(value);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
                _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half))
            })
        });
        // Packing works in 128-bit halves: the middle quarters change places after it.
        let rounded = with_proof!(
            self,
            _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(a, b))
        );
        self.write(rounded, bytes);
    }

    #[inline(always)]
    fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        self.pairs(a, b, |a, b| with_proof!(self, _mm256_add_ps(a, b)))
    }

    #[inline(always)]
    fn sub(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        self.pairs(a, b, |a, b| with_proof!(self, _mm256_sub_ps(a, b)))
    }

    #[inline(always)]
    fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        self.pairs(a, b, |a, b| with_proof!(self, _mm256_mul_ps(a, b)))
    }

    #[inline(always)]
    fn div(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        self.pairs(a, b, |a, b| with_proof!(self, _mm256_div_ps(a, b)))
    }

    #[inline(always)]
    fn min(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        self.pairs(a, b, |a, b| with_proof!(self, _mm256_min_ps(a, b)))
    }

    #[inline(always)]
    fn max(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        self.pairs(a, b, |a, b| with_proof!(self, _mm256_max_ps(a, b)))
    }

    #[inline(always)]
    fn less(self, a: [__m256; 2], b: [__m256; 2]) -> u16 {
        let [low, high] = self
            .pairs(a, b, |a, b| {
                with_proof!(self, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
            })
            .map(|lanes| with_proof!(self, _mm256_movemask_ps(lanes)));
        (low | high << 8) as u16
    }

    #[inline(always)]
    fn select(self, mask: u16, set: [__m256; 2], clear: [__m256; 2]) -> [__m256; 2] {
        let [low, high] = [mask & 0xff, mask >> 8].map(|byte| {
            with_proof!(self, {
                let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
                let bits = _mm256_and_si256(_mm256_set1_epi32(i32::from(byte)), lanes);
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, lanes))
            })
        });
        with_proof!(
            self,
            [
                _mm256_blendv_ps(clear[0], set[0], low),
                _mm256_blendv_ps(clear[1], set[1], high)
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
    fn larger_magnitude(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        self.pairs(a, b, |a, b| {
            with_proof!(self, {
                let positive = _mm256_set1_epi32(i32::MAX);
                let a = _mm256_and_si256(_mm256_castps_si256(a), positive);
                let b = _mm256_and_si256(_mm256_castps_si256(b), positive);
                _mm256_castsi256_ps(_mm256_max_epi32(a, b))
            })
        })
    }

    #[inline(always)]
    fn largest(self, values: [__m256; 2]) -> f32 {
        with_proof!(self, {
            let [a, b] = [
                _mm256_castps_si256(values[0]),
                _mm256_castps_si256(values[1]),
            ];
            let eight = _mm256_max_epi32(a, b);
            let upper = _mm256_extracti128_si256::<1>(eight);
            let four = _mm_max_epi32(_mm256_castsi256_si128(eight), upper);
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b11_10>(four));
            let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b01>(two));
            f32::from_bits(_mm_cvtsi128_si32(one) as u32)
        })
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> [__m256i; 2] {
        let mut out = [with_proof!(self, _mm256_setzero_si256()); 2];
        for (lanes, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *lanes = self.read(bytes);
        }
        out
    }

    #[inline(always)]
    fn store_bytes(self, codes: [__m256i; 2], bytes: &mut [u8; 64]) {
        for (lanes, bytes) in codes.into_iter().zip(bytes.as_chunks_mut().0) {
            self.write(lanes, bytes);
        }
    }

    #[inline(always)]
    fn shift_codes(self, codes: [__m256i; 2], offset: i8) -> [__m256i; 2] {
        codes.map(|lanes| with_proof!(self, _mm256_add_epi8(lanes, _mm256_set1_epi8(offset))))
    }

    #[inline(always)]
    fn expand<const BITS: usize>(self, stream: &[u8]) -> [__m256i; 2] {
        assert_eq!(stream.len(), 8 * BITS);
        if BITS == 8 {
            return match stream.first_chunk() {
                Some(bytes) => self.load_bytes(bytes),
                None => [with_proof!(self, _mm256_setzero_si256()); 2],
            };
        }
        let runs = |number: usize| {
            // SAFETY: `quarter` is at most 8 * BITS - 16, so the sixteen bytes are in
            // the slice, whose length was just seen; every x86_64 has SSE2.
            let bytes =
                unsafe { _mm_loadu_si128(stream.as_ptr().add(quarter(BITS, number)).cast()) };
            let split = self.read_half(&Shuffles::<BITS>::SPLIT[number]);
            with_proof!(self, _mm_shuffle_epi8(bytes, split))
        };
        let mut codes = [(runs(0), runs(1)), (runs(2), runs(3))]
            .map(|(low, high)| with_proof!(self, _mm256_set_m128i(high, low)));
        for (distance, stay, go, _) in Spread::<BITS>::STEPS {
            codes = codes.map(|lanes| {
                let count = with_proof!(self, _mm_cvtsi32_si128(distance as i32));
                let moved = with_proof!(self, _mm256_sll_epi64(lanes, count));
                self.merge(lanes, moved, stay, go)
            });
        }
        codes
    }

    #[inline(always)]
    fn compress<const BITS: usize>(self, codes: [__m256i; 2], stream: &mut [u8]) {
        assert_eq!(stream.len(), 8 * BITS);
        if BITS == 8 {
            if let Some(bytes) = stream.first_chunk_mut() {
                self.store_bytes(codes, bytes);
            }
            return;
        }
        let mut runs = codes;
        for (distance, stay, _, go) in Spread::<BITS>::STEPS.into_iter().rev() {
            runs = runs.map(|lanes| {
                let count = with_proof!(self, _mm_cvtsi32_si128(distance as i32));
                let moved = with_proof!(self, _mm256_srl_epi64(lanes, count));
                self.merge(lanes, moved, stay, go)
            });
        }
        let join = self.read_half(&Shuffles::<BITS>::JOIN);
        // Each quarter is written whole; the next one overwrites its empty end.
        let mut bytes = [0; 64];
        for (number, lanes) in runs.into_iter().enumerate() {
            let [low, high] = with_proof!(
                self,
                [
                    _mm256_castsi256_si128(lanes),
                    _mm256_extracti128_si256::<1>(lanes)
                ]
                .map(|run| _mm_shuffle_epi8(run, join))
            );
            for (quarter, run) in [(2 * number, low), (2 * number + 1, high)] {
                if let Some(bytes) = bytes[2 * BITS * quarter..].first_chunk_mut() {
                    self.write_half(run, bytes);
                }
            }
        }
        stream.copy_from_slice(&bytes[..8 * BITS]);
    }

    #[inline(always)]
    fn lanes_of(self, codes: [__m256i; 2]) -> Group<Self> {
        let widen = |codes: __m128i| {
            with_proof!(
                self,
                [codes, _mm_unpackhi_epi64(codes, codes)]
                    .map(|eight| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight)))
            )
        };
        let [a, b] = codes.map(|lanes| {
            with_proof!(
                self,
                [
                    _mm256_castsi256_si128(lanes),
                    _mm256_extracti128_si256::<1>(lanes)
                ]
            )
        });
        [widen(a[0]), widen(a[1]), widen(b[0]), widen(b[1])]
    }

    #[inline(always)]
    fn bytes_of(self, values: Group<Self>) -> [__m256i; 2] {
        [[values[0], values[1]], [values[2], values[3]]].map(|half| {
            with_proof!(self, {
                let [a, b] = half.map(|[low, high]| {
                    _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high))
                });
                // Packing works in 128-bit halves: fours of bytes go back into order.
                let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order)
            })
        })
    }
}
