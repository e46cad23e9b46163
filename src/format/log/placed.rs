//! What Create and Migrate say of a block, without what they say of its object: all that the
//! index takes in of them. Where the fields stand is written in `record`.

use crate::format::log::record::{Record, Stored};
use crate::format::log::slot::RawSlot;
use crate::model::{DIMENSIONS_MAX, Dtype, Encoding, Error, GROUP_LEN, ObjectId, Result, Tier};

const IN_DATA: u8 = 1;
const CREATE: u8 = 0;
const MIGRATE: u8 = 2;

/// A block that is there, or that went elsewhere.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Placed {
    /// The object that it is of.
    pub object: ObjectId,
    /// The record's sequence number.
    pub sequence: u64,
    /// When it was made or moved, in seconds since 1970.
    pub at: u64,
    /// Where its payload lies.
    pub stored: Stored,
    /// Its number in the object.
    pub block: u32,
    /// Whether a Migrate says so, and not a Create.
    pub is_move: bool,
}

// A line of the cache: a batch of them is kept until its Commit.
const _: () = assert!(size_of::<Placed>() <= 64);

impl Placed {
    /// What an intact slot says of a block. `None` where it is of another kind, and where
    /// [`Record::parse`] refuses it and says why.
    #[inline]
    pub fn parse(slot: &RawSlot) -> Option<Placed> {
        let kind = slot.kind();
        let (stored, at) = match kind {
            CREATE if describes(slot) => created(slot).ok()?,
            MIGRATE => moved(slot).ok()?,
            _ => return None,
        };
        Some(Placed {
            object: ObjectId(slot.object()),
            sequence: slot.sequence(),
            at,
            stored,
            block: slot.block(),
            is_move: kind == MIGRATE,
        })
    }

    /// Whether a slot is of a kind that says something of a block.
    #[inline]
    pub fn is_in(slot: &RawSlot) -> bool {
        matches!(slot.kind(), CREATE | MIGRATE)
    }

    /// What a record with this number says of a block, if it is one that does.
    pub fn of(record: &Record, sequence: u64) -> Option<Placed> {
        match *record {
            Record::Create { object, block, stored, created_at, .. } => {
                Some(Placed { object, sequence, at: created_at, stored, block, is_move: false })
            }
            Record::Migrate { object, block, stored, migrated_at, .. } => {
                Some(Placed { object, sequence, at: migrated_at, stored, block, is_move: true })
            }
            _ => None,
        }
    }
}

/// Whether a Create describes an object that can be.
fn describes(slot: &RawSlot) -> bool {
    let [dtype] = slot.get::<21, 1>();
    let [dimensions] = slot.get::<71, 1>();
    Dtype::from_code(dtype).is_some() && usize::from(dimensions) <= DIMENSIONS_MAX
}

/// What Create and CreateRun say of a payload, and when it was made.
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

/// What Migrate says of a payload, and when it was moved.
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

/// The payload in the tier that its record says, where that can be.
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
        _ => Tier::of_codes(bits, encoding).filter(|found| found.byte() == tier),
    };
    let found = found.ok_or_else(|| Error::corrupt(format!("tier {tier} with {bits} bits")))?;
    if found.code_bits().is_some() && usize::from(group_len) != GROUP_LEN {
        return Err(Error::unsupported(format!("groups of {group_len} elements")));
    }
    Ok(Stored { tier: found, ..stored })
}
