//! Whether the disk of a cache keeps up with the remote. The threads that receive bytes also write them, so a disk that is
//! slower than the link would slow down readers.
//!
//! Each process judges by its own writes. Processes that share a slow disk slow down each other, so all of them may go past
//! it, and each fetches what its readers want. None can tell whether the link carries that: it knows neither the speed of the
//! link for all nor the readers of the others.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Bytes after which the times are compared.
const WINDOW_BYTES: u64 = 32 << 20;
/// Fewer bytes are enough if the disk was busy with them for `LONG`: at 50 MiB a second a window takes 0.6 s.
const FEW_BYTES: u64 = 8 << 20;
/// Longer than the pauses in which a fast disk writes back what it has in memory.
const LONG: Duration = Duration::from_millis(250);
/// A disk that writes so many bytes a second is fast enough for any link.
const ENOUGH_BYTES_A_SECOND: u64 = 200 << 20;
/// A disk that lags gets no more bytes for this long.
const BYPASSED: Duration = Duration::from_secs(10);

/// The times that parts of pieces took on their way to the disk.
#[derive(Clone, Copy, Default, Debug)]
pub struct Written {
    /// Bytes.
    pub bytes: u64,
    /// Time of writing.
    pub writing: Duration,
    /// Time of waiting for other pieces that were written.
    pub waiting: Duration,
    /// All of the time, from the request or the last part on.
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
    /// When the first bytes of the window were asked for.
    begun: Option<Instant>,
    /// When the window before it ended.
    ended: Option<Instant>,
    lagged: Option<Instant>,
}

impl Written {
    fn and(self, other: Written) -> Written {
        Written {
            bytes: self.bytes.saturating_add(other.bytes),
            writing: self.writing.saturating_add(other.writing),
            waiting: self.waiting.saturating_add(other.waiting),
            total: self.total.saturating_add(other.total),
        }
    }

    /// Whether the bytes, which came in this time, waited for the disk, and it is slow. They did if most of the time of each
    /// piece went there, or if the disk was busy nearly all the time: many pieces are on their way at once, and take turns.
    /// The sum of the times may be many times that of the disk.
    fn lags(&self, within: Duration) -> bool {
        let busy = self.writing.min(within).as_secs_f64();
        let is_slow = (self.bytes as f64) < busy * ENOUGH_BYTES_A_SECOND as f64;
        is_slow && ((self.writing + self.waiting) * 2 > self.total || self.writing * 10 > within * 9)
    }
}

impl Pace {
    /// Notes that a part of a piece was written just now. Returns whether the disk lags from now on.
    pub fn note(&self, written: Written, now: Instant) -> bool {
        let mut state = self.state.lock();
        state.window = state.window.and(written);
        let asked = now.checked_sub(written.total).unwrap_or(now);
        let first = state.ended.map_or(asked, |ended| ended.max(asked));
        let begun = *state.begun.get_or_insert(first);
        let within = now.saturating_duration_since(begun);
        let is_long = state.window.bytes >= FEW_BYTES && state.window.writing.min(within) >= LONG;
        if state.window.bytes < WINDOW_BYTES && !is_long {
            return false;
        }
        (state.begun, state.ended) = (None, Some(now));
        let lags = std::mem::take(&mut state.window).lags(within);
        if lags {
            state.lagged = Some(now);
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
        Written { bytes: 8 << 20, writing, waiting: Duration::ZERO, total }
    }

    #[test]
    fn a_disk_lags_only_if_bytes_wait_for_it_and_it_is_slow() {
        // Bytes that wait for the network, for a fast disk, for a slow disk.
        for (writing, total, lags) in [(60, 900, false), (15, 20, false), (60, 90, true)] {
            let (pace, begun) = (Pace::default(), Instant::now());
            let noted =
                |number| pace.note(written(writing, total), begun + Duration::from_millis(total * number));
            assert!((1..4).all(|number| !noted(number)));
            assert_eq!((noted(4), pace.lags()), (lags, lags), "{writing} of {total}");
            assert!(!noted(5), "a new window");
        }
    }

    #[test]
    fn a_very_slow_disk_lags_after_fewer_bytes_but_not_after_one_pause() {
        let part = |millis| Written { bytes: 1 << 20, ..written(millis, millis) };
        for (millis, parts) in [(20, 13), (100, 8)] {
            let (pace, begun) = (Pace::default(), Instant::now());
            let lags_at = (1..32)
                .find(|number| pace.note(part(millis), begun + Duration::from_millis(millis * number)));
            assert_eq!(lags_at, Some(parts), "{millis}");
        }
        let (pace, begun) = (Pace::default(), Instant::now());
        let pause = |number: u64| if number == 3 { 120 } else { 1 };
        let mut now = begun;
        let lags = (1..64).any(|number| {
            now += Duration::from_millis(pause(number));
            pace.note(part(pause(number)), now)
        });
        assert!(!lags);
    }

    #[test]
    fn a_disk_that_is_busy_all_the_time_lags_although_each_piece_waits_for_others() {
        // Of eight pieces on their way, one is written at a time, at 80 MiB a second.
        for (writing, lags) in [(100, true), (70, false)] {
            let (pace, begun) = (Pace::default(), Instant::now());
            let after = |number: u32| Duration::from_millis(800) + Duration::from_millis(100) * number;
            let lagged =
                (0..24).fold(false, |_, number| pace.note(written(writing, 800), begun + after(number)));
            assert_eq!(lagged, lags, "{writing}");
        }
    }

    #[test]
    fn a_disk_that_takes_many_pieces_at_the_same_time_is_not_slow_because_each_takes_long() {
        for (pieces_at_once, lags) in [(1, true), (8, false)] {
            let (pace, begun) = (Pace::default(), Instant::now());
            let after = |number: u32| Duration::from_millis(100) * (number / pieces_at_once + 1);
            let lagged = (0..4).any(|number| pace.note(written(100, 100), begun + after(number)));
            assert_eq!(lagged, lags, "{pieces_at_once}");
        }
    }
}
