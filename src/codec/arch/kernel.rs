//! The operations of an instruction set, which codecs are written with.

use super::cells::Cells;
use crate::codec::payload::largest_code;

/// Values in one vector of [`Kernel::Lanes`].
pub(in crate::codec) const LANES: usize = 16;

/// The values of one group, in vectors.
pub(in crate::codec) type Group<K> = [<K as Kernel>::Lanes; 4];

const _: () = assert!(4 * LANES == crate::model::GROUP_LEN);

/// The operations of one instruction set. A value of the type proves that the processor
/// supports the set.
pub(in crate::codec) trait Kernel: Cells {
    /// Sixteen f32 values.
    type Lanes: Copy;
    /// Whether one register holds a vector, and there are registers for more than eight.
    const HAS_WIDE_REGISTERS: bool = false;

    /// Whether `f32::mul_add` is one instruction in a job.
    const HAS_FUSED: bool;

    /// Runs `job` compiled for this set.
    fn run<J: Job>(self, job: J) -> J::Output;

    /// `value` in every lane.
    fn splat(self, value: f32) -> Self::Lanes;
    /// Sixteen little-endian f32 values.
    fn load_f32(self, bytes: &[u8; 64]) -> Self::Lanes;
    /// Sixteen little-endian f16 values.
    fn load_f16(self, bytes: &[u8; 32]) -> Self::Lanes;
    /// Sixteen little-endian bf16 values.
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::Lanes;
    /// The values as little-endian f32.
    fn store_f32(self, values: Self::Lanes, bytes: &mut [u8; 64]);
    /// The values, none a NaN, as little-endian f16, ties to even.
    fn store_f16(self, values: Self::Lanes, bytes: &mut [u8; 32]);
    /// The values, none a NaN, as little-endian bf16, ties to even.
    fn store_bf16(self, values: Self::Lanes, bytes: &mut [u8; 32]);

    /// Stores two vectors as [`store_bf16`](Kernel::store_bf16) does. No value may be
    /// subnormal, because the rounding instruction treats those as zero.
    #[inline(always)]
    fn store_bf16_pair(self, pair: [Self::Lanes; 2], bytes: &mut [u8; 64]) {
        for (values, bytes) in pair.into_iter().zip(bytes.as_chunks_mut().0) {
            self.store_bf16(values, bytes);
        }
    }

    /// The products of a group's codes, of `BITS` bits, with `scale`, as little-endian f32.
    #[inline(always)]
    fn store_f32_products<const BITS: usize>(self, stream: &[u8], scale: f32, bytes: &mut [u8; 256]) {
        store_f32_each::<Self, BITS>(self, stream, scale, bytes);
    }

    /// The products of a group's codes, of `BITS` bits, with `scale`, which is not subnormal,
    /// as little-endian bf16.
    #[inline(always)]
    fn store_bf16_products<const BITS: usize>(self, stream: &[u8], scale: f32, bytes: &mut [u8; 128]) {
        store_bf16_each::<Self, BITS>(self, stream, scale, bytes);
    }

    /// The products, of two bytes, that sixteen bytes of two codes of four bits name, the lower code of a byte first or the
    /// upper.
    #[inline(always)]
    fn look_up_pairs<const IS_UPPER_FIRST: bool>(
        self,
        products: &[u8; 32],
        codes: &[u8; 16],
        bytes: &mut [u8; 64],
    ) {
        let products = products.as_chunks::<2>().0;
        for (pair, code) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(codes) {
            let (lower, upper) = (products[usize::from(code & 15)], products[usize::from(code >> 4)]);
            let [first, second] = if IS_UPPER_FIRST { [upper, lower] } else { [lower, upper] };
            *pair = [first[0], first[1], second[0], second[1]];
        }
    }

    /// Whether [`look_up_signed`](Kernel::look_up_signed) is faster than arithmetic.
    const HAS_LONG_TABLES: bool = false;

    /// The products, of two bytes, of codes of a sign and seven bits. The products of positive codes are given: the lower
    /// byte of each, then the upper bytes.
    #[inline(always)]
    fn look_up_signed(self, products: &[u8; 256], codes: &[u8; 64], bytes: &mut [u8; 128]) {
        let (lower, upper) = products.split_at(128);
        for (out, code) in bytes.as_chunks_mut().0.iter_mut().zip(codes) {
            let place = usize::from(code & 0x7f);
            *out = [lower[place], upper[place] ^ (code & 0x80)];
        }
    }

    /// `a + b`
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a - b`
    fn sub(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a * b`
    fn mul(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::Lanes, b: Self::Lanes, c: Self::Lanes) -> Self::Lanes;
    /// Every vector of the group times `factor`.
    #[inline(always)]
    fn mul_group(self, group: Group<Self>, factor: Self::Lanes) -> Group<Self> {
        let [a, b, c, d] = group;
        [self.mul(a, factor), self.mul(b, factor), self.mul(c, factor), self.mul(d, factor)]
    }
    /// `a / b`, correctly rounded.
    fn div(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// The smaller of each pair; neither is a NaN.
    fn min(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// The larger of each pair; neither is a NaN.
    fn max(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// Bit i is set where `a[i] < b[i]`.
    fn less(self, a: Self::Lanes, b: Self::Lanes) -> u16;
    /// `set[i]` where bit i of `mask` is set, else `clear[i]`.
    fn select(self, mask: u16, set: Self::Lanes, clear: Self::Lanes) -> Self::Lanes;
    /// The sum of all lanes: adds lanes i and i+8, then i and i+4, then i and i+2, then the
    /// last two.
    fn sum(self, values: Self::Lanes) -> f32;
    /// The largest magnitude of `a - b` in f64, and the sum of the squares. Sums every eighth
    /// difference in order, then adds the eight sums as [`Kernel::sum`] does.
    fn difference(self, a: Group<Self>, b: Group<Self>) -> (f64, f64);
    /// The bits of the values without their signs, the larger of each pair as an
    /// integer. A NaN is larger than infinity.
    fn larger_magnitude(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// The largest lane; none is negative. Compared as integers: a NaN is largest.
    fn largest(self, values: Self::Lanes) -> f32;

    /// Adds `offset` to every byte, wrapping.
    fn shift_codes(self, codes: Self::Bytes, offset: i8) -> Self::Bytes;
    /// Expands a stream of exactly `8 * BITS` bytes to unsigned codes, one per byte. `BITS`
    /// is 3, 5, 7 or 8.
    fn expand<const BITS: usize>(self, stream: &[u8]) -> Self::Bytes;
    /// The reverse of `expand`; every byte must be below `2^BITS`.
    fn compress<const BITS: usize>(self, codes: Self::Bytes, stream: &mut [u8]);
    /// Signed bytes as f32.
    fn lanes_of(self, codes: Self::Bytes) -> Group<Self>;
    /// Integers in -128..=127 as signed bytes.
    fn bytes_of(self, values: Group<Self>) -> Self::Bytes;
}

/// The signed codes of a full group's stream.
#[inline(always)]
pub(in crate::codec) fn signed<K: Kernel, const BITS: usize>(kernel: K, stream: &[u8]) -> K::Bytes {
    let codes = kernel.expand::<BITS>(stream);
    if BITS == 8 { codes } else { kernel.shift_codes(codes, -largest_code(BITS)) }
}

#[inline(always)]
fn products<K: Kernel, const BITS: usize>(kernel: K, stream: &[u8], scale: f32) -> Group<K> {
    kernel.mul_group(kernel.lanes_of(signed::<K, BITS>(kernel, stream)), kernel.splat(scale))
}

/// [`Kernel::store_f32_products`] for sets without a shorter way.
#[inline(always)]
pub(super) fn store_f32_each<K: Kernel, const BITS: usize>(
    kernel: K,
    stream: &[u8],
    scale: f32,
    bytes: &mut [u8; 256],
) {
    let values = products::<K, BITS>(kernel, stream, scale);
    for (lanes, bytes) in values.into_iter().zip(bytes.as_chunks_mut().0) {
        kernel.store_f32(lanes, bytes);
    }
}

/// [`Kernel::store_bf16_products`] for sets without a shorter way.
#[inline(always)]
pub(super) fn store_bf16_each<K: Kernel, const BITS: usize>(
    kernel: K,
    stream: &[u8],
    scale: f32,
    bytes: &mut [u8; 128],
) {
    let [a, b, c, d] = products::<K, BITS>(kernel, stream, scale);
    for (pair, bytes) in [[a, b], [c, d]].into_iter().zip(bytes.as_chunks_mut().0) {
        kernel.store_bf16_pair(pair, bytes);
    }
}

/// The inner loop of a codec. `run` and everything that it calls must be inlined to be
/// compiled with the instructions of the set.
pub(in crate::codec) trait Job {
    /// The result.
    type Output;
    /// Whether the job stores pairs or products as bf16. Only such a job is compiled for sets that differ in no other
    /// operation; only x86_64 has some.
    #[cfg(target_arch = "x86_64")]
    const STORES_BF16: bool = false;
    /// Runs with the instructions of `kernel`.
    fn run<K: Kernel>(self, kernel: K) -> Self::Output;
}

/// The masks and shifts that spread eight codes of `BITS` bits over the bytes of a u64, or
/// gather them, in three steps: halves to 32-bit lanes, to 16-bit lanes, to bytes.
pub(in crate::codec) struct Spread<const BITS: usize>;

impl<const BITS: usize> Spread<BITS> {
    /// For each step, widest lanes first: the distance that the upper half moves, the bits of
    /// the lower halves, and the bits of the upper halves when spread and when gathered.
    pub(in crate::codec) const STEPS: [(u32, u64, u64, u64); 3] =
        [Self::step(32), Self::step(16), Self::step(8)];

    const fn step(lane: usize) -> (u32, u64, u64, u64) {
        let width = lane / 8 * BITS;
        let mut low = 0;
        let mut at = 0;
        while at < 64 {
            low |= ((1 << width) - 1) << at;
            at += 2 * lane;
        }
        ((lane - width) as u32, low, low << lane, low << width)
    }
}
