//! Batches into the log, and the syncs that make them durable.
//!
//! Order: payloads are written, the batch that names them is appended; a sync makes the
//! payloads durable before the log. What a batch freed is used again only once the batch
//! is durable and every read that began before has ended.

use std::sync::Arc;

use crate::format::record::Stored;
use crate::model::{Error, Result};
use crate::store::Collection;
use crate::store::collection::{Touched, Writer};
use crate::store::log::Batch;
use crate::store::object::Freed;
use crate::store::state::State;

impl Collection {
    /// [`record`](Self::record), then [`sync`](Self::sync).
    pub fn commit<T>(
        &self,
        touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<T>,
    ) -> Result<T> {
        let filled = self.record(touched, fill)?;
        self.sync()?;
        Ok(filled)
    }

    /// Appends what `fill` puts into a batch and takes it in: it survives the end of this
    /// process. `fill` runs alone: it may look at the state, and at nothing slow.
    /// `touched` are the files that were written and that the batch names.
    pub fn record<T>(
        &self,
        touched: Touched,
        fill: impl FnOnce(&mut Batch, &State) -> Result<T>,
    ) -> Result<T> {
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        writer.unsynced.merge(touched);
        let mut batch = writer.log.begin();
        let filled = fill(&mut batch, &self.state.read())?;
        if batch.is_empty() {
            return Ok(filled);
        }
        batch.check()?;
        if let Err(error) = writer.log.append(&batch) {
            return Err(if writer.log.is_whole() { error } else { self.poison(error) });
        }
        // The log says what cannot be: nothing may be built on it.
        let differs = |error| self.poison(error);
        let mut state = self.state.write();
        let mut places = u64::MAX;
        for added in batch.into_records() {
            if let Some(entry) = added.entry {
                state.apply_entry(entry).map_err(differs)?;
                continue;
            }
            let numbers = added.payload.chunks_exact(4);
            let checksums = numbers.map(|four| u32::from_le_bytes(four.try_into().unwrap_or_default()));
            let applied = state.apply_record(&added.record, added.sequence, checksums.collect(), &mut places);
            applied.map_err(differs)?;
        }
        let number = writer.log.batch();
        writer.freed.extend(state.freed.drain(..).map(|freed| (number, freed)));
        Ok(filled)
    }

    /// Makes everything durable that was recorded. After a failed sync nobody knows what
    /// is on the disk: the collection takes no more writes.
    pub fn sync(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        let touched = std::mem::take(&mut writer.unsynced);
        self.sync_files(&touched).and_then(|()| writer.log.sync()).map_err(|error| self.poison(error))?;
        self.reclaim(writer);
        Ok(())
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

    /// After a failed sync asking again would say that all is well: the collection takes
    /// no more writes.
    fn poison(&self, error: Error) -> Error {
        let reason = format!("{error}; unmount, look after the disk, run tierfs fsck, and mount again");
        let reason = self.poisoned.get_or_init(|| reason);
        log::error!("{} takes no more writes: {reason}", self.path());
        error
    }

    /// Why it takes no more writes since a sync failed, if one did.
    pub fn poisoned(&self) -> Option<&str> {
        self.poisoned.get().map(String::as_str)
    }

    /// Gives back what no reader and no record needs any more.
    pub(super) fn reclaim(&self, writer: &mut Writer) {
        if writer.freed.is_empty() {
            return;
        }
        let durable = writer.log.synced();
        let is_free = |(batch, freed): &mut (u64, Freed)| {
            *batch <= durable
                && match freed {
                    Freed::Payload(_) => true,
                    // An open file keeps what it opened.
                    Freed::Object(object) => Arc::strong_count(object) == 1,
                }
        };
        let free: Vec<(u64, Freed)> = writer.freed.extract_if(.., is_free).collect();
        // Reads that looked up a place before it was freed have ended after this.
        drop(self.reading.write());
        for (_, freed) in free {
            match freed {
                Freed::Payload(stored) => give_back(writer, &stored),
                Freed::Object(object) => {
                    let cut = object.cut();
                    for (_, block) in object.blocks.read().described(cut) {
                        give_back(writer, &block.stored);
                    }
                    for written in object.dirty.read().values() {
                        let len = object.entry.block_bytes;
                        give_back(writer, &Stored { len, ..*written });
                    }
                    self.remove_home(&object);
                }
            }
        }
    }

    /// Removes an object's data file if no other object lies in it. What is open stays
    /// readable; a file that cannot be removed is found when the store is opened again.
    fn remove_home(&self, object: &crate::store::object::Object) {
        let Some(home) = object.home() else { return };
        if self.state.read().has_home(home.file) {
            return;
        }
        self.remove_data_file(home.file);
    }
}

/// Makes a payload's slot free.
fn give_back(writer: &mut Writer, stored: &Stored) {
    if stored.in_data || stored.len == 0 {
        return;
    }
    // Where the free space was never asked for, it will be found around what is used.
    if let Some(Some(slots)) = writer.slots.get_mut(usize::from(stored.tier.byte())) {
        slots.give(stored.offset, u64::from(stored.len));
    }
}
