//! Files that the kernel opens without a request (`-o opens=kernel`): the daemon answers its first open with ENOSYS.
//!
//! Requests then name the inode only, so the daemon opens a file at its first read, and keeps it for the next one. The
//! kernel keeps the pages of all files. Nothing may depend on an open: the files of the mount never change, control files
//! are not shown, and the kernel reads no physical files itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::fs::state::handles::Handle;
use crate::vfs::Ino;

/// Files in each of the two halves.
const HALF: usize = 2048;

/// The files that were read last, by inode.
#[derive(Default)]
pub(in crate::fs) struct FilesByInode {
    is_on: AtomicBool,
    /// Taken with no other lock held.
    halves: Mutex<Halves>,
}

/// The younger half takes all files that are used. When it is full, it becomes the older one, whose files go.
#[derive(Default)]
struct Halves {
    younger: HashMap<Ino, Arc<Handle>>,
    older: HashMap<Ino, Arc<Handle>>,
}

impl FilesByInode {
    /// The kernel opens all files of this mount itself.
    pub fn begin(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel opens files itself.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The file of an inode, if it was read lately.
    pub fn get(&self, ino: Ino) -> Option<Arc<Handle>> {
        let mut halves = self.halves.lock();
        if let Some(found) = halves.younger.get(&ino) {
            return Some(found.clone());
        }
        let found = halves.older.remove(&ino)?;
        let (found, gone) = halves.add(ino, found);
        drop(halves);
        drop(gone);
        Some(found)
    }

    /// Keeps the file of an inode, unless another thread did. Returns the file that is kept.
    pub fn keep(&self, ino: Ino, open: Arc<Handle>) -> Arc<Handle> {
        let mut halves = self.halves.lock();
        let known = halves.younger.get(&ino).cloned();
        let (kept, gone) = known.map_or_else(|| halves.add(ino, open), |known| (known, HashMap::new()));
        drop(halves);
        drop(gone);
        kept
    }

    /// Closes the file of an inode that the kernel has forgotten.
    pub fn forget(&self, ino: Ino) {
        if self.is_on() {
            let mut halves = self.halves.lock();
            let gone = (halves.younger.remove(&ino), halves.older.remove(&ino));
            drop(halves);
            drop(gone);
        }
    }
}

impl Halves {
    /// Adds a file. Returns it, and the files that go, which may take a while to close.
    fn add(&mut self, ino: Ino, open: Arc<Handle>) -> (Arc<Handle>, HashMap<Ino, Arc<Handle>>) {
        let mut gone = HashMap::new();
        if self.younger.len() >= HALF {
            gone = std::mem::replace(&mut self.older, std::mem::take(&mut self.younger));
        }
        self.younger.insert(ino, open.clone());
        (open, gone)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{FilesByInode, HALF};
    use crate::control::Text;
    use crate::fs::state::handles::Handle;
    use crate::vfs::{ControlView, Ino, Scope};

    fn handle() -> Arc<Handle> {
        Arc::new(Handle::Control(ControlView::top(Scope::Mount), Text::whole(String::new()), 0))
    }

    #[test]
    fn files_that_are_used_stay_and_the_others_go() {
        let files = FilesByInode::default();
        files.begin();
        let first = files.keep(Ino(1), handle());
        assert!(Arc::ptr_eq(&first, &files.keep(Ino(1), handle())));
        for ino in 2..10 * HALF as u64 {
            files.keep(Ino(ino), handle());
            assert!(Arc::ptr_eq(&first, &files.get(Ino(1)).unwrap()), "{ino}");
        }
        let kept = (2..10 * HALF as u64).filter(|ino| files.get(Ino(*ino)).is_some()).count();
        assert!((HALF - 1..2 * HALF).contains(&kept), "{kept}");
        files.forget(Ino(1));
        assert!(files.get(Ino(1)).is_none());
    }
}
