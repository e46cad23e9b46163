//! Pieces in memory, for files that have no room in a cache: a program reads a piece in many parts. It also
//! notes pieces that could not be fetched a moment ago.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::format::snapshot::keys::PieceName;
use crate::store::RemoteError;

/// Bytes that are kept.
const BYTES_MAX: usize = 128 << 20;

/// A failure is the answer to further reads for this long. The kernel repeats a read that failed for a part of it,
/// and would wait a second time until the remote does not answer.
const FAILED_FOR: Duration = Duration::from_secs(2);

/// The most bytes that were fetched ahead of readers, or are on their way, and that nobody has read yet. With more, several
/// readers would push out each other's pieces before these are read.
const AHEAD_BYTES_MAX: usize = BYTES_MAX / 2;

/// The pieces that were read last.
#[derive(Default)]
pub(in crate::remote) struct PieceBuffer {
    pieces: Mutex<VecDeque<Kept>>,
    /// Bytes on their way ahead of readers.
    coming: AtomicUsize,
    failed: Mutex<HashMap<PieceName, (Instant, io::ErrorKind, String)>>,
}

/// A piece on its way ahead of a reader, which may come to memory.
pub(in crate::remote) struct Awaited {
    bytes: u32,
    is_expected: AtomicBool,
}

impl Awaited {
    pub fn new(bytes: u32) -> Awaited {
        Awaited { bytes, is_expected: AtomicBool::new(false) }
    }

    /// Whether memory has room for it. It then expects the piece.
    pub fn has_place(&self, buffer: &PieceBuffer) -> bool {
        if !self.is_expected.load(Ordering::Relaxed) {
            self.is_expected.store(buffer.expect(self.bytes), Ordering::Relaxed);
        }
        self.is_expected.load(Ordering::Relaxed)
    }

    /// It is not on its way any more.
    pub fn came(&self, buffer: &PieceBuffer) {
        if self.is_expected.swap(false, Ordering::Relaxed) {
            buffer.came(self.bytes);
        }
    }
}

struct Kept {
    name: PieceName,
    bytes: Arc<Vec<u8>>,
    is_read: bool,
}

impl PieceBuffer {
    /// A piece, if it is here.
    pub fn get(&self, name: &PieceName) -> Option<Arc<Vec<u8>>> {
        let mut pieces = self.pieces.lock();
        let place = pieces.iter().position(|kept| kept.name == *name)?;
        let kept = pieces.remove(place)?;
        let bytes = kept.bytes.clone();
        pieces.push_back(Kept { is_read: true, ..kept });
        Some(bytes)
    }

    /// Forgets all pieces.
    pub fn clear(&self) {
        *self.pieces.lock() = VecDeque::new();
    }

    /// Whether a piece is here, which is not read now.
    pub fn has(&self, name: &PieceName) -> bool {
        self.pieces.lock().iter().any(|kept| kept.name == *name)
    }

    /// Counts bytes that are fetched ahead of a reader. Returns whether there is room for them; then
    /// [`came`](Self::came) follows.
    pub fn expect(&self, bytes: u32) -> bool {
        let pieces = self.pieces.lock();
        let unread: usize = pieces.iter().filter(|kept| !kept.is_read).map(|kept| kept.bytes.len()).sum();
        let has_room = unread + self.coming.load(Ordering::Relaxed) + bytes as usize <= AHEAD_BYTES_MAX;
        if has_room {
            self.coming.fetch_add(bytes as usize, Ordering::Relaxed);
        }
        has_room
    }

    /// So many bytes are not on their way any more.
    pub fn came(&self, bytes: u32) {
        self.coming.fetch_sub(bytes as usize, Ordering::Relaxed);
    }

    /// The error of a piece that has failed a moment ago.
    pub fn failed(&self, name: &PieceName) -> io::Result<()> {
        match self.failed.lock().get(name) {
            Some((when, kind, text)) if when.elapsed() < FAILED_FOR => {
                Err(RemoteError::of(*kind, text.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Notes that a piece could not be had.
    pub fn fail(&self, name: PieceName, error: &io::Error) {
        let mut failed = self.failed.lock();
        failed.retain(|_, (when, ..)| when.elapsed() < FAILED_FOR);
        failed.insert(name, (Instant::now(), error.kind(), error.to_string()));
    }

    /// Keeps a piece that is read now, and forgets those that were used longest ago.
    pub fn keep(&self, name: PieceName, bytes: &Arc<Vec<u8>>) {
        self.put(Kept { name, bytes: bytes.clone(), is_read: true });
    }

    /// The same of a piece that nobody has read yet.
    pub fn keep_ahead(&self, name: PieceName, bytes: &Arc<Vec<u8>>) {
        self.put(Kept { name, bytes: bytes.clone(), is_read: false });
    }

    fn put(&self, piece: Kept) {
        let mut pieces = self.pieces.lock();
        pieces.retain(|kept| kept.name != piece.name);
        pieces.push_back(piece);
        let mut sum: usize = pieces.iter().map(|kept| kept.bytes.len()).sum();
        while sum > BYTES_MAX
            && let Some(kept) = pieces.pop_front()
        {
            sum -= kept.bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{BYTES_MAX, PieceBuffer};
    use crate::format::snapshot::keys::PieceName;

    #[test]
    fn the_pieces_used_longest_ago_go_first_and_memory_is_bounded() {
        let recent = PieceBuffer::default();
        let name = |number: u8| PieceName { digest: [number; 32], generation: 0 };
        let bytes = Arc::new(vec![0; BYTES_MAX / 4]);
        (0..4).for_each(|number| recent.keep(name(number), &bytes));
        assert!(recent.get(&name(0)).is_some());
        recent.keep(name(4), &bytes);
        recent.keep(name(4), &bytes);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|number| recent.get(&name(number)).is_some()),
            [true, false, true, true, true]
        );
    }

    #[test]
    fn pieces_ahead_of_readers_take_half_of_the_memory_until_they_are_read() {
        let buffer = PieceBuffer::default();
        let name = |number: u8| PieceName { digest: [number; 32], generation: 0 };
        let len = (BYTES_MAX / 8) as u32;
        let bytes = Arc::new(vec![0; len as usize]);
        for number in 0..4 {
            assert!(buffer.expect(len));
            if number < 3 {
                buffer.keep_ahead(name(number), &bytes);
                buffer.came(len);
            }
        }
        assert!(!buffer.expect(1) && buffer.has(&name(0)) && !buffer.expect(1));
        assert!(buffer.get(&name(0)).is_some() && buffer.expect(len) && !buffer.expect(1));
        buffer.came(len);
        buffer.came(len);
        assert!(buffer.expect(len), "a piece that did not come takes no room");
    }
}
