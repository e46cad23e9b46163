//! Reads and closes of open files.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use fuser::{OpenFlags, ReplyData};

use crate::fs::handles::Handle;
use crate::fs::serve::Adapter;
use crate::model::Result;
use crate::store::PageBuffer;
use crate::trace;
use crate::vfs::Ino;

thread_local! {
    /// The buffer for a reply that has no place of its own.
    static READ: RefCell<PageBuffer> = const { RefCell::new(PageBuffer::new()) };
}

impl Adapter {
    /// Replies with bytes of an open file.
    pub fn read_file(&self, open: &Handle, flags: OpenFlags, offset: u64, size: u32, mut reply: ReplyData) {
        let place = reply.place(size as usize);
        let read = match place.map(|place| self.read_into(open, offset, place)) {
            Some(Ok(count)) => {
                reply.placed(count);
                Ok(count)
            }
            Some(Err(error)) => Err((error, reply)),
            None => READ.with_borrow_mut(|buffer| {
                let out = buffer.sized(size as usize);
                match self.read_into(open, offset, out) {
                    Ok(count) => {
                        reply.data(out.split_at(count).0);
                        Ok(count)
                    }
                    Err(error) => Err((error, reply)),
                }
            }),
        };
        let count = match read {
            Ok(count) => count,
            Err((error, reply)) => return reply.error(self.failed("read", &error)),
        };
        // The kernel does not cache direct reads, so they do not count.
        if flags.0 & libc::O_DIRECT != 0 {
            return;
        }
        let range = offset..offset.saturating_add(count as u64);
        match open {
            Handle::File(open_file, pattern) => {
                pattern.add(range.clone(), || open_file.bytes());
                open_file.cached_by_kernel(range);
            }
            Handle::Form(file, pattern) => pattern.add(range, || file.bytes()),
            _ => {}
        }
    }

    fn read_into(&self, handle: &Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let count = match handle {
            Handle::File(open_file, _) => open_file.read(offset, out)?,
            Handle::Form(file, _) => file.read(offset, out)?,
            Handle::Growing(begun) => self.read_growing(begun, offset, out)?,
            Handle::Control(_, text, _) => text.read(offset, out)?,
        };
        let counters = &self.mounted.counters;
        counters.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
        trace::note_bytes(count as u64);
        Ok(count)
    }

    /// Releases an open file. Returns the file that has lost its last writer by this, if any.
    pub fn release_handle(&self, number: Ino, handle: u64) -> Option<Ino> {
        // First, because the handle may be reused as soon as it is removed.
        let last = self.passthrough.released(handle);
        if let Some(removed) = self.handles.remove(handle) {
            self.note_reads(number.own(), &removed);
        }
        last
    }

    /// Queues new copies of pinned items that have lost their last writer.
    pub fn note_pins(&self, written: Option<Ino>) {
        let Some(ino) = written else { return };
        let sharing = || self.vfs.sharing(ino);
        if !self.passthrough.are_for_writers(ino, sharing) {
            self.vfs.note_pins(sharing().into_iter().chain([ino]));
        }
    }
}
