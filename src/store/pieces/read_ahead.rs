//! Chooses pieces that are fetched before a reader asks for them.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The readers of a file: whether they go through it in order, and how many pieces are fetched ahead of them.
pub struct ReadAhead {
    /// The first number of pieces ahead; each further read doubles it.
    first: u32,
    /// The most pieces ahead.
    most: u32,
    /// A reader that skips fewer pieces than this, or comes back by one or by this many, reads in order: several
    /// threads answer its requests.
    skipped: u32,
    /// The piece that was wanted last, from 1; 0 for none.
    last: AtomicU32,
    count: AtomicU32,
}

impl ReadAhead {
    /// Nobody has read yet.
    pub const fn new(first: u32, most: u32, skipped: u32) -> ReadAhead {
        ReadAhead { first, most, skipped, last: AtomicU32::new(0), count: AtomicU32::new(0) }
    }

    /// Whether nobody has read yet.
    pub fn is_unread(&self) -> bool {
        self.last.load(Ordering::Relaxed) == 0
    }

    /// Notes the first read. Returns whether it is the first.
    pub fn begin(&self, piece: u32) -> bool {
        self.last.compare_exchange(0, piece + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Notes a read. Returns the pieces to fetch ahead.
    pub fn after(&self, piece: u32) -> Range<u32> {
        let next = piece.saturating_add(1);
        let last = self.last.load(Ordering::Relaxed);
        if next == last || piece.saturating_add(self.skipped) == last {
            return next..next;
        }
        self.last.store(next, Ordering::Relaxed);
        let is_next = last > 0 && (last..last.saturating_add(self.skipped)).contains(&piece);
        let doubled = self.count.load(Ordering::Relaxed).saturating_mul(2);
        let count = if is_next { doubled.clamp(self.first, self.most) } else { 0 };
        self.count.store(count, Ordering::Relaxed);
        next..next.saturating_add(count)
    }
}

#[cfg(test)]
mod tests {
    use super::ReadAhead;

    #[test]
    fn a_reader_in_order_gets_more_pieces_ahead_with_each_read_and_a_jump_ends_that() {
        let ahead = ReadAhead::new(2, 8, 2);
        assert!(ahead.is_unread() && ahead.begin(0) && !ahead.begin(0));
        let counts = [1, 1, 2, 3, 2, 5, 40, 41].map(|piece| ahead.after(piece).len());
        assert_eq!(counts, [2, 0, 4, 8, 0, 8, 0, 2]);
    }
}
