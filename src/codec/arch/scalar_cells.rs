//! [`Cells`] in portable Rust.

use super::cells::Cells;
use super::scalar::Scalar;

/// The lowest bit of each byte.
const LOW_BITS: u64 = 0x0101_0101_0101_0101;
/// The lowest bit of each 16-bit lane.
const LOW_BITS_16: u64 = 0x0001_0001_0001_0001;

/// Byte i is bit i of `bits`.
#[inline(always)]
fn spread_bits(bits: u8) -> u64 {
    let one_each = (u64::from(bits) * LOW_BITS) & 0x8040_2010_0804_0201;
    ((one_each + 0x7f * LOW_BITS) >> 7) & LOW_BITS
}

/// Bit i is the lowest bit of byte i.
#[inline(always)]
fn gather_bits(bytes: u64) -> u8 {
    ((bytes & LOW_BITS).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// Changes eight bytes at a time. Compilers make no vectors of rotations of 16-bit lanes, but of these shifts.
#[inline(always)]
fn eights(mut bytes: [u8; 64], change: impl Fn(u64) -> u64) -> [u8; 64] {
    for eight in bytes.as_chunks_mut().0 {
        *eight = change(u64::from_le_bytes(*eight)).to_le_bytes();
    }
    bytes
}

impl Cells for Scalar {
    type Bytes = [u8; 64];

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> [u8; 64] {
        *bytes
    }

    #[inline(always)]
    fn store_bytes(self, codes: [u8; 64], bytes: &mut [u8; 64]) {
        *bytes = codes;
    }

    #[inline(always)]
    fn or_bytes(self, a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        let mut out = a;
        for (out, b) in out.iter_mut().zip(b) {
            *out |= b;
        }
        out
    }

    #[inline(always)]
    fn bytes_of_bits<const WIDTH: usize>(self, words: [u64; WIDTH]) -> [u8; 64] {
        let mut out = [0; 64];
        for (i, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let mut bytes = 0;
            for (j, word) in words.iter().enumerate() {
                bytes |= spread_bits((word >> (8 * i)) as u8) << j;
            }
            *eight = bytes.to_le_bytes();
        }
        out
    }

    #[inline(always)]
    fn bits_of_bytes<const WIDTH: usize>(self, bytes: [u8; 64]) -> [u64; WIDTH] {
        let mut words = [0; WIDTH];
        for (i, eight) in bytes.as_chunks().0.iter().enumerate() {
            let eight = u64::from_le_bytes(*eight);
            for (j, word) in words.iter_mut().enumerate() {
                *word |= u64::from(gather_bits(eight >> j)) << (8 * i);
            }
        }
        words
    }

    #[inline(always)]
    fn look_up(self, codes: [u8; 64], table: &[u8; 16]) -> [u8; 64] {
        codes.map(|code| table[usize::from(code & 15)])
    }

    #[inline(always)]
    fn symbols<const WIDTH: usize>(self, words: [u64; WIDTH], table: &[u8; 16]) -> [u8; 64] {
        if WIDTH > 2 {
            return self.look_up(self.bytes_of_bits(words), table);
        }
        // Eight symbols of four at a time: the first, changed by what each bit and both together change.
        let [a, b, c, d, ..] = table.map(u64::from);
        let second = words.get(1).copied().unwrap_or(0);
        let mut out = [0; 64];
        for (i, eight) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let (x, y) = (spread_bits((words[0] >> (8 * i)) as u8), spread_bits((second >> (8 * i)) as u8));
            let changes = (x * (a ^ b)) ^ (y * (a ^ c)) ^ ((x & y) * (a ^ b ^ c ^ d));
            *eight = ((a * LOW_BITS) ^ changes).to_le_bytes();
        }
        out
    }

    #[inline(always)]
    fn codes(self, bytes: [u8; 64], _: &[u8], _: u8, table: &[u8; 256]) -> [u8; 64] {
        bytes.map(|byte| table[usize::from(byte)])
    }

    #[inline(always)]
    fn expand_bytes(self, mut bytes: [u8; 64], mask: u64, next: &[u8; 64]) -> [u8; 64] {
        let mut left = mask;
        for byte in next {
            if left == 0 {
                break;
            }
            bytes[left.trailing_zeros() as usize % 64] = *byte;
            left &= left - 1;
        }
        bytes
    }

    #[inline(always)]
    fn compress_bytes(self, bytes: [u8; 64], mask: u64, out: &mut [u8; 64]) {
        let mut left = mask;
        for byte in out {
            if left == 0 {
                break;
            }
            *byte = bytes[left.trailing_zeros() as usize % 64];
            left &= left - 1;
        }
    }

    #[inline(always)]
    fn interleave<const LANE: usize>(self, low: [u8; 64], high: [u8; 64]) -> [[u8; 64]; 2] {
        let mut out = [[0; 64]; 2];
        let lanes = low.chunks_exact(LANE).zip(high.chunks_exact(LANE));
        for (both, (low, high)) in out.as_flattened_mut().chunks_exact_mut(2 * LANE).zip(lanes) {
            both[..LANE].copy_from_slice(low);
            both[LANE..].copy_from_slice(high);
        }
        out
    }

    #[inline(always)]
    fn deinterleave<const LANE: usize>(self, both: [[u8; 64]; 2]) -> [[u8; 64]; 2] {
        let [mut low, mut high] = [[0; 64]; 2];
        let lanes = low.chunks_exact_mut(LANE).zip(high.chunks_exact_mut(LANE));
        for (both, (low, high)) in both.as_flattened().chunks_exact(2 * LANE).zip(lanes) {
            low.copy_from_slice(&both[..LANE]);
            high.copy_from_slice(&both[LANE..]);
        }
        [low, high]
    }

    #[inline(always)]
    fn rotate_left<const LANE: usize>(self, bytes: [u8; 64]) -> [u8; 64] {
        let lowest = if LANE == 1 { LOW_BITS } else { LOW_BITS_16 };
        eights(bytes, |eight| eight << 1 & !lowest | eight >> (8 * LANE - 1) & lowest)
    }

    #[inline(always)]
    fn rotate_right<const LANE: usize>(self, bytes: [u8; 64]) -> [u8; 64] {
        let highest = if LANE == 1 { LOW_BITS << 7 } else { LOW_BITS_16 << 15 };
        eights(bytes, |eight| eight >> 1 & !highest | eight << (8 * LANE - 1) & highest)
    }
}
