//! Writes to an object. Readers see them at once, and the next batch describes them. `object` has the
//! invariants.
//!
//! Checksums of written blocks are computed from the bytes as they arrive, so that blocks need not be
//! read back before the log records them. `WriteState::dirty` has the checksum of the first bytes of each
//! dirty block, and their number. A write that follows them extends the checksum; a write that changes
//! them drops it first. Both happen while `WriteState::writing` is locked.

use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::format::checksum;
use crate::format::log::catalog::{Entry, ObjectEntry};
use crate::format::log::record::{Record, Stored};
use crate::model::{Encoder, Error, ErrorKind, Result, Tier};
use crate::store::batch::{Batch, add_blocks};
use crate::store::collection::open_object::OpenObject;
use crate::store::disk::File;
use crate::store::disk::change::Change;
use crate::store::io::deltas::Patch;
use crate::store::io::scaled_delta::Writes;
use crate::store::io::zeros::{Hole, add_hole};
use crate::store::link_candidates::is_shared;
use crate::store::object::Object;
use crate::store::object::blocks::BlockLayout;
use crate::store::object::write_state::Writing;
use crate::store::space::files::Touched;
use crate::store::space::holders::Alone;
use crate::store::space::slots::SLOT_ALIGN;

/// In objects from this size on, zeros are not stored where nothing was written yet. The kernel may read a
/// shorter file by itself only after the daemon has read its payloads, and holes have none.
const ZEROS_SKIPPED_FROM_BYTES: u64 = 1 << 20;

/// The writes to an object since the last batch, with checksums, before a batch records them. The
/// object cannot be written while this lives.
pub struct Written<'a> {
    open: &'a OpenObject,
    writing: MutexGuard<'a, Writing>,
    blocks: Vec<(u32, Stored)>,
    /// Unwritten zeros.
    holes: Vec<Hole>,
    /// Deltas on encoded blocks. Their blocks are not replaced, and the slots of the written bytes
    /// become `unneeded`.
    patches: Vec<Record>,
    /// Blocks that were encoded again or truncated, in slots of their own length.
    encoded: Vec<(u32, Stored)>,
    unneeded: Vec<Stored>,
    /// The files and slots of all these.
    touched: Touched,
    is_rounded: bool,
    bytes: u64,
}

impl OpenObject {
    /// Writes inside the object. The log has nothing of it before [`Written`] is recorded.
    pub fn write(&self, from: u64, bytes: &[u8]) -> Result<()> {
        let mut writing = self.object.write_state().writing.lock();
        self.check_writable()?;
        let _unshared = self.collection.services.sharing().changing();
        let layout = self.object.layout();
        if from.checked_add(bytes.len() as u64).is_none_or(|end| end > layout.bytes) {
            return Err(Error::invalid("a write past the end of an object"));
        }
        let mut rest = bytes;
        let mut at = from;
        while !rest.is_empty() {
            let index = layout.index(at);
            let inside = (at - layout.start(index)) as usize;
            let fresh = if inside == 0 { self.fresh_bytes(&writing, layout, index, rest) } else { 0 };
            let len = if fresh > 0 { fresh } else { rest.len().min(layout.len(index) - inside) };
            let (here, after) = rest.split_at(len);
            if fresh > 0 {
                self.place_fresh(&mut writing, layout, index, here)?;
            } else {
                self.write_block(&mut writing, layout, index, inside, here)?;
            }
            at += here.len() as u64;
            rest = after;
        }
        Ok(())
    }

    /// How many of `bytes` are whole blocks from `index` on that nobody has written yet, and whose place is at the end of
    /// the data file: one call writes all of them.
    fn fresh_bytes(&self, writing: &Writing, layout: BlockLayout, index: u32, bytes: &[u8]) -> usize {
        if bytes.len() < layout.len(index) || index < self.object.described() {
            return 0;
        }
        let written = self.object.write_state().dirty.read();
        let may_skip = layout.bytes >= ZEROS_SKIPPED_FROM_BYTES;
        let mut fresh = 0;
        for index in index..layout.blocks() {
            let block = bytes.get(fresh..fresh + layout.len(index));
            let Some(block) = block.filter(|_| !written.contains_key(&index)) else { break };
            if may_skip && block.iter().all(|byte| *byte == 0) {
                break;
            }
            fresh += block.len();
        }
        drop(written);
        if fresh > 0 && self.fits_data(writing, layout, index) { fresh } else { 0 }
    }

    /// Writes whole blocks that [`fresh_bytes`](Self::fresh_bytes) has counted.
    fn place_fresh(
        &self,
        writing: &mut Writing,
        layout: BlockLayout,
        index: u32,
        bytes: &[u8],
    ) -> Result<()> {
        let first = self.in_data(layout, index)?;
        let end = layout.start(index) + bytes.len() as u64;
        writing.used = writing.used.max(end);
        self.put(&first, 0, bytes).inspect_err(|_| {
            writing.stale = writing.stale.max(end);
            self.object.checked.clear_range(&(0..layout.blocks()));
        })?;
        let mut offset = first.offset;
        let placed = (index..).zip(bytes.chunks(layout.block_bytes as usize)).map(|(index, block)| {
            let stored = Stored::in_extent(offset).after_write(0, block);
            offset += block.len() as u64;
            (index, stored)
        });
        let placed: Vec<(u32, Stored)> = placed.collect();
        self.object.write_state().dirty.write().extend(placed);
        Ok(())
    }

    /// Truncates the object, or extends it with zeros.
    pub fn resize(&self, bytes: u64) -> Result<()> {
        let mut writing = self.object.write_state().writing.lock();
        self.check_writable()?;
        let _unshared = self.collection.services.sharing().changing();
        let before = self.object.layout();
        let after = BlockLayout { bytes, ..before };
        if bytes > i64::MAX as u64 || after.blocks() == u32::MAX {
            return Err(Error::new(ErrorKind::Full, "a file of that size cannot be kept"));
        }
        if bytes < before.bytes {
            // Everything that can fail comes before the first change.
            self.collection.find_space()?;
            // The dropped bytes still lie there.
            writing.stale = writing.stale.max(writing.used);
        }
        // The last block changes its length, so it moves to a location of its own that has zeros at its
        // end.
        let edge = before.bytes.min(bytes);
        let index = before.index(edge);
        let kept = (edge - before.start(index)) as usize;
        if kept > 0 && before.len(index) != after.len(index) {
            if bytes > before.bytes {
                self.grow_block(&mut writing, before, after, index)?;
            } else {
                self.truncate_block(&mut writing, before, after, index)?;
            }
        }
        if bytes < before.bytes {
            // The log still names the dropped space, but no block refers to it.
            let count = after.blocks();
            let written = self.object.write_state().dirty.write().split_off(&count);
            let slots = written.into_values().map(|stored| Stored { len: before.block_bytes, ..stored });
            writing.dropped.extend(slots);
            // The truncated block's payload stays recorded until the batch replaces it.
            let gone = self.object.truncate(count);
            writing.dropped.extend(gone);
        }
        self.object.set_bytes(bytes);
        Ok(())
    }

    /// Truncates the block that becomes the last one.
    fn truncate_block(
        &self,
        writing: &mut Writing,
        before: BlockLayout,
        after: BlockLayout,
        index: u32,
    ) -> Result<()> {
        let kept = after.len(index);
        let mut block = vec![0; kept];
        self.read(before.start(index), &mut block)?;
        let written = self.object.write_state().dirty.read().get(&index).copied();
        let Err(error) = self.place_block(writing, after, index, &block) else {
            // Only after the move succeeded, so that a full disk does not lose writes.
            writing.dropped.extend(written.map(|stored| Stored { len: before.block_bytes, ..stored }));
            return Ok(());
        };
        // A location that no record names can stay in use, because later growth overwrites it.
        let is_described = writing.edge.is_some_and(|(edge, described)| edge == index && kept < described);
        let written = written.filter(|_| error.kind() == ErrorKind::Full && !is_described);
        let Some(stored) = written else { return Err(error) };
        let is_known = stored.len as usize <= kept;
        let stored = if is_known { stored } else { Stored { checksum: 0, len: 0, ..stored } };
        self.object.write_state().dirty.write().insert(index, stored);
        Ok(())
    }

    /// Extends the last block with zeros.
    fn grow_block(
        &self,
        writing: &mut Writing,
        before: BlockLayout,
        after: BlockLayout,
        index: u32,
    ) -> Result<()> {
        let kept = before.len(index);
        let dirty = self.object.write_state().dirty.read().get(&index).copied();
        let zeros = vec![0; after.len(index) - kept];
        match dirty {
            Some(stored) if !(stored.in_data && self.is_shared()) => {
                if stored.in_data {
                    writing.used = writing.used.max(after.start(index) + after.len(index) as u64);
                }
                self.put(&stored, kept as u64, &zeros)
            }
            None if index >= self.object.described() => Ok(()),
            None if self.is_hole(before, index) => {
                self.place_block(writing, after, index, &vec![0; after.len(index)])
            }
            None if self.ends_used(writing, before, index) => {
                self.check(index)?;
                let stored = self.in_data(before, index)?;
                self.put(&stored, kept as u64, &zeros)?;
                writing.used = after.start(index) + after.len(index) as u64;
                self.object.write_state().dirty.write().insert(index, stored);
                writing.edge = Some((index, kept));
                Ok(())
            }
            _ => {
                let mut block = vec![0; after.len(index)];
                self.read(before.start(index), &mut block[..kept])?;
                self.place_block(writing, after, index, &block)
            }
        }
    }

    fn write_block(
        &self,
        writing: &mut Writing,
        layout: BlockLayout,
        index: u32,
        inside: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let dirty = self.object.write_state().dirty.read().get(&index).copied();
        let is_described = writing.edge.is_some_and(|(edge, kept)| edge == index && inside < kept);
        let may_stay = |stored: &Stored| !(is_described || stored.in_data && self.is_shared());
        if let Some(stored) = dirty.filter(may_stay) {
            return self.put_over(index, stored, inside, bytes);
        }
        let may_skip = layout.bytes >= ZEROS_SKIPPED_FROM_BYTES && dirty.is_none();
        if may_skip && self.is_unwritten(layout, index) && bytes.iter().all(|byte| *byte == 0) {
            // Zeros where nothing was written yet, as programs write to reserve space.
            return Ok(());
        }
        if bytes.len() == layout.len(index) {
            return self.place_block(writing, layout, index, bytes);
        }
        if dirty.is_none() && index >= self.object.described() && self.fits_data(writing, layout, index) {
            // Zeros, which the data file has there already.
            let stored = self.in_data(layout, index)?;
            self.room(writing, layout, index)?;
            self.put_fresh(writing, layout, index, &stored, inside as u64, bytes)?;
            self.object.write_state().dirty.write().insert(index, stored.after_write(inside, bytes));
            return Ok(());
        }
        let mut block = vec![0; layout.len(index)];
        self.read(layout.start(index), &mut block)?;
        block[inside..inside + bytes.len()].copy_from_slice(bytes);
        self.place_block(writing, layout, index, &block)
    }

    /// Writes a whole block to a location that no record names.
    pub(in crate::store) fn place_block(
        &self,
        writing: &mut Writing,
        layout: BlockLayout,
        index: u32,
        block: &[u8],
    ) -> Result<()> {
        let fits = self.fits_data(writing, layout, index);
        let hole = if fits { None } else { self.hole_to_fill(layout, index) };
        let stored = if fits || hole.is_some() {
            self.room(writing, layout, index)?;
            self.in_data(layout, index)?
        } else {
            Stored::in_slot(
                Tier::Exact,
                self.collection.take_slot(Tier::Exact, u64::from(layout.block_bytes))?,
            )
        };
        if let Err(error) = self.put_fresh(writing, layout, index, &stored, 0, block) {
            self.collection.drop_payloads(vec![Stored { len: layout.block_bytes, ..stored }]);
            return Err(error);
        }
        self.object.write_state().dirty.write().insert(index, stored.after_write(0, block));
        writing.edge = writing.edge.filter(|(edge, _)| *edge != index);
        Ok(())
    }

    fn data(&self) -> Option<&Arc<dyn File>> {
        self.extent.as_ref().and_then(|extent| extent.as_ref().ok())
    }

    /// Whether the stretch in the data file of a block that is not dirty was never used.
    pub(in crate::store) fn fits_data(&self, writing: &Writing, layout: BlockLayout, index: u32) -> bool {
        layout.start(index) >= writing.stale && self.is_last(writing)
    }

    /// Whether a block that is not dirty is zeros that nobody wrote.
    fn is_unwritten(&self, layout: BlockLayout, index: u32) -> bool {
        let block = self.object.blocks.read().get(index, layout);
        index >= self.object.described() || block.is_some_and(|block| block.stored.is_zeros())
    }

    /// Whether the log says that a block is a hole of the data file.
    fn is_hole(&self, layout: BlockLayout, index: u32) -> bool {
        let block = self.object.blocks.read().get(index, layout);
        block.is_some_and(|block| block.stored.is_zeros() && block.stored.in_data)
    }

    /// The right to write a whole block over a hole of the data file. Nobody else may have the file: one that is
    /// shared, seen by a program or copied keeps its bytes. Until a batch describes the block it reads as
    /// zeros, whatever lies there, so nothing is lost if none ever does.
    fn hole_to_fill(&self, layout: BlockLayout, index: u32) -> Option<Alone<'_>> {
        let may_be = self.is_hole(layout, index)
            && self.object.origin.is_none()
            && !self.object.write_state().dirty.read().contains_key(&index)
            && !self.collection.gate.is_held();
        let (file, extent) = self.data().filter(|_| may_be).zip(self.object.extent())?;
        if is_shared(&**file) {
            return None;
        }
        self.collection.files.shown.alone(Change::Return, extent.file, file.clone())
    }

    /// Whether a described block is at the end of the data file, so that it can be extended there.
    fn ends_used(&self, writing: &Writing, layout: BlockLayout, index: u32) -> bool {
        let block = self.object.blocks.read().get(index, layout);
        block.is_some_and(|block| block.stored.in_data)
            && writing.used == layout.bytes
            && self.is_last(writing)
    }

    /// Whether the object is the last one in a data file that nobody shares. A deleted object behind it may still be
    /// open, or come back after a power cut.
    fn is_last(&self, writing: &Writing) -> bool {
        if self.object.origin.is_some() {
            // Outside files are never extended.
            return false;
        }
        let (Some(file), Some(extent)) = (self.data(), self.object.extent()) else { return false };
        file.len().is_ok_and(|len| len <= extent.offset + writing.used) && !is_shared(&**file)
    }

    /// Extends the data file to the end of a block.
    pub(in crate::store) fn room(
        &self,
        writing: &mut Writing,
        layout: BlockLayout,
        index: u32,
    ) -> Result<()> {
        let end = layout.start(index) + layout.len(index) as u64;
        writing.used = writing.used.max(end);
        let (Some(file), Some(extent)) = (self.data(), self.object.extent()) else { return Ok(()) };
        let len = file.len().map_err(|error| Error::io("asking for a data file's size", error))?;
        if len < extent.offset + end {
            let grown = file.set_len(extent.offset + end);
            grown.map_err(|error| Error::io("making room in a data file", error))?;
        }
        Ok(())
    }

    fn in_data(&self, layout: BlockLayout, index: u32) -> Result<Stored> {
        let extent = self.object.extent().ok_or_else(|| Error::invalid("an object without a data file"))?;
        Ok(Stored::in_extent(extent.offset + layout.start(index)))
    }

    /// Writes to a location that no record gives bytes. After a failure, the bytes left in the data file do
    /// not count as zeros.
    fn put_fresh(
        &self,
        writing: &mut Writing,
        layout: BlockLayout,
        index: u32,
        stored: &Stored,
        skip: u64,
        bytes: &[u8],
    ) -> Result<()> {
        self.put(stored, skip, bytes).inspect_err(|_| {
            if stored.in_data {
                writing.stale = writing.stale.max(layout.start(index) + layout.len(index) as u64);
                // The hole that has the block was perhaps verified.
                self.object.checked.clear_range(&(0..layout.blocks()));
            }
        })
    }

    pub(in crate::store) fn put(&self, stored: &Stored, skip: u64, bytes: &[u8]) -> Result<()> {
        let file: Arc<dyn File> = match (self.data(), stored.in_data) {
            (Some(extent), true) => extent.clone(),
            _ => self.collection.files.payload_file(stored.tier.byte())?,
        };
        file.write_at(bytes, stored.offset + skip)
            .map_err(|error| Error::io(format!("writing to {}", self.collection.path()), error))
    }

    /// The writes since the last batch, with checksums. Blocks are read back if their checksum is not
    /// known, or if they may become patches.
    pub fn written(&self, writes: Writes) -> Result<Written<'_>> {
        self.written_until(writes, u64::MAX)
    }

    /// [`written`](Self::written) for an object that the batch truncates to `bytes`, if it is longer.
    /// Readers see the full length until the batch is applied.
    pub fn written_until(&self, writes: Writes, bytes: u64) -> Result<Written<'_>> {
        let mut writing = self.object.write_state().writing.lock();
        let before = self.object.layout();
        let layout = BlockLayout { bytes: bytes.min(before.bytes), ..before };
        let mut holes = self.place_zeros(&mut writing, before)?;
        holes.retain_mut(|hole| {
            hole.range.end = hole.range.end.min(layout.blocks());
            !hole.range.is_empty()
        });
        let mut dirty: Vec<(u32, Stored)> =
            self.object.write_state().dirty.read().iter().map(|(index, stored)| (*index, *stored)).collect();
        let behind = dirty.split_off(dirty.partition_point(|(index, _)| *index < layout.blocks()));
        let mut blocks = Vec::with_capacity(dirty.len());
        let (mut patches, mut encoded) = (Vec::new(), Vec::new());
        let mut unneeded: Vec<Stored> =
            behind.into_iter().map(|(_, stored)| Stored { len: layout.block_bytes, ..stored }).collect();
        let (mut block, mut touched) = (Vec::new(), Touched::default());
        // Truncation changes the length of the block at the edge, and so its checksum.
        let edge = layout.index(layout.bytes);
        let is_cut = layout.len(edge) < before.len(edge) && layout.len(edge) > 0;
        if is_cut && !holes.iter().any(|hole| hole.range.contains(&edge)) {
            block.resize(layout.len(edge), 0);
            self.read(layout.start(edge), &mut block)?;
            let written = dirty.pop_if(|(index, _)| *index == edge).map(|(_, stored)| stored);
            match written.or_else(|| self.stays_in_data(edge, before)) {
                Some(stored) => {
                    let checksum = checksum::of(&block);
                    blocks.push((edge, Stored { checksum, len: block.len() as u32, ..stored }));
                    match (self.data(), stored.in_data) {
                        (Some(extent), true) => touched.file(extent),
                        _ => touched.file(&self.collection.files.payload_file(stored.tier.byte())?),
                    }
                }
                None => {
                    let (to, dtype, len) = (Tier::Exact, self.object.dtype(), block.len());
                    let (placed, _) =
                        self.collection.store_blocks(to, Encoder::Best, dtype, &block, len, &mut touched)?;
                    encoded.extend(placed.first().map(|placed| (edge, *placed)));
                }
            }
        }
        if let Some(extent) = self.data().filter(|_| !holes.is_empty()) {
            touched.file(extent);
        }
        for (index, stored) in dirty {
            let len = layout.len(index);
            let is_known = stored.len as usize == len && self.patch_base(index, len).is_none();
            let patch = if is_known {
                Patch::None
            } else {
                block.resize(len, 0);
                self.read(layout.start(index), &mut block)?;
                self.patch(index, &block, writes, &mut touched)?
            };
            match patch {
                Patch::Link(record) => {
                    patches.push(record);
                    unneeded.push(Stored { len: layout.block_bytes, ..stored });
                }
                Patch::Same => unneeded.push(Stored { len: layout.block_bytes, ..stored }),
                Patch::Encoded(tier, encoder) => {
                    let dtype = self.object.dtype();
                    let (placed, _) =
                        self.collection.store_blocks(tier, encoder, dtype, &block, len, &mut touched)?;
                    encoded.extend(placed.first().map(|placed| (index, *placed)));
                    unneeded.push(Stored { len: layout.block_bytes, ..stored });
                }
                Patch::None => {
                    match (self.data(), stored.in_data) {
                        (Some(extent), true) => touched.file(extent),
                        _ => touched.file(&self.collection.files.payload_file(stored.tier.byte())?),
                    }
                    let checksum = if is_known { stored.checksum } else { checksum::of(&block) };
                    blocks.push((index, Stored { checksum, len: len as u32, ..stored }));
                }
            }
        }
        blocks.sort_unstable_by_key(|(index, _)| *index);
        let is_rounded = writes.rounding.is_some() && !unneeded.is_empty();
        let (open, bytes) = (self, layout.bytes);
        Ok(Written { open, writing, blocks, holes, patches, encoded, unneeded, touched, is_rounded, bytes })
    }
}

impl OpenObject {
    /// The location of a block that the log truncates, if it can stay: nothing else is ever written
    /// there.
    fn stays_in_data(&self, index: u32, layout: BlockLayout) -> Option<Stored> {
        let block = self.object.blocks.read().get(index, layout)?;
        let has_bytes = block.stored.in_data && !block.stored.is_zeros();
        let stays = has_bytes && block.stored.tier == Tier::Exact && self.object.origin.is_none();
        stays.then_some(block.stored)
    }
}

impl Written<'_> {
    /// Returns the files that were written and the reserved slots, once.
    pub fn touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }

    /// Adds the object's size and blocks to a batch, under the object's own identity.
    pub fn add(&self, batch: &mut Batch) {
        let object: &Object = &self.open.object;
        let entry = ObjectEntry { bytes: self.bytes, ..object.entry_now() };
        batch.entry(Entry::Object(entry.clone()));
        self.add_bytes(batch, &entry);
        add_blocks(batch, &entry, &self.encoded);
        for patch in &self.patches {
            batch.record(patch.clone());
        }
    }

    /// Adds the written blocks, and the zeros between them, to a batch, in order.
    pub fn add_bytes(&self, batch: &mut Batch, entry: &ObjectEntry) {
        let mut rest = self.blocks.as_slice();
        for hole in &self.holes {
            let (before, after) = rest.split_at(rest.partition_point(|(index, _)| *index < hole.range.start));
            add_blocks(batch, entry, before);
            add_hole(batch, entry, hole);
            rest = after;
        }
        add_blocks(batch, entry, rest);
    }

    /// Called when a batch has recorded the writes.
    pub fn recorded(mut self) {
        self.writing.stale = self.writing.stale.max(self.writing.used);
        self.open.object.write_state().dirty.write().clear();
        self.writing.edge = None;
        let mut dropped = std::mem::take(&mut self.writing.dropped);
        dropped.append(&mut self.unneeded);
        // A slot had room for a whole block. A short block leaves the rest free.
        let block_bytes = self.open.object.entry.block_bytes;
        for (_, stored) in self.blocks.iter().filter(|(_, stored)| !stored.in_data) {
            let kept = stored.len.next_multiple_of(SLOT_ALIGN as u32);
            let len = block_bytes.next_multiple_of(SLOT_ALIGN as u32).saturating_sub(kept);
            dropped.push(Stored { offset: stored.offset + u64::from(kept), len, ..*stored });
        }
        self.open.collection.drop_payloads(dropped);
    }

    /// Whether the writes were rounded, so that readers see different bytes.
    pub fn is_rounded(&self) -> bool {
        self.is_rounded
    }

    /// The object.
    pub fn object(&self) -> &Arc<Object> {
        &self.open.object
    }

    /// The present size of the object.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Stored {
    /// The state of a dirty block after `bytes` were written to it at offset `skip`.
    pub(in crate::store) fn after_write(self, skip: usize, bytes: &[u8]) -> Stored {
        if skip != self.len as usize {
            // The bytes before them have no checksum.
            return self;
        }
        let checksum = match skip {
            0 => checksum::of(bytes),
            _ => checksum::continued(self.checksum, bytes),
        };
        Stored { checksum, len: self.len + bytes.len() as u32, ..self }
    }
}

impl OpenObject {
    /// Writes to a dirty block in place.
    pub(in crate::store) fn put_over(
        &self,
        index: u32,
        stored: Stored,
        skip: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let mut stored = stored;
        if skip < stored.len as usize {
            // Dropped first, because the write may fail halfway.
            stored = Stored { checksum: 0, len: 0, ..stored };
            self.object.write_state().dirty.write().insert(index, stored);
        }
        {
            let _whole = self.object.write_state().in_place.write();
            self.put(&stored, skip as u64, bytes)?;
        }
        let after = stored.after_write(skip, bytes);
        if after.len != stored.len {
            self.object.write_state().dirty.write().insert(index, after);
        }
        Ok(())
    }
}
