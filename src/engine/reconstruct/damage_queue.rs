//! The queue of damaged blocks that reads have found and worked around.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::model::ObjectId;
use crate::store::{Block, OpenObject};

/// Maximal number of queued blocks. A scrub or the next read finds the others again.
const WAITING_MAX: usize = 1 << 16;

/// Damaged blocks that reads have found and worked around.
#[derive(Default)]
pub(in crate::engine) struct Damaged {
    waiting: Mutex<Waiting>,
    /// Number of blocks that were healed since the store was opened.
    pub healed: AtomicU64,
}

/// A block as it was when a read found it damaged: its object, its index, its record.
pub(in crate::engine) type DamagedBlock = (OpenObject, u32, Block);

#[derive(Default)]
struct Waiting {
    blocks: Vec<DamagedBlock>,
    /// Their identities, so that each is queued and reported once.
    known: HashSet<(ObjectId, u32)>,
}

impl Damaged {
    /// Queues a damaged block that was reconstructed for a reader.
    pub fn note(&self, open: &OpenObject, index: u32, block: &Block) {
        if open.collection().check_writable().is_err() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.blocks.len() < WAITING_MAX && waiting.known.insert((open.object().entry.id, index)) {
            waiting.blocks.push((open.clone(), index, *block));
        }
    }

    /// Notes that a block was healed, so that it is queued again if it is damaged again.
    pub fn note_healed(&self, open: &OpenObject, index: u32) {
        self.waiting.lock().known.remove(&(open.object().entry.id, index));
    }

    /// Whether blocks are queued.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.lock().blocks.is_empty()
    }

    /// Takes the queued blocks.
    pub fn take(&self) -> Vec<DamagedBlock> {
        std::mem::take(&mut *self.waiting.lock()).blocks
    }
}
