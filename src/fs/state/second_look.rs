//! Threads that the kernel sends back to look a name up again.
//!
//! A request about something that is gone is answered ESTALE. The kernel then looks the name up again and asks about
//! what it leads to by then; it does so once. Where a name is replaced all the time, that is gone as well before the
//! thread asks about it. So what such a thread finds is kept for it for a while, as a local disk keeps an inode that
//! somebody has looked up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fs::state::form_file::FormFile;
use crate::vfs::open::OpenFile;
use crate::vfs::{Ino, Located};

/// By then a thread has asked about what it found, or has ended.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// The target that a thread found by its second look.
#[derive(Clone)]
pub(in crate::fs) struct Found {
    /// Its own inode number.
    pub ino: Ino,
    /// The target of the name.
    pub located: Located,
    /// The directory and the name that were looked up.
    pub name: (Ino, Vec<u8>),
    /// The file, which keeps its bytes.
    pub file: Option<Arc<OpenFile>>,
    /// The file of a form.
    pub form: Option<Arc<FormFile>>,
}

/// The threads that were told to look again, and what they found.
#[derive(Default)]
pub(in crate::fs) struct SecondLooks {
    /// Number of threads, so that most requests take no lock.
    count: AtomicUsize,
    threads: Mutex<HashMap<u32, (Instant, Option<Found>)>>,
}

impl SecondLooks {
    /// Notes that a thread is told to look again. 0 is an unknown thread, whose finding is not kept.
    pub fn sent(&self, thread: u32) {
        if thread != 0 {
            self.change(|threads| threads.insert(thread, (Instant::now(), None)));
        }
    }

    /// Whether a thread was told to look again.
    pub fn is_sent(&self, thread: u32) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.threads.lock().contains_key(&thread)
    }

    /// Keeps what a thread has found.
    pub fn keep(&self, thread: u32, found: Found) {
        self.change(|threads| threads.insert(thread, (Instant::now(), Some(found))));
    }

    /// The target that a thread has found, if it has this inode number.
    pub fn found(&self, thread: u32, ino: Ino) -> Option<Found> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let threads = self.threads.lock();
        threads.get(&thread)?.1.as_ref().filter(|found| found.ino == ino).cloned()
    }

    /// Notes that a thread has opened what it looked for.
    pub fn done(&self, thread: u32) {
        if self.count.load(Ordering::Acquire) > 0 {
            drop(self.change(|threads| threads.remove(&thread)));
        }
    }

    /// Releases what was kept for long enough.
    pub fn release_old(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            let is_old = |_: &u32, (since, _): &mut (Instant, Option<Found>)| since.elapsed() >= KEPT_FOR;
            let old: Vec<_> = self.change(|threads| threads.extract_if(is_old).collect());
            // Closing files may take a while, so the lock is released first.
            drop(old);
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<u32, (Instant, Option<Found>)>) -> T) -> T {
        let mut threads = self.threads.lock();
        let changed = change(&mut threads);
        self.count.store(threads.len(), Ordering::Release);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, SecondLooks};
    use crate::vfs::{Ino, Located};

    fn found(ino: u64) -> Found {
        let name = (Ino::ROOT, b"t".to_vec());
        Found { ino: Ino(ino), located: Located::Root, name, file: None, form: None }
    }

    #[test]
    fn a_finding_is_kept_for_its_thread_and_for_no_other() {
        let looks = SecondLooks::default();
        assert!(!looks.is_sent(7));
        looks.sent(7);
        assert!(looks.is_sent(7) && !looks.is_sent(8) && looks.found(7, Ino(3)).is_none());
        looks.keep(7, found(3));
        assert!(looks.found(7, Ino(3)).is_some() && looks.found(7, Ino(4)).is_none());
        assert!(looks.found(8, Ino(3)).is_none());
        looks.sent(0);
        assert!(!looks.is_sent(0));
        looks.release_old();
        assert!(looks.is_sent(7));
        looks.done(7);
        assert!(!looks.is_sent(7));
    }
}
