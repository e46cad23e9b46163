//! The side file `access`: usage of blocks. It is not synced, and its loss does no harm.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic `TFAC` |
//! | 4 | 2 | version, 2 |
//! | 6 | 2 | zero |
//! | 8 | 4 | seconds of a tick |
//! | 12 | 4 | number of records |
//! | 16 | 48 each | records |
//! | end | 4 | CRC32C of all before |
//!
//! A record describes consecutive blocks with the same history:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 16 | object_id |
//! | 16 | 4 | block_index of the first |
//! | 20 | 4 | number of accesses, 1 at least; 2^32 - 1 stands for more too |
//! | 24 | 4 | tick of the last access |
//! | 28 | 4 | tick from which the history counts |
//! | 32 | 8 | bit i: accessed i ticks before the last |
//! | 40 | 4 | f32, accesses a tick, averaged |
//! | 44 | 4 | number of blocks, 1 at least |

use std::ops::Range;

use crate::format::checksum;
use crate::format::cursor::{Reader, Writer};
use crate::model::{Error, ObjectId, Result};

const MAGIC: [u8; 4] = *b"TFAC";
const VERSION: u16 = 2;
const HEADER_BYTES: u64 = 16;
const RECORD_BYTES: u64 = 48;
const CHECKSUM_BYTES: u64 = 4;

/// The usage of a block. Ticks count from 1970.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct History {
    /// Number of accesses; `u32::MAX` also stands for more.
    pub count: u32,
    /// The tick of the last access, or the tick of creation if there was none.
    pub last: u32,
    /// The tick from which the history counts.
    pub created: u32,
    /// Bit i: accessed i ticks before the last.
    pub window: u64,
    /// Moving average of accesses per tick, 0 to 1.
    pub ema: f32,
}

/// The validated histories of a file, decoded on demand.
#[derive(Clone, Copy, Debug)]
pub struct Histories<'a> {
    /// Seconds of a tick.
    pub tick_seconds: u32,
    records: &'a [[u8; RECORD_BYTES as usize]],
}

impl<'a> Histories<'a> {
    /// The objects with their runs of blocks and histories, in the order of the file. An object appears
    /// again if records of others lie between its records.
    pub fn by_object(
        &self,
    ) -> impl Iterator<Item = (ObjectId, impl Iterator<Item = (Range<u32>, History)> + 'a)> {
        let of_one = |a: &[u8; _], b: &[u8; _]| object_of(a) == object_of(b);
        self.records.chunk_by(of_one).filter_map(|records| {
            let blocks = records.iter().filter_map(|record| history_of(record).ok());
            Some((object_of(records.first()?), blocks))
        })
    }
}

fn object_of(record: &[u8; RECORD_BYTES as usize]) -> ObjectId {
    ObjectId(record.first_chunk().copied().map_or(0, u128::from_le_bytes))
}

/// The blocks of a record and their history. Fails with `Corrupt` for impossible values.
#[inline]
fn history_of(record: &[u8; RECORD_BYTES as usize]) -> Result<(Range<u32>, History)> {
    let mut reader = Reader::new(record);
    reader.skip(size_of::<ObjectId>())?;
    let block = reader.u32()?;
    let (count, last, created) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let history = History { count, last, created, window: reader.u64()?, ema: reader.f32()? };
    let is_possible = count > 0 && history.window & 1 == 1 && (0.0..=1.0).contains(&history.ema);
    let blocks = reader.u32()?;
    match block.checked_add(blocks) {
        Some(end) if is_possible && blocks > 0 && created <= last => Ok((block..end, history)),
        _ => Err(corrupt("has an invalid record")),
    }
}

fn corrupt(what: &str) -> Error {
    Error::corrupt(format!("the access history {what}"))
}

/// Bytes of a file with `records` records.
pub fn file_bytes(records: u64) -> u64 {
    records.saturating_mul(RECORD_BYTES).saturating_add(HEADER_BYTES + CHECKSUM_BYTES)
}

/// Collects histories for a file. Equal histories of consecutive blocks become one record.
#[derive(Default)]
pub struct HistoryWriter {
    records: Vec<(ObjectId, Range<u32>, History)>,
}

impl HistoryWriter {
    /// Adds the history of a block.
    pub fn add(&mut self, object: ObjectId, block: u32, history: History) {
        match self.records.last_mut() {
            Some((of, blocks, same)) if (*of, blocks.end, *same) == (object, block, history) => {
                blocks.end = block.saturating_add(1);
            }
            _ => self.records.push((object, block..block.saturating_add(1), history)),
        }
    }

    /// The bytes of the file. Records past 2^32 - 1 are left out.
    pub fn to_bytes(&self, tick_seconds: u32) -> Vec<u8> {
        let count = u32::try_from(self.records.len()).unwrap_or(u32::MAX);
        let mut out = Writer::with_capacity(file_bytes(u64::from(count)) as usize);
        out.bytes(&MAGIC).u16(VERSION).u16(0).u32(tick_seconds).u32(count);
        for (object, blocks, history) in self.records.iter().take(count as usize) {
            out.u128(object.0).u32(blocks.start).u32(history.count).u32(history.last).u32(history.created);
            out.u64(history.window).f32(history.ema).u32(blocks.end - blocks.start);
        }
        let checksum = checksum::of(out.as_slice());
        out.u32(checksum);
        out.into_bytes()
    }
}

/// The bytes of a file with these histories.
pub fn to_bytes(tick_seconds: u32, histories: &[(ObjectId, u32, History)]) -> Vec<u8> {
    let mut writer = HistoryWriter::default();
    histories.iter().for_each(|(object, block, history)| writer.add(*object, *block, *history));
    writer.to_bytes(tick_seconds)
}

/// Decodes the bytes of a file. Fails with `Corrupt` for damaged bytes.
pub fn parse(bytes: &[u8]) -> Result<Histories<'_>> {
    let body = bytes.len().checked_sub(CHECKSUM_BYTES as usize).ok_or_else(|| corrupt("is truncated"))?;
    let (body, checksum) = bytes.split_at_checked(body).ok_or_else(|| corrupt("is truncated"))?;
    if Reader::new(checksum).u32()? != checksum::of(body) {
        return Err(corrupt("does not match its checksum"));
    }
    let mut reader = Reader::new(body);
    if reader.array::<4>()? != MAGIC {
        return Err(corrupt("has a wrong magic"));
    }
    if reader.u16()? != VERSION || reader.u16()? != 0 {
        return Err(Error::unsupported("a newer program wrote the access history"));
    }
    let (tick_seconds, count) = (reader.u32()?, reader.u32()?);
    if tick_seconds == 0 || file_bytes(u64::from(count)) != bytes.len() as u64 {
        return Err(corrupt("has a wrong length"));
    }
    let (records, _) = reader.bytes(reader.remaining())?.as_chunks();
    records.iter().try_for_each(|record| history_of(record).map(drop))?;
    Ok(Histories { tick_seconds, records })
}

#[cfg(test)]
mod tests {
    use crate::format::checksum;
    use proptest::prelude::*;

    use super::{Histories, History, parse, to_bytes};
    use crate::model::ObjectId;

    fn records() -> Vec<(ObjectId, u32, History)> {
        let history =
            History { count: 5, last: 29_000_000, created: 28_000_000, window: 0x8000_0003, ema: 0.25 };
        vec![(ObjectId(7), 0, history), (ObjectId(u128::MAX), 9, History { count: u32::MAX, ..history })]
    }

    fn all(read: Histories<'_>) -> (u32, Vec<(ObjectId, u32, History)>) {
        let records = read.by_object().flat_map(|(object, runs)| {
            runs.flat_map(move |(blocks, history)| blocks.map(move |block| (object, block, history)))
        });
        (read.tick_seconds, records.collect())
    }

    #[test]
    fn a_history_reads_as_it_was_written_at_the_offsets_of_the_table() {
        let bytes = to_bytes(60, &records());
        assert_eq!(all(parse(&bytes).unwrap()), (60, records()));
        assert_eq!((&bytes[..8], bytes.len()), (b"TFAC\x02\0\0\0".as_slice(), 16 + 2 * 48 + 4));
        assert_eq!((bytes[8], bytes[12], bytes[16]), (60, 2, 7));
        assert_eq!(bytes[16 + 20..16 + 24], 5_u32.to_le_bytes());
        assert_eq!(bytes[16 + 24..16 + 28], 29_000_000_u32.to_le_bytes());
        assert_eq!(bytes[16 + 28..16 + 32], 28_000_000_u32.to_le_bytes());
        assert_eq!(bytes[16 + 32..16 + 40], 0x8000_0003_u64.to_le_bytes());
        assert_eq!(bytes[16 + 40..16 + 44], 0.25_f32.to_le_bytes());
        assert_eq!(all(parse(&to_bytes(1, &[])).unwrap()), (1, Vec::new()));
    }

    #[test]
    fn blocks_with_equal_histories_share_one_record() {
        let (_, _, history) = records()[0];
        let other = History { count: 6, ..history };
        let mut all_of_them: Vec<_> = (0..1000).map(|block| (ObjectId(7), block, history)).collect();
        all_of_them.extend([
            (ObjectId(7), 1001, history),
            (ObjectId(7), 1002, other),
            (ObjectId(8), 1003, other),
        ]);
        let bytes = to_bytes(60, &all_of_them);
        assert_eq!(bytes.len(), 16 + 4 * 48 + 4);
        assert_eq!(bytes[16 + 44..16 + 48], 1000_u32.to_le_bytes());
        assert_eq!(all(parse(&bytes).unwrap()), (60, all_of_them));
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_refused() {
        let bytes = to_bytes(60, &records());
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err(), "{len} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&flipped).is_err(), "bit {bit}");
        }
    }

    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let checksum = checksum::of(&bytes).to_le_bytes();
        bytes.extend(checksum);
        bytes
    }

    #[test]
    fn impossible_values_are_refused_under_a_valid_checksum() {
        let whole = to_bytes(60, &records());
        let body = whole[..whole.len() - 4].to_vec();
        let changed = |at: usize, value: &[u8]| {
            let mut body = body.clone();
            body[at..at + value.len()].copy_from_slice(value);
            parse(&sealed(body)).map(drop)
        };
        assert!(changed(0, b"TFAC").is_ok());
        let nan = f32::NAN.to_le_bytes();
        let lies: [(usize, &[u8]); 11] = [
            (0, b"TFAD"),
            (4, &[1]),
            (4, &[3]),
            (8, &[0; 4]),
            (12, &[1]),
            (12, &[0xff; 4]),
            (16 + 20, &[0; 4]),
            (16 + 28, &[0xff; 4]),
            (16 + 40, &nan),
            (16 + 44, &[0]),
            (16 + 48 + 44, &[0xff; 4]),
        ];
        for (at, value) in lies {
            assert!(changed(at, value).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse(&bytes).is_err());
            prop_assert!(parse(&sealed(bytes)).is_err());
        }
    }
}
