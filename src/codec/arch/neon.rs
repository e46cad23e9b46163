//! NEON with conversions of f16: every 64-bit ARM processor.

use std::arch::aarch64::*;

use super::cells::Cells;
use super::kernel::{Group, Job, Kernel, store_bf16_each};
use super::neon_codes;

/// Proof that the processor supports the set. Only [`Neon::detect`] creates it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Neon(());

impl Neon {
    /// The proof, if the processor has the set and keeps the lowest byte of a number first, as vectors of bytes here do.
    pub(super) fn detect() -> Option<Neon> {
        let has_all = cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon");
        has_all.then_some(Neon(()))
    }
}

/// Calls an intrinsic that uses registers only, so the set is its only requirement.
macro_rules! with_proof {
    ($proof:ident, $call:expr) => {{
        let Neon(()) = $proof;
        // SAFETY: a `Neon` exists only where `detect` found the feature that intrinsics in
        // this file need, and the call reads and writes no memory.
        unsafe { $call }
    }};
}

/// Sixteen values.
type Lanes = [float32x4_t; 4];

impl Neon {
    #[inline(always)]
    pub(super) fn read(self, bytes: &[u8; 16]) -> uint8x16_t {
        // SAFETY: the reference covers the 16 bytes; `self` proves NEON.
        unsafe { vld1q_u8(bytes.as_ptr()) }
    }

    #[inline(always)]
    pub(super) fn write(self, value: uint8x16_t, bytes: &mut [u8; 16]) {
        // SAFETY: the reference covers the 16 bytes; `self` proves NEON.
        unsafe { vst1q_u8(bytes.as_mut_ptr(), value) }
    }

    /// Sixteen elements of 16 bits, eight a vector.
    #[inline(always)]
    fn read_halves(self, bytes: &[u8; 32]) -> [uint16x8_t; 2] {
        // SAFETY: the reference covers the 32 bytes; `self` proves NEON.
        unsafe {
            let first = bytes.as_ptr();
            [vreinterpretq_u16_u8(vld1q_u8(first)), vreinterpretq_u16_u8(vld1q_u8(first.add(16)))]
        }
    }

    #[inline(always)]
    fn write_halves(self, [low, high]: [uint16x8_t; 2], bytes: &mut [u8; 32]) {
        // SAFETY: the reference covers the 32 bytes; `self` proves NEON.
        unsafe {
            let first = bytes.as_mut_ptr();
            vst1q_u8(first, vreinterpretq_u8_u16(low));
            vst1q_u8(first.add(16), vreinterpretq_u8_u16(high));
        }
    }
}

// These are functions with the target feature, because closures would be compiled without it.

#[inline]
#[target_feature(enable = "neon")]
fn widen_f16(eight: uint16x8_t) -> [float32x4_t; 2] {
    let eight = vreinterpretq_f16_u16(eight);
    [vcvt_f32_f16(vget_low_f16(eight)), vcvt_high_f32_f16(eight)]
}

#[inline]
#[target_feature(enable = "neon")]
fn narrow_f16(low: float32x4_t, high: float32x4_t) -> uint16x8_t {
    vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(low), high))
}

#[inline]
#[target_feature(enable = "neon")]
fn widen_bf16(eight: uint16x8_t) -> [float32x4_t; 2] {
    let low = vshll_n_u16::<16>(vget_low_u16(eight));
    [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(vshll_high_n_u16::<16>(eight))]
}

/// The places of sixteen lanes, as bits of a mask, in four vectors.
#[inline]
#[target_feature(enable = "neon")]
fn bits_of_lanes() -> [uint32x4_t; 4] {
    let first = vreinterpretq_u32_u64(vcombine_u64(vcreate_u64(2 << 32 | 1), vcreate_u64(8 << 32 | 4)));
    [first, vshlq_n_u32::<4>(first), vshlq_n_u32::<8>(first), vshlq_n_u32::<12>(first)]
}

#[inline]
#[target_feature(enable = "neon")]
fn less(a: Lanes, b: Lanes) -> u16 {
    let bits = bits_of_lanes();
    let [w, x, y, z] = [
        vandq_u32(vcltq_f32(a[0], b[0]), bits[0]),
        vandq_u32(vcltq_f32(a[1], b[1]), bits[1]),
        vandq_u32(vcltq_f32(a[2], b[2]), bits[2]),
        vandq_u32(vcltq_f32(a[3], b[3]), bits[3]),
    ];
    vaddvq_u32(vorrq_u32(vorrq_u32(w, x), vorrq_u32(y, z))) as u16
}

#[inline]
#[target_feature(enable = "neon")]
fn select(mask: u16, set: Lanes, clear: Lanes) -> Lanes {
    let mask = vdupq_n_u32(u32::from(mask));
    let bits = bits_of_lanes();
    [
        vbslq_f32(vtstq_u32(mask, bits[0]), set[0], clear[0]),
        vbslq_f32(vtstq_u32(mask, bits[1]), set[1], clear[1]),
        vbslq_f32(vtstq_u32(mask, bits[2]), set[2], clear[2]),
        vbslq_f32(vtstq_u32(mask, bits[3]), set[3], clear[3]),
    ]
}

/// The smaller of each pair. The instruction for this would order zeros by their signs.
#[inline]
#[target_feature(enable = "neon")]
fn smaller(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcltq_f32(a, b), a, b)
}

/// The larger of each pair. The instruction for this would order zeros by their signs.
#[inline]
#[target_feature(enable = "neon")]
fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn larger_magnitude(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    let [a, b] = [vreinterpretq_u32_f32(vabsq_f32(a)), vreinterpretq_u32_f32(vabsq_f32(b))];
    vreinterpretq_f32_u32(vmaxq_u32(a, b))
}

/// Adds two differences in f64 to the maxima and the sums of squares.
#[inline]
#[target_feature(enable = "neon")]
fn more_difference(
    largest: float64x2_t,
    sums: float64x2_t,
    a: float64x2_t,
    b: float64x2_t,
) -> (float64x2_t, float64x2_t) {
    let difference = vsubq_f64(a, b);
    let largest = vmaxnmq_f64(largest, vabsq_f64(difference));
    (largest, vaddq_f64(sums, vmulq_f64(difference, difference)))
}

#[inline]
#[target_feature(enable = "neon")]
fn difference(a: Group<Neon>, b: Group<Neon>) -> (f64, f64) {
    let zero = vdupq_n_f64(0.0);
    // Each pair of differences of eight.
    let mut pairs = [(zero, zero); 4];
    for (a, b) in a.as_flattened().as_chunks::<2>().0.iter().zip(b.as_flattened().as_chunks::<2>().0) {
        let [low, high] = [vget_low_f32(a[0]), vget_low_f32(b[0])];
        pairs[0] = more_difference(pairs[0].0, pairs[0].1, vcvt_f64_f32(low), vcvt_f64_f32(high));
        pairs[1] = more_difference(pairs[1].0, pairs[1].1, vcvt_high_f64_f32(a[0]), vcvt_high_f64_f32(b[0]));
        let [low, high] = [vget_low_f32(a[1]), vget_low_f32(b[1])];
        pairs[2] = more_difference(pairs[2].0, pairs[2].1, vcvt_f64_f32(low), vcvt_f64_f32(high));
        pairs[3] = more_difference(pairs[3].0, pairs[3].1, vcvt_high_f64_f32(a[1]), vcvt_high_f64_f32(b[1]));
    }
    let [first, second, third, fourth] = pairs;
    let low = vmaxnmq_f64(first.0, third.0);
    let high = vmaxnmq_f64(second.0, fourth.0);
    let sums = vaddq_f64(vaddq_f64(first.1, third.1), vaddq_f64(second.1, fourth.1));
    (vmaxnmvq_f64(vmaxnmq_f64(low, high)), vpaddd_f64(sums))
}

impl Kernel for Neon {
    type Lanes = Lanes;
    const HAS_FUSED: bool = true;

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Output {
        #[target_feature(enable = "neon")]
        fn compiled<J: Job>(kernel: Neon, job: J) -> J::Output {
            job.run(kernel)
        }
        // SAFETY: `self` proves that the processor has the feature.
        unsafe { compiled(self, job) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes {
        [with_proof!(self, vdupq_n_f32(value)); 4]
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> Lanes {
        let [a, b, c, d] = self.load_bytes(bytes);
        with_proof!(
            self,
            [
                vreinterpretq_f32_u8(a),
                vreinterpretq_f32_u8(b),
                vreinterpretq_f32_u8(c),
                vreinterpretq_f32_u8(d)
            ]
        )
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> Lanes {
        let [low, high] = self.read_halves(bytes);
        let ([a, b], [c, d]) = with_proof!(self, (widen_f16(low), widen_f16(high)));
        [a, b, c, d]
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> Lanes {
        let [low, high] = self.read_halves(bytes);
        let ([a, b], [c, d]) = with_proof!(self, (widen_bf16(low), widen_bf16(high)));
        [a, b, c, d]
    }

    #[inline(always)]
    fn store_f32(self, [a, b, c, d]: Lanes, bytes: &mut [u8; 64]) {
        let stored = with_proof!(
            self,
            [
                vreinterpretq_u8_f32(a),
                vreinterpretq_u8_f32(b),
                vreinterpretq_u8_f32(c),
                vreinterpretq_u8_f32(d)
            ]
        );
        self.store_bytes(stored, bytes);
    }

    #[inline(always)]
    fn store_f16(self, [a, b, c, d]: Lanes, bytes: &mut [u8; 32]) {
        let rounded = with_proof!(self, [narrow_f16(a, b), narrow_f16(c, d)]);
        self.write_halves(rounded, bytes);
    }

    #[inline(always)]
    fn store_bf16(self, [a, b, c, d]: Lanes, bytes: &mut [u8; 32]) {
        let rounded = with_proof!(self, [neon_codes::narrow_bf16(a, b), neon_codes::narrow_bf16(c, d)]);
        self.write_halves(rounded, bytes);
    }

    #[inline(always)]
    fn store_bf16_products<const BITS: usize>(self, stream: &[u8], scale: f32, bytes: &mut [u8; 128]) {
        if BITS > 5 {
            return store_bf16_each::<Self, BITS>(self, stream, scale, bytes);
        }
        let codes = self.expand::<BITS>(stream);
        let quarters = with_proof!(self, neon_codes::bf16_products::<BITS>(codes, scale));
        for (value, bytes) in quarters.into_iter().flatten().zip(bytes.as_chunks_mut().0) {
            self.write(value, bytes);
        }
    }

    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        with_proof!(
            self,
            [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1]), vaddq_f32(a[2], b[2]), vaddq_f32(a[3], b[3])]
        )
    }

    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        with_proof!(
            self,
            [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1]), vsubq_f32(a[2], b[2]), vsubq_f32(a[3], b[3])]
        )
    }

    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        with_proof!(
            self,
            [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1]), vmulq_f32(a[2], b[2]), vmulq_f32(a[3], b[3])]
        )
    }

    #[inline(always)]
    fn mul_add(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        with_proof!(
            self,
            [
                vfmaq_f32(c[0], a[0], b[0]),
                vfmaq_f32(c[1], a[1], b[1]),
                vfmaq_f32(c[2], a[2], b[2]),
                vfmaq_f32(c[3], a[3], b[3])
            ]
        )
    }

    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        with_proof!(
            self,
            [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1]), vdivq_f32(a[2], b[2]), vdivq_f32(a[3], b[3])]
        )
    }

    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        with_proof!(
            self,
            [smaller(a[0], b[0]), smaller(a[1], b[1]), smaller(a[2], b[2]), smaller(a[3], b[3])]
        )
    }

    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        with_proof!(self, [larger(a[0], b[0]), larger(a[1], b[1]), larger(a[2], b[2]), larger(a[3], b[3])])
    }

    #[inline(always)]
    fn less(self, a: Lanes, b: Lanes) -> u16 {
        with_proof!(self, less(a, b))
    }

    #[inline(always)]
    fn select(self, mask: u16, set: Lanes, clear: Lanes) -> Lanes {
        with_proof!(self, select(mask, set, clear))
    }

    #[inline(always)]
    fn sum(self, values: Lanes) -> f32 {
        with_proof!(self, {
            let low = vaddq_f32(values[0], values[2]);
            let high = vaddq_f32(values[1], values[3]);
            let four = vaddq_f32(low, high);
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        })
    }

    #[inline(always)]
    fn difference(self, a: Group<Self>, b: Group<Self>) -> (f64, f64) {
        with_proof!(self, difference(a, b))
    }

    #[inline(always)]
    fn larger_magnitude(self, a: Lanes, b: Lanes) -> Lanes {
        with_proof!(
            self,
            [
                larger_magnitude(a[0], b[0]),
                larger_magnitude(a[1], b[1]),
                larger_magnitude(a[2], b[2]),
                larger_magnitude(a[3], b[3])
            ]
        )
    }

    #[inline(always)]
    fn largest(self, [a, b, c, d]: Lanes) -> f32 {
        with_proof!(self, {
            let low = vmaxq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b));
            let high = vmaxq_u32(vreinterpretq_u32_f32(c), vreinterpretq_u32_f32(d));
            f32::from_bits(vmaxvq_u32(vmaxq_u32(low, high)))
        })
    }

    #[inline(always)]
    fn shift_codes(self, [a, b, c, d]: [uint8x16_t; 4], offset: i8) -> [uint8x16_t; 4] {
        with_proof!(self, {
            let offset = vdupq_n_u8(offset.cast_unsigned());
            [vaddq_u8(a, offset), vaddq_u8(b, offset), vaddq_u8(c, offset), vaddq_u8(d, offset)]
        })
    }

    #[inline(always)]
    fn expand<const BITS: usize>(self, stream: &[u8]) -> [uint8x16_t; 4] {
        if BITS == 8 {
            return match stream.first_chunk() {
                Some(bytes) => self.load_bytes(bytes),
                None => [with_proof!(self, vdupq_n_u8(0)); 4],
            };
        }
        // SAFETY: `self` proves the set.
        unsafe { neon_codes::expand::<BITS>(stream) }
    }

    #[inline(always)]
    fn compress<const BITS: usize>(self, codes: [uint8x16_t; 4], stream: &mut [u8]) {
        if BITS == 8 {
            if let Some(bytes) = stream.first_chunk_mut() {
                self.store_bytes(codes, bytes);
            }
            return;
        }
        // SAFETY: `self` proves the set.
        unsafe { neon_codes::compress::<BITS>(codes, stream) }
    }

    #[inline(always)]
    fn lanes_of(self, [a, b, c, d]: [uint8x16_t; 4]) -> Group<Self> {
        with_proof!(
            self,
            [neon_codes::widen(a), neon_codes::widen(b), neon_codes::widen(c), neon_codes::widen(d)]
        )
    }

    #[inline(always)]
    fn bytes_of(self, [a, b, c, d]: Group<Self>) -> [uint8x16_t; 4] {
        with_proof!(
            self,
            [neon_codes::narrow(a), neon_codes::narrow(b), neon_codes::narrow(c), neon_codes::narrow(d)]
        )
    }
}
