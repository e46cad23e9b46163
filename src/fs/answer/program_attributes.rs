//! Extended attributes of programs, of files and directories of collections.

use crate::fs::answer::attributes::send_attribute;
use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::answer::numbers::other_number;
use crate::fs::kernel::{AttributeFlags, Reply};
use crate::fs::state::failure::refused;
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::Collection;
use crate::vfs::open::{self, SetHow};
use crate::vfs::{FileView, Ino, Invalidation, Located};

/// The names of a node's attributes.
pub(super) fn names_of(view: &FileView) -> Vec<Vec<u8>> {
    let state = view.collection.state();
    state.program_attributes(view.node.entry.id).map(|(name, _)| name).collect()
}

impl Dispatcher {
    /// Replies with the value of an attribute.
    pub fn program_attribute(&self, thread: u32, ino: Ino, name: &[u8], size: u32, reply: Reply) {
        let value = self.located_again(thread, ino).and_then(|(_, located)| {
            let view = only_node(located)?;
            let value = view.collection.state().program_attribute(view.node.entry.id, name);
            value.ok_or_else(|| Error::new(ErrorKind::Absent, "there is no such attribute"))
        });
        match value {
            Ok(value) => send_attribute(reply, size, &value),
            Err(error) => reply.error(self.failed("getxattr", &error)),
        }
    }

    /// Sets an attribute.
    pub fn set_program_attribute(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: AttributeFlags,
        reply: Reply,
    ) {
        let how = match flags {
            flags if flags.creates() => SetHow::Create,
            flags if flags.replaces() => SetHow::Replace,
            _ => SetHow::Any,
        };
        self.change_program_attribute("setxattr", ino, reply, |collection, node| {
            open::set_program_attribute(collection, node, name, value, how)
        });
    }

    /// Removes an attribute.
    pub fn remove_program_attribute(&self, ino: Ino, name: &[u8], reply: Reply) {
        self.change_program_attribute("removexattr", ino, reply, |collection, node| {
            open::remove_program_attribute(collection, node, name)
        });
    }

    fn change_program_attribute(
        &self,
        doing: &str,
        ino: Ino,
        reply: Reply,
        change: impl FnOnce(&Collection, EntryId) -> Result<()>,
    ) {
        let changed = self.located(ino).and_then(|(_, located)| {
            let view = only_node(located)?;
            change(&view.collection, view.node.entry.id)
        });
        let changed = changed.map_err(|error| refused(doing, &error));
        // The time of the change is another now.
        let also = Invalidation::default().and(other_number(ino));
        self.invalidator.invalidate_pending(&self.vfs, also, move || match changed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }
}

fn only_node(located: Located) -> Result<FileView> {
    match located {
        Located::Node(view) => Ok(view),
        _ => Err(Error::new(
            ErrorKind::NotSupported,
            "only files and directories of a collection have attributes of programs",
        )),
    }
}
