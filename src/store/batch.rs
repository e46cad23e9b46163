//! Batches of records for the log, and the records that describe blocks.

use crate::format::checksum;
use crate::format::log::block_record::{is_next_slot, slot_run_array};
use crate::format::log::catalog::{Entry, NodeEntry, ObjectEntry};
use crate::format::log::record::{ObjectDescription, Record, Stored};
use crate::model::{EntryId, Error, ObjectId, Result, Shape, Tier};
use crate::store::clock::now_seconds;

/// A record in a batch.
pub struct BatchRecord {
    /// The record itself.
    pub record: Record,
    /// Its sequence number.
    pub sequence: u64,
    /// The payload that follows the record.
    pub payload: Vec<u8>,
    /// The parsed payload, if the record is a catalog entry.
    pub entry: Option<Entry>,
}

/// Records that take effect together or not at all.
///
/// A caller of `Collection::record` fills a batch with entries of the catalog and with records of blocks, whose
/// payloads it has written before. Each gets the next sequence number, which becomes the epoch of a block. The journal
/// appends the records and, last, a Commit with their number and checksum, or packs a small batch into one record. A
/// replay that finds no valid Commit drops the batch.
///
/// A batch says too what its caller knows and the records do not: that it keeps the bytes that readers see
/// (`keep_bytes`, for packs and compactions), that it frees space and may use the reserve of the log, and which names
/// the kernel itself asked to change.
pub struct Batch {
    records: Vec<BatchRecord>,
    next_sequence: u64,
    slots: u64,
    keeps_bytes: bool,
    frees_space: bool,
    /// Names whose change the kernel requested.
    asked: Vec<(EntryId, Vec<u8>)>,
}

impl Batch {
    /// An empty batch. `next_sequence` is the sequence number of its first record.
    pub fn new(next_sequence: u64) -> Batch {
        Batch {
            records: Vec::new(),
            next_sequence,
            slots: 0,
            keeps_bytes: false,
            frees_space: false,
            asked: Vec::new(),
        }
    }

    /// The sequence number that the next record gets.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Sets the sequence number of the next record. A checkpoint keeps the numbers of the old log.
    pub fn number_next(&mut self, sequence: u64) {
        self.next_sequence = sequence;
    }

    /// Number of slots that the batch occupies, without the Commit.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Marks the batch as one that frees space, so that it may use the reserve.
    pub fn mark_freeing(&mut self) {
        self.frees_space = true;
    }

    /// Whether the batch frees space: it was marked so, or it removes names or objects and adds nothing
    /// new.
    pub fn frees_space(&self) -> bool {
        if self.frees_space {
            return true;
        }
        let is_new = |added: &BatchRecord| {
            matches!(
                added.record,
                Record::Create { .. }
                    | Record::CreateRun { .. }
                    | Record::SlotRun { .. }
                    | Record::EmptyRun { .. }
                    | Record::Migrate { .. }
            ) || matches!(added.entry, Some(Entry::Object(_) | Entry::Name { .. }))
        };
        let is_gone = |added: &BatchRecord| {
            matches!(added.record, Record::Delete { .. })
                || matches!(added.entry, Some(Entry::NodeRemoved(_) | Entry::NameRemoved { .. }))
        };
        self.records.iter().any(is_gone) && !self.records.iter().any(is_new)
    }

    /// Marks the batch as one that does not change the bytes that readers see, with any records.
    pub fn keep_bytes(&mut self) {
        self.keeps_bytes = true;
    }

    /// Whether [`Batch::keep_bytes`] was called.
    pub fn keeps_bytes(&self) -> bool {
        self.keeps_bytes
    }

    /// Records that the kernel requested this name change.
    pub fn mark_requested_by_kernel(&mut self, parent: EntryId, name: &[u8]) {
        self.asked.push((parent, name.to_vec()));
    }

    /// Whether the kernel requested this name change.
    pub fn is_requested_by_kernel(&self, parent: EntryId, name: &[u8]) -> bool {
        self.asked.iter().any(|(directory, asked)| *directory == parent && asked == name)
    }

    /// The catalog entries of the batch.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.records.iter().filter_map(|added| added.entry.as_ref())
    }

    /// Whether the batch has no records.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Adds a catalog entry.
    pub fn entry(&mut self, entry: Entry) {
        let payload = entry.to_bytes();
        let record = Record::Catalog {
            len: payload.len() as u32,
            checksum: checksum::of(&payload),
            kind: entry.kind(),
            version: entry.version(),
        };
        self.push(record, payload, Some(entry));
    }

    /// Adds a new or changed node.
    pub fn node(&mut self, entry: NodeEntry) {
        self.entry(Entry::Node(Box::new(entry)));
    }

    /// Adds a record without a payload.
    pub fn record(&mut self, record: Record) {
        debug_assert_eq!(record.payload_len(), 0);
        self.push(record, Vec::new(), None);
    }

    /// Adds a run of exact blocks, which [`Record::run`] describes, with their checksums.
    pub fn run(&mut self, checksums: &[u32], mut run: Record) {
        let array: Vec<u8> = checksums.iter().flat_map(|checksum| checksum.to_le_bytes()).collect();
        if let Record::CreateRun { stored, .. } = &mut run {
            (stored.len, stored.checksum) = (checksums.len() as u32, checksum::of(&array));
        }
        self.push(run, array, None);
    }

    /// Adds a run of blocks in adjacent slots. `make` gets the fields that the record has for them.
    pub fn slot_run<'a>(
        &mut self,
        blocks: impl Iterator<Item = &'a Stored> + Clone,
        make: impl FnOnce(Stored) -> Record,
    ) {
        let Some(first) = blocks.clone().next() else { return };
        let (len, array) = (blocks.clone().count() as u32, slot_run_array(blocks));
        let checksum = checksum::of(&array);
        self.push(make(Stored { scale: 0.0, checksum, len, ..*first }), array, None);
    }

    fn push(&mut self, record: Record, payload: Vec<u8>, entry: Option<Entry>) {
        self.slots += 1 + record.payload_slots();
        self.records.push(BatchRecord { record, sequence: self.next_sequence, payload, entry });
        self.next_sequence += 1;
    }

    /// Checks that replay will accept the catalog entries. `Invalid` if a name or value is outside its
    /// limits: written to the log, it would count as damage.
    pub fn check(&self) -> Result<()> {
        for added in &self.records {
            let Record::Catalog { kind, version, .. } = added.record else { continue };
            match Entry::parse(kind, version, &added.payload) {
                Ok(read) if read.to_bytes() == added.payload => {}
                Ok(_) => {
                    return Err(Error::invalid("a catalog entry changes when it is written and read back"));
                }
                Err(error) => return Err(Error::invalid(error.to_string())),
            }
        }
        Ok(())
    }

    /// The records, in order.
    pub fn records(&self) -> &[BatchRecord] {
        &self.records
    }

    /// The records, in order, without copying.
    pub fn into_records(self) -> Vec<BatchRecord> {
        self.records
    }
}

/// The fields that a record of a block repeats about its object.
pub(in crate::store) fn described(entry: &ObjectEntry) -> ObjectDescription {
    let shape = Shape::new(&[entry.bytes / entry.dtype.bytes()]).unwrap_or_default();
    let parent = entry.parent.as_ref().map(|parent| parent.object);
    ObjectDescription { dtype: entry.dtype, shape, parent, reconstruct: 0 }
}

/// The record of a block that moves to another location or tier.
pub(in crate::store) fn migrate(
    entry: &ObjectEntry,
    block: u32,
    old_tier: Tier,
    stored: Stored,
    migrated_at: u64,
) -> Record {
    let bits = match stored.tier {
        Tier::Absent => 0,
        Tier::Exact | Tier::Packed => (entry.dtype.bytes() * 8) as u8,
        tier => tier.code_bits().unwrap_or(0),
    };
    Record::Migrate { object: entry.id, block, old_tier: old_tier.byte(), bits, stored, migrated_at }
}

/// Adds an object's blocks to a batch. Consecutive blocks of a data file, or in adjacent slots of a tier
/// file, become one run.
pub fn add_blocks(batch: &mut Batch, entry: &ObjectEntry, blocks: &[(u32, Stored)]) {
    add_described_blocks(batch, entry.id, &described(entry), blocks);
}

/// [`add_blocks`] with the fields that the records repeat about the object.
pub fn add_described_blocks(
    batch: &mut Batch,
    object: ObjectId,
    described: &ObjectDescription,
    blocks: &[(u32, Stored)],
) {
    let created_at = now_seconds();
    let joins = |before: &(u32, Stored), next: &(u32, Stored)| {
        let is_next = if before.1.in_data {
            next.1.in_data && next.1.offset == before.1.offset + u64::from(before.1.len)
        } else {
            is_next_slot(&before.1, &next.1)
        };
        is_next && next.0 == before.0 + 1
    };
    for run in blocks.chunk_by(joins) {
        let Some(&(block, stored)) = run.first() else { continue };
        let described = described.clone();
        if stored.in_data {
            let checksums: Vec<u32> = run.iter().map(|(_, stored)| stored.checksum).collect();
            batch.run(&checksums, Record::run(object, block, described, stored.offset, created_at));
        } else if run.len() > 1 {
            let is_move = false;
            batch.slot_run(run.iter().map(|(_, stored)| stored), |stored| Record::SlotRun {
                object,
                block,
                described,
                stored,
                created_at,
                is_move,
            });
        } else {
            batch.record(Record::Create { object, block, described, stored, created_at });
        }
    }
}
