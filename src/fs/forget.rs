//! What the kernel keeps of the mount and must forget.
//!
//! The kernel answers such a call only when reads and writes of the same pages that are
//! under way have been answered, and takes the lock of a directory for a name. So it is
//! told from threads of their own, which hold nothing:
//!
//! 1. Inodes and names have a thread each. A request that waits for inodes may hold a
//!    directory that a name before it needs.
//! 2. A request that stops the writing of pages (a change of the size) waits for neither.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};

use fuser::{INodeNo, Notifier};
use parking_lot::Mutex;

use crate::namespace::Forget;

type Then = Box<dyn FnOnce() + Send>;

/// Takes what the kernel must forget.
#[derive(Clone)]
pub(super) struct Forgetter {
    sender: Sender<(Forget, Then)>,
}

/// The other end, before there is somebody to tell.
pub(super) struct Forgetting {
    receiver: Mutex<Option<Receiver<(Forget, Then)>>>,
    notifier: Arc<OnceLock<Notifier>>,
}

impl Forgetter {
    /// Both ends.
    pub fn new() -> (Forgetter, Forgetting) {
        let (sender, receiver) = channel();
        let receiver = Mutex::new(Some(receiver));
        (Forgetter { sender }, Forgetting { receiver, notifier: Arc::default() })
    }

    /// Does `then` when the kernel has forgotten the inodes. Names go after that: `then`
    /// may answer a request that holds their directory.
    pub fn forget(&self, forget: Forget, then: impl FnOnce() + Send + 'static) {
        if forget.is_empty() {
            return then();
        }
        // Nobody listens when the mount has ended: there is nothing to forget then.
        if let Err(unsent) = self.sender.send((forget, Box::new(then))) {
            (unsent.0.1)();
        }
    }
}

impl Forgetting {
    /// Starts to tell.
    pub fn start(&self, notifier: Notifier) -> std::io::Result<()> {
        let Some(receiver) = self.receiver.lock().take() else { return Ok(()) };
        let (names, names_to_tell) = channel::<Forget>();
        let teller = notifier.clone();
        std::thread::Builder::new().name("forget-names".to_owned()).spawn(move || {
            for forget in names_to_tell {
                forget_names(&teller, &forget);
            }
        })?;
        let kept = self.notifier.clone();
        let builder = std::thread::Builder::new().name("forget".to_owned());
        builder.spawn(move || {
            let notifier = kept.get_or_init(|| notifier);
            for (forget, then) in receiver {
                forget_nodes(notifier, &forget);
                then();
                // Its end is the end of the mount.
                if !forget.names.is_empty() && names.send(forget).is_err() {
                    return;
                }
            }
        })?;
        Ok(())
    }
}

fn forget_nodes(notifier: &Notifier, forget: &Forget) {
    for ino in &forget.nodes {
        // An inode that the kernel does not know is none to forget.
        if let Err(error) = notifier.inval_inode(INodeNo(ino.0), 0, 0) {
            log::debug!("forgetting inode {:#x}: {error}", ino.0);
        }
    }
}

fn forget_names(notifier: &Notifier, forget: &Forget) {
    for (parent, name) in &forget.names {
        if let Err(error) = notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name)) {
            log::debug!("forgetting a name: {error}");
        }
    }
}
