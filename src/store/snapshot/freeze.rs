//! Freezes a collection: copies its state, and keeps all bytes that the copy names while writers go on.
//!
//! Invariants:
//! 1. All bytes that the copy names are durable.
//! 2. While the hold lives, no slot or stretch that the copy names is written, punched or truncated, and no
//!    file of it is removed.

use std::sync::Arc;

use crate::model::{Error, Result};
use crate::store::batch::BatchRecord;
use crate::store::collection::Collection;
use crate::store::collection::identity::Access;
use crate::store::collection::read_gate::SpaceHold;
use crate::store::log::checkpoint::batches_of;
use crate::store::state::State;

/// A collection at one moment.
#[derive(Clone)]
pub struct Frozen {
    /// The copy, in a collection of its own that nobody writes to.
    still: Arc<Collection>,
    /// The collection that goes on. While somebody has it, it is neither renamed nor removed.
    live: Arc<Collection>,
    _hold: Option<Arc<SpaceHold>>,
}

impl Frozen {
    /// Freezes a collection as its log describes it. Written bytes that no flush has recorded are not in
    /// the copy. `Corrupt` if the log is damaged, `Busy` while a file is being cut: flush it, then try again.
    pub fn of(collection: &Arc<Collection>) -> Result<Frozen> {
        if let Some(damage) = collection.damage() {
            let path = collection.path();
            return Err(Error::corrupt(format!("{path}: {}; run tierfs fsck --repair", damage.reason)));
        }
        let (state, hold) = match collection.access() {
            // The store is open for reading only, so its space is never used again.
            Access::Read => (copied(&collection.state(), |_| true)?, None),
            Access::Write => {
                collection.sync()?;
                let writer = &mut *collection.writer()?;
                // Other threads may have recorded batches since the sync.
                collection.mark_all(writer)?;
                let state = copied(&collection.state(), |_| true)?;
                let extents = state.objects().filter_map(|object| object.extent());
                let hold = collection.gate.hold(extents.map(|extent| extent.file).collect());
                (state, Some(Arc::new(hold)))
            }
        };
        let disk = collection.files.disk();
        let still = Collection::of_state(disk, collection.identity.store(), collection.place(), state);
        let still =
            Arc::new(still.with_lineage_of(collection).with_upstream(collection.files.upstream().cloned()));
        Ok(Frozen { still, live: collection.clone(), _hold: hold })
    }

    /// The collection that goes on.
    pub(in crate::store) fn live(&self) -> &Arc<Collection> {
        &self.live
    }

    /// The copy.
    pub(in crate::store) fn still(&self) -> &Arc<Collection> {
        &self.still
    }
}

/// A copy of a state, made of the records that `is_kept` chooses. It chooses all records of an object or none.
pub(in crate::store) fn copied(state: &State, is_kept: impl Fn(&BatchRecord) -> bool) -> Result<State> {
    let mut copy = State::default();
    for batch in batches_of(state, next_sequence(state))? {
        for added in batch.into_records().into_iter().filter(&is_kept) {
            match added.entry {
                Some(entry) => copy.apply_entry(entry)?,
                None => copy.apply_record(&added.record, added.sequence, &added.payload)?,
            }
        }
        copy.batch_ended();
    }
    copy.forget_freed();
    Ok(copy)
}

/// A sequence number greater than all in the records of a state. It depends on the state alone, unlike the
/// next number of its log.
pub(in crate::store) fn next_sequence(state: &State) -> u64 {
    let last = |object: &Arc<crate::store::object::Object>| {
        let layout = object.logged_layout();
        let epochs = object.blocks.read().pieces(layout).map(|(_, block)| block.epoch).max();
        let factor = object.factor().map(|link| link.epoch);
        let origin = object.origin.as_ref().map(|origin| origin.run().epoch);
        let last = epochs.into_iter().chain(factor).chain(origin).max().unwrap_or(0);
        last.max(object.entry.creation)
    };
    // A log has at least a record for the collection itself.
    state.objects().map(last).max().unwrap_or(0).max(1) + 1
}
