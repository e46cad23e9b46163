//! Heals damaged blocks: rewrites their payloads from another source.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::reconstruct::{payload, proof, read_seen};
use crate::engine::work::Engine;
use crate::model::{ObjectId, Result};
use crate::store::EventKind;
use crate::store::OpenObject;
use crate::store::{Block, Collection};

impl Engine {
    /// Whether blocks are queued for healing.
    pub fn has_damaged(&self) -> bool {
        self.ways.damaged.is_waiting()
    }

    /// Number of blocks that were healed since the store was opened.
    pub fn healed(&self) -> u64 {
        self.ways.damaged.healed.load(Ordering::Relaxed)
    }

    /// Heals the queued blocks. Returns how many; durable when it returns. An error of a block is
    /// logged, and the next read finds the block again.
    pub fn heal_waiting(&self) -> Result<u64> {
        let mut healed = 0;
        let mut collections = Vec::new();
        for (open, index, block) in &self.ways.damaged.take() {
            match self.heal(open, *index, block) {
                Ok(true) => {
                    healed += 1;
                    collections.push(open.collection().clone());
                }
                Ok(false) => {}
                Err(error) => {
                    let id = open.object().entry.id;
                    log::error!("block {index} of object {id} was not rewritten: {error}");
                }
            }
        }
        collections.dedup_by(|one, other| std::sync::Arc::ptr_eq(one, other));
        for collection in collections {
            collection.sync()?;
        }
        Ok(healed)
    }

    /// Stores the blocks of an object exactly that are differences from blocks of a parent with other epochs, if a
    /// recorded digest proves them. Returns the number of blocks of its file that were stored; they are durable then.
    pub fn restore_differences(&self, collection: &Arc<Collection>, object: ObjectId) -> Result<u64> {
        proof::restore_differences(collection, object)
    }

    /// Heals a damaged block, if it has another source and is unchanged.
    pub(super) fn heal(&self, open: &OpenObject, index: u32, block: &Block) -> Result<bool> {
        // If it has deltas, the damage may be in these.
        let is_payload = !open.has_deltas(index, block) || !open.has_sound_payload(index, block);
        let payload = if is_payload {
            let copied = || self.ways.copies.payload(&self.store, open, index, block);
            payload(open, index, block)?.or_else(copied)
        } else {
            None
        };
        let is_healed = match payload {
            Some(payload) => open.restore(index, block, &payload)?,
            None => {
                let seen = open.object().deltas(index, block.epoch);
                let mut elements = vec![0; open.object().layout().len(index)];
                read_seen(open, index, block, &mut elements)?
                    && open.restore_exact(index, block, seen, &elements)?
            }
        };
        if is_healed {
            self.ways.damaged.note_healed(open, index);
            self.ways.damaged.healed.fetch_add(1, Ordering::Relaxed);
            let collection = open.collection();
            let path = collection.path_of(open.object());
            let text = format!("block {index} of object {} was rewritten", open.object().entry.id);
            collection.event_log().tell(EventKind::Repair, &path, "heal", &text);
        }
        Ok(is_healed)
    }
}
