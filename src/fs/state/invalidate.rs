//! Invalidation of the kernel's caches.
//!
//! The kernel caches pages by inode. After a flush those of the *other* names of the same bytes are stale: the
//! container of a tensor, the tensors of a container. The written file itself is invalidated only if it was invalidated
//! while it was open for writing: a page that went while a write was on its way may have been read again before that
//! write (`OpenFile::may_be_stale`).
//!
//! The kernel drops a page only after the reads and writes of it that are in progress. So an invalidation waits for
//! requests, and these must not wait for it:
//!
//! 1. One thread, `forget-inodes`, invalidates pages. It holds no lock and answers no request. No other thread that
//!    answers requests waits for it: threads hand over replies, to be sent after the invalidation.
//! 2. A reply that was handed over keeps its request with the daemon. Of each queue of the kernel at least one entry
//!    has no such reply (`fs/kernel/rings/waits.rs`). Its thread answers without waiting, so all requests of the queue
//!    get their turn.
//! 3. A reply is not handed over if other requests stay in the kernel until it comes: to a change of the size, which
//!    suspends the writeback of pages, and to a release, of which the kernel allows a limited number together with
//!    read-ahead.
//!
//! The thread waits for a page whose lock or writeback a read or a write has. That request is suspended by no request
//! that waits for the thread (3), so it is in a queue or with the daemon. There it is answered (1, 2). The thread goes
//! on.
//!
//! A reply that is not handed over comes before the pages are dropped. Two things keep its promise that an open sees
//! the change by every name: the kernel drops the attributes at once, which waits for nothing; and inodes count as
//! stale until the thread has dropped their pages. The kernel may not keep the cache of a stale inode at an open. It
//! then drops the pages itself, on behalf of the program, whose open is answered already.
//!
//! - The kernel may not cache attributes of a file of which something is not in the log yet.
//! - After a failed flush the other names are invalidated too, once for each write (`OpenFile::others_to_tell`): every
//!   name shows the bytes that wait for the log.
//! - After a refused write the file and its other names are invalidated (`Vfs::refused_write`). The thread waits for
//!   the pages of that write, which the reply releases, so that reply does not wait for the thread.
//!
//! Names are never invalidated one by one, because that waits for the lock of their directory: a daemon killed in that
//! wait would block the mount, and the holder of the lock, for ever. The kernel instead asks again at every use for
//! names that may be removed without its request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fs::kernel::notify::{Dropped, Notifier};
use crate::fs::kernel::rings::{Queue, Wait};
use crate::fs::state::decoded_copies::DecodedCache;
use crate::fs::state::in_progress;
use crate::vfs::{Ino, Invalidation, Vfs};

/// Replies to requests of the device that may wait at a time: fewer than the background requests that the kernel sends
/// at a time (`fs/kernel/session.rs`), among which they may be.
const WAITING_MAX: usize = 64;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Inodes to invalidate, and the work to do afterwards.
struct Task {
    nodes: Vec<Ino>,
    then: Box<dyn FnOnce() + Send>,
}

/// The state that the kernel still has of an inode.
#[derive(Default)]
struct Stale {
    /// Tasks with this inode that are not finished.
    tasks: usize,
    /// Whether the kernel has dropped the attributes since the last of them was queued.
    has_new_attributes: bool,
}

/// The sending end of the queue of invalidations.
#[derive(Clone)]
pub(in crate::fs) struct Invalidator {
    tasks: Sender<Task>,
    progress: Arc<Progress>,
    /// Held from before the pending invalidations are taken until they are queued as a task.
    turn: Arc<Mutex<()>>,
    /// Drops its copies of the same files.
    decoded: Arc<DecodedCache>,
    /// The replies to requests of the device.
    device: Arc<Queue>,
}

/// The state that both ends share.
#[derive(Default)]
struct Progress {
    /// Tasks that are not finished.
    waiting: AtomicUsize,
    /// Inodes whose pages the kernel may still have. No lock is taken with it held, and nothing waited for.
    stale: Mutex<HashMap<Ino, Stale>>,
    /// Held while the kernel drops attributes.
    dropping: Mutex<()>,
    /// Set once the session has begun.
    notifier: Arc<OnceLock<Notifier>>,
}

/// The receiving end, until the session can send notifications.
pub(in crate::fs) struct InvalidationQueue {
    tasks: Mutex<Option<Receiver<Task>>>,
    progress: Arc<Progress>,
}

impl Invalidator {
    pub fn new(decoded: Arc<DecodedCache>) -> (Invalidator, InvalidationQueue) {
        let ((tasks, receiver), progress) = (channel(), Arc::<Progress>::default());
        let queue = InvalidationQueue { tasks: Mutex::new(Some(receiver)), progress: progress.clone() };
        let device = Queue::new(WAITING_MAX + 1);
        (Invalidator { tasks, progress, turn: Arc::default(), decoded, device }, queue)
    }

    /// Does as [`forget`](Self::forget), with all pending invalidations, and after the queued ones.
    /// It thus also covers commits of other requests.
    pub fn invalidate_pending(&self, vfs: &Vfs, also: Invalidation, then: impl FnOnce() + Send + 'static) {
        let turn = self.turn.lock();
        let mut forget = vfs.take_pending_invalidations();
        forget.nodes.extend(also.nodes);
        let handed_over = match !forget.is_empty() || self.progress.is_waiting() {
            true => self.hand_over(forget, then),
            false => Err(then),
        };
        drop(turn);
        if let Err(then) = handed_over {
            self.progress.drop_attributes();
            then();
        }
    }

    /// Invalidates inodes, and all pending ones. On return the kernel has dropped the attributes; the pages follow, and
    /// the inodes are stale until then.
    pub fn invalidate_meanwhile(&self, vfs: &Vfs, also: Invalidation) {
        let turn = self.turn.lock();
        let mut forget = vfs.take_pending_invalidations();
        forget.nodes.extend(also.nodes);
        if !forget.is_empty() {
            self.queue(forget, || ());
        }
        drop(turn);
        self.progress.drop_attributes();
    }

    /// Runs `then` after the kernel has invalidated the inodes; earlier, if the reply in it must not wait.
    pub fn forget(&self, forget: Invalidation, then: impl FnOnce() + Send + 'static) {
        if forget.is_empty() {
            return then();
        }
        if let Err(then) = self.hand_over(forget, then) {
            self.progress.drop_attributes();
            then();
        }
    }

    /// Whether all queued invalidations are done, within this time.
    pub fn is_done_within(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while self.progress.is_waiting() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }

    /// The notifier, once the session has begun.
    pub fn notifier(&self) -> &Arc<OnceLock<Notifier>> {
        &self.progress.notifier
    }

    /// Whether the kernel may have old pages of an inode, so that an open must drop them.
    pub fn is_stale(&self, ino: Ino) -> bool {
        self.progress.is_waiting() && self.progress.stale.lock().contains_key(&ino.own())
    }

    /// Queues the invalidation, with `then` if it may wait. Gives it back otherwise.
    fn hand_over<F: FnOnce() + Send + 'static>(&self, forget: Invalidation, then: F) -> Result<(), F> {
        let Some(wait) = Wait::begin(&self.device) else {
            if !forget.is_empty() {
                self.queue(forget, || ());
            }
            return Err(then);
        };
        self.queue(forget, move || {
            then();
            drop(wait);
        });
        Ok(())
    }

    fn queue(&self, forget: Invalidation, then: impl FnOnce() + Send + 'static) {
        let nodes = forget.nodes;
        self.decoded.forget(&nodes);
        self.progress.begin(&nodes);
        // The queue is closed after the mount has ended: nothing is left to invalidate.
        if let Err(unsent) = self.tasks.send(Task { nodes, then: Box::new(then) }) {
            let Task { nodes, then } = unsent.0;
            nodes.iter().for_each(|ino| self.progress.end_one(*ino));
            self.progress.waiting.fetch_sub(1, Ordering::AcqRel);
            then();
        }
    }
}

impl Progress {
    fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn begin(&self, nodes: &[Ino]) {
        let mut stale = self.stale.lock();
        for ino in nodes {
            let of_one = stale.entry(ino.own()).or_default();
            of_one.tasks += 1;
            of_one.has_new_attributes = false;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the pages of an inode were dropped once.
    fn end_one(&self, ino: Ino) {
        let mut stale = self.stale.lock();
        let Some(of_one) = stale.get_mut(&ino.own()) else { return };
        of_one.tasks = of_one.tasks.saturating_sub(1);
        if of_one.tasks == 0 {
            stale.remove(&ino.own());
        }
    }

    /// Has the kernel drop the attributes of all stale inodes. This waits for no request: only pages are locked by some.
    fn drop_attributes(&self) {
        let Some(notifier) = self.notifier.get() else { return };
        let _dropping = self.dropping.lock();
        let old: Vec<Ino> = {
            let mut stale = self.stale.lock();
            let old = stale.iter_mut().filter(|(_, of_one)| !of_one.has_new_attributes);
            old.map(|(ino, of_one)| {
                of_one.has_new_attributes = true;
                *ino
            })
            .collect()
        };
        old.into_iter().for_each(|ino| invalidate(notifier, ino, Dropped::Attributes));
    }
}

impl InvalidationQueue {
    /// Starts the thread that sends the invalidations.
    pub fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let Some(tasks) = self.tasks.lock().take() else { return Ok(()) };
        let (progress, notifier) =
            (self.progress.clone(), self.progress.notifier.get_or_init(|| notifier).clone());
        let thread = std::thread::Builder::new().name("forget-inodes".to_owned());
        thread.spawn(move || forget_inodes(&notifier, &progress, tasks)).map(|_| ())
    }
}

fn forget_inodes(notifier: &Notifier, progress: &Progress, tasks: Receiver<Task>) {
    for task in tasks {
        for ino in &task.nodes {
            let _in_progress = in_progress::invalidation(*ino);
            invalidate(notifier, *ino, Dropped::Pages);
            progress.end_one(*ino);
        }
        progress.waiting.fetch_sub(1, Ordering::AcqRel);
        (task.then)();
    }
}

fn invalidate(notifier: &Notifier, ino: Ino, what: Dropped) {
    // The kernel fails this for an inode that it does not know, which is harmless.
    if let Err(error) = notifier.invalidate(ino, what) {
        log::debug!("forgetting inode {:#x}: {error}", ino.0);
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;
    use crate::vfs::Ino;

    #[test]
    fn an_inode_is_stale_until_each_of_its_invalidations_has_ended() {
        let (progress, one, other) = (Progress::default(), Ino(2), Ino(3));
        let is_stale = |ino| progress.stale.lock().contains_key(&ino);
        progress.begin(&[one, other]);
        progress.begin(&[one]);
        assert!(progress.is_waiting() && is_stale(one) && is_stale(other));
        progress.end_one(one);
        progress.end_one(other);
        assert!(is_stale(one) && !is_stale(other));
        progress.end_one(one);
        assert!(!is_stale(one));
    }
}
