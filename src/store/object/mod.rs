//! Objects: the owners of blocks, with the location of each block and the writes since the last batch.
//!
//! Invariants:
//! 1. A block that the log describes is never overwritten in place: writes go to a slot, or to a stretch of the data
//!    file, that no record names. Unwritten zeros have no bytes: where they are a hole of the data file, a write may
//!    fill it, and what lies there counts only once a batch describes it.
//! 2. A dirty block hides the described one. It is described, with its checksum, before it stops being dirty.
//! 3. Blocks past those that the log describes are zeros unless they are dirty.
//! 4. `Counts::stored` is what the described blocks count as in the logged size. A change counts the blocks that it
//!    changes, never all.
//! 5. The checksum of a dirty block covers the first `len` bytes at its location. A write to these bytes drops it
//!    first. A checksum of the whole block goes into the log without reading the block back.
//!
//! Memory (bounded by `tests/allocation.rs`): a tensor of one block takes about 920 bytes in an open collection, 1,100
//! if encoded, and 26 more once it was read: the object 352, its node 96, the node as a file 176, names 130, tables of
//! `State` 140. Each further block takes 4 bytes while its object is one run of exact blocks, otherwise 40, and 24 once
//! it was read. An object that is written to or moved takes about 300 bytes more (`write_state.rs`).

pub(in crate::store) mod block_ranges;
pub(in crate::store) mod blocks;
pub(in crate::store) mod deltas;
pub(in crate::store) mod factors;
pub(in crate::store) mod failed_reads;
pub(in crate::store) mod links;
pub(in crate::store) mod origin;
pub(in crate::store) mod parts;
pub(in crate::store) mod usage;
pub(in crate::store) mod verified_blocks;
pub(in crate::store) mod write_state;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::codec::{self, ladder};
use crate::format::checksum;
use crate::format::log::catalog::{Extent, ObjectEntry};
use crate::format::log::record::Stored;
use crate::model::{Dtype, EntryId, Error, ObjectId, Result, SeedId, TensorId, Tier};
use crate::store::object::blocks::{Block, BlockLayout, Blocks, DIRTY, Run};
use crate::store::object::failed_reads::Unreadable;
use crate::store::object::links::DeltaLink;
use crate::store::object::origin::Origin;
use crate::store::object::parts::Part;
use crate::store::object::usage::{Accesses, FileUse};
use crate::store::object::verified_blocks::Checked;
use crate::store::object::write_state::WriteState;
use crate::store::quota::Use;

/// Owner of blocks, with their locations.
///
/// An object is a tensor, or another part of a file, as the store keeps it: a number of logical bytes, cut into blocks
/// of one length. For each block the object knows the tier, the place of the payload, the checksum and the epoch, which
/// is the sequence number of the record that made the block. The log creates an object by a catalog entry and describes
/// its blocks by records; `State` applies both. A write through a mount puts bytes where no record points and marks the
/// blocks dirty in `write_state`; a flush describes them in a batch.
///
/// Readers hold an `Arc<Object>` and look blocks up under the lock of `blocks`, then read without it. `ReadGate` of the
/// collection keeps the places of blocks in use until they have read. An object that a batch deletes lives on for those
/// who hold it, and its space is freed when the last one is gone.
#[derive(Debug)]
pub struct Object {
    /// The catalog entry at creation. Size and element type may have changed since.
    pub entry: ObjectEntry,
    dimensions: Dimensions,
    /// The outside file that serves as its data file, if any.
    pub origin: Option<Box<Origin>>,
    /// Its blocks. The lock is held for a lookup or a change only, never across I/O.
    pub blocks: RwLock<Blocks>,
    /// The blocks that were verified.
    pub checked: Checked,
    /// Sequence number of the last run. Needed because a run that grew keeps the epoch of its
    /// beginning.
    pub(in crate::store) grown: AtomicU64,
    pub(in crate::store) counts: Counts,
    /// Node of the container's tensor that it belongs to; 0 for none.
    part_of: AtomicU64,
    /// Usage history of its blocks.
    pub accesses: Accesses,
    /// State that most objects never need. Created before the logged size changes.
    write_state: OnceLock<Box<WriteState>>,
}

/// Size and element type of an object, which change.
#[derive(Debug)]
struct Dimensions {
    /// Present logical bytes, as readers see them.
    bytes: AtomicU64,
    /// Logical bytes in the log.
    logged: AtomicU64,
    /// Number of blocks that the log describes.
    described: AtomicU32,
    /// Code of the present element type.
    dtype: AtomicU8,
    /// Whether all blocks were found to be exact, and no other has been set since: a log that changes the element type
    /// often is replayed without a look at each block.
    known_exact: AtomicBool,
}

/// Amounts that follow from the blocks of an object.
#[derive(Debug, Default)]
pub(in crate::store) struct Counts {
    /// Payload bytes of its blocks.
    stored: AtomicU64,
    /// Logical and stored bytes that the collection's use counts for it.
    counted: [AtomicU64; 2],
    /// Number of absent blocks.
    pub absent: AtomicU32,
    /// How often batches have changed its content since it was opened.
    changes: AtomicU32,
}

// A collection has at least one for each tensor.
const _: () = assert!(size_of::<Object>() <= 336);

/// A block, its epoch, and the deltas on it in that epoch.
pub(in crate::store) type OldDeltas = (u32, u64, Arc<[DeltaLink]>);

impl Object {
    /// An object without blocks.
    pub fn new(entry: ObjectEntry) -> Object {
        let layout = BlockLayout { bytes: entry.bytes, block_bytes: entry.block_bytes };
        Object {
            dimensions: Dimensions {
                bytes: AtomicU64::new(entry.bytes),
                logged: AtomicU64::new(entry.bytes),
                described: AtomicU32::new(layout.blocks()),
                dtype: AtomicU8::new(entry.dtype.code()),
                known_exact: AtomicBool::new(false),
            },
            blocks: RwLock::default(),
            checked: Checked::none(),
            grown: AtomicU64::new(0),
            counts: Counts::default(),
            part_of: AtomicU64::new(0),
            accesses: Accesses::default(),
            write_state: OnceLock::new(),
            origin: None,
            entry,
        }
    }

    /// An object without blocks whose data file is an outside file.
    pub(in crate::store) fn of_outside(entry: ObjectEntry, origin: Origin) -> Object {
        Object { origin: Some(Box::new(origin)), ..Object::new(entry) }
    }

    /// An object that no log knows yet, with size 0.
    pub fn draft(block_bytes: u32, extent: Extent) -> Object {
        Object::new(ObjectEntry {
            id: ObjectId(0),
            tensor: TensorId(0),
            seed: SeedId(0),
            creation: 0,
            dtype: Dtype::U8,
            bytes: 0,
            block_bytes,
            extent: Some(extent),
            parent: None,
        })
    }

    /// Present logical bytes, as readers see them.
    pub fn bytes(&self) -> u64 {
        self.dimensions.bytes.load(Ordering::Acquire)
    }

    /// The present division into blocks.
    pub fn layout(&self) -> BlockLayout {
        BlockLayout { bytes: self.bytes(), block_bytes: self.entry.block_bytes }
    }

    /// The division into blocks as recorded in the log.
    pub fn logged_layout(&self) -> BlockLayout {
        BlockLayout {
            bytes: self.dimensions.logged.load(Ordering::Acquire),
            block_bytes: self.entry.block_bytes,
        }
    }

    /// Bytes of all its payloads, deltas and factorization. Unwritten zeros count as if they were
    /// stored.
    pub fn stored(&self) -> u64 {
        let linked =
            self.existing_write_state().map_or(0, |write_state| write_state.linked.load(Ordering::Relaxed));
        self.counts.stored.load(Ordering::Relaxed).wrapping_add(linked)
    }

    /// Bytes of its unwritten zeros, or fewer where these lie among many other blocks.
    pub fn unwritten(&self) -> u64 {
        let layout = self.logged_layout();
        self.blocks.read().parts().map(|(first, part)| part.unwritten(first, layout)).sum()
    }

    /// How often batches have changed its content since it was opened.
    pub fn changes(&self) -> u32 {
        self.counts.changes.load(Ordering::Acquire)
    }

    /// Counts a batch that changed its content.
    pub(in crate::store) fn note_change(&self) {
        self.counts.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether any of its blocks are absent.
    pub fn has_absent(&self) -> bool {
        self.counts.absent.load(Ordering::Relaxed) > 0
    }

    /// The node of the container's tensor that it belongs to.
    pub(in crate::store) fn part_of(&self) -> Option<EntryId> {
        Some(EntryId(self.part_of.load(Ordering::Acquire))).filter(|node| node.0 != 0)
    }

    pub(in crate::store) fn set_part_of(&self, node: EntryId) {
        self.part_of.store(node.0, Ordering::Release);
    }

    /// Sets the use that is counted for the object. Returns the previous one.
    pub(in crate::store) fn counted_as(&self, now: Use) -> Use {
        let [logical, stored] = &self.counts.counted;
        let logical = logical.swap(now.logical, Ordering::Relaxed);
        Use { logical, stored: stored.swap(now.stored, Ordering::Relaxed), files: 0 }
    }

    /// Adds to the bytes of its deltas and factorization, modulo 2^64.
    pub(in crate::store) fn add_linked(&self, change: u64) {
        self.write_state().linked.fetch_add(change, Ordering::Relaxed);
    }

    pub(in crate::store) fn add_stored(&self, change: u64) {
        self.counts.stored.fetch_add(change, Ordering::Relaxed);
    }

    /// Its data file, if it has one.
    pub fn extent(&self) -> Option<Extent> {
        self.entry.extent
    }

    /// Whether anything was written since the last batch.
    pub fn is_dirty(&self) -> bool {
        self.existing_write_state().is_some_and(|write_state| !write_state.dirty.read().is_empty())
            || self.bytes() != self.dimensions.logged.load(Ordering::Acquire)
            || self.described() != self.layout().blocks()
    }

    /// Number of blocks that the log describes. Later ones are dirty or zeros.
    pub fn described(&self) -> u32 {
        self.dimensions.described.load(Ordering::Acquire)
    }

    /// The state of block `index`, including writes since the last batch.
    pub fn block(&self, index: u32, layout: BlockLayout) -> Option<Block> {
        let dirty = self.existing_write_state().map(|write_state| write_state.dirty.read());
        let blocks = self.blocks.read();
        self.look_at(index, layout, dirty.as_deref(), &blocks)
    }

    /// The states of the blocks from `first` on, including writes since the last batch.
    pub(in crate::store) fn look_up(&self, first: u32, layout: BlockLayout, found: &mut [Option<Block>]) {
        let dirty = self.existing_write_state().map(|write_state| write_state.dirty.read());
        let blocks = self.blocks.read();
        for (index, found) in (first..).zip(found) {
            *found = self.look_at(index, layout, dirty.as_deref(), &blocks);
        }
    }

    /// The state of block `index`, including writes since the last batch, and the next block whose
    /// state may differ: see [`Blocks::uniform_from`].
    fn uniform_from(&self, index: u32, layout: BlockLayout) -> (Option<Block>, u32) {
        let dirty = self.existing_write_state().map(|write_state| write_state.dirty.read());
        let blocks = self.blocks.read();
        let block = self.look_at(index, layout, dirty.as_deref(), &blocks);
        let next = dirty.as_ref().and_then(|dirty| dirty.range(index..).next());
        let limit = next.map_or(u32::MAX, |(next, _)| *next);
        let described = self.described();
        // Behind the described blocks are zeros that no batch describes yet.
        let end =
            if index < described { blocks.uniform_from(index, layout).1.min(described) } else { u32::MAX };
        (block, end.min(limit).max(index.saturating_add(1)))
    }

    /// The states of the blocks of `range`, including writes since the last batch. Equal blocks without
    /// a payload form one piece with the state of the first. No lock is held between pieces.
    pub fn pieces(
        &self,
        range: Range<u32>,
        layout: BlockLayout,
    ) -> impl Iterator<Item = (Range<u32>, Option<Block>)> + '_ {
        let mut next = range.start;
        std::iter::from_fn(move || {
            let (block, end) = (next < range.end).then(|| self.uniform_from(next, layout))?;
            let piece = next..end.min(range.end);
            next = piece.end;
            Some((piece, block))
        })
    }

    /// Whether the log has a record of every block.
    pub(in crate::store) fn has_all_blocks(&self) -> bool {
        let layout = self.logged_layout();
        self.pieces(0..layout.blocks(), layout).all(|(_, block)| block.is_some())
    }

    /// The blocks of `range` one by one, except unwritten zeros: these have no payload that could be
    /// corrupt, and are exact in every tier.
    pub fn stored_blocks(
        &self,
        range: Range<u32>,
        layout: BlockLayout,
    ) -> impl Iterator<Item = (u32, Block)> + '_ {
        let pieces = self.pieces(range, layout).filter_map(|(piece, block)| Some((piece, block?)));
        let stored = pieces.filter(|(_, block)| !block.is_unwritten());
        stored.flat_map(|(piece, block)| piece.map(move |index| (index, block)))
    }

    /// The end of the zeros that begin at block `index`; `index` itself if it is not zeros.
    pub fn zeros_from(&self, index: u32, layout: BlockLayout) -> u32 {
        match self.uniform_from(index, layout) {
            (Some(block), end) if block.is_unwritten() => end.min(layout.blocks()),
            _ => index,
        }
    }

    /// Counts an access of the blocks of `range` that have payloads.
    pub fn count_use(&self, range: Range<u32>, file_use: FileUse) {
        let blocks = self.layout().blocks();
        let used: SmallVec<[Range<u32>; 4]> = self.blocks.read().with_payloads(range).collect();
        used.into_iter().for_each(|range| self.accesses.count(range, blocks, file_use));
    }

    #[inline]
    fn look_at(
        &self,
        index: u32,
        layout: BlockLayout,
        dirty: Option<&BTreeMap<u32, Stored>>,
        blocks: &Blocks,
    ) -> Option<Block> {
        if let Some(written) = dirty.and_then(|dirty| dirty.get(&index)) {
            let stored = Stored { len: layout.len(index) as u32, checksum: 0, ..*written };
            return Some(Block { epoch: DIRTY, stored, since: 0 });
        }
        if index >= self.described() {
            return Some(Block { epoch: DIRTY, stored: Stored::ABSENT, since: 0 });
        }
        blocks.get(index, layout)
    }

    /// Sets the present size. The caller adjusts the blocks.
    pub(in crate::store) fn set_bytes(&self, bytes: u64) {
        self.dimensions.bytes.store(bytes, Ordering::Release);
    }

    /// Removes the described blocks from `count` on. Returns their payloads in tier files.
    pub(in crate::store) fn truncate(&self, count: u32) -> Vec<Stored> {
        let layout = self.layout();
        let mut blocks = self.blocks.write();
        let (mut gone, mut absent) = (Vec::new(), 0);
        for (_, stored) in replaced(&blocks, count..blocks.count(), layout) {
            absent += u32::from(stored.is_absent());
            gone.extend(Some(stored).filter(Stored::has_slot));
        }
        self.recounted(&mut blocks, count..u32::MAX, |blocks| blocks.truncate(count, layout));
        self.dimensions.described.fetch_min(count, Ordering::AcqRel);
        self.counts.absent.fetch_sub(absent, Ordering::Relaxed);
        gone
    }

    /// Applies a size from the log. Blocks added by it stay dirty or zeros until
    /// [`batch_ended`](Self::batch_ended), because later records of the batch describe them. Returns
    /// the payloads in tier files that were dropped.
    pub(in crate::store) fn resized(&self, bytes: u64) -> Vec<Stored> {
        let layout = BlockLayout { bytes, block_bytes: self.entry.block_bytes };
        let before = self.logged_layout().blocks().max(self.described());
        let gone = if layout.blocks() < before { self.truncate(layout.blocks()) } else { Vec::new() };
        if let Some(origin) = &self.origin {
            origin.truncate(layout.blocks());
        }
        self.set_bytes(bytes);
        let logged = self.logged_layout();
        if bytes != self.dimensions.logged.load(Ordering::Acquire) {
            // Must exist before `logged` changes: it starts from the logged size.
            let write_state = self.write_state();
            self.dimensions.logged.store(bytes, Ordering::Release);
            // If the lock is taken, a commit holds it and has raised these already.
            if let Some(mut writing) = write_state.writing.try_lock() {
                writing.used = writing.used.max(bytes);
                writing.stale = writing.stale.max(writing.used);
            }
        }
        // The last block of the smaller size may have another length now.
        let changed = logged.blocks().min(layout.blocks()).saturating_sub(1)..u32::MAX;
        let blocks = self.blocks.read();
        let before = blocks.counted_in(&changed, logged);
        self.add_stored(blocks.counted_in(&changed, layout).wrapping_sub(before));
        drop(blocks);
        gone
    }

    /// Called when the batch that resized the object has been applied.
    pub(in crate::store) fn batch_ended(&self) {
        self.dimensions.described.store(self.logged_layout().blocks(), Ordering::Release);
    }

    /// Applies a run of exact blocks. Returns the payloads in tier files that it replaces.
    pub(in crate::store) fn set_run(&self, first: u32, run: Run) -> Result<Vec<Stored>> {
        let layout = self.layout();
        let end = u64::from(first) + run.checksums.len() as u64;
        let is_inside = u64::from(first) < end && end <= u64::from(layout.blocks());
        if !is_inside || !lies_in_a_file(run.offset, layout.bytes) {
            return Err(Error::corrupt(format!(
                "a run of object {} ends at block {end}, past the end of the object or of its data file",
                self.entry.id
            )));
        }
        if self.entry.extent.is_none() {
            return Err(Error::corrupt(format!(
                "a run names object {}, which has no data file",
                self.entry.id
            )));
        }
        let range = first..end as u32;
        let mut blocks = self.blocks.write();
        self.checked.clear_range(&range);
        let before = self.replace(&blocks, range.clone(), layout);
        let sequence = run.epoch;
        self.recounted(&mut blocks, range, |blocks| blocks.set_run(first, run, layout));
        self.grown.fetch_max(sequence, Ordering::Relaxed);
        Ok(before)
    }

    /// Applies blocks without a payload. Returns the payloads in tier files and the deltas that they
    /// replace.
    pub(in crate::store) fn set_empty(
        &self,
        range: Range<u32>,
        block: Block,
    ) -> Result<(Vec<Stored>, Vec<OldDeltas>)> {
        let (layout, id) = (self.layout(), self.entry.id);
        if range.is_empty() || range.end > layout.blocks() {
            let blocks = layout.blocks();
            return Err(Error::corrupt(format!(
                "a record names blocks {range:?} of object {id}, which has {blocks}"
            )));
        }
        let place = self.extent().filter(|_| self.origin.is_none()).map(|extent| {
            let bytes = layout.bytes_of(&range);
            (extent.offset.saturating_add(layout.start(range.start)), bytes)
        });
        let is_there = |(offset, bytes)| offset == block.stored.offset && lies_in_a_file(offset, bytes);
        if block.stored.in_data && !place.is_some_and(is_there) {
            return Err(Error::corrupt(format!("a hole of object {id} does not lie in its data file")));
        }
        let mut blocks = self.blocks.write();
        self.checked.clear_range(&range);
        self.note_tier(block.stored.tier);
        let mut deltas = Vec::new();
        if self.existing_write_state().is_some() {
            let known = blocks
                .pieces_in(range.clone(), layout)
                .filter_map(|(piece, block)| Some((piece.start, block?)));
            let ended = known.filter_map(|(index, before)| {
                Some((index, before.epoch, self.end_deltas(index, before.epoch)?))
            });
            deltas.extend(ended);
        }
        let before = self.replace(&blocks, range.clone(), layout);
        let changed = range.clone();
        self.recounted(&mut blocks, changed, |blocks| blocks.set_uniform(range, block, layout));
        if block.stored.in_data {
            self.grown.fetch_max(block.epoch, Ordering::Relaxed);
        }
        Ok((before, deltas))
    }

    /// The payloads in tier files of blocks that are about to be replaced. Stops counting these blocks
    /// as absent.
    fn replace(&self, blocks: &Blocks, range: Range<u32>, layout: BlockLayout) -> Vec<Stored> {
        let (mut slots, mut absent) = (Vec::new(), 0);
        for (_, stored) in replaced(blocks, range, layout) {
            absent += u32::from(stored.is_absent());
            slots.extend(Some(stored).filter(Stored::has_slot));
        }
        self.counts.absent.fetch_sub(absent, Ordering::Relaxed);
        slots
    }

    /// The present element type.
    pub fn dtype(&self) -> Dtype {
        Dtype::from_code(self.dimensions.dtype.load(Ordering::Acquire)).unwrap_or(self.entry.dtype)
    }

    /// The present catalog entry.
    pub fn entry_now(&self) -> ObjectEntry {
        let bytes = self.dimensions.logged.load(Ordering::Acquire);
        ObjectEntry { bytes, dtype: self.dtype(), ..self.entry.clone() }
    }

    /// Blocks writes to the object and moves of its blocks.
    pub fn hold(&self) -> impl Drop + '_ {
        self.write_state().writing.lock()
    }

    /// Whether the element type can change to `dtype`: every block is exact, and the sizes are
    /// multiples of the element.
    pub fn can_be_of(&self, dtype: Dtype) -> bool {
        self.dtype() == dtype
            || (self.logged_layout().bytes.is_multiple_of(dtype.bytes())
                && u64::from(self.entry.block_bytes).is_multiple_of(dtype.bytes())
                && self.is_exact())
    }

    fn is_exact(&self) -> bool {
        let known = &self.dimensions.known_exact;
        known.load(Ordering::Acquire) || {
            let blocks = self.blocks.read();
            let is_exact = blocks.parts().all(|(_, part)| part.is_exact());
            known.store(is_exact, Ordering::Release);
            is_exact
        }
    }

    /// Sets one block.
    pub(in crate::store) fn set_block(&self, index: u32, block: Block, layout: BlockLayout) -> Result<()> {
        let mut blocks = self.blocks.write();
        self.note_tier(block.stored.tier);
        blocks.set(index, block, layout)
    }

    /// Notes the tier of blocks that are about to be set. The caller holds the lock of the blocks.
    pub(in crate::store) fn note_tier(&self, tier: Tier) {
        if tier != Tier::Exact && self.dimensions.known_exact.load(Ordering::Relaxed) {
            self.dimensions.known_exact.store(false, Ordering::Release);
        }
    }

    /// Applies an element type from the log. `Corrupt` if the object cannot have it.
    pub(in crate::store) fn retyped(&self, dtype: Dtype) -> Result<()> {
        if !self.can_be_of(dtype) {
            let (id, before) = (self.entry.id, self.dtype());
            return Err(Error::corrupt(format!("object {id} cannot change from {before} to {dtype}")));
        }
        self.dimensions.dtype.store(dtype.code(), Ordering::Release);
        Ok(())
    }

    /// The CRC32C of the `len` bytes at `at`, if they are whole exact blocks in the data file with checksums that cover
    /// them. It stays valid while nobody writes to the object.
    pub fn known_checksum(&self, at: u64, len: usize) -> Option<u32> {
        let layout = self.layout();
        let (first, end) = (layout.index(at), at.checked_add(len as u64)?);
        if layout.start(first) != at {
            return None;
        }
        let (mut found, mut at) = (0, at);
        for index in first..layout.blocks() {
            let len = layout.len(index);
            // Of a dirty block a lookup shows the place, and not the bytes that the checksum covers.
            let dirty = || self.existing_write_state()?.dirty.read().get(&index).copied();
            let stored = dirty().or_else(|| Some(self.block(index, layout)?.stored))?;
            if at + len as u64 > end
                || !stored.in_data
                || stored.tier != Tier::Exact
                || stored.len as usize != len
            {
                return None;
            }
            found =
                if index == first { stored.checksum } else { checksum::joined(found, stored.checksum, len) };
            at += len as u64;
            if at == end {
                return Some(found);
            }
        }
        None
    }

    /// Its blocks that cannot be read, as far as that was found since the store was opened.
    pub fn unreadable(&self) -> Option<Unreadable> {
        self.existing_write_state()?.failed.present(|index| self.block(index, self.layout()))
    }

    /// The write state, created on first use.
    pub(in crate::store) fn write_state(&self) -> &WriteState {
        self.write_state
            .get_or_init(|| Box::new(WriteState::new(self.dimensions.logged.load(Ordering::Acquire))))
    }

    /// The write state, if the object has one.
    pub(in crate::store) fn existing_write_state(&self) -> Option<&WriteState> {
        self.write_state.get().map(Box::as_ref)
    }

    /// Location of a block in the outside file; `None` if the block was written, or there is no outside
    /// file.
    pub fn origin_place(&self, index: u32) -> Option<Stored> {
        let checksum = self.origin.as_ref()?.checksum(index)?;
        let (extent, layout) = (self.extent()?, self.logged_layout());
        let place = Stored::in_extent(extent.offset + layout.start(index));
        Some(Stored { checksum, len: layout.len(index) as u32, ..place })
    }

    /// Checks that a block that the log moves into an outside file is there.
    pub(in crate::store) fn check_extent(&self, index: u32, block: &Block) -> Result<()> {
        if self.origin.is_some() && block.stored.in_data && self.origin_place(index) != Some(block.stored) {
            let id = self.entry.id;
            return Err(Error::corrupt(format!(
                "block {index} of object {id} lies past the end of its outside file"
            )));
        }
        Ok(())
    }

    /// Payload bytes of a block in a tier; for a packed block, the most that it can have.
    pub fn payload_len(&self, index: u32, tier: Tier) -> Result<usize> {
        let (logical, dtype) = (self.layout().len(index), self.dtype());
        let width = dtype.bytes() as usize;
        match tier {
            Tier::Absent => Ok(0),
            Tier::Exact => Ok(logical),
            Tier::Packed if logical.is_multiple_of(width) && ladder::is_encodable(dtype, logical / width) => {
                Ok(logical)
            }
            _ if !dtype.is_quantizable() || !logical.is_multiple_of(width) => {
                let id = self.entry.id;
                Err(Error::corrupt(format!(
                    "block {index} of object {id}, {logical} bytes of {dtype}, in tier {tier}"
                )))
            }
            _ => Ok(codec::payload_len(tier, logical / width).unwrap_or(usize::MAX)),
        }
    }

    /// Changes blocks of a range, and counts their payload bytes.
    fn recounted(&self, blocks: &mut Blocks, range: Range<u32>, change: impl FnOnce(&mut Blocks)) {
        let logged = self.logged_layout();
        let before = blocks.counted_in(&range, logged);
        change(blocks);
        self.add_stored(blocks.counted_in(&range, logged).wrapping_sub(before));
    }
}

/// The blocks of a range that have entries of their own. Blocks of runs are in the data file.
fn replaced(blocks: &Blocks, range: Range<u32>, layout: BlockLayout) -> impl Iterator<Item = (u32, Stored)> {
    let dense = blocks.parts_in(range.clone()).filter(|(_, part)| matches!(part, Part::Dense(_)));
    dense.flat_map(move |(first, part)| {
        let range = first.max(range.start)..(first + part.count()).min(range.end);
        range.filter_map(move |index| Some((index, part.block(index, first, layout)?.stored)))
    })
}

/// Whether `bytes` bytes at `offset` are within the largest possible file.
pub(in crate::store) fn lies_in_a_file(offset: u64, bytes: u64) -> bool {
    offset.checked_add(bytes).is_some_and(|end| end <= i64::MAX as u64)
}

/// Whether only the location of a block changes: it keeps its payload and its deltas.
pub(in crate::store) fn is_relocation(before: &Stored, after: &Stored) -> bool {
    let payload = |stored: &Stored| (stored.tier, stored.checksum, stored.len);
    let place = |stored: &Stored| (stored.in_data, stored.offset);
    before.len > 0 && payload(before) == payload(after) && place(before) != place(after)
}
