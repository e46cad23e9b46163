//! The daemon that had the mount before, as far as requests depend on it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::format::handover::WrittenFile;
use crate::vfs::Ino;

/// The kernel has given all requests of a daemon that died again by then.
const GIVEN_AGAIN_WITHIN: Duration = Duration::from_secs(60);

/// How the daemon before ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::fs) enum Before {
    /// There was none: the mount is new.
    #[default]
    None,
    /// It answered all requests that it had begun, recorded all writes, and handed the mount over.
    HandedOver,
    /// It died: writes that were not in the log are lost, and requests that it had begun may be done.
    Died,
}

/// The daemon that had the mount before.
#[derive(Default)]
pub(in crate::fs) struct Earlier {
    before: Before,
    /// Until when requests that the kernel gives again may be done already.
    may_have_done_until: Option<Instant>,
    /// The inodes that were opened since. The kernel may have pages of others that nobody told it to drop. Held briefly.
    opened: Mutex<HashSet<Ino>>,
    /// The texts of open control files, by handle. Held briefly.
    texts: Mutex<HashMap<u64, Vec<u8>>>,
    /// The files that programs write, by inode. Held briefly.
    written: Mutex<HashMap<Ino, WrittenFile>>,
}

impl Earlier {
    pub fn new(before: Before, texts: HashMap<u64, Vec<u8>>, written: Vec<WrittenFile>) -> Earlier {
        let written = written.into_iter().map(|file| (Ino(file.inode), file)).collect();
        let earlier =
            Earlier { before, texts: Mutex::new(texts), written: Mutex::new(written), ..Earlier::default() };
        if before == Before::Died { earlier.with_done() } else { earlier }
    }

    /// Notes that a daemon has died, and that for a while the kernel may give requests again which that daemon has done.
    pub fn with_done(self) -> Earlier {
        Earlier { may_have_done_until: Some(Instant::now() + GIVEN_AGAIN_WITHIN), ..self }
    }

    /// The state of a file that programs write, for the first who opens it again.
    pub fn written(&self, ino: Ino) -> Option<WrittenFile> {
        self.written.lock().remove(&ino)
    }

    pub fn before(&self) -> Before {
        self.before
    }

    /// Whether a request that the kernel gives again may be done already.
    pub fn may_have_done(&self) -> bool {
        self.may_have_done_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the kernel may have old pages of an inode that is opened now. It may of each one after a crash; of a form or a
    /// plain name also otherwise, because a daemon invalidates only those that it has opened.
    pub fn may_have_old_pages(&self, number: Ino) -> bool {
        let is_asked = match self.before {
            Before::None => false,
            Before::HandedOver => number.is_plain() || number.is_of_form(),
            Before::Died => true,
        };
        is_asked && !number.is_backed() && self.opened.lock().insert(number)
    }

    /// The text of an open control file, as it was when the file was opened, for the first who opens it again.
    pub fn text(&self, handle: u64) -> Option<Vec<u8>> {
        self.texts.lock().remove(&handle)
    }

    /// The text of a control file that this daemon has not opened, which it hands on to the next daemon.
    pub fn text_left(&self, handle: u64) -> Option<Vec<u8>> {
        self.texts.lock().get(&handle).cloned()
    }
}
