//! Moves blocks to another tier. Readers see the change with the batch that records it, not before.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::MutexGuard;
use rayon::prelude::*;

use crate::format::log::block_record::is_next_slot;
use crate::format::log::catalog::Measured;
use crate::format::log::record::{Record, Stored};
use crate::model::{Aim, Result, Storing, Tier};
use crate::store::batch::{Batch, described, migrate};
use crate::store::collection::open_object::OpenObject;
use crate::store::object::blocks::{Block, DIRTY};
use crate::store::object::write_state::Writing;
use crate::store::object::{Object, is_relocation};
use crate::store::space::files::Touched;

/// Blocks that are stored in another tier, before a batch records that. The object cannot be written
/// while this lives.
pub struct Migration<'a> {
    open: &'a OpenObject,
    _writing: MutexGuard<'a, Writing>,
    blocks: Vec<(u32, Block, Stored)>,
    /// Whether they lose their origin.
    is_for_good: bool,
    /// Files written.
    pub touched: Touched,
    /// Error of the decoded elements compared with the encoded ones.
    pub measured: Measured,
}

/// Source of the elements that a block is rebuilt from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elements {
    /// The outside file, in its present state.
    Origin,
    /// Any other source.
    Other,
    /// None: the block stays as it is.
    Kept,
}

/// Writes the elements of a block to its last argument. Called on several threads.
pub type Source<'a> = dyn Fn(&OpenObject, u32, &Block, &mut [u8]) -> Result<Elements> + Sync + 'a;

impl OpenObject {
    /// Stores the blocks of `range` that the aim takes as `storing` says. `source` provides their
    /// elements. Blocks written since the last batch, and those that cannot be encoded, stay as they are.
    /// A block that becomes exact and is intact in its outside file is located there again; it is not read
    /// if that was verified before. Packed blocks leave their outside file.
    pub fn migrate(&self, range: Range<u32>, storing: Storing, source: &Source<'_>) -> Result<Migration<'_>> {
        self.ask_for_far(range.clone(), storing.aim);
        let mut migration = self.migration();
        let layout = self.object().layout();
        let due: Vec<(u32, Block)> = self
            .object()
            .stored_blocks(range, layout)
            .filter(|(index, block)| self.is_due(*index, block, storing.aim))
            .collect();
        for group in due.chunk_by(|before, next| before.0 + 1 == next.0) {
            let (Some((first, _)), Some((last, _))) = (group.first(), group.last()) else { continue };
            let (begin, end) = (layout.start(*first), layout.start(*last) + layout.len(*last) as u64);
            // The system provides zeroed pages when they are first used: blocks that stay in an outside file use none.
            let mut elements = vec![0; (end - begin) as usize];
            let block_bytes = layout.block_bytes as usize;
            // Location of a block's elements in its outside file: they need not be stored.
            let parts = group.par_iter().zip(elements.par_chunks_mut(block_bytes.max(1)));
            let read = parts
                .map(|((index, block), part)| source(self, *index, block, part))
                .collect::<Result<Vec<Elements>>>()?;
            let mut rest = (group, elements.as_slice());
            for run in read.chunk_by(|one, next| (*one == Elements::Kept) == (*next == Elements::Kept)) {
                // Only the last block of a group is shorter.
                let bytes = run.len().saturating_mul(block_bytes).min(rest.1.len());
                let (blocks, others) = rest.0.split_at(run.len().min(rest.0.len()));
                let (elements, left) = rest.1.split_at(bytes);
                rest = (others, left);
                if run.first() != Some(&Elements::Kept) {
                    self.store_run(&mut migration, storing, blocks, run, elements)?;
                }
            }
        }
        Ok(migration)
    }

    /// Stores neighbouring blocks, which come from `from`.
    fn store_run(
        &self,
        migration: &mut Migration<'_>,
        storing: Storing,
        group: &[(u32, Block)],
        from: &[Elements],
        elements: &[u8],
    ) -> Result<()> {
        let (aim, to) = (storing.aim, storing.tier());
        // Location of a block's elements in its outside file: they need not be stored.
        let place = |((index, _), from): (&(u32, Block), &Elements)| {
            self.object().origin_place(*index).filter(|_| *from == Elements::Origin)
        };
        let places: Vec<Option<Stored>> = group.iter().zip(from).map(place).collect();
        if aim == Aim::Tier(Tier::Exact) && places.iter().all(Option::is_some) {
            let there = group.iter().zip(places.into_iter().flatten());
            migration.blocks.extend(there.map(|((index, block), place)| (*index, *block, place)));
            return Ok(());
        }
        let block_bytes = self.object().layout().block_bytes as usize;
        let touched = &mut migration.touched;
        let stored = if to == Tier::Packed {
            self.pack_blocks(group, elements, touched)?
        } else {
            let (dtype, encoder) = (self.object().dtype(), storing.encoder);
            let (stored, measured) =
                self.collection.store_blocks(to, encoder, dtype, elements, block_bytes, touched)?;
            migration.measured.add(measured);
            stored.into_iter().map(Some).collect()
        };
        for (((index, block), place), stored) in group.iter().zip(places).zip(stored) {
            let Some(mut stored) = stored else { continue };
            if let Some(place) = place.filter(|_| stored.tier.is_exact()) {
                migration.touched.slots.give(stored.tier.byte(), stored.offset);
                stored = place;
            }
            let is_same = stored.checksum == block.stored.checksum && stored.len == block.stored.len;
            let is_there = block.stored.tier == stored.tier
                && self.object().deltas(*index, block.epoch).is_none()
                && !(aim == Aim::Pack && self.is_outside(block))
                && (is_same || !matches!(aim, Aim::Again(_)));
            if !is_there {
                migration.blocks.push((*index, *block, stored));
            } else if !stored.in_data {
                // Its payload would be the same, or it could not be encoded and was exact before.
                migration.touched.slots.give(stored.tier.byte(), stored.offset);
            }
        }
        Ok(())
    }

    /// Stores blocks packed, or exactly where packing does not make them smaller. `None` for those that are
    /// exact in the store already.
    fn pack_blocks(
        &self,
        group: &[(u32, Block)],
        elements: &[u8],
        touched: &mut Touched,
    ) -> Result<Vec<Option<Stored>>> {
        let (dtype, block_bytes) = (self.object().dtype(), self.object().layout().block_bytes as usize);
        let mut stored = self.collection.store_packed(dtype, elements, block_bytes, touched)?;
        let blocks = group.iter().zip(elements.chunks(block_bytes.max(1)));
        for (stored, ((index, block), elements)) in stored.iter_mut().zip(blocks) {
            let stays = block.stored.tier == Tier::Exact
                && self.object().deltas(*index, block.epoch).is_none()
                && !self.is_outside(block);
            if stored.is_none() && !stays {
                *stored = Some(self.collection.store_exact(elements, touched)?);
            }
        }
        Ok(stored)
    }

    /// Whether the payload of a block lies in an outside file.
    fn is_outside(&self, block: &Block) -> bool {
        block.stored.in_data && self.object().origin.is_some()
    }

    /// Makes the blocks of `range` absent for which `may` returns true.
    pub fn drop_blocks(
        &self,
        range: Range<u32>,
        may: &dyn Fn(u32, &Block) -> Result<bool>,
    ) -> Result<Migration<'_>> {
        self.ask_for_far(range.clone(), Aim::Tier(Tier::Absent));
        let mut migration = self.migration();
        let layout = self.object().layout();
        for (index, block) in self.object().stored_blocks(range, layout) {
            if self.is_due(index, &block, Aim::Tier(Tier::Absent)) && may(index, &block)? {
                migration.blocks.push((index, block, Stored::ABSENT));
            }
        }
        Ok(migration)
    }

    /// Makes the blocks of `range` absent permanently: they lose their origin too.
    pub fn discard_blocks(&self, range: Range<u32>) -> Migration<'_> {
        let mut migration = self.migration();
        let layout = self.object().layout();
        let blocks = self.object().stored_blocks(range, layout);
        let has_origin = |index| self.object().origin_place(index).is_some();
        let has_way = |index, block: &Block| {
            self.object().deltas(index, block.epoch).is_some() || self.object().factor_of(block).is_some()
        };
        let due = blocks.filter(|(index, block)| {
            block.epoch != DIRTY
                && (block.stored.tier != Tier::Absent || has_origin(*index) || has_way(*index, block))
        });
        migration.blocks = due.map(|(index, block)| (index, block, Stored::ABSENT)).collect();
        migration.is_for_good = true;
        migration
    }

    /// Asks the server of an object at a URL for what a move will need, before the move locks the object: it then finds the
    /// bytes in memory or the cache, and a recent answer about the version. Errors are those of the move, which asks again.
    fn ask_for_far(&self, range: Range<u32>, aim: Aim) {
        let Some(Ok(file)) = &self.extent else { return };
        let Some(far) = file.far() else { return };
        let layout = self.object().layout();
        let due = self.object().stored_blocks(range, layout);
        let due = due.filter(|(index, block)| self.is_due(*index, block, aim));
        let places: Vec<Stored> = due.filter_map(|(index, _)| self.object().origin_place(index)).collect();
        if places.is_empty() {
            return;
        }
        let asked = if matches!(aim, Aim::Tier(Tier::Exact | Tier::Absent)) {
            far.confirm()
        } else {
            // Not on the threads that all computations share, which would wait too.
            let mut bytes = Vec::new();
            places.iter().try_for_each(|place| {
                bytes.resize(place.len as usize, 0);
                file.read_exact_at(&mut bytes, place.offset)
            })
        };
        asked.unwrap_or_else(|error| log::debug!("{}: {error}", self.collection.path()));
    }

    fn migration(&self) -> Migration<'_> {
        let (touched, measured) = (Touched::default(), Measured::default());
        let writing = self.object().write_state().writing.lock();
        Migration { open: self, _writing: writing, blocks: Vec::new(), is_for_good: false, touched, measured }
    }

    /// Whether an aim takes a block. Blocks that no batch describes and unwritten zeros need not move.
    pub fn is_due(&self, index: u32, block: &Block, aim: Aim) -> bool {
        let has_deltas = || self.object().deltas(index, block.epoch).is_some();
        let is_stored = block.epoch != DIRTY && !block.stored.is_zeros();
        is_stored && aim.takes(block.stored.tier, has_deltas)
    }
}

impl Migration<'_> {
    /// Whether no block moves.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Number of blocks that move.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The object.
    pub fn object(&self) -> &Arc<Object> {
        self.open.object()
    }

    /// Adds the blocks to a batch, which moves them to their new tier.
    pub fn add(&self, batch: &mut Batch) {
        let object = self.object();
        let (entry, now) = (object.entry_now(), self.open.collection.services.ticks().seconds());
        // A record with the same payload would be a relocation and keep the deltas.
        let is_new = |(index, before, stored): &(u32, Block, Stored)| {
            let has_deltas = || object.deltas(*index, before.epoch).is_some();
            (is_relocation(&before.stored, stored) && has_deltas())
                || (self.is_for_good && object.origin_place(*index).is_some())
        };
        // Relocations change nothing that readers see, and a batch must be able to tell.
        let is_in_run =
            |moved: &(u32, Block, Stored)| !is_new(moved) && !is_relocation(&moved.1.stored, &moved.2);
        let joins = |one: &(u32, Block, Stored), next: &(u32, Block, Stored)| {
            is_next_slot(&one.2, &next.2) && next.0 == one.0 + 1 && is_in_run(one) && is_in_run(next)
        };
        for run in self.blocks.chunk_by(joins) {
            let Some(first @ (block, before, stored)) = run.first() else { continue };
            let (object, block, described) = (entry.id, *block, described(&entry));
            if run.len() > 1 {
                let is_move = true;
                batch.slot_run(run.iter().map(|(_, _, stored)| stored), |stored| Record::SlotRun {
                    object,
                    block,
                    described,
                    stored,
                    created_at: now,
                    is_move,
                });
            } else if is_new(first) {
                let stored = *stored;
                batch.record(Record::Create { object, block, described, stored, created_at: now });
            } else {
                batch.record(migrate(&entry, block, before.stored.tier, *stored, now));
            }
        }
    }
}
