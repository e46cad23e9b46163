//! Conversions to the types of `fuser`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, Generation, INodeNo, ReplyXattr, TimeOrNow};

use crate::fs::errno;
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
pub(super) struct Times {
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
            Place::Control { .. } => Duration::ZERO,
            Place::Form { .. } => self.entries.min(FORM_TIME),
            _ => self.entries,
        }
    }

    /// Timeout of attributes by inode number. The kernel takes the number of a file from the lookup;
    /// it learns the number that programs see only from getattr, which must not be cached then.
    pub fn of_number(&self, number: INodeNo, attr: &Attr) -> Duration {
        let number = Ino(number.0);
        if number.own() == number { self.of_attr(attr) } else { Duration::ZERO }
    }

    /// The attributes of a node, with the owner that is shown. Control files keep theirs, since some tell
    /// what only the user who mounted may know.
    pub fn file_attr(&self, attr: &Attr) -> FileAttr {
        if matches!(attr.ino.place(), Place::Control { .. }) {
            return file_attr(attr);
        }
        let (uid, gid) = (self.owner.uid.unwrap_or(attr.uid), self.owner.gid.unwrap_or(attr.gid));
        let mode = if attr.kind == Kind::Symlink { attr.mode } else { attr.mode & !self.owner.umask };
        file_attr(&Attr { uid, gid, mode, ..*attr })
    }
}

/// Files of forms change with their sources, and the kernel is notified only for those that were
/// opened.
const FORM_TIME: Duration = Duration::from_secs(1);
/// Inode numbers are never reused.
pub(super) const GENERATION: Generation = Generation(0);
const PREFERRED_BYTES: u32 = 4096;

/// A file's own number, which programs see, for either of its numbers.
pub(super) fn own(ino: INodeNo) -> Ino {
    Ino(ino.0).own()
}

/// The kind of a node.
pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File => FileType::RegularFile,
        Kind::Symlink => FileType::Symlink,
    }
}

/// The attributes of a node as they are recorded.
fn file_attr(attr: &Attr) -> FileAttr {
    let ctime = time(attr.ctime);
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.bytes,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime,
        crtime: ctime,
        kind: file_type(attr.kind),
        perm: (attr.mode & MODE_BITS) as u16,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: PREFERRED_BYTES,
        flags: 0,
    }
}

fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    let moved =
        if nanoseconds < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    moved.unwrap_or(UNIX_EPOCH)
}

/// A timestamp of a request, in nanoseconds since 1970.
pub(super) fn nanoseconds(time: TimeOrNow) -> i64 {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    };
    let signed = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => signed(after),
        // For times before 1970, `fuser` counts the nanoseconds backwards from the second, while the
        // kernel and programs count them forwards.
        Err(before) => {
            let (seconds, rest) = (before.duration().as_secs(), before.duration().subsec_nanos());
            i64::from(rest) - signed(Duration::from_secs(seconds))
        }
    }
}

/// Replies with the value of an attribute, or with its size where the request asks for that.
pub(super) fn send_attribute(reply: ReplyXattr, size: u32, value: &[u8]) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(errno::TOO_SHORT);
    } else {
        reply.data(value);
    }
}
