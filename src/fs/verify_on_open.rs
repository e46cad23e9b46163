//! Files whose unverified blocks prevent passthrough: the blocks that are in memory are verified when
//! the file is opened.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fs::failure::guarded;
use crate::fs::in_progress;
use crate::fs::kernel::{OpenFlags, Reply};
use crate::fs::serve::Dispatcher;
use crate::store::Unchecked;
use crate::vfs::Ino;

/// Longest delay of an open, for its turn and for the blocks. Two cores took 28 ms for 1 GiB, which
/// takes six times as long through the daemon; no block is verified ahead twice.
const TIME_MAX: Duration = Duration::from_millis(250);
/// A shorter file takes only a few requests, fewer than a switch to passthrough.
const BYTES_MIN: u64 = 1 << 20;

/// Verifies blocks: one file at a time, on all cores.
pub(super) struct VerifyOnOpen {
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
    fn check(&self, unchecked: &Unchecked) {
        let end = Instant::now() + TIME_MAX;
        let Some(_turn) = self.turn.try_lock_until(end) else { return };
        let began = Instant::now();
        let is_checked = unchecked.check(self.threads, &|| Instant::now() >= end);
        let how_much = if is_checked { "all" } else { "a part" };
        log::debug!("{how_much} of a file was checked at its opening, in {:?}", began.elapsed());
    }
}

impl Dispatcher {
    /// The blocks to verify before passthrough of a file, if it is possible now.
    pub fn unchecked(&self, ino: Ino) -> Option<Unchecked> {
        if self.may_be_given(ino) { self.vfs.unchecked(ino, BYTES_MIN) } else { None }
    }

    /// Replies to an open after verifying the blocks, on a thread of its own, so that other requests
    /// are answered meanwhile.
    pub fn open_checked(
        &self,
        (thread, ino): (u32, Ino),
        flags: OpenFlags,
        unchecked: Unchecked,
        reply: Reply,
    ) {
        let dispatcher = self.clone();
        in_progress::on_own_thread(move || {
            guarded(&dispatcher.mounted, "open", || {
                dispatcher.verify_on_open.check(&unchecked);
                drop(unchecked);
                match dispatcher.send_to_kernel(thread, ino, reply) {
                    Ok(()) => {}
                    Err(reply) => dispatcher.open_own(thread, ino, flags, reply),
                }
            });
        });
    }
}
