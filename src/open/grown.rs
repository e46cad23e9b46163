//! What a quota counts of files that are open.

use crate::model::Result;
use crate::open::file::OpenFile;
use crate::open::layout::Layout;
use crate::store::{Reserved, Use};

/// What the quota counts of a file that the log does not say yet.
pub(super) struct Grown {
    /// Bytes that the log says.
    pub logged: u64,
    /// What it is longer.
    pub reserved: Reserved,
}

impl Grown {
    /// Counts a file that has so many bytes; `Quota` where that is too much.
    pub fn count(&mut self, bytes: u64) -> Result<()> {
        self.reserved.set(Use::exact(bytes.saturating_sub(self.logged)))
    }

    /// The log says the size.
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
