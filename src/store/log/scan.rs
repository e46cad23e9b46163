//! Reads the slots of `meta.log`, and searches for readable batches after a bad slot.

use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::checksum;
use crate::format::log::block_record::BlockRecord;
use crate::format::log::record::Record;
use crate::format::log::slot::{RawSlot, SLOT_BYTES};
use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::File;
use crate::store::log::append::LogEnd;

pub(in crate::store) const SLOT: u64 = SLOT_BYTES as u64;
/// The log is read in pieces of at most this size.
const WINDOW_BYTES: usize = 1 << 20;
/// The size of the first piece, and of one after a jump. The next ones double it: a damaged log has many jumps.
const JUMP_BYTES: usize = 4 << 10;
/// The CRC32C polynomial, bit-reversed.
const CRC32C_POLYNOMIAL: u32 = 0x82f6_3b78;

/// A log that is being read. Reading it from beginning to end takes work in proportion to its bytes. A damaged log
/// takes more, for the searches behind each damaged place and for payloads that prove bad; a budget bounds that.
pub(in crate::store) struct LogReader<'a> {
    file: &'a Arc<dyn File>,
    /// Length of the file in bytes.
    pub len: u64,
    window: Vec<u8>,
    window_at: u64,
    /// Bytes of the next window.
    window_bytes: usize,
    /// A step is a byte that is looked at once more.
    budget: Budget,
    /// The result of the last search for a durable batch.
    durable: Option<FoundDurable>,
    /// Payload of the record found last.
    payload: Vec<u8>,
}

/// The end of a batch that says that earlier ones are durable: the first behind a place whose `durable` is above that of
/// the search.
struct FoundDurable {
    from: u64,
    above: u64,
    sequence_min: u64,
    /// Where it is, or the end of the log.
    at: u64,
}

/// Content of a position in the log.
pub(in crate::store) enum SlotContent {
    /// A record. [`LogReader::payload`] is its payload.
    Record { record: Record, sequence: u64, checksum: u32, corrected: bool },
    /// The end of the log: no bytes, or zeros.
    End,
    /// Something that is not a valid record, and the reason.
    Bad(String),
}

/// The last batch known to be durable when batch `batch` was written.
pub(in crate::store) fn durable_before(batch: u64, unsynced: u32) -> u64 {
    batch.saturating_sub(1).saturating_sub(u64::from(unsynced))
}

/// The end of a batch by its slot: a Commit, or a small batch as a whole.
struct BatchEnd {
    batch: u64,
    /// The last batch known to be durable when it was written.
    durable: u64,
    /// Slots of the batch before this one, and behind it.
    slots_before: u64,
    slots_behind: u64,
    /// The number of the Commit.
    sequence: u64,
    is_small: bool,
}

impl BatchEnd {
    fn of(slot: &RawSlot) -> Option<BatchEnd> {
        let record = Record::parse(slot).ok()?;
        let (slots_behind, sequence) = (record.payload_slots(), slot.sequence());
        match record {
            Record::Commit { batch, slots, unsynced, .. } => {
                let durable = durable_before(batch, unsynced);
                let slots_before = u64::from(slots);
                Some(BatchEnd { batch, durable, slots_before, slots_behind, sequence, is_small: false })
            }
            Record::Small { batch, unsynced, count, .. } => {
                let durable = durable_before(batch, unsynced);
                let sequence = sequence + u64::from(count);
                Some(BatchEnd { batch, durable, slots_before: 0, slots_behind, sequence, is_small: true })
            }
            _ => None,
        }
    }
}

/// Where replay continues after a damaged batch.
pub(in crate::store) struct ResumePoint {
    /// Byte offset.
    pub at: u64,
    /// Highest sequence number that a record of the damaged batch can have. Later records have higher
    /// ones.
    pub sequence: u64,
    /// The number of the batch before `at`.
    pub batch: u64,
}

impl<'a> LogReader<'a> {
    /// Reads a log from its beginning.
    pub fn new(file: &'a Arc<dyn File>) -> Result<LogReader<'a>> {
        let len = file.len().map_err(|error| Error::io("reading the size of meta.log", error))?;
        let mut budget = Budget::default();
        budget.add_read(len);
        Ok(LogReader {
            file,
            len,
            window: Vec::new(),
            window_at: 0,
            window_bytes: JUMP_BYTES,
            budget,
            durable: None,
            payload: Vec::new(),
        })
    }

    /// Searches behind damage as often as it takes: the repair of a local log was asked for, and may take long.
    pub fn unbounded(mut self) -> LogReader<'a> {
        self.budget.add_read(u64::MAX);
        self
    }

    /// Steps beyond those of reading it once.
    pub fn steps(&self) -> u64 {
        self.budget.spent()
    }

    /// Takes bytes that are looked at once more. `Unsupported` if the log is damaged in too many places.
    pub fn take(&mut self, bytes: u64) -> Result<()> {
        let taken = self.budget.take(bytes);
        taken.map_err(|error| error.at("meta.log is damaged in too many places to search behind each"))
    }

    fn bytes(&mut self, at: u64, count: usize) -> Result<Option<&[u8]>> {
        let end = at.saturating_add(count as u64);
        if end > self.len {
            return Ok(None);
        }
        let loaded = self.window_at..self.window_at + self.window.len() as u64;
        if !(loaded.contains(&at) && end <= loaded.end) {
            let is_next = at >= self.window_at && at <= loaded.end;
            self.window_bytes = if is_next { (self.window_bytes * 2).min(WINDOW_BYTES) } else { JUMP_BYTES };
            let wanted = (self.len - at).min(count.max(self.window_bytes) as u64) as usize;
            self.window.resize(wanted, 0);
            self.window_at = at;
            let read = self.file.read_exact_at(&mut self.window, at);
            read.map_err(|error| Error::io("reading meta.log", error))?;
        }
        let from = (at - self.window_at) as usize;
        Ok(Some(&self.window[from..from + count]))
    }

    /// The slot at `at`; `None` if the log ends before the slot does.
    pub fn slot(&mut self, at: u64) -> Result<Option<RawSlot>> {
        let bytes = self.bytes(at, SLOT_BYTES)?;
        Ok(bytes.and_then(|bytes| bytes.try_into().ok()).map(RawSlot))
    }

    /// Passes the consecutive intact block records from `at` on, with their checksums, to `take`, and
    /// returns where they end. [`LogReader::next`] would find the same records.
    pub fn blocks(
        &mut self,
        at: u64,
        generation: u64,
        sequence_min: u64,
        mut take: impl FnMut(BlockRecord, u32),
    ) -> Result<u64> {
        if self.bytes(at, SLOT_BYTES)?.is_none() {
            return Ok(at);
        }
        let loaded = &self.window[(at - self.window_at) as usize..];
        let mut end = at;
        for bytes in loaded.as_chunks().0 {
            let slot = RawSlot(*bytes);
            let is_ours =
                BlockRecord::is_in(&slot) && slot.is_intact() && slot.is_of(generation, sequence_min);
            let Some(placed) = is_ours.then(|| BlockRecord::parse(&slot)).flatten() else { break };
            take(placed, slot.checksum());
            end += SLOT;
        }
        Ok(end)
    }

    /// The content at `at`. Sequence numbers below `sequence_min` belong to another generation.
    pub fn next(&mut self, at: u64, generation: u64, sequence_min: u64) -> Result<SlotContent> {
        let Some(raw) = self.slot(at)? else {
            return Ok(if at == self.len {
                SlotContent::End
            } else {
                SlotContent::Bad("the slot is cut off".into())
            });
        };
        if raw.0 == [0; SLOT_BYTES] {
            return Ok(SlotContent::End);
        }
        let corrected = !raw.is_intact();
        let slot = if corrected { raw.corrected() } else { Some(raw) };
        let Some(slot) = slot else {
            return Ok(SlotContent::Bad("the checksum of the slot does not match".into()));
        };
        if !slot.is_of(generation, sequence_min) {
            return Ok(SlotContent::Bad("the slot belongs to another generation".into()));
        }
        let record = match Record::parse(&slot) {
            Ok(record) => record,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Ok(SlotContent::Bad(error.to_string()));
            }
            Err(error) => return Err(error.at(format!("meta.log at byte {at}"))),
        };
        let Some(mended) = self.fetch(at + SLOT, &record)? else {
            return Ok(SlotContent::Bad("the payload is cut off, or its checksum does not match".into()));
        };
        let (sequence, checksum) = (slot.sequence(), slot.checksum());
        Ok(SlotContent::Record { record, sequence, checksum, corrected: corrected || mended })
    }

    /// Payload of the record found last.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Reads the payload of a record. Returns whether something had to be corrected; `None` if the
    /// payload is bad.
    fn fetch(&mut self, at: u64, record: &Record) -> Result<Option<bool>> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        let len = record.payload_len();
        if len == 0 {
            self.payload = payload;
            return Ok(Some(false));
        }
        if len > self.len {
            return Ok(None);
        }
        let slots = record.payload_slots() * SLOT;
        let Some((stored, fill)) =
            self.bytes(at, slots as usize)?.and_then(|bytes| bytes.split_at_checked(len as usize))
        else {
            return Ok(None);
        };
        let mended = fill.iter().any(|byte| *byte != 0);
        payload.extend_from_slice(stored);
        let is_whole = checksum::of(&payload) == record.payload_checksum();
        let is_right = is_whole || correct(&mut payload, record.payload_checksum());
        self.payload = payload;
        if !is_right {
            // It may be read again as slots.
            self.take(len)?;
        }
        Ok(is_right.then_some(mended || !is_whole))
    }

    /// Whether only zeros follow.
    pub fn is_zero_from(&mut self, at: u64) -> Result<bool> {
        let mut at = at;
        let mut most = SLOT;
        while at < self.len {
            let count = (self.len - at).min(most);
            most = (most * 2).min(WINDOW_BYTES as u64);
            if self.bytes(at, count as usize)?.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0)) {
                return Ok(false);
            }
            at += count;
        }
        Ok(true)
    }

    /// Whether the log simply ends at `bad`, as it does when its writer was killed: the record is
    /// incomplete, and no Commit and nothing else follows.
    pub fn ends_early(&mut self, bad: u64, end: &LogEnd) -> Result<bool> {
        let Some(first) = self.slot(bad)? else { return Ok(true) };
        let record = if first.is_intact() { Record::parse(&first).ok() } else { None };
        let (mut at, until) = match record {
            // It is complete with its last byte, which is not zero.
            Some(Record::Small { len: len @ 1.., .. }) => (bad + SLOT, bad + SLOT + u64::from(len) - 1),
            Some(record) => (bad, (bad + SLOT).saturating_add(record.payload_len())),
            // A slot ends with its checksum.
            None => (bad, bad + SLOT - 8),
        };
        while let Some(slot) = self.slot(at)? {
            self.take(SLOT)?;
            let is_ours = slot.is_intact() && slot.is_of(end.generation, end.next_sequence);
            if is_ours && BatchEnd::of(&slot).is_some() {
                return Ok(false);
            }
            at += SLOT;
        }
        self.is_zero_from(until)
    }

    /// Whether the end of a batch after `bad` records the batch after `end` as durable.
    pub fn was_durable(&mut self, bad: u64, end: &LogEnd) -> Result<bool> {
        let mut at = bad;
        // The last search asked for no more than this one, so none of the slots that it passed is such an end.
        if let Some(last) = &self.durable
            && (last.from..=last.at).contains(&bad)
            && last.above <= end.batch
            && last.sequence_min <= end.next_sequence
        {
            at = last.at;
        }
        let mut is_found = false;
        while let Some(slot) = self.slot(at)? {
            self.take(SLOT)?;
            is_found = slot.is_intact()
                && slot.is_of(end.generation, end.next_sequence)
                && BatchEnd::of(&slot).is_some_and(|found| found.durable > end.batch);
            if is_found {
                break;
            }
            at += SLOT;
        }
        let (above, sequence_min) = (end.batch, end.next_sequence);
        self.durable = Some(FoundDurable { from: bad, above, sequence_min, at });
        Ok(is_found)
    }

    /// Where a later batch begins after a bad slot at `bad`, if one does: after the bad batch's own
    /// Commit or, if that is lost, as many slots before the next Commit as that Commit counts.
    pub fn later_batch(&mut self, bad: u64, end: &LogEnd) -> Result<Option<ResumePoint>> {
        let mut own: Option<ResumePoint> = None;
        // The slot at `bad` may itself be intact and only contradict others.
        let mut at = bad;
        while let Some(slot) = self.slot(at)? {
            self.take(SLOT)?;
            let is_ours = slot.is_intact() && slot.is_of(end.generation, end.next_sequence);
            if is_ours && own.is_some() {
                return Ok(own);
            }
            if is_ours && let Some(found) = BatchEnd::of(&slot) {
                let (batch, sequence) = (found.batch, found.sequence);
                let behind = ResumePoint { at: at + SLOT * (1 + found.slots_behind), sequence, batch };
                if batch <= end.batch + 1 {
                    own = Some(behind);
                } else {
                    // A Commit at `bad` would be found again and again.
                    let begin = at.checked_sub(found.slots_before * SLOT);
                    let begin = begin.filter(|begin| *begin > bad || found.is_small);
                    let first = begin.map(|begin| self.slot(begin)).transpose()?.flatten();
                    let number = first.filter(RawSlot::is_intact).map(|first| first.sequence());
                    let before = begin.zip(number.and_then(|number| number.checked_sub(1)));
                    return Ok(Some(before.map_or(behind, |(at, sequence)| ResumePoint {
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

/// Corrects the one flipped bit that makes the checksum agree, if there is one. The difference of two
/// checksums depends on the flipped bit alone and shifts by one step of the polynomial from bit to bit,
/// so no checksum is computed again.
fn correct(payload: &mut [u8], checksum: u32) -> bool {
    let wanted = checksum::of(payload) ^ checksum;
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
    use crate::format::checksum;

    #[test]
    fn the_flipped_bit_of_a_payload_of_any_length_is_found() {
        for len in [1, 2, 127, 5000] {
            let right: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
            let checksum = checksum::of(&right);
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
