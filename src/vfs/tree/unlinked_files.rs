//! Files whose last name was removed while a program had them open; directories and links that were removed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::log::catalog::NodeEntry;
use crate::model::Instant;
use crate::store::Node;
use crate::vfs::open::OpenFile;
use crate::vfs::tree::ino::Ino;

/// Nodes without a name that the kernel still knows.
#[derive(Default)]
pub(super) struct Unlinked {
    /// Files that it may still open.
    pub files: Mutex<HashMap<Ino, UnlinkedFile>>,
    pub nodes: Mutex<HashMap<Ino, RemovedNode>>,
}

/// A directory or a symbolic link that was removed, and that the kernel still knows: it may be open.
pub(super) struct RemovedNode {
    pub node: Arc<Node>,
    /// When the kernel forgot it.
    pub forgotten: Option<Instant>,
}

/// An unlinked file that was open, or could still be opened, when its name was removed.
pub(super) struct UnlinkedFile {
    pub open_file: Arc<OpenFile>,
    /// Its last catalog entry, with the attributes that were set since.
    pub entry: NodeEntry,
    /// How many requests in progress may remove its last name.
    pub unlinking: u32,
    /// When the kernel last forgot one of its inode numbers.
    pub forgotten: Option<Instant>,
}
