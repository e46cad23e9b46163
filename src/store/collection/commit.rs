//! Appends batches to the log, and syncs them.
//!
//! Payloads are written first, then the batch that names them is appended; a sync makes the payloads
//! durable before the log. Others append while `Collection::sync_unmarked` syncs payloads. A sync of the log makes all
//! appended batches durable, so nothing is appended from the last sync of payloads to that of the log.
//!
//! Space that a batch freed is reused only once the batch is durable, a later Commit says so, and every earlier read has
//! ended. So the bytes that a log with a torn or damaged end leads back to still exist.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::format::log::catalog::Extent;
use crate::format::log::record::Stored;
use crate::model::{EntryId, Error, ErrorKind, Instant, ObjectId, Result};
use crate::store::batch::Batch;
use crate::store::clock::now_seconds;
use crate::store::collection::Collection;
use crate::store::collection::journal::{Due, Writer};
use crate::store::disk::File;
use crate::store::events::EventKind;
use crate::store::link_candidates::is_shared;
use crate::store::log::checkpoint::{Checkpoint, GROWTH, LOG_BYTES_MIN, switch_log, write_draft};
use crate::store::log::validate::check;
use crate::store::object::Object;
use crate::store::object::factors::FACTOR_FILE;
use crate::store::object::links::DELTA_FILE;
use crate::store::space::files::Touched;
use crate::store::state::State;
use crate::store::state::freed_space::Freed;
use crate::trace;

/// Payloads that were written during a shorter sync of others are synced while nobody appends.
const SHORT: Duration = Duration::from_millis(100);
/// Number of syncs of payloads, each of what was written during the one before, while others append.
const ROUNDS_MAX: usize = 4;

impl Collection {
    /// Makes earlier records durable, then [`record`](Self::record)s a batch and makes it durable. The
    /// batch's Commit thus records the earlier ones as durable, and damage to these never counts as a
    /// torn end.
    pub fn commit<T>(
        &self,
        mut touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<T>,
    ) -> Result<T> {
        // Slots that the batch does not name are returned when this is dropped.
        let _slots = std::mem::take(&mut touched.slots);
        {
            // The payloads must be durable before the batch is appended: the system may write the log
            // to the disk by itself, and a name must not become durable before its bytes.
            let writer = &mut *self.writer()?;
            writer.unsynced.merge(touched);
            self.sync_all(writer)?;
        }
        let filled = self.record(Touched::default(), fill)?;
        let writer = &mut *self.writer()?;
        self.sync_all(writer)?;
        if writer.freed.iter().any(|(batch, _)| *batch > writer.log.witnessed()) {
            self.mark_all(writer)?;
        }
        Ok(filled)
    }

    /// Appends the batch that `fill` builds, and applies it. The batch survives a crash of this
    /// process. `fill` runs exclusively: it may read the state and must not do anything slow. `touched`
    /// has the files that were written and the reserved slots; slots that the batch does not name are
    /// freed.
    pub fn record<T>(
        &self,
        touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<T>,
    ) -> Result<T> {
        self.record_then(touched, fill, |_, filled| filled)
    }

    /// [`record`](Self::record), then runs `then` on the state with the batch, before anybody can
    /// change it.
    pub fn record_then<T, U>(
        &self,
        mut touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<T>,
        then: impl FnOnce(&State, T) -> U,
    ) -> Result<U> {
        let _slots = std::mem::take(&mut touched.slots);
        let writer = &mut *self.writer()?;
        writer.unsynced.merge(touched);
        let mut batch = writer.log.begin();
        let filled = fill(&mut batch, &self.state.read_as_writer())?;
        if batch.is_empty() {
            return Ok(then(&self.state.read_as_writer(), filled));
        }
        self.state.read_as_writer().end_consent(&mut batch);
        let changed = self.state.read_as_writer().forget_copies(&mut batch);
        batch.check()?;
        check(&batch, &self.state.read_as_writer(), |object| {
            self.services.lineage().check_not_needed(self.place(), object)
        })?;
        let takes_names = batch.takes_names(&self.state.read_as_writer());
        let mut appended = writer.log.append(&batch);
        let is_full = appended.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full);
        if is_full && writer.log.is_whole() && !writer.freed.is_empty() {
            // Freed space becomes usable when the batches that freed it are durable. The log does not
            // record that here, because the batch already has its sequence numbers.
            self.sync_all(writer)?;
            let synced = writer.log.last();
            self.reclaim_until(writer, synced);
            appended = writer.log.append(&batch);
        }
        if let Err(error) = appended {
            return Err(if writer.log.is_whole() { error } else { self.poison(error) });
        }
        batch.records().iter().for_each(|added| self.reservations.name(&added.record));
        // The log and the state differ now: nothing may be built on them.
        let differs = |error| self.poison(error);
        let mut state = self.state.write();
        let applied = batch.into_records().into_iter().try_for_each(|added| match added.entry {
            Some(entry) => state.apply_entry(entry),
            None => state.apply_record(&added.record, added.sequence, &added.payload),
        });
        state.batch_ended();
        self.footprint.note_change();
        applied.map_err(differs)?;
        self.meter.set_used(state.used());
        for object in changed {
            object.note_change();
        }
        let number = writer.log.batch();
        let parent_is_free = state.freed.iter().any(Freed::frees_parent);
        writer.freed.extend(state.freed.drain(..).map(|freed| (number, freed)));
        drop(state);
        if takes_names {
            self.invalidate_all_names();
        }
        if parent_is_free {
            // The parent may be written to from now on, so this batch must not be rolled back.
            self.mark_all(writer)?;
        } else if writer.is_log_too_long() {
            // The log grows faster than syncs come.
            self.sync_all(writer)?;
        }
        Ok(then(&self.state.read_as_writer(), filled))
    }

    /// Makes all records durable and records that in the log: later damage to them never counts as a
    /// torn end, and freed space can be reused. After a failed sync the content of the disk is unknown,
    /// and the collection accepts no more writes.
    pub fn sync(&self) -> Result<()> {
        if self.has_orphans() {
            self.remove_orphans()?;
        }
        self.sync_unmarked()?;
        self.mark_all(&mut *self.writer()?)?;
        self.reclaim_rest();
        Ok(())
    }

    /// Makes all records durable at half the cost of [`sync`](Self::sync). The next batch or the next
    /// sync records that in the log. Others append batches during most of it.
    pub fn sync_unmarked(&self) -> Result<()> {
        let _turn = self.journal.turn();
        for _ in 0..ROUNDS_MAX {
            let began = Instant::now();
            if !self.sync_beside()? || began.elapsed() < SHORT {
                break;
            }
        }
        self.sync_all(&mut *self.writer()?)
    }

    /// Makes the files written since the last sync durable, while others append. Whether there were any.
    fn sync_beside(&self) -> Result<bool> {
        let mut writer = self.writer()?;
        if writer.unsynced.is_empty() {
            return Ok(false);
        }
        let syncing = self.journal.syncing();
        let touched = std::mem::take(&mut writer.unsynced);
        drop(writer);
        let synced = self.sync_files(&touched);
        // Others take the files for durable from here on, unless the collection is poisoned.
        drop(syncing);
        synced.map(|()| true)
    }

    /// Makes a file of payloads and its name durable before a batch names them, while others append.
    pub fn sync_file(&self, file: &Arc<dyn File>) -> Result<()> {
        let mut touched = Touched::default();
        touched.file(file);
        self.sync_files(&touched)
    }

    fn sync_files(&self, touched: &Touched) -> Result<()> {
        let _span = trace::sync(|| self.path());
        let synced = self.files.sync(touched).map_err(|error| self.poison(error));
        synced.inspect_err(|error| trace::note_failure(error))
    }

    /// [`sync`](Self::sync) if nothing was recorded since the last one. Otherwise
    /// [`sync_unmarked`](Self::sync_unmarked), because more records are likely.
    pub fn sync_or_mark(&self) -> Result<()> {
        if self.has_orphans() {
            self.remove_orphans()?;
        }
        let is_synced = self.writer()?.log.is_synced();
        if !is_synced {
            return self.sync_unmarked();
        }
        self.mark_all(&mut *self.writer()?)?;
        self.reclaim_rest();
        Ok(())
    }

    pub(in crate::store) fn mark_all(&self, writer: &mut Writer) -> Result<()> {
        self.sync_all(writer)?;
        if writer.log.is_marked() {
            return Ok(());
        }
        match writer.log.mark() {
            Ok(()) => self.reclaim(writer),
            // On a full disk, space is worth more than a state that a damaged log could be rolled back
            // to.
            Err(error) if error.kind() == ErrorKind::Full && writer.log.is_whole() => {
                log::info!("{}: the durability mark cannot be written: {error}", self.path());
                let synced = writer.log.batch();
                self.reclaim_until(writer, synced);
            }
            Err(error) => return Err(self.poison(error)),
        }
        Ok(())
    }

    pub(in crate::store) fn sync_all(&self, writer: &mut Writer) -> Result<()> {
        let _span = trace::sync(|| self.path());
        // Another sync may have files that this one then finds durable.
        drop(self.journal.syncing());
        if let Some(reason) = self.poisoned() {
            return Err(self.read_only(reason));
        }
        let touched = std::mem::take(&mut writer.unsynced);
        let synced = self.files.sync(&touched).and_then(|()| writer.log.sync());
        synced.map_err(|error| self.poison(error)).inspect_err(|error| trace::note_failure(error))?;
        self.checkpoint_if_due(writer);
        if let Some(reason) = self.poisoned() {
            return Err(self.read_only(reason));
        }
        self.reclaim(writer);
        Ok(())
    }

    /// Tries to reclaim freed space. Returns whether an operation that found the disk full is worth a
    /// retry.
    pub fn make_room(&self) -> bool {
        let given_up = self.has_freed() || self.reservations.has_returned() || self.has_orphans();
        given_up && self.sync().is_ok()
    }

    /// Whether space was given up that is not free yet.
    pub(in crate::store) fn has_freed(&self) -> bool {
        self.journal.lock().as_ref().is_some_and(|writer| !writer.freed.is_empty())
    }

    /// Notes that the log could not take the writes to a file.
    pub fn note_unrecorded(&self, node: EntryId, error: &Error) {
        let path = self.path_in_mount(node);
        let text =
            format!("the last writes to it are not on the disk yet, and are lost if the mount ends: {error}");
        if self.journal.unrecorded.note(node, &text) {
            log::warn!("{path}: {text}");
            self.event_log().tell(EventKind::Unrecorded, &path, "flush", &text);
        }
    }

    /// Notes that the log has all writes to a file, or that the file is gone.
    pub fn note_recorded(&self, node: EntryId) {
        if self.journal.unrecorded.forget(node) && self.state().node(node).is_some() {
            let (path, text) = (self.path_in_mount(node), "the last writes to it are recorded now");
            self.event_log().tell(EventKind::Unrecorded, &path, "flush", text);
        }
    }

    /// The reason why the log does not have the last writes to a file, if so.
    pub fn unrecorded(&self, node: EntryId) -> Option<String> {
        self.journal.unrecorded.why(node)
    }

    /// The paths, in the mount, of the files with writes that the log does not have, and why.
    pub fn all_unrecorded(&self) -> Vec<(String, String)> {
        let all = self.journal.unrecorded.all();
        let named = all.into_iter().filter(|(node, _)| self.state().node(*node).is_some());
        named.map(|(node, text)| (self.path_in_mount(node), text)).collect()
    }

    fn path_in_mount(&self, node: EntryId) -> String {
        format!("{}/{}", self.path(), String::from_utf8_lossy(&self.state().path(node)))
    }

    /// Frees the stretches of data files whose blocks lie in slots. Earlier objects may have left bytes there.
    pub fn free_left(&self, objects: &[Arc<Object>]) {
        let mut guard = self.journal.lock();
        let Some(writer) = guard.as_mut() else { return };
        let number = writer.log.batch();
        for object in objects.iter().filter(|object| object.origin.is_none()) {
            let (Some(extent), layout) = (object.extent(), object.logged_layout()) else { continue };
            let blocks = object.stored_blocks(0..layout.blocks(), layout);
            let left = blocks.filter(|(_, block)| block.stored.has_slot()).map(|(index, _)| {
                let place = Stored::in_extent(extent.offset + layout.start(index));
                let stored = Stored { len: layout.len(index) as u32, ..place };
                (number, Freed::Stretch { object: object.clone(), stored })
            });
            writer.freed.extend(left);
        }
    }

    /// Bytes of payloads that removed objects give back. Objects of `in_use` are open.
    pub fn removed_bytes(&self, in_use: &HashSet<ObjectId>) -> u64 {
        let guard = self.journal.lock();
        let Some(writer) = guard.as_ref() else { return 0 };
        let removed = writer.freed.iter().filter_map(|(_, freed)| match freed {
            Freed::Object(object) if !in_use.contains(&object.entry.id) => Some(object),
            _ => None,
        });
        let removed: Vec<_> = {
            let state = self.state.read();
            let is_last = |extent: &Extent| !state.has_extent(extent.file);
            let own = |object: &Arc<Object>| object.extent().filter(|_| object.origin.is_none());
            removed.map(|object| (object, own(object).filter(is_last))).collect()
        };
        let bytes_of = |(object, extent): (&Arc<Object>, Option<Extent>)| {
            let file = extent.and_then(|extent| self.data_file(extent.file).ok());
            let frees_file = file.is_some_and(|file| !is_shared(&*file));
            let blocks = object.blocks.read();
            let payloads = blocks.pieces(object.layout()).map(|(_, block)| block.stored);
            let gone = payloads.filter(|stored| if stored.in_data { frees_file } else { stored.has_slot() });
            gone.map(|stored| u64::from(stored.len)).sum::<u64>()
        };
        removed.into_iter().map(bytes_of).sum()
    }

    /// Makes the payloads that a replayed log names durable, then the log itself, because the previous
    /// writer may not have synced them. Afterwards the space that the log freed can be reused. Records
    /// up to sequence number `durable` are known to be durable.
    pub(in crate::store) fn sync_unsure(&self, durable: u64) -> Result<()> {
        let mut writer = self.journal.lock();
        let Some(writer) = writer.as_mut() else { return Ok(()) };
        let mut found: HashSet<(bool, u64)> = HashSet::new();
        if self.state.read().relocated > durable {
            // The state does not tell which blocks were relocated.
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
            let file =
                if in_data { self.data_file(number) } else { self.files.payload_file_made(tier, false) };
            // A missing file is reported to its readers.
            touched.files.extend(file.ok());
        }
        self.files.sync(&touched)?;
        writer.log.sync()?;
        let is_last = |extent: Extent| !self.state.read().has_extent(extent.file);
        let gives_up_files = writer.freed.iter().any(|(_, freed)| match freed {
            Freed::Object(object) => object.extent().is_some_and(is_last),
            _ => false,
        });
        // Data files that its last batches freed can go once the log records them as durable.
        if gives_up_files { self.mark_all(writer) } else { Ok(()) }
    }

    /// Makes the collection refuse writes after a failed sync, because a second sync would report
    /// success.
    pub(in crate::store) fn poison(&self, error: Error) -> Error {
        let reason = format!("{error}; unmount, check the disk, run tierfs fsck, and mount again");
        if self.journal.poison(&reason) {
            self.services.events().tell(EventKind::Poisoned, &self.path(), "sync", &reason);
            log::error!("{} takes no more writes: {reason}", self.path());
        }
        error
    }

    /// Checkpoints the log if it has grown enough. Everything recorded must be durable. After a failure
    /// the old log stays in use, and the next attempt is made when it has grown more.
    fn checkpoint_if_due(&self, writer: &mut Writer) {
        let bytes = writer.log.bytes();
        let has_shrunk = bytes >= LOG_BYTES_MIN && writer.due.has_shrunk(&self.state.read());
        if bytes < writer.due.at && !has_shrunk {
            return;
        }
        // The state has grown or shrunk since this was computed.
        let least = if has_shrunk { 0 } else { writer.due.least };
        writer.due = Due::new(&self.state.read(), least);
        if bytes < writer.due.at {
            return;
        }
        if let Err(error) = self.checkpoint(writer) {
            log::warn!("{}: the log cannot be rewritten: {error}", self.path());
            writer.due.at = writer.log.bytes() * 2;
            writer.due.least = writer.due.at;
        }
    }

    /// Makes everything recorded durable and checkpoints the log. `Busy` while an object is being
    /// truncated.
    pub fn checkpoint_now(&self) -> Result<Checkpoint> {
        let writer = &mut *self.writer()?;
        self.sync_all(writer)?;
        self.checkpoint(writer)
    }

    fn checkpoint(&self, writer: &mut Writer) -> Result<Checkpoint> {
        let before = writer.log.bytes();
        let state = self.state.read();
        let (disk, path) = (self.files.disk(), self.files.path());
        let generation = writer.log.generation().wrapping_add(1);
        let log =
            write_draft(disk, path, self.identity.store(), &state, generation, writer.log.next_sequence())?;
        // After a failure it is unknown which of the two logs a power cut would leave.
        switch_log(disk, path).map_err(|error| self.poison(error))?;
        writer.log = log;
        writer.due = Due::new(&state, writer.log.bytes() * GROWTH);
        // The new log is durable and no longer names the freed space.
        for (batch, _) in &mut writer.freed {
            *batch = 0;
        }
        let done = Checkpoint { at: now_seconds(), before, after: writer.log.bytes() };
        self.journal.note_checkpoint(done);
        let text = format!("meta.log of {before} bytes has {} now", done.after);
        self.event_log().tell(EventKind::Compaction, path, "compact", &text);
        Ok(done)
    }
}
