//! Ways to reconstruct the elements of a block without its payload: the one list of them, and their use by reads and
//! moves.
//!
//! A read whose payload is absent or damaged asks `store/io/rebuild.rs`, behind which stands the list `WAYS`, the most
//! precise first: the remote of a clone, which has the payload itself; the file outside the store; the lineage parent;
//! matrices; the copy of a pinned file. For corrupt payloads the places of `copies.rs` follow: an equal block of the
//! parent, a file of the tenant with the same BLAKE3.
//!
//! - Exact elements serve a damaged block once they are encoded as it was, with each encoder in turn; only the payload
//!   whose checksum the log names is served. If none matches, the pinned copy serves the block after its BLAKE3 was
//!   compared anew, and the block is stored exactly.
//! - The read writes nothing. It notes the block (`damage_queue.rs`), and a job (`engine/heal.rs`) stores the payload
//!   elsewhere, by a Migrate record that keeps epoch and deltas. `engine/scrub.rs` does the same for every block.
//! - Copies may be in collections that are not open, and nobody may wait for `Store::open` inside of the gate. So a
//!   read of a program (`OpenObject::read_or_gather`) that fails lets `Rebuild::gather` look between two tries; the
//!   second try finds the payload in `Copies`.
//! - `FailedReads` (`store/object/failed_reads.rs`) has the blocks that could not be read, with their epochs and places
//!   then; `Footprint` has the objects. `why` and the problems in `.ctl/status` come from these.
//! - Moves (`engine/moves.rs`) take exact elements from the same list; evictions (`engine/evict/mod.rs`) ask the list
//!   whether a block can be made again.
//!
//! To add a way: a row of `WAYS`, and its name in `setting.rs`.

mod copies;
pub(super) mod damage_queue;
mod delta;
mod factor;
pub(super) mod proof;
pub(super) mod setting;

pub(super) use delta::DEPTH_MAX;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::engine::reconstruct::copies::Copies;
use crate::engine::reconstruct::damage_queue::Damaged;
use crate::model::{EntryId, Error, ErrorKind, Result, Tier};
use crate::store::Block;
use crate::store::Collection;
use crate::store::Compare;
use crate::store::Elements;
use crate::store::OpenObject;
use crate::store::Rebuild;
use crate::store::Store;

/// A way to reconstruct the elements of a block.
pub(super) struct Way {
    /// The value of the attribute `reconstruct` that selects it; empty if none does.
    pub name: &'static str,
    /// Which elements it gives.
    pub gives: Gives,
    /// Whether it seems to be available, without reading anything.
    pub is_there: fn(&OpenObject, u32, &Block) -> bool,
    /// Whether it is available and gives the right elements; this may read them.
    pub is_sound: fn(&OpenObject, u32, &Block) -> Result<bool>,
    /// Reads the elements of a whole block into the last argument. `false` where it is not available.
    pub read: fn(&OpenObject, u32, &Block, &mut [u8]) -> Result<bool>,
    /// The kind of its elements, for a move.
    pub elements: Elements,
}

/// Which elements a way gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gives {
    /// The elements that were encoded.
    Exact,
    /// The elements of the evicted block, exactly or nearly. Not available for blocks that are not
    /// absent.
    Absent,
    /// The elements that a reader sees.
    Seen,
    /// The payload itself, of a block that is not absent.
    Stored,
}

/// All ways, the most precise first.
pub(super) const WAYS: &[Way] = &[REMOTE, ORIGIN, DELTA, FACTOR, PINNED];

/// The remote that a clone was made of. An evicted block is not absent: its payload is fetched when it is read.
const REMOTE: Way = Way {
    name: "remote",
    gives: Gives::Stored,
    is_there: |open, _, block| open.is_in_clone(block),
    is_sound: |open, _, block| Ok(open.remote_payload(block)?.is_some()),
    read: |open, index, block, out| open.read_remote(index, block, out),
    elements: Elements::Other,
};

/// The external file that the block was imported from.
const ORIGIN: Way = Way {
    name: "origin",
    gives: Gives::Exact,
    is_there: |open, index, _| open.object().origin_place(index).is_some(),
    is_sound: |open, index, _| open.has_origin(index),
    read: |open, index, _, out| open.read_origin(index, out),
    elements: Elements::Origin,
};

/// The copy of a pinned file.
const PINNED: Way = Way {
    name: "",
    gives: Gives::Seen,
    is_there: |open, _, _| open.has_pinned(),
    is_sound: |open, index, _| {
        open.read_pinned(index, Compare::Once, &mut vec![0; open.object().layout().len(index)])
    },
    read: |open, index, block, out| {
        // An absent block has no checksum.
        let compare = if block.stored.tier == Tier::Absent { Compare::Again } else { Compare::Once };
        open.read_pinned(index, compare, out)
    },
    elements: Elements::Other,
};

/// Reads the elements of an encoded block from the copy of a pinned file. Returns whether there is
/// one. An exact block has a checksum of the same bytes, and does not need this.
pub(super) fn read_seen(open: &OpenObject, index: u32, block: &Block, out: &mut [u8]) -> Result<bool> {
    if block.stored.tier.is_encoded() { open.read_pinned(index, Compare::Again, out) } else { Ok(false) }
}

/// The same block of the lineage parent.
const DELTA: Way = Way {
    name: "delta",
    gives: Gives::Absent,
    is_there: delta::is_there,
    is_sound: |open, index, block| Ok(delta::is_there(open, index, block)),
    read: delta::read,
    elements: Elements::Other,
};

/// A product of matrices.
const FACTOR: Way = Way {
    name: "factor",
    gives: Gives::Absent,
    is_there: factor::is_there,
    is_sound: |open, index, block| Ok(factor::is_there(open, index, block)),
    read: factor::read,
    elements: Elements::Other,
};

/// The precision of the bytes that a reader sees of a block; `Absent` for an unrecoverable one.
pub(super) fn precision(open: &OpenObject, index: u32, block: &Block) -> Tier {
    let made = || delta::precision(open, index, block).or_else(|| factor::precision(open, index, block));
    match block.stored.tier {
        Tier::Absent => made().unwrap_or(Tier::Absent),
        tier => tier,
    }
}

/// Whether a block has an exact source besides its payload.
pub(super) fn has_exact_source(open: &OpenObject, index: u32, block: &Block) -> bool {
    // A way that fails has reported that itself.
    let is_sound = |way: &Way| matches!((way.is_sound)(open, index, block), Ok(true));
    WAYS.iter().filter(|way| way.gives == Gives::Exact).any(is_sound)
}

/// Whether a block should have an exact source besides its payload, by the log.
pub(super) fn expects_exact_source(open: &OpenObject, index: u32, block: &Block) -> bool {
    WAYS.iter().any(|way| way.gives == Gives::Exact && (way.is_there)(open, index, block))
}

/// Whether a file has blocks that are absent and that nothing seems to make again, by the log.
pub fn has_lost_blocks(collection: &Arc<Collection>, node: EntryId) -> bool {
    let Ok(objects) = collection.objects_of(node) else { return false };
    objects.iter().any(|object| {
        let (open, layout) = (OpenObject::unread(collection, object), object.layout());
        let mut blocks = object.stored_blocks(0..layout.blocks(), layout);
        blocks.any(|(index, block)| {
            let is_absent = block.stored.tier == Tier::Absent;
            is_absent && !WAYS.iter().any(|way| (way.is_there)(&open, index, &block))
        })
    })
}

/// Verifies that a block can be read without the copies of pinned files. The error states why not.
pub(super) fn check_without_copy(open: &OpenObject, index: u32, block: &Block) -> Result<()> {
    if open.is_far(index, block) {
        // Its source holds reads to a version, so all of a model need not be fetched.
        return open.has_origin(index).map(drop);
    }
    if block.stored.tier != Tier::Absent {
        return open.check(index).map(|_| ());
    }
    let mut elements = vec![0; open.object().layout().len(index)];
    let mut failed = None;
    for way in WAYS.iter().filter(|way| way.gives != Gives::Seen) {
        match (way.read)(open, index, block, &mut elements) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let gone = || Error::new(ErrorKind::Absent, "it is absent and cannot be reconstructed");
    Err(failed.unwrap_or_else(gone))
}

/// Reads the exact elements of a block. Returns the kind of the source, or `None` where there is
/// none.
pub(super) fn read_exact(
    open: &OpenObject,
    index: u32,
    block: &Block,
    out: &mut [u8],
) -> Result<Option<Elements>> {
    let mut failed = Ok(None);
    for way in WAYS.iter().filter(|way| way.gives == Gives::Exact) {
        match (way.read)(open, index, block, out) {
            Ok(true) => return Ok(Some(way.elements)),
            Ok(false) => {}
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed
}

/// The intact payload of a block, computed from another source.
pub(super) fn payload(open: &OpenObject, index: u32, block: &Block) -> Result<Option<Vec<u8>>> {
    let mut elements = vec![0; open.object().layout().len(index)];
    for way in WAYS {
        if way.elements == Elements::Origin && block.stored.in_data {
            // The damaged payload lies in this very file.
            continue;
        }
        if way.gives == Gives::Stored {
            match open.remote_payload(block) {
                Ok(Some(payload)) => return Ok(Some(payload)),
                Ok(None) => {}
                // The other ways need no remote.
                Err(error) => log::warn!("{error}"),
            }
            continue;
        }
        match (way.read)(open, index, block, &mut elements) {
            Ok(true) => {
                if let Some(payload) = open.payload_of(block, &elements)? {
                    return Ok(Some(payload));
                }
            }
            Ok(false) => {}
            // The way has reported that itself.
            Err(error) if error.kind() == ErrorKind::Corrupt => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Reconstructs absent and damaged blocks for reads.
pub(super) struct Ways {
    /// The store, which has this.
    store: Weak<Store>,
    /// Payloads that other tensors and files have.
    pub copies: Copies,
    /// Queue of damaged blocks.
    pub damaged: Arc<Damaged>,
    /// Whether blocks that cannot be reconstructed read as zeros.
    pub fills_with_zeros: AtomicBool,
}

impl Ways {
    pub fn new(store: &Arc<Store>) -> Ways {
        Ways {
            store: Arc::downgrade(store),
            copies: Copies::default(),
            damaged: Arc::default(),
            fills_with_zeros: AtomicBool::new(false),
        }
    }
}

impl Rebuild for Ways {
    fn rebuild(&self, open: &OpenObject, index: u32, block: &Block, elements: &mut [u8]) -> Result<bool> {
        if block.stored.tier != Tier::Absent {
            if let Some(payload) = payload(open, index, block)? {
                return open.show_payload(index, block, &payload, elements).map(|()| true);
            }
            if let Some(payload) = self.copies.gathered(open, index, block) {
                return open.show_payload(index, block, &payload, elements).map(|()| true);
            }
            return read_seen(open, index, block, elements);
        }
        let mut failed = Ok(false);
        for way in WAYS {
            match (way.read)(open, index, block, elements) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        if !failed? && self.fills_with_zeros.load(Ordering::Relaxed) {
            elements.fill(0);
            return Ok(true);
        }
        Ok(false)
    }

    fn can_rebuild(&self, open: &OpenObject, index: u32, block: &Block) -> bool {
        self.fills_with_zeros.load(Ordering::Relaxed)
            || WAYS.iter().any(|way| (way.is_there)(open, index, block))
    }

    fn gather(&self, open: &OpenObject, range: Range<u32>) -> bool {
        let Some(store) = self.store.upgrade() else { return false };
        let blocks = open.object().stored_blocks(range, open.object().layout());
        let found = blocks.filter(|(index, block)| self.copies.gather(&store, open, *index, block));
        found.count() > 0
    }

    fn made_good(&self, open: &OpenObject, index: u32, block: &Block) {
        self.damaged.note(open, index, block);
    }
}
