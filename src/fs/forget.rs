//! What the kernel keeps of the mount and must forget.
//!
//! The kernel answers such a call only when reads and writes of the same pages that are
//! under way have been answered. So it is told from a thread of its own, which holds
//! nothing and which workers never wait for. A request that stops the writing of pages (a
//! change of the size) does not wait for it either.
//!
//! Names are never taken from the kernel: that waits for the lock of their directory, and
//! a daemon that is killed while it waits keeps the mount, and who has the lock, waiting
//! for ever. The kernel asks again for names that may go without it, at every use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;

use crate::vfs::{Ino, Invalidation, Vfs};

/// Inodes to forget, and what is done then.
struct Task {
    nodes: Vec<Ino>,
    then: Box<dyn FnOnce() + Send>,
}

/// Takes what the kernel must forget.
#[derive(Clone)]
pub(super) struct Invalidator {
    tasks: Sender<Task>,
    /// Tasks that are not done.
    waiting: Arc<AtomicUsize>,
    /// Held from before what is owed is taken until it is a task.
    turn: Arc<Mutex<()>>,
}

/// The other end, before there is somebody to tell.
pub(super) struct InvalidationQueue(Mutex<Option<Receiver<Task>>>);

impl Invalidator {
    /// Both ends.
    pub fn new() -> (Invalidator, InvalidationQueue) {
        let (tasks, receiver) = channel();
        (
            Invalidator { tasks, waiting: Arc::default(), turn: Arc::default() },
            InvalidationQueue(Mutex::new(Some(receiver))),
        )
    }

    /// As [`forget`](Self::forget), with all that is owed, and after all that was to be
    /// forgotten before: what another request has put into the log is forgotten too.
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

    /// Does `then` when the kernel has forgotten the inodes.
    pub fn forget(&self, forget: Invalidation, then: impl FnOnce() + Send + 'static) {
        if forget.is_empty() {
            return then();
        }
        self.send(forget, then);
    }

    fn send(&self, forget: Invalidation, then: impl FnOnce() + Send + 'static) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let waiting = self.waiting.clone();
        let then = move || {
            waiting.fetch_sub(1, Ordering::AcqRel);
            then();
        };
        // Nobody listens when the mount has ended: there is nothing to forget then.
        if let Err(unsent) = self.tasks.send(Task { nodes: forget.nodes, then: Box::new(then) }) {
            (unsent.0.then)();
        }
    }
}

impl InvalidationQueue {
    /// Starts to tell.
    pub fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let Some(tasks) = self.0.lock().take() else { return Ok(()) };
        let thread = std::thread::Builder::new().name("forget-inodes".to_owned());
        thread.spawn(move || forget_inodes(&notifier, tasks)).map(|_| ())
    }
}

fn forget_inodes(notifier: &Notifier, tasks: Receiver<Task>) {
    for task in tasks {
        for ino in &task.nodes {
            // One that the kernel does not know is none to forget.
            if let Err(error) = notifier.inval_inode(INodeNo(ino.0), 0, 0) {
                log::debug!("forgetting inode {:#x}: {error}", ino.0);
            }
        }
        (task.then)();
    }
}
