//! Opens, reads and writes of control files. Each runs on a thread of its own, because it may take
//! long and other requests must be answered meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::{self, Asker, Text};
use crate::format::handover::{OpenRecord, ReadBy};
use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::kernel::errno;
use crate::fs::kernel::{OpenFlags, Opened, OpenedFlags, Reply};
use crate::fs::state::failure::{failed, guarded};
use crate::fs::state::handles::Handle;
use crate::fs::state::in_progress;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Access;
use crate::vfs::{ControlView, Ino, Invalidation, Located, Shape};

/// The begin of a growing text that an earlier daemon opened. The text of this daemon goes on where the program has read
/// to, which its next read says.
pub(super) const UNKNOWN_BEGIN: u64 = u64::MAX;

impl Dispatcher {
    /// Opens a control file. Its text is generated at the open.
    pub fn open_control(&self, user: u32, ino: Ino, flags: OpenFlags, reply: Reply) {
        let view = match self.control_opened(ino, flags) {
            Ok(view) => view,
            Err(error) => {
                control::note_refused(&self.mounted, Asker { ino, user }, "open", &error);
                return reply.error(self.failed("open", &error));
            }
        };
        // Its size is not known before the open, so the page cache is of no use.
        let open_flags = OpenedFlags::DIRECT | OpenedFlags::NO_FLUSH;
        let (mounted, handles) = (self.mounted.clone(), self.handles.clone());
        let record = OpenRecord { user, ..self.record(ino, flags) };
        if self.vfs.row(&view).is_some_and(|row| row.shape == Shape::Growing) {
            let (start, _) = mounted.store().events().range();
            let handle = handles.insert(
                Handle::Growing(AtomicU64::new(start)),
                OpenRecord { read_by: ReadBy::Growing, ..record },
            );
            return reply.opened(&Opened::served(handle, open_flags));
        }
        let shows = !flags.writes_only();
        in_progress::on_own_thread(move || {
            guarded(&mounted, "open", || {
                let changes = mounted.jobs.changes();
                let nothing = || Ok(Text::whole(String::new()));
                let text = if shows { control::show(&mounted, &view, user) } else { nothing() };
                match text {
                    Ok(text) => {
                        let handle = handles.insert(Handle::Control(view, text, changes), record);
                        reply.opened(&Opened::served(handle, open_flags));
                    }
                    Err(error) => reply.error(failed(&mounted, "open", &error)),
                }
            });
        });
    }

    /// The control file, if it may be opened with these flags.
    fn control_opened(&self, ino: Ino, flags: OpenFlags) -> Result<ControlView> {
        let Located::Control(view) = self.located(ino)?.1 else {
            return Err(Error::new(ErrorKind::NotFound, "there is no such control file"));
        };
        let file = control::file_of(&view)?;
        if !flags.reads_only() && self.vfs.store().access() == Access::Read {
            return Err(Error::new(ErrorKind::ReadOnly, "the store is mounted to be read only"));
        }
        if !flags.reads_only() && !file.acts() {
            return Err(control::read_only(file));
        }
        if flags.reads_only() && !file.shows() {
            return Err(Error::new(ErrorKind::Denied, format!("{} can only be written", file.name)));
        }
        Ok(view)
    }

    /// Reads a text that is generated while it is read.
    pub fn read_made(&self, handle: Arc<Handle>, offset: u64, size: u32, mut reply: Reply) {
        let mounted = self.mounted.clone();
        in_progress::on_own_thread(move || {
            guarded(&mounted, "read", || {
                let Handle::Control(_, text, _) = Arc::as_ref(&handle) else {
                    return reply.error(errno::BAD_HANDLE);
                };
                let Some(place) = reply.place(size) else { return reply.error(errno::TOO_LONG) };
                match text.read(offset, place) {
                    Ok(count) => {
                        mounted.counters.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                        reply.placed(count);
                    }
                    Err(error) => reply.error(failed(&mounted, "read", &error)),
                }
            });
        });
    }

    /// Whether a file has something new to read. If not, the kernel is told once it has, and asks again.
    pub fn is_ready(&self, handle: u64, kernel_handle: u64) -> bool {
        let Some(open) = self.handles.get(handle) else { return true };
        let Handle::Control(view, _, seen) = &*open else { return true };
        let notifier = self.notifier.clone();
        let tell = move || {
            let Some(notifier) = notifier.get() else { return };
            if let Err(error) = notifier.wake(kernel_handle) {
                log::debug!("waking a program that polls: {error}");
            }
        };
        !control::file_of(view).is_ok_and(|file| file.tells_of_jobs)
            || !self.mounted.jobs.watch(handle, *seen, tell)
    }

    /// Reads a growing text. A read at offset 0 starts over at the oldest text that is kept.
    pub fn read_growing(&self, begun: &AtomicU64, offset: u64, out: &mut [u8]) -> Result<usize> {
        let events = self.mounted.store().events();
        let start = events.range().0;
        if offset == 0 {
            begun.store(start, Ordering::Relaxed);
        } else if begun.load(Ordering::Relaxed) == UNKNOWN_BEGIN {
            begun.store(start.wrapping_sub(offset), Ordering::Relaxed);
        }
        events.read(begun.load(Ordering::Relaxed).wrapping_add(offset), out)
    }

    /// Runs the commands written to a control file: one write is one batch, at any offset.
    pub fn act(&self, user: u32, handle: u64, text: &[u8], reply: Reply) {
        let Some(handle) = self.handles.get(handle) else { return reply.error(errno::BAD_HANDLE) };
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
