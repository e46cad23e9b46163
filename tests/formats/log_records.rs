//! The records of a log: golden files, and runs that cannot be.

use tierfs::format::log::block_record::{BlockRecord, is_next_slot, of_slot_run, slot_run_array};
use tierfs::format::log::catalog::{
    Content, Digests, Entry, Extent, FileEntry, NodeEntry, NodeType, ObjectEntry,
};
use tierfs::format::log::record::{ObjectDescription, Record, Stored};
use tierfs::format::log::slot::{RawSlot, SLOT_BYTES};
use tierfs::format::log::small_batch::{self, HEAD_BYTES, Item, ItemRef};
use tierfs::model::{Dtype, EntryId, ErrorKind, ObjectId, SeedId, Shape, TensorId, Tier};

use crate::{cases, file, golden};

/// The golden case of a kind, of which there is one.
pub fn case(kind: &str) -> serde_json::Value {
    cases(kind).remove(0)
}

fn number(case: &serde_json::Value, key: &str) -> u64 {
    case[key].as_u64().unwrap()
}

fn id(case: &serde_json::Value, key: &str) -> u128 {
    u128::from_str_radix(case[key].as_str().unwrap(), 16).unwrap()
}

pub fn slot(bytes: &[u8]) -> RawSlot {
    let slot = RawSlot(bytes.try_into().unwrap());
    assert!(slot.is_intact());
    slot
}

/// The written record, with the frame of the slot, equals the parsed bytes.
fn assert_same(record: &Record, read: &RawSlot) {
    let mut written = record.to_slot();
    written.seal(u64::from(read.generation()), read.sequence());
    assert_eq!(written, *read, "{record:?}");
}

/// The largest magnitude of the scales at the beginning of groups of `stride` bytes.
fn top_scale(payload: &[u8], stride: usize) -> f32 {
    let scales = payload.chunks(stride).map(|group| f32::from_le_bytes(group[..4].try_into().unwrap()).abs());
    scales.fold(0.0, f32::max)
}

#[test]
fn identities_equal_the_golden_ones() {
    let case = case("identity");
    let text = |key: &str| case[key].as_str().unwrap();
    let tensor = TensorId::of(text("tenant"), text("collection"), text("name"), TensorId(0));
    assert_eq!(tensor.0, id(&case, "id"));
    assert_eq!(ObjectId::of(tensor, SeedId(0), 40).0, id(&case, "object_seed_0_creation_40"));
    assert_eq!(ObjectId::of(tensor, SeedId(7), 41).0, id(&case, "object_seed_7_creation_41"));
    let child = TensorId::of(text("tenant"), text("collection"), "x", tensor);
    assert_eq!(child.0, id(&case, "child_named_x"));
}

#[test]
fn the_golden_create_is_read_and_written() {
    let case = case("create_record");
    let payload = file(&case, "payload");
    let slot = slot(&file(&case, "record"));
    assert_eq!((slot.kind(), u64::from(slot.generation())), (0, number(&case, "generation")));
    assert_eq!(slot.sequence(), number(&case, "seq"));
    let record = Record::parse(&slot).unwrap();
    let right = Record::Create {
        object: ObjectId(id(&case, "object")),
        block: number(&case, "block") as u32,
        described: ObjectDescription {
            dtype: Dtype::Bf16,
            shape: Shape::new(&[512, 64]).unwrap(),
            parent: None,
            reconstruct: 0,
        },
        stored: Stored {
            tier: Tier::Q5,
            scale: top_scale(&payload, 44),
            checksum: crc32c::crc32c(&payload),
            offset: number(&case, "offset"),
            len: payload.len() as u32,
            in_data: false,
        },
        created_at: number(&case, "created_at"),
    };
    assert_eq!(record, right);
    assert_same(&record, &slot);
}

#[test]
fn the_golden_migrate_is_read_and_written() {
    let case = case("migrate_record");
    let payload = file(&case, "payload");
    let slot = slot(&file(&case, "record"));
    assert_eq!((slot.kind(), slot.sequence()), (2, number(&case, "seq")));
    let record = Record::parse(&slot).unwrap();
    let Record::Migrate { object, block, old_tier, bits, stored, .. } = record else { panic!("{record:?}") };
    assert_eq!(object.0, id(&self::case("create_record"), "object"));
    assert_eq!((block, old_tier, bits), (3, 2, 3));
    assert_eq!(stored.tier.byte(), 3);
    assert_eq!((stored.offset, stored.len), (number(&case, "offset"), payload.len() as u32));
    assert_eq!(stored.checksum, crc32c::crc32c(&payload));
    assert_same(&record, &slot);
}

#[test]
fn the_golden_commit_is_read_and_written() {
    let case = case("commit_record");
    let slot = slot(&file(&case, "record"));
    let of = case["of"].as_array().unwrap();
    let sums: Vec<u8> =
        of.iter().flat_map(|name| golden(name.as_str().unwrap())[120..124].to_vec()).collect();
    let (batch, checksum) = (number(&case, "batch"), crc32c::crc32c(&sums));
    let record = Record::parse(&slot).unwrap();
    assert_eq!(record, Record::Commit { batch, slots: 2, checksum, unsynced: 0 });
    assert_eq!(slot.sequence(), number(&case, "seq"));
    assert_same(&record, &slot);
}

#[test]
fn the_golden_runs_without_payloads_are_read_and_written() {
    let wanted = [
        (5, 1 << 25, Stored::in_extent(4096 + 5 * 65_536), 1_700_000_000),
        (7, 3, Stored::ZEROS, 1_700_000_001),
        (0, u32::MAX - 5, Stored::LOST, 1_700_000_002),
    ];
    let object = ObjectId(id(&case("create_record"), "object"));
    let all = golden("empty_runs.rec");
    assert_eq!(all.len(), wanted.len() * 128);
    for (place, (bytes, (block, count, stored, created_at))) in all.chunks(128).zip(wanted).enumerate() {
        let slot = slot(bytes);
        assert_eq!((slot.kind(), slot.sequence()), (10, 44 + place as u64));
        let record = Record::parse(&slot).unwrap();
        assert_eq!(record, Record::EmptyRun { object, block, count, stored, created_at });
        assert_eq!(record.payload_len(), 0);
        assert_same(&record, &slot);
    }
}

#[test]
fn the_golden_runs_of_slots_are_read_and_written_and_stand_for_their_blocks() {
    let object = ObjectId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
    let all = golden("slot_runs.rec");
    let mut rest = all.as_slice();
    let mut next = || {
        let (read, after) = rest.split_at(128);
        let slot = slot(read);
        let record = Record::parse(&slot).unwrap();
        assert_eq!(slot.kind(), 9);
        assert_same(&record, &slot);
        let (array, after) = after.split_at(record.payload_slots() as usize * 128);
        rest = after;
        let array = array[..record.payload_len() as usize].to_vec();
        assert_eq!(record.payload_checksum(), crc32c::crc32c(&array));
        // The bytes of a block of the tier, for any object.
        let blocks = of_slot_run(&record, slot.sequence(), &array, |_| Ok(5000)).unwrap();
        let stored: Vec<Stored> = blocks.iter().map(|block| block.stored).collect();
        assert_eq!(slot_run_array(&stored), array);
        assert!(stored.windows(2).all(|pair| is_next_slot(&pair[0], &pair[1])));
        (record, blocks)
    };
    let block =
        |sequence, at, stored, block, is_move| BlockRecord { object, sequence, at, stored, block, is_move };

    let (record, blocks) = next();
    let Record::SlotRun { described, is_move, .. } = &record else { panic!("{record:?}") };
    assert_eq!((described.dtype, described.shape.dimensions()), (Dtype::Bf16, [512, 64].as_slice()));
    assert!(!is_move);
    let q5 = |place: u32| Stored {
        tier: Tier::Q5,
        scale: 0.25 * (place + 1) as f32,
        checksum: 0x1111_1111 * (place + 1),
        offset: 65_536 + 5056 * u64::from(place),
        len: 5000,
        in_data: false,
    };
    let wanted: Vec<_> = (0..3).map(|place| block(50, 1_700_000_000, q5(place), 3 + place, false)).collect();
    assert_eq!(blocks, wanted);

    let (record, blocks) = next();
    assert!(matches!(record, Record::SlotRun { is_move: false, .. }));
    let packed = |place: u32| Stored {
        tier: Tier::Packed,
        scale: 0.0,
        checksum: 7 + place,
        // 8,000 bytes fill a slot, a few more take the next 64.
        offset: 128 + 8000 * u64::from(place) + 64 * u64::from(place.saturating_sub(1)),
        len: 8000 + place,
        in_data: false,
    };
    let wanted: Vec<_> = (0..17).map(|place| block(51, 1_700_000_001, packed(place), place, false)).collect();
    assert_eq!(blocks, wanted);

    let (record, blocks) = next();
    assert!(matches!(record, Record::SlotRun { is_move: true, .. }));
    let exact = |checksum, offset| Stored {
        tier: Tier::Exact,
        scale: 0.0,
        checksum,
        offset,
        len: 5000,
        in_data: false,
    };
    assert_eq!(
        blocks,
        [
            block(90, 1_700_000_002, exact(u32::MAX, 0), 9, true),
            block(90, 1_700_000_002, exact(0, 5056), 10, true),
        ]
    );
    assert!(rest.is_empty());
}

/// The next golden small batch, and what its records say. It is written as it was read.
fn next_small_batch(rest: &mut &[u8]) -> (Record, Vec<Item>) {
    let (read, after) = rest.split_at(SLOT_BYTES);
    let slot = slot(read);
    let record = Record::parse(&slot).unwrap();
    assert_same(&record, &slot);
    let Record::Small { len, checksum, count, head, .. } = &record else { panic!("{record:?}") };
    let (tail, filling) =
        after.split_at(record.payload_slots() as usize * SLOT_BYTES).0.split_at(*len as usize);
    assert_eq!(*checksum, crc32c::crc32c(tail));
    assert!(filling.iter().all(|byte| *byte == 0));
    let whole = [head, tail].concat();
    let items = small_batch::items(slot.sequence(), &whole).unwrap();
    assert_eq!(items.len(), usize::from(*count));
    let records = items.iter().map(|item| match item {
        Item::Entry(entry) => ItemRef::Entry(entry),
        Item::Record(record) => ItemRef::Record(record),
    });
    let mut written = small_batch::content(slot.sequence(), records).unwrap();
    written.resize(written.len().max(HEAD_BYTES), 0);
    assert_eq!(written, whole);
    *rest = &after[record.payload_slots() as usize * SLOT_BYTES..];
    (record, items)
}

#[test]
fn the_golden_small_batches_are_read_and_written() {
    let tensor = |name| TensorId::of("acme", "llama", name, TensorId(0));
    let small = ObjectId::of(tensor("made/small"), SeedId(0), 902);
    let node = |id, mode, (uid, gid), [atime, mtime, ctime]: [i64; 3], created_at, node_type| {
        let id = EntryId(id);
        Item::Entry(Entry::Node(Box::new(NodeEntry {
            id,
            mode,
            uid,
            gid,
            atime,
            mtime,
            ctime,
            created_at,
            node_type,
        })))
    };
    let plain = |objects: &[ObjectId]| {
        let digests = Digests::NotTaken;
        NodeType::File(Box::new(FileEntry { digests, ..FileEntry::new(Content::Plain, objects) }))
    };
    let name = |parent, name: &str, node, entry| {
        let (parent, name) = (EntryId(parent), name.as_bytes().into());
        Item::Entry(Entry::Name { parent, entry: EntryId(entry), name, node: EntryId(node) })
    };
    let unnamed = |parent, name: &str| {
        Item::Entry(Entry::NameRemoved { parent: EntryId(parent), name: name.as_bytes().into() })
    };
    let create = |object, block, dtype, elements, (offset, in_data), payload: &[u8], created_at| {
        let (shape, checksum) = (Shape::new(&[elements]).unwrap(), crc32c::crc32c(payload));
        let (tier, len) = (Tier::Exact, payload.len() as u32);
        Item::Record(Record::Create {
            object,
            block,
            described: ObjectDescription { dtype, shape, parent: None, reconstruct: 0 },
            stored: Stored { tier, scale: 0.0, checksum, offset, len, in_data },
            created_at,
        })
    };
    let facts = |record: &Record| match record {
        Record::Small { batch, unsynced, count, .. } => (*batch, *unsynced, *count),
        other => panic!("{other:?}"),
    };
    let all = golden("small_batches.rec");
    let mut rest = all.as_slice();

    let (record, items) = next_small_batch(&mut rest);
    assert_eq!(facts(&record), (41, 3, 6));
    let at = 1_700_000_000_123_456_789;
    let object = ObjectEntry {
        id: small,
        tensor: tensor("made/small"),
        seed: SeedId(0),
        creation: 902,
        dtype: Dtype::U8,
        bytes: 100,
        block_bytes: 16_384,
        extent: None,
        parent: None,
    };
    let payload: Vec<u8> = (0..100).collect();
    let wanted = [
        node(70, 0o2775, (1000, 100), [at; 3], 1_700_000_000, NodeType::Directory),
        name(1, "made", 70, 71),
        Item::Entry(Entry::Object(object)),
        create(small, 0, Dtype::U8, 100, (4096, false), &payload, 1_700_000_001),
        node(72, 0o600, (0, 65_534), [at - 5_000_000_000, at + 1, at + 2], 1_699_999_999, plain(&[small])),
        name(70, "small \u{e9}", 72, 60),
    ];
    assert_eq!(items, wanted);

    let (record, items) = next_small_batch(&mut rest);
    assert_eq!(facts(&record), (1 << 33, 0, 4));
    let older = ObjectId::of(tensor("older"), SeedId(0), 17);
    let seeded = ObjectId::of(tensor("seeded"), SeedId(1 << 63), 1000);
    let object = ObjectEntry {
        id: seeded,
        tensor: tensor("seeded"),
        seed: SeedId(1 << 63),
        creation: 1000,
        dtype: Dtype::F32,
        bytes: 1 << 35,
        block_bytes: 131_072,
        extent: Some(Extent { file: 7, offset: 1 << 34 }),
        parent: None,
    };
    let place = ((1 << 34) + 5 * 131_072, true);
    let wanted = [
        Item::Entry(Entry::Object(object)),
        create(seeded, 5, Dtype::F32, 1 << 33, place, &[0; 131_072], 1_700_000_000),
        node(9, 0o644, (1, 2), [-1_000_000_000, 0, 300], 0, plain(&[older, seeded])),
        Item::Record(Record::Delete { object: seeded }),
    ];
    assert_eq!(items, wanted);

    let (record, items) = next_small_batch(&mut rest);
    assert_eq!(facts(&record), (43, 1, 5));
    assert_eq!(record.payload_len(), 0);
    let wanted = [
        unnamed(70, "small \u{e9}"),
        Item::Record(Record::Delete { object: small }),
        Item::Entry(Entry::NodeRemoved(EntryId(72))),
        unnamed(1, "made"),
        Item::Entry(Entry::NodeRemoved(EntryId(70))),
    ];
    assert_eq!(items, wanted);
    assert!(rest.is_empty());
}

#[test]
fn impossible_runs_of_slots_are_refused() {
    let stored = Stored { tier: Tier::Q8, scale: 0.0, checksum: 0, offset: 0, len: 2, in_data: false };
    let described =
        ObjectDescription { dtype: Dtype::F32, shape: Shape::default(), parent: None, reconstruct: 0 };
    let run = |block, stored| Record::SlotRun {
        object: ObjectId(1),
        block,
        described: described.clone(),
        stored,
        created_at: 0,
        is_move: false,
    };
    let blocks = |record: &Record, sequence, array: &[u8]| of_slot_run(record, sequence, array, |_| Ok(100));
    let right = run(0, stored);
    assert_eq!(blocks(&right, 1, &[0; 16]).unwrap().len(), 2);
    let packed = Stored { tier: Tier::Packed, ..stored };
    let exact = Stored { tier: Tier::Exact, ..stored };
    let far = Stored { offset: u64::MAX - 90, ..stored };
    let scale_of = |value: [u8; 4]| [[0; 4], value, [0; 4], value].concat();
    let wrong = [
        (&right, 1, vec![0; 8]),
        (&right, 1, vec![0; 24]),
        (&right, 1, vec![0; 17]),
        (&right, 1, scale_of(f32::NAN.to_le_bytes())),
        (&run(u32::MAX, stored), 1, vec![0; 16]),
        (&run(0, packed), 1, vec![0; 16]),
        (&run(0, exact), 1, scale_of(1.0_f32.to_le_bytes())),
        (&run(0, far), 1, vec![0; 16]),
    ];
    for (record, sequence, array) in wrong {
        let error = blocks(record, sequence, &array).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{record:?} {sequence} {array:?}");
    }
    let parse = |stored| Record::parse(&run(0, stored).to_slot());
    assert!(parse(stored).is_ok());
    for wrong in [Stored::ABSENT, Stored { scale: 1.0, ..stored }] {
        assert_eq!(parse(wrong).unwrap_err().kind(), ErrorKind::Corrupt, "{wrong:?}");
    }
}
