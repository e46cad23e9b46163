//! The records of a log and the entries of a catalog: what was written is read again, and made-up bytes are refused.

use std::sync::Arc;

use proptest::prelude::*;
use tierfs::format::files::View;
use tierfs::format::log::block_record::BlockRecord;
use tierfs::format::log::catalog::{
    BLOCK_BYTES_MAX, Content, Digests, ENTRY_VERSION, Entry, Extent, FileEntry, Measured, NODE_VERSION,
    NUMBER_MAX, NodeEntry, NodeType, ObjectEntry, OutsideFile, OutsidePlace, Parent, RecordedDigests,
    SourcePlace, TensorEntry, Version,
};
use tierfs::format::log::record::{LOG_VERSION, ObjectDescription, Record, Stored};
use tierfs::format::log::slot::{RawSlot, SEQUENCE_MAX, SLOT_BYTES};
use tierfs::model::{
    Dtype, EntryId, ErrorKind, ObjectId, OwnedCollectionName, Owner, SeedId, Shape, StoreId, TensorId, Tier,
};

use crate::file;
use crate::log_records::{case, slot};

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
                kind,
                product: checksum.rotate_left(7),
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

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![
        "\\PC{0,20}".prop_map(Version::ETag),
        "\\PC{0,20}".prop_map(Version::Id),
        any::<i64>().prop_map(Version::Modified),
        Just(Version::Fixed),
        any::<[u8; 32]>().prop_map(Version::Sha256),
    ]
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
                let place = OutsidePlace::Path(path.into_bytes());
                Entry::Outside(OutsideFile { file, place, bytes, mtime })
            }
        ),
        ("s3://[a-z]{1,9}", "\\PC{0,20}", version(), any::<(u64, bool)>(), 0..=i64::MAX as u64, any::<i64>())
            .prop_map(|(source, key, version, (file, is_read), bytes, mtime)| {
                let object = Box::new(SourcePlace { source, key, version });
                let place = OutsidePlace::Object { object, is_read };
                Entry::Outside(OutsideFile { file, place, bytes, mtime })
            }),
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
        let place = OutsidePlace::Path(path.as_bytes().to_vec());
        let entry = Entry::Outside(OutsideFile { file: 1, place, bytes, mtime: -1 });
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
    for (kind, version) in [(4, 2), (4, 0), (8, 2), (9, 2), (10, 2), (11, 1), (0, 1), (255, 1)] {
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
