//! Payloads to other places, as they are: back to the data file that they were written over
//! in, and from the end of a tier file to gaps before it.
//!
//! Invariants:
//! 1. A stretch of a data file that a block has left is written again only when that is
//!    durable and nobody reads the file there: as a slot of a tier file is.
//! 2. A payload is durable in its new place before the batch that says so is in the log.

use std::ops::Range;

use crate::format::log::record::Stored;
use crate::model::{Error, ErrorKind, Result, Tier};
use crate::store::Collection;
use crate::store::collection::Touched;
use crate::store::io::migrate::migrate;
use crate::store::io::read::OpenObject;
use crate::store::object::blocks::Block;
use crate::store::object::deltas::{DELTA_FILE, place_of_stored};
use crate::store::object::{DIRTY, Freed, Object};

/// The space of a tier file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSpace {
    /// Bytes up to the last slot in use.
    pub end: u64,
    /// Bytes of slots in use.
    pub used: u64,
}

impl OpenObject {
    /// Puts exact blocks of `range` that lie in `tier0.dat` back to their place in the data
    /// file; how many. None while somebody reads that file where it lies, or while something
    /// was written to the object that no batch describes. Durable when it returns.
    pub fn return_to_extent(&self, range: Range<u32>) -> Result<u64> {
        let writing = self.object.write_state().writing.lock();
        let Some(extent) = self.object.extent().filter(|_| self.object.origin.is_none()) else {
            return Ok(0);
        };
        let layout = self.object.logged_layout();
        let is_away = |block: &Block| block.stored.tier == Tier::Exact && !block.stored.in_data;
        let due = self.due(range, is_away);
        if due.is_empty() || self.object.is_dirty() || !self.collection.may_fill(&self.object)? {
            return Ok(0);
        }
        let file = self.collection.data_file(extent.file)?;
        let mut touched = Touched::default();
        touched.file(&file);
        let mut moved = Vec::new();
        for (index, block) in due {
            let Some(payload) = self.payload(index, &block)? else { continue };
            let offset = extent.offset + layout.start(index);
            let written = file.write_at(&payload, offset);
            written.map_err(|error| {
                Error::io(format!("writing {}", self.collection.data_path(extent.file)), error)
            })?;
            moved.push((index, block, Stored { offset, in_data: true, ..block.stored }));
        }
        if !self.relocated(&moved, touched)? {
            return Ok(0);
        }
        drop(writing);
        for (index, ..) in &moved {
            // What is checked may be shown. Who reads a wrong one is told.
            if let Err(error) = self.check(*index) {
                log::warn!("{}: {error}", self.collection.path());
            }
        }
        Ok(moved.len() as u64)
    }

    /// Moves payloads of `range` that end past `limit` in a tier file to gaps before them; how
    /// many. Durable when it returns.
    pub fn pack(&self, range: Range<u32>, number: u8, limit: u64) -> Result<u64> {
        let _writing = self.object.write_state().writing.lock();
        let is_behind = |block: &Block| {
            let (file, offset, len) = place_of_stored(&block.stored);
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

    /// Blocks of `range` that the log describes, that have a payload, and that `is_due`.
    fn due(&self, range: Range<u32>, is_due: impl Fn(&Block) -> bool) -> Vec<(u32, Block)> {
        let layout = self.object.logged_layout();
        let blocks = self.object.stored_blocks(range, layout);
        blocks.filter(|(_, block)| block.epoch != DIRTY && block.stored.len > 0 && is_due(block)).collect()
    }

    /// The payload of a block; `None` for one that is not what the log says: it stays where it
    /// is, for those who can make it again.
    fn payload(&self, index: u32, block: &Block) -> Result<Option<Vec<u8>>> {
        let mut payload = vec![0; block.stored.len as usize];
        let fetched = self.fetch(index, &block.stored, 0, &mut payload);
        match fetched.and_then(|()| self.verify(index, &block.stored, &payload)) {
            Ok(()) => Ok(Some(payload)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Blocks are in other places now; `false` where the object was deleted meanwhile.
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
    /// Whether the stretches of the object's data file that its blocks have left may be written
    /// again: all that was recorded is durable then.
    fn may_fill(&self, object: &Object) -> Result<bool> {
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        self.mark_all(writer)?;
        let file = object.extent().map(|extent| extent.file);
        let is_kept = |freed: &Freed| match freed {
            // Not given back yet: somebody reads it there.
            Freed::Stretch { object, .. } | Freed::Object(object) => {
                object.extent().map(|extent| extent.file) == file
            }
            _ => false,
        };
        Ok(!self.is_shown(object) && !writer.freed.iter().any(|(_, freed)| is_kept(freed)))
    }

    /// Writes a payload to a gap that ends before `limit`; where, if there is one.
    fn write_before(
        &self,
        number: u8,
        payload: &[u8],
        limit: u64,
        touched: &mut Touched,
    ) -> Result<Option<u64>> {
        let len = payload.len() as u64;
        let offset = {
            let mut writer = self.writer.lock();
            let writer = self.writable(&mut writer)?;
            self.reclaim(writer);
            let slots = writer.slots.get_mut(usize::from(number)).and_then(Option::as_mut);
            match slots.and_then(|slots| slots.take_before(len, limit)) {
                Some(offset) => offset,
                None => return Ok(None),
            }
        };
        touched.slots.take(&self.reservations, (number, offset, len));
        let file = self.payload_file(number)?;
        file.write_at(payload, offset)
            .map_err(|error| Error::io(format!("writing {}", self.payload_path(number)), error))?;
        touched.file(&file);
        Ok(Some(offset))
    }

    /// The space of each tier file, by its number. All that was recorded
    /// is durable, and what was given up is free.
    pub fn file_spaces(&self) -> Result<Vec<FileSpace>> {
        self.find_space()?;
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        self.mark_all(writer)?;
        let spaces = writer.slots.iter().take(usize::from(DELTA_FILE)).flatten();
        Ok(spaces
            .map(|slots| FileSpace { end: slots.end(), used: slots.end() - slots.free_bytes() })
            .collect())
    }

    /// Cuts the files of payloads behind the last slot in use; their bytes together before and
    /// after.
    pub fn cut_files(&self) -> Result<(u64, u64)> {
        self.find_space()?;
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        self.mark_all(writer)?;
        let (mut before, mut after) = (0, 0);
        for (number, slots) in (0..).zip(writer.slots.iter().flatten()) {
            let Ok(file) = self.payload_file(number) else { continue };
            let failed = |error| Error::io(self.payload_path(number), error);
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
