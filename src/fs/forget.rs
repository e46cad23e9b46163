//! Invalidation of the kernel's caches.
//!
//! The kernel completes an invalidation only after the reads and writes of the same pages that are in
//! progress. A thread of its own therefore sends them. It holds no lock, and workers never wait for
//! it. A request that suspends writeback of pages (a change of the size) does not wait for it either.
//!
//! Names are never invalidated one by one, because that waits for the lock of their directory: a
//! daemon killed in that wait would block the mount, and the holder of the lock, for ever. The kernel
//! instead asks again at every use for names that may be removed without its request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;

use crate::fs::decoded::DecodedCache;
use crate::vfs::{Ino, Invalidation, Vfs};

/// Inodes to invalidate, and the work to do afterwards.
struct Task {
    nodes: Vec<Ino>,
    then: Box<dyn FnOnce() + Send>,
}

/// The sending end of the queue of invalidations.
#[derive(Clone)]
pub(super) struct Invalidator {
    tasks: Sender<Task>,
    /// Tasks that are not finished.
    waiting: Arc<AtomicUsize>,
    /// Held from before the pending invalidations are taken until they are queued as a task.
    turn: Arc<Mutex<()>>,
    /// Drops its copies of the same files.
    decoded: Arc<DecodedCache>,
}

/// The receiving end, until the session can send notifications.
pub(super) struct InvalidationQueue(Mutex<Option<Receiver<Task>>>);

impl Invalidator {
    /// Creates both ends.
    pub fn new(decoded: Arc<DecodedCache>) -> (Invalidator, InvalidationQueue) {
        let (tasks, receiver) = channel();
        (
            Invalidator { tasks, waiting: Arc::default(), turn: Arc::default(), decoded },
            InvalidationQueue(Mutex::new(Some(receiver))),
        )
    }

    /// Does as [`forget`](Self::forget), with all pending invalidations, and after the queued ones.
    /// It thus also covers commits of other requests.
    pub fn invalidate_pending(&self, vfs: &Vfs, also: Invalidation, then: impl FnOnce() + Send + 'static) {
        let turn = self.turn.lock();
        let mut forget = vfs.take_pending_invalidations();
        forget.nodes.extend(also.nodes);
        if !forget.is_empty() || self.waiting.load(Ordering::Acquire) > 0 {
            return self.send(forget, then);
        }
        drop(turn);
        then();
    }

    /// Runs `then` after the kernel has invalidated the inodes.
    pub fn forget(&self, forget: Invalidation, then: impl FnOnce() + Send + 'static) {
        if forget.is_empty() {
            return then();
        }
        self.send(forget, then);
    }

    fn send(&self, forget: Invalidation, then: impl FnOnce() + Send + 'static) {
        self.decoded.forget(&forget.nodes);
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let waiting = self.waiting.clone();
        let then = move || {
            waiting.fetch_sub(1, Ordering::AcqRel);
            then();
        };
        // The queue is closed after the mount has ended: nothing is left to invalidate.
        if let Err(unsent) = self.tasks.send(Task { nodes: forget.nodes, then: Box::new(then) }) {
            (unsent.0.then)();
        }
    }
}

impl InvalidationQueue {
    /// Starts the thread that sends the invalidations.
    pub fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let Some(tasks) = self.0.lock().take() else { return Ok(()) };
        let thread = std::thread::Builder::new().name("forget-inodes".to_owned());
        thread.spawn(move || forget_inodes(&notifier, tasks)).map(|_| ())
    }
}

fn forget_inodes(notifier: &Notifier, tasks: Receiver<Task>) {
    for task in tasks {
        for ino in &task.nodes {
            // The kernel fails this for an inode that it does not know, which is harmless.
            if let Err(error) = notifier.inval_inode(INodeNo(ino.0), 0, 0) {
                log::debug!("forgetting inode {:#x}: {error}", ino.0);
            }
        }
        (task.then)();
    }
}
