//! CRC32C, the checksum of payloads, slots and records: the Castagnoli polynomial
//! (RFC 3720, 12.1), reflected, initialized with ones and inverted at the end.

/// The CRC32C of `bytes`. Uses the best instructions of the processor: carry-less products of 64 bytes
/// with AVX-512 and VPCLMULQDQ.
pub fn of(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The CRC32C of a string with the CRC32C `first`, followed by `bytes`.
pub fn continued(first: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(first, bytes)
}

/// The CRC32C of two concatenated byte strings, from their CRC32Cs and the length of the second.
pub fn joined(first: u32, second: u32, second_bytes: usize) -> u32 {
    crc32c::crc32c_combine(first, second, second_bytes)
}

#[cfg(test)]
mod tests {
    use super::{continued, joined, of};

    /// One bit at a time, from the definition of the polynomial.
    fn naive(bytes: &[u8]) -> u32 {
        let mut rest = u32::MAX;
        for byte in bytes {
            rest ^= u32::from(*byte);
            for _ in 0..8 {
                rest = (rest >> 1) ^ (0x82f6_3b78 & (rest & 1).wrapping_neg());
            }
        }
        !rest
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    #[test]
    fn the_vectors_of_rfc_3720_are_reproduced() {
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        assert_eq!(of(b""), 0);
        assert_eq!(of(b"123456789"), 0xe306_9283);
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(of(&up), 0x46dd_794e);
        assert_eq!(of(&down), 0x113f_db5c);
    }

    #[test]
    fn every_short_length_at_every_alignment_equals_the_bitwise_checksum() {
        let bytes = noise(900);
        for from in 0..64 {
            for len in (0..=300).chain(380..=390).chain(760..=780) {
                let part = &bytes[from..from + len];
                assert_eq!(of(part), naive(part), "{len} bytes from {from}");
            }
        }
    }

    #[test]
    fn two_libraries_agree_on_long_and_odd_lengths_and_combine_them_alike() {
        let bytes = noise(1_200_000);
        for from in [0, 1, 3, 8, 17, 32, 63] {
            for len in [1_087, 1_088, 4_096, 4_352, 4_353, 16_384, 65_535, 65_536, 262_145, 1 << 20] {
                let part = &bytes[from..from + len];
                let whole = of(part);
                assert_eq!(whole, crc32c::crc32c(part), "{len} bytes from {from}");
                let (first, second) = part.split_at(len / 3);
                assert_eq!(joined(of(first), of(second), second.len()), whole);
                assert_eq!(continued(of(first), second), whole);
            }
        }
    }
}
