//! [`Cells`] with NEON.

use std::arch::aarch64::*;

use super::cells::Cells;
use super::neon::Neon;
use super::tables::{COMPRESSIONS, EXPANSIONS};

/// Calls an intrinsic that uses registers only, so the set is its only requirement.
macro_rules! with_proof {
    ($proof:ident, $call:expr) => {{
        let Neon { .. } = $proof;
        // SAFETY: a `Neon` exists only where `detect` found the feature that intrinsics in
        // this file need, and the call reads and writes no memory.
        unsafe { $call }
    }};
}

/// For each quarter of 64 bytes, the byte of a mask of 64 bits that has the bit of each byte.
static PLACES: [[u8; 16]; 4] = [
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1],
    [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3],
    [4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5],
    [6, 6, 6, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7],
];

/// The bit of each byte in its byte of a mask.
#[inline]
#[target_feature(enable = "neon")]
fn bit_of_each() -> uint8x16_t {
    vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201))
}

/// All bits of the bytes of a quarter whose bits are set in `mask`.
#[inline]
#[target_feature(enable = "neon")]
fn bytes_of_mask(mask: u64, places: uint8x16_t) -> uint8x16_t {
    let mask = vreinterpretq_u8_u64(vdupq_n_u64(mask));
    vtstq_u8(vqtbl1q_u8(mask, places), bit_of_each())
}

/// Bit i is set where byte i has a bit of `which`.
#[inline]
#[target_feature(enable = "neon")]
fn mask_of_bytes([a, b, c, d]: [uint8x16_t; 4], which: u8) -> u64 {
    let (which, bits) = (vdupq_n_u8(which), bit_of_each());
    // Neighbours are added, so three times gives a sum of each eight.
    let low = vpaddq_u8(vandq_u8(vtstq_u8(a, which), bits), vandq_u8(vtstq_u8(b, which), bits));
    let high = vpaddq_u8(vandq_u8(vtstq_u8(c, which), bits), vandq_u8(vtstq_u8(d, which), bits));
    let fours = vpaddq_u8(low, high);
    vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(fours, fours)))
}

/// Byte i is the number of bits in the bytes of `mask` before byte i.
#[inline]
#[target_feature(enable = "neon")]
fn bits_before(mask: u64) -> [u8; 8] {
    let counts = vget_lane_u64::<0>(vreinterpret_u64_u8(vcnt_u8(vcreate_u8(mask))));
    // The product adds to each byte all bytes below it. There are at most 64 bits, so nothing is carried.
    (counts.wrapping_mul(0x0101_0101_0101_0101) << 8).to_le_bytes()
}

/// Bytes where the low and the high vector alternate in lanes of `LANE` bytes.
#[inline]
#[target_feature(enable = "neon")]
fn interleave<const LANE: usize>(low: uint8x16_t, high: uint8x16_t) -> [uint8x16_t; 2] {
    match LANE {
        1 => [vzip1q_u8(low, high), vzip2q_u8(low, high)],
        2 => {
            let (low, high) = (vreinterpretq_u16_u8(low), vreinterpretq_u16_u8(high));
            [vreinterpretq_u8_u16(vzip1q_u16(low, high)), vreinterpretq_u8_u16(vzip2q_u16(low, high))]
        }
        _ => {
            let (low, high) = (vreinterpretq_u32_u8(low), vreinterpretq_u32_u8(high));
            [vreinterpretq_u8_u32(vzip1q_u32(low, high)), vreinterpretq_u8_u32(vzip2q_u32(low, high))]
        }
    }
}

/// The reverse of `interleave`.
#[inline]
#[target_feature(enable = "neon")]
fn deinterleave<const LANE: usize>(first: uint8x16_t, last: uint8x16_t) -> [uint8x16_t; 2] {
    match LANE {
        1 => [vuzp1q_u8(first, last), vuzp2q_u8(first, last)],
        2 => {
            let (first, last) = (vreinterpretq_u16_u8(first), vreinterpretq_u16_u8(last));
            [vreinterpretq_u8_u16(vuzp1q_u16(first, last)), vreinterpretq_u8_u16(vuzp2q_u16(first, last))]
        }
        _ => {
            let (first, last) = (vreinterpretq_u32_u8(first), vreinterpretq_u32_u8(last));
            [vreinterpretq_u8_u32(vuzp1q_u32(first, last)), vreinterpretq_u8_u32(vuzp2q_u32(first, last))]
        }
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn rotate_left<const LANE: usize>(bytes: uint8x16_t) -> uint8x16_t {
    if LANE == 1 {
        return vsriq_n_u8::<7>(vaddq_u8(bytes, bytes), bytes);
    }
    let words = vreinterpretq_u16_u8(bytes);
    vreinterpretq_u8_u16(vsriq_n_u16::<15>(vaddq_u16(words, words), words))
}

#[inline]
#[target_feature(enable = "neon")]
fn rotate_right<const LANE: usize>(bytes: uint8x16_t) -> uint8x16_t {
    if LANE == 1 {
        return vsriq_n_u8::<1>(vshlq_n_u8::<7>(bytes), bytes);
    }
    let words = vreinterpretq_u16_u8(bytes);
    vreinterpretq_u8_u16(vsriq_n_u16::<1>(vshlq_n_u16::<15>(words), words))
}

/// The entries of a table of 256 bytes, 64 of them in each of four parts.
#[inline]
#[target_feature(enable = "neon")]
fn code_of(bytes: uint8x16_t, [a, b, c, d]: [uint8x16x4_t; 4]) -> uint8x16_t {
    // A look-up with a place past its part gives zero, or keeps what it extends.
    let codes = vqtbl4q_u8(a, bytes);
    let codes = vqtbx4q_u8(codes, b, veorq_u8(bytes, vdupq_n_u8(0x40)));
    let codes = vqtbx4q_u8(codes, c, veorq_u8(bytes, vdupq_n_u8(0x80)));
    vqtbx4q_u8(codes, d, veorq_u8(bytes, vdupq_n_u8(0xc0)))
}

/// The eight bytes of `source` in the order of `order`, zeros for 0x80.
#[inline]
#[target_feature(enable = "neon")]
fn ordered(source: [u8; 8], order: [u8; 8]) -> [u8; 8] {
    let source = vcreate_u8(u64::from_le_bytes(source));
    let order = vcreate_u8(u64::from_le_bytes(order));
    vget_lane_u64::<0>(vreinterpret_u64_u8(vtbl1_u8(source, order))).to_le_bytes()
}

impl Cells for Neon {
    type Bytes = [uint8x16_t; 4];

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> [uint8x16_t; 4] {
        let mut out = [with_proof!(self, vdupq_n_u8(0)); 4];
        for (quarter, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *quarter = self.read(bytes);
        }
        out
    }

    #[inline(always)]
    fn store_bytes(self, codes: [uint8x16_t; 4], bytes: &mut [u8; 64]) {
        for (quarter, bytes) in codes.into_iter().zip(bytes.as_chunks_mut().0) {
            self.write(quarter, bytes);
        }
    }

    #[inline(always)]
    fn or_bytes(self, a: [uint8x16_t; 4], b: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        with_proof!(
            self,
            [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1]), vorrq_u8(a[2], b[2]), vorrq_u8(a[3], b[3])]
        )
    }

    #[inline(always)]
    fn bytes_of_bits<const WIDTH: usize>(self, words: [u64; WIDTH]) -> [uint8x16_t; 4] {
        let mut out = [with_proof!(self, vdupq_n_u8(0)); 4];
        for (quarter, places) in out.iter_mut().zip(&PLACES) {
            let places = self.read(places);
            // From the highest, each bit doubles the bits above it. All bits set is one less than zero.
            for word in words.iter().rev() {
                *quarter =
                    with_proof!(self, vsubq_u8(vaddq_u8(*quarter, *quarter), bytes_of_mask(*word, places)));
            }
        }
        out
    }

    #[inline(always)]
    fn bits_of_bytes<const WIDTH: usize>(self, bytes: [uint8x16_t; 4]) -> [u64; WIDTH] {
        let mut words = [0; WIDTH];
        for (j, word) in words.iter_mut().enumerate() {
            *word = with_proof!(self, mask_of_bytes(bytes, 1 << j));
        }
        words
    }

    #[inline(always)]
    fn look_up(self, [a, b, c, d]: [uint8x16_t; 4], table: &[u8; 16]) -> [uint8x16_t; 4] {
        let table = self.read(table);
        with_proof!(
            self,
            [vqtbl1q_u8(table, a), vqtbl1q_u8(table, b), vqtbl1q_u8(table, c), vqtbl1q_u8(table, d)]
        )
    }

    #[inline(always)]
    fn codes(self, [a, b, c, d]: [uint8x16_t; 4], _: &[u8], _: u8, table: &[u8; 256]) -> [uint8x16_t; 4] {
        let zero = with_proof!(self, vdupq_n_u8(0));
        let mut parts = [uint8x16x4_t(zero, zero, zero, zero); 4];
        for (part, table) in parts.iter_mut().zip(table.as_chunks().0) {
            let [e, f, g, h] = self.load_bytes(table);
            *part = uint8x16x4_t(e, f, g, h);
        }
        with_proof!(self, [code_of(a, parts), code_of(b, parts), code_of(c, parts), code_of(d, parts)])
    }

    #[inline(always)]
    fn expand_bytes(self, bytes: [uint8x16_t; 4], mask: u64, next: &[u8; 64]) -> [uint8x16_t; 4] {
        if mask == 0 {
            return bytes;
        }
        let mut spread = [0; 64];
        let places = with_proof!(self, bits_before(mask)).into_iter().zip(mask.to_le_bytes());
        for (eight, (at, bits)) in spread.as_chunks_mut::<8>().0.iter_mut().zip(places) {
            // At most 8 bytes for each of the bytes before, so eight are left.
            let rest = next.get(usize::from(at)..);
            let Some(source) = rest.and_then(|rest| rest.first_chunk::<8>()) else { break };
            *eight = with_proof!(self, ordered(*source, EXPANSIONS[usize::from(bits)]));
        }
        let mut out = bytes;
        for ((quarter, spread), places) in out.iter_mut().zip(self.load_bytes(&spread)).zip(&PLACES) {
            let places = self.read(places);
            *quarter = with_proof!(self, vbslq_u8(bytes_of_mask(mask, places), spread, *quarter));
        }
        out
    }

    #[inline(always)]
    fn compress_bytes(self, bytes: [uint8x16_t; 4], mask: u64, out: &mut [u8; 64]) {
        if mask == 0 {
            return;
        }
        let mut stored = [0; 64];
        self.store_bytes(bytes, &mut stored);
        let places = with_proof!(self, bits_before(mask)).into_iter().zip(mask.to_le_bytes());
        for (eight, (at, bits)) in stored.as_chunks::<8>().0.iter().zip(places) {
            // At most 8 bytes came of each of the eights before, so there is room for eight.
            let rest = out.get_mut(usize::from(at)..);
            let Some(place) = rest.and_then(|rest| rest.first_chunk_mut::<8>()) else { break };
            *place = with_proof!(self, ordered(*eight, COMPRESSIONS[usize::from(bits)]));
        }
    }

    #[inline(always)]
    fn interleave<const LANE: usize>(
        self,
        low: [uint8x16_t; 4],
        high: [uint8x16_t; 4],
    ) -> [[uint8x16_t; 4]; 2] {
        let [[a, b], [c, d], [e, f], [g, h]] = with_proof!(
            self,
            [
                interleave::<LANE>(low[0], high[0]),
                interleave::<LANE>(low[1], high[1]),
                interleave::<LANE>(low[2], high[2]),
                interleave::<LANE>(low[3], high[3])
            ]
        );
        [[a, b, c, d], [e, f, g, h]]
    }

    #[inline(always)]
    fn deinterleave<const LANE: usize>(self, both: [[uint8x16_t; 4]; 2]) -> [[uint8x16_t; 4]; 2] {
        let [first, last] = both;
        let [[a, b], [c, d], [e, f], [g, h]] = with_proof!(
            self,
            [
                deinterleave::<LANE>(first[0], first[1]),
                deinterleave::<LANE>(first[2], first[3]),
                deinterleave::<LANE>(last[0], last[1]),
                deinterleave::<LANE>(last[2], last[3])
            ]
        );
        [[a, c, e, g], [b, d, f, h]]
    }

    #[inline(always)]
    fn rotate_left<const LANE: usize>(self, [a, b, c, d]: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        with_proof!(
            self,
            [rotate_left::<LANE>(a), rotate_left::<LANE>(b), rotate_left::<LANE>(c), rotate_left::<LANE>(d)]
        )
    }

    #[inline(always)]
    fn rotate_right<const LANE: usize>(self, [a, b, c, d]: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
        with_proof!(
            self,
            [
                rotate_right::<LANE>(a),
                rotate_right::<LANE>(b),
                rotate_right::<LANE>(c),
                rotate_right::<LANE>(d)
            ]
        )
    }
}
