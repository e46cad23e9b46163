//! Holes of open files, as lseek(2) finds them.

use crate::model::Result;
use crate::vfs::open::OpenFile;
use crate::vfs::tree::vfs::Vfs;

/// The bytes that lseek(2) looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whence {
    /// The next bytes (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`); the end of the file is one.
    Hole,
}

impl Whence {
    /// The offset in a file of `bytes` bytes without holes. `None` behind its end.
    pub fn in_bytes(self, offset: u64, bytes: u64) -> Option<u64> {
        let found = if self == Whence::Data { offset } else { bytes };
        (offset < bytes).then_some(found)
    }
}

impl Vfs {
    /// The offset of the next hole or of the next bytes that are none, from `offset` on. `None` if there is none. A range that
    /// was never written, of whole blocks, is a hole.
    pub fn seek(&self, open_file: &OpenFile, offset: u64, whence: Whence) -> Result<Option<u64>> {
        if offset >= open_file.bytes() {
            return Ok(None);
        }
        open_file.next(offset, whence == Whence::Hole)
    }
}
