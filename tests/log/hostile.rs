//! Made-up logs: every slot is intact, with arbitrary contents.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::prelude::*;
use tierfs::format::log::catalog::{
    BLOCK_BYTES_MAX, Content, Digests, Entry, Extent, FileEntry, NodeEntry, NodeType, ObjectEntry, Parent,
    TensorEntry,
};
use tierfs::format::log::record::{LOG_VERSION, ObjectDescription, Record, Stored};
use tierfs::model::{
    CollectionName, Dtype, EntryId, ErrorKind, ObjectId, OwnedCollectionName, SeedId, Shape, TensorId, Tier,
};
use tierfs::store::Access;

use crate::fixture::{LOG, STORE, World, open, picture};

/// Counts the allocated bytes of the thread, and their peak.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: all calls go to the system's allocator; the counters need no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get().wrapping_add(layout.size());
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // Memory that another thread has allocated must not make the counter wrap.
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

/// The peak of allocated bytes during `work`.
pub fn peak(work: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    work();
    PEAK.get().saturating_sub(before)
}

/// Records and entries, each batch with its Commit.
#[derive(Debug)]
pub enum Said {
    Record(Record),
    Entry(Entry),
    Run(Record, Vec<u32>),
    /// With the array that follows it.
    Slots(Record, Vec<u8>),
}

fn log_of(batches: &[Vec<Said>]) -> Vec<u8> {
    let mut log = Vec::new();
    let mut sequence = 0;
    let mut put = |log: &mut Vec<u8>, record: &Record, payload: &[u8]| {
        let mut slot = record.to_slot();
        slot.seal(1, sequence);
        sequence += 1;
        log.extend(slot.0);
        log.extend(payload);
        log.resize(log.len().next_multiple_of(128), 0);
        slot.checksum()
    };
    put(&mut log, &Record::Header { version: LOG_VERSION, store: STORE, generation: 1 }, &[]);
    for (place, said) in batches.iter().enumerate() {
        let begin = log.len();
        let mut sums = Vec::new();
        for said in said {
            let sum = match said {
                Said::Record(record) => put(&mut log, record, &[]),
                Said::Entry(entry) => {
                    let payload = entry.to_bytes();
                    let (len, checksum) = (payload.len() as u32, crc32c::crc32c(&payload));
                    put(
                        &mut log,
                        &Record::Catalog { len, checksum, kind: entry.kind(), version: entry.version() },
                        &payload,
                    )
                }
                Said::Slots(record, array) => {
                    let mut record = record.clone();
                    if let Record::SlotRun { stored, .. } = &mut record {
                        (stored.len, stored.checksum) = ((array.len() / 8) as u32, crc32c::crc32c(array));
                    }
                    put(&mut log, &record, array)
                }
                Said::Run(record, sums) => {
                    let array: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
                    let mut record = record.clone();
                    if let Record::CreateRun { stored, .. } = &mut record {
                        (stored.len, stored.checksum) = (sums.len() as u32, crc32c::crc32c(&array));
                    }
                    put(&mut log, &record, &array)
                }
            };
            sums.extend(sum.to_le_bytes());
        }
        let slots = ((log.len() - begin) / 128) as u32;
        let checksum = crc32c::crc32c(&sums);
        put(&mut log, &Record::Commit { batch: place as u64 + 1, slots, checksum, unsynced: 0 }, &[]);
    }
    log
}

pub fn world_of(batches: &[Vec<Said>]) -> World {
    let zeros = ("t/c/data/0000000000000001".to_owned(), vec![0; 10_000]);
    World { files: [(LOG.to_owned(), log_of(batches)), zeros].into(), steps: Vec::new() }
}

fn node(id: u64, node_type: NodeType) -> Entry {
    let id = EntryId(id);
    Entry::Node(Box::new(NodeEntry {
        id,
        mode: 0,
        uid: 0,
        gid: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        created_at: 0,
        node_type,
    }))
}

pub fn file(id: u64, object: u128) -> Entry {
    node(
        id,
        NodeType::File(Box::new(FileEntry {
            content: Content::Plain,
            objects: [ObjectId(object)].into(),
            tensor: None,
            container: None,
            digests: Digests::NotTaken,
            error: None,
            why: Box::default(),
            records: None,
            view: None,
        })),
    )
}

pub fn object(id: u128, dtype: Dtype, bytes: u64, block_bytes: u32) -> Entry {
    Entry::Object(ObjectEntry {
        id: ObjectId(id),
        tensor: TensorId(1),
        seed: SeedId(0),
        creation: 1,
        dtype,
        bytes,
        block_bytes,
        extent: Some(Extent { file: 1, offset: 0 }),
        // Some are children, and one of them its own parent.
        parent: (1..3).contains(&id).then(|| {
            Box::new(Parent {
                object: ObjectId(id / 2 * 2),
                collection: (id == 2).then(|| OwnedCollectionName::new("t", "c")),
            })
        }),
    })
}

pub fn name(of: u64) -> Entry {
    Entry::Name {
        parent: EntryId(1),
        entry: EntryId(1000 + of),
        name: format!("n{of}").as_bytes().into(),
        node: EntryId(of),
    }
}

fn described() -> ObjectDescription {
    ObjectDescription { dtype: Dtype::F32, shape: Shape::default(), parent: None, reconstruct: 0 }
}

pub fn create(object: u128, block: u32, stored: Stored) -> Record {
    Record::Create { object: ObjectId(object), block, described: described(), stored, created_at: 0 }
}

pub fn exact(offset: u64, len: u32) -> Stored {
    Stored { tier: Tier::Exact, scale: 0.0, checksum: 0, offset, len, in_data: false }
}

pub fn root() -> Vec<Said> {
    vec![
        Said::Entry(Entry::Collection { number: 1, created_at: 0, last_entry: 0 }),
        Said::Entry(node(1, NodeType::Directory)),
    ]
}

#[test]
fn objects_that_claim_more_blocks_than_the_log_has_get_no_memory() {
    let blocks = 1_u32 << 31;
    let mut said = Vec::new();
    for id in 0..500 {
        said.push(Said::Entry(object(id, Dtype::U8, u64::from(blocks) * 4096, 4096)));
        for block in [500, blocks - 1] {
            said.push(Said::Record(create(id, block, exact(0, 4096))));
        }
        said.push(Said::Entry(file(2 + id as u64, id)));
        said.push(Said::Entry(name(2 + id as u64)));
    }
    let world = world_of(&[root(), said]);
    let disk = world.disk(world.log());
    let needed = peak(|| {
        let collection = open(&disk, Access::Read).unwrap();
        assert!(collection.damage().is_some());
    });
    let log = world.log().len();
    assert!(needed < 40 * log, "{needed} bytes for a log of {log}");
}

/// A file of 2^45 bytes with some described blocks; one record of zeros covers the rest.
fn claims() -> World {
    let (bytes, block_bytes) = (1_u64 << 45, 1 << 14);
    let blocks = 1_u32 << 31;
    let mut said = Vec::new();
    for id in 0..4 {
        said.push(Said::Entry(object(id, Dtype::U8, bytes, block_bytes)));
        said.push(Said::Record(create(id, 0, exact(0, block_bytes))));
        let (object, count, created_at) = (ObjectId(id), blocks - 2, 0);
        let stored = if id % 2 == 0 { Stored::ZEROS } else { Stored::in_extent(u64::from(block_bytes)) };
        if id < 2 {
            said.push(Said::Record(Record::EmptyRun { object, block: 1, count, stored, created_at }));
            said.push(Said::Record(create(id, blocks - 1, exact(1 << 20, block_bytes))));
        }
        said.push(Said::Entry(file(2 + id as u64, id)));
        said.push(Said::Entry(name(2 + id as u64)));
    }
    world_of(&[root(), said])
}

#[test]
fn a_short_log_with_huge_claims_opens_in_little_memory_and_time() {
    use tierfs::store::Verify;
    use tierfs::vfs::open::OpenFiles;
    let world = claims();
    let log = world.log().len();
    assert!(log < 8192, "{log} bytes");
    let needed = peak(|| {
        let disk = world.disk(world.log());
        let collection = open(&disk, Access::Write).unwrap();
        assert_eq!(collection.damage(), None);
        for node in 2..6 {
            let open_file = OpenFiles::default().open(&collection, EntryId(node), Verify::First).unwrap();
            open_file.opened_to_read();
            for at in [1 << 14, 1 << 30, 1 << 44] {
                let mut bytes = vec![1; 100_000];
                let read = open_file.read(at, &mut bytes);
                match node {
                    2 | 3 => assert!(read.is_ok_and(|count| count == 100_000) && bytes == [0; 100_000]),
                    _ => assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt),
                }
            }
            let object = collection.objects_of(EntryId(node)).unwrap().remove(0);
            let used = object.accesses.used(u32::MAX).len();
            assert_eq!(used, if node < 4 { 2 } else { 1 });
            let pieces = object.pieces(0..object.layout().blocks(), object.layout()).count();
            assert_eq!(pieces, if node < 4 { 3 } else { 2 });
            let all: u64 = if node < 4 { 1 << 45 } else { 1 << 14 };
            assert_eq!(object.stored(), all);
        }
        collection.checkpoint_now().unwrap_err();
        let files = crate::fixture::files(&disk);
        assert!(files[LOG].len() <= log + 128);
    });
    assert!(needed < 8 << 20, "{needed} bytes");
}

#[test]
fn a_repair_of_a_short_log_with_huge_claims_records_each_loss_once() {
    use tierfs::store::repair;
    let world = claims();
    let needed = peak(|| {
        let disk = world.disk(world.log());
        let repaired = repair(&disk, STORE, CollectionName::new("t", "c"), 1).unwrap().unwrap();
        assert_eq!(repaired.lost.len(), 4);
        for lost in &repaired.lost {
            assert_eq!(lost.bytes, Some(1 << 45));
            assert!(lost.ranges.len() <= 2, "{:?}", lost.ranges);
        }
        let log = crate::fixture::files(&disk)[LOG].len();
        assert!(log < 9000, "{log} bytes");
        let collection = open(&disk, Access::Write).unwrap();
        assert_eq!(collection.damage(), None);
        let before = collection.objects_of(EntryId(4)).unwrap().remove(0);
        assert!(before.block(1 << 30, before.layout()).unwrap().stored.is_lost());
        let zeros = collection.objects_of(EntryId(2)).unwrap().remove(0);
        assert!(zeros.block(1 << 30, zeros.layout()).unwrap().stored.is_zeros());
        // A checkpoint of it gives the same state.
        collection.checkpoint_now().unwrap();
        assert!(crate::fixture::files(&disk)[LOG].len() < 9000);
        drop(collection);
        let again = open(&disk, Access::Read).unwrap();
        let object = again.objects_of(EntryId(4)).unwrap().remove(0);
        assert_eq!(object.block(1 << 30, object.layout()), before.block(1 << 30, before.layout()));
        assert_eq!(repair(&disk, STORE, CollectionName::new("t", "c"), 1).unwrap(), None);
    });
    assert!(needed < 8 << 20, "{needed} bytes");
}

#[test]
fn impossible_runs_without_payloads_are_damage() {
    let run =
        |block, count, stored| Record::EmptyRun { object: ObjectId(9), block, count, stored, created_at: 0 };
    for (record, is_right) in [
        (run(0, 2, Stored::ZEROS), true),
        (run(0, 2, Stored::in_extent(0)), true),
        (run(1, 1, Stored::in_extent(4096)), true),
        (run(0, 2, Stored::LOST), true),
        (run(0, 0, Stored::ZEROS), false),
        (run(0, 3, Stored::ZEROS), false),
        (run(2, 1, Stored::LOST), false),
        (run(u32::MAX, 1, Stored::ZEROS), false),
        (run(1, u32::MAX, Stored::ZEROS), false),
        (run(0, 2, Stored::in_extent(64)), false),
        (run(1, 1, Stored::in_extent(0)), false),
    ] {
        let said = vec![
            Said::Entry(object(9, Dtype::U8, 5000, 4096)),
            Said::Record(create(9, 0, exact(0, 4096))),
            Said::Record(record.clone()),
        ];
        let world = world_of(&[root(), said]);
        let collection = open(&world.disk(world.log()), Access::Read).unwrap();
        assert_eq!(collection.damage().is_none(), is_right, "{record:?}");
    }
}

#[test]
fn impossible_block_records_are_damage_and_not_read() {
    let q8 = |offset, len| Stored { tier: Tier::Q8, scale: 1.0, checksum: 0, offset, len, in_data: false };
    let bad = [
        (Dtype::U8, 5, q8(0, 9)),
        (Dtype::F32, 5, q8(0, 8)),
        (Dtype::F32, 8, q8(0, 7)),
        (Dtype::F32, 8, exact(0, 7)),
        (Dtype::F32, 8, exact(u64::MAX - 8, 8)),
        (Dtype::F32, 8, q8(i64::MAX as u64, 6)),
    ];
    for (dtype, bytes, stored) in bad {
        let said = vec![
            Said::Entry(object(9, dtype, bytes, 4096)),
            Said::Record(create(9, 0, stored)),
            Said::Entry(file(2, 9)),
            Said::Entry(name(2)),
        ];
        let world = world_of(&[root(), said]);
        let collection = open(&world.disk(world.log()), Access::Read).unwrap();
        assert!(collection.damage().is_some(), "{dtype}, {bytes}, {stored:?}");
        assert_eq!(picture(&collection)["/n2"].1, Err(ErrorKind::Corrupt));
    }
}

#[test]
fn a_block_above_the_largest_size_is_refused() {
    let entry = object(1, Dtype::U8, 1 << 40, BLOCK_BYTES_MAX + 1);
    assert!(Entry::parse(entry.kind(), 1, &entry.to_bytes()).is_err());
}

#[test]
fn a_tensor_whose_shape_disagrees_with_its_objects_is_damage() {
    let tensor = |shape: &[u64]| TensorEntry {
        name: "n".into(),
        dtype: Dtype::F32,
        shape: Shape::new(shape).unwrap(),
        parent: TensorId(0),
    };
    for (shape, is_right) in [(&[2, 5][..], true), (&[2, 6], false), (&[], false), (&[1 << 62], false)] {
        let Entry::Node(mut entry) = file(2, 9) else { panic!() };
        let NodeType::File(file) = &mut entry.node_type else { panic!() };
        file.tensor = Some(tensor(shape));
        let said = vec![
            Said::Entry(object(9, Dtype::F32, 40, 4096)),
            Said::Record(create(9, 0, exact(0, 40))),
            Said::Entry(Entry::Node(entry)),
            Said::Entry(name(2)),
        ];
        let world = world_of(&[root(), said]);
        let collection = open(&world.disk(world.log()), Access::Read).unwrap();
        assert_eq!(collection.damage().is_none(), is_right, "{shape:?}");
    }
}

#[test]
fn a_file_that_lists_an_object_twice_is_damage() {
    for (objects, is_right) in [([8, 9], true), ([9, 9], false)] {
        let Entry::Node(mut entry) = file(2, 9) else { panic!() };
        let NodeType::File(file) = &mut entry.node_type else { panic!() };
        file.objects = objects.map(ObjectId).as_slice().into();
        let said = vec![
            Said::Entry(object(8, Dtype::F32, 40, 4096)),
            Said::Record(create(8, 0, exact(64, 40))),
            Said::Entry(object(9, Dtype::F32, 40, 4096)),
            Said::Record(create(9, 0, exact(0, 40))),
            Said::Entry(Entry::Node(entry)),
            Said::Entry(name(2)),
        ];
        let world = world_of(&[root(), said]);
        let collection = open(&world.disk(world.log()), Access::Read).unwrap();
        assert_eq!(collection.damage().is_none(), is_right, "{objects:?}");
    }
}

fn said() -> impl Strategy<Value = Said> {
    let id = 0_u128..3;
    let dtype = prop::sample::select(vec![Dtype::U8, Dtype::F32, Dtype::F16]);
    let bytes = prop_oneof![0_u64..20_000, any::<u64>()];
    let tier = prop::sample::select(Tier::ALL.to_vec());
    let offset = prop_oneof![0_u64..200, Just(u64::MAX), Just(i64::MAX as u64 - 70), any::<u64>()];
    let block = prop_oneof![0_u32..6, any::<u32>()];
    let len = prop_oneof![Just(0_u32), Just(4096), Just(1000), any::<u32>()];
    let stored = (tier, offset.clone(), len, any::<bool>()).prop_map(|(tier, offset, len, in_data)| Stored {
        tier,
        scale: 0.0,
        checksum: 0,
        offset,
        len,
        in_data,
    });
    prop_oneof![
        (id.clone(), dtype, bytes, prop_oneof![Just(4096_u32), any::<u32>()])
            .prop_map(|(id, dtype, bytes, block)| Said::Entry(object(id, dtype, bytes, block))),
        (id.clone(), block.clone(), stored.clone())
            .prop_map(|(id, block, stored)| Said::Record(create(id, block, stored))),
        (id.clone(), block.clone(), stored.clone()).prop_map(|(id, block, stored)| {
            let (object, bits) = (ObjectId(id), stored.bits(Dtype::F32));
            Said::Record(Record::Migrate { object, block, old_tier: 0, bits, stored, migrated_at: 0 })
        }),
        (id.clone(), block.clone(), stored.clone(), 0_usize..6).prop_map(|(id, block, stored, count)| {
            let (object, described) = (ObjectId(id), described());
            let stored = Stored { tier: Tier::Exact, in_data: true, ..stored };
            let run = Record::CreateRun { object, block, described, stored, created_at: 0 };
            Said::Run(run, vec![0; count])
        }),
        (id.clone(), block.clone(), stored.clone(), 0_usize..6, any::<bool>()).prop_map(
            |(id, block, stored, count, is_move)| {
                let (object, described) = (ObjectId(id), described());
                let tier = if stored.tier == Tier::Absent { Tier::Exact } else { stored.tier };
                let value = if tier == Tier::Packed { stored.len } else { 0 };
                let array = [[0; 4], value.to_le_bytes()].concat().repeat(count);
                let stored = Stored { tier, in_data: false, ..stored };
                let run = Record::SlotRun { object, block, described, stored, created_at: 0, is_move };
                Said::Slots(run, array)
            }
        ),
        (id.clone(), block.clone(), stored.clone(), 0_u64..40, 0_u16..10, 0_u8..8).prop_map(
            |(id, block, stored, base_epoch, chain_len, kind)| {
                let Stored { offset, len, checksum, .. } = stored;
                let object = ObjectId(id);
                let nnz = len / 6;
                Said::Record(Record::Delta {
                    object,
                    block,
                    base_epoch,
                    offset,
                    len,
                    chain_len,
                    nnz,
                    checksum,
                    kind,
                    product: 7,
                })
            }
        ),
        (id.clone(), prop_oneof![Just(u32::MAX), Just(u32::MAX - 1), Just(0)], stored.clone(), any::<u64>())
            .prop_map(|(id, block, stored, len)| {
                let len = if len % 2 == 0 { u64::from(stored.len) } else { len };
                let (object, offset, checksum) = (ObjectId(id), stored.offset, stored.checksum);
                Said::Record(Record::Factor { object, block, offset, len, rank: 1, checksum })
            }),
        (id.clone(), block.clone(), any::<u32>(), offset, 0..3).prop_map(
            |(id, block, count, offset, what)| {
                let stored = [Stored::ZEROS, Stored::in_extent(offset), Stored::LOST][what as usize];
                let count = if count % 2 == 0 { count % 8 } else { count };
                Said::Record(Record::EmptyRun { object: ObjectId(id), block, count, stored, created_at: 0 })
            }
        ),
        id.clone().prop_map(|id| Said::Record(Record::Delete { object: ObjectId(id) })),
        (2_u64..5, id).prop_map(|(node, id)| Said::Entry(file(node, id))),
        (2_u64..5).prop_map(|node| Said::Entry(name(node))),
        (1_u64..5).prop_map(|node| Said::Entry(Entry::NodeRemoved(EntryId(node)))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_intact_log_makes_opening_or_reading_panic(
        said in prop::collection::vec(prop::collection::vec(said(), 0..8), 0..5),
    ) {
        let batches: Vec<Vec<Said>> = std::iter::once(root()).chain(said).collect();
        let world = world_of(&batches);
        for access in [Access::Read, Access::Write] {
            let disk = world.disk(world.log());
            if let Ok(collection) = open(&disk, access) {
                for (node, bytes) in [(2, 10), (3, 5000), (4, 20_000)] {
                    read_a_little(&collection, EntryId(node), bytes);
                }
                let added = crate::fixture::import(&collection, "more", &[7; 300], &Default::default());
                prop_assert_eq!(added.is_ok(), access == Access::Write && collection.damage().is_none());
            }
        }
    }
}

/// Reads at both ends of a file of any stated size.
fn read_a_little(collection: &std::sync::Arc<tierfs::store::Collection>, node: EntryId, bytes: usize) {
    use tierfs::store::{OpenObject, Verify};
    for object in collection.objects_of(node).unwrap_or_default() {
        let Ok(object) = OpenObject::open(collection, &object, Verify::First) else { continue };
        let bytes = object.bytes().min(bytes as u64);
        let mut out = vec![0; bytes as usize];
        for from in [0, object.bytes() - bytes] {
            // Every outcome but a panic is correct: the checksums are made up.
            drop(object.read(from, &mut out));
        }
    }
}

#[test]
fn a_run_of_no_blocks_or_past_the_last_is_damage() {
    for (block, count) in [(0, 0), (2, 0), (1, 2), (u32::MAX, 1)] {
        let (object_id, described) = (ObjectId(9), described());
        let stored = Stored { in_data: true, ..exact(0, 0) };
        let run = Record::CreateRun { object: object_id, block, described, stored, created_at: 0 };
        let said = vec![Said::Entry(object(9, Dtype::U8, 5000, 4096)), Said::Run(run, vec![0; count])];
        let world = world_of(&[root(), said]);
        let collection = open(&world.disk(world.log()), Access::Read).unwrap();
        assert!(collection.damage().is_some(), "{count} from block {block} on");
    }
}

#[test]
fn an_object_whose_blocks_no_record_names_keeps_no_dropped_end_from_being_set_aside() {
    // The last record, of an object that is not there, makes the end of the log a dropped one.
    let absent = Stored { tier: Tier::Absent, len: 4096, ..exact(0, 0) };
    let said = [
        vec![Said::Entry(object(2, Dtype::U8, 1, 4096))],
        vec![Said::Entry(file(2, 2)), Said::Entry(name(2))],
        vec![Said::Record(create(0, 0, absent))],
    ];
    let batches: Vec<Vec<Said>> = std::iter::once(root()).chain(said).collect();
    let world = world_of(&batches);
    let collection = open(&world.disk(world.log()), Access::Write).unwrap();
    assert_eq!(collection.damage(), None);
    crate::fixture::import(&collection, "more", &[7; 300], &Default::default()).unwrap();
    let picture = picture(&collection);
    assert_eq!(picture["/n2"].1, Err(ErrorKind::Corrupt));
    assert_eq!(picture["/more"].1, Ok(vec![7; 300]));
}
