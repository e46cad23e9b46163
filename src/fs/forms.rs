//! Opens of files of forms. Each runs on a thread of its own, because it may have to read a header,
//! or all files for their digests, and other requests must be answered meanwhile.

use std::sync::Arc;

use fuser::{FileHandle, FopenFlags, OpenAccMode, OpenFlags, ReplyEmpty, ReplyOpen, ReplyXattr};
use parking_lot::RwLock;

use crate::control;
use crate::fs::handles::Handle;
use crate::fs::reply::send_attribute;
use crate::fs::serve::{Adapter, failed, guarded};
use crate::model::{Error, ErrorKind, Result};
use crate::store::Node;
use crate::stream::Stream;
use crate::vfs::{FormView, Ino, Invalidation, Located, Vfs};
use crate::view::Shows;

/// An open file of a form.
pub(super) struct FormFile {
    view: FormView,
    vfs: Arc<Vfs>,
    current: RwLock<Current>,
}

/// The current source of its bytes.
struct Current {
    /// The node at that time.
    node: Option<Arc<Node>>,
    stream: Arc<Stream>,
}

impl FormFile {
    fn open(vfs: &Arc<Vfs>, view: FormView) -> Result<FormFile> {
        vfs.flush_for_form(&view)?;
        let node = node_now(&view);
        let recipe = vfs.recipe(&view)?;
        let stream = Arc::new(vfs.open_form(&view, &recipe)?);
        recipe.count_use();
        Ok(FormFile { view, vfs: vfs.clone(), current: RwLock::new(Current { node, stream }) })
    }

    /// Reads from `offset` until `out` is full or the file ends. The bytes are those of the current
    /// content, because the kernel caches them for all openers.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        let node = node_now(&self.view);
        let stream = {
            let current = self.current.read();
            let is_current = match (&node, &current.node) {
                (Some(now), Some(then)) => Arc::ptr_eq(now, then),
                // The node is gone: an open file keeps its last source.
                _ => true,
            };
            if is_current { Some(current.stream.clone()) } else { None }
        };
        let stream = match stream {
            Some(stream) => stream,
            None => {
                let recipe = self.vfs.recipe(&self.view)?;
                let stream = Arc::new(self.vfs.open_form(&self.view, &recipe)?);
                *self.current.write() = Current { node, stream: stream.clone() };
                stream
            }
        };
        stream.read(offset, out)
    }
}

/// The node of a file, as the log now records it.
fn node_now(view: &FormView) -> Option<Arc<Node>> {
    let (_, item) = view.of.as_ref()?;
    view.collection.state().node(item.node()?.entry.id).cloned()
}

impl Adapter {
    /// Opens a file of a form.
    pub fn open_form(&self, ino: Ino, flags: OpenFlags, reply: ReplyOpen) {
        let view = match self.form_opened(ino, flags) {
            Ok(view) => view,
            Err(error) => return reply.error(self.failed("open", &error)),
        };
        // The result of a move depends on more than the bytes of the file.
        let is_kept = view
            .of
            .as_ref()
            .is_some_and(|(form, item)| !matches!(form.shows(), Shows::Moved(_)) && item.node().is_some());
        let kept = if is_kept { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        let (mounted, handles, invalidator) =
            (self.mounted.clone(), self.handles.clone(), self.invalidator.clone());
        let vfs = self.vfs.clone();
        std::thread::spawn(move || {
            guarded(&mounted, "open", || {
                let opened = FormFile::open(&vfs, view);
                let opened = opened.map_err(|error| failed(&mounted, "open", &error));
                invalidator.invalidate_pending(&vfs, Invalidation::default(), move || match opened {
                    Ok(file) => {
                        let handle = handles.insert(Handle::Form(file));
                        reply.opened(FileHandle(handle), FopenFlags::FOPEN_NOFLUSH | kept);
                    }
                    Err(error) => reply.error(error),
                });
            });
        });
    }

    /// Replies with the value of an attribute of a file of a form.
    pub fn form_attribute(&self, view: &FormView, name: &[u8], size: u32, reply: ReplyXattr) {
        match control::form_attribute(view, name) {
            Ok(value) => send_attribute(reply, size, value.as_bytes()),
            Err(error) => reply.error(self.failed("getxattr", &error)),
        }
    }

    /// Sets an attribute of a file of a form. A thread of its own does it, so that other requests are
    /// answered meanwhile.
    pub fn set_form_attribute(&self, view: FormView, name: &[u8], value: &[u8], reply: ReplyEmpty) {
        let (mounted, invalidator) = (self.mounted.clone(), self.invalidator.clone());
        let (vfs, name, value) = (self.vfs.clone(), name.to_vec(), value.to_vec());
        std::thread::spawn(move || {
            guarded(&mounted, "setxattr", || {
                let set = control::set_form_attribute(&vfs, &view, &name, &value);
                let set = set.map_err(|error| failed(&mounted, "setxattr", &error));
                invalidator.invalidate_pending(&vfs, Invalidation::default(), move || match set {
                    Ok(()) => reply.ok(),
                    Err(error) => reply.error(error),
                });
            });
        });
    }

    fn form_opened(&self, ino: Ino, flags: OpenFlags) -> Result<FormView> {
        let Located::Form(view) = self.vfs.locate(ino)? else {
            return Err(Error::new(ErrorKind::NotFound, "there is no such file of a form"));
        };
        match flags.acc_mode() {
            OpenAccMode::O_RDONLY => Ok(view),
            _ => Err(Error::new(
                ErrorKind::ReadOnly,
                "forms are made of what is stored; write to the file itself",
            )),
        }
    }
}
