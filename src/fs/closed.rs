//! What is done when a descriptor is closed.

use crate::fs::serve::Adapter;
use crate::vfs::Ino;

impl Adapter {
    /// Lets an open file go; the file that nobody writes to any more with it.
    pub fn drop_cached(&self, handle: u64) -> Option<Ino> {
        // First: the number may be used again right after the other.
        let last = self.passthrough.released(handle);
        self.handles.remove(handle);
        last
    }

    /// Copies of what nobody writes to any more are made anew.
    pub fn note_pins(&self, written: Option<Ino>) {
        let Some(ino) = written else { return };
        let sharing = || self.vfs.sharing(ino);
        if !self.passthrough.are_for_writers(ino, sharing) {
            self.vfs.note_pins(sharing().into_iter().chain([ino]));
        }
    }
}
