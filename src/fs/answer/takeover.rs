//! Requests after a takeover: open files of the daemon before are opened again, and requests that it may have done are not
//! done twice.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::control::{self, Text};
use crate::format::handover::{OpenRecord, ReadBy};
use crate::fs::answer::controls::UNKNOWN_BEGIN;
use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::kernel::errno::{self, Errno};
use crate::fs::kernel::notify::is_resent;
use crate::fs::kernel::{OpenFlags, Operation, Request};
use crate::fs::state::failure::failed;
use crate::fs::state::form_file::FormFile;
use crate::fs::state::handles::{Entry, Handle};
use crate::fs::state::read_pattern::ReadPattern;
use crate::model::{Error, ErrorKind, Result};
use crate::vfs::{Ino, Invalidation, Located};

/// The files of a daemon before that a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The file.
    File,
    /// The file, unless the kernel reads it.
    FileOfDaemon,
    /// The file, if a program has it open for writing.
    Writes,
    Nothing,
}

impl Dispatcher {
    /// The record of a file that is opened, without its handle.
    pub fn record(&self, ino: Ino, flags: OpenFlags) -> OpenRecord {
        let (read_by, is_uncached, is_lost) = (ReadBy::Daemon, false, false);
        OpenRecord { handle: 0, inode: ino.0, flags: flags.0, user: 0, read_by, is_uncached, is_lost }
    }

    /// Has the kernel drop the pages of an inode that is opened now, if the daemon before may have left old ones.
    pub fn drop_old_pages(&self, number: Ino) {
        if self.handles.earlier().may_have_old_pages(number) {
            self.invalidator.invalidate_meanwhile(&self.vfs, Invalidation { nodes: vec![number] });
        }
    }

    /// Prepares for a request: opens the file of its handle again. The error to answer, if it cannot be done.
    pub fn prepare(&self, request: &Request<'_>) -> Result<(), Errno> {
        if is_resent(request.unique)
            && self.handles.earlier().may_have_done()
            && changes_names(&request.operation)
        {
            return Err(errno::PERHAPS_DONE);
        }
        if !self.handles.has_left() {
            return Ok(());
        }
        match &request.operation {
            Operation::Read { handle, .. }
            | Operation::Write { handle, .. }
            | Operation::Allocate { handle, .. }
            | Operation::Poll { handle, .. } => self.prepare_file(*handle, Need::File),
            Operation::Seek { handle, .. } => self.prepare_file(*handle, Need::FileOfDaemon),
            Operation::CopyRange(range) => {
                self.prepare_file(range.from_handle, Need::FileOfDaemon)?;
                self.prepare_file(range.to_handle, Need::File)
            }
            // Of a file that was only read there is nothing to flush.
            Operation::Flush { handle } | Operation::Fsync { handle } => {
                self.prepare_file(*handle, Need::Writes)
            }
            Operation::GetAttributes { handle: Some(handle) } => self.prepare_file(*handle, Need::Nothing),
            _ => Ok(()),
        }
    }

    /// Opens the file of a handle again, if the daemon before has left it. The error to answer, if that fails and the
    /// request needs it.
    fn prepare_file(&self, handle: u64, need: Need) -> Result<(), Errno> {
        let Entry::Left(record) = self.handles.find(handle) else { return Ok(()) };
        let Err(error) = self.reopen(&record) else { return Ok(()) };
        match need {
            // The kernel, which reads the file, then goes on by itself.
            Need::FileOfDaemon if matches!(record.read_by, ReadBy::Kernel(_)) => Err(errno::UNSUPPORTED),
            Need::Nothing => Ok(()),
            Need::Writes if !writes(&record) => Ok(()),
            _ => Err(failed(&self.mounted, "open again", &error)),
        }
    }

    /// Opens all files of the daemon before again, so that they keep their content.
    pub fn reopen_all(&self) {
        for record in self.handles.left() {
            // A request that names the handle gets the error.
            if let Err(error) = self.reopen(&record) {
                log::debug!("inode {:#x} is not opened again: {error}", record.inode);
            }
        }
    }

    /// Opens a file of the daemon before again.
    pub fn reopen(&self, record: &OpenRecord) -> Result<()> {
        let gone = |text: &str| Err(Error::new(ErrorKind::Gone, text));
        if record.is_lost {
            return gone("a daemon died while the file was open for writing; writes to it may be lost");
        }
        let (ino, flags) = (Ino(record.inode), OpenFlags(record.flags));
        if ino.is_numbered() {
            return gone("its number may have another meaning now");
        }
        let handle = match record.read_by {
            ReadBy::Growing => Handle::Growing(AtomicU64::new(UNKNOWN_BEGIN)),
            ReadBy::Kernel(_) | ReadBy::Daemon => match self.vfs.locate(ino) {
                Ok(Located::Control(view)) => match self.handles.earlier().text(record.handle) {
                    Some(text) => {
                        let text = String::from_utf8_lossy(&text).into_owned();
                        Handle::Control(view, Text::whole(text), 0)
                    }
                    None if flags.writes_only() => Handle::Control(view, Text::whole(String::new()), 0),
                    None => {
                        let text = control::show(&self.mounted, &view, record.user)?;
                        Handle::Control(view, text, self.mounted.jobs.changes())
                    }
                },
                Ok(Located::Form(view)) => {
                    let form = FormFile::open(&self.vfs, view)?;
                    Handle::Form(Arc::new(form), ReadPattern::default())
                }
                _ => {
                    let (handle, _) = self.handle_of(ino, flags, None)?;
                    if let Handle::File(file, _, Some(_)) = &handle
                        && let Some(written) = self.handles.earlier().written(ino)
                    {
                        file.continue_arrival(written.from, written.is_new, written.is_unclosed);
                    }
                    if record.is_uncached {
                        handle.write_uncached();
                    }
                    handle
                }
            },
        };
        self.handles.reopen(record.handle, handle);
        Ok(())
    }
}

fn writes(record: &OpenRecord) -> bool {
    !OpenFlags(record.flags).reads_only()
}

/// Whether a second time of a request could do other things than the first one.
fn changes_names(operation: &Operation<'_>) -> bool {
    match operation {
        // The kernel looks up and opens the file that is there.
        Operation::Create { flags, .. } => flags.is_exclusive(),
        Operation::Symlink { .. }
        | Operation::MakeNode { .. }
        | Operation::MakeDirectory { .. }
        | Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::Rename { .. }
        | Operation::Link { .. }
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. } => true,
        _ => false,
    }
}
