//! Opens: the choice of files that the kernel reads itself, and the way of a thread to the number for that
//! (`fs/state/passthrough.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::format::handover::{OpenRecord, ReadBy};
use crate::fs::answer::caller::Caller;
use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::kernel::errno;
use crate::fs::kernel::{OpenFlags, Opened, OpenedFlags, Reply};
use crate::fs::state::failure::guarded;
use crate::fs::state::handles::Handle;
use crate::fs::state::in_progress;
use crate::fs::state::passthrough::{Backed, Physical};
use crate::fs::state::read_pattern::ReadPattern;
use crate::fs::state::verify_on_open::BYTES_MIN;
use crate::model::{Error, ErrorKind};
use crate::store::Unchecked;
use crate::vfs::{Ino, Place};

impl Dispatcher {
    /// Replies to an open.
    pub fn open_file(&self, by: Caller, number: Ino, flags: OpenFlags, reply: Reply) {
        let Caller { user, thread, .. } = by;
        let (ino, reads) = (number.own(), flags.reads_only());
        if let Err(error) = self.vfs.check_named(ino) {
            return self.open_gone(thread, number, flags, error, reply);
        }
        if !reads && let Err(error) = self.check_open_to_write(user, ino) {
            return reply.error(self.failed("open", &error));
        }
        self.drop_old_pages(number);
        // Physical files reject unaligned direct reads; the daemon serves them.
        let may_be_backed = reads && !flags.is_direct();
        if number.is_backed() {
            let found = if may_be_backed { self.backed_for(thread, ino) } else { None };
            let decoding = if may_be_backed && found.is_none() { self.decode_at_open(ino) } else { None };
            return match (found, decoding) {
                (Some((backed, physical)), _) => {
                    self.second_looks.done(thread);
                    self.opened_backed(ino, backed, physical, reply)
                }
                (None, Some(decoding)) => self.open_decoded(thread, number, flags, decoding, reply),
                (None, None) => self.send_to_daemon(thread, ino, reply),
            };
        }
        self.vfs.note_plain_open(number);
        let (was_sent, _) = self.passthrough.arrived(ino, thread, |_| true);
        let was_sent = was_sent || self.second_looks.is_sent(thread);
        if !may_be_backed || was_sent || thread == 0 {
            return self.open_own(thread, ino, flags, reply);
        }
        let Err(reply) = self.send_to_kernel(thread, ino, reply) else { return };
        if let Some(unchecked) = self.unchecked(ino) {
            return self.open_checked(thread, ino, flags, unchecked, reply);
        }
        match self.decode_at_open(ino) {
            Some(decoding) => self.open_decoded(thread, number, flags, decoding, reply),
            None => self.open_own(thread, ino, flags, reply),
        }
    }

    /// Replies to an open of a file that is gone: with what the thread found by its second look, if that is it.
    /// Otherwise the kernel looks the name up again.
    pub fn open_gone(&self, thread: u32, number: Ino, flags: OpenFlags, error: Error, reply: Reply) {
        let ino = number.own();
        let handle = self.found_again(thread, ino, error).and_then(|found| match (found.file, found.form) {
            _ if number.is_backed() => Err(Error::new(ErrorKind::Gone, "a physical file that is gone")),
            (Some(open_file), _) => self.handle_of(ino, flags, Some(open_file)),
            (_, Some(form)) => Ok((Handle::Form(form, ReadPattern::default()), OpenedFlags::NO_FLUSH)),
            _ => Err(Error::new(ErrorKind::IsDirectory, "not a file")),
        });
        match handle {
            Ok((handle, kept)) => {
                self.second_looks.done(thread);
                let handle = self.handles.insert(handle, self.record(ino, flags));
                if !flags.reads_only() {
                    self.passthrough.opened_to_write(handle, ino);
                }
                reply.opened(&Opened::served(handle, kept));
            }
            Err(error) => reply.error(self.failed("open", &error)),
        }
    }

    /// Redirects a thread to the own number.
    fn send_to_daemon(&self, thread: u32, ino: Ino, reply: Reply) {
        self.passthrough.redirect(ino, thread, None);
        self.second_looks.sent(thread);
        reply.error(errno::LOOK_AGAIN);
    }

    /// Replies to an open of the passthrough number, if the kernel may read the file now. Otherwise redirects
    /// the thread.
    pub fn open_backed(&self, thread: u32, ino: Ino, reply: Reply) -> bool {
        match self.give_backing(ino) {
            Some((backed, physical)) => {
                self.second_looks.done(thread);
                self.opened_backed(ino, backed, physical, reply);
                true
            }
            None => {
                self.send_to_daemon(thread, ino, reply);
                false
            }
        }
    }

    /// Redirects a thread to the passthrough number, if the kernel may read the file itself.
    /// Otherwise returns the reply for other use.
    pub fn send_to_kernel(&self, thread: u32, ino: Ino, reply: Reply) -> Result<(), Reply> {
        let Some((backed, _)) = self.give_backing(ino) else { return Err(reply) };
        self.passthrough.redirect(ino, thread, Some(backed));
        self.second_looks.sent(thread);
        reply.error(errno::LOOK_AGAIN);
        Ok(())
    }

    /// Replies to an open of the own number: the daemon serves the reads.
    pub fn open_own(&self, thread: u32, ino: Ino, flags: OpenFlags, reply: Reply) {
        let reads = flags.reads_only();
        if matches!(ino.place(), Place::Form { .. } | Place::Numbered { .. }) {
            return self.open_form(thread, ino, flags, reply);
        }
        match self.open_handle(ino, flags) {
            Ok((handle, kept)) => {
                self.second_looks.done(thread);
                let handle = self.handles.insert(handle, self.record(ino, flags));
                if !reads {
                    self.passthrough.opened_to_write(handle, ino);
                }
                reply.opened(&Opened::served(handle, kept));
            }
            Err(error) => self.open_gone(thread, ino, flags, error, reply),
        }
    }

    fn opened_backed(&self, ino: Ino, backed: Arc<Backed>, physical: Physical, reply: Reply) {
        self.vfs.opened_to_read(&backed.open_file);
        match &physical {
            Physical::Stored(_) => {
                self.mounted.counters.passthrough_opens.fetch_add(1, Ordering::Relaxed);
            }
            Physical::Decoded(_) => self.decoded.opened(ino),
        }
        let record = OpenRecord { read_by: ReadBy::Kernel(backed.file), ..self.record(ino, OpenFlags(0)) };
        let handle = self.handles.insert(Handle::file(backed.open_file.clone()), record);
        let backing = Some(backed.id.number());
        self.passthrough.opened_backed(handle, backed, physical);
        reply.opened(&Opened { handle, flags: OpenedFlags::NO_FLUSH, backing });
    }

    /// The physical file for an open of the passthrough number.
    fn backed_for(&self, thread: u32, ino: Ino) -> Option<(Arc<Backed>, Physical)> {
        let (_, promised) = self.passthrough.arrived(ino, thread, |redirect| redirect.backed.is_some());
        if let Some(backed) = promised.and_then(|redirect| redirect.backed) {
            let physical = backed.physical.clone();
            return Some((backed, physical));
        }
        self.give_backing(ino)
    }

    /// The physical file of a file, registered with the kernel.
    fn give_backing(&self, ino: Ino) -> Option<(Arc<Backed>, Physical)> {
        let physical = self.physical(ino)?;
        let open_file = self.vfs.open_numbered(ino).ok()?;
        Some((self.passthrough.register(ino, &physical, open_file)?, physical))
    }

    /// The physical file for a reader that opens the file now.
    pub fn physical(&self, ino: Ino) -> Option<Physical> {
        if !self.is_for_readers(ino) {
            return None;
        }
        let stored = self.vfs.backing(ino).map(Physical::Stored);
        let physical = stored.or_else(|| self.decoded.find(ino).map(Physical::Decoded))?;
        self.passthrough.has_room(ino, &physical).then_some(physical)
    }

    fn is_for_readers(&self, ino: Ino) -> bool {
        let passthrough = &self.passthrough;
        passthrough.is_on() && !passthrough.are_for_writers(ino, || self.vfs.sharing(ino))
    }

    /// Whether a file is not registered with the kernel and could be.
    pub fn may_be_given(&self, ino: Ino) -> bool {
        self.is_for_readers(ino) && self.passthrough.may_register(ino)
    }

    /// The blocks to verify before passthrough of a file, if it is possible now.
    pub fn unchecked(&self, ino: Ino) -> Option<Unchecked> {
        if self.may_be_given(ino) { self.vfs.unchecked(ino, BYTES_MIN) } else { None }
    }

    /// Replies to an open after verifying the blocks, on a thread of its own, so that other requests
    /// are answered meanwhile.
    pub fn open_checked(&self, thread: u32, ino: Ino, flags: OpenFlags, unchecked: Unchecked, reply: Reply) {
        let dispatcher = self.clone();
        in_progress::on_own_thread(move || {
            guarded(&dispatcher.mounted, "open", || {
                dispatcher.verify_on_open.check(&unchecked);
                drop(unchecked);
                match dispatcher.send_to_kernel(thread, ino, reply) {
                    Ok(()) => {}
                    Err(reply) => dispatcher.open_own(thread, ino, flags, reply),
                }
            });
        });
    }
}
