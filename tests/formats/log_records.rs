//! The records of a log and the entries of a catalog: golden files, round trips, and made-up bytes.

use std::sync::Arc;

use proptest::prelude::*;
use tierfs::format::files::View;
use tierfs::format::log::block_record::{BlockRecord, is_next_slot, of_slot_run, slot_run_array};
use tierfs::format::log::catalog::{
    BLOCK_BYTES_MAX, Content, Digests, ENTRY_VERSION, Entry, Extent, FileEntry, Measured, NODE_VERSION,
    NUMBER_MAX, NodeEntry, NodeType, ObjectEntry, OutsideFile, Parent, RecordedDigests, TensorEntry,
};
use tierfs::format::log::record::{LOG_VERSION, ObjectDescription, Record, Stored};
use tierfs::format::log::slot::{RawSlot, SEQUENCE_MAX, SLOT_BYTES};
use tierfs::format::log::small_batch::{self, HEAD_BYTES, Item, ItemRef};
use tierfs::model::{
    Dtype, EntryId, ErrorKind, ObjectId, OwnedCollectionName, Owner, SeedId, Shape, StoreId, TensorId, Tier,
};

use crate::{cases, file, golden};

/// The golden case of a kind, of which there is one.
fn case(kind: &str) -> serde_json::Value {
    cases(kind).remove(0)
}

fn number(case: &serde_json::Value, key: &str) -> u64 {
    case[key].as_u64().unwrap()
}

fn id(case: &serde_json::Value, key: &str) -> u128 {
    u128::from_str_radix(case[key].as_str().unwrap(), 16).unwrap()
}

fn slot(bytes: &[u8]) -> RawSlot {
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

fn dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(Dtype::ALL.to_vec())
}

fn stored(tiers: &[Tier]) -> impl Strategy<Value = Stored> + use<> {
    let tier = prop::sample::select(tiers.to_vec());
    (tier, -1e30_f32..1e30, any::<u32>(), any::<u64>(), 1_u32.., any::<bool>()).prop_map(
        |(tier, scale, checksum, offset, len, in_data)| {
            let len = if tier == Tier::Absent { 0 } else { len };
            Stored { tier, scale, checksum, offset, len, in_data }
        },
    )
}

fn described() -> impl Strategy<Value = ObjectDescription> {
    let shape = prop::collection::vec(0_u64..100, 0..=8);
    (dtype(), shape, any::<Option<u128>>(), any::<u8>()).prop_map(|(dtype, shape, parent, reconstruct)| {
        let parent = parent.filter(|parent| *parent != 0).map(ObjectId);
        ObjectDescription { dtype, shape: Shape::new(&shape).unwrap(), parent, reconstruct }
    })
}

fn record() -> impl Strategy<Value = Record> {
    let object = any::<u128>().prop_map(ObjectId);
    let block = any::<u32>();
    let create = (object.clone(), block, described(), stored(&Tier::ALL), any::<u64>());
    let run = (object.clone(), block, described(), stored(&[Tier::Exact]), any::<u64>());
    let encoded: Vec<Tier> = Tier::ALL.into_iter().filter(|tier| *tier != Tier::Absent).collect();
    let slots = (object.clone(), block, described(), stored(&encoded), any::<u64>(), any::<bool>());
    let migrate = (object.clone(), block, any::<u8>(), dtype(), stored(&Tier::ALL), any::<u64>());
    let delta =
        (any::<u64>(), any::<u64>(), any::<u32>(), any::<u16>(), any::<u32>(), any::<u32>(), any::<u8>());
    let factor = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>());
    prop_oneof![
        create.prop_map(|(object, block, described, stored, created_at)| Record::Create {
            object,
            block,
            described,
            stored,
            created_at
        }),
        run.prop_map(|(object, block, described, stored, created_at)| {
            let stored = Stored { in_data: true, ..stored };
            Record::CreateRun { object, block, described, stored, created_at }
        }),
        slots.prop_map(|(object, block, described, stored, created_at, is_move)| {
            let stored = Stored { in_data: false, scale: 0.0, ..stored };
            Record::SlotRun { object, block, described, stored, created_at, is_move }
        }),
        migrate.prop_map(|(object, block, old_tier, dtype, stored, migrated_at)| {
            let bits = stored.bits(dtype);
            Record::Migrate { object, block, old_tier, bits, stored, migrated_at }
        }),
        object.clone().prop_map(|object| Record::Delete { object }),
        (object.clone(), block, any::<u32>(), any::<u64>(), any::<u64>(), 0..3).prop_map(
            |(object, block, count, offset, created_at, what)| {
                let stored = [Stored::ZEROS, Stored::in_extent(offset), Stored::LOST][what as usize];
                Record::EmptyRun { object, block, count, stored, created_at }
            }
        ),
        (object.clone(), block, delta).prop_map(
            |(object, block, (base_epoch, offset, len, chain_len, nnz, checksum, kind))| Record::Delta {
                object,
                block,
                base_epoch,
                offset,
                len,
                chain_len,
                nnz,
                checksum,
                kind
            }
        ),
        (object, block, factor).prop_map(|(object, block, (offset, len, rank, checksum))| Record::Factor {
            object,
            block,
            offset,
            len,
            rank,
            checksum
        }),
        (any::<u32>(), any::<u32>(), any::<u8>(), any::<u8>())
            .prop_map(|(len, checksum, kind, version)| Record::Catalog { len, checksum, kind, version }),
        (0..=SEQUENCE_MAX, any::<[u32; 3]>()).prop_map(|(batch, [slots, checksum, unsynced])| {
            Record::Commit { batch, slots, checksum, unsynced }
        }),
        (any::<u128>(), any::<u64>()).prop_map(|(store, generation)| Record::Header {
            version: LOG_VERSION,
            store: StoreId(store),
            generation
        }),
    ]
}

fn file_entry() -> impl Strategy<Value = FileEntry> {
    let contents = [Content::Plain, Content::Tensor, Content::Safetensors, Content::Npy, Content::Part];
    let tensor = ("\\PC{0,40}", dtype(), prop::collection::vec(0_u64..1000, 0..=6), any::<u128>()).prop_map(
        |(name, dtype, shape, parent)| TensorEntry {
            name: name.into(),
            dtype,
            shape: Shape::new(&shape).unwrap(),
            parent: TensorId(parent),
        },
    );
    let digests = prop_oneof![
        Just(Digests::NotTaken),
        any::<([u8; 32], Option<[u8; 32]>)>()
            .prop_map(|(blake3, sha256)| Digests::Recorded(Box::new(RecordedDigests { blake3, sha256 }))),
        Just(Digests::Outdated),
    ];
    let error = (0.0_f32..1e9, 0.0_f64..1e90, any::<u64>())
        .prop_map(|(maximum, squares, elements)| Measured { maximum, squares, elements });
    (
        prop::sample::select(contents.to_vec()),
        prop::collection::vec(any::<u128>().prop_map(ObjectId), 0..9),
        prop::option::of(tensor),
        prop::option::of(entry_id()),
        digests,
        prop::option::of(error),
        "\\PC{0,100}",
    )
        .prop_map(|(content, objects, tensor, container, digests, error, why)| FileEntry {
            content,
            objects: objects.into(),
            tensor,
            container,
            digests,
            error: error.map(Box::new),
            why: why.into(),
            records: None,
            view: None,
        })
}

#[test]
fn a_view_is_read_as_it_was_written_and_lies_in_a_container() {
    let tensor = |sizes: &[u64]| TensorEntry {
        name: "w".into(),
        dtype: Dtype::F16,
        shape: Shape::new(sizes).unwrap(),
        parent: TensorId(0),
    };
    let whole = FileEntry {
        tensor: Some(tensor(&[3, 4])),
        container: Some(EntryId(7)),
        view: Some(Arc::new(View { begin: 64, strides: Box::new([1, 3]) })),
        ..FileEntry::new(Content::Part, [ObjectId(5)])
    };
    let entry = |file: FileEntry| {
        Entry::Node(Box::new(NodeEntry::new(
            EntryId(9),
            0o644,
            Owner { uid: 1, gid: 2 },
            3,
            NodeType::File(Box::new(file)),
        )))
    };
    let read = |file: FileEntry| {
        let entry = entry(file);
        Entry::parse(entry.kind(), entry.version(), &entry.to_bytes())
    };
    assert_eq!(entry(whole.clone()).version(), 7);
    assert_eq!(read(whole.clone()).unwrap(), entry(whole.clone()));
    for wrong in [
        FileEntry { container: None, ..whole.clone() },
        FileEntry { content: Content::Tensor, ..whole.clone() },
        FileEntry { tensor: None, ..whole.clone() },
        FileEntry { tensor: Some(tensor(&[12])), ..whole.clone() },
        FileEntry {
            view: Some(Arc::new(View { begin: 64, strides: Box::new([1 << 62, 3]) })),
            ..whole.clone()
        },
        FileEntry { objects: [ObjectId(5), ObjectId(6)].as_slice().into(), ..whole.clone() },
    ] {
        assert_eq!(read(wrong.clone()).unwrap_err().kind(), ErrorKind::Corrupt, "{wrong:?}");
    }
}

fn entry_id() -> impl Strategy<Value = EntryId> {
    (0..=NUMBER_MAX).prop_map(EntryId)
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let is_name = |name: &Vec<u8>| !matches!(name.as_slice(), b"." | b"..") && !name.contains(&b'/');
    prop::collection::vec(1_u8.., 1..=255).prop_filter("a name", is_name)
}

fn entry() -> impl Strategy<Value = Entry> {
    let node_type = prop_oneof![
        Just(NodeType::Directory),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(NodeType::Symlink),
        file_entry().prop_map(|file| NodeType::File(Box::new(file))),
    ];
    let extent = prop::option::of((any::<u64>(), 0..u64::MAX >> 2));
    let object = (any::<[u128; 3]>(), any::<u64>(), dtype(), 0_u64..1 << 40, 4096..=BLOCK_BYTES_MAX, extent);
    prop_oneof![
        (any::<(u32, u64)>(), entry_id()).prop_map(|((number, created_at), EntryId(last_entry))| {
            Entry::Collection { number, created_at, last_entry }
        }),
        object.prop_map(|([id, tensor, seed], creation, dtype, bytes, block_bytes, extent)| {
            Entry::Object(ObjectEntry {
                id: ObjectId(id),
                tensor: TensorId(tensor),
                seed: SeedId(seed),
                creation,
                dtype,
                bytes,
                block_bytes,
                extent: extent.map(|(file, offset)| Extent { file, offset }),
                parent: (creation % 2 == 1).then(|| {
                    Box::new(Parent {
                        object: ObjectId(id ^ 1),
                        collection: (creation % 4 == 1)
                            .then(|| OwnedCollectionName::new("acme", format!("base {creation}"))),
                    })
                }),
            })
        }),
        (entry_id(), any::<(u32, u32, u32, i64, i64, i64, u64)>(), node_type).prop_map(
            |(id, (mode, uid, gid, atime, mtime, ctime, created_at), node_type)| {
                Entry::Node(Box::new(NodeEntry {
                    id,
                    mode,
                    uid,
                    gid,
                    atime,
                    mtime,
                    ctime,
                    created_at,
                    node_type,
                }))
            }
        ),
        entry_id().prop_map(Entry::NodeRemoved),
        ([entry_id(), entry_id(), entry_id()], name())
            .prop_map(|([parent, entry, node], name)| Entry::Name { parent, entry, name: name.into(), node }),
        (entry_id(), name()).prop_map(|(parent, name)| Entry::NameRemoved { parent, name: name.into() }),
        (entry_id(), "\\PC{0,20}", any::<Option<String>>()).prop_map(|(node, key, value)| Entry::Setting {
            node,
            key,
            value
        }),
        (entry_id(), any::<(i64, i64)>()).prop_map(|(node, (mtime, ctime))| Entry::Written {
            node,
            mtime,
            ctime
        }),
        ("(/[a-z. ]{1,9}x){1,5}", any::<u64>(), 0..=i64::MAX as u64, any::<i64>()).prop_map(
            |(path, file, bytes, mtime)| {
                Entry::Outside(OutsideFile { file, path: path.into_bytes(), bytes, mtime })
            }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_record_is_read_as_it_was_written(record in record(), generation in any::<u64>(), number: u64) {
        let mut slot = record.to_slot();
        slot.seal(generation, number);
        prop_assert!(slot.is_intact());
        prop_assert_eq!((slot.generation(), slot.sequence()), (generation as u32, number));
        prop_assert_eq!(Record::parse(&slot).unwrap(), record);
    }

    #[test]
    fn a_slot_describes_its_block_as_the_whole_record_does_or_not_at_all(
        record in record(),
        number: u64,
        // Most bytes of a record have another meaning.
        changes in prop::collection::vec((prop_oneof![0..SLOT_BYTES, 21..24_usize, 104..108_usize, Just(71)], any::<u8>()), 0..3),
    ) {
        let mut slot = record.to_slot();
        for (at, byte) in changes {
            slot.0[at] = byte;
        }
        slot.seal(1, number);
        let whole = Record::parse(&slot).ok().and_then(|record| BlockRecord::of(&record, number));
        prop_assert_eq!(BlockRecord::parse(&slot), whole);
        if let Some(placed) = whole {
            prop_assert!(BlockRecord::is_in(&slot));
            prop_assert_eq!((placed.object.0, placed.block), (slot.object(), slot.block()));
        }
    }

    #[test]
    fn every_entry_is_read_as_it_was_written(entry in entry()) {
        let bytes = entry.to_bytes();
        prop_assert_eq!(Entry::parse(entry.kind(), entry.version(), &bytes).unwrap(), entry);
    }

    #[test]
    fn a_truncated_or_overlong_entry_is_refused(entry in entry(), cut in any::<prop::sample::Index>()) {
        let mut bytes = entry.to_bytes();
        let short = &bytes[..cut.index(bytes.len())];
        prop_assert!(Entry::parse(entry.kind(), entry.version(), short).is_err());
        bytes.push(0);
        prop_assert!(Entry::parse(entry.kind(), entry.version(), &bytes).is_err());
    }

    #[test]
    fn a_changed_entry_is_refused_or_written_back_unchanged(
        entry in entry(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = entry.to_bytes();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Ok(read) = Entry::parse(entry.kind(), entry.version(), &bytes) {
            prop_assert_eq!(read.to_bytes(), bytes);
        }
    }

    #[test]
    fn random_bytes_are_refused_or_an_entry_that_is_written_back_unchanged(
        kind in 0_u8..9,
        version in 0_u8..3,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        match Entry::parse(kind, version, &bytes) {
            Ok(entry) => prop_assert_eq!(entry.to_bytes(), bytes),
            Err(error) => prop_assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{}", error
            ),
        }
    }

    #[test]
    fn random_bytes_are_refused_or_a_record(
        kind in prop_oneof![0_u8..9, Just(16), any::<u8>()],
        body in prop::collection::vec(any::<u8>(), SLOT_BYTES),
    ) {
        let mut slot = RawSlot(body.try_into().unwrap());
        slot.put(0, [kind]);
        slot.seal(1, 1);
        if let Err(error) = Record::parse(&slot) {
            prop_assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{}", error);
        }
    }
}

#[test]
fn a_list_longer_than_the_payload_asks_for_no_memory() {
    // A file entry whose list of objects claims 2^24 entries and has none.
    let mut payload = vec![0; 8 + 12 + 32];
    payload.push(2);
    payload.push(0);
    payload.extend((1_u32 << 24).to_le_bytes());
    payload.extend([0; 64]);
    let error = Entry::parse(3, NODE_VERSION, &payload).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn the_path_of_an_outside_file_is_absolute_and_plain() {
    let parse = |path: &str, bytes: u64| {
        let path = path.as_bytes().to_vec();
        let entry = Entry::Outside(OutsideFile { file: 1, path, bytes, mtime: -1 });
        Entry::parse(entry.kind(), ENTRY_VERSION, &entry.to_bytes())
    };
    assert!(parse("/a/b c/..d", 7).is_ok());
    let long = format!("/{}", "a/".repeat(3000));
    for path in ["", "a", "a/b", "/", "/a/", "//a", "/a//b", "/a/../b", "/./a", "/a\0b", &long] {
        assert_eq!(parse(path, 7).unwrap_err().kind(), ErrorKind::Corrupt, "{path}");
    }
    assert_eq!(parse("/a", 1 << 63).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_number_with_nothing_after_it_is_corrupt() {
    let parse = |number| {
        let entry = Entry::NodeRemoved(EntryId(number));
        Entry::parse(entry.kind(), entry.version(), &entry.to_bytes())
    };
    assert_eq!(parse(NUMBER_MAX).unwrap(), Entry::NodeRemoved(EntryId(NUMBER_MAX)));
    for number in [NUMBER_MAX + 1, u64::MAX] {
        assert_eq!(parse(number).unwrap_err().kind(), ErrorKind::Corrupt, "{number}");
    }
}

#[test]
fn records_of_newer_versions_are_unsupported_and_not_misread() {
    let bytes = Entry::NodeRemoved(EntryId(1)).to_bytes();
    for (kind, version) in [(4, 2), (4, 0), (8, 2), (9, 2), (10, 1), (0, 1), (255, 1)] {
        let error = Entry::parse(kind, version, &bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "kind {kind}, version {version}");
    }
    for kind in [1, 12, 15, 17, 255] {
        let mut slot = RawSlot::new(kind, 1, 1);
        slot.seal(1, 1);
        assert_eq!(Record::parse(&slot).unwrap_err().kind(), ErrorKind::Unsupported, "type {kind}");
    }
}

#[test]
fn nine_dimensions_and_a_scale_of_nan_are_corrupt() {
    let right = slot(&file(&case("create_record"), "record"));
    for (at, bytes) in [(71, &[9_u8][..]), (24, &f32::NAN.to_le_bytes()), (24, &f32::INFINITY.to_le_bytes())]
    {
        let mut slot = right;
        slot.0[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(Record::parse(&slot).unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
    }
    for (at, byte) in [(21, 200), (104, 77)] {
        let mut slot = right;
        slot.0[at] = byte;
        assert_eq!(Record::parse(&slot).unwrap_err().kind(), ErrorKind::Unsupported, "byte {at}");
    }
    // An exact block without bits is an absent one, and has no bytes.
    let mut slot = right;
    slot.0[22..24].fill(0);
    slot.0[104] = 0;
    assert_eq!(Record::parse(&slot).unwrap_err().kind(), ErrorKind::Corrupt);
}
