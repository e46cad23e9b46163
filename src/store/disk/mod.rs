//! The disk behind a small seam: what a store asks of a file system, so that another
//! host can supply its own and tests can fail it.
//!
//! Paths are relative to the store, parts joined by `/`.

use std::any::Any;
use std::io;
use std::sync::Arc;

pub mod descriptors;
#[cfg(feature = "mount")]
pub mod files;
pub mod memory;
#[cfg(feature = "mount")]
pub mod mounted;

/// A file of a store.
pub trait File: Send + Sync {
    /// Reads at `offset` until `buffer` is full or the file ends. The bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Reads at `offset` what the operating system has in memory, without waiting for the disk.
    /// The bytes read: fewer than fit where it has not all of them, none where it cannot tell.
    fn read_in_memory(&self, _buffer: &mut [u8], _offset: u64) -> io::Result<usize> {
        Ok(0)
    }
    /// Writes all of `bytes` at `offset`; what lies between the end and it becomes zeros.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Bytes of the file.
    fn len(&self) -> io::Result<u64>;
    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or grows the file; what grows is zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Sets space aside for bytes that will be written behind the end; the size stays. A file
    /// system that cannot do it does nothing.
    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Gives the space of a stretch back, which reads as zeros then. A file system that cannot
    /// do it does nothing.
    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Lets go of what the operating system keeps in memory of a stretch. Bytes that are not
    /// durable yet are not lost. A file that others use keeps it, and so does one in memory.
    fn drop_cached(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// A descriptor of the operating system, where there are any: another one for the same file.
    #[cfg(feature = "mount")]
    fn descriptor(&self) -> io::Result<Option<std::os::fd::OwnedFd>> {
        Ok(None)
    }
    /// Which file it is, where the disk can tell: two files that are there at the same time have
    /// two identities.
    fn identity(&self) -> io::Result<Option<Identity>> {
        Ok(None)
    }
    /// Where the first bytes from `offset` on lie that may be something else than zeros; `None`
    /// where none do.
    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok((offset < self.len()?).then_some(offset))
    }
    /// Begins to bring a stretch that was written to the disk, and does not wait for it: a sync
    /// then has less to do. A file system that cannot do it does nothing.
    fn begin_sync(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
    /// Makes what was written durable, and the size.
    fn sync_data(&self) -> io::Result<()>;

    /// Whether the file can only have the bytes that it had when they were described, as far as
    /// can be told without reading: a file of a store has, one outside while its time is the same.
    fn is_untouched(&self) -> io::Result<bool> {
        Ok(true)
    }

    /// When its bytes last changed, in nanoseconds since 1970; of files of a store nobody asks.
    fn modified(&self) -> io::Result<i64> {
        Err(io::ErrorKind::Unsupported.into())
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

/// The device and the inode number of a file.
pub type Identity = (u64, u64);

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Open {
    /// To read; it must be there.
    Read,
    /// To read and write; it must be there.
    Write,
    /// To read and write; it must not be there.
    Create,
}

/// Who may hold a store at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// The one that may write.
    Exclusive,
    /// Readers, while nobody writes.
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

/// Space of the file system that a store lies on, in bytes, and its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes free.
    pub free: u64,
    /// Bytes free to users without privilege.
    pub available: u64,
    /// Files in all.
    pub files: u64,
    /// Files that can still be made.
    pub files_free: u64,
}

/// A directory tree to keep a store in.
pub trait Disk: Send + Sync {
    /// Where it is, for messages.
    fn place(&self) -> String;
    /// Opens a file.
    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>>;
    /// Opens a file that belongs to no store, to read it, by its absolute path. A disk that is
    /// no part of a larger tree has none.
    fn open_outside(&self, _path: &[u8]) -> io::Result<Arc<dyn File>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Makes a directory whose parent is there. It may be there already.
    fn create_directory(&self, path: &str) -> io::Result<()>;
    /// Renames a file, replacing what has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &str) -> io::Result<()>;
    /// Removes a directory that is empty.
    fn remove_directory(&self, path: &str) -> io::Result<()>;
    /// Lists a directory, in no order. Names that are not UTF-8 are left out.
    fn list(&self, path: &str) -> io::Result<Vec<Listed>>;
    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &str) -> io::Result<()>;
    /// Space left.
    fn space(&self) -> io::Result<Space>;
    /// Takes the store's lock until the value is dropped. `note` is what others are
    /// told who then fail with `WouldBlock`, whose text is the holder's note.
    fn lock(&self, how: Lock, note: &str) -> io::Result<Box<dyn Any + Send + Sync>>;
    /// How many files the process may have open, where there is a limit.
    fn descriptors_max(&self) -> Option<u64> {
        None
    }
    /// Whether an error says that no more files can be open.
    fn lacks_descriptor(&self, _error: &io::Error) -> bool {
        false
    }
}
