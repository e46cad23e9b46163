//! Repairs corrupt payloads from intact elements.

use std::sync::Arc;

use crate::codec;
use crate::format::checksum;
use crate::format::log::record::Stored;
use crate::model::{Encoder, Result, Tier};
use crate::store::batch::migrate;
use crate::store::clock::now_seconds;
use crate::store::clones::fetched_outside;
use crate::store::collection::open_object::OpenObject;
use crate::store::io::packed_blocks::encode_packed;
use crate::store::object::blocks::{Block, DIRTY};
use crate::store::object::links::DeltaLink;
use crate::store::space::files::Touched;

impl OpenObject {
    /// The payload that the log describes for a block, built from the elements that it was encoded
    /// from; `None` if these are different elements.
    pub fn payload_of(&self, block: &Block, elements: &[u8]) -> Result<Option<Vec<u8>>> {
        let is_it = |payload: &[u8]| {
            payload.len() == block.stored.len as usize && checksum::of(payload) == block.stored.checksum
        };
        if block.stored.tier == Tier::Exact {
            return Ok(is_it(elements).then(|| elements.to_vec()));
        }
        if block.stored.tier == Tier::Packed {
            let payload = encode_packed(self.object.dtype(), elements)?;
            return Ok(payload.filter(|payload| is_it(payload)));
        }
        for encoder in Encoder::ALL {
            let mut payload = Vec::new();
            let dtype = self.object.dtype();
            let encoded = codec::encode(block.stored.tier, encoder, dtype, elements, &mut payload)?;
            if encoded.is_ok() && is_it(&payload) {
                return Ok(Some(payload));
            }
        }
        Ok(None)
    }

    /// The content of a block with this payload, as readers see it: with its deltas applied.
    pub fn show_payload(&self, index: u32, block: &Block, payload: &[u8], out: &mut [u8]) -> Result<()> {
        if block.stored.tier == Tier::Exact {
            out.copy_from_slice(payload);
            return Ok(());
        }
        self.decode(index, &block.stored, payload, out)?;
        self.apply_deltas(index, block, out)
    }

    /// Whether a block has deltas.
    pub fn has_deltas(&self, index: u32, block: &Block) -> bool {
        self.object.deltas(index, block.epoch).is_some()
    }

    /// Stores the content of an encoded block exactly, because its payload cannot be rebuilt. `seen`
    /// are its deltas from before the content was read. `false` if the block has changed since. Not
    /// durable before a sync.
    pub fn restore_exact(
        &self,
        index: u32,
        block: &Block,
        seen: Option<Arc<[DeltaLink]>>,
        elements: &[u8],
    ) -> Result<bool> {
        let checksum = checksum::of(elements);
        let stored = Stored { checksum, len: elements.len() as u32, ..Stored::in_slot(Tier::Exact, 0) };
        // Merging deltas does not change the block's epoch.
        let is_it = || self.object.deltas(index, block.epoch) == seen;
        self.restore_as(index, block, stored, elements, is_it)
    }

    /// Stores the correct payload of a block at a new location and records that. `false` if the block
    /// has changed since. Not durable before a sync.
    pub fn restore(&self, index: u32, block: &Block, payload: &[u8]) -> Result<bool> {
        self.restore_as(index, block, block.stored, payload, || true)
    }

    fn restore_as(
        &self,
        index: u32,
        block: &Block,
        stored: Stored,
        payload: &[u8],
        is_it: impl FnOnce() -> bool,
    ) -> Result<bool> {
        // The lock keeps the block from being written or moved.
        let _writing = self.object.write_state().writing.lock();
        if self.object.block(index, self.object.layout()) != Some(*block) || !is_it() {
            return Ok(false);
        }
        let mut touched = Touched::default();
        let offsets = self.collection.write_payloads(stored.tier, &[payload], &mut touched)?;
        let Some(&offset) = offsets.first() else { return Ok(false) };
        let (stored, before) = (Stored { offset, in_data: false, ..stored }, block.stored.tier);
        let is_restored = self.collection.record(touched, |batch, _| {
            batch.record(migrate(&self.object.entry, index, before, stored, now_seconds()));
            batch.keep_bytes();
            Ok(true)
        })?;
        self.note_readable(index..=index);
        Ok(is_restored)
    }

    /// Whether the payload of a block is as the log says, without its deltas. `false` for a block without one.
    pub fn has_sound_payload(&self, index: u32, block: &Block) -> bool {
        self.sound_payload(index, block).is_ok_and(|payload| payload.is_some())
    }

    /// The payload of block `index` of this object, if it is the one that another object's log describes: stored in
    /// the same way, with the same length and checksum.
    pub fn equal_payload(&self, index: u32, wanted: &Block) -> Result<Option<Vec<u8>>> {
        let found = self.object.block(index, self.object.layout());
        if self.is_unread {
            return Ok(None);
        }
        let key = |block: &Block| (block.stored.tier, block.stored.len, block.stored.checksum);
        match found.filter(|found| key(found) == key(wanted)) {
            Some(found) => self.sound_payload(index, &found),
            None => Ok(None),
        }
    }

    fn sound_payload(&self, index: u32, block: &Block) -> Result<Option<Vec<u8>>> {
        let Stored { tier, len, .. } = block.stored;
        if block.epoch == DIRTY || len == 0 || tier == Tier::Absent {
            return Ok(None);
        }
        fetched_outside(|| {
            let _reading = self.collection.gate.begin();
            let mut payload = vec![0; len as usize];
            self.fetch(index, &block.stored, 0, &mut payload)?;
            self.verify(index, &block.stored, &payload)?;
            Ok(Some(payload))
        })
    }
}
