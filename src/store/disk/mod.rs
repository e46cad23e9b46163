//! The disk interface: the operations that a store needs from a file system. Other hosts can implement it, and tests
//! can make it fail.
//!
//! Paths are relative to the store, parts joined by `/`.
//!
//! `ReadAt`, `File` and `Disk` are the seam to the operating system; they know nothing of remotes. A type that passes
//! most calls on to another implements `ForwardFile` or `ForwardDisk` (`forward.rs`) with the calls that it changes:
//! clones, and the disks of tests that fail, record, panic or lose power. `files.rs` is a directory of the operating
//! system, whose files share a bounded number of descriptors (`descriptors.rs`); `memory.rs` is a disk in memory.
//!
//! `Store::open` and `SnapshotDisk::open_store` open a store on a disk with a remote behind it, an `Upstream`
//! (`store/upstream.rs`): clones or snapshots. A collection asks its upstream for what only a remote has: the forms in
//! which the collection is published, pieces of a file, another copy of bytes that fail their checksum. Repairs and
//! logs in memory have no upstream.
//!
//! `change.rs` names each operation that changes bytes which a file has already, with the users who may see these
//! bytes.

use std::any::Any;
use std::io;
use std::sync::Arc;

use crate::store::disk::change::Change;

pub mod change;
pub mod descriptors;
pub mod elsewhere;
#[cfg(feature = "mount")]
pub mod files;
pub mod forward;
pub mod memory;
pub mod remote;

/// Bytes that can be read at any offset.
#[expect(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait ReadAt: Send + Sync {
    /// Reads at `offset` until `buffer` is full or the file ends. Returns the number of bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Length of the file in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Reads at `offset` from the page cache, without waiting for the disk. Returns the number of bytes
    /// read: fewer than fit if not all are cached, 0 if the system cannot tell.
    fn read_in_memory(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }

    /// Reads exactly `buffer`, or fails with `UnexpectedEof`.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let wanted = buffer.len();
        match self.read_at(buffer, offset)? {
            got if got == wanted => Ok(()),
            got => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{got} bytes at {offset} where {wanted} should be"),
            )),
        }
    }
}

/// A file of a store. The methods with a default are those that a file which is only read, or one in memory, has no use
/// for.
pub trait File: ReadAt {
    /// Writes all of `bytes` at `offset`. A gap after the old end becomes zeros. A file that is only read
    /// refuses, as it refuses a new length.
    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        Err(read_only())
    }

    /// Writes all of these parts at `offset`, one behind the other.
    fn write_parts_at(&self, parts: &[&[u8]], mut offset: u64) -> io::Result<()> {
        for part in parts {
            self.write_at(part, offset)?;
            offset = offset.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// [`write_at`](Self::write_at) where the file has other bytes that programs may have seen.
    fn write_over(&self, _change: Change, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }

    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(read_only())
    }

    /// Allocates space for bytes that will be written behind the end; the length stays. Does nothing if
    /// the file system does not support it.
    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Punches a hole, which then reads as zeros. Does nothing if the file system does not support it.
    fn punch(&self, _change: Change, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Tells the page cache how a stretch will be used. Does nothing in memory, or if the file system does not support it.
    fn advise(&self, _advice: Advice, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Makes the content and the length durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Offset of the first bytes from `offset` on that may be nonzero; `None` if there are none.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok((offset < self.len()?).then_some(offset))
    }

    /// Whether anybody but the users of this disk has the file open or mapped. A mapping outlives its
    /// descriptor. Where the system cannot tell, a file that it was ever given a descriptor of counts as held.
    fn is_held(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Another descriptor of the operating system for the same file, if there are descriptors.
    #[cfg(feature = "mount")]
    fn descriptor(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        Ok(None)
    }

    /// The object at a URL that it is, if it is one.
    fn far(&self) -> Option<&dyn FarFile> {
        None
    }

    /// Its attributes, as far as the disk can tell.
    fn attributes(&self) -> io::Result<FileAttributes> {
        Ok(FileAttributes::default())
    }
}

/// An object that an import left where it lies, at a URL. Reads are held to one version: `StaleNetworkFileHandle` if the
/// object has another one by now, or is gone.
pub trait FarFile: ReadAt {
    /// Asks whether the object still has that version, unless that was asked a moment ago.
    fn confirm(&self) -> io::Result<()>;
    /// Drops copies of a stretch, so that the next read fetches it again. Returns whether that may help.
    fn refetch(&self, offset: u64, len: u64) -> io::Result<bool>;
}

/// How a stretch of a file will be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// It will be synced: writing it to the disk can begin.
    WillSync,
    /// Nobody will read it soon: it can leave the page cache. Bytes that are not durable yet stay, and a file in use
    /// elsewhere is left alone.
    WontRead,
    /// Nothing is read ahead, in the whole file: its bytes are not all there yet, and holes would fill memory with zeros.
    ReadAsAsked,
}

/// Attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileAttributes {
    /// The number of names that lead to it.
    pub links: u64,
    /// Its device and inode number: two files that exist at the same time have different ones. `None` if the disk cannot
    /// tell.
    pub identity: Option<Identity>,
    /// Time of its last modification, in nanoseconds since 1970; `None` if the disk cannot tell.
    pub modified: Option<i64>,
    /// Bytes of space that it takes, which holes do not; `None` if the disk cannot tell.
    pub allocated: Option<u64>,
}

impl FileAttributes {
    /// The space that a file of this length takes for its bytes: neither holes nor the rest of its last unit count.
    pub fn space(&self, len: u64) -> u64 {
        self.allocated.map_or(len, |allocated| allocated.min(len))
    }
}

impl Default for FileAttributes {
    fn default() -> FileAttributes {
        FileAttributes { links: 1, identity: None, modified: None, allocated: None }
    }
}

/// The error of a write to a file or a disk that is only read.
pub(in crate::store) fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "it is only read, never written")
}

/// The device and the inode number of a file.
pub type Identity = (u64, u64);

/// Mode of opening a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// For reading; the file must exist.
    Read,
    /// For reading and writing; the file must exist.
    Write,
    /// For reading and writing; the file must not exist.
    Create,
}

/// Mode of a store's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// For one writer.
    Exclusive,
    /// For readers, while there is no writer.
    Shared,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// Space of the file system that contains a store, in bytes, and its number of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Total bytes.
    pub total: u64,
    /// Free bytes.
    pub free: u64,
    /// Free bytes for users without privilege.
    pub available: u64,
    /// Total number of files.
    pub files: u64,
    /// Number of files that can still be created.
    pub files_free: u64,
}

/// A directory tree that contains a store: the seam to the operating system.
///
/// The store does all I/O through `Disk` and `File`, with paths relative to the store. `FileDisk` is a directory of the
/// machine; `MemoryDisk` serves tests and WebAssembly. Others wrap a disk (`ForwardDisk`):
/// `Descriptors` bounds the open files, `Clones` and `SnapshotDisk` have files whose bytes come from a remote, and
/// tests count calls, fail them or cut the power.
///
/// The promises are those of a POSIX file system: bytes are durable after a sync of the file, names after a sync of the
/// directory, a rename is atomic, and reads see earlier writes. An implementation returns errors as `io::Error` and
/// never panics.
pub trait Disk: Send + Sync {
    /// Its location, for messages.
    fn place(&self) -> String;
    /// Opens a file.
    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>>;
    /// Opens a file outside the store for reading, by its absolute path. A disk that is not part of a
    /// larger tree has no such files.
    fn open_outside(&self, _path: &[u8]) -> io::Result<Arc<dyn File>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Creates a directory in an existing one. Succeeds if it exists already.
    fn create_directory(&self, path: &str) -> io::Result<()>;
    /// Renames a file, replacing an existing one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Gives two directories each other's name, in one step.
    fn exchange(&self, _one: &str, _other: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Gives a file another name, which must not exist. Both names are equal then.
    fn link(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Removes a file.
    fn remove_file(&self, path: &str) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, path: &str) -> io::Result<()>;
    /// Lists a directory in arbitrary order, without names that are not UTF-8.
    fn list(&self, path: &str) -> io::Result<Vec<Listed>>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &str) -> io::Result<()>;
    /// Space of the file system.
    fn space(&self) -> io::Result<Space>;
    /// Takes the store's lock until the value is dropped. `note` identifies the holder: a conflicting
    /// call fails with `WouldBlock` and the holder's note as its text.
    fn lock(&self, how: Lock, note: &str) -> io::Result<Box<dyn Any + Send + Sync>>;
    /// Limit of open files for the process, if there is one.
    fn descriptors_max(&self) -> Option<u64> {
        None
    }
}

/// Bytes of zeros that become a hole of a new file. File systems allocate smaller units.
const HOLE_BYTES: usize = 64 << 10;
static ZEROS: [u8; HOLE_BYTES] = [0; HOLE_BYTES];

/// The stretches of `bytes` to write into a new file, with their offsets: it reads as zeros where nothing was
/// written, so long zeros are left out.
pub fn without_zeros(bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let mut pieces = bytes.chunks(HOLE_BYTES).peekable();
    let mut at = 0;
    std::iter::from_fn(move || {
        while pieces.next_if(|piece| **piece == ZEROS).is_some() {
            at += HOLE_BYTES;
        }
        let begin = at;
        while let Some(piece) = pieces.next_if(|piece| **piece != ZEROS) {
            at += piece.len();
        }
        bytes.get(begin..at).filter(|stretch| !stretch.is_empty()).map(|stretch| (begin as u64, stretch))
    })
}

/// Removes a file, if it is there.
pub fn remove_if_present(disk: &dyn Disk, path: &str) -> io::Result<()> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes a new file whole, in place of one that an interrupted attempt left.
pub fn write_new(disk: &dyn Disk, draft: &str, bytes: &[u8]) -> io::Result<Arc<dyn File>> {
    remove_if_present(disk, draft)?;
    let file = disk.open(draft, Open::Create)?;
    file.write_at(bytes, 0)?;
    Ok(file)
}

/// Replaces a small file, durably: after a power cut it has its old bytes or these. `draft` is a free name
/// in the same directory.
pub fn replace_file(disk: &dyn Disk, draft: &str, path: &str, bytes: &[u8]) -> io::Result<()> {
    write_new(disk, draft, bytes)?.sync_data()?;
    disk.rename(draft, path)?;
    disk.sync_directory(path.rsplit_once('/').map_or("", |(directory, _)| directory))
}

#[cfg(test)]
mod tests {
    use super::{HOLE_BYTES, without_zeros};

    #[test]
    fn bytes_that_are_written_without_zeros_read_as_the_whole() {
        for (pieces, end) in
            [("", 0), ("0", 0), ("1", 5), ("0110", 0), ("1001", 7), ("00", 9), ("010", HOLE_BYTES - 1)]
        {
            let mut bytes = Vec::new();
            for piece in pieces.chars() {
                bytes.resize(bytes.len() + HOLE_BYTES, 0);
                if piece == '1' {
                    *bytes.last_mut().unwrap() = 1;
                }
            }
            bytes.resize(bytes.len() + end, 0);
            let (mut file, mut count) = (vec![0; bytes.len()], 0);
            for (at, stretch) in without_zeros(&bytes) {
                file[at as usize..][..stretch.len()].copy_from_slice(stretch);
                count += stretch.len();
            }
            assert!(file == bytes, "{pieces} and {end}");
            assert_eq!(
                count,
                pieces.matches('1').count() * HOLE_BYTES + end,
                "only pieces of zeros are left out"
            );
        }
    }
}
