//! Changes: open files, the writes to them, and names that are created and removed.
//!
//! Invariants:
//! 1. A read sees every earlier write, by every name of the same bytes that the daemon serves.
//! 2. After close and fsync the writes are in the log, and every name agrees.
//! 3. An open file keeps the content that it opened when its name is removed.

mod attributes;
mod file;
mod flush;
mod layout;
mod page_cache;
mod renamed;
mod source;
mod table;
mod tree;
mod typed;

pub use attributes::{SetAttr, has_setid, set_attr};
pub use file::OpenFile;
pub use renamed::{finish_renames, has_other_suffix};
pub use table::OpenFiles;
pub use tree::{create, link, make_directory, remove_directory, rename, symlink, unlink};
pub use typed::set_tensor;

use crate::model::EntryId;

/// The invalidations that a change requires in the kernel.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Nodes whose bytes or attributes changed without a request of the kernel.
    pub nodes: Vec<EntryId>,
}

impl Changes {
    /// Adds the invalidations of `other`.
    pub fn merge(&mut self, other: Changes) {
        self.nodes.extend(other.nodes);
    }

    /// Whether there is nothing to invalidate.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}
