//! Quota accounting of open files.

use crate::model::Result;
use crate::open::file::OpenFile;
use crate::open::layout::Layout;
use crate::store::{Reserved, Use};

/// The quota that a file holds for growth that is not in the log yet.
pub(super) struct Grown {
    /// Size in bytes that the log records.
    pub logged: u64,
    /// The reservation for the bytes beyond `logged`.
    pub reserved: Reserved,
}

impl Grown {
    /// Reserves quota for a file of `bytes` bytes. Fails with `Quota` where that is too much.
    pub fn count(&mut self, bytes: u64) -> Result<()> {
        self.reserved.set(Use::exact(bytes.saturating_sub(self.logged)))
    }

    /// Notes that the log now records the size `bytes`.
    pub fn flushed(&mut self, bytes: u64) -> Result<()> {
        self.logged = bytes;
        self.count(bytes)
    }
}

impl OpenFile {
    pub(super) fn grow(&self, layout: &mut Layout, bytes: u64) -> Result<()> {
        self.refuse_part()?;
        self.grown.lock().count(bytes)?;
        self.grow_counted(layout, bytes).or_else(|error| {
            self.grown.lock().count(layout.bytes())?;
            Err(error)
        })
    }
}
