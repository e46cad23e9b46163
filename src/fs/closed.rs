//! Work at the close of a descriptor.

use crate::fs::serve::Adapter;
use crate::vfs::Ino;

impl Adapter {
    /// Releases an open file. Returns the file that has lost its last writer by this, if any.
    pub fn release_handle(&self, handle: u64) -> Option<Ino> {
        // First, because the handle may be reused as soon as it is removed.
        let last = self.passthrough.released(handle);
        self.handles.remove(handle);
        last
    }

    /// Queues new copies of pinned items that have lost their last writer.
    pub fn note_pins(&self, written: Option<Ino>) {
        let Some(ino) = written else { return };
        let sharing = || self.vfs.sharing(ino);
        if !self.passthrough.are_for_writers(ino, sharing) {
            self.vfs.note_pins(sharing().into_iter().chain([ino]));
        }
    }
}
