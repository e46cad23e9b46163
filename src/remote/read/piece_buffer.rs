//! Pieces in memory, for files that have no room in a cache: a program reads a piece in many parts. It also
//! notes pieces that could not be fetched a moment ago.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::format::snapshot::keys::PieceName;
use crate::store::RemoteError;

/// Bytes that are kept.
const BYTES_MAX: usize = 128 << 20;

/// A failure is the answer to further reads for this long. The kernel repeats a read that failed for a part of it,
/// and would wait a second time until the remote does not answer.
const FAILED_FOR: Duration = Duration::from_secs(2);

/// The pieces that were read last.
#[derive(Default)]
pub(in crate::remote) struct PieceBuffer {
    pieces: Mutex<VecDeque<(PieceName, Arc<Vec<u8>>)>>,
    failed: Mutex<HashMap<PieceName, (Instant, io::ErrorKind, String)>>,
}

impl PieceBuffer {
    /// A piece, if it is here.
    pub fn get(&self, name: &PieceName) -> Option<Arc<Vec<u8>>> {
        let mut pieces = self.pieces.lock();
        let place = pieces.iter().position(|(known, _)| known == name)?;
        let (name, bytes) = pieces.remove(place)?;
        pieces.push_back((name, bytes.clone()));
        Some(bytes)
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

    /// Keeps a piece, and forgets those that were used longest ago.
    pub fn keep(&self, name: PieceName, bytes: &Arc<Vec<u8>>) {
        let mut pieces = self.pieces.lock();
        pieces.retain(|(known, _)| *known != name);
        pieces.push_back((name, bytes.clone()));
        let mut sum: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        while sum > BYTES_MAX
            && let Some((_, bytes)) = pieces.pop_front()
        {
            sum -= bytes.len();
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
}
