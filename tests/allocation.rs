//! Checks by a counting allocator that the decoding half of the codecs allocates nothing, and that a collection needs
//! a bounded number of bytes for each tensor.

use support::{CountingAllocator, allocations, held};
use tierfs::codec::{InstructionSet, payload_len};
use tierfs::model::{Aim, CollectionName, Dtype, MoveTo, Owner, Silent, Tier};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn the_counter_counts_allocations() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1_u8; 100]))), 1);
    let (_kept, bytes, most) = held(|| {
        drop(std::hint::black_box(vec![1_u8; 900]));
        vec![1_u8; 100]
    });
    assert_eq!((bytes, most), (100, 900));
}

#[test]
fn records_of_batches_are_borrowed_and_written_without_allocation_at_any_alignment() {
    use tierfs::format::files::cgeb::{AuxEncoding, Header, Layout as Order, NewRecord, Record};
    use tierfs::format::files::cgei::{BorrowedIndex, Index};
    let (vector, weights) = (vec![0.5; 1536], [0.25; 8]);
    for layout in [Order::One, Order::TwoBig, Order::TwoLittle] {
        let record = NewRecord {
            layout,
            vector: &vector,
            weights: &weights,
            selected: &[1, 2],
            aux: b"aux",
            aux_encoding: AuxEncoding::Raw,
            pipeline_latency_us: 1,
            own_hash: (layout == Order::One).then_some(7),
        };
        let mut room = vec![0; 7000];
        for skip in 0..9 {
            let place = &mut room[skip..];
            assert_eq!(allocations(|| assert_eq!(record.write_into(place), Ok(6245))), 0);
            let count = allocations(|| {
                Header::parse(place).unwrap();
                let record = Record::borrow(place).unwrap();
                record.verify().unwrap();
                assert_eq!(record.vector.iter().sum::<f32>(), 768.0);
            });
            assert_eq!(count, 0);
        }
    }
    let bytes = Index { data_hash: 5, offsets: vec![0, 8192] }.write().unwrap();
    let count = allocations(|| {
        let index = BorrowedIndex::borrow(&bytes).unwrap();
        index.check().unwrap();
        assert_eq!(index.offset(1), Some(8192));
    });
    assert_eq!(count, 0);
}

#[test]
fn decode_pack_unpack_and_max_abs_do_not_allocate() {
    for set in InstructionSet::available() {
        for n in [4096, 1000] {
            for tier in Tier::ENCODED {
                let payload = vec![0; payload_len(tier, n).unwrap()];
                let mut out = vec![0; 4 * n];
                for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                    let out = &mut out[..n * dtype.bytes() as usize];
                    assert_eq!(allocations(|| set.decode_groups(tier, dtype, &payload, out).unwrap()), 0);
                }
            }
            for bits in [3, 5, 7, 8] {
                let mut codes = vec![1; n];
                let mut stream = vec![0; (n * usize::from(bits)).div_ceil(8)];
                assert_eq!(allocations(|| set.pack(bits, &codes, &mut stream).unwrap()), 0);
                assert_eq!(allocations(|| set.unpack(bits, &stream, &mut codes).unwrap()), 0);
            }
            let values = vec![1.0; n];
            assert_eq!(allocations(|| assert_eq!(set.max_abs(&values), 1.0)), 0);
        }
    }
}

/// A container of this many tensors of 16 bytes.
fn container(tensors: usize) -> Vec<u8> {
    let name = |number: usize| format!("model.layers.{}.part{}.weight", number / 10, number % 10);
    let entry = |number: usize| {
        let (name, start) = (name(number), 16 * number);
        format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[{start},{}]}}", start + 16)
    };
    let header = format!("{{{}}}", (0..tensors).map(entry).collect::<Vec<_>>().join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend((0..4 * tensors).flat_map(|place| (place as f32).to_le_bytes()));
    bytes
}

#[test]
fn a_tensor_of_an_open_collection_takes_few_bytes_of_memory() {
    use std::sync::Arc;
    use tierfs::ingest::{Options, Origin, Target, import_file};
    use tierfs::model::{EntryId, StoreId};
    use tierfs::store::ROOT;
    use tierfs::store::Settings;
    use tierfs::store::Verify;
    use tierfs::store::disk::memory::MemoryDisk;
    use tierfs::store::disk::{Disk, Open};
    use tierfs::store::{Access, Collection};
    use tierfs::vfs::open::OpenFiles;
    const TENSORS: usize = 10_000;
    let id = StoreId(7);
    let q8 = MoveTo::all(Aim::Tier(Tier::Q8));
    for (tier, opened_max, opening_max, read_max) in [(None, 940, 1500, 40), (Some(q8), 1110, 2000, 40)] {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        disk.create_directory("t").unwrap();
        let source = disk.open("source", Open::Create).unwrap();
        source.write_at(&container(TENSORS), 0).unwrap();
        let collection =
            Collection::create(&disk, id, CollectionName::new("t", "c"), 1, Owner { uid: 0, gid: 0 }, 0o755)
                .unwrap();
        let target = Target { name: b"m.safetensors".to_vec(), directories: Vec::new() };
        let origin =
            Origin { mode: 0o644, owner: Owner { uid: 0, gid: 0 }, atime: 1, mtime: 1, sha256: None };
        let options = Options { tier, ..Options::default() };
        let settings = Settings::new(id);
        import_file(&Arc::new(collection), &settings, &target, &source, &origin, &options, &Silent).unwrap();

        let open = || {
            Arc::new(
                tierfs::store::open_collection(&disk, id, CollectionName::new("t", "c"), Access::Write)
                    .unwrap(),
            )
        };
        let (collection, opened, opening) = held(open);
        // The estimate that decides which collections stay open.
        let estimated = collection.memory() as f64 / opened as f64;
        assert!((0.75..=1.25).contains(&estimated), "{tier:?}: {estimated:.2} of the bytes");
        let names = collection.state().listed(ROOT, 0, true, usize::MAX).unwrap().len();
        assert_eq!(names, TENSORS);
        let nodes: Vec<EntryId> = collection.state().nodes().map(|node| node.entry.id).collect();
        let read = |node: &EntryId| {
            let mut bytes = [0; 16];
            let open_file = OpenFiles::default().open(&collection, *node, Verify::First).unwrap();
            open_file.opened_to_read();
            assert_eq!(open_file.read(0, &mut bytes).unwrap(), 16);
        };
        let files = nodes.iter().filter(|node| **node != ROOT);
        // Allocations that the collection and the thread make once.
        files.clone().take(10).for_each(read);
        let ((), read, _) = held(|| files.clone().for_each(read));
        let each = |bytes: isize| bytes / TENSORS as isize;
        println!(
            "{tier:?}: {} bytes a tensor, {} while it is opened, {} once read",
            each(opened),
            each(opening),
            each(read)
        );
        assert!(each(opened) <= opened_max, "{tier:?}: {} bytes a tensor", each(opened));
        assert!(
            each(opening) <= opening_max,
            "{tier:?}: {} bytes a tensor while it is opened",
            each(opening)
        );
        assert!(each(read) <= read_max, "{tier:?}: {} bytes a tensor that was read", each(read));
        assert_eq!(collection.state().objects().filter(|object| object.is_dirty()).count(), 0);
    }
}
