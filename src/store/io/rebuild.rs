//! Other sources of a block's elements, for absent blocks and for corrupt payloads.

use crate::model::{Error, ErrorKind, Result, Tier};
use crate::store::collection::open_object::OpenObject;
use crate::store::io::pinned_copies::Compare;
use crate::store::io::read::overlap;
use crate::store::object::blocks::{Block, DIRTY};

impl OpenObject {
    /// [`read_blocks`](Self::read_blocks) one block at a time. A block with a corrupt payload is read
    /// from another source, if there is one.
    pub(in crate::store) fn read_each(
        &self,
        first: u32,
        found: &[Option<Block>],
        at: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let layout = self.object.layout();
        let end = at + out.len() as u64;
        for (index, found) in (first..).zip(found) {
            let inside = overlap(layout.start(index), layout.len(index), at, end);
            let begin = layout.start(index) + inside.start as u64;
            let place = (begin - at) as usize;
            let part = &mut out[place..place + inside.len()];
            let block = self.known(index, *found).inspect_err(|error| self.note_damage(index, error))?;
            match self.read_blocks(index, &[Some(block)], begin, part) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    if self.refetch(&block.stored)
                        && self.read_blocks(index, &[Some(block)], begin, part).is_ok()
                    {
                        self.note_readable(index..=index);
                        continue;
                    }
                    if !matches!(self.rebuild(index, &block, begin, part), Ok(true)) {
                        if block.stored.tier == Tier::Absent {
                            // Nothing has told of it, as the checksums of payloads do.
                            return Err(self.report_corruption(index, &block.stored, error));
                        }
                        self.note_damage(index, &error);
                        return Err(error);
                    }
                    if let Some(rebuilder) = self.collection.services.rebuilder() {
                        rebuilder.made_good(self, index, &block);
                    }
                }
                read => {
                    read?;
                    self.note_readable(index..=index);
                }
            }
        }
        Ok(())
    }

    /// Reads a part of a block from another source: `out` from offset `at` on, within the block.
    /// `false` if there is none.
    pub(in crate::store) fn rebuild(
        &self,
        index: u32,
        block: &Block,
        at: u64,
        out: &mut [u8],
    ) -> Result<bool> {
        let Some(rebuilder) = self.collection.services.rebuilder() else { return Ok(false) };
        let layout = self.object.layout();
        if out.len() == layout.len(index) {
            return rebuilder.rebuild(self, index, block, out);
        }
        let mut whole = vec![0; layout.len(index)];
        let found = rebuilder.rebuild(self, index, block, &mut whole)?;
        let inside = (at - layout.start(index)) as usize;
        out.copy_from_slice(&whole[inside..inside + out.len()]);
        Ok(found)
    }

    /// Reads a range some of which lies at a URL that does not give it: from the copies of pinned files. Returns whether they
    /// have it.
    pub(in crate::store) fn read_pinned_instead(&self, from: u64, out: &mut [u8]) -> bool {
        if out.is_empty() || !self.has_pinned() {
            return false;
        }
        let (layout, end) = (self.object.layout(), from + out.len() as u64);
        // It may have been cut meanwhile.
        if end > layout.bytes {
            return false;
        }
        (layout.index(from)..=layout.index(end - 1)).all(|index| {
            let inside = overlap(layout.start(index), layout.len(index), from, end);
            let begin = layout.start(index) + inside.start as u64;
            let place = (begin - from) as usize;
            let part = &mut out[place..place + inside.len()];
            let is_far = self.object.block(index, layout).is_some_and(|block| self.is_far(index, &block));
            if !is_far {
                return self.read_here(begin, part).is_ok();
            }
            let mut whole = vec![0; layout.len(index)];
            // No checksum of the block may be known.
            let found = self.read_pinned(index, Compare::Again, &mut whole);
            part.copy_from_slice(&whole[inside]);
            matches!(found, Ok(true))
        })
    }

    /// Whether any block is absent and has no source.
    pub fn has_lost(&self) -> bool {
        if !self.object.has_absent() {
            return false;
        }
        let layout = self.object.layout();
        let is_lost = |index: u32, block: Block| {
            let rebuilder = self.collection.services.rebuilder();
            let can = rebuilder.is_some_and(|rebuilder| rebuilder.can_rebuild(self, index, &block));
            block.stored.tier == Tier::Absent && block.epoch != DIRTY && !can
        };
        let pieces = self.object.pieces(0..layout.blocks(), layout);
        pieces.into_iter().any(|(piece, block)| block.is_some_and(|block| is_lost(piece.start, block)))
    }

    pub(in crate::store) fn absent(&self, index: u32) -> Error {
        let text = format!(
            "{}: block {index} of object {} is absent, and nothing can reconstruct it",
            self.collection.path(),
            self.object.entry.id
        );
        Error::new(ErrorKind::Absent, text)
    }

    pub(in crate::store) fn lost(&self, index: u32) -> Error {
        let (path, id) = (self.collection.path(), self.object.entry.id);
        Error::corrupt(format!(
            "{path}: block {index} of object {id} was lost when the store was repaired; copy the file in again"
        ))
    }
}
