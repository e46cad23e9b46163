//! Copies of blocks that share the data file of their source.
//!
//! A copied range has an object of its own, whose blocks lie where those of the source lie, in another name of their data
//! file. The name comes first: from then on nobody changes the file in place (`link_candidates` 1), so the blocks that
//! the source has there afterwards stay.
//!
//! Invariant:
//! 1. Each byte of a data file belongs, by each of its names, to one object at most. A name takes a second copy only
//!    while nothing of the first is in a log, and only behind it.

use std::ops::Range;
use std::sync::Arc;

use crate::format::log::catalog::Extent;
use crate::format::log::record::Stored;
use crate::model::{Error, ObjectId, Result, Tier};
use crate::store::collection::Collection;
use crate::store::collection::open_object::{MEMORY_FILE, OpenObject, Verify};
use crate::store::link_candidates::SharedName;
use crate::store::object::Object;
use crate::store::object::blocks::Block;
use crate::store::upstream::cloned_file;

/// Another name of a data file. Dropping it removes the name, unless a draft has come to lie there.
pub struct LinkedFile<'a> {
    collection: &'a Arc<Collection>,
    number: u64,
    has_drafts: bool,
}

impl Drop for LinkedFile<'_> {
    fn drop(&mut self) {
        if !self.has_drafts {
            self.collection.remove_data_file(self.number);
        }
    }
}

impl LinkedFile<'_> {
    /// Its number in the collection.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Leaves it to the drafts in it.
    pub fn leave(mut self) {
        self.has_drafts = true;
    }
}

impl Collection {
    /// Makes a data file that is another name of the one in which `source` lies. `None` if files of the two collections do
    /// not share data files, or this one cannot be shared.
    pub fn link_of<'a>(self: &'a Arc<Self>, source: &OpenObject) -> Result<Option<LinkedFile<'a>>> {
        let from = &source.collection;
        let Some(extent) = source.own_extent() else { return Ok(None) };
        let may_share = self.services.sharing().may_share(from.tenant(), self.tenant());
        // Blocks of a damaged log may be older than the log says, and those of a failed sync may be lost.
        if !may_share || from.check_writable().is_err() {
            return Ok(None);
        }
        let name = SharedName::new(&from.path(), extent.file);
        // The files of clones have one name.
        if !matches!(cloned_file(from.files.upstream(), &name.path()), Ok(None)) {
            return Ok(None);
        }
        let number = self.link_as_data_file(&name)?;
        Ok(number.map(|number| LinkedFile { collection: self, number, has_drafts: false }))
    }
}

impl OpenObject {
    /// The stretch of a data file of its own collection.
    fn own_extent(&self) -> Option<Extent> {
        self.object.extent().filter(|extent| self.object.origin.is_none() && extent.file != MEMORY_FILE)
    }

    /// The end of the first blocks of `range` that a copy can have where they lie: exact ones in the data file, and zeros.
    /// And whether these are more than zeros.
    pub fn shareable(&self, range: Range<u32>) -> (u32, bool) {
        let mut has_bytes = false;
        let end = self.shareable_blocks(range, &mut |_, _| has_bytes = true);
        (end, has_bytes)
    }

    /// Calls `take` for each of these blocks that has bytes. Returns the end of all.
    fn shareable_blocks(&self, range: Range<u32>, take: &mut dyn FnMut(u32, Stored)) -> u32 {
        let mut end = range.start;
        let Some(extent) = self.own_extent().filter(|_| !range.is_empty()) else { return end };
        let object = &self.object;
        let layout = object.logged_layout();
        let state = object.existing_write_state();
        // A write hides the block that the log describes.
        let dirty = state.and_then(|state| {
            let dirty = state.dirty.read();
            dirty.range(range.clone()).next().map(|(index, _)| *index)
        });
        let limit = dirty.unwrap_or(u32::MAX).min(object.described()).min(range.end).max(end);
        let has_deltas = state.is_some_and(|state| !state.deltas.read().is_empty());
        let is_there = |index: u32, block: &Block| {
            block.stored.in_data
                && block.stored.tier == Tier::Exact
                && block.stored.offset == extent.offset + layout.start(index)
                && block.stored.len as usize == layout.len(index)
        };
        // Those with deltas are not taken; their lock comes after that of the blocks.
        let blocks = object.blocks.read();
        for (piece, block) in blocks.pieces_in(range.start..limit, layout) {
            let Some(block) = block else { break };
            if !block.is_unwritten() {
                let is_alone = !has_deltas || object.deltas(piece.start, block.epoch).is_none();
                if !is_alone || !is_there(piece.start, &block) {
                    break;
                }
                take(piece.start, block.stored);
            }
            end = piece.end;
        }
        end
    }

    /// The number of the data file of this object, if a copy of the blocks of `source` from `first` on can lie there too:
    /// this is a draft, in another name of the same file, and ends before them.
    pub fn goes_on_with(&self, source: &OpenObject, first: u32) -> Option<u64> {
        let (own, from) = (self.own_extent()?, source.own_extent()?);
        let identity = |open: &OpenObject| {
            let file = open.extent.as_ref()?.as_ref().ok()?;
            file.attributes().ok()?.identity
        };
        let begin = from.offset.checked_add(source.object.logged_layout().start(first))?;
        let is_behind = own.offset.checked_add(self.object.bytes())? <= begin;
        let is_draft = self.object.entry.id == ObjectId(0) && !Arc::ptr_eq(&self.object, &source.object);
        (is_draft && is_behind && identity(self)? == identity(source)?).then_some(own.file)
    }

    /// A draft with the bytes of the first blocks of `range` that can be shared, in the data file `number` of a collection:
    /// another name of theirs. `None` if the first cannot.
    pub fn copied(
        &self,
        range: Range<u32>,
        collection: &Arc<Collection>,
        number: u64,
        verify: Verify,
    ) -> Result<Option<OpenObject>> {
        let mut dirty = Vec::new();
        let first = range.start;
        let end = self.shareable_blocks(range, &mut |index, stored| dirty.push((index - first, stored)));
        let Some(extent) = self.own_extent().filter(|_| end > first) else { return Ok(None) };
        let layout = self.object.logged_layout();
        let offset = extent.offset + layout.start(first);
        let draft = Arc::new(Object::draft(layout.block_bytes, Extent { file: number, offset }));
        let bytes = layout.bytes_of(&(first..end));
        draft.set_bytes(bytes);
        {
            let state = draft.write_state();
            let mut writing = state.writing.lock();
            // Others have bytes behind it.
            (writing.used, writing.stale) = (bytes, bytes);
            *state.dirty.write() = dirty.into_iter().collect();
        }
        let open = OpenObject::open(collection, &draft, verify)?;
        if matches!(open.extent, Some(Err(_)) | None) {
            return Err(Error::invalid("a linked data file that cannot be opened"));
        }
        collection.reservations.hold_file(number);
        Ok(Some(open))
    }
}
