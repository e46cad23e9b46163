//! Records that were read and wait for the Commit of their batch.

use crate::format::log::block_record::BlockRecord;
use crate::format::log::catalog::{Entry, NODE, OBJECT, ObjectEntry};
use crate::format::log::record::Record;
use crate::format::log::small_batch;
use crate::model::{Error, ObjectId, Result};
use crate::store::log::refused_entries::RefusedEntries;
use crate::store::state::State;

/// Records that take effect once the Commit of their batch has verified. Reused for the next batch, so
/// that records need no allocation of their own.
#[derive(Default)]
pub(in crate::store) struct PendingBatch {
    records: Vec<PendingRecord>,
    /// Content of the block records, in order.
    blocks: Vec<BlockRecord>,
    /// Records of other kinds with their sequence numbers, in order.
    others: Vec<(Record, u64)>,
    /// Payloads, in order.
    payloads: Vec<u8>,
}

enum PendingRecord {
    /// This many of `blocks`, all of one object.
    Blocks(usize),
    /// A catalog entry with the length of its payload in `payloads`.
    Entry { kind: u8, version: u8, bytes: u32, sequence: u64 },
    /// One of `others`, and how many bytes of `payloads` follow it: the array of a run.
    Other { bytes: usize },
}

// Import batches have many of these.
const _: () = assert!(size_of::<PendingRecord>() <= 16);

impl PendingBatch {
    /// Adds a record and its payload.
    pub fn push(&mut self, record: Record, sequence: u64, payload: &[u8]) {
        if let Some(placed) = BlockRecord::of(&record, sequence) {
            return self.push_block(placed);
        }
        self.payloads.extend_from_slice(payload);
        self.records.push(match record {
            Record::Catalog { kind, version, len, .. } => {
                PendingRecord::Entry { kind, version, bytes: len, sequence }
            }
            _ => {
                self.others.push((record, sequence));
                PendingRecord::Other { bytes: payload.len() }
            }
        });
    }

    /// Adds the records of a small batch, the first with the number `sequence`. `Corrupt` if it has not as
    /// many as it says.
    pub fn push_small(&mut self, head: &[u8], tail: &[u8], sequence: u64, count: u16) -> Result<()> {
        let items = small_batch::items(sequence, &[head, tail].concat())?;
        if items.len() != usize::from(count) {
            return Err(Error::corrupt(format!("a small batch of {} records has {count}", items.len())));
        }
        for (sequence, item) in (sequence..).zip(items) {
            let (record, payload) = item.into_record();
            self.push(record, sequence, &payload);
        }
        Ok(())
    }

    /// Adds the content of a block record.
    #[inline]
    pub fn push_block(&mut self, placed: BlockRecord) {
        let before = self.blocks.last().map(|before| before.object);
        match self.records.last_mut() {
            Some(PendingRecord::Blocks(count)) if before == Some(placed.object) => *count += 1,
            _ => self.records.push(PendingRecord::Blocks(1)),
        }
        self.blocks.push(placed);
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Removes all records.
    pub fn clear(&mut self) {
        self.records.clear();
        self.blocks.clear();
        self.others.clear();
        self.payloads.clear();
    }

    /// Applies the records in order. Calls `failed` with the number of each record that cannot be
    /// applied and the reason; an error from `failed` ends the call. Catalog entries that cannot be
    /// applied are added to `refused`, if given.
    pub fn apply(
        &self,
        state: &mut State,
        mut refused: Option<&mut RefusedEntries>,
        mut failed: impl FnMut(u64, Error) -> Result<()>,
    ) -> Result<()> {
        let (mut blocks, mut payloads) = (self.blocks.as_slice(), self.payloads.as_slice());
        let mut others = self.others.iter();
        state.make_room(self.count_of(OBJECT), self.count_of(NODE));
        let applied = self.records.iter().try_for_each(|pending| match *pending {
            PendingRecord::Entry { kind, version, bytes, sequence } => {
                let entry = Entry::parse(kind, version, next(&mut payloads, bytes as usize));
                let applied = apply_entry(entry, sequence, state, refused.as_deref_mut());
                applied.or_else(|error| failed(sequence, error))
            }
            PendingRecord::Other { bytes } => {
                let Some((record, sequence)) = others.next() else { return Ok(()) };
                let applied = state.apply_record(record, *sequence, next(&mut payloads, bytes));
                applied.or_else(|error| failed(*sequence, error))
            }
            PendingRecord::Blocks(count) => state.apply_blocks(next(&mut blocks, count), &mut failed),
        });
        state.batch_ended();
        applied
    }
}

impl PendingBatch {
    /// The highest sequence number of the records.
    pub fn last_sequence(&self) -> u64 {
        let entries = self.records.iter().map(|pending| match pending {
            PendingRecord::Entry { sequence, .. } => *sequence,
            _ => 0,
        });
        let blocks = self.blocks.iter().map(|placed| placed.sequence);
        let others = self.others.iter().map(|(_, sequence)| *sequence);
        entries.chain(blocks).chain(others).max().unwrap_or(0)
    }

    /// Applies the records about objects and the location of their blocks, ignoring later changes. An
    /// object that only `known` has is created without blocks. Records that cannot be applied are
    /// skipped.
    pub fn apply_objects(&self, state: &mut State, known: &State) {
        let (mut blocks, mut payloads) = (self.blocks.as_slice(), self.payloads.as_slice());
        let mut others = self.others.iter();
        let make = |state: &mut State, id: ObjectId| {
            let entry = known.object(id).filter(|_| state.object(id).is_none());
            entry.is_none_or(|object| state.apply_entry(Entry::Object(object.entry_now())).is_ok())
        };
        for pending in &self.records {
            match *pending {
                PendingRecord::Entry { kind, version, bytes, .. } => {
                    let entry = Entry::parse(kind, version, next(&mut payloads, bytes as usize));
                    if let Ok(Entry::Object(entry)) = entry
                        && make(state, entry.id)
                        && let Err(error) = state.apply_entry(Entry::Object(entry))
                    {
                        log::debug!("an object of a dropped batch: {error}");
                    }
                }
                PendingRecord::Other { bytes } => {
                    let payload = next(&mut payloads, bytes);
                    if let Some((record, sequence)) = others.next()
                        && let Record::CreateRun { object, .. }
                        | Record::SlotRun { object, .. }
                        | Record::EmptyRun { object, .. } = record
                        && make(state, *object)
                        && let Err(error) = state.apply_record(record, *sequence, payload)
                    {
                        log::debug!("a run of a dropped batch: {error}");
                    }
                }
                PendingRecord::Blocks(count) => {
                    let blocks = next(&mut blocks, count);
                    let is_made = blocks.first().is_some_and(|first| make(state, first.object));
                    let skip = |_, error| {
                        log::debug!("a block of a dropped batch: {error}");
                        Ok(())
                    };
                    if is_made && let Err(error) = state.apply_blocks(blocks, skip) {
                        log::debug!("blocks of a dropped batch: {error}");
                    }
                }
            }
        }
        state.batch_ended();
        state.forget_freed();
    }

    /// Number of catalog entries of a kind.
    fn count_of(&self, wanted: u8) -> usize {
        let is_wanted = |pending: &&PendingRecord| matches!(pending, PendingRecord::Entry { kind, .. } if *kind == wanted);
        self.records.iter().filter(is_wanted).count()
    }
}

/// Splits the next `count` elements off a list.
fn next<'a, T>(list: &mut &'a [T], count: usize) -> &'a [T] {
    let (found, rest) = list.split_at(list.len().min(count));
    *list = rest;
    found
}

/// Applies a catalog entry. One that cannot be applied is added to `refused`, if given.
fn apply_entry(
    entry: Result<Entry>,
    sequence: u64,
    state: &mut State,
    refused: Option<&mut RefusedEntries>,
) -> Result<()> {
    let entry = entry?;
    if let Entry::Object(ObjectEntry { id, creation, .. }) = &entry
        && !(1..=sequence).contains(creation)
    {
        // A checkpoint has the entry under this number.
        return Err(Error::corrupt(format!("object {id} was made by record {creation}, which is missing")));
    }
    let Some(refused) = refused else { return state.apply_entry(entry) };
    refused.replace(&entry);
    state.apply_entry(entry.clone()).inspect_err(|_| refused.push(entry))
}
