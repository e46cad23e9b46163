//! Replays `meta.log`.
//!
//! Invariants:
//! 1. A record takes effect only once the Commit of its batch has verified.
//! 2. Nothing after a bad slot counts as part of its batch, unless correcting a single flipped bit
//!    repairs the slot and the Commit then verifies.
//! 3. A bad slot after which no later batch begins is a torn end: that batch is dropped and reported. A
//!    bad slot before a later batch is damage: records of blocks up to the end of the damaged batch
//!    are not trusted. Batches that no later Commit records as durable may be lost in any order, so the
//!    first lost one is a torn end too. The readable records of such an end are handed on, unless the
//!    log simply ends there.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::format::checksum;
use crate::format::log::record::Record;
use crate::model::{Error, ErrorKind, Result, StoreId};
use crate::store::disk::File;
use crate::store::events::{EventKind, Note};
use crate::store::log::append::LogEnd;
use crate::store::log::pending_batch::PendingBatch;
use crate::store::log::refused_entries::RefusedEntries;
use crate::store::log::scan::{LogReader, SLOT, SlotContent, durable_before};
use crate::store::object::Object;
use crate::store::state::freed_space::Freed;
use crate::store::state::{ROOT, State};

/// The result of a replay.
pub struct Replayed {
    /// State of the collection.
    pub state: State,
    /// Where appending continues.
    pub end: LogEnd,
    /// Records up to this sequence number are known to be durable.
    pub durable: u64,
    /// Bytes of it that were looked at more than once, as [`Budget`](crate::format::budget::Budget) counts them.
    pub steps: u64,
    /// Problems found and corrected, for the event log.
    pub events: Vec<Note>,
    /// Damage that could not be corrected.
    pub damage: Option<Damage>,
    /// Space freed by batches that no Commit records as durable, by batch number. A damaged end of the
    /// log may roll back to before them.
    pub(in crate::store) freed: VecDeque<(u64, Freed)>,
    /// Readable records of dropped batches that may once have been complete; `None` if the log simply
    /// ends before a Commit.
    pub(in crate::store) dropped: Option<PendingBatch>,
}

impl Replayed {
    /// Whether batches that may have been durable were dropped, in a collection that is otherwise
    /// writable.
    pub fn needs_setting_aside(&self) -> bool {
        self.dropped.is_some() && self.damage.is_none() && self.state.node(ROOT).is_some()
    }

    fn note(&mut self, kind: EventKind, text: String) {
        self.events.push(Note { kind, text });
    }
}

/// Damage in the middle of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Blocks whose last record has at most this sequence number are not trusted.
    pub sequence: u64,
    /// Description and place of the damage.
    pub reason: String,
}

/// Replays a log. `NotFound` if it has no complete header: the creation of the collection never
/// finished. The header must name `store`.
pub fn replay(file: &Arc<dyn File>, store: StoreId) -> Result<Replayed> {
    let mut log = LogReader::new(file)?;
    let (generation, mended) = header(&mut log, store)?;
    let mut out = Replayed::new(generation);
    if mended {
        out.note(EventKind::Repair, put_right(0));
    }
    let out = follow(&mut log, out, None)?;
    Ok(completed(Replayed { steps: log.steps(), ..out }))
}

/// Replays a log for a repair. Takes every record in a damaged stretch that is intact by itself,
/// tolerates a missing header, and returns the entries that the state refused.
pub(in crate::store) fn salvage(file: &Arc<dyn File>, store: StoreId) -> Result<(Replayed, RefusedEntries)> {
    let mut log = LogReader::new(file)?.unbounded();
    let mut refused = RefusedEntries::default();
    let out = match header(&mut log, store) {
        Ok((generation, _)) => Replayed::new(generation),
        Err(error) if error.kind() == ErrorKind::Corrupt && !has_header(&mut log)? => {
            let mut out = Replayed::new(first_generation(&mut log)?);
            out.damage = Some(Damage { sequence: 0, reason: error.to_string() });
            out
        }
        Err(error) => return Err(error),
    };
    let out = follow(&mut log, out, Some(&mut refused)).map(completed)?;
    Ok((out, refused))
}

/// Whether the log has a header, even one of another store.
fn has_header(log: &mut LogReader<'_>) -> Result<bool> {
    let slot = log.slot(0)?;
    let intact = slot.and_then(|slot| if slot.is_intact() { Some(slot) } else { slot.corrected() });
    Ok(intact.is_some_and(|slot| matches!(Record::parse(&slot), Ok(Record::Header { .. }))))
}

/// The generation of the first intact slot.
fn first_generation(log: &mut LogReader<'_>) -> Result<u64> {
    let mut at = SLOT;
    while let Some(slot) = log.slot(at)? {
        if slot.is_intact() && Record::parse(&slot).is_ok() {
            return Ok(u64::from(slot.generation()));
        }
        at += SLOT;
    }
    Err(Error::corrupt("no slot of meta.log can be read, so nothing can be recovered from the file"))
}

/// Replays the batches. With `refused`, behaves as [`salvage`] describes.
fn follow(log: &mut LogReader<'_>, out: Replayed, refused: Option<&mut RefusedEntries>) -> Result<Replayed> {
    let mut follower = Follower {
        generation: out.end.generation,
        log,
        out,
        refused,
        at: SLOT,
        pending: PendingBatch::default(),
        checksums: Vec::new(),
        corrected: Vec::new(),
        unsure: VecDeque::new(),
    };
    while let Some(step) = follower.step()? {
        if let Step::Bad(reason) = step
            && !follower.skip(&reason)?
        {
            break;
        }
    }
    Ok(follower.out)
}

/// One step through the log.
enum Step {
    /// A record, or a whole batch.
    Done,
    /// A slot that fits no batch, and why it does not.
    Bad(String),
}

/// A replay on its way through the log.
struct Follower<'a, 'log> {
    log: &'a mut LogReader<'log>,
    generation: u64,
    out: Replayed,
    refused: Option<&'a mut RefusedEntries>,
    /// The byte of the next slot.
    at: u64,
    /// The records since the last batch.
    pending: PendingBatch,
    /// Their checksums, of which the Commit has the checksum.
    checksums: Vec<u8>,
    /// The bytes of slots among them in which a bit was corrected.
    corrected: Vec<u64>,
    /// The batches that are not known to be durable, with the numbers of their Commits.
    unsure: VecDeque<(u64, u64)>,
}

impl Follower<'_, '_> {
    /// Takes the next records. `None` at the end of the log.
    fn step(&mut self) -> Result<Option<Step>> {
        let Follower { pending, checksums, generation, .. } = self;
        self.at = self.log.blocks(self.at, *generation, self.out.end.next_sequence, |placed, checksum| {
            checksums.extend(checksum.to_le_bytes());
            pending.push_block(placed);
        })?;
        let step = match self.log.next(self.at, self.generation, self.out.end.next_sequence)? {
            SlotContent::Record { record, sequence, checksum, corrected } => match record {
                Record::Commit { batch, slots, checksum, unsynced } => {
                    self.corrected.extend(corrected.then_some(self.at));
                    let is_mark = slots == 0;
                    let ended = Ended { batch, unsynced, is_mark, sequence, at: self.at + SLOT };
                    self.commit(ended, slots, checksum)?
                }
                Record::Small { .. } => self.small(&record, sequence, corrected)?,
                record => {
                    self.corrected.extend(corrected.then_some(self.at));
                    self.at += SLOT * (1 + record.payload_slots());
                    self.checksums.extend(checksum.to_le_bytes());
                    self.pending.push(record, sequence, self.log.payload());
                    Step::Done
                }
            },
            SlotContent::End if self.pending.is_empty() && self.log.is_zero_from(self.at)? => {
                return Ok(None);
            }
            SlotContent::End => Step::Bad("the log ends before the Commit".to_owned()),
            SlotContent::Bad(reason) => Step::Bad(reason),
        };
        Ok(Some(step))
    }

    /// Ends a batch at its Commit, if that agrees with the records.
    fn commit(&mut self, ended: Ended, slots: u32, checksum: u32) -> Result<Step> {
        let is_whole = ended.batch == self.out.end.batch + 1
            && u64::from(slots) == (self.at - self.out.end.bytes) / SLOT
            && checksum == checksum::of(&self.checksums);
        if !is_whole {
            let batch = ended.batch;
            return Ok(Step::Bad(format!("the Commit of batch {batch} does not agree with its records")));
        }
        for at in self.corrected.drain(..) {
            self.out.note(EventKind::Repair, put_right(at));
        }
        self.end_batch(ended)?;
        self.checksums.clear();
        Ok(Step::Done)
    }

    /// Takes a batch that is one record.
    fn small(&mut self, record: &Record, sequence: u64, is_corrected: bool) -> Result<Step> {
        let Record::Small { batch, unsynced, count, ref head, .. } = *record else { return Ok(Step::Done) };
        if !self.pending.is_empty() || batch != self.out.end.batch + 1 {
            return Ok(Step::Bad(format!("the small batch {batch} is not the next one")));
        }
        match self.pending.push_small(head, self.log.payload(), sequence, count) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Step::Bad(error.to_string())),
            Err(error) => return Err(error.at(format!("meta.log at byte {}", self.at))),
        }
        if is_corrected {
            self.out.note(EventKind::Repair, put_right(self.at));
        }
        let at = self.at + SLOT * (1 + record.payload_slots());
        let sequence = sequence + u64::from(count);
        self.end_batch(Ended { batch, unsynced, is_mark: false, sequence, at })?;
        Ok(Step::Done)
    }

    /// Applies the records of a batch that has verified.
    fn end_batch(&mut self, Ended { batch, unsynced, is_mark, sequence, at }: Ended) -> Result<()> {
        let out = &mut self.out;
        apply(out, &self.pending, self.refused.as_deref_mut())?;
        self.pending.clear();
        out.freed.extend(out.state.freed.drain(..).map(|freed| (batch, freed)));
        let durable = durable_before(batch, unsynced);
        while let Some((_, sequence)) = self.unsure.pop_front_if(|(batch, _)| *batch <= durable) {
            out.durable = sequence;
        }
        // There are no readers yet, so deleted objects can go.
        while let Some((_, freed)) = out.freed.pop_front_if(|(batch, _)| *batch <= durable) {
            freed.forget();
        }
        self.unsure.push_back((batch, sequence));
        let last = if is_mark { out.end.last } else { batch };
        let recorded_durable = out.end.recorded_durable.max(durable);
        let next_sequence = sequence + 1;
        out.end = LogEnd { bytes: at, batch, last, recorded_durable, next_sequence, ..out.end };
        self.at = at;
        Ok(())
    }

    /// Goes on at the next batch behind a bad slot. Returns `false` if the log ends here: then the batch was never finished.
    fn skip(&mut self, bad: &str) -> Result<bool> {
        let at = self.at;
        let is_kept = self.log.was_durable(at, &self.out.end)?;
        let later = self.log.later_batch(at, &self.out.end)?;
        let Some(later) = later.filter(|_| is_kept) else {
            self.drop_end(bad)?;
            return Ok(false);
        };
        let reason = format!("meta.log at byte {at}: {bad}");
        match &mut self.out.damage {
            Some(damage) => {
                damage.sequence = damage.sequence.max(later.sequence);
                self.out.note(EventKind::Corruption, reason);
            }
            None => self.out.damage = Some(Damage { sequence: later.sequence, reason }),
        }
        // The batch still tells what existed, but its blocks are not trusted.
        if self.refused.is_some() {
            add_whole_records(&mut self.pending, self.log, at, later.at, &self.out.end)?;
        }
        let (state, events) = (&mut self.out.state, &mut self.out.events);
        self.pending.apply(state, self.refused.as_deref_mut(), |_, error| {
            let text = format!("meta.log before byte {}: {error}", later.at);
            events.push(Note { kind: EventKind::Corruption, text });
            Ok(())
        })?;
        self.pending.clear();
        self.checksums.clear();
        self.corrected.clear();
        self.at = later.at;
        let next_sequence = later.sequence + 1;
        self.out.end = LogEnd { bytes: later.at, batch: later.batch, next_sequence, ..self.out.end };
        Ok(true)
    }

    /// Reports the batch that the log ends in, and keeps what is readable of it.
    fn drop_end(&mut self, bad: &str) -> Result<()> {
        let (at, batch) = (self.at, self.out.end.batch + 1);
        let text = format!("meta.log at byte {at}: {bad}; batch {batch} was never finished and is dropped");
        self.out.note(EventKind::Dropped, text);
        if !self.log.ends_early(at, &self.out.end)? {
            let until = self.log.len;
            let mut pending = mem::take(&mut self.pending);
            add_whole_records(&mut pending, self.log, at, until, &self.out.end)?;
            self.out.dropped = Some(pending);
        }
        Ok(())
    }
}

/// The end of a batch.
struct Ended {
    batch: u64,
    unsynced: u32,
    is_mark: bool,
    /// The number of its Commit.
    sequence: u64,
    /// Where the next one begins.
    at: u64,
}

/// Completes the state. Reports blocks that no record describes, before a block that is described, as damage: a batch that
/// names a block also names those before it, unless the log already has them.
fn completed(mut out: Replayed) -> Replayed {
    if let Err(error) = out.state.end_replay()
        && out.damage.is_none()
    {
        out.damage = Some(Damage { sequence: 0, reason: format!("meta.log: {error}") });
    }
    if out.damage.is_none() {
        let gap = |object: &Arc<Object>| Some((object.entry.id, object.blocks.read().gap()?));
        out.damage = out.state.objects().find_map(gap).map(|(id, index)| {
            let reason =
                format!("meta.log describes blocks of object {id} after block {index}, but not that block");
            Damage { sequence: 0, reason }
        });
    }
    out
}

impl Replayed {
    fn new(generation: u64) -> Replayed {
        Replayed {
            state: State::replayed(),
            end: LogEnd::begin(generation),
            durable: 0,
            steps: 0,
            events: Vec::new(),
            damage: None,
            freed: VecDeque::new(),
            dropped: None,
        }
    }
}

/// Adds the records of a damaged stretch that are intact: each was written once.
fn add_whole_records(
    pending: &mut PendingBatch,
    log: &mut LogReader<'_>,
    from: u64,
    until: u64,
    end: &LogEnd,
) -> Result<()> {
    let (mut at, mut sequence_min) = (from, end.next_sequence);
    while at < until {
        log.take(SLOT)?;
        at += SLOT;
        let (record, sequence) = match log.next(at - SLOT, end.generation, sequence_min) {
            Ok(SlotContent::Record { record, sequence, .. }) => (record, sequence),
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            _ => continue,
        };
        at += SLOT * record.payload_slots();
        sequence_min = sequence;
        match record {
            Record::Commit { .. } | Record::Header { .. } => {}
            Record::Small { count, head, .. } => {
                sequence_min += u64::from(count);
                if let Err(error) = pending.push_small(&head, log.payload(), sequence, count) {
                    log::debug!("a small batch behind the end of a log: {error}");
                }
            }
            record => pending.push(record, sequence, log.payload()),
        }
    }
    Ok(())
}

fn apply(out: &mut Replayed, pending: &PendingBatch, refused: Option<&mut RefusedEntries>) -> Result<()> {
    let Replayed { state, events, damage, .. } = out;
    pending.apply(state, refused, |sequence, error| {
        if error.kind() != ErrorKind::Corrupt {
            return Err(error.at(format!("meta.log, record {sequence}")));
        }
        let reason = format!("meta.log, record {sequence}: {error}");
        match damage {
            // A consequence of the damage that is already known.
            Some(_) => events.push(Note { kind: EventKind::Corruption, text: reason }),
            None => *damage = Some(Damage { sequence, reason }),
        }
        Ok(())
    })
}

/// The generation, and whether a flipped bit had to be corrected.
fn header(log: &mut LogReader<'_>, store: StoreId) -> Result<(u64, bool)> {
    let damaged = || Error::corrupt("meta.log does not begin with a header; run tierfs fsck");
    // The header was durable before anything was written after it.
    let never_finished = log.len < SLOT || log.is_zero_from(0)?;
    let slot = match log.slot(0)? {
        Some(slot) if !never_finished => slot,
        _ => return Err(Error::new(ErrorKind::NotFound, "meta.log has no header")),
    };
    let mended = !slot.is_intact();
    let intact = if mended { slot.corrected() } else { Some(slot) };
    match intact.as_ref().map(Record::parse).transpose()? {
        Some(Record::Header { store: named, generation, .. }) if named == store => Ok((generation, mended)),
        Some(Record::Header { store: named, .. }) => {
            Err(Error::corrupt(format!("meta.log belongs to store {named}, this is {store}")))
        }
        _ => Err(damaged()),
    }
}

fn put_right(at: u64) -> String {
    format!("meta.log at byte {at}: a flipped bit was corrected")
}
