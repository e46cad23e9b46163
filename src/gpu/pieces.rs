//! Splits a range of a file into pieces of one read each.

/// Bytes of a read and of a buffer. Larger ones gain little. A multiple of 4096, so that all pieces but the first and
/// the last can use direct memory access.
pub(super) const PIECE_BYTES: u64 = 16 << 20;

/// A piece of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Offset from the start of the range.
    pub into: u64,
    /// Length in bytes, at most [`PIECE_BYTES`].
    pub len: usize,
}

/// The pieces of the `len` bytes at `start` of a file, split at multiples of [`PIECE_BYTES`] in the file. `start + len`
/// must not overflow.
pub(super) fn pieces(start: u64, len: u64) -> impl Iterator<Item = Piece> {
    let mut into = 0;
    std::iter::from_fn(move || {
        let rest = len.checked_sub(into).filter(|rest| *rest > 0)?;
        let bytes = rest.min(PIECE_BYTES - (start + into) % PIECE_BYTES);
        let piece = Piece { into, len: bytes as usize };
        into += bytes;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::{PIECE_BYTES, pieces};

    #[test]
    fn pieces_are_consecutive_and_aligned_to_their_size_in_the_file() {
        let size = PIECE_BYTES;
        for (start, len) in
            [(0, 0), (0, 1), (0, size), (0, size + 1), (5, size), (size - 1, 2), (3 * size + 7, 4 * size)]
        {
            let mut end = 0;
            for piece in pieces(start, len) {
                assert_eq!(piece.into, end, "{start} {len}");
                assert!(piece.len > 0 && piece.len as u64 <= size);
                assert!(piece.into == 0 || (start + piece.into) % size == 0);
                end += piece.len as u64;
            }
            assert_eq!(end, len);
        }
    }
}
