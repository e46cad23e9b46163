//! What requests have in common.
//!
//! A panic in one request is an error for that request only: the reply that was not
//! sent answers EIO when it is dropped.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuser::{Errno, FopenFlags, INodeNo, ReplyXattr};

use crate::control::{self, Mounted};
use crate::fs::errno::{self, errno};
use crate::fs::handles::{Handle, Handles};
use crate::model::{Error, ErrorKind, Result};
use crate::namespace::{Attr, FileView, Ino, Located, Namespace};

thread_local! {
    /// What a read is assembled in.
    pub(super) static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system as the kernel sees it.
pub(super) struct Adapter {
    pub namespace: Arc<Namespace>,
    pub mounted: Arc<Mounted>,
    pub handles: Handles,
}

impl Adapter {
    pub fn new(namespace: Arc<Namespace>, mounted: Arc<Mounted>) -> Adapter {
        Adapter { namespace, mounted, handles: Handles::default() }
    }

    /// Counts and logs an error; what the program is told.
    pub fn failed(&self, doing: &str, error: &Error) -> Errno {
        let counters = &self.mounted.counters;
        match error.kind() {
            ErrorKind::Corrupt => {
                counters.corrupt.fetch_add(1, Ordering::Relaxed);
                counters.errors.fetch_add(1, Ordering::Relaxed);
                log::error!("{doing}: {error}");
            }
            ErrorKind::Io | ErrorKind::Unsupported => {
                counters.errors.fetch_add(1, Ordering::Relaxed);
                log::error!("{doing}: {error}");
            }
            _ => log::debug!("{doing}: {error}"),
        }
        errno(error)
    }

    pub fn located(&self, ino: INodeNo) -> Result<(Ino, Located)> {
        let ino = Ino(ino.0);
        Ok((ino, self.namespace.locate(ino)?))
    }

    pub fn entry(&self, parent: INodeNo, name: &OsStr) -> Result<Attr> {
        let (ino, located) = self.namespace.lookup(Ino(parent.0), name.as_bytes())?;
        Ok(self.namespace.attr(ino, &located))
    }

    pub fn open_handle(&self, ino: INodeNo) -> Result<(Handle, FopenFlags)> {
        self.mounted.counters.opens.fetch_add(1, Ordering::Relaxed);
        match self.located(ino)?.1 {
            Located::Node(view) => {
                let stream = self.namespace.open(&view)?;
                Ok((Handle::Stream(stream), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH))
            }
            Located::Control { collection, place } => {
                let text = control::render(&self.mounted, collection.as_ref(), place)?;
                // Its size is not known before it is opened, so the kernel's cache is no use.
                let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
                Ok((Handle::Text(text.into_bytes()), flags))
            }
            _ => Err(Error::invalid("not a file")),
        }
    }

    pub fn read_into(&self, handle: &Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let count = match handle {
            Handle::Stream(stream) => stream.read(offset, out)?,
            Handle::Text(text) => {
                let rest = text.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
                let count = rest.len().min(out.len());
                if let Some((to, from)) = out.get_mut(..count).zip(rest.get(..count)) {
                    to.copy_from_slice(from);
                }
                count
            }
        };
        let counters = &self.mounted.counters;
        counters.reads.fetch_add(1, Ordering::Relaxed);
        counters.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    pub fn view(&self, ino: INodeNo) -> Result<FileView> {
        match self.located(ino)?.1 {
            Located::Node(view) => Ok(view),
            _ => Err(Error::new(
                ErrorKind::Absent,
                "only files and directories of a collection have attributes",
            )),
        }
    }
}

/// Runs one request. A panic is logged; its reply has answered EIO by then.
pub(super) fn guarded(operation: &str, request: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(request)).is_err() {
        log::error!("{operation}: a bug in tierfs: the request was answered with an error");
    }
}

pub(super) fn send_attribute(reply: ReplyXattr, size: u32, value: &[u8]) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(errno::TOO_SHORT);
    } else {
        reply.data(value);
    }
}
