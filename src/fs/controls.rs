//! Opens, reads and writes of control files. Each runs on a thread of its own, because it may take
//! long and other requests must be answered meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuser::{
    FileHandle, FopenFlags, INodeNo, OpenAccMode, OpenFlags, PollNotifier, ReplyData, ReplyOpen, ReplyWrite,
};

use crate::control::{self, Text};
use crate::fs::errno;
use crate::fs::failure::{failed, guarded};
use crate::fs::handles::Handle;
use crate::fs::in_progress;
use crate::fs::serve::Adapter;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Access;
use crate::vfs::{ControlView, Invalidation, Located, Shape};

impl Adapter {
    /// Opens a control file. Its text is generated at the open.
    pub fn open_control(&self, user: u32, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let view = match self.control_opened(ino, flags) {
            Ok(view) => view,
            Err(error) => return reply.error(self.failed("open", &error)),
        };
        // Its size is not known before the open, so the page cache is of no use.
        let open_flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH;
        let (mounted, handles) = (self.mounted.clone(), self.handles.clone());
        if self.vfs.row(&view).is_some_and(|row| row.shape == Shape::Growing) {
            let (start, _) = mounted.store().events().range();
            let handle = handles.insert(Handle::Growing(AtomicU64::new(start)));
            return reply.opened(FileHandle(handle), open_flags);
        }
        let shows = flags.acc_mode() != OpenAccMode::O_WRONLY;
        in_progress::on_own_thread(move || {
            guarded(&mounted, "open", || {
                let changes = mounted.jobs.changes();
                let nothing = || Ok(Text::whole(String::new()));
                let text = if shows { control::show(&mounted, &view, user) } else { nothing() };
                match text {
                    Ok(text) => {
                        let handle = handles.insert(Handle::Control(view, text, changes));
                        reply.opened(FileHandle(handle), open_flags);
                    }
                    Err(error) => reply.error(failed(&mounted, "open", &error)),
                }
            });
        });
    }

    /// The control file, if it may be opened with these flags.
    fn control_opened(&self, ino: INodeNo, flags: OpenFlags) -> Result<ControlView> {
        let Located::Control(view) = self.located(ino)?.1 else {
            return Err(Error::new(ErrorKind::NotFound, "there is no such control file"));
        };
        let file = control::file_of(&view)?;
        let mode = flags.acc_mode();
        if mode != OpenAccMode::O_RDONLY && self.vfs.store().access() == Access::Read {
            return Err(Error::new(ErrorKind::ReadOnly, "the store is mounted to be read only"));
        }
        if mode != OpenAccMode::O_RDONLY && !file.acts() {
            return Err(control::read_only(file));
        }
        if mode == OpenAccMode::O_RDONLY && !file.shows() {
            return Err(Error::new(ErrorKind::Denied, format!("{} can only be written", file.name)));
        }
        Ok(view)
    }

    /// Reads a text that is generated while it is read.
    pub fn read_made(&self, handle: Arc<Handle>, offset: u64, size: u32, reply: ReplyData) {
        let mounted = self.mounted.clone();
        in_progress::on_own_thread(move || {
            guarded(&mounted, "read", || {
                let Handle::Control(_, text, _) = Arc::as_ref(&handle) else {
                    return reply.error(errno::BAD_HANDLE);
                };
                let mut out = vec![0; size as usize];
                match text.read(offset, &mut out) {
                    Ok(count) => {
                        mounted.counters.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                        reply.data(out.split_at(count).0);
                    }
                    Err(error) => reply.error(failed(&mounted, "read", &error)),
                }
            });
        });
    }

    /// Whether a file has something new to read. If not, the kernel is told once it has, and asks again.
    pub fn is_ready(&self, handle: FileHandle, notifier: PollNotifier) -> bool {
        let Some(open) = self.handles.get(handle.0) else { return true };
        let Handle::Control(view, _, seen) = &*open else { return true };
        let tell = move || {
            if let Err(error) = notifier.notify() {
                log::debug!("waking a program that polls: {error}");
            }
        };
        !control::file_of(view).is_ok_and(|file| file.tells_of_jobs)
            || !self.mounted.jobs.watch(handle.0, *seen, tell)
    }

    /// Reads a growing text. A read at offset 0 starts over at the oldest text that is kept.
    pub fn read_growing(&self, begun: &AtomicU64, offset: u64, out: &mut [u8]) -> Result<usize> {
        let events = self.mounted.store().events();
        if offset == 0 {
            begun.store(events.range().0, Ordering::Relaxed);
        }
        events.read(begun.load(Ordering::Relaxed).saturating_add(offset), out)
    }

    /// Runs the commands written to a control file: one write is one batch, at any offset.
    pub fn act(&self, user: u32, handle: FileHandle, text: &[u8], reply: ReplyWrite) {
        let Some(handle) = self.handles.get(handle.0) else { return reply.error(errno::BAD_HANDLE) };
        let (mounted, invalidator, text) = (self.mounted.clone(), self.invalidator.clone(), text.to_vec());
        in_progress::on_own_thread(move || {
            guarded(&mounted, "write", || {
                let Handle::Control(view, ..) = Arc::as_ref(&handle) else {
                    return reply.error(errno::BAD_HANDLE);
                };
                match control::act(&mounted, view, user, &text) {
                    Ok(forget) => {
                        let done = move || reply.written(text.len() as u32);
                        invalidator.invalidate_pending(&mounted.vfs, forget, done);
                    }
                    Err(error) => {
                        let errno = failed(&mounted, "write", &error);
                        // Of the changes that preceded it.
                        let nothing = Invalidation::default();
                        invalidator.invalidate_pending(&mounted.vfs, nothing, move || reply.error(errno));
                    }
                }
            });
        });
    }
}
