//! Copies between open files that share blocks.
//!
//! A copy to the end of a file gets the blocks of its source as drafts in another name of their data file
//! (`store/io/copy.rs`): nothing is read and nothing is stored. The flush then records them as it records other drafts. A
//! plain file keeps the division of its source, whose checksums are known; a container is cut at its tensors, which mostly
//! are those of the source.

use std::ops::Range;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use crate::format::log::catalog::Extent;
use crate::model::{Error, ErrorKind, Result};
use crate::store::{GATHERED_BYTES_MAX, LinkedFile, OpenObject, now_nanoseconds};
use crate::vfs::open::file::OpenFile;
use crate::vfs::open::layout::Layout;

/// The least bytes of blocks that are shared, unless these are all that is copied.
const RUN_BYTES_LEAST: u64 = 1 << 20;

/// The begin of a range of a file that is copied.
pub enum CopyStep {
    /// Blocks that a copy can have where they lie.
    Blocks(SharedBlocks),
    /// So many bytes that were never written.
    Zeros(u64),
    /// So many bytes that have to be read.
    Bytes(u64),
}

/// Whole blocks of objects that lie in one data file, one after the other in a file.
pub struct SharedBlocks {
    objects: Vec<(OpenObject, Range<u32>)>,
    bytes: u64,
}

impl SharedBlocks {
    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl OpenFile {
    /// The first step of a copy of `range`, which is not empty and within the file.
    pub fn copy_step(&self, range: Range<u64>) -> Result<CopyStep> {
        let layout = self.layout.read();
        layout.check()?;
        let all = range.end - range.start;
        // Programs see other bytes than are stored, or in another order.
        if layout.assembly.is_some() || self.is_index() {
            return Ok(CopyStep::Bytes(all));
        }
        let pieces = layout.pieces(range).filter_map(|piece| {
            let open = layout.objects.get(piece.segment)?;
            Some((open.clone(), piece.range))
        });
        let pieces: Vec<(OpenObject, Range<u64>)> = pieces.collect();
        drop(layout);
        let blocks = shared_blocks(&pieces);
        // Each further name of a data file costs an inode, records and a pause of all writers.
        if blocks.bytes >= RUN_BYTES_LEAST || blocks.bytes == all && all > GATHERED_BYTES_MAX {
            return Ok(CopyStep::Blocks(blocks));
        }
        let Some((open, range)) = pieces.first() else { return Ok(CopyStep::Bytes(all)) };
        Ok(rest_of_step(open, range, blocks.bytes))
    }

    /// Gives the end of the file the blocks of another, after zeros up to `at` where it is shorter. Returns the number of
    /// bytes: fewer than all where the source has changed, 0 where the file goes on behind `at` or cannot share them.
    pub fn append_blocks(&self, at: u64, blocks: &SharedBlocks) -> Result<u64> {
        self.check_writable()?;
        let Some((first, range)) = blocks.objects.first() else { return Ok(0) };
        if at < self.bytes() {
            return Ok(0);
        }
        // A link is made without any other lock.
        let goes_on = |layout: &Layout| layout.objects.last()?.goes_on_with(first, range.start);
        let known = Some(goes_on(&self.layout.read())).flatten().filter(|_| at == self.bytes());
        let linked = match known {
            Some(_) => None,
            None => self.collection.link_of(first)?,
        };
        let mut layout = self.locked_to_grow(u64::MAX, RwLock::write)?;
        layout.check()?;
        let before = layout.bytes();
        let number = match &linked {
            Some(linked) => Some(linked.number()),
            None => known.filter(|number| before == at && goes_on(&layout) == Some(*number)),
        };
        let Some(number) = number.filter(|_| at >= before) else { return Ok(0) };
        self.refuse_part()?;
        self.refuse_assembled(&layout)?;
        let end = at.checked_add(blocks.bytes).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or_else(|| Error::new(ErrorKind::TooLarge, "a file past 2^63 - 1 bytes"))?;
        self.check_not_needed(&layout, at..end)?;
        self.grown.lock().count(end)?;
        let appended = self.append_drafts(&mut layout, at, blocks, number);
        let last = layout.objects.last().and_then(|last| last.object().extent());
        if last.is_some_and(|extent| extent.file == number) {
            linked.into_iter().for_each(LinkedFile::leave);
        }
        self.grown.lock().count(layout.bytes())?;
        if layout.bytes() == before {
            return appended.map(|()| 0);
        }
        self.written.from.fetch_min(before, Ordering::AcqRel);
        self.written.note_head(at, &[]);
        self.written.end.fetch_max(layout.bytes(), Ordering::AcqRel);
        layout.mtime = Some(now_nanoseconds());
        self.flags.changed.store(true, Ordering::Release);
        self.flags.told.store(false, Ordering::Release);
        let bytes = layout.bytes().saturating_sub(at);
        appended.map(|()| bytes)
    }

    /// Adds drafts with the blocks, which lie in the data file `number`. After an error the file may end in zeros.
    fn append_drafts(
        &self,
        layout: &mut Layout,
        at: u64,
        SharedBlocks { objects, .. }: &SharedBlocks,
        number: u64,
    ) -> Result<()> {
        let mut drafts = Vec::with_capacity(objects.len());
        for (open, range) in objects {
            let draft = open.copied(range.clone(), &self.collection, number, self.verify);
            let draft = draft.inspect_err(|_| self.discard_drafts(&layout.objects))?;
            let Some(draft) = draft else { break };
            self.note_draft(draft.object());
            let is_whole = draft.bytes() == bytes_of(open, range);
            drafts.push(draft);
            if !is_whole {
                // A write has moved the next block.
                break;
            }
        }
        if drafts.is_empty() {
            return Ok(());
        }
        self.prepare_end(layout, at).inspect_err(|_| self.discard_drafts(&layout.objects))?;
        layout.drafts += drafts.len();
        layout.objects.extend(drafts);
        layout.shared = layout.objects.len();
        layout.is_other = true;
        layout.refresh()
    }

    /// Extends the file with zeros to `at`, and gives all of it places that a log can name.
    fn prepare_end(&self, layout: &mut Layout, at: u64) -> Result<()> {
        if at > layout.bytes() {
            self.grow_counted(layout, at)?;
        }
        let is_in_memory = layout.objects.iter().any(OpenObject::is_in_memory);
        if is_in_memory { self.move_to_data_file(layout) } else { Ok(()) }
    }
}

fn bytes_of(open: &OpenObject, blocks: &Range<u32>) -> u64 {
    open.object().logged_layout().bytes_of(blocks)
}

/// The blocks at the begin of consecutive ranges of objects that a copy can have where they lie.
fn shared_blocks(pieces: &[(OpenObject, Range<u64>)]) -> SharedBlocks {
    let mut shared = SharedBlocks { objects: Vec::new(), bytes: 0 };
    let (mut last, mut has_bytes): (Option<Extent>, bool) = (None, false);
    for (open, range) in pieces {
        let layout = open.object().logged_layout();
        let first = layout.index(range.start);
        let Some(extent) = open.object().extent() else { break };
        // The objects of a joined file may lie there in another order.
        let is_behind = |last: Extent| last.file == extent.file && last.offset <= extent.offset;
        if layout.start(first) != range.start || !last.is_none_or(is_behind) {
            break;
        }
        last = extent.offset.checked_add(layout.bytes).map(|offset| Extent { offset, ..extent });
        // A block that ends behind the range stays out.
        let end = if range.end >= layout.bytes { layout.blocks() } else { layout.index(range.end) };
        let (until, found) = open.shareable(first..end);
        if until > first {
            shared.bytes += layout.bytes_of(&(first..until));
            shared.objects.push((open.clone(), first..until));
        }
        has_bytes |= found;
        if until < layout.blocks() {
            break;
        }
    }
    if has_bytes { shared } else { SharedBlocks { objects: Vec::new(), bytes: 0 } }
}

/// The bytes that the range of an object begins with, if `shared` of them are too few to be shared.
fn rest_of_step(open: &OpenObject, range: &Range<u64>, shared: u64) -> CopyStep {
    let object = open.object();
    let layout = object.layout();
    let (first, end) = (layout.index(range.start), layout.index(range.end - 1).saturating_add(1));
    let zeros = layout.start(object.zeros_from(first, layout).min(end)).min(range.end);
    if zeros > range.start {
        return CopyStep::Zeros(zeros - range.start);
    }
    // Up to the next block that may be shared or is zeros, or as far as one step copies.
    let step = range.end.min(range.start.saturating_add(shared).saturating_add(RUN_BYTES_LEAST));
    let end = end.min(layout.index(step - 1).saturating_add(1));
    let mut next = first + 1;
    let from = layout.index(range.start + shared);
    while next < end && (next <= from || !begins_step(open, next)) {
        next += 1;
    }
    CopyStep::Bytes(layout.start(next).min(range.end) - range.start)
}

/// Whether a block can be shared or is zeros.
fn begins_step(open: &OpenObject, index: u32) -> bool {
    let object = open.object();
    open.shareable(index..index + 1).0 > index || object.zeros_from(index, object.layout()) > index
}
