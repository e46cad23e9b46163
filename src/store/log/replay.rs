//! Reading `meta.log` back.
//!
//! Invariants:
//! 1. A record counts only once the Commit of its batch has verified.
//! 2. Nothing after a bad slot is taken for its batch unless the slot's single flipped
//!    bit could be put right and the Commit then verifies.
//! 3. A bad slot after which no later batch begins is a torn end: that batch is dropped
//!    and reported. Before that it is damage: what the log says of blocks up to the end
//!    of that batch is not believed. Batches of which no later Commit says that they were
//!    durable may be lost in any order: the first that is lost is a torn end too. What can be
//!    read of such an end is handed on, unless the log just ends there.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::format::checksum;
use crate::format::log::catalog::Entry;
use crate::format::log::record::Record;
use crate::model::{Error, ErrorKind, Result, StoreId};
use crate::store::disk::File;
use crate::store::events::{EventKind, Note};
use crate::store::log::append::LogEnd;
use crate::store::log::pending_batch::PendingBatch;
use crate::store::log::scan::{Found, Read, SLOT, durable_before};
use crate::store::object::{Freed, Object};
use crate::store::state::{ROOT, State};

/// What a log said.
pub struct Replayed {
    /// What the collection holds.
    pub state: State,
    /// Where the log goes on.
    pub end: LogEnd,
    /// Records of at most this number are known to be durable.
    pub durable: u64,
    /// What was found and mended, for the event log.
    pub events: Vec<Note>,
    /// What was found and could not be mended.
    pub damage: Option<Damage>,
    /// What batches gave up of which no Commit says that they were durable, by their numbers: a
    /// damaged end of the log may lead back to it.
    pub(in crate::store) freed: VecDeque<(u64, Freed)>,
    /// What can be read of batches that were dropped although all of them may have been written
    /// once; `None` where the log just ends before a Commit.
    pub(in crate::store) dropped: Option<PendingBatch>,
}

impl Replayed {
    /// Whether batches were dropped that may have been durable, of a collection that takes writes.
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
    /// Blocks whose last record has at most this number are not believed.
    pub sequence: u64,
    /// What is wrong and where.
    pub reason: String,
}

/// Replays a log. `NotFound` where there is no whole header: the collection was never
/// finished. `store` is what the header must name.
pub fn replay(file: &Arc<dyn File>, store: StoreId) -> Result<Replayed> {
    let mut log = Read::new(file)?;
    let (generation, mended) = header(&mut log, store)?;
    let mut out = Replayed::new(generation);
    if mended {
        out.note(EventKind::Repair, put_right(0));
    }
    follow(&mut log, out, None).map(without_gaps)
}

/// Replays a log for a repair: of a damaged stretch it takes all records that are whole by
/// themselves, a header that is gone is not missed, and what the state refused comes with it.
pub(in crate::store) fn salvage(file: &Arc<dyn File>, store: StoreId) -> Result<(Replayed, Vec<Entry>)> {
    let mut log = Read::new(file)?;
    let mut refused = Vec::new();
    let out = match header(&mut log, store) {
        Ok((generation, _)) => Replayed::new(generation),
        Err(error) if error.kind() == ErrorKind::Corrupt && !has_header(&mut log)? => {
            let mut out = Replayed::new(first_generation(&mut log)?);
            out.damage = Some(Damage { sequence: 0, reason: error.to_string() });
            out
        }
        Err(error) => return Err(error),
    };
    let out = follow(&mut log, out, Some(&mut refused)).map(without_gaps)?;
    Ok((out, refused))
}

/// Whether there is a header, if of another store.
fn has_header(log: &mut Read<'_>) -> Result<bool> {
    let slot = log.slot(0)?;
    let intact = slot.and_then(|slot| if slot.is_intact() { Some(slot) } else { slot.corrected() });
    Ok(intact.is_some_and(|slot| matches!(Record::parse(&slot), Ok(Record::Header { .. }))))
}

/// The generation that the first intact slot is of.
fn first_generation(log: &mut Read<'_>) -> Result<u64> {
    let mut at = SLOT;
    while let Some(slot) = log.slot(at)? {
        if slot.is_intact() && Record::parse(&slot).is_ok() {
            return Ok(u64::from(slot.generation()));
        }
        at += SLOT;
    }
    Err(Error::corrupt("meta.log has no slot that can be read; nothing can be saved from it"))
}

/// Takes in the batches. With `refused` this is a [`salvage`].
fn follow(log: &mut Read<'_>, mut out: Replayed, mut refused: Option<&mut Vec<Entry>>) -> Result<Replayed> {
    let generation = out.end.generation;
    let mut at = SLOT;
    let mut pending = PendingBatch::default();
    let mut checksums: Vec<u8> = Vec::new();
    let mut corrected = Vec::new();
    let mut unsure: VecDeque<(u64, u64)> = VecDeque::new();
    loop {
        at = log.blocks(at, generation, out.end.next_sequence, |placed, checksum| {
            checksums.extend(checksum.to_le_bytes());
            pending.push_block(placed);
        })?;
        let bad = match log.next(at, generation, out.end.next_sequence)? {
            Found::Record {
                record: Record::Commit { batch, slots, checksum, unsynced },
                sequence,
                corrected: mended,
                ..
            } => {
                if mended {
                    corrected.push(at);
                }
                let whole = batch == out.end.batch + 1
                    && u64::from(slots) == (at - out.end.bytes) / SLOT
                    && checksum == checksum::of(&checksums);
                if whole {
                    corrected.drain(..).for_each(|at| out.note(EventKind::Repair, put_right(at)));
                    apply(&mut out, &pending, refused.as_deref_mut())?;
                    pending.clear();
                    checksums.clear();
                    out.freed.extend(out.state.freed.drain(..).map(|freed| (batch, freed)));
                    let durable = durable_before(batch, unsynced);
                    while let Some((_, sequence)) = unsure.pop_front_if(|(batch, _)| *batch <= durable) {
                        out.durable = sequence;
                    }
                    // Nobody reads yet: what was deleted is gone.
                    while let Some((_, freed)) = out.freed.pop_front_if(|(batch, _)| *batch <= durable) {
                        freed.forget();
                    }
                    unsure.push_back((batch, sequence));
                    at += SLOT;
                    let last = if slots > 0 { batch } else { out.end.last };
                    let said = out.end.said.max(durable);
                    out.end =
                        LogEnd { generation, bytes: at, batch, last, said, next_sequence: sequence + 1 };
                    continue;
                }
                format!("the Commit of batch {batch} does not agree with its records")
            }
            Found::Record { record, sequence, checksum, corrected: mended } => {
                if mended {
                    corrected.push(at);
                }
                at += SLOT * (1 + record.payload_slots());
                checksums.extend(checksum.to_le_bytes());
                pending.push(record, sequence, log.payload());
                continue;
            }
            Found::End if pending.is_empty() && log.is_zero_from(at)? => return Ok(out),
            Found::End => "the log ends before the Commit".to_owned(),
            Found::Bad(reason) => reason,
        };
        let is_kept = log.was_durable(at, &out.end)?;
        let later = log.later_batch(at, &out.end)?;
        let Some(later) = later.filter(|_| is_kept) else {
            let batch = out.end.batch + 1;
            let text =
                format!("meta.log at byte {at}: {bad}; batch {batch} was never finished and is dropped");
            out.note(EventKind::Dropped, text);
            if !log.is_cut_short(at, &out.end)? {
                let until = log.len;
                add_whole_records(&mut pending, log, at, until, &out.end)?;
                out.dropped = Some(pending);
            }
            return Ok(out);
        };
        let reason = format!("meta.log at byte {at}: {bad}");
        match &mut out.damage {
            Some(damage) => {
                damage.sequence = damage.sequence.max(later.sequence);
                out.note(EventKind::Corruption, reason);
            }
            None => out.damage = Some(Damage { sequence: later.sequence, reason }),
        }
        // What can be read of the batch tells what there was; its blocks are not believed.
        if refused.is_some() {
            add_whole_records(&mut pending, log, at, later.at, &out.end)?;
        }
        let (state, events) = (&mut out.state, &mut out.events);
        pending.apply(state, refused.as_deref_mut(), |_, error| {
            let text = format!("meta.log before byte {}: {error}", later.at);
            events.push(Note { kind: EventKind::Corruption, text });
            Ok(())
        })?;
        pending.clear();
        checksums.clear();
        corrected.clear();
        at = later.at;
        out.end = LogEnd { bytes: at, batch: later.batch, next_sequence: later.sequence + 1, ..out.end };
    }
}

/// Blocks that no record describes, before one that is described, are damage: a batch that names a
/// block names those before it, or they stand in the log already.
fn without_gaps(mut out: Replayed) -> Replayed {
    if out.damage.is_none() {
        let gap = |object: &Arc<Object>| Some((object.entry.id, object.blocks.read().gap()?));
        out.damage = out.state.objects().find_map(gap).map(|(id, index)| {
            let reason = format!("meta.log describes blocks of object {id} behind {index}, and not that one");
            Damage { sequence: 0, reason }
        });
    }
    out
}

impl Replayed {
    fn new(generation: u64) -> Replayed {
        Replayed {
            state: State::default(),
            end: LogEnd::begin(generation),
            durable: 0,
            events: Vec::new(),
            damage: None,
            freed: VecDeque::new(),
            dropped: None,
        }
    }
}

/// Adds the records of a damaged stretch that are whole: what they say was written once.
fn add_whole_records(
    pending: &mut PendingBatch,
    log: &mut Read<'_>,
    from: u64,
    until: u64,
    end: &LogEnd,
) -> Result<()> {
    let (mut at, mut sequence_min) = (from, end.next_sequence);
    while at < until {
        at += SLOT;
        let (record, sequence) = match log.next(at - SLOT, end.generation, sequence_min) {
            Ok(Found::Record { record, sequence, .. }) => (record, sequence),
            Err(error) if error.kind() == ErrorKind::Io => return Err(error),
            _ => continue,
        };
        at += SLOT * record.payload_slots();
        sequence_min = sequence;
        if !matches!(record, Record::Commit { .. } | Record::Header { .. }) {
            pending.push(record, sequence, log.payload());
        }
    }
    Ok(())
}

fn apply(out: &mut Replayed, pending: &PendingBatch, refused: Option<&mut Vec<Entry>>) -> Result<()> {
    let Replayed { state, events, damage, .. } = out;
    pending.apply(state, refused, |sequence, error| {
        if error.kind() != ErrorKind::Corrupt {
            return Err(error.at(format!("meta.log, record {sequence}")));
        }
        let reason = format!("meta.log, record {sequence}: {error}");
        match damage {
            // It is about something that was lost there.
            Some(_) => events.push(Note { kind: EventKind::Corruption, text: reason }),
            None => *damage = Some(Damage { sequence, reason }),
        }
        Ok(())
    })
}

/// The generation, and whether a flipped bit had to be put right.
fn header(log: &mut Read<'_>, store: StoreId) -> Result<(u64, bool)> {
    let damaged = || Error::corrupt("meta.log begins with no header; run tierfs fsck");
    // The header was durable before anything was written behind it.
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
    format!("meta.log at byte {at}: a flipped bit was put right")
}
