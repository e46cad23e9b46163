//! Verifies stored bytes against the log.

use std::ops::{Range, RangeInclusive};

use crate::format::checksum;
use crate::format::log::record::Stored;
use crate::format::payload::factor::Factor;
use crate::model::{Error, ErrorKind, Result, Tier};
use crate::store::clones::fetched_outside;
use crate::store::collection::open_object::OpenObject;
use crate::store::events::EventKind;
use crate::store::object::blocks::{Block, DIRTY};
use crate::store::object::factors::{FACTOR_FILE, FactorLink};
use crate::store::object::failed_reads::described;

/// Parents of parents that are looked at: as many as are read.
const LINEAGE_MAX: usize = 3;
/// Bytes compared with zeros at a time.
const HOLE_BYTES: u64 = 1 << 20;

impl OpenObject {
    /// Verifies block `index` as recorded in the log, and returns its state. Used by `verify` and
    /// `fsck`.
    pub fn check(&self, index: u32) -> Result<Block> {
        let checked = fetched_outside(|| self.check_here(index));
        match &checked {
            Ok(_) => self.note_readable(index..=index),
            Err(error) => self.note_damage(index, error),
        }
        checked
    }

    /// The same, with the gate.
    fn check_here(&self, index: u32) -> Result<Block> {
        let _reading = self.collection.gate.begin();
        let (layout, found, described) = self.collection.state().logged_block(&self.object, index);
        if found.is_none() && index >= described {
            // The block was truncated, and the log does not have that yet.
            return Ok(Block { epoch: DIRTY, stored: Stored::ABSENT, since: 0 });
        }
        let block = self.known(index, found)?;
        if block.stored.is_zeros() {
            // Zeros without a payload cannot be corrupt.
            return Ok(block);
        }
        if block.stored.len == 0 {
            self.read_origin(index, &mut vec![0; layout.len(index)])?;
        } else {
            let mut payload = vec![0; block.stored.len as usize];
            self.fetch(index, &block.stored, 0, &mut payload)?;
            self.verify(index, &block.stored, &payload)?;
        }
        if let Some(link) = self.object.factor_of(&block) {
            self.check_factor(&link)?;
        }
        if self.object.deltas(index, block.epoch).is_some() {
            let mut elements = vec![0; layout.len(index)];
            self.apply_deltas(index, &block, &mut elements)?;
            if block.stored.tier == Tier::Absent {
                self.check_on_parent(index, &block, &mut elements)
                    .map_err(|error| self.report_corruption(index, &block.stored, error))?;
            }
        }
        Ok(block)
    }

    /// Verifies that a block can be read that is a difference from the parent's. Leaves out parents that only the remote of
    /// a clone has. Without an engine nothing is read.
    fn check_on_parent(&self, index: u32, block: &Block, elements: &mut [u8]) -> Result<()> {
        match self.collection.services.rebuilder() {
            Some(rebuilder) if !self.is_on_remote_block(index, LINEAGE_MAX)? => {
                rebuilder.rebuild(self, index, block, elements).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Whether only the remote of a clone has the parent's block, or one that this is a difference from, of so many parents.
    fn is_on_remote_block(&self, index: u32, parents: usize) -> Result<bool> {
        let (true, Ok((parent_collection, parent))) = (parents > 0, self.parent()) else { return Ok(false) };
        let Some(block) = parent.block(index, parent.layout()) else { return Ok(false) };
        let base = self.open_same_way(&parent_collection, &parent)?;
        let is_difference = block.stored.tier == Tier::Absent;
        Ok(!base.is_here(index, &block) || is_difference && base.is_on_remote_block(index, parents - 1)?)
    }

    pub(in crate::store) fn verify(&self, index: u32, stored: &Stored, payload: &[u8]) -> Result<()> {
        let has_checksum = !(self.is_unread && stored.in_data);
        let found = if has_checksum { checksum::of(payload) } else { stored.checksum };
        if found != stored.checksum {
            // Other reads of parts of the block must not trust it either.
            self.object.checked.clear(index);
            let (place, wanted) = (self.place(index, stored), stored.checksum);
            let text = format!("{place}: payload crc {found:#010x} but the log says {wanted:#010x}");
            let advice = if self.is_shown() { "; it is read again" } else { "; run tierfs fsck" };
            let error = Error::corrupt(format!("{text}{advice}"));
            return Err(self.report_corruption(index, stored, error));
        }
        self.note_checked(index, stored);
        Ok(())
    }

    /// Marks a block as verified, unless it has moved since.
    fn note_checked(&self, index: u32, stored: &Stored) {
        if self.object.checked.get(index) || (stored.in_data && !self.is_extent_untouched()) {
            return;
        }
        // While the lock is held, no batch moves the block.
        let blocks = self.object.blocks.read();
        if blocks.get(index, self.object.logged_layout()).is_some_and(|now| now.stored == *stored) {
            self.object.checked.set(index);
        }
    }

    /// Verifies that the data file has a hole or zeros where zero blocks are a hole of it, so that the
    /// file can be read directly. `piece` are all equal blocks there, see `Object::pieces`.
    pub fn check_hole(&self, piece: &Range<u32>) -> Result<()> {
        let layout = self.object.logged_layout();
        let stored = || Some(self.object.blocks.read().get(piece.start, layout)?.stored);
        let Some(hole) = stored().filter(|stored| stored.is_zeros() && stored.in_data) else { return Ok(()) };
        if !matches!(self.extent, Some(Ok(_))) || self.object.checked.get(piece.start) {
            return Ok(());
        }
        if !self.has_zeros(hole.offset, layout.bytes_of(piece))? {
            log::info!(
                "{}: bytes of a write that was never recorded; they read as zeros",
                self.file_place(&hole)
            );
            return Ok(());
        }
        // While the lock is held, no batch changes the blocks.
        let blocks = self.object.blocks.read();
        let is_same = blocks.get(piece.start, layout).is_some_and(|block| block.stored == hole);
        if is_same && blocks.uniform_from(piece.start, layout).1 == piece.end {
            self.object.checked.set(piece.start);
        }
        Ok(())
    }

    /// Whether the data file has a hole, or zeros, at `offset`.
    pub(in crate::store) fn has_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        let Some(Ok(extent)) = &self.extent else { return Ok(false) };
        let failed = |error| Error::io(self.file_place(&Stored::in_extent(offset)), error);
        let end = offset.saturating_add(len);
        let mut found = extent.next_data(offset).map_err(failed)?;
        let mut chunk = Vec::new();
        while let Some(at) = found.filter(|at| *at < end) {
            chunk.resize((end - at).min(HOLE_BYTES) as usize, 0);
            extent.read_exact_at(&mut chunk, at).map_err(failed)?;
            if chunk.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            found = extent.next_data(at + chunk.len() as u64).map_err(failed)?;
        }
        Ok(true)
    }

    /// Verifies the remaining blocks of `blocks` that are exact in the data file and in the page cache.
    /// `buffer` has room for all of their bytes. Returns whether all of `blocks` are verified then.
    pub(in crate::store) fn check_in_memory(&self, blocks: Range<u32>, buffer: &mut [u8]) -> bool {
        let Some(Ok(extent)) = &self.extent else { return false };
        let _reading = self.collection.gate.begin();
        let mut found = vec![None; blocks.len()];
        self.object.look_up(blocks.start, self.object.layout(), &mut found);
        let unchecked = blocks.zip(found).filter(|(index, _)| !self.object.checked.get(*index));
        let unchecked: Option<Vec<_>> =
            unchecked.map(|(index, found)| Some((index, self.stored_at_extent(index, found)?))).collect();
        let Some(mut unchecked) = unchecked else { return false };
        let mut is_hole = true;
        unchecked.retain(|(index, stored)| {
            if stored.is_zeros() {
                is_hole &= self.check_hole(&(*index..*index + 1)).is_ok() && self.object.checked.get(*index);
            }
            !stored.is_zeros()
        });
        if !is_hole {
            return false;
        }
        let ends_before = |one: &Stored, next: &Stored| one.offset + u64::from(one.len) == next.offset;
        unchecked.chunk_by(|(_, one), (_, next)| ends_before(one, next)).all(|run| {
            let len = run.iter().map(|(_, stored)| stored.len as usize).sum();
            let (Some((_, first)), Some(mut payloads)) = (run.first(), buffer.get_mut(..len)) else {
                return false;
            };
            extent.read_in_memory(payloads, first.offset).is_ok_and(|got| got == len)
                && run.iter().all(|(index, stored)| {
                    payloads
                        .split_off_mut(..stored.len as usize)
                        .is_some_and(|payload| self.verify(*index, stored, payload).is_ok())
                })
        })
    }

    /// Location of a block that is exact in the data file and described by the log.
    fn stored_at_extent(&self, index: u32, found: Option<Block>) -> Option<Stored> {
        let Block { epoch, stored, .. } = self.known(index, found).ok()?;
        (epoch != DIRTY && stored.in_data && stored.tier == Tier::Exact).then_some(stored)
    }

    /// Whether the beginning of a block is in the page cache.
    pub(in crate::store) fn begins_in_memory(&self, index: u32) -> bool {
        let _reading = self.collection.gate.begin();
        let found = self.object.block(index, self.object.layout());
        let (Some(Ok(extent)), Some(stored)) = (&self.extent, self.stored_at_extent(index, found)) else {
            return false;
        };
        extent.read_in_memory(&mut [0], stored.offset).is_ok_and(|got| got == 1)
    }

    pub(in crate::store) fn file_place(&self, stored: &Stored) -> String {
        let path = self.collection.files.path_of_payload(&self.object, stored);
        format!("{path} at byte {}", stored.offset)
    }

    pub(in crate::store) fn place(&self, index: u32, stored: &Stored) -> String {
        format!("{}, block {index} of object {}", self.file_place(stored), self.object.entry.id)
    }

    /// Verifies the object's factorization, once since the store was opened.
    pub(in crate::store) fn check_factor(&self, link: &FactorLink) -> Result<()> {
        let mut checked = self.object.write_state().factor_checked.lock();
        if *checked != link.epoch {
            self.read_factor(link)?;
            *checked = link.epoch;
        }
        Ok(())
    }

    /// Reads and verifies the object's factorization.
    pub fn read_factor(&self, link: &FactorLink) -> Result<Factor> {
        let place = || {
            let path = self.collection.files.payload_path(FACTOR_FILE);
            format!("{path} at byte {}, object {}", link.offset, self.object.entry.id)
        };
        let read = self.collection.files.read_record(FACTOR_FILE, link.offset, link.len, link.checksum);
        let factor = Factor::parse(&read.map_err(|error| error.at(place()))?);
        let factor = factor.map_err(|error| error.at(place()))?;
        if factor.object != self.object.entry.id || factor.block != link.block() {
            return Err(Error::corrupt(format!("{}: the factors belong to another object", place())));
        }
        Ok(factor)
    }
}

impl OpenObject {
    /// Reports a corrupt block, once until it changes.
    pub(in crate::store) fn report_corruption(&self, index: u32, stored: &Stored, error: Error) -> Error {
        // Another error may be that of a piece which is fetched now.
        if error.kind() == ErrorKind::Corrupt && self.is_new_damage(index, stored, &error) {
            self.tell_of_corruption(&error);
        }
        error
    }

    /// Reports that the outside file of a block has changed. The block is corrupt if it lies there.
    pub(in crate::store) fn report_changed_origin(&self, index: u32, error: Error) -> Error {
        let stored = described(self.object.block(index, self.object.layout()));
        if stored.in_data || stored.tier == Tier::Absent {
            return self.report_corruption(index, &stored, error);
        }
        if self.object.write_state().failed.note_origin(index) {
            self.tell_of_corruption(&error);
        }
        error
    }

    fn tell_of_corruption(&self, error: &Error) {
        let path = self.collection.path_of(&self.object);
        // The bytes came over a network, and no store here has them.
        let kind = if self.is_shown() { EventKind::Remote } else { EventKind::Corruption };
        self.collection.services.events().tell(kind, &path, "read", &error.to_string());
    }

    /// Whether the collection is a snapshot of a remote.
    fn is_shown(&self) -> bool {
        self.collection.files.upstream().is_some_and(|upstream| upstream.snapshots().is_some())
    }

    /// Notes that a block could not be read, so that `why` and the problems of the store say so.
    pub fn note_damage(&self, index: u32, error: &Error) {
        let stored = described(self.object.block(index, self.object.layout()));
        self.is_new_damage(index, &stored, error);
    }

    /// The same. Returns whether the block is corrupt and that was not known.
    fn is_new_damage(&self, index: u32, stored: &Stored, error: &Error) -> bool {
        let failed = || &self.object.write_state().failed;
        let is_new = match error.kind() {
            ErrorKind::Corrupt => failed().note_corrupt(index, stored, &error.to_string()),
            ErrorKind::Io | ErrorKind::Gone | ErrorKind::Forbidden => {
                failed().note_other(index, &error.to_string());
                false
            }
            _ => return false,
        };
        self.collection.footprint.note_unreadable(self.object.entry.id);
        is_new
    }

    /// Notes that blocks were read from their own payloads, or were healed.
    pub(in crate::store) fn note_readable(&self, range: RangeInclusive<u32>) {
        if let Some(write_state) = self.object.existing_write_state() {
            write_state.failed.note_readable(range);
        }
    }
}
