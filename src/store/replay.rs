//! Reading `meta.log` back.
//!
//! Invariants:
//! 1. A record counts only once the Commit of its batch has verified.
//! 2. Nothing after a bad slot is taken for its batch unless the slot's single flipped
//!    bit could be put right and the Commit then verifies.
//! 3. A bad slot after which no later batch begins is a torn end: that batch is dropped
//!    and reported. Before that it is damage: what the log says of blocks up to the end
//!    of that batch is not believed. Batches of which no later Commit says that they were
//!    durable may be lost in any order: the first that is lost is a torn end too.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::format::catalog::Entry;
use crate::format::record::Record;
use crate::format::slot::{RawSlot, SLOT_BYTES};
use crate::model::{Error, ErrorKind, Result, StoreId};
use crate::store::disk::File;
use crate::store::events::{EventKind, Note};
use crate::store::log::LogEnd;
use crate::store::state::State;

const SLOT: u64 = SLOT_BYTES as u64;
/// The log is read in pieces of this size.
const WINDOW_BYTES: usize = 1 << 20;
/// The polynomial of CRC32C, its bits reversed.
const CRC32C_POLYNOMIAL: u32 = 0x82f6_3b78;

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
}

impl Replayed {
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
    let (generation, mended) = header(&mut log, store)?;
    let mut out = Replayed {
        state: State::default(),
        end: LogEnd { generation, bytes: SLOT, batch: 0, next_sequence: 1 },
        durable: 0,
        events: Vec::new(),
        damage: None,
    };
    if mended {
        out.note(EventKind::Repair, put_right(0));
    }
    // A block is described by a slot of its own or by four bytes of a run.
    let mut places = len / 4;
    let mut at = SLOT;
    let mut held: Vec<Held> = Vec::new();
    let mut checksums: Vec<u8> = Vec::new();
    let mut corrected = Vec::new();
    let mut unsure: VecDeque<(u64, u64)> = VecDeque::new();
    loop {
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
                    && checksum == crc32c::crc32c(&checksums);
                if whole {
                    corrected.drain(..).for_each(|at| out.note(EventKind::Repair, put_right(at)));
                    apply(&mut out, held.drain(..), &mut places)?;
                    // Nobody reads yet: what was deleted is gone.
                    out.state.forget_freed();
                    checksums.clear();
                    let durable = durable_before(batch, unsynced);
                    while let Some((_, sequence)) = unsure.pop_front_if(|(batch, _)| *batch <= durable) {
                        out.durable = sequence;
                    }
                    unsure.push_back((batch, sequence));
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
            Found::End if held.is_empty() && log.is_zero_from(at)? => return Ok(out),
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
        for held in held.drain(..) {
            if let Err(error) = held.apply(&mut out.state, &mut places) {
                let text = format!("meta.log before byte {}: {error}", later.at);
                out.note(EventKind::Corruption, text);
            }
        }
        checksums.clear();
        corrected.clear();
        at = later.at;
        out.end = LogEnd { generation, bytes: at, batch: later.batch, next_sequence: later.sequence + 1 };
    }
}

struct Held {
    record: Record,
    sequence: u64,
    payload: Vec<u8>,
}

impl Held {
    fn apply(self, state: &mut State, places: &mut u64) -> Result<()> {
        if let Record::Catalog { kind, version, .. } = self.record {
            return state.apply_entry(Entry::parse(kind, version, &self.payload)?);
        }
        let numbers = self.payload.chunks_exact(4);
        let checksums = numbers.map(|four| u32::from_le_bytes(four.try_into().unwrap_or_default())).collect();
        state.apply_record(&self.record, self.sequence, checksums, places)
    }
}

fn apply(out: &mut Replayed, held: impl Iterator<Item = Held>, places: &mut u64) -> Result<()> {
    for held in held {
        let sequence = held.sequence;
        match held.apply(&mut out.state, places) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let reason = format!("meta.log, record {sequence}: {error}");
                match out.damage {
                    // It is about something that was lost there.
                    Some(_) => out.note(EventKind::Corruption, reason),
                    None => out.damage = Some(Damage { sequence, reason }),
                }
            }
            Err(error) => return Err(error.at(format!("meta.log, record {sequence}"))),
        }
    }
    Ok(())
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

/// The last batch that was known to be durable when batch `batch` was written.
fn durable_before(batch: u64, unsynced: u32) -> u64 {
    batch.saturating_sub(1).saturating_sub(u64::from(unsynced))
}

fn put_right(at: u64) -> String {
    format!("meta.log at byte {at}: a flipped bit was put right")
}

/// Where replay goes on behind a batch that is damaged.
struct Later {
    at: u64,
    /// Records of the damaged batch have at most this number, later ones a higher one.
    sequence: u64,
    /// The number of the batch before `at`.
    batch: u64,
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
        let Some((payload, mended)) = self.payload(at + SLOT, &record)? else {
            return Ok(Found::Bad("a payload that is cut off or whose checksum does not agree".into()));
        };
        let (sequence, checksum) = (slot.sequence(), slot.checksum());
        Ok(Found::Record { record, sequence, checksum, payload, corrected: corrected || mended })
    }

    /// The payload of a record, and whether a flipped bit had to be put right.
    fn payload(&mut self, at: u64, record: &Record) -> Result<Option<(Vec<u8>, bool)>> {
        let len = record.payload_len();
        if len == 0 {
            return Ok(Some((Vec::new(), false)));
        }
        if len > self.len {
            return Ok(None);
        }
        let slots = record.payload_slots() * SLOT;
        let Some((payload, fill)) =
            self.bytes(at, slots as usize)?.and_then(|bytes| bytes.split_at_checked(len as usize))
        else {
            return Ok(None);
        };
        let mended = fill.iter().any(|byte| *byte != 0);
        let mut payload = payload.to_vec();
        if crc32c::crc32c(&payload) == record.payload_checksum() {
            return Ok(Some((payload, mended)));
        }
        Ok(correct(&mut payload, record.payload_checksum()).then_some((payload, true)))
    }

    fn is_zero_from(&mut self, at: u64) -> Result<bool> {
        let mut at = at;
        while at < self.len {
            let count = (self.len - at).min(WINDOW_BYTES as u64);
            if self.bytes(at, count as usize)?.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0)) {
                return Ok(false);
            }
            at += count;
        }
        Ok(true)
    }

    /// Whether a Commit behind `bad` says that the batch after the end was durable.
    fn was_durable(&mut self, bad: u64, end: &LogEnd) -> Result<bool> {
        let mut at = bad;
        while let Some(slot) = self.slot(at)? {
            if slot.is_intact()
                && slot.generation() == end.generation as u32
                && slot.sequence() >= end.next_sequence
                && let Ok(Record::Commit { batch, unsynced, .. }) = Record::parse(&slot)
                && durable_before(batch, unsynced) > end.batch
            {
                return Ok(true);
            }
            at += SLOT;
        }
        Ok(false)
    }

    /// Where a later batch begins after a bad slot at `bad`, if one does. Behind the bad
    /// batch's own Commit, or, where that is lost, as far before the next Commit as that
    /// one counts slots.
    fn later_batch(&mut self, bad: u64, end: &LogEnd) -> Result<Option<Later>> {
        let mut own: Option<Later> = None;
        // The slot at `bad` may itself be intact and only not agree.
        let mut at = bad;
        while let Some(slot) = self.slot(at)? {
            let is_ours = slot.is_intact()
                && slot.generation() == end.generation as u32
                && slot.sequence() >= end.next_sequence;
            if is_ours && own.is_some() {
                return Ok(own);
            }
            if is_ours && let Ok(Record::Commit { batch, slots, .. }) = Record::parse(&slot) {
                let behind = Later { at: at + SLOT, sequence: slot.sequence(), batch };
                if batch <= end.batch + 1 {
                    own = Some(behind);
                } else {
                    let begin = at.checked_sub(u64::from(slots) * SLOT).filter(|begin| *begin > bad);
                    let first = begin.map(|begin| self.slot(begin)).transpose()?.flatten();
                    let number = first.filter(RawSlot::is_intact).map(|first| first.sequence());
                    let before = begin.zip(number.and_then(|number| number.checked_sub(1)));
                    return Ok(Some(before.map_or(behind, |(at, sequence)| Later {
                        at,
                        sequence,
                        batch: batch - 1,
                    })));
                }
            }
            at += SLOT;
        }
        Ok(None)
    }
}

/// Puts right the one flipped bit that makes the checksum agree, if there is one. The
/// difference of the checksums is that of the bit alone, which shifts by a step of the
/// polynomial from bit to bit: no checksum is computed again.
fn correct(payload: &mut [u8], checksum: u32) -> bool {
    let wanted = crc32c::crc32c(payload) ^ checksum;
    let mut difference = CRC32C_POLYNOMIAL;
    for byte in payload.iter_mut().rev() {
        for bit in (0..8).rev() {
            if difference == wanted {
                *byte ^= 1 << bit;
                return true;
            }
            difference = (difference >> 1) ^ if difference & 1 == 1 { CRC32C_POLYNOMIAL } else { 0 };
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::correct;

    #[test]
    fn the_flipped_bit_of_a_payload_of_any_length_is_found() {
        for len in [1, 2, 127, 5000] {
            let right: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let checksum = crc32c::crc32c(&right);
            for bit in (0..len * 8).step_by(1 + len / 50) {
                let mut flipped = right.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(correct(&mut flipped, checksum) && flipped == right, "bit {bit} of {len} bytes");
            }
            let mut two = right.clone();
            two[0] ^= 0b11;
            assert!(!correct(&mut two, checksum));
        }
    }
}
