//! Files whose unverified blocks prevent passthrough: the blocks that are in memory are verified when
//! the file is opened.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::store::Unchecked;

/// Longest delay of an open, for its turn and for the blocks. Two cores took 28 ms for 1 GiB, which
/// takes six times as long through the daemon; no block is verified ahead twice.
const TIME_MAX: Duration = Duration::from_millis(250);
/// A shorter file takes only a few requests, fewer than a switch to passthrough.
pub(in crate::fs) const BYTES_MIN: u64 = 1 << 20;

/// Verifies blocks: one file at a time, on all cores.
pub(in crate::fs) struct VerifyOnOpen {
    threads: usize,
    /// Taken with no other lock held. Held while the blocks of a file are verified.
    turn: Mutex<()>,
}

impl VerifyOnOpen {
    pub fn new() -> VerifyOnOpen {
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        VerifyOnOpen { threads, turn: Mutex::default() }
    }

    /// Verifies blocks of a file until the time is up.
    pub fn check(&self, unchecked: &Unchecked) {
        let end = Instant::now() + TIME_MAX;
        let Some(_turn) = self.turn.try_lock_until(end) else { return };
        let began = Instant::now();
        let is_checked = unchecked.check(self.threads, &|| Instant::now() >= end);
        let how_much = if is_checked { "all" } else { "a part" };
        log::debug!("{how_much} of a file was checked at its opening, in {:?}", began.elapsed());
    }
}
