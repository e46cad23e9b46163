//! Appends batches to `meta.log`. A batch takes effect with the Commit at its end; a small one is a single
//! record.
//!
//! Some space behind the end stays reserved, so that files can be removed when the disk is full: only
//! batches that free space may use it.

use std::io::ErrorKind;
use std::sync::Arc;

use crate::format::checksum;
use crate::format::log::record::{LOG_VERSION, Record};
use crate::format::log::slot::{RawSlot, SEQUENCE_MAX, SLOT_BYTES};
use crate::format::log::small_batch::{self, HEAD_BYTES, ItemRef};
use crate::model::{Error, Result, StoreId};
use crate::store::batch::{Batch, BatchRecord};
use crate::store::disk::File;

/// Bytes kept allocated behind the end of the log.
const RESERVE_BYTES: u64 = 64 << 10;
/// Bytes allocated at a time beyond the reserve.
const RESERVE_STEP_BYTES: u64 = 64 << 10;
/// One bad sector destroys at most this many bytes. The marks of [`Log::mark`] end in a later page of
/// this size than the batch before them.
const PAGE_BYTES: u64 = 4096;

/// The open log of a collection, positioned at its end.
pub struct Log {
    file: Arc<dyn File>,
    generation: u64,
    end: u64,
    batch: u64,
    /// The last batch that has records. Batches after it are marks.
    last: u64,
    synced: u64,
    /// The last batch that a later Commit records as durable.
    recorded_durable: u64,
    /// Value of `recorded_durable` at the last sync, so the Commit that says it is durable.
    witnessed: u64,
    next_sequence: u64,
    failed: bool,
    /// Offset up to which the file is known to have space allocated.
    reserved: u64,
}

/// The end of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogEnd {
    /// Generation of the log.
    pub generation: u64,
    /// Bytes up to the last Commit.
    pub bytes: u64,
    /// The number of the last batch.
    pub batch: u64,
    /// The number of the last batch that has records.
    pub last: u64,
    /// The number of the last batch that a later Commit records as durable.
    pub recorded_durable: u64,
    /// The next record's sequence number.
    pub next_sequence: u64,
}

impl LogEnd {
    /// The end of an empty log of this generation: just after its header.
    pub fn begin(generation: u64) -> LogEnd {
        LogEnd {
            generation,
            bytes: SLOT_BYTES as u64,
            batch: 0,
            last: 0,
            recorded_durable: 0,
            next_sequence: 1,
        }
    }
}

impl Log {
    /// Starts a log: writes its header. The caller makes the file's name durable.
    pub fn create(file: Arc<dyn File>, store: StoreId, generation: u64) -> Result<Log> {
        let mut slot = Record::Header { version: LOG_VERSION, store, generation }.to_slot();
        slot.seal(generation, 0);
        let failed = |error| Error::io("writing the header of meta.log", error);
        file.write_at(&slot.0, 0).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        Ok(Log::resume(file, LogEnd::begin(generation)))
    }

    /// Opens a log at the end that replay found.
    pub fn resume(file: Arc<dyn File>, end: LogEnd) -> Log {
        Log {
            file,
            generation: end.generation,
            end: end.bytes,
            batch: end.batch,
            last: end.last,
            // The previous writer may have crashed before it synced the last batch.
            synced: end.batch.saturating_sub(1),
            recorded_durable: end.recorded_durable,
            witnessed: 0,
            next_sequence: end.next_sequence,
            failed: false,
            reserved: 0,
        }
    }

    /// The same for a log that is durable as a whole.
    pub fn resume_durable(file: Arc<dyn File>, end: LogEnd) -> Log {
        Log { synced: end.batch, witnessed: end.recorded_durable, ..Log::resume(file, end) }
    }

    /// Starts a batch. The caller makes sure that only one is in flight.
    pub fn begin(&self) -> Batch {
        Batch::new(self.next_sequence)
    }

    /// Length in bytes up to the last Commit.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// Whether the log accepts batches. It does until a failure leaves its end unknown.
    pub fn is_whole(&self) -> bool {
        !self.failed
    }

    /// Appends the batch and its Commit. If the disk is full, the partial write is truncated and
    /// nothing has changed. After any other failure the content of the log is unknown, and the log
    /// accepts no more batches.
    pub fn append(&mut self, batch: &Batch) -> Result<()> {
        self.check()?;
        if batch.next_sequence() > SEQUENCE_MAX {
            let text = "meta.log has used the largest record number";
            return Err(Error::new(crate::model::ErrorKind::Full, text));
        }
        let number = self.batch + 1;
        let unsynced = self.unsynced_before(number);
        let bytes = small_bytes(batch, self.generation, number, unsynced)
            .unwrap_or_else(|| batch_bytes(batch, self.generation, number, unsynced));
        self.write(&bytes, batch.frees_space())?;
        self.batch += 1;
        self.last = self.batch;
        self.recorded_durable = self.synced;
        self.next_sequence = batch.next_sequence() + 1;
        Ok(())
    }

    /// The number of batches before batch `number` that are not known to be durable. Its Commit records
    /// this: if a batch is lost while later ones survive, and none of these says that it was durable, it
    /// was torn.
    fn unsynced_before(&self, number: u64) -> u32 {
        u32::try_from((number - 1).saturating_sub(self.synced)).unwrap_or(u32::MAX)
    }

    /// Writes at the end. If the disk is full, the partial write is truncated.
    fn write(&mut self, bytes: &[u8], may_use_reserve: bool) -> Result<()> {
        self.reserve(bytes.len() as u64, may_use_reserve)?;
        if let Err(error) = self.file.write_at(bytes, self.end) {
            let is_full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
            self.failed = !is_full || self.file.set_len(self.end).is_err();
            // Truncating frees the reserve too.
            self.reserved = 0;
            return Err(Error::io("appending to meta.log", error));
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Whether durable Commits record every batch as durable. A bad batch is then damage, not a torn
    /// end.
    pub fn is_marked(&self) -> bool {
        self.witnessed >= self.last
    }

    /// Records that all batches are durable (the caller has synced them) and makes that record durable.
    /// Appends batches without records until they reach a page that no earlier batch lies in, so that
    /// no single bad sector takes both.
    pub fn mark(&mut self) -> Result<()> {
        self.check()?;
        let count = (self.end.next_multiple_of(PAGE_BYTES) - self.end) / SLOT_BYTES as u64 + 1;
        if self.next_sequence + count > SEQUENCE_MAX || self.synced < self.batch {
            return Ok(());
        }
        let nothing = checksum::of(&[]);
        let mark = |place| {
            let number = self.batch + 1 + place;
            let unsynced = self.unsynced_before(number);
            let mark = Record::Commit { batch: number, slots: 0, checksum: nothing, unsynced };
            sealed(&mark, self.generation, self.next_sequence + place)
        };
        let bytes: Vec<u8> = (0..count).flat_map(|place| mark(place).0).collect();
        self.write(&bytes, true)?;
        self.recorded_durable = self.batch;
        self.batch += count;
        self.next_sequence += count;
        self.sync()
    }

    /// Allocates space for `bytes` more and for the reserve behind them. `Full` if the disk is full,
    /// unless the batch may use the reserve.
    fn reserve(&mut self, bytes: u64, may_use: bool) -> Result<()> {
        let needed = self.end.saturating_add(bytes).saturating_add(RESERVE_BYTES);
        if self.reserved >= needed {
            return Ok(());
        }
        let is_full = |error: &std::io::Error| {
            matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
        };
        for until in [needed.saturating_add(RESERVE_STEP_BYTES), needed] {
            match self.file.reserve(self.end, until - self.end) {
                Ok(()) => {
                    self.reserved = until;
                    return Ok(());
                }
                Err(error) if is_full(&error) && until == needed && !may_use => {
                    return Err(Error::io("making room in meta.log", error));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Makes all batches durable. After a failure the log accepts no more batches.
    pub fn sync(&mut self) -> Result<()> {
        self.check()?;
        if self.synced < self.batch {
            if let Err(error) = self.file.sync_data() {
                self.failed = true;
                return Err(Error::io("syncing meta.log", error));
            }
            self.synced = self.batch;
            self.witnessed = self.recorded_durable;
        }
        Ok(())
    }

    /// The generation of the log.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The sequence number of the next record.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Continues the sequence numbers of the log that this one replaces.
    pub fn continue_from(&mut self, next_sequence: u64) {
        self.next_sequence = self.next_sequence.max(next_sequence);
    }

    /// The number of the last batch.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// The number of the last batch that has records.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Whether nothing was appended since the last sync.
    pub fn is_synced(&self) -> bool {
        self.synced == self.batch
    }

    /// The number of the last batch that a durable later Commit records as durable. A damaged end of
    /// the log cannot roll the collection back past it.
    pub fn witnessed(&self) -> u64 {
        self.witnessed
    }

    fn check(&self) -> Result<()> {
        if self.failed {
            return Err(Error::new(
                crate::model::ErrorKind::ReadOnly,
                "meta.log could not be written before; unmount, run tierfs fsck, and mount again",
            ));
        }
        Ok(())
    }
}

/// The bytes of a batch with its Commit, in a log of this generation. `unsynced` batches before it are not
/// known to be durable.
pub(in crate::store) fn batch_bytes(batch: &Batch, generation: u64, number: u64, unsynced: u32) -> Vec<u8> {
    let slots = batch.slots();
    let mut bytes = Vec::with_capacity((slots as usize + 1) * SLOT_BYTES);
    let mut checksums = Vec::with_capacity(batch.records().len() * 4);
    for BatchRecord { record, sequence, payload, .. } in batch.records() {
        let slot = sealed(record, generation, *sequence);
        checksums.extend(slot.checksum().to_le_bytes());
        append(&mut bytes, &slot, payload);
    }
    let checksum = checksum::of(&checksums);
    let commit = Record::Commit { batch: number, slots: slots as u32, checksum, unsynced };
    append(&mut bytes, &sealed(&commit, generation, batch.next_sequence()), &[]);
    bytes
}

/// The record that holds a whole small batch; `None` if the batch is too large or has other kinds of records.
fn small_bytes(batch: &Batch, generation: u64, number: u64, unsynced: u32) -> Option<Vec<u8>> {
    let first = batch.records().first()?.sequence;
    let is_next = |(place, added): (usize, &BatchRecord)| added.sequence == first + place as u64;
    let count = u16::try_from(batch.records().len()).ok()?;
    if !batch.records().iter().enumerate().all(is_next) || batch.next_sequence() != first + u64::from(count) {
        return None;
    }
    let records = batch.records().iter();
    let mut content = small_batch::content(
        first,
        records.map(|added| match &added.entry {
            Some(entry) => ItemRef::Entry(entry),
            None => ItemRef::Record(&added.record),
        }),
    )?;
    let tail = content.split_off(content.len().min(HEAD_BYTES));
    content.resize(HEAD_BYTES, 0);
    let head = *content.first_chunk()?;
    let (len, checksum) = (tail.len() as u32, checksum::of(&tail));
    let small = Record::Small { batch: number, unsynced, len, checksum, count, head };
    let mut bytes = Vec::with_capacity(2 * SLOT_BYTES);
    append(&mut bytes, &sealed(&small, generation, first), &tail);
    Some(bytes)
}

fn sealed(record: &Record, generation: u64, sequence: u64) -> RawSlot {
    let mut slot = record.to_slot();
    slot.seal(generation, sequence);
    slot
}

fn append(bytes: &mut Vec<u8>, slot: &RawSlot, payload: &[u8]) {
    bytes.extend(slot.0);
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(SLOT_BYTES), 0);
}
