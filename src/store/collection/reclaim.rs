//! Reclaims space that batches have freed.
//!
//! Invariants:
//! 1. Space that a batch freed is reused only once a durable Commit says that the batch is durable and
//!    every earlier read has ended; an object's, once it is not open any more.
//! 2. Space that no record names and nobody reads goes back to the disk, page by page. Stretches of a data file
//!    that a program sees stay in `Writer::freed`, and later syncs try again; a compaction frees stretches that
//!    remain when the store is closed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::MappedMutexGuard;

use crate::format::log::record::Stored;
use crate::model::{Error, Instant, Result};
use crate::store::collection::Collection;
use crate::store::collection::allocate::freed_slots;
use crate::store::collection::journal::Writer;
use crate::store::collection::open_object::MEMORY_FILE;
use crate::store::collection::open_object::OpenObject;
use crate::store::disk::Advice;
use crate::store::disk::change::Change;
use crate::store::link_candidates::is_shared;
use crate::store::object::Object;
use crate::store::object::factors::place_of_factor;
use crate::store::object::links::{PayloadPlace, place_of, place_of_stored};
use crate::store::space::holders::{ASKED_EVERY, Alone};
use crate::store::state::freed_space::Freed;

/// Space goes back to the disk in pages of this size.
const PAGE_BYTES: u64 = 4096;

/// Data files that are removed while the writer is locked and others wait, as the disk takes a while for each: this many,
/// or the given share of the freed space if that is more, since each time looks at all of it.
const REMOVED_LEAST: usize = 4;
const REMOVED_SHARE: usize = 256;

impl Collection {
    /// Frees the writes to an object that no log ever named. Bytes that the log now names under another
    /// object's identity stay.
    pub fn discard(&self, draft: &Object) {
        let len = draft.entry.block_bytes;
        let write_state = draft.write_state();
        let slots = |dirty: &BTreeMap<u32, Stored>| -> Vec<Stored> {
            let slots = dirty.values().filter(|stored| !stored.in_data);
            slots.map(|stored| Stored { len, ..*stored }).collect()
        };
        let mut dropped = slots(&write_state.dirty.read());
        dropped.append(&mut write_state.writing.lock().dropped);
        self.drop_payloads(dropped);
        if let Some(extent) = draft.extent().filter(|extent| extent.file != MEMORY_FILE) {
            self.reservations.release_file(extent.file);
            self.remove_extent(&mut Holes::default(), draft);
        }
    }

    /// Frees payloads that the log no longer names since the last batch.
    pub(in crate::store) fn drop_payloads(&self, dropped: Vec<Stored>) {
        if dropped.is_empty() {
            return;
        }
        if let Some(writer) = self.journal.lock().as_mut() {
            let number = writer.log.last();
            let freed = dropped.into_iter().map(|stored| (number, Freed::Payload(stored)));
            writer.freed.extend(freed);
        }
    }

    /// Whether a file was removed that somebody has open.
    pub(in crate::store) fn has_removed_in_use(&self) -> Result<bool> {
        let writer = self.writer()?;
        let is_in_use =
            |freed: &Freed| matches!(freed, Freed::Object(object) if Arc::strong_count(object) > 1);
        Ok(writer.freed.iter().any(|(_, freed)| is_in_use(freed)))
    }

    /// Reclaims space that no reader and no record needs any more, but removes a few data files only.
    pub(in crate::store) fn reclaim(&self, writer: &mut Writer) {
        let witnessed = writer.log.witnessed();
        self.reclaim_until(writer, witnessed);
    }

    /// Reclaims all of it. Others append in between.
    pub(in crate::store) fn reclaim_rest(&self) {
        while let Ok(mut writer) = self.writer() {
            self.reclaim(&mut writer);
            let leaves_more = writer.leaves_more;
            MappedMutexGuard::unlock_fair(writer);
            if !leaves_more {
                break;
            }
        }
    }

    /// [`reclaim`](Self::reclaim) before a data file is made. Looks only now and then, since objects that are still open
    /// may be many, and none of them can go.
    pub(in crate::store) fn reclaim_for_file(&self, writer: &mut Writer) {
        if writer.kept.is_none_or(|(_, at)| at.elapsed() >= ASKED_EVERY) {
            self.reclaim(writer);
            writer.kept = Some(((writer.freed.len(), writer.log.witnessed()), Instant::now()));
        }
    }

    /// The same before a slot is taken. Looks only now and then at space that could not be reclaimed the
    /// last time, since that may be much.
    pub(in crate::store) fn reclaim_for_slot(&self, writer: &mut Writer) {
        let now = (writer.freed.len(), writer.log.witnessed());
        let is_known = writer.kept.is_some_and(|(kept, at)| kept == now && at.elapsed() < ASKED_EVERY);
        if !is_known || self.reservations.has_returned() {
            self.reclaim(writer);
            writer.kept = Some(((writer.freed.len(), writer.log.witnessed()), Instant::now()));
        }
    }

    /// Reclaims the space freed by batches up to number `durable`, which must be durable.
    pub(in crate::store) fn reclaim_until(&self, writer: &mut Writer, durable: u64) {
        let (mut holes, mut left) = (Holes::default(), LeftFiles::default());
        // No record ever named these slots, so nobody reads them.
        for slot in self.reservations.returned() {
            give_slot_back(writer, &mut holes, slot);
        }
        let _unshared = self.services.sharing().changing();
        self.reclaim_freed(writer, durable, &mut holes, &mut left);
        self.punch(&holes, &left);
    }

    /// Takes the space that batches up to number `durable` freed, and notes the pages to give back. `left` gets
    /// the data files of these.
    fn reclaim_freed<'a>(
        &'a self,
        writer: &mut Writer,
        durable: u64,
        holes: &mut Holes,
        left: &mut LeftFiles<'a>,
    ) {
        writer.leaves_more = false;
        // Between two syncs, programs that replace files free much, and no part of it may be reused.
        let due = writer.freed.partition_point(|(batch, _)| *batch <= durable);
        if due == 0 || self.gate.is_held() {
            return;
        }
        let is_synced = durable >= writer.log.last();
        let kept = kept_extents(&writer.freed);
        let most = (due / REMOVED_SHARE).max(REMOVED_LEAST);
        let (mut files, mut last, mut leaves_more) = (0, None, false);
        let is_free = |(_, freed): &mut (u64, Freed)| match freed {
            Freed::Payload(_) | Freed::Links(_) | Freed::Deltas { .. } => true,
            Freed::Factor(_) | Freed::EndedFactor { .. } => true,
            // A page shared with a neighbour can go only when all moves are durable.
            Freed::Stretch { object, stored } => {
                is_synced && !is_read_by_others(&kept, object, stored) && self.may_leave(left, object)
            }
            // An open file keeps the objects that it opened.
            Freed::Object(object) if Arc::strong_count(object) > 1 => false,
            Freed::Object(object) => match object.extent() {
                Some(extent) if last != Some(extent.file) && files == most => {
                    leaves_more = true;
                    false
                }
                Some(extent) if last != Some(extent.file) => {
                    (files, last) = (files + 1, Some(extent.file));
                    true
                }
                _ => true,
            },
            Freed::Copy(copy) => Arc::strong_count(copy) == 1,
        };
        let free: Vec<(u64, Freed)> = writer.freed.extract_if(..due, is_free).collect();
        writer.leaves_more = leaves_more;
        self.find_space_of(writer, &free);
        // This waits for the reads that looked up a location before it was freed.
        self.gate.wait();
        for (_, freed) in free {
            match freed {
                Freed::Payload(stored) => give_back(writer, holes, &stored),
                Freed::Stretch { object, stored } => note_stretch(holes, &object, &stored),
                Freed::Copy(copy) => self.remove_pinned(copy.number),
                Freed::Links(links) => {
                    links.iter().for_each(|link| give_slot_back(writer, holes, place_of(link)))
                }
                Freed::Deltas { object, index, epoch, links } => {
                    object.forget_deltas(index, epoch);
                    self.footprint.note_change();
                    links.iter().for_each(|link| give_slot_back(writer, holes, place_of(link)));
                }
                Freed::Factor(link) => give_slot_back(writer, holes, place_of_factor(&link)),
                Freed::EndedFactor { object, link } => {
                    object.forget_factor(&link);
                    give_slot_back(writer, holes, place_of_factor(&link));
                }
                Freed::Object(object) => {
                    let layout = object.layout();
                    for (_, block) in object.blocks.read().pieces(layout) {
                        give_back(writer, holes, &block.stored);
                    }
                    for link in object.links() {
                        give_slot_back(writer, holes, place_of(&link));
                    }
                    if let Some(link) = object.factor() {
                        give_slot_back(writer, holes, place_of_factor(&link));
                    }
                    if let Some(write_state) = object.existing_write_state() {
                        for written in write_state.dirty.read().values() {
                            let len = object.entry.block_bytes;
                            give_back(writer, holes, &Stored { len, ..*written });
                        }
                        for stored in &write_state.writing.lock().dropped {
                            give_back(writer, holes, stored);
                        }
                    }
                    self.remove_extent(holes, &object);
                }
            }
        }
    }

    /// Determines the free space of the payload files that have freed slots, so that these can be given back, and
    /// opens the files. Nothing was allocated in such a file since the collection was opened.
    fn find_space_of(&self, writer: &mut Writer, free: &[(u64, Freed)]) {
        let Writer { slots, freed, .. } = writer;
        let numbers = free
            .iter()
            .flat_map(|(_, freed)| freed_slots(freed))
            .map(|PayloadPlace { file: number, .. }| number);
        for number in numbers {
            if let Some(slots @ None) = slots.get_mut(usize::from(number)) {
                *slots = Some(self.space_of(number, freed.iter().chain(free)));
                if let Err(error) = self.files.payload_file(number) {
                    log::debug!("the space of its slots stays: {error}");
                }
            }
        }
    }

    /// Drops the page cache of the data files that hold parts of objects. It spares outside files,
    /// which others use; files that the kernel reads directly, whose pages are the only cached copy;
    /// and tier files: the kernel caches the decoded payloads of a form, and the next form of a tensor
    /// needs the payloads again.
    pub fn drop_cached_data<'a>(&self, parts: impl Iterator<Item = (&'a OpenObject, Range<u64>)>) {
        let mut stretch: Option<(&OpenObject, Range<u64>)> = None;
        for (open, range) in parts {
            let (Some(extent), None) = (open.object.extent(), &open.object.origin) else { continue };
            let place = extent.offset.saturating_add(range.start)..extent.offset.saturating_add(range.end);
            match &mut stretch {
                Some((before, joined))
                    if joined.end == place.start
                        && before.object.extent().is_some_and(|before| before.file == extent.file) =>
                {
                    joined.end = place.end;
                }
                _ => {
                    let ended = stretch.replace((open, place));
                    self.drop_cached_extent(ended);
                }
            }
        }
        self.drop_cached_extent(stretch);
    }

    fn drop_cached_extent(&self, stretch: Option<(&OpenObject, Range<u64>)>) {
        let Some((open, place)) = stretch else { return };
        let Some(Ok(file)) = &open.extent else { return };
        // Others may read a shared file directly.
        if self.files.is_read_directly(&open.object) || is_shared(&**file) {
            return;
        }
        if let Err(error) = file.advise(Advice::WontRead, place.start, place.end - place.start) {
            log::debug!("letting go of pages of a data file: {error}");
        }
    }

    /// Whether an object's stretches of its data file may be given back or, in a file that another name
    /// needs, forgotten.
    fn may_leave<'a>(&'a self, left: &mut LeftFiles<'a>, object: &Object) -> bool {
        let Some(extent) = object.extent() else { return true };
        if let Some((number, found)) = &left.last
            && *number == extent.file
        {
            return *found;
        }
        let found = left.files.entry(extent.file).or_insert_with(|| match self.data_file(extent.file) {
            Ok(file) if is_shared(&*file) => Left::Kept,
            Ok(file) => match self.files.shown.alone(Change::Reclaim, extent.file, file) {
                Some(alone) => Left::Alone(alone),
                None => Left::Held,
            },
            Err(error) => {
                log::debug!("space of {} stays: {error}", self.files.data_path(extent.file));
                Left::Kept
            }
        });
        let found = !matches!(found, Left::Held);
        left.last = Some((extent.file, found));
        found
    }

    /// Gives the pages of holes back to the disk, each stretch with one call.
    fn punch(&self, holes: &Holes, left: &LeftFiles<'_>) {
        for (number, stretches) in &holes.payload_files {
            for (from, until) in joined_pages(stretches) {
                self.files.punch(*number, from, until - from);
            }
        }
        // A file in which no object lies any more was removed, now or before.
        let is_there =
            |number: &u64| !holes.removed.contains(number) && self.state.read().has_extent(*number);
        let data_files = holes.data_files.iter().filter(|(number, _)| is_there(number));
        for (number, stretches) in data_files {
            let Some(Left::Alone(alone)) = left.files.get(number) else { continue };
            if let Err(error) = punch_pages(alone, stretches) {
                log::warn!("giving back space of {}: {error}", self.files.data_path(*number));
            }
        }
    }

    /// The right to change a data file; `None` if somebody sees or shares it. The caller holds
    /// `Sharing::changing`.
    pub(in crate::store) fn alone(&self, change: Change, number: u64) -> Result<Option<Alone<'_>>> {
        let file = self.data_file(number)?;
        Ok(if is_shared(&*file) { None } else { self.files.shown.alone(change, number, file) })
    }

    /// Removes an object's data file if no other object lies in it. Open files stay readable. A file
    /// that cannot be removed is found when the store is opened again.
    fn remove_extent(&self, holes: &mut Holes, object: &Object) {
        let Some(extent) = object.extent() else { return };
        let is_held = self.reservations.holds_file(extent.file) || self.gate.holds_file(extent.file);
        if is_held || self.state.read().has_extent(extent.file) {
            return;
        }
        self.remove_data_file(extent.file);
        holes.removed.insert(extent.file);
    }
}

/// A data file with stretches that blocks have left.
enum Left<'a> {
    /// Nobody else sees it.
    Alone(Alone<'a>),
    /// Somebody sees it.
    Held,
    /// Another name needs it, or it cannot be opened: a compaction gives back the stretches.
    Kept,
}

/// Data files with such stretches, by number.
#[derive(Default)]
struct LeftFiles<'a> {
    files: HashMap<u64, Left<'a>>,
    /// The number that was asked for last, and whether its stretches may go: most stretches follow others
    /// of their file.
    last: Option<(u64, bool)>,
}

/// Gives the whole pages in stretches of a data file back to the disk.
pub(in crate::store) fn punch_pages(alone: &Alone<'_>, stretches: &[Range<u64>]) -> Result<()> {
    joined_pages(stretches).into_iter().try_for_each(|(from, until)| {
        let punched = alone.file.punch(alone.change, from, until - from);
        punched.map_err(|error| Error::io("punching a hole", error))
    })
}

/// Stretches without payloads, by the number of their file. A stretch is noted up to the end of its
/// last page if the rest of that page is free, so that joined stretches include the pages that they share.
#[derive(Default)]
struct Holes {
    payload_files: BTreeMap<u8, Vec<Range<u64>>>,
    data_files: BTreeMap<u64, Vec<Range<u64>>>,
    /// Data files that were removed, where nothing is left to give back.
    removed: BTreeSet<u64>,
}

/// The whole pages in stretches, which may overlap: where each joined one begins and ends.
fn joined_pages(stretches: &[Range<u64>]) -> Vec<(u64, u64)> {
    let mut sorted: Vec<&Range<u64>> = stretches.iter().collect();
    sorted.sort_unstable_by_key(|stretch| stretch.start);
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for stretch in sorted {
        match joined.last_mut() {
            Some((_, until)) if stretch.start <= *until => *until = stretch.end.max(*until),
            _ => joined.push((stretch.start, stretch.end)),
        }
    }
    let pages =
        |(from, until): (u64, u64)| (from.next_multiple_of(PAGE_BYTES), until / PAGE_BYTES * PAGE_BYTES);
    joined.into_iter().map(pages).filter(|(from, until)| from < until).collect()
}

/// Notes the stretch of a data file that a block has left, with the rest of pages shared with a
/// neighbour that has left them before.
fn note_stretch(holes: &mut Holes, object: &Object, stored: &Stored) {
    let (Some(extent), layout) = (object.extent(), object.logged_layout()) else { return };
    let index = layout.index(stored.offset.saturating_sub(extent.offset));
    let blocks = object.blocks.read();
    let has_left = |index: Option<u32>| {
        let block = index.and_then(|index| blocks.get(index, layout));
        block.is_some_and(|block| !block.stored.in_data)
    };
    if !has_left(Some(index)) {
        return;
    }
    let (begin, end) = (stored.offset, stored.offset + u64::from(stored.len));
    let from = if has_left(index.checked_sub(1)) { begin / PAGE_BYTES * PAGE_BYTES } else { begin };
    let next = index.saturating_add(1);
    let next_end = end + layout.len(next) as u64;
    let page_end = end.next_multiple_of(PAGE_BYTES);
    let until = if has_left(Some(next)) && page_end <= next_end { page_end } else { end };
    holes.data_files.entry(extent.file).or_default().push(from..until);
}

/// Frees a payload's slot and notes the pages that become free.
fn give_back(writer: &mut Writer, holes: &mut Holes, stored: &Stored) {
    if stored.has_slot() {
        give_slot_back(writer, holes, place_of_stored(stored));
    }
}

/// Frees a slot and notes the pages that become free.
fn give_slot_back(writer: &mut Writer, holes: &mut Holes, slot: PayloadPlace) {
    let PayloadPlace { file, offset, len } = slot;
    // If the free space was not determined yet, that will find the slot free.
    let Some(Some(slots)) = writer.slots.get_mut(usize::from(file)) else { return };
    let free = slots.give(offset, len);
    let from = free.start.max(offset / PAGE_BYTES * PAGE_BYTES);
    let page_end = (offset + len).next_multiple_of(PAGE_BYTES);
    // Nothing lies behind the last slot.
    let until = if slots.end() <= free.start { page_end } else { free.end.min(page_end) };
    holes.payload_files.entry(file).or_default().push(from..until);
}

/// Objects that are deleted and still open, by their data file.
fn kept_extents(freed: &[(u64, Freed)]) -> HashMap<u64, Vec<Arc<Object>>> {
    let mut kept: HashMap<u64, Vec<Arc<Object>>> = HashMap::new();
    if !freed.iter().any(|(_, freed)| matches!(freed, Freed::Stretch { .. })) {
        return kept;
    }
    for (_, freed) in freed {
        if let Freed::Object(object) = freed
            && Arc::strong_count(object) > 1
            && let Some(extent) = object.extent()
        {
            kept.entry(extent.file).or_default().push(object.clone());
        }
    }
    kept
}

/// Whether an object in `kept` has a block in the pages of a stretch that `object` has left. A file
/// that was divided anew has several objects with the same bytes.
fn is_read_by_others(kept: &HashMap<u64, Vec<Arc<Object>>>, object: &Arc<Object>, stored: &Stored) -> bool {
    let others = object.extent().and_then(|extent| kept.get(&extent.file));
    let from = stored.offset / PAGE_BYTES * PAGE_BYTES;
    let until = (stored.offset + u64::from(stored.len)).next_multiple_of(PAGE_BYTES);
    others.into_iter().flatten().any(|other| {
        let (Some(extent), layout) = (other.extent(), other.layout()) else { return false };
        if Arc::ptr_eq(other, object) || until <= extent.offset || extent.offset + layout.bytes <= from {
            return false;
        }
        let first = layout.index(from.saturating_sub(extent.offset));
        let last = layout.index((until - 1 - extent.offset).min(layout.bytes.saturating_sub(1)));
        let blocks = other.blocks.read();
        (first..=last).any(|index| blocks.get(index, layout).is_some_and(|block| block.stored.in_data))
    })
}

#[cfg(test)]
mod tests {
    use super::joined_pages;

    #[test]
    fn touching_stretches_become_one_with_the_pages_that_they_share() {
        assert_eq!(joined_pages(&[8000..12_288, 100..8000]), [(4096, 12_288)]);
        assert_eq!(joined_pages(&[0..4096, 4096..8192, 4096..5000]), [(0, 8192)]);
        assert_eq!(joined_pages(&[0..5000, 5001..16_384]), [(0, 4096), (8192, 16_384)]);
        assert!(joined_pages(&[4000..8191, 100..200]).is_empty());
    }
}
