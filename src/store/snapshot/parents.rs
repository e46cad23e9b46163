//! Whether two states of a collection have the same blocks for the differences of a child in another collection.
//!
//! Names, objects and epochs of two stores may agree by chance. A reader finds that by the checksum of each difference; a
//! push and a clone find it here, before they make anything.

use crate::model::{CollectionName, Error, OwnedCollectionName, Result, StoreId};
use crate::store::collection::lineage::children_in;
use crate::store::disk::memory::MemoryDisk;
use crate::store::disk::write_new;
use crate::store::log::LOG_NAME;
use crate::store::log::replay::replay;
use crate::store::object::Object;
use crate::store::object::blocks::Block;
use crate::store::snapshot::canonical::Canonical;
use crate::store::state::State;

/// The state that the log of a snapshot describes. The log names the store `remote`.
pub(in crate::store) fn state_of_log(log: &[u8], remote: StoreId) -> Result<State> {
    let failed = |error| Error::io("reading a log in memory", error);
    let file = write_new(&MemoryDisk::new(), LOG_NAME, log).map_err(failed)?;
    let replayed = replay(&file, remote)?;
    match replayed.damage {
        Some(damage) => Err(Error::corrupt(format!("the log of a snapshot: {}", damage.reason))),
        None => Ok(replayed.state),
    }
}

/// Whether the blocks that a child has as differences from `place` are differences from the same blocks in both states of
/// that collection. Parents that `before` lacks do not count.
pub(in crate::store) fn has_same_parents(
    child: &State,
    place: CollectionName<'_>,
    before: &State,
    now: &State,
) -> bool {
    let mut needing = child.objects().filter(|object| object.needs_parent());
    needing.all(|object| {
        let parent = object.entry.parent.as_ref();
        let parent =
            parent.filter(|parent| parent.collection.as_ref().is_some_and(|of| of.borrowed() == place));
        let Some(before) = parent.and_then(|parent| before.object(parent.object)) else { return true };
        now.object(before.entry.id).is_some_and(|now| has_same_blocks(object, before, now))
    })
}

/// Whether two states of a parent have the same blocks where a child has differences from them.
fn has_same_blocks(child: &Object, before: &Object, now: &Object) -> bool {
    child.blocks_on_parent().into_iter().all(|index| is_same_block(index, before, now))
}

fn is_same_block(index: u32, before: &Object, now: &Object) -> bool {
    let of = |object: &Object| object.block(index, object.logged_layout());
    match (of(before), of(now)) {
        (Some(one), Some(other)) if one.epoch != other.epoch => false,
        // A push makes a block exact that only a file outside the store has, and knows the checksum then.
        (Some(one), Some(other)) if one.stored.tier != other.stored.tier => true,
        (Some(one), Some(other)) => {
            let sums = |object: &Object, block: &Block| -> Vec<u32> {
                let links = object.deltas(index, block.epoch);
                links.iter().flat_map(|links| links.iter()).map(|link| link.checksum).collect()
            };
            let (first, second) = (one.stored.checksum, other.stored.checksum);
            // Nobody has read the bytes of an unread source, so its blocks have no checksums.
            let is_unread =
                |object: &Object| object.origin.as_ref().is_some_and(|origin| origin.file.is_unread());
            let is_unknown = first == 0 || second == 0 || is_unread(before) || is_unread(now);
            (is_unknown || first == second) && sums(before, &one) == sums(now, &other)
        }
        (None, None) => true,
        _ => false,
    }
}

impl Canonical {
    /// Whether the collection that a snapshot with the log `theirs` shows has the parents' blocks of this one's differences
    /// from `place`.
    pub fn has_same_parents(
        &self,
        place: CollectionName<'_>,
        theirs: &[u8],
        remote: StoreId,
    ) -> Result<bool> {
        let theirs = state_of_log(theirs, remote)?;
        let ours = self.live().parent_collection(self.state(), place);
        Ok(ours.is_none_or(|ours| has_same_parents(self.state(), place, &ours.state(), &theirs)))
    }

    /// The collections of the store that have had differences from blocks of this one.
    pub fn children(&self) -> Vec<OwnedCollectionName> {
        children_in(&self.still().state()).into_iter().collect()
    }

    /// Whether this state has the blocks from which a child has differences, as the state before has them. `place` is the
    /// name of both; the logs name the store `remote`.
    pub fn keeps_parents(
        &self,
        place: CollectionName<'_>,
        child: &[u8],
        before: &[u8],
        remote: StoreId,
    ) -> Result<bool> {
        let (child, before) = (state_of_log(child, remote)?, state_of_log(before, remote)?);
        Ok(has_same_parents(&child, place, &before, self.state()))
    }
}
