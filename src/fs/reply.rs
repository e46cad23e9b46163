//! Values of ours as those of `fuser`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, Generation, INodeNo, ReplyXattr, TimeOrNow};

use crate::fs::errno;
use crate::store::Access;
use crate::vfs::{Attr, Ino, Kind, Place};

/// How long the kernel may keep what it was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Names and attributes.
    pub entries: Duration,
    /// Whether it may keep listings.
    pub listings: bool,
}

impl Times {
    /// While nothing changes, long. While files are written names change with their
    /// containers: the kernel is told, and does not keep for long what it looked up
    /// just before.
    pub fn of(access: Access) -> Times {
        match access {
            Access::Read => Times { entries: Duration::from_secs(3600), listings: true },
            Access::Write => Times { entries: Duration::from_secs(10), listings: false },
        }
    }
}

impl Times {
    /// How long the kernel may keep a name. While files are written, those that come and go
    /// with a container are asked for at every use, unless they `may_be_kept`.
    pub fn of_name(&self, attr: &Attr, may_be_kept: impl FnOnce() -> bool) -> Duration {
        let is_kept = !attr.of_container || self.listings || may_be_kept();
        if is_kept { self.of_place(attr) } else { Duration::ZERO }
    }

    /// How long the kernel may keep both, of an entry of a listing.
    pub fn of_listed(&self, attr: &Attr, may_be_kept: impl FnOnce() -> bool) -> Duration {
        self.of_name(attr, may_be_kept).min(self.of_attr(attr))
    }

    /// How long the kernel may keep what stat shows. What is not in the log yet is something
    /// else when it is, and the kernel is not told that.
    pub fn of_attr(&self, attr: &Attr) -> Duration {
        if attr.is_unlogged { Duration::ZERO } else { self.of_place(attr) }
    }

    /// Controls change by themselves.
    fn of_place(&self, attr: &Attr) -> Duration {
        match attr.ino.place() {
            Place::Control { .. } => Duration::ZERO,
            Place::Form { .. } => self.entries.min(FORM_TIME),
            _ => self.entries,
        }
    }

    /// How long the kernel may keep what stat shows under a number. It takes a file's number
    /// from what a lookup answers; the one that programs see it has only from stat.
    pub fn of_number(&self, number: INodeNo, attr: &Attr) -> Duration {
        if Ino(number.0).is_backed() { Duration::ZERO } else { self.of_attr(attr) }
    }
}

/// Files of forms change with what they are made of, and the kernel is told so only of those
/// that were opened.
const FORM_TIME: Duration = Duration::from_secs(1);
/// An inode number is never given to other content.
pub(super) const GENERATION: Generation = Generation(0);
const PREFERRED_BYTES: u32 = 4096;

/// A file's own number, which programs see, whichever the kernel uses.
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

/// What stat shows.
pub(super) fn file_attr(attr: &Attr) -> FileAttr {
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
        perm: (attr.mode & 0o7777) as u16,
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
    let moved = match nanoseconds < 0 {
        true => UNIX_EPOCH.checked_sub(distance),
        false => UNIX_EPOCH.checked_add(distance),
    };
    moved.unwrap_or(UNIX_EPOCH)
}

/// A time that a program sets, in nanoseconds since 1970.
pub(super) fn nanoseconds(time: TimeOrNow) -> i64 {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    };
    let signed = |distance: Duration| i64::try_from(distance.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => signed(after),
        // `fuser` counts the nanoseconds of a time before 1970 backwards; the kernel, and
        // who asks for the time, count them forwards.
        Err(before) => {
            let (seconds, rest) = (before.duration().as_secs(), before.duration().subsec_nanos());
            i64::from(rest) - signed(Duration::from_secs(seconds))
        }
    }
}

/// Answers with the value of an attribute, or with its size where that is asked for.
pub(super) fn send_attribute(reply: ReplyXattr, size: u32, value: &[u8]) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(errno::TOO_SHORT);
    } else {
        reply.data(value);
    }
}
