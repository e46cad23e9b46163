//! The closing of an unused collection while its store stays open: the conditions, and the facts that are kept.

use std::sync::Arc;

use crate::store::collection::Collection;
use crate::store::collection::footprint::Summary;
use crate::store::collection::identity::Access;
use crate::store::collection::lineage::relatives;
use crate::store::log::checkpoint::Checkpoint;
use crate::store::state::settings_table::POLICY;
use crate::store::state::tree::ComputedDirectories;

impl Collection {
    /// Bytes of memory that its state takes, about.
    pub fn memory(&self) -> u64 {
        // A state that somebody changes now is measured next time.
        self.footprint.bytes(|| self.state.try_read().map(|state| state.memory()))
    }

    /// The number of changes of its state since it was opened. A caller that asks before it looks at the state notices by
    /// another number that the state has changed since.
    pub fn changes(&self) -> u64 {
        self.footprint.changes()
    }

    /// Computes a summary of the state, which is kept while the collection is closed.
    pub fn summarized<T: Send + Sync + 'static>(&self, compute: impl FnOnce() -> T) -> Arc<T> {
        self.footprint.keep_summary(compute)
    }

    /// [`summarized`](Self::summarized), computed once after each change of the state.
    pub fn summarized_once<T: Send + Sync + 'static>(&self, compute: impl FnOnce() -> T) -> Arc<T> {
        self.footprint.present_summary(compute)
    }

    /// Notes a use, so that it stays open longer than others.
    #[inline]
    pub fn note_lookup(&self) {
        self.footprint.note_use(self.services.opened());
    }

    /// Whether it can be closed and opened again without a trace: nothing waits to be synced, recorded, freed or
    /// shown, nothing is pinned, and neither other collections nor the periodic work of a mount need it.
    pub(in crate::store) fn is_settled(&self) -> bool {
        let is_healthy = self.damage().is_none() && self.poisoned().is_none() && self.events().is_empty();
        if !is_healthy
            || self.has_orphans()
            || !self.all_unrecorded().is_empty()
            || !self.unreadable().is_empty()
        {
            return false;
        }
        // Nobody holds either lock while nobody uses the collection.
        let (Some(writer), Some(state)) = (self.journal.try_lock(), self.state.try_read()) else {
            return false;
        };
        let is_written = match writer.as_ref() {
            Some(writer) => writer.is_settled() && !self.reservations.are_any(),
            // The use of blocks is not saved.
            None => self.access() == Access::Read && !self.usage.is_used(),
        };
        let is_tended = state.pins().next().is_some() || state.set_nodes(POLICY).next().is_some();
        is_written && !is_tended && relatives(&state).is_empty()
    }

    /// Removes the numbers of its computed directories, and returns them.
    pub(in crate::store) fn take_computed(&mut self) -> ComputedDirectories {
        self.state.get_mut().take_computed()
    }

    /// Continues with the state from before it was closed that its log does not have.
    pub(in crate::store) fn continued(
        mut self,
        computed: ComputedDirectories,
        summaries: Vec<Summary>,
        checkpoint: Option<Checkpoint>,
    ) -> Collection {
        self.state.get_mut().restore_computed(computed);
        self.footprint.restore(summaries);
        checkpoint.into_iter().for_each(|checkpoint| self.journal.note_checkpoint(checkpoint));
        self
    }
}
