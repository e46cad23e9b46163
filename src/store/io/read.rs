//! Reads blocks: fetches, verifies and decodes them into the caller's buffer.
//!
//! Adjacent payloads are fetched with one call. A whole exact block is read directly into the caller's
//! buffer; an encoded block is decoded into it. A block is verified whenever its whole payload is read,
//! and always before its first use.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use crate::codec;
use crate::format::log::record::Stored;
use crate::model::{Error, ErrorKind, GROUP_LEN, Result, Tier};
use crate::store::clones::fetched_outside;
use crate::store::collection::Collection;
use crate::store::collection::lineage::broken;
use crate::store::collection::open_object::{OpenObject, Verify};
use crate::store::collection::read_gate::is_reading;
use crate::store::disk::File;
use crate::store::disk::remote::RemoteError;
use crate::store::io::buffer::PageBuffer;
use crate::store::io::packed_blocks::decode_packed;
use crate::store::object::Object;
use crate::store::object::blocks::{Block, DIRTY};
use crate::store::upstream::Upstream;
use crate::trace;

/// Number of blocks looked up at a time.
const LOOKED_UP: usize = 64;
/// Maximum bytes of payloads fetched with one call into scratch space.
const FETCH_BYTES_MAX: u64 = 1 << 20;

thread_local! {
    /// Payloads to be decoded, and blocks that are wanted in part. Reused, so that reads allocate
    /// nothing.
    static SCRATCH: RefCell<(PageBuffer, PageBuffer)> =
        const { RefCell::new((PageBuffer::new(), PageBuffer::new())) };
}

impl OpenObject {
    /// Reads the bytes from `from` on into `out`; the range must be inside the object.
    pub fn read(&self, from: u64, out: &mut [u8]) -> Result<()> {
        if from.checked_add(out.len() as u64).is_none_or(|end| end > self.bytes()) {
            return Err(Error::invalid("a range past the end of an object"));
        }
        let read = fetched_outside(|| self.read_here(from, out));
        if let Err(error) = &read
            && matches!(error.kind(), ErrorKind::Io | ErrorKind::Gone | ErrorKind::Forbidden)
        {
            if self.read_pinned_instead(from, out) {
                return Ok(());
            }
            self.note_damage(self.object.layout().index(from), error);
        }
        read
    }

    /// [`read`](Self::read), for programs: corrupt blocks are read from other collections too, if these have them. The
    /// caller holds no lock of a collection.
    pub fn read_or_gather(&self, from: u64, out: &mut [u8]) -> Result<()> {
        let Err(error) = self.read(from, out) else { return Ok(()) };
        if error.kind() == ErrorKind::Corrupt
            && !is_reading()
            && let Some(rebuilder) = self.collection.services.rebuilder()
        {
            let layout = self.object.layout();
            let last = layout.index(from + (out.len() as u64).max(1) - 1);
            if rebuilder.gather(self, layout.index(from)..last + 1) {
                return self.read(from, out);
            }
        }
        Err(error)
    }

    /// The same, with the gate.
    pub(in crate::store) fn read_here(&self, from: u64, out: &mut [u8]) -> Result<()> {
        let _reading = self.collection.gate.begin();
        let layout = self.object.layout();
        let mut found = [None::<Block>; LOOKED_UP];
        let mut done = 0;
        while done < out.len() {
            let at = from + done as u64;
            let first = layout.index(at);
            let last = layout.index(from + out.len() as u64 - 1);
            let count = ((last - first) as usize + 1).min(LOOKED_UP);
            self.object.look_up(first, layout, &mut found[..count]);
            let end = (layout.start(first + count as u32 - 1) + u64::from(layout.block_bytes))
                .min(from + out.len() as u64);
            let here = &mut out[done..(end - from) as usize];
            let found = &found[..count];
            let is_dirty = found.iter().flatten().any(|block| block.epoch == DIRTY);
            let _whole = is_dirty.then(|| self.object.write_state().in_place.read());
            match self.read_blocks(first, found, at, here) {
                Err(error) if error.kind() == ErrorKind::Corrupt => self.read_each(first, found, at, here)?,
                read => {
                    read?;
                    // A dirty block says nothing of the one that it hides.
                    if !is_dirty {
                        self.note_readable(first..=first + count as u32 - 1);
                    }
                }
            }
            done = (end - from) as usize;
        }
        Ok(())
    }

    /// The decoded content of an encoded block, without its deltas.
    pub(in crate::store) fn read_base(&self, index: u32, block: &Block, out: &mut [u8]) -> Result<()> {
        let _reading = self.collection.gate.begin();
        SCRATCH.with_borrow_mut(|(payload, _)| {
            let payload = payload.sized(block.stored.len as usize);
            self.fetch(index, &block.stored, 0, payload)?;
            self.verify(index, &block.stored, payload)?;
            self.decode(index, &block.stored, payload, out)
        })
    }

    /// Reads `out` from offset `at` on. `found` are the blocks from `first` on.
    pub(in crate::store) fn read_blocks(
        &self,
        first: u32,
        found: &[Option<Block>],
        at: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let layout = self.object.layout();
        let mut rest = out;
        let mut at = at;
        let mut place = 0;
        while !rest.is_empty() {
            let index = first + place as u32;
            let block = self.known(index, found.get(place).copied().flatten())?;
            let mut joined = 1;
            while let Some(Some(next)) = found.get(place + joined) {
                let Some(Some(before)) = found.get(place + joined - 1) else { break };
                let fetched =
                    next.stored.offset.saturating_sub(block.stored.offset) + u64::from(next.stored.len);
                if !follows(&before.stored, &next.stored)
                    || (block.stored.tier != Tier::Exact && fetched > FETCH_BYTES_MAX)
                {
                    break;
                }
                self.known(index + joined as u32, Some(*next))?;
                joined += 1;
            }
            let end = layout.start(index + joined as u32 - 1) + layout.len(index + joined as u32 - 1) as u64;
            let len = ((end - at) as usize).min(rest.len());
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            let blocks = &found[place..place + joined];
            trace::note_tier(block.stored.tier);
            match block.stored.tier {
                _ if block.is_unwritten() => here.fill(0),
                Tier::Absent if block.stored.is_lost() => return Err(self.lost(index)),
                Tier::Absent if self.rebuild(index, &block, at, here)? => {}
                Tier::Absent => return Err(self.absent(index)),
                Tier::Exact => self.read_exact(index, blocks, at, here)?,
                _ => self.read_encoded(index, blocks, at, here)?,
            }
            rest = after;
            at += len as u64;
            place += joined;
        }
        Ok(())
    }

    /// Reads exact blocks with adjacent payloads.
    fn read_exact(&self, first: u32, blocks: &[Option<Block>], at: u64, out: &mut [u8]) -> Result<()> {
        let is_extent = blocks.first().is_some_and(|block| block.is_some_and(|block| block.stored.in_data));
        if self.object.origin.is_none() || !is_extent {
            return self.read_exact_as(self.verify, first, blocks, at, out);
        }
        if self.is_extent_untouched() {
            self.read_exact_as(self.verify, first, blocks, at, out)?;
            // Checked after the read, to notice a change during it.
            if self.is_extent_untouched() {
                return Ok(());
            }
        }
        self.read_exact_as(Verify::Always, first, blocks, at, out)
    }

    fn read_exact_as(
        &self,
        verify: Verify,
        first: u32,
        blocks: &[Option<Block>],
        at: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let layout = self.object.layout();
        let end = at + out.len() as u64;
        let last = first + blocks.len() as u32 - 1;
        let is_whole =
            |index: u32| at <= layout.start(index) && layout.start(index) + layout.len(index) as u64 <= end;
        // A part of a block can be read alone only once the block was verified.
        let mut from = 0;
        let mut until = out.len();
        let mut edges = [None, None];
        for (edge, index) in edges.iter_mut().zip([first, last]) {
            let Some(Some(block)) = blocks.get((index - first) as usize) else { continue };
            let is_checked = verify == Verify::First && self.object.checked.get(index);
            // Bytes that nobody has read have no checksum. Their source gives each read the same version.
            let is_alone = is_checked || (self.is_unread && block.stored.in_data);
            if is_whole(index) || block.epoch == DIRTY || is_alone || from >= until {
                continue;
            }
            let inside = overlap(layout.start(index), layout.len(index), at, end);
            let place = (layout.start(index) + inside.start as u64 - at) as usize;
            if index == first {
                from = place + inside.len();
            } else {
                until = place;
            }
            *edge = Some((index, block, inside, place));
        }
        // The blocks between come first: by a long read a remote knows that a reader wants all.
        let begin = layout.index(at + from as u64);
        if from < until
            && let Some(Some(block)) = blocks.get((begin - first) as usize)
        {
            let target = &mut out[from..until];
            self.fetch(begin, &block.stored, at + from as u64 - layout.start(begin), target)?;
            for index in begin..=layout.index(at + until as u64 - 1) {
                let Some(Some(block)) = blocks.get((index - first) as usize) else { continue };
                if is_whole(index) && block.epoch != DIRTY {
                    let place = (layout.start(index) - at) as usize;
                    let payload = &out[place..place + layout.len(index)];
                    self.verify(index, &block.stored, payload)?;
                }
            }
        }
        for (index, block, inside, place) in edges.into_iter().flatten() {
            let target = &mut out[place..place + inside.len()];
            SCRATCH.with_borrow_mut(|(_, whole)| {
                let whole = whole.sized(layout.len(index));
                self.fetch(index, &block.stored, 0, whole)?;
                self.verify(index, &block.stored, whole)?;
                target.copy_from_slice(&whole[inside.clone()]);
                Ok::<(), Error>(())
            })?;
        }
        Ok(())
    }

    /// Reads encoded blocks of one tier with adjacent payloads.
    fn read_encoded(&self, first: u32, blocks: &[Option<Block>], at: u64, out: &mut [u8]) -> Result<()> {
        let layout = self.object.layout();
        let end = at + out.len() as u64;
        let (Some(Some(head)), Some(Some(tail))) = (blocks.first(), blocks.last()) else { return Ok(()) };
        let _span = trace::decode(head.stored.tier, out.len() as u64);
        SCRATCH.with_borrow_mut(|(payloads, part)| {
            let inside = overlap(layout.start(first), layout.len(first), at, end);
            let is_bare = self.object.deltas(first, head.epoch).is_none();
            if blocks.len() == 1 && inside.len() < layout.len(first) && self.is_checked(first) && is_bare {
                if head.stored.tier == Tier::Packed {
                    return self.read_packed_part(first, &head.stored, inside, payloads, part, out);
                }
                return self.read_groups(first, &head.stored, inside, payloads, part, out);
            }
            let fetched = tail.stored.offset + u64::from(tail.stored.len) - head.stored.offset;
            let payloads = payloads.sized(fetched as usize);
            self.fetch(first, &head.stored, 0, payloads)?;
            for (place, block) in blocks.iter().flatten().enumerate() {
                let index = first + place as u32;
                let begin = (block.stored.offset - head.stored.offset) as usize;
                let payload = &payloads[begin..begin + block.stored.len as usize];
                self.verify(index, &block.stored, payload)?;
                let inside = overlap(layout.start(index), layout.len(index), at, end);
                let place = (layout.start(index) + inside.start as u64 - at) as usize;
                let target = &mut out[place..place + inside.len()];
                if inside.len() == layout.len(index) {
                    self.decode(index, &block.stored, payload, target)?;
                    self.apply_deltas(index, block, target)?;
                } else {
                    let whole = part.sized(layout.len(index));
                    self.decode(index, &block.stored, payload, whole)?;
                    self.apply_deltas(index, block, whole)?;
                    target.copy_from_slice(&whole[inside]);
                }
            }
            Ok(())
        })
    }

    /// Reads a part of one verified encoded block: fetches only its groups.
    fn read_groups(
        &self,
        index: u32,
        stored: &Stored,
        inside: Range<usize>,
        payload: &mut PageBuffer,
        part: &mut PageBuffer,
        out: &mut [u8],
    ) -> Result<()> {
        let width = self.object.dtype().bytes() as usize;
        let group_bytes = GROUP_LEN * width;
        let first_group = inside.start / group_bytes;
        let begin = first_group * group_bytes;
        let end = inside.end.next_multiple_of(group_bytes).min(self.object.layout().len(index));
        let elements = (end - begin) / width;
        let lens =
            codec::group_offset(stored.tier, first_group).zip(codec::payload_len(stored.tier, elements));
        let (skip, len) = lens.ok_or_else(|| Error::invalid("groups of a block without codes"))?;
        let payload = payload.sized(len);
        self.fetch(index, stored, skip as u64, payload)?;
        let part = part.sized(end - begin);
        codec::decode_groups(stored.tier, self.object.dtype(), payload, part)
            .map_err(|error| error.at(self.place(index, stored)))?;
        out.copy_from_slice(&part[inside.start - begin..inside.end - begin]);
        Ok(())
    }

    pub(in crate::store) fn decode(
        &self,
        index: u32,
        stored: &Stored,
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        let dtype = self.object.dtype();
        let elements = out.len() / dtype.bytes() as usize;
        let decoded = match stored.tier {
            Tier::Packed => decode_packed(dtype, elements, payload, 0..elements, out),
            tier => codec::decode(tier, dtype, payload, elements, out),
        };
        decoded.map_err(|error| self.report_corruption(index, stored, error.at(self.place(index, stored))))
    }

    pub(in crate::store) fn fetch(
        &self,
        index: u32,
        stored: &Stored,
        skip: u64,
        out: &mut [u8],
    ) -> Result<()> {
        self.fetched(stored, skip, out).map_err(|error| self.report_corruption(index, stored, error))
    }

    /// Drops a copy of a payload that the disk may have. Returns whether another read may differ.
    pub(in crate::store) fn refetch(&self, stored: &Stored) -> bool {
        if let Some(Ok(extent)) = &self.extent
            && let Some(far) = extent.far().filter(|_| stored.in_data)
        {
            return far.refetch(stored.offset, u64::from(stored.len)).unwrap_or(false);
        }
        let files = &self.collection.files;
        let path = files.path_of_payload(&self.object, stored);
        let refetch =
            |upstream: &Arc<dyn Upstream>| upstream.refetch(&path, stored.offset, u64::from(stored.len));
        files.upstream().is_some_and(|upstream| refetch(upstream).unwrap_or(false))
    }

    /// The file that contains a payload.
    pub(in crate::store) fn file_of(&self, stored: &Stored) -> Result<Arc<dyn File>> {
        if stored.in_data {
            match &self.extent {
                Some(Ok(extent)) => Ok(extent.clone()),
                Some(Err(gone))
                    if self.object.origin.as_ref().is_some_and(|at| at.file.object().is_some()) =>
                {
                    Err(Error::new(ErrorKind::Io, gone.clone()))
                }
                Some(Err(gone)) => Err(Error::corrupt(format!("{gone}; restore it, or run tierfs fsck"))),
                None => Err(Error::corrupt("a block of a data file in an object without one")),
            }
        } else {
            self.collection.files.payload_file(stored.tier.byte()).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Error::corrupt(format!("{error}; restore it, or run tierfs fsck")),
                _ => error,
            })
        }
    }

    fn fetched(&self, stored: &Stored, skip: u64, out: &mut [u8]) -> Result<()> {
        let file = self.file_of(stored)?;
        file.read_exact_at(out, stored.offset + skip).map_err(|error| {
            let place = self.file_place(stored);
            let is_of_remote = RemoteError::is(&error);
            let advice = if is_of_remote { "" } else { "; run tierfs fsck" };
            match error.kind() {
                std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidData => {
                    Error::corrupt(format!("{place}: {error}{advice}"))
                }
                // Programs may tell its kinds apart.
                _ if is_of_remote => Error::io(place, error),
                _ => Error::new(ErrorKind::Io, format!("{place}: {error}{advice}")),
            }
        })
    }

    /// The lineage parent in its present state. `Corrupt` if it does not exist.
    pub fn parent(&self) -> Result<(Arc<Collection>, Arc<Object>)> {
        let parent = self.object.entry.parent.as_ref();
        let parent = parent.ok_or_else(|| Error::invalid("an object without a parent"))?;
        let place = parent.place(self.collection.place());
        let parent_collection = self.collection.services.lineage().parent_collection(place, parent.object);
        let gone = || {
            let text = format!("the collection {place} is missing");
            broken(&self.collection, &text)
        };
        let parent_collection = parent_collection.ok_or_else(gone)?;
        let object = parent_collection.state().object(parent.object).cloned();
        let object = object.ok_or_else(|| broken(&parent_collection, "the parent is gone"))?;
        Ok((parent_collection, object))
    }

    /// `Busy` if others depend on the object.
    pub fn check_writable(&self) -> Result<()> {
        self.collection.check_not_needed(self.object.entry.id, None)
    }

    fn is_checked(&self, index: u32) -> bool {
        self.verify == Verify::First && self.object.checked.get(index)
    }

    pub(in crate::store) fn known(&self, index: u32, found: Option<Block>) -> Result<Block> {
        let block = found.ok_or_else(|| {
            let object = self.object.entry.id;
            let path = self.collection.path();
            Error::corrupt(format!(
                "{path}: no record describes block {index} of object {object}; run tierfs fsck"
            ))
        })?;
        match self.collection.damage() {
            Some(damage) if block.epoch <= damage.sequence => {
                Err(Error::corrupt(format!("{}: {}; run tierfs fsck", self.collection.path(), damage.reason)))
            }
            _ => Ok(block),
        }
    }
}

/// Whether `next` can be fetched with the same call as `before`: it follows in the same file, up to the
/// rounding of slots.
fn follows(before: &Stored, next: &Stored) -> bool {
    let end = before.offset + u64::from(before.len);
    let gap = if before.tier == Tier::Exact { 0 } else { crate::store::space::slots::SLOT_ALIGN };
    before.tier == next.tier
        && before.tier != Tier::Absent
        && !before.is_zeros()
        && !next.is_zeros()
        && before.in_data == next.in_data
        && (end..=end + gap).contains(&next.offset)
}

/// The part of a block that a request covers, relative to the block's start.
pub(in crate::store) fn overlap(start: u64, len: usize, at: u64, end: u64) -> Range<usize> {
    let from = at.saturating_sub(start).min(len as u64) as usize;
    let until = end.saturating_sub(start).min(len as u64) as usize;
    from..until.max(from)
}
