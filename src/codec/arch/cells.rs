//! Operations on 64 bytes at a time: bits to bytes and back, tables of 16 entries, compression and expansion by a mask,
//! bytes of elements to planes and back.

/// The operations of one instruction set on 64 bytes.
pub(in crate::codec) trait Cells: Copy {
    /// 64 bytes.
    type Bytes: Copy;

    /// 64 bytes as they are.
    fn load_bytes(self, bytes: &[u8; 64]) -> Self::Bytes;
    /// 64 bytes as they are.
    fn store_bytes(self, codes: Self::Bytes, bytes: &mut [u8; 64]);
    /// `a | b`
    fn or_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Bit j of byte i is bit i of `words[j]`. `WIDTH` is 1 to 7.
    fn bytes_of_bits<const WIDTH: usize>(self, words: [u64; WIDTH]) -> Self::Bytes;
    /// The reverse of `bytes_of_bits`; ignores the other bits of the bytes.
    fn bits_of_bytes<const WIDTH: usize>(self, bytes: Self::Bytes) -> [u64; WIDTH];
    /// Replaces each byte, below 16, by its entry in `table`.
    fn look_up(self, codes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// The entry in `table` of each code: bit j of code i is bit i of `words[j]`. `WIDTH` is 1 to 4.
    #[inline(always)]
    fn symbols<const WIDTH: usize>(self, words: [u64; WIDTH], table: &[u8; 16]) -> Self::Bytes {
        self.look_up(self.bytes_of_bits(words), table)
    }
    /// The code of each byte: its entry in `table`. That is the place in `symbols`, at most 15, of the first that equals
    /// the byte where the bits of `mask` are set, or their number.
    fn codes(self, bytes: Self::Bytes, symbols: &[u8], mask: u8, table: &[u8; 256]) -> Self::Bytes;
    /// Replaces the bytes whose bits in `mask` are set, all zero, by the first bytes of `next`, in order.
    fn expand_bytes(self, bytes: Self::Bytes, mask: u64, next: &[u8; 64]) -> Self::Bytes;
    /// Stores the bytes whose bits in `mask` are set at the beginning of `out`, in order. The rest of
    /// `out` is unspecified.
    fn compress_bytes(self, bytes: Self::Bytes, mask: u64, out: &mut [u8; 64]);
    /// Lanes of `LANE` bytes (1, 2 or 4) from `low` and `high` in turn.
    fn interleave<const LANE: usize>(self, low: Self::Bytes, high: Self::Bytes) -> [Self::Bytes; 2];
    /// The reverse of `interleave`.
    fn deinterleave<const LANE: usize>(self, both: [Self::Bytes; 2]) -> [Self::Bytes; 2];
    /// Rotates every lane of `LANE` bytes (1 or 2) left by one bit.
    fn rotate_left<const LANE: usize>(self, bytes: Self::Bytes) -> Self::Bytes;
    /// Rotates every lane of `LANE` bytes (1 or 2) right by one bit.
    fn rotate_right<const LANE: usize>(self, bytes: Self::Bytes) -> Self::Bytes;
}
