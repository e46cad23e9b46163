//! Payloads that are not what the log says, made again of elements that are.

use std::sync::Arc;

use crate::codec;
use crate::format::checksum;
use crate::format::log::record::Stored;
use crate::model::{Encoder, Result, Tier};
use crate::store::collection::{Touched, now_seconds};
use crate::store::io::migrate::migrate;
use crate::store::io::read::OpenObject;
use crate::store::object::blocks::Block;
use crate::store::object::deltas::Link;
use crate::store::object::exact_at;

impl OpenObject {
    /// The payload of a block as the log describes it, made of the elements that it was
    /// encoded from; `None` where it was encoded from others.
    pub fn payload_of(&self, block: &Block, elements: &[u8]) -> Result<Option<Vec<u8>>> {
        let is_it = |payload: &[u8]| {
            payload.len() == block.stored.len as usize && checksum::of(payload) == block.stored.checksum
        };
        if block.stored.tier == Tier::Exact {
            return Ok(is_it(elements).then(|| elements.to_vec()));
        }
        for encoder in [Encoder::Best, Encoder::Absmax] {
            let mut payload = Vec::new();
            let dtype = self.object.dtype();
            let encoded = codec::encode(block.stored.tier, encoder, dtype, elements, &mut payload)?;
            if encoded.is_ok() && is_it(&payload) {
                return Ok(Some(payload));
            }
        }
        Ok(None)
    }

    /// What a reader sees of a block with this payload, its deltas applied.
    pub fn show_payload(&self, index: u32, block: &Block, payload: &[u8], out: &mut [u8]) -> Result<()> {
        if block.stored.tier == Tier::Exact {
            out.copy_from_slice(payload);
            return Ok(());
        }
        self.decode(index, &block.stored, payload, out)?;
        self.apply_chain(index, block, out)
    }

    /// Whether a block has deltas.
    pub fn has_deltas(&self, index: u32, block: &Block) -> bool {
        self.object.chain(index, block.epoch).is_some()
    }

    /// Stores what a reader sees of an encoded block, exactly: its payload cannot be made again.
    /// `seen` are its deltas as they were before that was read. `false` where the block is
    /// another one by now. Not durable before a sync.
    pub fn restore_exact(
        &self,
        index: u32,
        block: &Block,
        seen: Option<Arc<[Link]>>,
        elements: &[u8],
    ) -> Result<bool> {
        let checksum = checksum::of(elements);
        let stored = Stored { checksum, len: elements.len() as u32, ..exact_at(0, false) };
        // Deltas that were merged meanwhile leave the block's epoch as it is.
        let is_it = || self.object.chain(index, block.epoch) == seen;
        self.restore_as(index, block, stored, elements, is_it)
    }

    /// Stores the payload that a block should have, in another place, and records that. `false`
    /// where the block is another one by now. Not durable before a sync.
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
        // Nobody writes to it meanwhile, and nobody moves it.
        let _writing = self.object.write_state().writing.lock();
        if self.object.block(index, self.object.layout()) != Some(*block) || !is_it() {
            return Ok(false);
        }
        let mut touched = Touched::default();
        let lens = [payload.len()];
        let offsets = self.collection.write_payloads(stored.tier, payload, &lens, &mut touched)?;
        let Some(&offset) = offsets.first() else { return Ok(false) };
        let (stored, before) = (Stored { offset, in_data: false, ..stored }, block.stored.tier);
        self.collection.record(touched, |batch, _| {
            batch.record(migrate(&self.object.entry, index, before, stored, now_seconds()));
            batch.keep_bytes();
            Ok(true)
        })
    }
}
