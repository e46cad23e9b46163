//! Applies block records to the index of an object, many under one lock: consecutive records of a log
//! are mostly about the same object.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::format::log::block_record::BlockRecord;
use crate::format::log::record::Stored;
use crate::model::{Error, ObjectId, Result, Tier};
use crate::store::object::blocks::{Block, BlockLayout, Blocks};
use crate::store::object::checked::{Checked, Words};
use crate::store::object::parts::Part;
use crate::store::object::{Object, is_relocation, lies_in_a_file};
use crate::store::state::State;
use crate::store::state::freed::Freed;

/// The index of an object while block records are applied to it. Locks `blocks`, then `checked`.
struct BlockApplier<'a> {
    object: &'a Object,
    layout: BlockLayout,
    /// Number of blocks of the object.
    count: u32,
    blocks: RwLockWriteGuard<'a, Blocks>,
    checked: RwLockReadGuard<'a, Words>,
    /// Tier and logical bytes of the last block, and the payload bytes that they result in.
    payload: (Tier, usize, usize),
    /// Growth of the object's payload bytes, modulo 2^64.
    stored: u64,
    /// Whether the payload bytes are counted again instead, because some blocks have no entry of their
    /// own.
    must_count: bool,
}

impl<'a> BlockApplier<'a> {
    fn new(object: &'a Object) -> BlockApplier<'a> {
        let layout = object.layout();
        BlockApplier {
            object,
            layout,
            count: layout.blocks(),
            blocks: object.blocks.write(),
            checked: object.checked.words(),
            payload: (Tier::Absent, 0, 0),
            stored: 0,
            must_count: false,
        }
    }

    /// Bytes of the payload of a block in a tier.
    fn payload_len(&mut self, index: u32, tier: Tier) -> Result<usize> {
        let logical = self.layout.len(index);
        let (known_tier, known_logical, known) = self.payload;
        if (known_tier, known_logical) == (tier, logical) {
            return Ok(known);
        }
        let found = self.object.payload_len(index, tier)?;
        self.payload = (tier, logical, found);
        Ok(found)
    }

    /// Sets a block and returns the previous one. `Corrupt` if the block does not fit the object.
    fn set(&mut self, index: u32, block: Block) -> Result<Option<Block>> {
        let stored = block.stored;
        let expected = self.payload_len(index, stored.tier)?;
        let id = self.object.entry.id;
        let is_fitting = match stored.tier {
            Tier::Packed => (stored.len as usize) < expected,
            _ => stored.len as usize == expected,
        };
        if !is_fitting || !lies_in_a_file(stored.offset, u64::from(stored.len)) {
            return Err(Error::corrupt(format!(
                "block {index} of object {id} is {} bytes in tier {} where {expected} should be",
                stored.len, stored.tier
            )));
        }
        if stored.in_data && self.object.entry.extent.is_none() {
            return Err(Error::corrupt(format!("block {index} of object {id} lies in no data file")));
        }
        Checked::clear_in(&self.checked, index);
        if index < self.count && self.blocks.push(index, block) {
            self.count_absent(None, &stored);
            self.stored = self.stored.wrapping_add(u64::from(stored.len));
            return Ok(None);
        }
        let before = self.blocks.get(index, self.layout);
        self.must_count |= !matches!(*self.blocks, Blocks::One(Part::Dense(_)));
        self.blocks.set(index, block, self.layout)?;
        self.count_absent(before.as_ref(), &stored);
        let before_len = before.map_or(0, |block| block.stored.len);
        let change = u64::from(stored.len).wrapping_sub(u64::from(before_len));
        self.stored = self.stored.wrapping_add(change);
        Ok(before)
    }

    fn count_absent(&self, before: Option<&Block>, stored: &Stored) {
        if before.is_some_and(|before| before.stored.is_absent()) {
            self.object.counts.absent.fetch_sub(1, Ordering::Relaxed);
        }
        if stored.is_absent() {
            self.object.counts.absent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for BlockApplier<'_> {
    fn drop(&mut self) {
        if self.must_count {
            self.object.set_stored(&self.blocks, self.layout);
        } else {
            self.object.add_stored(self.stored);
        }
    }
}

impl State {
    /// Applies block records of one object in order. Calls `failed` with the number of each record that
    /// cannot be applied and the reason; an error from `failed` ends the call.
    pub(in crate::store) fn apply_blocks(
        &mut self,
        records: &[BlockRecord],
        mut failed: impl FnMut(u64, Error) -> Result<()>,
    ) -> Result<()> {
        let Some(id) = records.first().map(|first| first.object) else { return Ok(()) };
        let Ok(object) = self.known(id).cloned() else { return self.miss(id, records, failed) };
        let mut applier = BlockApplier::new(&object);
        applier.blocks.reserve(records.len(), applier.layout);
        let done = records.iter().try_for_each(|record| {
            self.apply_block(&object, &mut applier, record).or_else(|error| failed(record.sequence, error))
        });
        drop(applier);
        State::count(&mut self.used, &object);
        done
    }

    /// Fails records of an object that does not exist.
    fn miss(
        &self,
        id: ObjectId,
        records: &[BlockRecord],
        mut failed: impl FnMut(u64, Error) -> Result<()>,
    ) -> Result<()> {
        for record in records {
            self.known(id).map(drop).or_else(|error| failed(record.sequence, error))?;
        }
        Ok(())
    }

    /// Applies a block record and notes the space it frees.
    fn apply_block(
        &mut self,
        object: &Arc<Object>,
        applier: &mut BlockApplier<'_>,
        record: &BlockRecord,
    ) -> Result<()> {
        let index = record.block;
        let mut found = Block { epoch: record.sequence, stored: record.stored, since: record.at as u32 };
        if record.is_move {
            let before = applier.blocks.get(index, object.logged_layout());
            if let Some(before) = before.filter(|before| is_relocation(&before.stored, &found.stored)) {
                (found.epoch, found.since) = (before.epoch, before.since);
                self.relocated = record.sequence;
            }
        } else if let Some(origin) = &object.origin {
            origin.sever(index);
        }
        object.check_extent(index, &found)?;
        let Some(before) = applier.set(index, found)? else { return Ok(()) };
        if !before.stored.in_data {
            self.freed.push(Freed::Payload(before.stored));
        } else if object.origin.is_none() && !before.stored.is_zeros() {
            // Space in an outside file is not the store's to free.
            self.freed.push(Freed::Stretch { object: object.clone(), stored: before.stored });
        }
        let epoch = before.epoch;
        if epoch != found.epoch
            && let Some(links) = object.end_deltas(index, epoch)
        {
            self.freed.push(Freed::Deltas { object: object.clone(), index, epoch, links });
        }
        if let Some(link) = object.end_factor() {
            self.freed.push(Freed::EndedFactor { object: object.clone(), link });
        }
        Ok(())
    }
}
