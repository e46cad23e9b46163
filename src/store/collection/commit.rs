//! Batches into the log, and the syncs that make them durable.
//!
//! Order: payloads are written, the batch that names them is appended; a sync makes the
//! payloads durable before the log. What a batch freed is used again only once the batch
//! is durable, a later Commit says so, and every read that began before has ended: a log whose
//! end is torn or damaged leads back to bytes that are still there.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::format::log::catalog::Extent;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Collection;
use crate::store::collection::{Touched, Writer};
use crate::store::events::EventKind;
use crate::store::log::append::Batch;
use crate::store::log::pending_batch::checksums_of;
use crate::store::log::validate::check;
use crate::store::object::Freed;
use crate::store::object::deltas::DELTA_FILE;
use crate::store::object::factors::FACTOR_FILE;
use crate::store::state::State;

impl Collection {
    /// [`record`](Self::record), made durable. What was recorded before is made
    /// durable first, so that the log says so: damage to it is never taken for a torn end.
    pub fn commit<T>(
        &self,
        mut touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<T>,
    ) -> Result<T> {
        // Those that the batch does not name go back at the end.
        let _slots = std::mem::take(&mut touched.slots);
        {
            // Before the batch, not only before its sync: the system may write the log to the
            // disk by itself, and a name must not be there before its bytes.
            let mut writer = self.writer.lock();
            let writer = self.writable(&mut writer)?;
            writer.unsynced.merge(touched);
            self.sync_all(writer)?;
        }
        let filled = self.record(Touched::default(), fill)?;
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        self.sync_all(writer)?;
        if writer.freed.iter().any(|(batch, _)| *batch > writer.log.witnessed()) {
            self.mark_all(writer)?;
        }
        Ok(filled)
    }

    /// Appends what `fill` puts into a batch and takes it in: it survives the end of this
    /// process. `fill` runs alone: it may look at the state, and at nothing slow.
    /// `touched` are the files that were written, and the slots that were taken: those that
    /// the batch does not name are free again.
    pub fn record<T>(
        &self,
        touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<T>,
    ) -> Result<T> {
        self.record_then(touched, fill, |_, filled| filled)
    }

    /// [`record`](Self::record); `then` sees the state with the batch, before anybody else can
    /// change it.
    pub fn record_then<T, U>(
        &self,
        mut touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<T>,
        then: impl FnOnce(&State, T) -> U,
    ) -> Result<U> {
        let _slots = std::mem::take(&mut touched.slots);
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        writer.unsynced.merge(touched);
        let mut batch = writer.log.begin();
        let filled = fill(&mut batch, &self.state.read())?;
        if batch.is_empty() {
            return Ok(then(&self.state.read(), filled));
        }
        self.state.read().end_consent(&mut batch);
        let changed = self.state.read().forget_copies(&mut batch);
        batch.check()?;
        check(&batch, &self.state.read(), &self.lineage)?;
        let takes_names = batch.takes_names(&self.state.read());
        let mut appended = writer.log.append(&batch);
        let is_full = appended.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full);
        if is_full && writer.log.is_whole() && !writer.freed.is_empty() {
            // What was given up gives its space back when that is durable. The log does not say so
            // here: the batch has its numbers already.
            self.sync_all(writer)?;
            let synced = writer.log.last();
            self.reclaim_until(writer, synced);
            appended = writer.log.append(&batch);
        }
        if let Err(error) = appended {
            return Err(if writer.log.is_whole() { error } else { self.poison(error) });
        }
        batch.records().iter().for_each(|added| self.reservations.name(&added.record));
        // The log says what cannot be: nothing may be built on it.
        let differs = |error| self.poison(error);
        let mut state = self.state.write();
        let applied = batch.into_records().into_iter().try_for_each(|added| match added.entry {
            Some(entry) => state.apply_entry(entry),
            None => {
                let checksums = checksums_of(&added.payload);
                state.apply_record(&added.record, added.sequence, checksums)
            }
        });
        state.batch_ended();
        applied.map_err(differs)?;
        self.meter.set_used(state.used());
        for object in changed {
            object.changes.fetch_add(1, Ordering::AcqRel);
        }
        let number = writer.log.batch();
        let parent_is_free = state.freed.iter().any(Freed::frees_parent);
        writer.freed.extend(state.freed.drain(..).map(|freed| (number, freed)));
        drop(state);
        if takes_names {
            self.names_are_old();
        }
        if parent_is_free {
            // The parent may be written to from now on: this must not come back.
            self.mark_all(writer)?;
        } else if writer.is_log_too_long() {
            // A log that grows faster than syncs come is made short here.
            self.sync_all(writer)?;
        }
        Ok(then(&self.state.read(), filled))
    }

    /// Makes everything durable that was recorded, and the log says so: damage to what it had by
    /// then is never taken for a torn end, and what was given up is free. After a failed sync
    /// nobody knows what is on the disk: the collection takes no more writes.
    pub fn sync(&self) -> Result<()> {
        if self.has_orphans() {
            self.remove_orphans()?;
        }
        let mut writer = self.writer.lock();
        self.mark_all(self.writable(&mut writer)?)
    }

    /// Makes everything durable that was recorded, for half the price of [`sync`](Self::sync): the
    /// next batch or the next sync says that it is.
    pub fn sync_unmarked(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        self.sync_all(self.writable(&mut writer)?)
    }

    /// [`sync`](Self::sync) where nothing was recorded since the last time; else
    /// [`sync_unmarked`](Self::sync_unmarked), as more is to be expected.
    pub fn sync_or_mark(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        if writer.log.is_synced() { self.mark_all(writer) } else { self.sync_all(writer) }
    }

    pub(in crate::store) fn mark_all(&self, writer: &mut Writer) -> Result<()> {
        self.sync_all(writer)?;
        if writer.log.is_marked() {
            return Ok(());
        }
        match writer.log.mark() {
            Ok(()) => self.reclaim(writer),
            // Room is worth more than what a damaged end of the log could go back to.
            Err(error) if error.kind() == ErrorKind::Full && writer.log.is_whole() => {
                log::info!("{}: no room to say that all is durable: {error}", self.path());
                let synced = writer.log.batch();
                self.reclaim_until(writer, synced);
            }
            Err(error) => return Err(self.poison(error)),
        }
        Ok(())
    }

    pub(in crate::store) fn sync_all(&self, writer: &mut Writer) -> Result<()> {
        let touched = std::mem::take(&mut writer.unsynced);
        self.sync_files(&touched).and_then(|()| writer.log.sync()).map_err(|error| self.poison(error))?;
        self.compact_if_due(writer);
        if let Some(reason) = self.poisoned() {
            return Err(self.read_only(reason));
        }
        self.reclaim(writer);
        Ok(())
    }

    /// Whether space has come free that was given up before: worth trying again what found
    /// the disk full.
    pub fn make_room(&self) -> bool {
        let has_freed = self.writer.lock().as_ref().is_some_and(|writer| !writer.freed.is_empty());
        let given_up = has_freed || self.reservations.has_returned() || self.has_orphans();
        given_up && self.sync().is_ok()
    }

    fn sync_files(&self, touched: &Touched) -> Result<()> {
        for file in &touched.files {
            file.sync_data().map_err(|error| Error::io(format!("syncing {}", self.path()), error))?;
        }
        if !touched.files.is_empty() {
            for directory in [format!("{}/data", self.path()), self.path()] {
                let synced = self.disk.sync_directory(&directory);
                synced.map_err(|error| Error::io(format!("syncing {directory}"), error))?;
            }
        }
        Ok(())
    }

    /// Makes durable what a log that was read back says and may not be: its payloads, then
    /// itself. The space that it gave up is used again after this. Records of at most the
    /// number `durable` are durable.
    pub(in crate::store) fn sync_unsure(&self, durable: u64) -> Result<()> {
        let mut writer = self.writer.lock();
        let Some(writer) = writer.as_mut() else { return Ok(()) };
        let mut found: HashSet<(bool, u64)> = HashSet::new();
        if self.state.read().relocated > durable {
            // Which blocks these were is not known any more.
            found.extend((0..DELTA_FILE).map(|tier| (false, u64::from(tier))));
        }
        for object in self.state.read().objects() {
            let blocks = object.blocks.read();
            let unsure = blocks.pieces(object.layout()).filter(|(_, block)| block.epoch > durable);
            if !object.links().is_empty() {
                found.insert((false, u64::from(DELTA_FILE)));
            }
            if object.factor().is_some() {
                found.insert((false, u64::from(FACTOR_FILE)));
            }
            if let Some(extent) = object.extent().filter(|_| object.origin.is_none())
                && object.grown.load(Ordering::Relaxed) > durable
            {
                found.insert((true, extent.file));
            }
            let unsure = unsure.filter(|(_, block)| !block.stored.is_zeros());
            let unsure = unsure.filter(|(_, block)| !block.stored.in_data || object.origin.is_none());
            found.extend(unsure.map(|(_, block)| match (block.stored.in_data, object.extent()) {
                (true, Some(extent)) => (true, extent.file),
                _ => (false, u64::from(block.stored.tier.byte())),
            }));
        }
        let mut touched = Touched::default();
        for (in_data, number) in found {
            let tier = u8::try_from(number).unwrap_or(u8::MAX);
            let file = if in_data { self.data_file(number) } else { self.tier_file_made(tier, false) };
            // One that is gone is told to whoever reads it.
            touched.files.extend(file.ok());
        }
        self.sync_files(&touched)?;
        writer.log.sync()?;
        let is_last = |extent: Extent| !self.state.read().has_extent(extent.file);
        let gives_up_files = writer.freed.iter().any(|(_, freed)| match freed {
            Freed::Object(object) => object.extent().is_some_and(is_last),
            _ => false,
        });
        // Files that it gave up last go once it says so.
        if gives_up_files { self.mark_all(writer) } else { Ok(()) }
    }

    /// After a failed sync asking again would say that all is well: the collection takes
    /// no more writes.
    pub(in crate::store) fn poison(&self, error: Error) -> Error {
        let reason = format!("{error}; unmount, look after the disk, run tierfs fsck, and mount again");
        if self.poisoned.set(reason.clone()).is_ok() {
            self.event_log.tell(EventKind::Poisoned, &self.path(), "sync", &reason);
            log::error!("{} takes no more writes: {reason}", self.path());
        }
        error
    }

    /// Why it takes no more writes since a sync failed, if one did.
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.get().map(String::as_str)
    }
}
