//! Orders of bytes for the shuffle of AVX2 and the table look-up of NEON, which both give a zero for a place of 0x80.

/// The offset at which to read a quarter (sixteen codes) of a stream of `8 * bits` bytes, so
/// that sixteen bytes lie within the stream.
pub(super) const fn quarter(bits: usize, number: usize) -> usize {
    let at = 2 * bits * number;
    let last = 8 * bits - 16;
    if at < last { at } else { last }
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

/// The shuffle that ends a stream of `BITS` bits.
pub(super) struct Join<const BITS: usize>;

impl<const BITS: usize> Join<BITS> {
    pub(super) const ORDER: [u8; 16] = join(BITS);
}

/// For each eight bits, the shuffle that puts the next bytes where bits are set. 0x80 gives a zero.
pub(super) static EXPANSIONS: [[u8; 8]; 256] = shuffles(true);

/// For each eight bits, the shuffle that puts the bytes whose bits are set at the beginning. 0x80 gives a zero.
pub(super) static COMPRESSIONS: [[u8; 8]; 256] = shuffles(false);

/// The shuffles of `EXPANSIONS`, or those of `COMPRESSIONS`.
const fn shuffles(expands: bool) -> [[u8; 8]; 256] {
    let mut table = [[0x80; 8]; 256];
    let mut mask = 0;
    while mask < 256 {
        let (mut bit, mut next) = (0, 0);
        while bit < 8 {
            if mask >> bit & 1 == 1 {
                let (place, source) = if expands { (bit, next) } else { (next, bit) };
                table[mask][place] = source as u8;
                next += 1;
            }
            bit += 1;
        }
        mask += 1;
    }
    table
}
