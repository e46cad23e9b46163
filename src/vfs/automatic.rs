//! What a mount does by itself, once a tick: tiers that follow the policy, caches that are
//! kept to their quotas.

use crate::ingest::Progress;
use crate::model::Result;
use crate::vfs::{Invalidation, Vfs};

impl Vfs {
    /// Whether there may be something to do.
    pub fn has_automatic(&self) -> bool {
        self.engine().has_automatic() || self.has_caches()
    }

    /// Does what is to be done at a tick. `forget` is told what the kernel must forget. What
    /// was done, for people; empty where nothing was.
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
