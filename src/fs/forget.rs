//! What the kernel keeps of the mount and must forget.
//!
//! The kernel answers such a call only when reads and writes of the same pages that are
//! under way have been answered, and takes the lock of a directory for a name. So it is
//! told from threads of their own, which hold nothing:
//!
//! 1. Inodes and names have a thread each. A request that waits for inodes may hold a
//!    directory that a name before it needs; nobody waits for names.
//! 2. A request that stops the writing of pages (a change of the size) waits for neither.
//! 3. Workers never wait for these threads.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, Sender, channel};

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;

use crate::namespace::{Forget, Ino};

type Then = Box<dyn FnOnce() + Send>;

/// Inodes to forget, what is done then, and names to forget after it.
struct Task {
    nodes: Vec<Ino>,
    then: Then,
    names: Vec<(Ino, Vec<u8>)>,
}

/// Takes what the kernel must forget.
#[derive(Clone)]
pub(super) struct Forgetter {
    tasks: Sender<Task>,
}

/// The other end, before there is somebody to tell.
pub(super) struct Forgetting(Mutex<Option<Receiver<Task>>>);

impl Forgetter {
    /// Both ends.
    pub fn new() -> (Forgetter, Forgetting) {
        let (tasks, receiver) = channel();
        (Forgetter { tasks }, Forgetting(Mutex::new(Some(receiver))))
    }

    /// Does `then` when the kernel has forgotten the inodes; names go after that.
    pub fn forget(&self, forget: Forget, then: impl FnOnce() + Send + 'static) {
        if forget.is_empty() {
            return then();
        }
        let task = Task { nodes: forget.nodes, then: Box::new(then), names: forget.names };
        // Nobody listens when the mount has ended: there is nothing to forget then.
        if let Err(unsent) = self.tasks.send(task) {
            (unsent.0.then)();
        }
    }
}

impl Forgetting {
    /// Starts to tell.
    pub fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let Some(tasks) = self.0.lock().take() else { return Ok(()) };
        let (names, receiver) = channel();
        let of_names = notifier.clone();
        thread("forget-names", move || forget_names(&of_names, receiver))?;
        thread("forget-inodes", move || forget_inodes(&notifier, tasks, names))
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(|_| ())
}

fn forget_inodes(notifier: &Notifier, tasks: Receiver<Task>, names: Sender<Vec<(Ino, Vec<u8>)>>) {
    for task in tasks {
        for ino in &task.nodes {
            // One that the kernel does not know is none to forget.
            if let Err(error) = notifier.inval_inode(INodeNo(ino.0), 0, 0) {
                log::debug!("forgetting inode {:#x}: {error}", ino.0);
            }
        }
        (task.then)();
        if !task.names.is_empty() && names.send(task.names).is_err() {
            return;
        }
    }
}

fn forget_names(notifier: &Notifier, names: Receiver<Vec<(Ino, Vec<u8>)>>) {
    for (parent, name) in names.into_iter().flatten() {
        if let Err(error) = notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(&name)) {
            log::debug!("forgetting a name: {error}");
        }
    }
}
