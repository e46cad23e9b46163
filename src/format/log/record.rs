//! The records of `meta.log`. Each takes one slot; payload slots follow some of them.
//!
//! Offsets count from the slot's start. [`slot`](crate::format::log::slot) documents the frame around the body.
//!
//! | type | body |
//! |---|---|
//! | 0 Create | 21 dtype, 22 tier, 23 bits, 24 scale f32, 28 zero_point i16, 30 created_at u64 (s), 38 data_offset u64, 46 data_len u32, 50 checksum u32, 54 lineage_parent u128, 70 reconstruct u8, 71 ndim u8, 72 shape 8 x u32, 104 encoding u8, 105 flags u8 (bit 0: in data/), 106 group_len u16 |
//! | 2 Migrate | 21 old_tier, 22 new_tier, 23 new_bits, 24 new_scale f32, 28 new_checksum u32, 32 new_data_offset u64, 40 new_data_len u32, 44 encoding u8, 45 flags u8, 46 group_len u16, 48 migrated_at u64 (s) |
//! | 3 Delete | block_index 0xFFFFFFFF: the whole object |
//! | 4 Delta | 21 base_epoch u64, 29 offset u64 in delta.dat, 37 length u32, 41 chain_len u16, 43 nnz u32, 47 checksum u32, 51 kind u8, 52 product u32 |
//! | 5 Factor | 21 offset u64 in factor.dat, 29 length u64, 37 rank u32, 41 checksum u32 |
//! | 6 Catalog | 21 payload length u32, 25 payload CRC32C u32, 29 kind u8, 30 version u8; then payload slots |
//! | 7 Commit | 21 batch u64, 29 slots since the last Commit u32, 33 CRC32C over the CRC fields of the batch's records u32, 37 batches before it that were not known to be durable when it was written u32 |
//! | 8 CreateRun | as Create for the first block, 46 block count u32, 50 CRC32C of the array; then the array: a CRC32C u32 for each block |
//! | 9 SlotRun | as Create for the first block, 24 zero, 46 block count u32, 50 CRC32C of the array, 105 flags u8 (bit 1: as Migrate); then the array: for each block its CRC32C u32, then its scale f32 if it has codes, its length u32 if it is packed, zero if it is exact |
//! | 10 EmptyRun | 21 what u8: 0 zeros, 1 lost, 22 flags u8 (bit 0: zeros that are a hole in data/), 23 block count u32, 27 data_offset u64 of the hole, 35 created_at u64 (s) |
//! | 11 Small | 21 batch u64, 29 batches before it that were not known to be durable when it was written u32, 33 bytes of content in payload slots u32, 37 CRC32C of these u32, 41 number of records u16, 43 the first 65 bytes of the content: [`small_batch`](crate::format::log::small_batch) |
//! | 16 Log header | 21 magic `TFML`, 25 version u16, 27 store uuid 16 bytes, 43 generation u64 |

use crate::format::log::block_record::{created, moved};
use crate::format::log::slot::{RawSlot, SEQUENCE_MAX, SLOT_BYTES};
use crate::format::log::small_batch::HEAD_BYTES;
use crate::model::{DIMENSIONS_MAX, Dtype, Error, GROUP_LEN, ObjectId, Result, Shape, StoreId, Tier};

/// The block index that stands for a whole object.
pub const WHOLE_OBJECT: u32 = u32::MAX;
/// The version of the log that this program writes and reads.
pub const LOG_VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"TFML";
const IN_DATA: u8 = 1;
/// Flag of a SlotRun.
const MOVED: u8 = 2;
/// Bytes of the array of a SlotRun for a block.
const SLOT_RUN_BYTES: u64 = 8;
const EMPTY_ZEROS: u8 = 0;
const EMPTY_LOST: u8 = 1;

/// The location and encoding of a block's payload.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stored {
    /// The precision of the block; `Absent` means no payload.
    pub tier: Tier,
    /// The largest magnitude of its groups' scales.
    pub scale: f32,
    /// CRC32C of the payload.
    pub checksum: u32,
    /// Byte offset of the payload in its file.
    pub offset: u64,
    /// Bytes of the payload.
    pub len: u32,
    /// Whether that file is the object's data file rather than the tier's file.
    pub in_data: bool,
}

/// The object of a block as described by Create and CreateRun. The catalog takes precedence.
#[derive(Clone, PartialEq, Debug)]
pub struct ObjectDescription {
    /// Element type.
    pub dtype: Dtype,
    /// Shape. Sizes above 32 bits are stored as 0xFFFFFFFF.
    pub shape: Shape,
    /// The object of the lineage parent.
    pub parent: Option<ObjectId>,
    /// 0 none, 1 delta, 2 factor, 3 origin.
    pub reconstruct: u8,
}

/// A decoded record.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "the table above says what each field is")]
pub enum Record {
    /// Creates a block.
    Create { object: ObjectId, block: u32, described: ObjectDescription, stored: Stored, created_at: u64 },
    /// Creates consecutive exact blocks in the object's data file. `stored.len` is the number of
    /// blocks, `stored.checksum` the checksum of the array that follows.
    CreateRun { object: ObjectId, block: u32, described: ObjectDescription, stored: Stored, created_at: u64 },
    /// Creates, or moves, consecutive blocks of one tier in adjacent slots of its file. `stored.len` is
    /// the number of blocks, `stored.checksum` the checksum of the array that follows.
    SlotRun {
        object: ObjectId,
        block: u32,
        described: ObjectDescription,
        stored: Stored,
        created_at: u64,
        is_move: bool,
    },
    /// Creates consecutive blocks without a payload: zeros, which may be a hole of the data file
    /// from `stored.offset`, or lost blocks.
    EmptyRun { object: ObjectId, block: u32, count: u32, stored: Stored, created_at: u64 },
    /// Moves a block to another tier, or within its own. `bits` is the size of a code, of an
    /// element if the block is now exact, or 0 if it is now absent.
    Migrate { object: ObjectId, block: u32, old_tier: u8, bits: u8, stored: Stored, migrated_at: u64 },
    /// Deletes an object.
    Delete { object: ObjectId },
    /// Adds a delta to a block.
    Delta {
        object: ObjectId,
        block: u32,
        base_epoch: u64,
        offset: u64,
        len: u32,
        chain_len: u16,
        nnz: u32,
        checksum: u32,
        kind: u8,
        product: u32,
    },
    /// Adds a factorization of an object, or of one block.
    Factor { object: ObjectId, block: u32, offset: u64, len: u64, rank: u32, checksum: u32 },
    /// An entry of the catalog, whose payload follows.
    Catalog { len: u32, checksum: u32, kind: u8, version: u8 },
    /// Commits the records since the previous Commit.
    Commit { batch: u64, slots: u32, checksum: u32, unsynced: u32 },
    /// A batch by itself: its records, from its number on, and its Commit, which takes the number after
    /// theirs. `len` bytes of the content follow.
    Small { batch: u64, unsynced: u32, len: u32, checksum: u32, count: u16, head: [u8; HEAD_BYTES] },
    /// The first record of a log.
    Header { version: u16, store: StoreId, generation: u64 },
}

impl Record {
    /// A run of exact blocks from `offset` in the data file. Its count and checksum are those of the
    /// array of checksums that follows it.
    pub fn run(
        object: ObjectId,
        block: u32,
        described: ObjectDescription,
        offset: u64,
        created_at: u64,
    ) -> Record {
        Record::CreateRun { object, block, described, stored: Stored::in_extent(offset), created_at }
    }

    /// Bytes of the payload that follows the record, not rounded to slots.
    pub fn payload_len(&self) -> u64 {
        match self {
            Record::Catalog { len, .. } | Record::Small { len, .. } => u64::from(*len),
            Record::CreateRun { stored, .. } => u64::from(stored.len) * 4,
            Record::SlotRun { stored, .. } => u64::from(stored.len) * SLOT_RUN_BYTES,
            _ => 0,
        }
    }

    /// Slots of the payload that follows the record.
    pub fn payload_slots(&self) -> u64 {
        self.payload_len().div_ceil(SLOT_BYTES as u64)
    }

    /// The checksum that the payload must have.
    pub fn payload_checksum(&self) -> u32 {
        match self {
            Record::Catalog { checksum, .. } | Record::Small { checksum, .. } => *checksum,
            Record::CreateRun { stored, .. } | Record::SlotRun { stored, .. } => stored.checksum,
            _ => 0,
        }
    }

    /// Decodes an intact slot. Fails with `Unsupported` for unknown types, with `Corrupt` for
    /// impossible values.
    pub fn parse(slot: &RawSlot) -> Result<Record> {
        let object = ObjectId(slot.object());
        let block = slot.block();
        let u8_at = |bytes: [u8; 1]| u8::from_le_bytes(bytes);
        Ok(match slot.kind() {
            0 => {
                let described = parse_described(slot)?;
                let (stored, created_at) = created(slot)?;
                Record::Create { object, block, described, stored, created_at }
            }
            2 => {
                let (stored, migrated_at) = moved(slot)?;
                let (old_tier, bits) = (u8_at(slot.get::<21, 1>()), u8_at(slot.get::<23, 1>()));
                Record::Migrate { object, block, old_tier, bits, stored, migrated_at }
            }
            3 => Record::Delete { object },
            4 => Record::Delta {
                object,
                block,
                base_epoch: u64::from_le_bytes(slot.get::<21, 8>()),
                offset: u64::from_le_bytes(slot.get::<29, 8>()),
                len: u32::from_le_bytes(slot.get::<37, 4>()),
                chain_len: u16::from_le_bytes(slot.get::<41, 2>()),
                nnz: u32::from_le_bytes(slot.get::<43, 4>()),
                checksum: u32::from_le_bytes(slot.get::<47, 4>()),
                kind: u8_at(slot.get::<51, 1>()),
                product: u32::from_le_bytes(slot.get::<52, 4>()),
            },
            5 => Record::Factor {
                object,
                block,
                offset: u64::from_le_bytes(slot.get::<21, 8>()),
                len: u64::from_le_bytes(slot.get::<29, 8>()),
                rank: u32::from_le_bytes(slot.get::<37, 4>()),
                checksum: u32::from_le_bytes(slot.get::<41, 4>()),
            },
            6 => Record::Catalog {
                len: u32::from_le_bytes(slot.get::<21, 4>()),
                checksum: u32::from_le_bytes(slot.get::<25, 4>()),
                kind: u8_at(slot.get::<29, 1>()),
                version: u8_at(slot.get::<30, 1>()),
            },
            7 => Record::Commit {
                batch: batch_of(slot)?,
                slots: u32::from_le_bytes(slot.get::<29, 4>()),
                checksum: u32::from_le_bytes(slot.get::<33, 4>()),
                unsynced: u32::from_le_bytes(slot.get::<37, 4>()),
            },
            8 => parse_create_run(slot)?,
            9 => parse_slot_run(slot)?,
            10 => Record::EmptyRun {
                object,
                block,
                count: u32::from_le_bytes(slot.get::<23, 4>()),
                stored: parse_empty(slot)?,
                created_at: u64::from_le_bytes(slot.get::<35, 8>()),
            },
            11 => parse_small(slot)?,
            16 => parse_header(slot)?,
            kind => {
                return Err(Error::unsupported(format!(
                    "a log record of type {kind}, which this program does not know"
                )));
            }
        })
    }

    /// The record as a slot that is not sealed yet.
    pub fn to_slot(&self) -> RawSlot {
        match self {
            Record::Create { object, block, described, stored, created_at } => {
                create(0, *object, *block, described, stored, *created_at)
            }
            Record::CreateRun { object, block, described, stored, created_at } => {
                create(8, *object, *block, described, stored, *created_at)
            }
            Record::SlotRun { object, block, described, stored, created_at, is_move } => {
                let mut slot = create(9, *object, *block, described, stored, *created_at);
                slot.body(105, [if *is_move { MOVED } else { 0 }]);
                slot
            }
            Record::Migrate { object, block, old_tier, bits, stored, migrated_at } => {
                let mut slot = RawSlot::new(2, object.0, *block);
                slot.body(21, [*old_tier])
                    .body(22, [stored.tier.byte()])
                    .body(23, [*bits])
                    .body(24, stored.scale.to_le_bytes())
                    .body(28, stored.checksum.to_le_bytes())
                    .body(32, stored.offset.to_le_bytes())
                    .body(40, stored.len.to_le_bytes())
                    .body(44, [stored.tier.encoding().byte()])
                    .body(45, [stored.flags()])
                    .body(46, stored.group_len().to_le_bytes())
                    .body(48, migrated_at.to_le_bytes());
                slot
            }
            Record::Delete { object } => RawSlot::new(3, object.0, WHOLE_OBJECT),
            Record::Delta {
                object,
                block,
                base_epoch,
                offset,
                len,
                chain_len,
                nnz,
                checksum,
                kind,
                product,
            } => {
                let mut slot = RawSlot::new(4, object.0, *block);
                slot.body(21, base_epoch.to_le_bytes())
                    .body(29, offset.to_le_bytes())
                    .body(37, len.to_le_bytes())
                    .body(41, chain_len.to_le_bytes())
                    .body(43, nnz.to_le_bytes())
                    .body(47, checksum.to_le_bytes())
                    .body(51, [*kind])
                    .body(52, product.to_le_bytes());
                slot
            }
            Record::Factor { object, block, offset, len, rank, checksum } => {
                let mut slot = RawSlot::new(5, object.0, *block);
                slot.body(21, offset.to_le_bytes())
                    .body(29, len.to_le_bytes())
                    .body(37, rank.to_le_bytes())
                    .body(41, checksum.to_le_bytes());
                slot
            }
            Record::Catalog { len, checksum, kind, version } => {
                let mut slot = RawSlot::new(6, 0, 0);
                slot.body(21, len.to_le_bytes())
                    .body(25, checksum.to_le_bytes())
                    .body(29, [*kind])
                    .body(30, [*version]);
                slot
            }
            Record::Commit { batch, slots, checksum, unsynced } => {
                let mut slot = RawSlot::new(7, 0, 0);
                slot.body(21, batch.to_le_bytes())
                    .body(29, slots.to_le_bytes())
                    .body(33, checksum.to_le_bytes())
                    .body(37, unsynced.to_le_bytes());
                slot
            }
            Record::Small { batch, unsynced, len, checksum, count, head } => {
                let mut slot = RawSlot::new(11, 0, 0);
                slot.body(21, batch.to_le_bytes())
                    .body(29, unsynced.to_le_bytes())
                    .body(33, len.to_le_bytes())
                    .body(37, checksum.to_le_bytes())
                    .body(41, count.to_le_bytes())
                    .body(43, *head);
                slot
            }
            Record::EmptyRun { object, block, count, stored, created_at } => {
                let what = if stored.is_lost() { EMPTY_LOST } else { EMPTY_ZEROS };
                let mut slot = RawSlot::new(10, object.0, *block);
                slot.body(21, [what])
                    .body(22, [stored.flags()])
                    .body(23, count.to_le_bytes())
                    .body(27, stored.offset.to_le_bytes())
                    .body(35, created_at.to_le_bytes());
                slot
            }
            Record::Header { version, store, generation } => {
                let mut slot = RawSlot::new(16, 0, 0);
                slot.body(21, MAGIC)
                    .body(25, version.to_le_bytes())
                    .body(27, store.0.to_le_bytes())
                    .body(43, generation.to_le_bytes());
                slot
            }
        }
    }
}

impl Stored {
    /// A block that is not stored.
    pub const ABSENT: Stored =
        Stored { tier: Tier::Absent, scale: 0.0, checksum: 0, offset: 0, len: 0, in_data: false };
    /// A block whose bytes were lost: no payload, and a checksum that no empty payload has.
    pub const LOST: Stored = Stored { checksum: u32::MAX, ..Stored::ABSENT };
    /// A block of zeros: exact, without a payload.
    pub const ZEROS: Stored = Stored { tier: Tier::Exact, ..Stored::ABSENT };

    /// An exact block at a place of the data file. Without length and checksum it is a hole of zeros, or
    /// a block that is being written.
    pub fn in_extent(offset: u64) -> Stored {
        Stored { offset, in_data: true, ..Stored::ZEROS }
    }

    /// A payload in a slot of the tier's file, with its length and checksum still to be set.
    pub fn in_slot(tier: Tier, offset: u64) -> Stored {
        Stored { tier, offset, ..Stored::ZEROS }
    }

    /// Whether the bytes were lost.
    pub fn is_lost(&self) -> bool {
        self.tier == Tier::Absent && self.checksum == Stored::LOST.checksum
    }

    /// Whether the block was evicted, as opposed to lost.
    pub fn is_absent(&self) -> bool {
        self.tier == Tier::Absent && !self.is_lost()
    }

    /// Whether its payload lies in a slot of a tier file.
    pub fn has_slot(&self) -> bool {
        !self.in_data && self.len > 0
    }

    /// Whether it is zeros without a payload. Not meaningful for writes since the last batch.
    pub fn is_zeros(&self) -> bool {
        self.tier == Tier::Exact && self.len == 0
    }

    /// The bytes that it counts in quotas and tables. Zeros count as if they were stored.
    pub fn counted(&self, logical: u64) -> u64 {
        if self.is_zeros() { logical } else { u64::from(self.len) }
    }

    /// The bits field: the size of a code, of an element if exact, or 0 if absent. It distinguishes
    /// exact blocks from absent ones, which both have tier 0 in the log.
    pub fn bits(&self, dtype: Dtype) -> u8 {
        match self.tier {
            Tier::Absent => 0,
            tier => tier.code_bits().unwrap_or((dtype.bytes() * 8) as u8),
        }
    }

    fn flags(&self) -> u8 {
        if self.in_data { IN_DATA } else { 0 }
    }

    fn group_len(&self) -> u16 {
        if self.tier.code_bits().is_some() { GROUP_LEN as u16 } else { 0 }
    }
}

fn create(
    kind: u8,
    object: ObjectId,
    block: u32,
    described: &ObjectDescription,
    stored: &Stored,
    created_at: u64,
) -> RawSlot {
    let mut slot = RawSlot::new(kind, object.0, block);
    slot.body(21, [described.dtype.code()])
        .body(22, [stored.tier.byte()])
        .body(23, [stored.bits(described.dtype)])
        .body(24, stored.scale.to_le_bytes())
        .body(30, created_at.to_le_bytes())
        .body(38, stored.offset.to_le_bytes())
        .body(46, stored.len.to_le_bytes())
        .body(50, stored.checksum.to_le_bytes())
        .body(54, described.parent.unwrap_or_default().0.to_le_bytes())
        .body(70, [described.reconstruct])
        .body(71, [described.shape.dimensions().len() as u8])
        .body(104, [stored.tier.encoding().byte()])
        .body(105, [stored.flags()])
        .body(106, stored.group_len().to_le_bytes());
    for (place, &size) in described.shape.dimensions().iter().enumerate() {
        slot.body(72 + place * 4, u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
    }
    slot
}

/// The number of the batch that a record ends.
fn batch_of(slot: &RawSlot) -> Result<u64> {
    match u64::from_le_bytes(slot.get::<21, 8>()) {
        batch @ 0..=SEQUENCE_MAX => Ok(batch),
        batch => Err(Error::corrupt(format!("a Commit record names batch {batch}, past the largest number"))),
    }
}

/// The first block of an EmptyRun.
fn parse_create_run(slot: &RawSlot) -> Result<Record> {
    let described = parse_described(slot)?;
    let (stored, created_at) = created(slot)?;
    if stored.tier != Tier::Exact || !stored.in_data {
        return Err(Error::corrupt("a run of blocks in a data file is not exact"));
    }
    let (object, block) = (ObjectId(slot.object()), slot.block());
    Ok(Record::CreateRun { object, block, described, stored, created_at })
}

fn parse_slot_run(slot: &RawSlot) -> Result<Record> {
    let described = parse_described(slot)?;
    let (stored, created_at) = created(slot)?;
    let [flags] = slot.get::<105, 1>();
    let is_possible = stored.tier != Tier::Absent && stored.scale.to_bits() == 0;
    if !is_possible || flags & !MOVED != 0 {
        return Err(Error::corrupt("a run of slots lies in more than one tier"));
    }
    let (object, block, is_move) = (ObjectId(slot.object()), slot.block(), flags & MOVED != 0);
    Ok(Record::SlotRun { object, block, described, stored, created_at, is_move })
}

fn parse_small(slot: &RawSlot) -> Result<Record> {
    let count = u16::from_le_bytes(slot.get::<41, 2>());
    if slot.sequence() > SEQUENCE_MAX - u64::from(count) {
        return Err(Error::corrupt("the records of a small batch need numbers past the largest one"));
    }
    Ok(Record::Small {
        batch: batch_of(slot)?,
        unsynced: u32::from_le_bytes(slot.get::<29, 4>()),
        len: u32::from_le_bytes(slot.get::<33, 4>()),
        checksum: u32::from_le_bytes(slot.get::<37, 4>()),
        count,
        head: slot.get::<43, HEAD_BYTES>(),
    })
}

fn parse_header(slot: &RawSlot) -> Result<Record> {
    if slot.get::<21, 4>() != MAGIC {
        return Err(Error::corrupt("the log's header has a wrong magic; expected TFML"));
    }
    let version = u16::from_le_bytes(slot.get::<25, 2>());
    if version != LOG_VERSION {
        return Err(Error::unsupported(format!(
            "the log has version {version}, this program knows {LOG_VERSION}"
        )));
    }
    Ok(Record::Header {
        version,
        store: StoreId(u128::from_le_bytes(slot.get::<27, 16>())),
        generation: u64::from_le_bytes(slot.get::<43, 8>()),
    })
}

fn parse_empty(slot: &RawSlot) -> Result<Stored> {
    let [what] = slot.get::<21, 1>();
    let [flags] = slot.get::<22, 1>();
    let offset = u64::from_le_bytes(slot.get::<27, 8>());
    match (what, flags & IN_DATA, offset) {
        (EMPTY_ZEROS, IN_DATA, offset) => Ok(Stored::in_extent(offset)),
        (EMPTY_ZEROS, _, 0) => Ok(Stored::ZEROS),
        (EMPTY_LOST, 0, 0) => Ok(Stored::LOST),
        (EMPTY_ZEROS | EMPTY_LOST, ..) => Err(Error::corrupt("blocks without a payload have an offset")),
        (what, ..) => Err(Error::unsupported(format!(
            "blocks without a payload of kind {what}, which this program does not know"
        ))),
    }
}

fn parse_described(slot: &RawSlot) -> Result<ObjectDescription> {
    let code = u8::from_le_bytes(slot.get::<21, 1>());
    let dtype = Dtype::from_code(code).ok_or_else(|| {
        Error::unsupported(format!("element type {code}, which this program does not know"))
    })?;
    let dimensions = usize::from(u8::from_le_bytes(slot.get::<71, 1>()));
    let mut sizes = [0; DIMENSIONS_MAX];
    for (size, bytes) in sizes.iter_mut().zip(slot.get::<72, 32>().as_chunks().0) {
        *size = u64::from(u32::from_le_bytes(*bytes));
    }
    // Sizes truncated to 32 bits may give a product that no shape has. The catalog has the true
    // sizes.
    let shape = sizes.get(..dimensions).map(|sizes| Shape::new(sizes).unwrap_or_default());
    let parent = u128::from_le_bytes(slot.get::<54, 16>());
    Ok(ObjectDescription {
        dtype,
        shape: shape.ok_or_else(|| Error::corrupt(format!("{dimensions} dimensions")))?,
        parent: (parent != 0).then_some(ObjectId(parent)),
        reconstruct: u8::from_le_bytes(slot.get::<70, 1>()),
    })
}
