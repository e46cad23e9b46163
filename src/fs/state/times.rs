//! The kernel's view of a node: its attributes, and how long it may cache them and names.

use std::time::Duration;

use crate::fs::kernel::{Attributes, Entry};
use crate::model::MODE_BITS;
use crate::store::{Access, Store};
use crate::vfs::{Attr, Ino, Kind, Place};

/// The owner that all files and directories of a read-only mount are shown with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShownOwner {
    /// The user, instead of the recorded ones.
    pub uid: Option<u32>,
    /// The group, instead of the recorded ones.
    pub gid: Option<u32>,
    /// Permission bits that nobody has.
    pub umask: u32,
}

/// Cache timeouts of the kernel, and the owner that it is told.
#[derive(Clone, Copy, Debug)]
pub(in crate::fs) struct Times {
    /// Timeout of names and attributes.
    pub entries: Duration,
    /// Whether the kernel may cache listings.
    pub listings: bool,
    owner: ShownOwner,
}

impl Times {
    /// Long timeouts for a mount on which nothing changes. On a writable one, names change with their
    /// containers; on that of a remote, with its snapshots. The kernel is notified, but a lookup just before
    /// the change needs a short timeout.
    pub fn of(store: &Store, owner: ShownOwner) -> Times {
        if store.access() == Access::Read && !store.shows_snapshots() {
            Times { entries: Duration::from_secs(3600), listings: true, owner }
        } else {
            Times { entries: Duration::from_secs(10), listings: false, owner }
        }
    }
}

impl Times {
    /// Timeout of a name. On a writable mount, names that are created and removed with a container
    /// have none, unless they `may_be_cached`.
    pub fn of_name(&self, attr: &Attr, may_be_cached: impl FnOnce() -> bool) -> Duration {
        let is_kept = !attr.of_container || self.listings || may_be_cached();
        if is_kept { self.of_place(attr) } else { Duration::ZERO }
    }

    /// Timeout of a listing entry, which covers name and attributes.
    pub fn of_listed(&self, attr: &Attr, may_be_cached: impl FnOnce() -> bool) -> Duration {
        self.of_name(attr, may_be_cached).min(self.of_attr(attr))
    }

    /// Timeout of attributes. Those of unflushed writes change at the flush without an invalidation,
    /// so they have none.
    pub fn of_attr(&self, attr: &Attr) -> Duration {
        if attr.is_unlogged || attr.ino.is_plain() { Duration::ZERO } else { self.of_place(attr) }
    }

    /// Timeout by kind of inode. Controls change without notice, so they have none.
    fn of_place(&self, attr: &Attr) -> Duration {
        match attr.ino.place() {
            Place::Control { .. } | Place::FormControl { .. } => Duration::ZERO,
            Place::Form { .. } | Place::Numbered { .. } => self.entries.min(FORM_TIME),
            _ => self.entries,
        }
    }

    /// Timeout of attributes by inode number. The kernel takes the number of a file from the lookup;
    /// it learns the number that programs see only from getattr, which must not be cached then.
    pub fn of_number(&self, number: Ino, attr: &Attr) -> Duration {
        if number.own() == number { self.of_attr(attr) } else { Duration::ZERO }
    }

    /// The attributes of a node, with the owner that is shown. Control files keep theirs, since some tell
    /// what only the user who mounted may know.
    pub fn attributes(&self, attr: &Attr) -> Attributes {
        if matches!(attr.ino.place(), Place::Control { .. } | Place::FormControl { .. }) {
            return attributes(attr);
        }
        let (uid, gid) = (self.owner.uid.unwrap_or(attr.uid), self.owner.gid.unwrap_or(attr.gid));
        let mode = if attr.kind == Kind::Symlink { attr.mode } else { attr.mode & !self.owner.umask };
        attributes(&Attr { uid, gid, mode, ..*attr })
    }

    /// The entry of a node, whose name and attributes the kernel may cache for a while.
    pub fn entry(&self, attr: &Attr, name_for: Duration, attributes_for: Duration) -> Entry {
        Entry { attributes: self.attributes(attr), name_for, attributes_for }
    }
}

/// Files of forms change with their sources, and the kernel is notified only for those that were
/// opened.
const FORM_TIME: Duration = Duration::from_secs(1);
const PREFERRED_BYTES: u32 = 4096;

/// The type of a node, as a mode has it.
pub(in crate::fs) fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::Directory => libc::S_IFDIR,
        Kind::File => libc::S_IFREG,
        Kind::Symlink => libc::S_IFLNK,
    }
}

/// The attributes of a node as they are recorded.
fn attributes(attr: &Attr) -> Attributes {
    Attributes {
        node: attr.ino,
        bytes: attr.bytes,
        blocks: attr.blocks,
        accessed: attr.atime,
        modified: attr.mtime,
        changed: attr.ctime,
        mode: type_bits(attr.kind) | attr.mode & MODE_BITS,
        links: attr.links,
        user: attr.uid,
        group: attr.gid,
        block_bytes: PREFERRED_BYTES,
    }
}
