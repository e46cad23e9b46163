//! Mends the damaged blocks of a file from a source with the same bytes.

use std::sync::Arc;

use crate::model::{EntryId, ErrorKind, Result, Tier};
use crate::store::disk::File;
use crate::store::{Block, Collection, IndexedBlock, OpenObject, Verify};

/// The damaged blocks of a file.
pub(in crate::ingest) struct Damage {
    objects: Vec<DamagedObject>,
}

struct DamagedObject {
    open: OpenObject,
    /// Where the object begins in the file.
    offset: u64,
    blocks: Vec<(u32, Block)>,
    /// Whether a block without a description is among them.
    has_undescribed: bool,
}

/// How much of the damage was mended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::ingest) enum Mended {
    All,
    /// A payload cannot be made of the source.
    NotAll,
}

impl Damage {
    /// Reads every block of a file, and finds those that are damaged.
    pub fn of(collection: &Arc<Collection>, node: EntryId) -> Result<Damage> {
        let (mut objects, mut offset) = (Vec::new(), 0);
        for object in collection.objects_of(node)? {
            let open = OpenObject::reopen(collection, &object, Verify::Always);
            let layout = object.logged_layout();
            let (mut blocks, mut has_undescribed) = (Vec::new(), false);
            for (piece, block) in object.pieces(0..layout.blocks(), layout) {
                // Blocks that only the remote of a clone has are compared when they are fetched.
                let is_here = block.is_none_or(|block| open.is_here(piece.start, &block));
                if !is_here || open.check(piece.start).is_ok_and(|block| !block.stored.is_lost()) {
                    continue;
                }
                match block {
                    // A block without a payload is like all of its piece.
                    Some(block) => blocks.extend(piece.map(|index| (index, block))),
                    None => has_undescribed = true,
                }
            }
            collection.note_checked(&object);
            if has_undescribed || !blocks.is_empty() {
                objects.push(DamagedObject { open, offset, blocks, has_undescribed });
            }
            offset += object.bytes();
        }
        Ok(Damage { objects })
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.objects.is_empty()
    }

    /// Stores the payloads of the damaged blocks again, made of the same bytes of `source`. A payload must be that which
    /// the log describes. Not durable before a sync.
    pub fn mend(&self, source: &dyn File) -> Result<Mended> {
        let mut mended = Mended::All;
        for DamagedObject { open, offset, blocks, has_undescribed } in &self.objects {
            if *has_undescribed {
                mended = Mended::NotAll;
            }
            let layout = open.object().layout();
            for (index, block) in blocks {
                let mut elements = vec![0; layout.len(*index)];
                let is_read = source.read_exact_at(&mut elements, offset + layout.start(*index)).is_ok();
                if !is_read || !mend_block(open, IndexedBlock { index: *index, block }, &elements)? {
                    mended = Mended::NotAll;
                }
            }
        }
        Ok(mended)
    }
}

/// Stores the payload of a damaged block again. Returns whether the block is sound then.
fn mend_block(
    open: &OpenObject,
    IndexedBlock { index, block }: IndexedBlock<'_>,
    elements: &[u8],
) -> Result<bool> {
    if block.stored.tier == Tier::Absent {
        return Ok(false);
    }
    let Some(payload) = open.payload_of(block, elements)? else { return Ok(false) };
    match open.restore(index, block, &payload) {
        // A block with deltas may be damaged in these.
        Ok(is_restored) => Ok(is_restored && open.check(index).is_ok()),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(false),
        Err(error) => Err(error),
    }
}
