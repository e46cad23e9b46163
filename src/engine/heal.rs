//! Blocks whose payloads are damaged are stored anew where there is another way to them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::engine::rebuild::{payload, read_seen};
use crate::engine::work::Engine;
use crate::model::{ObjectId, Result};
use crate::store::Block;
use crate::store::EventKind;
use crate::store::OpenObject;

/// So many blocks wait at most: others are found again by a scrub, or by the next read.
const WAITING_MAX: usize = 1 << 16;

/// Blocks that reads found damaged, and made good.
#[derive(Default)]
pub(super) struct Damaged {
    waiting: Mutex<Waiting>,
    healed: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    blocks: Vec<(OpenObject, u32, Block)>,
    /// Which these are, so that each waits once and is told of once.
    known: HashSet<(ObjectId, u32)>,
}

impl Damaged {
    /// Notes a block that was made good for a reader.
    pub fn note(&self, open: &OpenObject, index: u32, block: &Block) {
        if open.collection().check_writable().is_err() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.blocks.len() < WAITING_MAX && waiting.known.insert((open.object().entry.id, index)) {
            waiting.blocks.push((open.clone(), index, *block));
        }
    }
}

impl Engine {
    /// Whether blocks wait to be stored anew.
    pub fn has_damaged(&self) -> bool {
        !self.ways.damaged.waiting.lock().blocks.is_empty()
    }

    /// Blocks that were damaged and have been stored anew since the store was opened.
    pub fn healed(&self) -> u64 {
        self.ways.damaged.healed.load(Ordering::Relaxed)
    }

    /// Stores the blocks anew that reads found damaged. How many; durable when it returns. A
    /// block that fails is told of in the log, and found again by the next read.
    pub fn heal_waiting(&self) -> Result<u64> {
        let waiting = std::mem::take(&mut *self.ways.damaged.waiting.lock());
        let mut healed = 0;
        let mut collections = Vec::new();
        for (open, index, block) in &waiting.blocks {
            match self.heal(open, *index, block) {
                Ok(true) => {
                    healed += 1;
                    collections.push(open.collection().clone());
                }
                Ok(false) => {}
                Err(error) => {
                    let id = open.object().entry.id;
                    log::error!("block {index} of object {id} is not stored anew: {error}");
                }
            }
        }
        collections.dedup_by(|one, other| std::sync::Arc::ptr_eq(one, other));
        for collection in collections {
            collection.sync()?;
        }
        Ok(healed)
    }

    /// Stores a damaged block anew, if there is another way to it and it is still that block.
    pub(super) fn heal(&self, open: &OpenObject, index: u32, block: &Block) -> Result<bool> {
        // Where it has deltas, these may be what is damaged.
        let is_bare = !open.has_deltas(index, block);
        let payload = if is_bare { payload(open, index, block)? } else { None };
        let is_healed = match payload {
            Some(payload) => open.restore(index, block, &payload)?,
            None => {
                let seen = open.object().chain(index, block.epoch);
                let mut elements = vec![0; open.object().layout().len(index)];
                read_seen(open, index, block, &mut elements)?
                    && open.restore_exact(index, block, seen, &elements)?
            }
        };
        if is_healed {
            self.ways.damaged.healed.fetch_add(1, Ordering::Relaxed);
            let collection = open.collection();
            let path = collection.path_of(open.object());
            let text = format!("block {index} of object {} is stored anew", open.object().entry.id);
            collection.event_log().tell(EventKind::Repair, &path, "heal", &text);
        }
        Ok(is_healed)
    }
}
