//! Files that change during another operation on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tierfs::engine::{self, MovePreview};
use tierfs::model::{CollectionName, Dtype, Encoder, Owner, Progress, Tier};
use tierfs::store::Collection;
use tierfs::store::ROOT;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{OpenObject, Verify};
use tierfs::stream::Computed;
use tierfs::vfs::open::{self, OpenFiles};

use crate::history::{History, STORE};
use crate::power_cut_disk::CutDisk;
use crate::recorder::Recorder;
use support::Random;

fn collection(disk: &Arc<dyn Disk>) -> Arc<Collection> {
    disk.create_directory("t").unwrap();
    Arc::new(
        Collection::create(disk, STORE, CollectionName::new("t", "c"), 1, Owner { uid: 0, gid: 0 }, 0o755)
            .unwrap(),
    )
}

/// A new file with these bytes.
fn write(collection: &Arc<Collection>, table: &OpenFiles, name: &str, bytes: &[u8]) {
    let node = open::create(collection, ROOT, name.as_bytes(), 0o644, Owner { uid: 0, gid: 0 }).unwrap();
    let open_file = table.open(collection, node, Verify::First).unwrap();
    open_file.write(0, bytes).unwrap();
    open_file.flush().unwrap();
}

/// Removes a file after this many bytes were read.
struct Removes(Arc<Collection>, AtomicUsize);

impl Progress for Removes {
    fn advance(&self, bytes: u64) {
        let bytes = bytes as usize;
        if self.1.fetch_sub(bytes, Ordering::Relaxed) == bytes {
            open::unlink(&self.0, ROOT, b"last").unwrap();
        }
    }
}

#[test]
fn a_compaction_continues_when_a_file_is_removed() {
    let disk: Arc<dyn Disk> = Arc::new(CutDisk::default());
    let collection = collection(&disk);
    let mut random = Random(8);
    let table = OpenFiles::default();
    let small = random.bytes(10_000);
    ["first", "kept", "last"].iter().for_each(|name| write(&collection, &table, name, &small));
    open::unlink(&collection, ROOT, b"first").unwrap();
    // After the search for blocks that return to their extent, and before packing.
    let removes = Removes(collection.clone(), AtomicUsize::new(20_000));
    let done = engine::compact(&collection, &removes).unwrap();
    assert!(collection.state().directory(ROOT).unwrap().get(b"last").is_none());
    assert!(done.after <= done.before, "{done}");
    let done = engine::compact(&collection, &tierfs::model::Silent).unwrap();
    assert!(done.after < 11_000, "{done}");
}

#[test]
fn a_compaction_continues_past_a_file_whose_data_file_is_missing() {
    let disk: Arc<dyn Disk> = Arc::new(CutDisk::default());
    let collection = collection(&disk);
    let table = OpenFiles::default();
    let mut random = Random(4);
    let names = ["a", "gone", "z"];
    for name in names {
        write(&collection, &table, name, &random.bytes(200_000));
    }
    let patch = random.bytes(40_000);
    let node = |collection: &Collection, name: &str| {
        collection.state().directory(ROOT).unwrap().get(name.as_bytes()).unwrap()
    };
    for name in names {
        let open_file = table.open(&collection, node(&collection, name), Verify::First).unwrap();
        open_file.write(50_000, &patch).unwrap();
        open_file.flush().unwrap();
    }
    let extent = collection.objects_of(node(&collection, "gone")).unwrap()[0].extent().unwrap();
    let path = collection.data_path(extent.file);
    drop((table, collection));
    disk.remove_file(&path).unwrap();
    let collection = History::open(&disk);
    let done = engine::compact(&collection, &tierfs::model::Silent).unwrap();
    assert!(done.returned > 0, "{done}");
    assert_eq!(done.left, 1, "{done}");
    assert!(done.to_string().contains("1 objects cannot be read"), "{done}");
    let (start, end) = collection.event_log().range();
    let mut told = vec![0; (end - start) as usize];
    collection.event_log().read(start, &mut told).unwrap();
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("t/c/gone") && told.contains("not compacted"), "{told}");
    // The other files returned to their extents, and the log is short.
    let table = OpenFiles::default();
    for name in ["a", "z"] {
        let open_file = table.open(&collection, node(&collection, name), Verify::First).unwrap();
        let mut found = vec![0; 40_000];
        open_file.read(50_000, &mut found).unwrap();
        assert!(found == patch, "{name}");
    }
    assert!(disk.open("t/c/meta.log", Open::Read).unwrap().len().unwrap() < 20_000);
}

#[test]
fn a_preview_of_a_move_of_a_truncated_file_is_refused() {
    let disk: Arc<dyn Disk> = Arc::new(CutDisk::default());
    let collection = collection(&disk);
    let mut random = Random(9);
    let table = OpenFiles::default();
    let bytes = random.floats(60_000);
    write(&collection, &table, "x", &bytes);
    let node = collection.state().directory(ROOT).unwrap().get(b"x").unwrap();
    open::set_tensor(&collection, node, Some(Dtype::F32), None).unwrap();
    let object = collection.objects_of(node).unwrap().remove(0);
    let open = OpenObject::open(&collection, &object, Verify::First).unwrap();
    let shown = MovePreview::new(open, Tier::Q8, Encoder::Best);
    let all = 0..shown.bytes();
    let mut found = vec![0; bytes.len()];
    shown.read(all.clone(), &mut found).unwrap();
    let open_file = table.open(&collection, node, Verify::First).unwrap();
    for left in [150_001, 20_000, 0] {
        open_file.truncate(left).unwrap();
        for range in [all.clone(), 200_000..200_100, left + 1..all.end] {
            let mut out = vec![0; (range.end - range.start) as usize];
            assert!(shown.read(range.clone(), &mut out).is_err(), "{range:?} of {left} bytes");
        }
    }
}

#[test]
fn setting_the_type_of_a_file_keeps_concurrent_writes() {
    let disk: Arc<dyn Disk> = Arc::new(CutDisk::default());
    let mut random = Random(31);
    let collection = collection(&disk);
    let table = OpenFiles::default();
    for (name, size) in [("grown", 64 << 10), ("small", 4000)] {
        open::create(&collection, ROOT, name.as_bytes(), 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        let node = collection.state().directory(ROOT).unwrap().get(name.as_bytes()).unwrap();
        let open_file = table.open(&collection, node, Verify::First).unwrap();
        let bytes = random.bytes(size + 60_000);
        open_file.write(0, &bytes[..size]).unwrap();
        open_file.flush().unwrap();
        open_file.write(size as u64, &bytes[size..]).unwrap();
        open::set_tensor(&collection, node, Some(Dtype::F32), None).unwrap();
        let check = |collection: &Arc<Collection>, table: &OpenFiles| {
            let open_file = table.open(collection, node, Verify::First).unwrap();
            let mut found = vec![0; bytes.len()];
            assert_eq!(open_file.read(0, &mut found).unwrap(), bytes.len(), "{name}");
            assert!(found == bytes, "{name} reads otherwise");
        };
        check(&collection, &table);
        open_file.flush().unwrap();
        check(&collection, &table);
        check(&History::open(&disk), &OpenFiles::default());
    }
}

#[test]
fn bytes_that_a_failed_write_left_in_a_hole_are_not_read() {
    let recorder = Recorder::new(CutDisk::default());
    let disk: Arc<dyn Disk> = Arc::new(recorder.clone());
    let collection = collection(&disk);
    let mut random = Random(10);
    let table = OpenFiles::default();
    let mut bytes = random.bytes(100_000);
    write(&collection, &table, "x", &bytes);
    let node = collection.state().directory(ROOT).unwrap().get(b"x").unwrap();
    let open_file = table.open(&collection, node, Verify::First).unwrap();
    open_file.truncate(1 << 20).unwrap();
    bytes.resize(1 << 20, 0);
    let new = random.bytes(40_000);
    for at in [300_000, 500_000] {
        recorder.is_full.store(true, Ordering::Relaxed);
        open_file.write(at as u64, &new).unwrap_err();
        recorder.is_full.store(false, Ordering::Relaxed);
        let check = |collection: &Arc<Collection>, table: &OpenFiles, bytes: &[u8], when: &str| {
            let open_file = table.open(collection, node, Verify::First).unwrap();
            let mut found = vec![0; bytes.len()];
            assert_eq!(open_file.read(0, &mut found).unwrap(), bytes.len(), "{when}");
            assert!(found == bytes, "{when}: it reads otherwise");
        };
        check(&collection, &table, &bytes, "after a write that failed");
        // A byte in the half-written block.
        open_file.write(at as u64 + 10, b"z").unwrap();
        bytes[at + 10] = b'z';
        check(&collection, &table, &bytes, "after a small write");
        open_file.flush().unwrap();
        check(&collection, &table, &bytes, "in the log");
        check(&History::open(&disk), &OpenFiles::default(), &bytes, "opened again");
    }
}

#[test]
fn a_file_unlinked_while_it_is_flushed_stays_readable() {
    let disk: Arc<dyn Disk> = Arc::new(CutDisk::default());
    let collection = collection(&disk);
    let mut random = Random(77);
    for round in 0..200 {
        let table = OpenFiles::default();
        let bytes = random.bytes([3000, 90_000][round % 2]);
        open::create(&collection, ROOT, b"x", 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        let node = collection.state().directory(ROOT).unwrap().get(b"x").unwrap();
        let open_file = table.open(&collection, node, Verify::First).unwrap();
        open_file.write(0, &bytes).unwrap();
        std::thread::scope(|scope| {
            let flushing = scope.spawn(|| open_file.flush().unwrap());
            let until =
                std::time::Instant::now() + std::time::Duration::from_micros(random.below(500) as u64);
            while std::time::Instant::now() < until {
                std::hint::spin_loop();
            }
            open::unlink(&collection, ROOT, b"x").unwrap();
            flushing.join().unwrap();
        });
        collection.sync().unwrap();
        let mut found = vec![0; bytes.len() + 1];
        assert_eq!(open_file.read(0, &mut found).unwrap(), bytes.len(), "round {round}");
        assert!(found[..bytes.len()] == bytes, "round {round}: it reads otherwise");
    }
}
