//! The attributes of a node, as stat(2) shows them.

use crate::format::log::catalog::{NodeEntry, NodeType};
use crate::model::Owner;
use crate::store::Directory;
use crate::store::{Node, State};
use crate::vfs::open::OpenFile;
use crate::vfs::tree::ino::Ino;

/// Units of `blocks`, in bytes, as in `struct stat`.
pub(super) const STAT_BLOCK_BYTES: u64 = 512;

/// The kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Directory,
    File,
    Symlink,
}

/// The attributes of a node, as stat(2) shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    pub ino: Ino,
    pub kind: Kind,
    pub mode: u32,
    /// Number of names. For a directory, 2 plus the number of its subdirectories.
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub bytes: u64,
    /// Stored size, in units of 512 bytes. Never 0 for a file with content, because tar takes such a
    /// file for a hole.
    pub blocks: u64,
    /// Whether its name is created and removed with containers.
    pub of_container: bool,
    /// Whether it has writes that are not in the log yet.
    pub is_unlogged: bool,
    /// Access time in nanoseconds since 1970: as set, or the time of creation.
    pub atime: i64,
    /// Modification time, in nanoseconds since 1970.
    pub mtime: i64,
    /// Time of the last change of any kind, in nanoseconds since 1970.
    pub ctime: i64,
}

/// Size and time of writes to an open file that are not in the log yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unlogged {
    pub bytes: u64,
    /// Time of the last write, in nanoseconds since 1970.
    pub mtime: i64,
}

/// The link count of a directory: its name, its `.`, and the `..` of each subdirectory.
fn directory_links(directories: u32) -> u32 {
    directories.saturating_add(2)
}

impl Attr {
    /// Applies the writes that are not in the log yet.
    pub(super) fn with(self, written: Option<Unlogged>) -> Attr {
        match written {
            Some(Unlogged { bytes, mtime }) => {
                let blocks = self.blocks.max(bytes.div_ceil(STAT_BLOCK_BYTES));
                Attr { bytes, blocks, mtime, is_unlogged: true, ..self }
            }
            None => self,
        }
    }

    /// A directory that no log records: of the mount, of a tenant, of controls.
    pub(super) fn directory(ino: Ino, mode: u32, time: i64, owner: Owner) -> Attr {
        Attr {
            ino,
            kind: Kind::Directory,
            mode,
            links: directory_links(0),
            uid: owner.uid,
            gid: owner.gid,
            bytes: 0,
            blocks: 0,
            of_container: false,
            is_unlogged: false,
            atime: time,
            mtime: time,
            ctime: time,
        }
    }

    /// The same with another size, of a file that nothing stores. Tar takes a file without blocks for a hole.
    pub fn of_bytes(self, bytes: u64) -> Attr {
        Attr { bytes, blocks: bytes.div_ceil(STAT_BLOCK_BYTES), ..self }
    }

    /// Sets the link count of a directory with `count` subdirectories.
    pub(super) fn with_directories(self, count: usize) -> Attr {
        Attr { links: directory_links(u32::try_from(count).unwrap_or(u32::MAX)), ..self }
    }

    /// An open unlinked file.
    pub(super) fn of_unlinked(ino: Ino, open_file: &OpenFile, entry: &NodeEntry) -> Attr {
        let NodeEntry { mode, uid, gid, atime, mtime, ctime, .. } = *entry;
        let bytes = open_file.bytes();
        let blocks = bytes.div_ceil(STAT_BLOCK_BYTES);
        let mtime = open_file.mtime().unwrap_or(mtime);
        Attr {
            ino,
            kind: Kind::File,
            mode,
            links: 0,
            uid,
            gid,
            bytes,
            blocks,
            of_container: false,
            is_unlogged: false,
            atime,
            mtime,
            ctime,
        }
    }

    /// A node of a collection.
    pub(super) fn node(ino: Ino, node: &Node, state: &State) -> Attr {
        let NodeEntry { mode, uid, gid, atime, mtime, ctime, id, .. } = node.entry;
        let is_part = node.file().is_some_and(|file| file.container.is_some());
        let names = if is_part { 1 } else { state.links(id).len() as u32 };
        let (kind, links, stored) = match &node.entry.node_type {
            NodeType::Directory => {
                let below = state.directory(id).map_or(0, Directory::directories);
                // The value 1 means that the number of subdirectories is unknown, as in a directory of
                // tensors.
                let links = if State::is_computed(id) { 1 } else { directory_links(below) };
                (Kind::Directory, links, 0)
            }
            NodeType::Symlink(_) => (Kind::Symlink, names, node.bytes),
            NodeType::File(file) => (Kind::File, names, state.stored_without_holes(file)),
        };
        let blocks = stored.div_ceil(STAT_BLOCK_BYTES).max(u64::from(node.bytes > 0));
        let of_container = is_part || State::is_computed(id);
        Attr {
            ino,
            kind,
            mode,
            links,
            uid,
            gid,
            bytes: node.bytes,
            blocks,
            of_container,
            is_unlogged: false,
            atime,
            mtime,
            ctime,
        }
    }
}
