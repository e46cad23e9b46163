//! Reads and closes of open files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::kernel::errno;
use crate::fs::kernel::{OpenFlags, Reply};
use crate::fs::state::failure::guarded;
use crate::fs::state::form_file::FormFile;
use crate::fs::state::handles::Handle;
use crate::fs::state::in_progress;
use crate::fs::state::read_pattern::ReadPattern;
use crate::model::Result;
use crate::store::disk::files::past_cache;
use crate::trace;
use crate::vfs::{Ino, Place};

impl Dispatcher {
    /// Replies with bytes of an open file.
    pub fn read_file(&self, open: &Handle, flags: OpenFlags, offset: u64, size: u32, mut reply: Reply) {
        let Some(place) = reply.place(size) else { return reply.error(errno::TOO_LONG) };
        if let Handle::File(file, ..) = open
            && !flags.is_direct()
        {
            file.note_pages();
        }
        let mut read = || self.read_into(open, offset, place);
        let count = match if flags.is_direct() { past_cache(read) } else { read() } {
            Ok(count) => count,
            Err(error) => return reply.error(self.failed("read", &error)),
        };
        // The kernel does not cache direct reads, so they do not count.
        let range = offset..offset.saturating_add(if flags.is_direct() { 0 } else { count as u64 });
        // Before the reply: the close that may follow it decides by the reads so far.
        match open {
            Handle::File(file, pattern, _) => pattern.add(range.clone(), || file.bytes()),
            Handle::Form(file, pattern) => pattern.add(range.clone(), || file.bytes()),
            _ => {}
        }
        reply.placed(count);
        if let Handle::File(file, ..) = open
            && !flags.is_direct()
        {
            file.cached_by_kernel(range);
        }
    }

    /// Replies with bytes of a file that no request has opened.
    pub fn read_by_inode(&self, node: Ino, flags: OpenFlags, offset: u64, size: u32, reply: Reply) {
        let ino = node.own();
        if let Some(open) = self.handles.by_inode().get(ino) {
            return self.read_file(&open, flags, offset, size, reply);
        }
        let dispatcher = self.clone();
        let read = move || match dispatcher.handle_by_inode(ino) {
            Ok(open) => dispatcher.read_file(&open, flags, offset, size, reply),
            Err(error) => reply.error(dispatcher.failed("read", &error)),
        };
        match ino.place() {
            // It may have to read a header, or all files for their digests.
            Place::Form { .. } | Place::Numbered { .. } => {
                let mounted = self.mounted.clone();
                in_progress::on_own_thread(move || guarded(&mounted, "read", read));
            }
            _ => read(),
        }
    }

    /// The file of an inode, which is opened if it was not read lately.
    pub fn handle_by_inode(&self, node: Ino) -> Result<Arc<Handle>> {
        let ino = node.own();
        if let Some(open) = self.handles.by_inode().get(ino) {
            return Ok(open);
        }
        let reading = OpenFlags(0);
        let handle = match ino.place() {
            Place::Form { .. } | Place::Numbered { .. } => {
                let view = self.form_at(ino)?;
                Handle::Form(Arc::new(FormFile::open(&self.vfs, view)?), ReadPattern::default())
            }
            _ => self.open_handle(ino, reading)?.0,
        };
        Ok(self.handles.by_inode().keep(ino, Arc::new(handle)))
    }

    fn read_into(&self, handle: &Handle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let count = match handle {
            Handle::File(open_file, ..) => open_file.read(offset, out)?,
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
