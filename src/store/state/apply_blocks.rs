//! Applies block records to the index of an object, many under one lock: consecutive records of a log
//! are mostly about the same object.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::format::log::block_record::BlockRecord;
use crate::format::log::record::Stored;
use crate::model::{Error, ObjectId, Result, Tier};
use crate::store::object::blocks::{Block, BlockLayout, Blocks};
use crate::store::object::verified_blocks::{Checked, Words};
use crate::store::object::{Object, is_relocation, lies_in_a_file};
use crate::store::state::State;
use crate::store::state::freed_space::Freed;

/// The index of an object while block records are applied to it. Locks `blocks`, then `checked`.
struct BlockApplier<'a> {
    object: &'a Object,
    layout: BlockLayout,
    /// The layout of the blocks that the log describes. The object may have another size by now, which no batch has.
    logged: BlockLayout,
    /// Number of blocks of the object.
    count: u32,
    blocks: RwLockWriteGuard<'a, Blocks>,
    checked: RwLockReadGuard<'a, Words>,
    /// Tier and logical bytes of the last block, and the payload bytes that they result in.
    payload: (Tier, usize, usize),
    /// Growth of the object's payload bytes, modulo 2^64.
    stored: u64,
}

impl<'a> BlockApplier<'a> {
    fn new(object: &'a Object) -> BlockApplier<'a> {
        let layout = object.layout();
        BlockApplier {
            object,
            layout,
            logged: object.logged_layout(),
            count: layout.blocks(),
            blocks: object.blocks.write(),
            checked: object.checked.words(),
            payload: (Tier::Absent, 0, 0),
            stored: 0,
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

    /// `Corrupt` if a block does not fit the object.
    #[inline(always)]
    fn check(&mut self, index: u32, block: &Block) -> Result<()> {
        let stored = &block.stored;
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
        Ok(())
    }

    /// Adds a block if it is the next of a dense index, and returns whether it was. Nearly all blocks of a log are, so this is inlined: copies
    /// of a block on the way cost a fifth of a replay.
    #[inline(always)]
    fn push(&mut self, index: u32, block: Block) -> bool {
        let stored = block.stored;
        Checked::clear_in(&self.checked, index);
        self.object.note_tier(stored.tier);
        let is_next = index < self.count && self.blocks.push(index, block);
        if is_next {
            self.count_absent(None, &stored);
            self.stored = self.stored.wrapping_add(u64::from(stored.len));
        }
        is_next
    }

    /// Sets a block and returns the previous one.
    #[inline(never)]
    fn replace(&mut self, index: u32, block: Block) -> Result<Option<Block>> {
        let stored = block.stored;
        let layout = if index < self.logged.blocks() { self.logged } else { self.layout };
        let before = self.blocks.get(index, layout);
        let counted = self.blocks.counted_in(&(index..index.saturating_add(1)), self.logged);
        self.blocks.set(index, block, layout)?;
        self.count_absent(before.as_ref(), &stored);
        let now = stored.counted(self.logged.len(index) as u64);
        self.stored = self.stored.wrapping_add(now.wrapping_sub(counted));
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
        self.object.add_stored(self.stored);
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
        State::count(&mut self.counted, &object);
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
        applier.check(index, &found)?;
        if applier.push(index, found) {
            return Ok(());
        }
        let Some(before) = applier.replace(index, found)? else { return Ok(()) };
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

#[cfg(test)]
mod tests {
    use crate::format::log::catalog::{Entry, Extent, ObjectEntry};
    use crate::format::log::record::{ObjectDescription, Record, Stored};
    use crate::model::{Dtype, ObjectId, SeedId, Shape, TensorId, Tier};
    use crate::store::state::State;

    const BLOCK_BYTES: u32 = 64;
    const ID: ObjectId = ObjectId(1);

    fn object(bytes: u64) -> Entry {
        Entry::Object(ObjectEntry {
            id: ID,
            tensor: TensorId(1),
            seed: SeedId(0),
            creation: 1,
            dtype: Dtype::U8,
            bytes,
            block_bytes: BLOCK_BYTES,
            extent: Some(Extent { file: 1, offset: 0 }),
            parent: None,
        })
    }

    fn described() -> ObjectDescription {
        ObjectDescription { dtype: Dtype::U8, shape: Shape::default(), parent: None, reconstruct: 0 }
    }

    #[test]
    fn a_block_that_moves_while_the_size_is_not_recorded_leaves_the_count_of_the_others() {
        for size in [128, 66, 65] {
            let mut state = State::default();
            state.apply_entry(object(68)).unwrap();
            let stored = Stored { len: 2, ..Stored::in_extent(0) };
            let record =
                Record::CreateRun { object: ID, block: 0, described: described(), stored, created_at: 0 };
            state.apply_record(&record, 2, &[3; 8]).unwrap();
            let check = |state: &State, wanted: u64| {
                let object = state.object(ID).unwrap();
                let counted = object.blocks.read().counted(object.logged_layout());
                assert_eq!((object.stored(), counted), (wanted, wanted), "at size {size}");
            };
            check(&state, 68);
            state.object(ID).unwrap().set_bytes(size);
            let create = |block: u32, len: u32| {
                let stored =
                    Stored { tier: Tier::Exact, scale: 0.0, checksum: 0, offset: 0, len, in_data: false };
                Record::Create { object: ID, block, described: described(), stored, created_at: 0 }
            };
            state.apply_record(&create(0, 64), 3, &[]).unwrap();
            check(&state, 68);
            state.apply_entry(object(size)).unwrap();
            state.apply_record(&create(1, size as u32 - 64), 4, &[]).unwrap();
            check(&state, size);
            state.apply_entry(object(0)).unwrap();
            check(&state, 0);
        }
    }

    #[test]
    fn blocks_have_their_last_records_and_count_as_all_of_them_do_whatever_their_order() {
        let mut seed = 5_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for blocks in [9, 300, 5000] {
            let mut state = State::default();
            let mut bytes = blocks * u64::from(BLOCK_BYTES) - 7;
            state.apply_entry(object(bytes)).unwrap();
            // By block, the number of its last record.
            let mut wanted: Vec<Option<u64>> = vec![None; blocks as usize];
            for sequence in 2..900 {
                let len = wanted.len() as u64;
                let first = random(len) as u32;
                let most = [1, 80, len][random(3) as usize].min(len - u64::from(first));
                let count = 1 + random(most) as u32;
                let range = first as usize..(first + count) as usize;
                let in_data = Stored::in_extent(u64::from(first) * u64::from(BLOCK_BYTES));
                let (record, payload, changed) = match random(5) {
                    0 => {
                        bytes = 1 + random(blocks * u64::from(BLOCK_BYTES));
                        state.apply_entry(object(bytes)).unwrap();
                        state.batch_ended();
                        wanted.resize(bytes.div_ceil(u64::from(BLOCK_BYTES)) as usize, None);
                        continue;
                    }
                    1 => {
                        let array = vec![3; count as usize * 4];
                        let stored = Stored { len: count, ..in_data };
                        let (described, created_at) = (described(), 0);
                        let record =
                            Record::CreateRun { object: ID, block: first, described, stored, created_at };
                        (record, array, range)
                    }
                    2 => {
                        let stored = if random(2) == 0 { Stored::ZEROS } else { Stored::LOST };
                        let record =
                            Record::EmptyRun { object: ID, block: first, count, stored, created_at: 0 };
                        (record, Vec::new(), range)
                    }
                    _ => {
                        let logical = state.object(ID).unwrap().layout().len(first) as u32;
                        let len = if random(4) == 0 { 0 } else { logical };
                        let tier = if len == 0 { Tier::Absent } else { Tier::Exact };
                        let stored = Stored { tier, scale: 0.0, checksum: 0, offset: 0, len, in_data: false };
                        let (described, created_at) = (described(), 0);
                        let record =
                            Record::Create { object: ID, block: first, described, stored, created_at };
                        (record, Vec::new(), first as usize..first as usize + 1)
                    }
                };
                state.apply_record(&record, sequence, &payload).unwrap();
                wanted[changed].fill(Some(sequence));
                let object = state.object(ID).unwrap();
                let (known, layout) = (object.blocks.read(), object.logged_layout());
                assert_eq!(object.stored(), known.counted(layout), "{blocks} blocks, record {sequence}");
                for (index, epoch) in (0..).zip(&wanted).skip(random(7) as usize).step_by(7) {
                    let found = known.get(index, layout).map(|block| block.epoch);
                    assert_eq!(found, *epoch, "{blocks} blocks, record {sequence}, block {index}");
                }
            }
        }
    }
}
