//! Payloads that are checked against the log; those that are not what it says, made again.

use crate::codec;
use crate::model::{Encoder, Result, Tier};
use crate::store::blocks::Block;
use crate::store::collection::{Touched, now_seconds};
use crate::store::migrate::migrate;
use crate::store::read::OpenObject;

impl OpenObject {
    /// Checks block `index` and tells what it stores, for `verify` and `fsck`.
    pub fn check(&self, index: u32) -> Result<Block> {
        let cut = self.object.cut();
        let found = self.object.blocks.read().get(index, cut);
        let block = self.known(index, found)?;
        if block.stored.len == 0 {
            self.has_origin(index)?;
        }
        let _reading = self.collection.begin_read();
        if let Some(link) = self.object.factor_of(&block) {
            self.check_factor(&link)?;
        }
        if block.stored.len > 0 {
            let mut payload = vec![0; block.stored.len as usize];
            self.fetch(&block.stored, 0, &mut payload)?;
            self.verify(index, &block.stored, &payload)?;
        }
        if self.object.chain(index, block.epoch).is_some() {
            // What lies on a parent's block can be checked without that.
            let mut elements = vec![0; cut.len(index)];
            self.apply_chain(index, &block, &mut elements)?;
        }
        Ok(block)
    }

    /// The payload of a block as the log describes it, made of the elements that it was
    /// encoded from; `None` where it was encoded from others.
    pub fn payload_of(&self, block: &Block, elements: &[u8]) -> Result<Option<Vec<u8>>> {
        let is_it = |payload: &[u8]| {
            payload.len() == block.stored.len as usize && crc32c::crc32c(payload) == block.stored.checksum
        };
        if block.stored.tier == Tier::Exact {
            return Ok(is_it(elements).then(|| elements.to_vec()));
        }
        for encoder in [Encoder::Best, Encoder::Absmax] {
            let mut payload = Vec::new();
            let dtype = self.object.entry.dtype;
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

    /// Stores the payload that a block should have, in another place, and records that. `false`
    /// where the block is another one by now. Not durable before a sync.
    pub fn restore(&self, index: u32, block: &Block, payload: &[u8]) -> Result<bool> {
        // Nobody writes to it meanwhile, and nobody moves it.
        let _writing = self.object.writing.lock();
        if self.object.block(index, self.object.cut()) != Some(*block) {
            return Ok(false);
        }
        let mut touched = Touched::default();
        let (tier, lens) = (block.stored.tier, [payload.len()]);
        let offsets = self.collection.write_payloads(tier, payload, &lens, &mut touched)?;
        let Some(&offset) = offsets.first() else { return Ok(false) };
        let stored = crate::format::record::Stored { offset, in_data: false, ..block.stored };
        let recorded = self.collection.record(touched, |batch, _| {
            batch.record(migrate(&self.object.entry, index, tier, stored, now_seconds()));
            Ok(())
        });
        if recorded.is_err() && self.collection.poisoned().is_none() {
            self.collection.drop_payloads(vec![stored]);
        }
        recorded.map(|()| true)
    }
}
