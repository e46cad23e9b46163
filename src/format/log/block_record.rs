//! The block fields of Create and Migrate records, without the description of the object. Replay needs no other
//! fields. [`record`](crate::format::log::record) documents the layout.

use crate::format::log::record::{Record, Stored};
use crate::format::log::slot::RawSlot;
use crate::model::{DIMENSIONS_MAX, Dtype, Encoding, Error, GROUP_LEN, ObjectId, Result, Tier};

/// Slots of tier files begin at multiples of this.
pub const SLOT_ALIGN: u64 = 64;

const IN_DATA: u8 = 1;
const CREATE: u8 = 0;
const MIGRATE: u8 = 2;

/// A block that was created or moved.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BlockRecord {
    /// The object of the block.
    pub object: ObjectId,
    /// The record's sequence number.
    pub sequence: u64,
    /// Time of the creation or move in Unix seconds.
    pub at: u64,
    /// The location of its payload.
    pub stored: Stored,
    /// Its number in the object.
    pub block: u32,
    /// Whether the record is a Migrate rather than a Create.
    pub is_move: bool,
}

// One cache line: replay keeps a batch of them until its Commit.
const _: () = assert!(size_of::<BlockRecord>() <= 64);

impl BlockRecord {
    /// Decodes an intact slot. `None` for other kinds of records, and for a slot that [`Record::parse`]
    /// refuses with a reason.
    #[inline]
    pub fn parse(slot: &RawSlot) -> Option<BlockRecord> {
        let kind = slot.kind();
        let (stored, at) = match kind {
            CREATE if describes(slot) => created(slot).ok()?,
            MIGRATE => moved(slot).ok()?,
            _ => return None,
        };
        Some(BlockRecord {
            object: ObjectId(slot.object()),
            sequence: slot.sequence(),
            at,
            stored,
            block: slot.block(),
            is_move: kind == MIGRATE,
        })
    }

    /// Whether a slot holds a Create or Migrate.
    #[inline]
    pub fn is_in(slot: &RawSlot) -> bool {
        matches!(slot.kind(), CREATE | MIGRATE)
    }

    /// The block of a Create or Migrate with this sequence number; `None` for other records.
    pub fn of(record: &Record, sequence: u64) -> Option<BlockRecord> {
        match *record {
            Record::Create { object, block, stored, created_at, .. } => {
                Some(BlockRecord { object, sequence, at: created_at, stored, block, is_move: false })
            }
            Record::Migrate { object, block, stored, migrated_at, .. } => {
                Some(BlockRecord { object, sequence, at: migrated_at, stored, block, is_move: true })
            }
            _ => None,
        }
    }
}

/// The block records that a SlotRun represents. `payload_len` tells the bytes of the payload of a block,
/// `array` is the array of the record.
pub fn of_slot_run(
    record: &Record,
    sequence: u64,
    array: &[u8],
    payload_len: impl Fn(u32) -> Result<usize>,
) -> Result<Vec<BlockRecord>> {
    let Record::SlotRun { object, block: first, stored, created_at, is_move, .. } = record else {
        return Err(Error::corrupt("a record of another type stands where a run of slots is expected"));
    };
    let (entries, rest) = array.as_chunks::<8>();
    if entries.len() as u64 != u64::from(stored.len) || !rest.is_empty() {
        return Err(Error::corrupt("the array of a run of slots has the wrong length"));
    }
    let past = || Error::corrupt("a run of slots goes past the largest block number or offset");
    let mut offset = stored.offset;
    let mut records = Vec::with_capacity(entries.len());
    for (skip, entry) in (0_u32..).zip(entries) {
        let [c0, c1, c2, c3, v0, v1, v2, v3] = *entry;
        let (checksum, value) = (u32::from_le_bytes([c0, c1, c2, c3]), u32::from_le_bytes([v0, v1, v2, v3]));
        let block = first.checked_add(skip).ok_or_else(past)?;
        let (scale, len) = match stored.tier {
            Tier::Packed => (0.0, value),
            Tier::Exact if value == 0 => (0.0, payload_len(block)? as u32),
            Tier::Exact | Tier::Absent => {
                return Err(Error::corrupt("an exact block in a run of slots has a scale"));
            }
            _ => (f32::from_bits(value), payload_len(block)? as u32),
        };
        if !scale.is_finite() || len == 0 {
            return Err(Error::corrupt("a block in a run of slots has an infinite scale or no bytes"));
        }
        let stored = Stored { scale, checksum, offset, len, ..*stored };
        records.push(BlockRecord {
            object: *object,
            sequence,
            at: *created_at,
            stored,
            block,
            is_move: *is_move,
        });
        offset = after_slot(offset, len).ok_or_else(past)?;
    }
    Ok(records)
}

/// The array of a SlotRun with these blocks.
pub fn slot_run_array<'a>(blocks: impl IntoIterator<Item = &'a Stored>) -> Vec<u8> {
    let entry = |stored: &Stored| {
        let value = match stored.tier {
            Tier::Packed => stored.len,
            _ => stored.scale.to_bits(),
        };
        [stored.checksum.to_le_bytes(), value.to_le_bytes()].concat()
    };
    blocks.into_iter().flat_map(entry).collect()
}

/// Whether `next` can follow `before` in a SlotRun: both are in slots of one tier, side by side.
pub fn is_next_slot(before: &Stored, next: &Stored) -> bool {
    before.has_slot()
        && next.has_slot()
        && before.tier == next.tier
        && after_slot(before.offset, before.len) == Some(next.offset)
}

/// Where the slot after that of a payload begins.
pub fn after_slot(offset: u64, len: u32) -> Option<u64> {
    offset.checked_add(u64::from(len))?.checked_next_multiple_of(SLOT_ALIGN)
}

/// Whether a Create describes a possible object.
fn describes(slot: &RawSlot) -> bool {
    let [dtype] = slot.get::<21, 1>();
    let [dimensions] = slot.get::<71, 1>();
    Dtype::from_code(dtype).is_some() && usize::from(dimensions) <= DIMENSIONS_MAX
}

/// The payload and the creation time of a Create or CreateRun.
#[inline]
pub(super) fn created(slot: &RawSlot) -> Result<(Stored, u64)> {
    let stored = Stored {
        tier: Tier::Exact,
        scale: f32::from_le_bytes(slot.get::<24, 4>()),
        checksum: u32::from_le_bytes(slot.get::<50, 4>()),
        offset: u64::from_le_bytes(slot.get::<38, 8>()),
        len: u32::from_le_bytes(slot.get::<46, 4>()),
        in_data: u8::from_le_bytes(slot.get::<105, 1>()) & IN_DATA != 0,
    };
    let stored = checked(
        stored,
        u8::from_le_bytes(slot.get::<22, 1>()),
        u8::from_le_bytes(slot.get::<23, 1>()),
        u8::from_le_bytes(slot.get::<104, 1>()),
        u16::from_le_bytes(slot.get::<106, 2>()),
    )?;
    Ok((stored, u64::from_le_bytes(slot.get::<30, 8>())))
}

/// The payload and the time of a Migrate.
#[inline]
pub(super) fn moved(slot: &RawSlot) -> Result<(Stored, u64)> {
    let stored = Stored {
        tier: Tier::Exact,
        scale: f32::from_le_bytes(slot.get::<24, 4>()),
        checksum: u32::from_le_bytes(slot.get::<28, 4>()),
        offset: u64::from_le_bytes(slot.get::<32, 8>()),
        len: u32::from_le_bytes(slot.get::<40, 4>()),
        in_data: u8::from_le_bytes(slot.get::<45, 1>()) & IN_DATA != 0,
    };
    let stored = checked(
        stored,
        u8::from_le_bytes(slot.get::<22, 1>()),
        u8::from_le_bytes(slot.get::<23, 1>()),
        u8::from_le_bytes(slot.get::<44, 1>()),
        u16::from_le_bytes(slot.get::<46, 2>()),
    )?;
    Ok((stored, u64::from_le_bytes(slot.get::<48, 8>())))
}

/// Sets the tier of a payload from the fields of its record. Fails if they contradict each other.
#[inline]
fn checked(stored: Stored, tier: u8, bits: u8, encoding: u8, group_len: u16) -> Result<Stored> {
    let encoding = Encoding::from_byte(encoding).ok_or_else(|| {
        Error::unsupported(format!("encoding {encoding}, which this program does not know"))
    })?;
    if !stored.scale.is_finite() {
        return Err(Error::corrupt("the scale of a block is not finite"));
    }
    let found = match (tier, encoding) {
        (0, Encoding::Verbatim) if bits == 0 => (stored.len == 0).then_some(Tier::Absent),
        (0, Encoding::Verbatim) => Some(Tier::Exact),
        (0, Encoding::Ladder) if matches!(bits, 8 | 16 | 32 | 64) && !stored.in_data && stored.len > 0 => {
            Some(Tier::Packed)
        }
        _ => Tier::of_codes(bits, encoding).filter(|found| found.byte() == tier),
    };
    let found = found.ok_or_else(|| Error::corrupt(format!("tier {tier} with {bits} bits")))?;
    let is_grouped = usize::from(group_len) == GROUP_LEN;
    if (found.code_bits().is_some() && !is_grouped) || (found == Tier::Packed && group_len != 0) {
        return Err(Error::unsupported(format!("groups of {group_len} elements")));
    }
    Ok(Stored { tier: found, ..stored })
}
