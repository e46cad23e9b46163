//! The periodic work of a mount: moves between tiers by policy, and the quotas of caches.

use crate::model::{Progress, Result};
use crate::vfs::{Invalidation, Vfs};

impl Vfs {
    /// Whether there may be work to do.
    pub fn has_automatic(&self) -> bool {
        self.engine().has_automatic() || self.has_caches()
    }

    /// Does the work of one tick. Passes to `forget` what the kernel must invalidate. Returns a
    /// summary for people; it is empty where nothing was done.
    pub fn follow_policy(
        &self,
        progress: &dyn Progress,
        forget: &mut dyn FnMut(Invalidation),
    ) -> Result<String> {
        let moved = self.engine().move_automatically(progress, &mut |collection, moved| {
            forget(self.invalidate_nodes(collection, moved.nodes));
        })?;
        let gone = self.empty_caches(forget);
        Ok(match (moved, gone) {
            (0, 0) => String::new(),
            (moved, 0) => format!("{moved} tensors moved"),
            (moved, gone) => format!("{moved} tensors moved, {gone} files of caches unlinked"),
        })
    }
}
