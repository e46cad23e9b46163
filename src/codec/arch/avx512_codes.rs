//! Tables of the byte permutations for AVX-512.

/// Bytes of each of the two parts in which a stream of codes is loaded: its first and its
/// last bytes. The parts may overlap.
const fn part_len(bits: usize) -> usize {
    if bits == 3 { 16 } else { 32 }
}

/// A permutation of a stream in two parts that gives each 64-bit lane the bytes of eight
/// codes.
const fn split(bits: usize) -> [u8; 64] {
    let mut index = [0; 64];
    let mut i = 0;
    while i < 64 {
        // Past a lane's own bytes any byte is valid, because its bits are masked off.
        index[i] = in_parts(bits, i / 8 * bits + i % 8);
        i += 1;
    }
    index
}

/// The index of byte `at` of a stream in two parts; arbitrary if the stream does not have it.
const fn in_parts(bits: usize, at: usize) -> u8 {
    let again = if at < part_len(bits) { 0 } else { 2 * part_len(bits) - 8 * bits };
    if at < 8 * bits { (at + again) as u8 } else { 0 }
}

/// Streams of `BITS` bits, 3 or 5, as 16-bit lanes: 32 codes, then 32 more.
pub(super) struct Words<const BITS: usize>;

impl<const BITS: usize> Words<BITS> {
    /// The two bytes that contain a code.
    pub(super) const SPLIT: [[u8; 64]; 2] = Self::LANES.0;
    /// The first bit of the code in them.
    pub(super) const STARTS: [[u8; 64]; 2] = Self::LANES.1;
    /// The signed codes as f32. Eight codes are repeated four times.
    pub(super) const CODES: [[u8; 64]; 2] = {
        let mut codes = [[0; 64]; 2];
        let mut i = 0;
        while i < 32 {
            let code = (i % (1 << BITS)) as f32 - ((1 << (BITS - 1)) - 1) as f32;
            let bytes = code.to_le_bytes();
            let mut byte = 0;
            while byte < 4 {
                codes[i / 16][i % 16 * 4 + byte] = bytes[byte];
                byte += 1;
            }
            i += 1;
        }
        codes
    };

    const LANES: ([[u8; 64]; 2], [[u8; 64]; 2]) = {
        let mut split = [[0; 64]; 2];
        let mut starts = [[0; 64]; 2];
        let mut i = 0;
        while i < 64 {
            let (half, place) = (i / 32, i % 32 * 2);
            split[half][place] = in_parts(BITS, i * BITS / 8);
            split[half][place + 1] = in_parts(BITS, i * BITS / 8 + 1);
            starts[half][place] = (i * BITS % 8) as u8;
            i += 1;
        }
        (split, starts)
    };
}

/// A permutation that closes the gaps between lanes of `bits` bytes.
const fn join(bits: usize) -> [u8; 64] {
    let mut index = [0; 64];
    let mut i = 0;
    while i < 8 * bits {
        index[i] = (i / bits * 8 + i % bits) as u8;
        i += 1;
    }
    index
}

/// The first bit of each of a lane's eight codes.
const fn starts(bits: usize) -> [u8; 64] {
    let mut shifts = [0; 64];
    let mut i = 0;
    while i < 64 {
        shifts[i] = (i % 8 * bits) as u8;
        i += 1;
    }
    shifts
}

/// The upper halves of the 32-bit lanes of two vectors, as indexes of 16-bit words.
pub(super) const UPPER_HALVES: [u8; 64] = {
    let mut index = [0; 64];
    let mut i = 0;
    while i < 32 {
        index[2 * i] = (2 * i + 1) as u8;
        i += 1;
    }
    index
};

/// The permutations of streams of `BITS` bits.
pub(super) struct Permutations<const BITS: usize>;

impl<const BITS: usize> Permutations<BITS> {
    pub(super) const SPLIT: [u8; 64] = split(BITS);
    pub(super) const JOIN: [u8; 64] = join(BITS);
    pub(super) const STARTS: [u8; 64] = starts(BITS);
    pub(super) const STREAM: u64 = u64::MAX >> (64 - 8 * BITS);
}
