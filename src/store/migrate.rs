//! Blocks to another tier. What a reader sees of a block changes with the batch that says
//! so, and with nothing before.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::format::catalog::Measured;
use crate::format::record::{Record, Stored};
use crate::model::{Encoder, Result, Tier};
use crate::store::blocks::Block;
use crate::store::collection::{Touched, now_seconds};
use crate::store::log::Batch;
use crate::store::object::{DIRTY, Object, Writing};
use crate::store::read::OpenObject;

/// Blocks that are stored in another tier, and that no batch says so of yet. Nobody writes
/// to the object while this lives.
pub struct Migration<'a> {
    open: &'a OpenObject,
    _writing: MutexGuard<'a, Writing>,
    blocks: Vec<(u32, Block, Stored)>,
    /// The files that were written.
    pub touched: Touched,
    /// How far what is decoded is from what was encoded.
    pub measured: Measured,
}

impl OpenObject {
    /// Stores the blocks of `range` that are not in the tier `to`, or that have deltas, in
    /// that tier: from what a reader sees of them. Blocks that were written since the last
    /// batch, and those that cannot be encoded, stay where they are.
    pub fn migrate(&self, range: Range<u32>, to: (Tier, Encoder)) -> Result<Migration<'_>> {
        let mut migration = self.migration();
        let cut = self.object().cut();
        let due: Vec<(u32, Block)> = range
            .filter_map(|index| Some((index, self.object().block(index, cut)?)))
            .filter(|(index, block)| self.is_due(*index, block, to.0))
            .collect();
        let mut elements = Vec::new();
        for group in due.chunk_by(|before, next| before.0 + 1 == next.0) {
            let (Some((first, _)), Some((last, _))) = (group.first(), group.last()) else { continue };
            let (begin, end) = (cut.start(*first), cut.start(*last) + cut.len(*last) as u64);
            elements.resize((end - begin) as usize, 0);
            self.read(begin, &mut elements)?;
            let block_bytes = cut.block_bytes as usize;
            let dtype = self.object().entry.dtype;
            let touched = &mut migration.touched;
            let (stored, measured) =
                self.collection.store_blocks(to, dtype, &elements, block_bytes, touched)?;
            migration.measured.add(measured);
            for ((index, block), stored) in group.iter().zip(stored) {
                let is_there =
                    block.stored.tier == stored.tier && self.object().chain(*index, block.epoch).is_none();
                match is_there {
                    // It could not be encoded, and was exact before.
                    true => self.collection.drop_payloads(vec![stored]),
                    false => migration.blocks.push((*index, *block, stored)),
                }
            }
        }
        Ok(migration)
    }

    /// Makes the blocks of `range` absent.
    pub fn drop_blocks(&self, range: Range<u32>) -> Migration<'_> {
        let mut migration = self.migration();
        let cut = self.object().cut();
        let blocks = range.filter_map(|index| Some((index, self.object().block(index, cut)?)));
        let stored = blocks.filter(|(index, block)| self.is_due(*index, block, Tier::Absent));
        migration.blocks = stored.map(|(index, block)| (index, block, Stored::ABSENT)).collect();
        migration
    }

    fn migration(&self) -> Migration<'_> {
        let (touched, measured) = (Touched::default(), Measured::default());
        let writing = self.object().writing.lock();
        Migration { open: self, _writing: writing, blocks: Vec::new(), touched, measured }
    }

    /// Whether a block is one to move to a tier: those that no batch describes are not.
    pub fn is_due(&self, index: u32, block: &Block, to: Tier) -> bool {
        block.epoch != DIRTY && (block.stored.tier != to || self.object().chain(index, block.epoch).is_some())
    }
}

impl Migration<'_> {
    /// Whether nothing moves.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// How many blocks move.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The object.
    pub fn object(&self) -> &Arc<Object> {
        self.open.object()
    }

    /// Adds the blocks to a batch: with it they are in their new tier.
    pub fn add(&self, batch: &mut Batch) {
        let object = self.object();
        let migrated_at = now_seconds();
        for (index, before, stored) in &self.blocks {
            let bits = match stored.tier {
                Tier::Absent => 0,
                Tier::Exact => (object.entry.dtype.bytes() * 8) as u8,
                tier => tier.code_bits().unwrap_or(0),
            };
            batch.record(Record::Migrate {
                object: object.entry.id,
                block: *index,
                old_tier: before.stored.tier.byte(),
                bits,
                stored: *stored,
                migrated_at,
            });
        }
    }

    /// Gives back what was stored, where no batch could say so.
    pub fn discard(self) {
        let stored = self.blocks.iter().map(|(_, _, stored)| *stored);
        let stored: Vec<Stored> = stored.filter(|stored| stored.len > 0).collect();
        self.open.collection.drop_payloads(stored);
    }
}
