//! What the kernel keeps of the mount and must forget.
//!
//! Two threads of their own tell it, which hold nothing:
//! - Inodes: the call returns when reads of the same pages that are under way have been
//!   answered. Requests wait for it, so nothing that it waits for may wait for a request:
//!   workers are never blocked by it.
//! - Names: the call takes the lock of a directory, which a request may hold that waits
//!   for the first thread. So nobody waits for names.

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
