//! Whether the disk of a cache keeps up with the remote. The threads that receive bytes also write them, so a disk that is
//! slower than the link would slow down readers.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Bytes after which the times are compared.
const WINDOW_BYTES: u64 = 32 << 20;
/// A disk that writes so many bytes a second is fast enough for any link.
const ENOUGH_BYTES_A_SECOND: u64 = 200 << 20;
/// A disk that lags gets no more bytes for this long.
const BYPASSED: Duration = Duration::from_secs(10);

/// The times that pieces took on their way to the disk.
#[derive(Clone, Copy, Default, Debug)]
pub struct Written {
    /// Bytes.
    pub bytes: u64,
    /// Time of writing.
    pub writing: Duration,
    /// All of the time from the request to the end.
    pub total: Duration,
}

/// The pace of a disk.
#[derive(Default)]
pub(super) struct Pace {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    window: Written,
    lagged: Option<Instant>,
}

impl Written {
    fn and(self, other: Written) -> Written {
        Written {
            bytes: self.bytes.saturating_add(other.bytes),
            writing: self.writing.saturating_add(other.writing),
            total: self.total.saturating_add(other.total),
        }
    }

    /// Whether the bytes waited for the disk for most of the time, and it is slow.
    fn lags(&self) -> bool {
        let is_slow = self.bytes as f64 / self.writing.as_secs_f64() < ENOUGH_BYTES_A_SECOND as f64;
        is_slow && self.writing * 2 > self.total
    }
}

impl Pace {
    /// Notes that a piece was written. Returns whether the disk lags from now on.
    pub fn note(&self, written: Written) -> bool {
        let mut state = self.state.lock();
        state.window = state.window.and(written);
        if state.window.bytes < WINDOW_BYTES {
            return false;
        }
        let lags = std::mem::take(&mut state.window).lags();
        if lags {
            state.lagged = Some(Instant::now());
        }
        lags
    }

    /// Whether the disk has lagged a moment ago.
    pub fn lags(&self) -> bool {
        self.state.lock().lagged.is_some_and(|when| when.elapsed() < BYPASSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(writing: u64, total: u64) -> Written {
        let (writing, total) = (Duration::from_millis(writing), Duration::from_millis(total));
        Written { bytes: 8 << 20, writing, total }
    }

    #[test]
    fn a_disk_lags_only_if_bytes_wait_for_it_and_it_is_slow() {
        // Bytes that wait for the network, for a fast disk, for a slow disk.
        for (writing, total, lags) in [(100, 900, false), (15, 20, false), (100, 150, true)] {
            let pace = Pace::default();
            assert!((0..3).all(|_| !pace.note(written(writing, total))));
            assert_eq!(
                (pace.note(written(writing, total)), pace.lags()),
                (lags, lags),
                "{writing} of {total}"
            );
            assert!(!pace.note(written(writing, total)), "a new window");
        }
    }
}
