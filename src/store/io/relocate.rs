//! Relocates payloads without a change: back to their place in the data file, and from the end of a
//! tier file to earlier gaps.
//!
//! Invariants:
//! 1. A stretch of a data file that a block has left is written again only when that is durable and
//!    nobody reads the file there, as for a slot of a tier file.
//! 2. A payload is durable in its new location before the batch that records the move is in the log.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::format::log::record::Stored;
use crate::model::{Error, ErrorKind, Result, Tier};
use crate::store::batch::migrate;
use crate::store::collection::Collection;
use crate::store::collection::open_object::OpenObject;
use crate::store::collection::reclaim::punch_pages;
use crate::store::disk::change::Change;
use crate::store::object::Object;
use crate::store::object::blocks::{Block, DIRTY};
use crate::store::object::links::{DELTA_FILE, PayloadPlace, place_of_stored};
use crate::store::space::files::Touched;
use crate::store::state::freed_space::Freed;

/// Use of space in a tier file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSpace {
    /// End of the last slot in use, in bytes.
    pub end: u64,
    /// Bytes of slots in use.
    pub used: u64,
}

impl OpenObject {
    /// Moves exact blocks of `range` from `tier0.dat` back to their place in the data file. Returns
    /// their number, durably. Moves none while somebody sees the data file directly or shares it, or
    /// while writes to the object wait for a batch.
    pub fn return_to_extent(&self, range: Range<u32>) -> Result<u64> {
        let writing = self.object.write_state().writing.lock();
        let Some(extent) = self.object.extent().filter(|_| self.object.origin.is_none()) else {
            return Ok(0);
        };
        let layout = self.object.logged_layout();
        let is_away = |block: &Block| block.stored.tier == Tier::Exact && !block.stored.in_data;
        let due = self.due(range, is_away);
        if due.is_empty() || self.object.is_dirty() || !self.collection.is_reclaimed(extent.file)? {
            return Ok(0);
        }
        let _unshared = self.collection.services.sharing().changing();
        let Some(alone) = self.collection.alone(Change::Return, extent.file)? else { return Ok(0) };
        let mut touched = Touched::default();
        touched.file(&alone.file);
        let mut moved = Vec::new();
        for (index, block) in due {
            let Some(payload) = self.payload(index, &block)? else { continue };
            let offset = extent.offset + layout.start(index);
            let written = alone.file.write_over(alone.change, &payload, offset);
            written.map_err(|error| {
                Error::io(format!("writing {}", self.collection.files.data_path(extent.file)), error)
            })?;
            moved.push((index, block, Stored { offset, in_data: true, ..block.stored }));
        }
        if !self.relocated(&moved, touched)? {
            return Ok(0);
        }
        drop((writing, alone));
        for (index, ..) in &moved {
            // Verified blocks may be read directly. Readers of a corrupt one get an error.
            if let Err(error) = self.check(*index) {
                log::warn!("{}: {error}", self.collection.path());
            }
        }
        Ok(moved.len() as u64)
    }

    /// Punches the stretches of the data file that blocks of `range` have left, and that were kept for
    /// another name of the file or for somebody who saw it. Does nothing while that lasts, or while writes to
    /// the object wait for a batch.
    pub fn punch_left(&self, range: Range<u32>) -> Result<()> {
        let _writing = self.object.write_state().writing.lock();
        let Some(extent) = self.object.extent().filter(|_| self.object.origin.is_none()) else {
            return Ok(());
        };
        let layout = self.object.logged_layout();
        let blocks = self.object.stored_blocks(range, layout);
        let has_left =
            |block: &Block| block.epoch != DIRTY && !block.stored.in_data && !block.stored.is_lost();
        let left: Vec<(u32, Block)> = blocks.filter(|(_, block)| has_left(block)).collect();
        if left.is_empty() || self.object.is_dirty() || !self.collection.is_reclaimed(extent.file)? {
            return Ok(());
        }
        let _unshared = self.collection.services.sharing().changing();
        let Some(alone) = self.collection.alone(Change::PunchLeft, extent.file)? else { return Ok(()) };
        let stretches = left.iter().map(|(index, _)| {
            let start = extent.offset + layout.start(*index);
            start..start + layout.len(*index) as u64
        });
        punch_pages(&alone, &stretches.collect::<Vec<_>>())
    }

    /// Moves payloads of `range` that end past `limit` in a tier file to earlier gaps. Returns their
    /// number, durably.
    pub fn fill_gaps(&self, range: Range<u32>, number: u8, limit: u64) -> Result<u64> {
        let _writing = self.object.write_state().writing.lock();
        let is_behind = |block: &Block| {
            let PayloadPlace { file, offset, len } = place_of_stored(&block.stored);
            !block.stored.in_data && file == number && offset + len > limit
        };
        let (mut touched, mut moved) = (Touched::default(), Vec::new());
        for (index, block) in self.due(range, is_behind) {
            let Some(payload) = self.payload(index, &block)? else { continue };
            let offset = block.stored.offset;
            let Some(offset) = self.collection.write_before(number, &payload, offset, &mut touched)? else {
                continue;
            };
            moved.push((index, block, Stored { offset, ..block.stored }));
        }
        let moved_now = self.relocated(&moved, touched)?;
        Ok(if moved_now { moved.len() as u64 } else { 0 })
    }

    /// The blocks of `range` that are described, have a payload and satisfy `is_due`.
    fn due(&self, range: Range<u32>, is_due: impl Fn(&Block) -> bool) -> Vec<(u32, Block)> {
        let layout = self.object.logged_layout();
        let blocks = self.object.stored_blocks(range, layout);
        blocks.filter(|(_, block)| block.epoch != DIRTY && block.stored.len > 0 && is_due(block)).collect()
    }

    /// The payload of a block; `None` if it is corrupt. A corrupt payload stays in place, for readers
    /// that can rebuild it.
    fn payload(&self, index: u32, block: &Block) -> Result<Option<Vec<u8>>> {
        let mut payload = vec![0; block.stored.len as usize];
        let fetched = self.fetch(index, &block.stored, 0, &mut payload);
        match fetched.and_then(|()| self.verify(index, &block.stored, &payload)) {
            Ok(()) => Ok(Some(payload)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records new locations of blocks. `false` if the object was deleted meanwhile.
    fn relocated(&self, moved: &[(u32, Block, Stored)], touched: Touched) -> Result<bool> {
        if moved.is_empty() {
            return Ok(false);
        }
        self.collection.commit(touched, |batch, state| {
            if state.object(self.object.entry.id).is_none() {
                return Ok(false);
            }
            for (index, block, stored) in moved {
                let since = u64::from(block.since);
                batch.record(migrate(&self.object.entry, *index, block.stored.tier, *stored, since));
            }
            batch.keep_bytes();
            Ok(true)
        })
    }
}

impl Collection {
    /// Makes all records durable. Returns whether all stretches of a data file that blocks have left are
    /// reclaimed.
    fn is_reclaimed(&self, number: u64) -> Result<bool> {
        self.mark_all(&mut *self.writer()?)?;
        self.reclaim_rest();
        let writer = &mut *self.writer()?;
        let is_kept = |freed: &Freed| match freed {
            // Not reclaimed yet: it has readers.
            Freed::Stretch { object, .. } | Freed::Object(object) => {
                object.extent().is_some_and(|extent| extent.file == number)
            }
            _ => false,
        };
        Ok(!writer.freed.iter().any(|(_, freed)| is_kept(freed)))
    }

    /// Writes a payload to a gap that ends before `limit`, if there is one. Returns its location.
    fn write_before(
        &self,
        number: u8,
        payload: &[u8],
        limit: u64,
        touched: &mut Touched,
    ) -> Result<Option<u64>> {
        let len = payload.len() as u64;
        let offset = {
            let writer = &mut *self.writer()?;
            self.reclaim(writer);
            let slots = writer.slots.get_mut(usize::from(number)).and_then(Option::as_mut);
            match slots.and_then(|slots| slots.take_before(len, limit)) {
                Some(offset) => offset,
                None => return Ok(None),
            }
        };
        touched.slots.take(&self.reservations, PayloadPlace { file: number, offset, len });
        let file = self.files.payload_file(number)?;
        file.write_at(payload, offset)
            .map_err(|error| Error::io(format!("writing {}", self.files.payload_path(number)), error))?;
        touched.file(&file);
        Ok(Some(offset))
    }

    /// Punches the stretches of data files that no object has: of a file that was copied in part, once its source is gone.
    /// Leaves files that somebody shares, sees or writes.
    pub fn punch_unowned(&self) -> Result<()> {
        let published = self.reservations.published();
        let mut owned: BTreeMap<u64, Vec<Arc<Object>>> = BTreeMap::new();
        for object in self.state().objects().filter(|object| object.origin.is_none()) {
            if let Some(extent) = object.extent() {
                owned.entry(extent.file).or_default().push(object.clone());
            }
        }
        // An import may have named some of the objects of a file only.
        if published.is_none() || self.reservations.published() != published {
            return Ok(());
        }
        for (number, objects) in owned {
            if self.gate.is_held() || self.reservations.holds_file(number) {
                continue;
            }
            // A missing one was counted before.
            let Ok(file) = self.data_file(number) else { continue };
            // Whoever extends the file from here on does so behind this.
            let len = file.len().map_err(|error| Error::io("asking for a data file's size", error))?;
            let unowned = unowned(&objects, len);
            if unowned.is_empty() || !self.is_reclaimed(number)? {
                continue;
            }
            let _unshared = self.services.sharing().changing();
            if let Some(alone) = self.alone(Change::PunchLeft, number)? {
                punch_pages(&alone, &unowned)?;
            }
        }
        Ok(())
    }

    /// Use of space of each tier file, by number. Makes all records durable and reclaims freed space.
    pub fn file_spaces(&self) -> Result<Vec<FileSpace>> {
        self.find_space()?;
        let writer = &mut *self.writer()?;
        self.mark_all(writer)?;
        let spaces = writer.slots.iter().take(usize::from(DELTA_FILE)).flatten();
        Ok(spaces
            .map(|slots| FileSpace { end: slots.end(), used: slots.end() - slots.free_bytes() })
            .collect())
    }

    /// Truncates the payload files after the last slot in use. Returns their total length before and
    /// after.
    pub fn truncate_files(&self) -> Result<(u64, u64)> {
        self.find_space()?;
        let writer = &mut *self.writer()?;
        self.mark_all(writer)?;
        let (mut before, mut after) = (0, 0);
        for (number, slots) in (0..).zip(writer.slots.iter().flatten()) {
            let Ok(file) = self.files.payload_file(number) else { continue };
            let failed = |error| Error::io(self.files.payload_path(number), error);
            let len = file.len().map_err(failed)?;
            if len > slots.end() {
                file.set_len(slots.end()).map_err(failed)?;
            }
            before += len;
            after += len.min(slots.end());
        }
        Ok((before, after))
    }
}

/// The stretches of the first `len` bytes of a data file that none of these objects ever used.
fn unowned(objects: &[Arc<Object>], len: u64) -> Vec<Range<u64>> {
    let used = |object: &Arc<Object>| {
        let written = object.existing_write_state().map_or(0, |state| state.writing.lock().used);
        let bytes = written.max(object.logged_layout().bytes);
        object.extent().map(|extent| extent.offset..extent.offset.saturating_add(bytes))
    };
    let mut used: Vec<Range<u64>> = objects.iter().filter_map(used).collect();
    used.sort_unstable_by_key(|stretch| stretch.start);
    let (mut unowned, mut end) = (Vec::new(), 0);
    for stretch in used.into_iter().chain(std::iter::once(len..len)) {
        if end < stretch.start.min(len) {
            unowned.push(end..stretch.start.min(len));
        }
        end = end.max(stretch.end);
    }
    unowned
}
