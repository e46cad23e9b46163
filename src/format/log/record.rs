//! The records of `meta.log`, each in one slot; some are followed by payload slots.
//!
//! Offsets count from the slot's start; the frame around the body is `slot`'s.
//!
//! | type | body |
//! |---|---|
//! | 0 Create | 21 dtype, 22 tier, 23 bits, 24 scale f32, 28 zero_point i16, 30 created_at u64 (s), 38 data_offset u64, 46 data_len u32, 50 checksum u32, 54 lineage_parent u128, 70 reconstruct u8, 71 ndim u8, 72 shape 8 x u32, 104 encoding u8, 105 flags u8 (bit 0: in data/), 106 group_len u16 |
//! | 2 Migrate | 21 old_tier, 22 new_tier, 23 new_bits, 24 new_scale f32, 28 new_checksum u32, 32 new_data_offset u64, 40 new_data_len u32, 44 encoding u8, 45 flags u8, 46 group_len u16, 48 migrated_at u64 (s) |
//! | 3 Delete | block_index 0xFFFFFFFF: the whole object |
//! | 4 Delta | 21 base_epoch u64, 29 offset u64 in delta.dat, 37 length u32, 41 chain_len u16, 43 nnz u32, 47 checksum u32, 51 kind u8 |
//! | 5 Factor | 21 offset u64 in factor.dat, 29 length u64, 37 rank u32, 41 checksum u32 |
//! | 6 Catalog | 21 payload length u32, 25 payload CRC32C u32, 29 kind u8, 30 version u8; then payload slots |
//! | 7 Commit | 21 batch u64, 29 slots since the last Commit u32, 33 CRC32C over the CRC fields of the batch's records u32, 37 batches before it that were not known to be durable when it was written u32 |
//! | 8 CreateRun | as Create for the first block, 46 block count u32, 50 CRC32C of the array; then the array: a CRC32C u32 for each block |
//! | 10 EmptyRun | 21 what u8: 0 zeros, 1 lost, 22 flags u8 (bit 0: zeros that are a hole in data/), 23 block count u32, 27 data_offset u64 of the hole, 35 created_at u64 (s) |
//! | 16 Log header | 21 magic `TFML`, 25 version u16, 27 store uuid 16 bytes, 43 generation u64 |

use crate::format::log::placed::{created, moved};
use crate::format::log::slot::{RawSlot, SEQUENCE_MAX, SLOT_BYTES};
use crate::model::{DIMENSIONS_MAX, Dtype, Error, GROUP_LEN, ObjectId, Result, Shape, StoreId, Tier};

/// The block index that stands for a whole object.
pub const WHOLE_OBJECT: u32 = u32::MAX;
/// The version of the log that this program writes and reads.
pub const LOG_VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"TFML";
const IN_DATA: u8 = 1;
const EMPTY_ZEROS: u8 = 0;
const EMPTY_LOST: u8 = 1;

/// Where a block's payload lies and how it is encoded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stored {
    /// How precisely the block is kept; `Absent`: no payload.
    pub tier: Tier,
    /// The largest magnitude of its groups' scales.
    pub scale: f32,
    /// CRC32C of the payload.
    pub checksum: u32,
    /// Byte offset of the payload in its file.
    pub offset: u64,
    /// Bytes of the payload.
    pub len: u32,
    /// Whether that file is the object's data file instead of the tier's.
    pub in_data: bool,
}

/// What Create and CreateRun say of the object a block belongs to. The catalog
/// overrides it.
#[derive(Clone, PartialEq, Debug)]
pub struct Described {
    /// Element type.
    pub dtype: Dtype,
    /// Shape; sizes past 32 bits are cut to 0xFFFFFFFF here.
    pub shape: Shape,
    /// The object of the lineage parent.
    pub parent: Option<ObjectId>,
    /// 0 none, 1 delta, 2 factor, 3 origin.
    pub reconstruct: u8,
}

/// What a record says.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "the table above says what each field is")]
pub enum Record {
    /// A block is there.
    Create { object: ObjectId, block: u32, described: Described, stored: Stored, created_at: u64 },
    /// Exact blocks stand one after the other in the object's data file. `stored.len`
    /// is the number of blocks, `stored.checksum` that of the array which follows.
    CreateRun { object: ObjectId, block: u32, described: Described, stored: Stored, created_at: u64 },
    /// Blocks one after the other have no payload: zeros, a hole of the data file from
    /// `stored.offset` on among them, or lost ones.
    EmptyRun { object: ObjectId, block: u32, count: u32, stored: Stored, created_at: u64 },
    /// A block went to another tier, or elsewhere in its own. `bits` are those of a
    /// code, of an element where the block is exact now, 0 where it is absent.
    Migrate { object: ObjectId, block: u32, old_tier: u8, bits: u8, stored: Stored, migrated_at: u64 },
    /// The object is gone.
    Delete { object: ObjectId },
    /// A delta lies on a block.
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
    },
    /// A factorization of an object, or of one block.
    Factor { object: ObjectId, block: u32, offset: u64, len: u64, rank: u32, checksum: u32 },
    /// An entry of the catalog; its payload follows.
    Catalog { len: u32, checksum: u32, kind: u8, version: u8 },
    /// The records since the last one count.
    Commit { batch: u64, slots: u32, checksum: u32, unsynced: u32 },
    /// The first record of a log.
    Header { version: u16, store: StoreId, generation: u64 },
}

impl Record {
    /// Bytes of the payload that follows the record, not rounded to slots.
    pub fn payload_len(&self) -> u64 {
        match self {
            Record::Catalog { len, .. } => u64::from(*len),
            Record::CreateRun { stored, .. } => u64::from(stored.len) * 4,
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
            Record::Catalog { checksum, .. } => *checksum,
            Record::CreateRun { stored, .. } => stored.checksum,
            _ => 0,
        }
    }

    /// The record of an intact slot. Unknown types are `Unsupported`, values that
    /// cannot be are `Corrupt`.
    pub fn parse(slot: &RawSlot) -> Result<Record> {
        let object = ObjectId(slot.object());
        let block = slot.block();
        let u8_at = |bytes: [u8; 1]| u8::from_le_bytes(bytes);
        Ok(match slot.kind() {
            kind @ (0 | 8) => {
                let described = parse_described(slot)?;
                let (stored, created_at) = created(slot)?;
                if kind == 0 {
                    Record::Create { object, block, described, stored, created_at }
                } else if stored.tier != Tier::Exact || !stored.in_data {
                    return Err(Error::corrupt("a run of blocks that are not exact ones of a data file"));
                } else {
                    Record::CreateRun { object, block, described, stored, created_at }
                }
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
                batch: match u64::from_le_bytes(slot.get::<21, 8>()) {
                    batch @ 0..=SEQUENCE_MAX => batch,
                    batch => return Err(Error::corrupt(format!("the Commit of batch {batch}"))),
                },
                slots: u32::from_le_bytes(slot.get::<29, 4>()),
                checksum: u32::from_le_bytes(slot.get::<33, 4>()),
                unsynced: u32::from_le_bytes(slot.get::<37, 4>()),
            },
            10 => Record::EmptyRun {
                object,
                block,
                count: u32::from_le_bytes(slot.get::<23, 4>()),
                stored: parse_empty(slot)?,
                created_at: u64::from_le_bytes(slot.get::<35, 8>()),
            },
            16 => {
                if slot.get::<21, 4>() != MAGIC {
                    return Err(Error::corrupt("the log's header has another magic than TFML"));
                }
                let version = u16::from_le_bytes(slot.get::<25, 2>());
                if version != LOG_VERSION {
                    return Err(Error::unsupported(format!(
                        "the log has version {version}, this program knows {LOG_VERSION}"
                    )));
                }
                Record::Header {
                    version,
                    store: StoreId(u128::from_le_bytes(slot.get::<27, 16>())),
                    generation: u64::from_le_bytes(slot.get::<43, 8>()),
                }
            }
            kind => {
                return Err(Error::unsupported(format!(
                    "a log record of type {kind}, which this program does not know"
                )));
            }
        })
    }

    /// The record as a slot, not sealed yet.
    pub fn to_slot(&self) -> RawSlot {
        match self {
            Record::Create { object, block, described, stored, created_at } => {
                create(0, *object, *block, described, stored, *created_at)
            }
            Record::CreateRun { object, block, described, stored, created_at } => {
                create(8, *object, *block, described, stored, *created_at)
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
            Record::Delta { object, block, base_epoch, offset, len, chain_len, nnz, checksum, kind } => {
                let mut slot = RawSlot::new(4, object.0, *block);
                slot.body(21, base_epoch.to_le_bytes())
                    .body(29, offset.to_le_bytes())
                    .body(37, len.to_le_bytes())
                    .body(41, chain_len.to_le_bytes())
                    .body(43, nnz.to_le_bytes())
                    .body(47, checksum.to_le_bytes())
                    .body(51, [*kind]);
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
    /// A block whose bytes were lost: no payload, and a checksum that nothing has.
    pub const LOST: Stored = Stored { checksum: u32::MAX, ..Stored::ABSENT };
    /// A block of zeros: exact, without a payload.
    pub const ZEROS: Stored = Stored { tier: Tier::Exact, ..Stored::ABSENT };

    /// Zeros, and from `offset` on the data file has a hole.
    pub fn hole(offset: u64) -> Stored {
        Stored { offset, in_data: true, ..Stored::ZEROS }
    }

    /// Whether its bytes were lost.
    pub fn is_lost(&self) -> bool {
        self.tier == Tier::Absent && self.checksum == Stored::LOST.checksum
    }

    /// Whether it was made absent: what was lost is something else.
    pub fn is_absent(&self) -> bool {
        self.tier == Tier::Absent && !self.is_lost()
    }

    /// Whether a slot of a tier file has its payload.
    pub fn has_slot(&self) -> bool {
        !self.in_data && self.len > 0
    }

    /// Whether it is zeros without a payload. Not of what was written since the last batch.
    pub fn is_zeros(&self) -> bool {
        self.tier == Tier::Exact && self.len == 0
    }

    /// Bytes that it counts as in quotas and tables: zeros as many as were to be stored if somebody
    /// wrote them.
    pub fn counted(&self, logical: u64) -> u64 {
        if self.is_zeros() { logical } else { u64::from(self.len) }
    }

    /// The bits field: of a code, of an element of an exact block, 0 for an absent one.
    /// An exact block is told from an absent one by it: the log has tier 0 for both.
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
    described: &Described,
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

/// What an EmptyRun says of its first block.
fn parse_empty(slot: &RawSlot) -> Result<Stored> {
    let [what] = slot.get::<21, 1>();
    let [flags] = slot.get::<22, 1>();
    let offset = u64::from_le_bytes(slot.get::<27, 8>());
    match (what, flags & IN_DATA, offset) {
        (EMPTY_ZEROS, IN_DATA, offset) => Ok(Stored::hole(offset)),
        (EMPTY_ZEROS, _, 0) => Ok(Stored::ZEROS),
        (EMPTY_LOST, 0, 0) => Ok(Stored::LOST),
        (EMPTY_ZEROS | EMPTY_LOST, ..) => Err(Error::corrupt("blocks without a payload that have a place")),
        (what, ..) => Err(Error::unsupported(format!(
            "blocks without a payload of kind {what}, which this program does not know"
        ))),
    }
}

fn parse_described(slot: &RawSlot) -> Result<Described> {
    let code = u8::from_le_bytes(slot.get::<21, 1>());
    let dtype = Dtype::from_code(code).ok_or_else(|| {
        Error::unsupported(format!("element type {code}, which this program does not know"))
    })?;
    let dimensions = usize::from(u8::from_le_bytes(slot.get::<71, 1>()));
    let mut sizes = [0; DIMENSIONS_MAX];
    for (size, bytes) in sizes.iter_mut().zip(slot.get::<72, 32>().as_chunks().0) {
        *size = u64::from(u32::from_le_bytes(*bytes));
    }
    // Sizes cut to 32 bits can make a product that no shape has; the catalog has the
    // true ones.
    let shape = sizes.get(..dimensions).map(|sizes| Shape::new(sizes).unwrap_or_default());
    let parent = u128::from_le_bytes(slot.get::<54, 16>());
    Ok(Described {
        dtype,
        shape: shape.ok_or_else(|| Error::corrupt(format!("{dimensions} dimensions")))?,
        parent: (parent != 0).then_some(ObjectId(parent)),
        reconstruct: u8::from_le_bytes(slot.get::<70, 1>()),
    })
}
