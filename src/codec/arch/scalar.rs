//! Portable Rust, which defines the results that the other instruction sets must match.

use half::{bf16, f16};

use super::kernel::{Group, Job, Kernel, LANES, Spread};

/// The portable set, which every processor supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scalar;

type Lanes = [f32; LANES];

#[inline(always)]
fn each(a: Lanes, b: Lanes, operation: impl Fn(f32, f32) -> f32) -> Lanes {
    let mut out = a;
    for (value, other) in out.iter_mut().zip(b) {
        *value = operation(*value, other);
    }
    out
}

#[inline(always)]
fn load<const BYTES: usize>(bytes: &[u8], widen: impl Fn([u8; BYTES]) -> f32) -> Lanes {
    let mut out = [0.0; LANES];
    for (value, element) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = widen(*element);
    }
    out
}

#[inline(always)]
fn store<const BYTES: usize>(values: Lanes, bytes: &mut [u8], narrow: impl Fn(f32) -> [u8; BYTES]) {
    for (element, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *element = narrow(value);
    }
}

/// The bits of an f32 that is not a NaN, rounded to bf16.
#[inline(always)]
fn narrow_bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    // The operand is at most the bits of infinity, so the sum stays far below 2^32.
    (((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16).to_le_bytes()
}

/// Eight codes of `BITS` bits, one per byte.
#[inline(always)]
fn spread<const BITS: usize>(packed: u64) -> u64 {
    Spread::<BITS>::STEPS
        .iter()
        .fold(packed, |x, &(distance, low, high, _)| (x & low) | (x << distance & high))
}

/// Eight bytes below `2^BITS` as codes of `BITS` bits.
#[inline(always)]
fn gather<const BITS: usize>(spread: u64) -> u64 {
    Spread::<BITS>::STEPS
        .iter()
        .rev()
        .fold(spread, |x, &(distance, low, _, high)| (x & low) | (x >> distance & high))
}

impl Kernel for Scalar {
    type Lanes = Lanes;
    const HAS_FUSED: bool = false;

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Output {
        job.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Lanes {
        [value; LANES]
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> Lanes {
        load(bytes, f32::from_le_bytes)
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> Lanes {
        load(bytes, |element| f16::from_le_bytes(element).to_f32())
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> Lanes {
        load(bytes, |element| bf16::from_le_bytes(element).to_f32())
    }

    #[inline(always)]
    fn store_f32(self, values: Lanes, bytes: &mut [u8; 64]) {
        store(values, bytes, f32::to_le_bytes);
    }

    #[inline(always)]
    fn store_f16(self, values: Lanes, bytes: &mut [u8; 32]) {
        store(values, bytes, |value| f16::from_f32(value).to_le_bytes());
    }

    #[inline(always)]
    fn store_bf16(self, values: Lanes, bytes: &mut [u8; 32]) {
        store(values, bytes, narrow_bf16);
    }

    #[inline(always)]
    fn add(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn mul_add(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        let mut out = c;
        for (sum, (a, b)) in out.iter_mut().zip(a.into_iter().zip(b)) {
            *sum = a.mul_add(b, *sum);
        }
        out
    }

    #[inline(always)]
    fn div(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn min(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn max(self, a: Lanes, b: Lanes) -> Lanes {
        each(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn less(self, a: Lanes, b: Lanes) -> u16 {
        let mut mask = 0;
        for (i, (a, b)) in a.into_iter().zip(b).enumerate() {
            mask |= u16::from(a < b) << i;
        }
        mask
    }

    #[inline(always)]
    fn select(self, mask: u16, set: Lanes, clear: Lanes) -> Lanes {
        let mut out = clear;
        for (i, (value, other)) in out.iter_mut().zip(set).enumerate() {
            if mask >> i & 1 == 1 {
                *value = other;
            }
        }
        out
    }

    #[inline(always)]
    fn sum(self, values: Lanes) -> f32 {
        let mut sums = values;
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                sums[i] += sums[i + width];
            }
        }
        sums[0]
    }

    #[inline(always)]
    fn difference(self, a: Group<Self>, b: Group<Self>) -> (f64, f64) {
        let (mut largest, mut sums) = ([0.0_f64; 8], [0.0_f64; 8]);
        let eights = b.as_flattened().as_chunks::<8>().0;
        for (a, b) in a.as_flattened().as_chunks::<8>().0.iter().zip(eights) {
            for i in 0..8 {
                let difference = f64::from(a[i]) - f64::from(b[i]);
                let magnitude = difference.abs();
                largest[i] = if magnitude > largest[i] { magnitude } else { largest[i] };
                sums[i] += difference * difference;
            }
        }
        for width in [4, 2, 1] {
            for i in 0..width {
                let other = largest[i + width];
                largest[i] = if other > largest[i] { other } else { largest[i] };
                sums[i] += sums[i + width];
            }
        }
        (largest[0], sums[0])
    }

    #[inline(always)]
    fn larger_magnitude(self, a: Lanes, b: Lanes) -> Lanes {
        // The bits of positive floats have the order of the floats. Signed, because every
        // processor can compare vectors of signed integers.
        each(a, b, |a, b| {
            let bits = |value: f32| value.abs().to_bits().cast_signed();
            f32::from_bits(bits(a).max(bits(b)).cast_unsigned())
        })
    }

    #[inline(always)]
    fn largest(self, values: Lanes) -> f32 {
        let mut bits = 0;
        for value in values {
            bits = value.to_bits().max(bits);
        }
        f32::from_bits(bits)
    }

    #[inline(always)]
    fn shift_codes(self, codes: [u8; 64], offset: i8) -> [u8; 64] {
        codes.map(|code| code.wrapping_add_signed(offset))
    }

    #[inline(always)]
    fn expand<const BITS: usize>(self, stream: &[u8]) -> [u8; 64] {
        let mut codes = [0; 64];
        if BITS == 8 {
            codes.copy_from_slice(stream);
            return codes;
        }
        for (eight, packed) in codes.as_chunks_mut::<8>().0.iter_mut().zip(stream.as_chunks::<BITS>().0) {
            let mut word = [0; 8];
            word[..BITS].copy_from_slice(packed);
            *eight = spread::<BITS>(u64::from_le_bytes(word)).to_le_bytes();
        }
        codes
    }

    #[inline(always)]
    fn compress<const BITS: usize>(self, codes: [u8; 64], stream: &mut [u8]) {
        if BITS == 8 {
            stream.copy_from_slice(&codes);
            return;
        }
        for (packed, eight) in stream.as_chunks_mut::<BITS>().0.iter_mut().zip(codes.as_chunks::<8>().0) {
            let word = gather::<BITS>(u64::from_le_bytes(*eight)).to_le_bytes();
            packed.copy_from_slice(&word[..BITS]);
        }
    }

    #[inline(always)]
    fn lanes_of(self, codes: [u8; 64]) -> Group<Self> {
        let mut out = [[0.0; LANES]; 4];
        for (value, code) in out.as_flattened_mut().iter_mut().zip(codes) {
            *value = f32::from(code as i8);
        }
        out
    }

    #[inline(always)]
    fn bytes_of(self, values: Group<Self>) -> [u8; 64] {
        let mut out = [0; 64];
        for (code, value) in out.iter_mut().zip(values.as_flattened()) {
            *code = *value as i32 as u8;
        }
        out
    }
}
