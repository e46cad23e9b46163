//! What a mount does by itself, once a tick: tiers that follow the policy, caches that are
//! kept to their quotas.

use crate::ingest::Progress;
use crate::model::Result;
use crate::namespace::{Forget, Namespace};

impl Namespace {
    /// Whether there may be something to do.
    pub fn has_automatic(&self) -> bool {
        self.engine().has_automatic()
    }

    /// Does what is to be done at a tick. `forget` is told what the kernel must forget. What
    /// was done, for people; empty where nothing was.
    pub fn follow_policy(&self, progress: &dyn Progress, forget: &mut dyn FnMut(Forget)) -> Result<String> {
        let moved = self.engine().move_automatically(progress, &mut |collection, moved| {
            forget(self.forget_nodes(collection, moved.nodes));
        })?;
        Ok(if moved > 0 { format!("{moved} tensors moved") } else { String::new() })
    }
}
