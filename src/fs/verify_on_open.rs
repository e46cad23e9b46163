//! Files that the kernel could read itself but for blocks that were not checked yet: these are
//! checked when the file is opened, as far as they are in memory.

use std::time::{Duration, Instant};

use fuser::{OpenFlags, ReplyOpen};
use parking_lot::Mutex;

use crate::fs::serve::{Adapter, guarded};
use crate::store::Unchecked;
use crate::vfs::Ino;

/// An open takes so much longer at most, for its turn and for the blocks. Two cores took 28 ms for
/// 1 GiB, which takes six times as long by way of the daemon; no block is checked ahead twice.
const TIME_MAX: Duration = Duration::from_millis(250);
/// A shorter file is read with a few requests: fewer than it takes to have the kernel do it.
const BYTES_MIN: u64 = 1 << 20;

/// Who checks blocks: one file at a time, on all cores.
pub(super) struct VerifyOnOpen {
    threads: usize,
    /// Taken with no other lock held; held while the blocks of a file are checked.
    turn: Mutex<()>,
}

impl VerifyOnOpen {
    pub fn new() -> VerifyOnOpen {
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        VerifyOnOpen { threads, turn: Mutex::default() }
    }

    /// Checks the blocks of a file as far as the time is enough.
    fn check(&self, unchecked: &Unchecked) {
        let end = Instant::now() + TIME_MAX;
        let Some(_turn) = self.turn.try_lock_until(end) else { return };
        let began = Instant::now();
        let is_checked = unchecked.check(self.threads, &|| Instant::now() >= end);
        let how_much = if is_checked { "all" } else { "a part" };
        log::debug!("{how_much} of a file was checked at its opening, in {:?}", began.elapsed());
    }
}

impl Adapter {
    /// What is to be checked of a file before the kernel may read it, where that can be done now.
    pub fn unchecked(&self, ino: Ino) -> Option<Unchecked> {
        if self.may_be_given(ino) { self.vfs.unchecked(ino, BYTES_MIN) } else { None }
    }

    /// Answers an open when the blocks were checked, on a thread of its own: others must be
    /// answered meanwhile.
    pub fn open_checked(
        &self,
        (thread, ino): (u32, Ino),
        flags: OpenFlags,
        unchecked: Unchecked,
        reply: ReplyOpen,
    ) {
        let adapter = self.clone();
        std::thread::spawn(move || {
            guarded(&adapter.mounted, "open", || {
                adapter.verify_on_open.check(&unchecked);
                drop(unchecked);
                match adapter.send_to_kernel(thread, ino, reply) {
                    Ok(()) => {}
                    Err(reply) => adapter.open_own(ino, flags, reply),
                }
            });
        });
    }
}
