//! Values of ours as those of `fuser`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, Generation, INodeNo};

use crate::namespace::{Attr, Kind};

/// How long the kernel may keep names and attributes: nothing changes behind its back.
pub(super) const TTL: Duration = Duration::from_secs(3600);
/// An inode number is never given to other content.
pub(super) const GENERATION: Generation = Generation(0);
const PREFERRED_BYTES: u32 = 4096;

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
    let (mtime, ctime) = (time(attr.mtime), time(attr.ctime));
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.bytes,
        blocks: attr.blocks,
        atime: mtime,
        mtime,
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
