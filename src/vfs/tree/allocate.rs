//! fallocate(2) on open files.

use crate::model::{Error, ErrorKind, Result};
use crate::vfs::open::OpenFile;
use crate::vfs::tree::vfs::Vfs;

/// Zeros that are written at a time. They are allocated, because constants of this size are a part of the program's file.
const ZEROS_BYTES: u64 = 1 << 20;

/// The change that fallocate(2) asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// The file has at least the range, with zeros where it had no bytes.
    Grow,
    /// Nothing changes.
    Keep,
    /// The range reads as zeros.
    Zero {
        /// Whether the file grows to the end of the range.
        grows: bool,
    },
}

impl Allocate {
    /// The change, by the flags of the call.
    pub fn of(zeroes: bool, keeps_size: bool) -> Allocate {
        match (zeroes, keeps_size) {
            (true, keeps) => Allocate::Zero { grows: !keeps },
            (false, true) => Allocate::Keep,
            (false, false) => Allocate::Grow,
        }
    }
}

impl Vfs {
    /// Changes a range of an open file. Fails with `Full` if the disk has less room than the range beyond the end of the file
    /// takes; no room is kept for it. Zeros inside of the file take the space that the bytes before took.
    pub fn allocate(&self, open_file: &OpenFile, offset: u64, bytes: u64, change: Allocate) -> Result<()> {
        let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| Error::new(ErrorKind::TooLarge, "a file past 2^63 - 1 bytes"))?;
        let size = open_file.bytes();
        let more = end.saturating_sub(size.max(offset));
        let asks = more > 0 && !matches!(change, Allocate::Zero { grows: false });
        if asks && more > self.free_bytes() && more > self.free_bytes().saturating_add(self.removed_bytes()) {
            return Err(Error::new(ErrorKind::Full, format!("the disk has no room for {more} bytes more")));
        }
        if let Allocate::Zero { .. } = change {
            let stop = end.min(size);
            let zeros = vec![0_u8; stop.saturating_sub(offset).min(ZEROS_BYTES) as usize];
            let mut at = offset;
            while at < stop {
                let part = (stop - at).min(ZEROS_BYTES);
                self.write(open_file, at, zeros.get(..part as usize).unwrap_or_default())?;
                at += part;
            }
        }
        let grows = matches!(change, Allocate::Grow | Allocate::Zero { grows: true });
        if grows && end > size {
            // The bytes between the end and this one are zeros, which take no space.
            self.write(open_file, end - 1, &[0])?;
        }
        Ok(())
    }
}
