//! Commits the objects of an import and their blocks.

use crate::format::log::catalog::{Entry, ObjectEntry, Parent};
use crate::format::log::record::{ObjectDescription, Record, Stored};
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::store_parts::{StoredBlocks, StoredObject, TakenPart};
use crate::model::{ObjectId, Result, SeedId, Shape, TensorId};
use crate::store::{Batch, Collection, add_described_blocks};
use crate::store::{Touched, now_seconds};

/// A batch takes about this many slots at most, which bounds the memory of replay. Names are always
/// in one batch.
const BATCH_SLOTS_MAX: u64 = 32 << 10;

/// A run of slots takes at most this many blocks, so that batches stay about as long as they may be.
const RUN_BLOCKS_MAX: usize = 4096;

/// An object that is not in the log yet.
pub(in crate::ingest) struct Draft<'a> {
    pub object: &'a StoredObject,
    pub tensor: TensorId,
    pub seed: SeedId,
    pub shape: Shape,
    pub parent: Option<Parent>,
}

/// Commits objects and their blocks, in batches of bounded size and without names.
pub(in crate::ingest) fn objects(
    uncommitted: &mut Uncommitted<'_>,
    collection: &Collection,
    drafts: &[Draft<'_>],
) -> Result<Vec<ObjectId>> {
    let mut kept: Vec<ObjectId> = Vec::with_capacity(drafts.len());
    let mut place = 0;
    let mut block = 0;
    while place < drafts.len() {
        collection.record(Touched::default(), |batch, _| {
            while let Some(draft) = drafts.get(place).filter(|_| batch.slots() < BATCH_SLOTS_MAX) {
                let id = match kept.get(place) {
                    Some(id) => *id,
                    None => {
                        let id = add_object(batch, draft);
                        kept.push(id);
                        uncommitted.object(id);
                        id
                    }
                };
                match add_blocks(batch, id, draft, block, BATCH_SLOTS_MAX) {
                    Some(next) => block = next,
                    None => (place, block) = (place + 1, 0),
                }
            }
            Ok(())
        })?;
    }
    Ok(kept)
}

/// The most blocks of an object that comes to the log with its name: a file of a cache has 4 MiB or less.
const NAMED_BLOCKS_MAX: u64 = 256;

/// Whether this is a single object of few blocks, as that of a small file: the batch that names it adds it too.
pub(in crate::ingest) fn is_small(drafts: &[Draft<'_>]) -> bool {
    let is_small = |draft: &Draft<'_>| {
        draft.object.bytes <= NAMED_BLOCKS_MAX.saturating_mul(u64::from(draft.object.block_bytes))
    };
    matches!(drafts, [draft] if is_small(draft))
}

/// Adds an object and its blocks, however many.
pub(in crate::ingest) fn add_draft(batch: &mut Batch, draft: &Draft<'_>) -> ObjectId {
    let id = add_object(batch, draft);
    let rest = add_blocks(batch, id, draft, 0, u64::MAX);
    debug_assert_eq!(rest, None);
    id
}

fn add_object(batch: &mut Batch, draft: &Draft<'_>) -> ObjectId {
    let creation = batch.next_sequence();
    let id = ObjectId::of(draft.tensor, draft.seed, creation);
    batch.entry(Entry::Object(ObjectEntry {
        id,
        tensor: draft.tensor,
        seed: draft.seed,
        creation,
        dtype: draft.object.dtype,
        bytes: draft.object.bytes,
        block_bytes: draft.object.block_bytes,
        extent: draft.object.extent,
        parent: draft.parent.clone().map(Box::new),
    }));
    id
}

/// Adds the blocks, or parts of blocks, from `first` until the batch has `slots_max` slots. Returns the next one to add,
/// or `None` when all are added.
fn add_blocks(
    batch: &mut Batch,
    id: ObjectId,
    draft: &Draft<'_>,
    first: usize,
    slots_max: u64,
) -> Option<usize> {
    let described = ObjectDescription {
        dtype: draft.object.dtype,
        shape: draft.shape.clone(),
        parent: draft.parent.as_ref().map(|parent| parent.object),
        reconstruct: 0,
    };
    let created_at = now_seconds();
    let extent = draft.object.extent.map_or(0, |extent| extent.offset);
    let add_run = |batch: &mut Batch, block: u32, checksums: &[u32]| {
        let offset = extent + u64::from(block) * u64::from(draft.object.block_bytes);
        batch.run(checksums, Record::run(id, block, described.clone(), offset, created_at));
    };
    match &draft.object.blocks {
        StoredBlocks::Run(checksums) if checksums.is_empty() => None,
        StoredBlocks::Run(checksums) => {
            add_run(batch, 0, checksums);
            None
        }
        StoredBlocks::Parts(parts) => {
            let mut block: u32 = parts.iter().take(first).map(TakenPart::blocks).sum();
            for (place, part) in parts.iter().enumerate().skip(first) {
                if batch.slots() >= slots_max {
                    return Some(place);
                }
                let mut add_empty = |stored: Stored| {
                    let count = part.blocks();
                    batch.record(Record::EmptyRun { object: id, block, count, stored, created_at });
                };
                match part {
                    TakenPart::Run(checksums) => add_run(batch, block, checksums),
                    TakenPart::Hole(_) => {
                        let at = u64::from(block) * u64::from(draft.object.block_bytes);
                        add_empty(Stored::in_extent(extent + at));
                    }
                    TakenPart::Zeros(_) => add_empty(Stored::ZEROS),
                    TakenPart::Slots(blocks) => {
                        let blocks: Vec<(u32, Stored)> = (block..).zip(blocks.iter().copied()).collect();
                        add_described_blocks(batch, id, &described, &blocks);
                    }
                }
                block += part.blocks();
            }
            None
        }
        StoredBlocks::Each(blocks) => {
            let mut next = first;
            while let Some(rest) = blocks.get(next..).filter(|rest| !rest.is_empty()) {
                if batch.slots() >= slots_max {
                    return Some(next);
                }
                let part = rest.iter().take(RUN_BLOCKS_MAX).copied();
                let part: Vec<(u32, Stored)> = (next as u32..).zip(part).collect();
                add_described_blocks(batch, id, &described, &part);
                next += part.len();
            }
            None
        }
    }
}
