//! Reading `meta.log` back.
//!
//! Invariants:
//! 1. A record counts only once the Commit of its batch has verified.
//! 2. Nothing after a bad slot is taken for its batch unless the slot's single flipped
//!    bit could be put right and the Commit then verifies.
//! 3. A bad slot after which no later batch begins is a torn end: that batch is dropped
//!    and reported. Before that it is damage: what the log says of blocks up to the end
//!    of that batch is not believed.

use std::sync::Arc;

use crate::format::catalog::Entry;
use crate::format::record::Record;
use crate::format::slot::{RawSlot, SLOT_BYTES};
use crate::model::{Error, ErrorKind, Result, StoreId};
use crate::store::disk::File;
use crate::store::log::LogEnd;
use crate::store::state::State;

const SLOT: u64 = SLOT_BYTES as u64;
/// The log is read in pieces of this size.
const WINDOW_BYTES: usize = 1 << 20;
/// A payload of at most this many bytes is searched for a single flipped bit.
const CORRECTED_PAYLOAD_MAX: usize = 4096;

/// What a log said.
pub struct Replayed {
    /// What the collection holds.
    pub state: State,
    /// Where the log goes on.
    pub end: LogEnd,
    /// What was found and mended, for the event log.
    pub events: Vec<String>,
    /// What was found and could not be mended.
    pub damage: Option<Damage>,
}

/// Damage in the middle of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Blocks whose last record has at most this number are not believed.
    pub sequence: u64,
    /// What is wrong and where.
    pub reason: String,
}

struct Read<'a> {
    file: &'a Arc<dyn File>,
    len: u64,
    window: Vec<u8>,
    window_at: u64,
}

enum Found {
    Record { record: Record, sequence: u64, checksum: u32, payload: Vec<u8>, corrected: bool },
    End,
    Bad(String),
}

/// Replays a log. `NotFound` where there is no whole header: the collection was never
/// finished. `store` is what the header must name.
pub fn replay(file: &Arc<dyn File>, store: StoreId) -> Result<Replayed> {
    let len = file.len().map_err(|error| Error::io("reading the size of meta.log", error))?;
    let mut log = Read { file, len, window: Vec::new(), window_at: 0 };
    let generation = header(&mut log, store)?;
    let mut out = Replayed {
        state: State::default(),
        end: LogEnd { generation, bytes: SLOT, batch: 0, next_sequence: 1 },
        events: Vec::new(),
        damage: None,
    };
    // A block is described by a slot of its own or by four bytes of a run.
    let described_max = len / 4;
    let mut at = SLOT;
    let mut held: Vec<Held> = Vec::new();
    let mut checksums: Vec<u8> = Vec::new();
    let mut corrected = Vec::new();
    loop {
        let bad = match log.next(at, generation, out.end.next_sequence)? {
            Found::Record {
                record: Record::Commit { batch, slots, checksum },
                sequence,
                corrected: mended,
                ..
            } => {
                if mended {
                    corrected.push(at);
                }
                let whole = batch == out.end.batch + 1
                    && u64::from(slots) == (at - out.end.bytes) / SLOT
                    && checksum == crc32c::crc32c(&checksums);
                if whole {
                    for mended in corrected.drain(..) {
                        out.events.push(format!("meta.log at byte {mended}: a flipped bit was put right"));
                    }
                    apply(&mut out, held.drain(..), described_max)?;
                    checksums.clear();
                    at += SLOT;
                    out.end = LogEnd { generation, bytes: at, batch, next_sequence: sequence + 1 };
                    continue;
                }
                format!("the Commit of batch {batch} does not agree with its records")
            }
            Found::Record { record, sequence, checksum, payload, corrected: mended } => {
                if mended {
                    corrected.push(at);
                }
                at += SLOT * (1 + record.payload_slots());
                checksums.extend(checksum.to_le_bytes());
                held.push(Held { record, sequence, payload });
                continue;
            }
            // Zeros, or nothing: the end, unless there is a batch behind them.
            Found::End if held.is_empty() && log.later_batch(at, &out.end)?.is_none() => return Ok(out),
            Found::End => "the log ends before the Commit".to_owned(),
            Found::Bad(reason) => reason,
        };
        let Some((next, commit)) = log.later_batch(at, &out.end)? else {
            out.events.push(format!(
                "meta.log at byte {at}: {bad}; batch {} was never finished and is dropped",
                out.end.batch + 1
            ));
            return Ok(out);
        };
        let reason = format!("meta.log at byte {at}: {bad}");
        out.damage = Some(Damage { sequence: commit.sequence, reason });
        // What can be read of the batch tells what there was; its blocks are not believed.
        for held in held.drain(..) {
            if let Err(error) = held.apply(&mut out.state, described_max) {
                out.events.push(format!("meta.log before byte {next}: {error}"));
            }
        }
        checksums.clear();
        corrected.clear();
        at = next;
        out.end = LogEnd { generation, bytes: at, batch: commit.batch, next_sequence: commit.sequence + 1 };
    }
}

struct Held {
    record: Record,
    sequence: u64,
    payload: Vec<u8>,
}

impl Held {
    fn apply(self, state: &mut State, described_max: u64) -> Result<()> {
        if let Record::Catalog { kind, version, .. } = self.record {
            return state.apply_entry(Entry::parse(kind, version, &self.payload)?);
        }
        let numbers = self.payload.chunks_exact(4);
        let checksums = numbers.map(|four| u32::from_le_bytes(four.try_into().unwrap_or_default())).collect();
        state.apply_record(&self.record, self.sequence, checksums, described_max)
    }
}

fn apply(out: &mut Replayed, held: impl Iterator<Item = Held>, described_max: u64) -> Result<()> {
    for held in held {
        let sequence = held.sequence;
        match held.apply(&mut out.state, described_max) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let reason = format!("meta.log, record {sequence}: {error}");
                out.damage = Some(Damage { sequence, reason });
            }
            Err(error) => return Err(error.at(format!("meta.log, record {sequence}"))),
        }
    }
    Ok(())
}

fn header(log: &mut Read<'_>, store: StoreId) -> Result<u64> {
    let Some(slot) = log.slot(0)? else {
        return Err(Error::new(ErrorKind::NotFound, "meta.log has no whole header"));
    };
    if slot.0 == [0; SLOT_BYTES] {
        return Err(Error::new(ErrorKind::NotFound, "meta.log has no header"));
    }
    let intact = if slot.is_intact() { Some(slot) } else { slot.corrected() };
    match intact.as_ref().map(Record::parse).transpose()? {
        Some(Record::Header { store: named, generation, .. }) if named == store => Ok(generation),
        Some(Record::Header { store: named, .. }) => {
            Err(Error::corrupt(format!("meta.log belongs to store {named}, this is {store}")))
        }
        _ => Err(Error::corrupt("meta.log begins with no header; run tierfs fsck")),
    }
}

struct CommitSeen {
    batch: u64,
    sequence: u64,
}

impl Read<'_> {
    fn bytes(&mut self, at: u64, count: usize) -> Result<Option<&[u8]>> {
        let end = at.saturating_add(count as u64);
        if end > self.len {
            return Ok(None);
        }
        let loaded = self.window_at..self.window_at + self.window.len() as u64;
        if !(loaded.contains(&at) && end <= loaded.end) {
            let wanted = (self.len - at).min(count.max(WINDOW_BYTES) as u64) as usize;
            self.window.resize(wanted, 0);
            self.window_at = at;
            let read = self.file.read_exact_at(&mut self.window, at);
            read.map_err(|error| Error::io("reading meta.log", error))?;
        }
        let from = (at - self.window_at) as usize;
        Ok(self.window.get(from..from + count))
    }

    fn slot(&mut self, at: u64) -> Result<Option<RawSlot>> {
        let bytes = self.bytes(at, SLOT_BYTES)?;
        Ok(bytes.and_then(|bytes| bytes.try_into().ok()).map(RawSlot))
    }

    fn next(&mut self, at: u64, generation: u64, sequence_min: u64) -> Result<Found> {
        let Some(raw) = self.slot(at)? else {
            return Ok(if at == self.len { Found::End } else { Found::Bad("a slot that is cut off".into()) });
        };
        if raw.0 == [0; SLOT_BYTES] {
            return Ok(Found::End);
        }
        let corrected = !raw.is_intact();
        let slot = if corrected { raw.corrected() } else { Some(raw) };
        let Some(slot) = slot else {
            return Ok(Found::Bad("a slot whose checksum does not agree".into()));
        };
        if slot.generation() != generation as u32 || slot.sequence() < sequence_min {
            return Ok(Found::Bad("a slot of another generation".into()));
        }
        let record = match Record::parse(&slot) {
            Ok(record) => record,
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Found::Bad(error.to_string())),
            Err(error) => return Err(error.at(format!("meta.log at byte {at}"))),
        };
        let Some(payload) = self.payload(at + SLOT, &record)? else {
            return Ok(Found::Bad("a payload that is cut off or whose checksum does not agree".into()));
        };
        Ok(Found::Record { record, sequence: slot.sequence(), checksum: slot.checksum(), payload, corrected })
    }

    fn payload(&mut self, at: u64, record: &Record) -> Result<Option<Vec<u8>>> {
        let len = record.payload_len();
        if len == 0 {
            return Ok(Some(Vec::new()));
        }
        if len > self.len {
            return Ok(None);
        }
        let Some(bytes) = self.bytes(at, len as usize)? else { return Ok(None) };
        let mut payload = bytes.to_vec();
        if crc32c::crc32c(&payload) == record.payload_checksum() {
            return Ok(Some(payload));
        }
        Ok(correct(&mut payload, record.payload_checksum()).then_some(payload))
    }

    /// Whether a later batch begins after a bad slot at `at`: where the records after
    /// the bad batch's Commit begin, and that Commit.
    fn later_batch(&mut self, at: u64, end: &LogEnd) -> Result<Option<(u64, CommitSeen)>> {
        let mut seen: Option<(u64, CommitSeen)> = None;
        // The slot at `at` may itself be intact and only not agree.
        let mut at = at;
        while let Some(slot) = self.slot(at)? {
            let ours = slot.is_intact()
                && slot.generation() == end.generation as u32
                && slot.sequence() >= end.next_sequence;
            if ours {
                if seen.is_some() {
                    return Ok(seen);
                }
                if let Ok(Record::Commit { batch, .. }) = Record::parse(&slot) {
                    let commit = CommitSeen { batch, sequence: slot.sequence() };
                    if batch > end.batch + 1 {
                        return Ok(Some((at + SLOT, commit)));
                    }
                    seen = Some((at + SLOT, commit));
                }
            }
            at += SLOT;
        }
        Ok(None)
    }
}

fn correct(payload: &mut [u8], checksum: u32) -> bool {
    if payload.len() > CORRECTED_PAYLOAD_MAX {
        return false;
    }
    for bit in 0..payload.len() * 8 {
        let flip = |payload: &mut [u8]| {
            if let Some(byte) = payload.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        };
        flip(payload);
        if crc32c::crc32c(payload) == checksum {
            return true;
        }
        flip(payload);
    }
    false
}
