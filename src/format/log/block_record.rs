//! The block fields of Create and Migrate records, without the description of the object. Replay needs
//! nothing else of them. [`record`](crate::format::log::record) documents the layout.

use crate::format::log::record::{Record, Stored};
use crate::format::log::slot::RawSlot;
use crate::model::{DIMENSIONS_MAX, Dtype, Encoding, Error, GROUP_LEN, ObjectId, Result, Tier};

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
        return Err(Error::corrupt("a scale that is not finite"));
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
