//! Changes: files that are open, what is written to them, names that come and go.
//!
//! Invariants:
//! 1. What was written is read at once, by every name of the same bytes that asks the
//!    daemon.
//! 2. At close and at fsync what was written is in the log, and every name agrees.
//! 3. A file that is open keeps what it opened when its name goes.

mod attributes;
mod file;
mod flush;
mod grown;
mod index;
mod layout;
mod page_cache;
mod parts;
mod renamed;
mod source;
mod table;
mod tree;
mod typed;

pub use attributes::{SetAttr, lends, set_attr};
pub use file::OpenFile;
pub use renamed::{finish_renames, is_another_place};
pub use table::OpenFiles;
pub use tree::{create, link, make_directory, remove_directory, rename, symlink, unlink};
pub use typed::set_tensor;

use crate::model::EntryId;

/// A name in a directory.
pub type Name = (EntryId, Vec<u8>);

/// What the kernel must forget after a change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Nodes whose bytes or attributes changed without the kernel.
    pub nodes: Vec<EntryId>,
    /// Names that lead elsewhere now, or nowhere: directory and name.
    pub names: Vec<Name>,
}

impl Changes {
    /// Adds others.
    pub fn merge(&mut self, other: Changes) {
        self.nodes.extend(other.nodes);
        self.names.extend(other.names);
    }

    /// Whether there is nothing to forget.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.names.is_empty()
    }
}
