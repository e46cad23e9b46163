//! Opens of files of forms. Each runs on a thread of its own, because it may have to read a header,
//! or all files for their digests, and other requests must be answered meanwhile.

use std::sync::Arc;

use crate::control::{self, Asker};
use crate::fs::answer::attributes::send_attribute;
use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::kernel::{OpenFlags, Opened, OpenedFlags, Reply};
use crate::fs::state::failure::{failed, guarded};
use crate::fs::state::form_file::FormFile;
use crate::fs::state::handles::Handle;
use crate::fs::state::in_progress;
use crate::fs::state::read_pattern::ReadPattern;
use crate::model::{Error, ErrorKind, Result};
use crate::store::ROOT;
use crate::vfs::form::Shows;
use crate::vfs::{CacheMode, FormView, Ino, Invalidation, Located};

/// How the bytes of a file of a form are cached: as those of the file that it shows.
fn cache_mode(view: &FormView) -> CacheMode {
    let node = view.of.as_ref().and_then(|(_, item)| item.node()).map_or(ROOT, |node| node.entry.id);
    CacheMode::of(&view.collection.state(), node)
}

impl Dispatcher {
    /// Opens a file of a form.
    pub fn open_form(&self, thread: u32, ino: Ino, flags: OpenFlags, reply: Reply) {
        let view = match self.form_at(ino) {
            Ok(view) => view,
            Err(error) => return self.open_gone(thread, ino, flags, error, reply),
        };
        // The result of a move, the header of a model, and the rows of a directory depend on more than the bytes of one file.
        let is_kept = view.of.as_ref().is_some_and(|(form, item)| {
            !matches!(form.shows(), Shows::Moved(_) | Shows::Model(_) | Shows::Rows) && item.node().is_some()
        });
        let kept = match cache_mode(&view) {
            CacheMode::None => OpenedFlags::DIRECT,
            _ if is_kept => OpenedFlags::KEEPS_CACHE,
            _ => OpenedFlags::NONE,
        };
        let (mounted, handles, invalidator) =
            (self.mounted.clone(), self.handles.clone(), self.invalidator.clone());
        let (vfs, second_looks) = (self.vfs.clone(), self.second_looks.clone());
        let record = self.record(ino, flags);
        in_progress::on_own_thread(move || {
            guarded(&mounted, "open", || {
                let opened = FormFile::open(&vfs, view).map(Arc::new).or_else(|error| {
                    if error.kind() != ErrorKind::Gone {
                        return Err(error);
                    }
                    let found = second_looks.found(thread, ino).and_then(|found| found.form);
                    found.ok_or_else(|| {
                        second_looks.sent(thread);
                        error
                    })
                });
                // The thread would find this file again where another one has the name by then.
                if !opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Gone) {
                    second_looks.done(thread);
                }
                let opened = opened.map_err(|error| failed(&mounted, "open", &error));
                invalidator.invalidate_meanwhile(&vfs, Invalidation::default());
                let is_stale = invalidator.is_stale(ino);
                match opened {
                    Ok(file) => {
                        let handle = handles.insert(Handle::Form(file, ReadPattern::default()), record);
                        let kept = if is_stale { kept - OpenedFlags::KEEPS_CACHE } else { kept };
                        reply.opened(&Opened::served(handle, OpenedFlags::NO_FLUSH | kept));
                    }
                    Err(error) => reply.error(error),
                }
            });
        });
    }

    /// Replies with the value of an attribute of a file of a form.
    pub fn form_attribute(&self, view: &FormView, asker: Asker, name: &[u8], size: u32, reply: Reply) {
        match control::form_attribute(&self.mounted.refusals, asker, &self.vfs, view, name) {
            Ok(value) => send_attribute(reply, size, value.as_bytes()),
            Err(error) => reply.error(self.failed("getxattr", &error)),
        }
    }

    /// Sets an attribute of a file of a form. A thread of its own does it, so that other requests are
    /// answered meanwhile.
    pub fn set_form_attribute(&self, view: FormView, asker: Asker, name: &[u8], value: &[u8], reply: Reply) {
        let (mounted, invalidator) = (self.mounted.clone(), self.invalidator.clone());
        let (vfs, name, value) = (self.vfs.clone(), name.to_vec(), value.to_vec());
        in_progress::on_own_thread(move || {
            guarded(&mounted, "setxattr", || {
                let set = control::set_form_attribute(&mounted, &view, asker, &name, &value);
                let set = set.map_err(|error| failed(&mounted, "setxattr", &error));
                invalidator.invalidate_pending(&vfs, Invalidation::default(), move || match set {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(error),
                });
            });
        });
    }

    /// The file of a form.
    pub fn form_at(&self, ino: Ino) -> Result<FormView> {
        match self.vfs.locate(ino)? {
            Located::Form(view) => Ok(view),
            _ => Err(Error::new(ErrorKind::NotFound, "there is no such file of a form")),
        }
    }
}
