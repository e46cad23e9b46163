//! Other sources of a block's elements, for absent blocks and for corrupt payloads.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLockReadGuard;

use crate::model::{Error, ErrorKind, Result, Tier};
use crate::store::Collection;
use crate::store::io::read::{OpenObject, overlap};
use crate::store::object::blocks::{Block, DIRTY};

/// Provides blocks from other sources. Called by reads, from many threads, and may read itself.
pub trait Rebuild: Send + Sync {
    /// Writes the content that readers see of a block to `elements`, which has the length of the whole
    /// block. `false` if there is no source; an error if there is one and it fails.
    fn rebuild(&self, open: &OpenObject, index: u32, block: &Block, elements: &mut [u8]) -> Result<bool>;

    /// Whether there seems to be a source for an absent block, as far as can be told without reading.
    fn can_rebuild(&self, open: &OpenObject, index: u32, block: &Block) -> bool;

    /// Called after a corrupt payload was replaced for a reader: somebody who may write should store it
    /// again.
    fn made_good(&self, open: &OpenObject, index: u32, block: &Block);
}

/// The provider, once it is set.
pub(in crate::store) type Rebuilder = Arc<OnceLock<Arc<dyn Rebuild>>>;

thread_local! {
    /// Whether this thread is inside a read: rebuilding a block reads others.
    static IS_READING: Cell<bool> = const { Cell::new(false) };
}

/// A read in progress, which keeps space from being reused.
pub(in crate::store) struct Reading<'a> {
    _gate: RwLockReadGuard<'a, ()>,
    was_reading: bool,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        IS_READING.set(self.was_reading);
    }
}

impl Collection {
    /// Begins a read. A nested read does not wait for writers that wait for the outer read.
    pub(in crate::store) fn begin_read(&self) -> Reading<'_> {
        let was_reading = IS_READING.replace(true);
        let gate = if was_reading { self.reading.read_recursive() } else { self.reading.read() };
        Reading { _gate: gate, was_reading }
    }
}

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
            let part = out.get_mut(place..place + inside.len()).unwrap_or_default();
            let block = self.known(index, *found)?;
            match self.read_blocks(index, &[Some(block)], begin, part) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    if !matches!(self.rebuild(index, &block, begin, part), Ok(true)) {
                        return Err(error);
                    }
                    if let Some(rebuilder) = self.collection.rebuilder.get() {
                        rebuilder.made_good(self, index, &block);
                    }
                }
                read => read?,
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
        let Some(rebuilder) = self.collection.rebuilder.get() else { return Ok(false) };
        let layout = self.object.layout();
        if out.len() == layout.len(index) {
            return rebuilder.rebuild(self, index, block, out);
        }
        let mut whole = vec![0; layout.len(index)];
        let found = rebuilder.rebuild(self, index, block, &mut whole)?;
        let inside = (at - layout.start(index)) as usize;
        out.copy_from_slice(whole.get(inside..inside + out.len()).unwrap_or_default());
        Ok(found)
    }

    /// Whether any block is absent and has no source.
    pub fn has_lost(&self) -> bool {
        if !self.object.has_absent() {
            return false;
        }
        let layout = self.object.layout();
        let is_lost = |index: u32, block: Block| {
            let rebuilder = self.collection.rebuilder.get();
            let can = rebuilder.is_some_and(|rebuilder| rebuilder.can_rebuild(self, index, &block));
            block.stored.tier == Tier::Absent && block.epoch != DIRTY && !can
        };
        let pieces = self.object.pieces(0..layout.blocks(), layout);
        pieces.into_iter().any(|(piece, block)| block.is_some_and(|block| is_lost(piece.start, block)))
    }

    pub(in crate::store) fn absent(&self, index: u32) -> Error {
        let text = format!(
            "{}: block {index} of object {} is absent and there is no way to make it again",
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
