//! The content of frozen collections, the pieces that equal collections and fine-tunes share, and the settings that stay behind.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use tierfs::engine::{Consent, Engine, MoveRequest, Moved, compact};
use tierfs::ingest::Options;
use tierfs::model::{CollectionName, ErrorKind, MoveTo, Owner, Silent, StoreId};
use tierfs::store::disk::Disk;
use tierfs::store::disk::change::Change;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::{
    Access, Collection, Frozen, Look, ROOT, Snapshot, SnapshotDisk, Snapshots, Store, Verify,
};
use tierfs::vfs::open::{self, OpenFiles};

use super::memory::{REMOTE, Remote, assert_same, seen};
use crate::fixture::{Numbers, STORE, create, f32s, find, import, safetensors_file};

fn model(seed: u64, rows: usize) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    let tensors: Vec<_> =
        (0..10).map(|place| f32s(&format!("layer.{place}"), &[rows, 1024], &mut numbers)).collect();
    safetensors_file(&tensors)
}

fn held_store(disk: &Arc<dyn Disk>) -> Arc<Store> {
    Store::create(&**disk, STORE).unwrap();
    Arc::new(Store::open(disk.clone(), Access::Write, "").unwrap())
}

#[test]
fn a_frozen_file_is_read_after_it_was_removed_and_its_space_given_back_after_that() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let store = held_store(&disk);
    let collection = store.collection_made("t", "c", Owner { uid: 0, gid: 0 }).unwrap();
    import(&collection, "m.safetensors", &model(1, 40), &Options::default()).unwrap();
    let expected = seen(&collection);
    let frozen = Frozen::of(&collection).unwrap();
    open::unlink(&collection, ROOT, b"m.safetensors").unwrap();
    for _ in 0..3 {
        collection.sync().unwrap();
        compact(&collection, &Silent).unwrap();
    }
    let data = |disk: &Arc<dyn Disk>| disk.list("t/c/data").unwrap().len();
    assert_eq!(data(&disk), 1);
    // An empty collection that somebody reads is not removed either.
    assert_eq!(store.remove_collection("t", "c").unwrap_err().kind(), ErrorKind::Busy);
    let remote = Remote::default();
    remote.push(&frozen, CollectionName::new("t", "c"));
    assert_same(&seen(&remote.store().collection("t", "c").unwrap()), &expected, "removed meanwhile");
    drop(frozen);
    collection.sync().unwrap();
    assert_eq!(data(&disk), 0);
    store.remove_collection("t", "c").unwrap();
}

#[test]
fn written_slots_of_a_frozen_collection_are_not_used_again_before_it_is_released() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let collection = create(&disk);
    let mut numbers = Numbers(5);
    // Of at most 16 KiB, so that it lies in slots.
    import(&collection, "f", &numbers.bytes(16_000), &Options::default()).unwrap();
    let expected = seen(&collection);
    let frozen = Frozen::of(&collection).unwrap();
    let node = find(&collection, "f").unwrap().entry.id;
    let len = || disk.open("t/c/tier0.dat", tierfs::store::disk::Open::Read).unwrap().len().unwrap();
    let mut lens = Vec::new();
    for _ in 0..6 {
        let table = OpenFiles::default();
        let open_file = table.open(&collection, node, Verify::First).unwrap();
        open_file.write(0, &numbers.bytes(16_000)).unwrap();
        open_file.flush().unwrap();
        collection.sync().unwrap();
        lens.push(len());
    }
    assert!(lens.is_sorted() && lens[5] >= lens[0] + 5 * 16_000, "{lens:?}");
    let remote = Remote::default();
    remote.push(&frozen, CollectionName::new("t", "c"));
    assert_same(&seen(&remote.store().collection("t", "c").unwrap()), &expected, "written meanwhile");
    drop(frozen);
    for _ in 0..6 {
        let table = OpenFiles::default();
        let open_file = table.open(&collection, node, Verify::First).unwrap();
        open_file.write(0, &numbers.bytes(16_000)).unwrap();
        open_file.flush().unwrap();
        collection.sync().unwrap();
    }
    assert!(len() <= lens[5], "{} after {lens:?}", len());
}

#[test]
fn two_collections_with_the_same_imports_share_all_pieces_but_the_log() {
    let remote = Remote::default();
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let store = held_store(&disk);
    let one = store.collection_made("t", "one", Owner { uid: 0, gid: 0 }).unwrap();
    let options = Options { tier: Some(tierfs::model::MoveTo::parse("q5").unwrap()), ..Options::default() };
    let imports = |collection: &Arc<Collection>| {
        import(collection, "a.safetensors", &model(2, 300), &options).unwrap();
        import(collection, "b.bin", &Numbers(9).bytes(100_000), &options).unwrap();
        import(collection, "small", b"a few bytes", &options).unwrap();
    };
    // Another order of slots, with gaps.
    import(&one, "gone", &Numbers(1).bytes(9000), &options).unwrap();
    import(&one, "gone.safetensors", &model(3, 20), &options).unwrap();
    open::unlink(&one, ROOT, b"gone").unwrap();
    imports(&one);
    open::unlink(&one, ROOT, b"gone.safetensors").unwrap();
    let first = remote.push(&Frozen::of(&one).unwrap(), CollectionName::new("t", "one"));
    assert!(first.new > 2 << 20, "{first:?}");
    let other = store.collection_made("t", "other", Owner { uid: 0, gid: 0 }).unwrap();
    imports(&other);
    let second = remote.push(&Frozen::of(&other).unwrap(), CollectionName::new("t", "other"));
    assert_eq!(second.new, 0);
    let shown = remote.store();
    for name in ["one", "other"] {
        let expected = seen(&store.collection("t", name).unwrap());
        assert_same(&seen(&shown.collection("t", name).unwrap()), &expected, name);
    }
    let numbers = ["one", "other"].map(|name| shown.collection("t", name).unwrap().state().number());
    assert_ne!(numbers[0], numbers[1]);
    assert_eq!(shown.tenant("t").entry().owner, Some(Owner { uid: 7, gid: 8 }));
}

#[test]
fn a_fine_tune_with_nine_of_ten_equal_tensors_stores_little_more_than_one() {
    let remote = Remote::default();
    let collection = create(&(Arc::new(MemoryDisk::new()) as Arc<dyn Disk>));
    let base = model(4, 2600);
    import(&collection, "m.safetensors", &base, &Options::default()).unwrap();
    let first = remote.push(&Frozen::of(&collection).unwrap(), CollectionName::new("t", "base"));
    // The last of ten tensors of 10 MiB differs, and the header has another length.
    let mut tuned = base.clone();
    let from = tuned.len() - 2600 * 1024 * 4;
    tuned[from..].iter_mut().for_each(|byte| *byte ^= 0x11);
    let header = u64::from_le_bytes(tuned[..8].try_into().unwrap()) as usize;
    let mut longer = tuned[8..8 + header].to_vec();
    longer.extend([b' '; 64]);
    let tuned = [&(longer.len() as u64).to_le_bytes()[..], &longer, &tuned[8 + header..]].concat();
    let other = create(&(Arc::new(MemoryDisk::new()) as Arc<dyn Disk>));
    import(&other, "m.safetensors", &tuned, &Options::default()).unwrap();
    let second = remote.push(&Frozen::of(&other).unwrap(), CollectionName::new("t", "tuned"));
    let share = second.new as f64 / first.new as f64;
    assert!(share > 0.05 && share <= 0.12, "{share}: {} of {}", second.new, first.new);
}

#[test]
fn a_damaged_payload_ends_a_push_and_a_damaged_log_or_a_lost_block_refuses_it() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let collection = create(&disk);
    import(&collection, "m.safetensors", &model(6, 40), &Options::default()).unwrap();
    collection.sync().unwrap();
    let data = disk.list("t/c/data").unwrap().remove(0).name;
    let data = disk.open(&format!("t/c/data/{data}"), tierfs::store::disk::Open::Write).unwrap();
    data.write_at(b"damage", 100_000).unwrap();
    let canonical = Frozen::of(&collection).unwrap().canonical(REMOTE).unwrap();
    let mut out = Vec::new();
    let read = canonical.files().iter().try_for_each(|file| {
        file.pieces().iter().try_for_each(|piece| canonical.read(file, piece, &mut out))
    });
    let error = read.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("payload crc"), "{error}");
    drop((canonical, collection));
    // The repair makes it a lost block.
    tierfs::store::repair(&disk, STORE, CollectionName::new("t", "c"), 1).unwrap().unwrap();
    let collection = crate::fixture::open(&disk).unwrap();
    let refused = Frozen::of(&collection).unwrap().canonical(REMOTE).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    assert!(refused.to_string().contains("layer.0: 1 of its blocks are lost"), "{refused}");
    drop(collection);
    let log = disk.open("t/c/meta.log", tierfs::store::disk::Open::Write).unwrap();
    log.write_at(&[0xff; 40], 2 * 128).unwrap();
    let collection = crate::fixture::open(&disk).unwrap();
    assert!(collection.damage().is_some());
    let refused = Frozen::of(&collection).err().unwrap();
    assert!(refused.kind() == ErrorKind::Corrupt && refused.to_string().contains("fsck"), "{refused}");
}

/// A remote whose answers wait, or fail, as a test says.
struct Slow<F> {
    remote: Remote,
    after: F,
}

impl<F: Fn(&str) -> io::Result<()> + Send + Sync> Snapshots for Slow<F> {
    fn place(&self) -> String {
        self.remote.place()
    }

    fn id(&self) -> StoreId {
        self.remote.id()
    }

    fn tenants(&self) -> io::Result<Vec<String>> {
        self.remote.tenants()
    }

    fn collections(&self, tenant: &str) -> io::Result<Vec<String>> {
        self.remote.collections(tenant)
    }

    fn open(&self, tenant: &str, collection: &str) -> io::Result<Option<Snapshot>> {
        let found = self.remote.open(tenant, collection)?;
        (self.after)(collection)?;
        Ok(found)
    }
}

/// A collection in memory, and a push of another state of it.
fn changing() -> (Arc<Collection>, impl Fn(&Remote, &str, &[u8])) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let collection = create(&disk);
    let pushed = collection.clone();
    let push = move |remote: &Remote, name: &str, bytes: &[u8]| {
        import(&pushed, "f", bytes, &Options::default()).unwrap();
        remote.push(&Frozen::of(&pushed).unwrap(), CollectionName::new("t", name));
    };
    (collection, push)
}

#[test]
fn a_slow_look_for_snapshots_does_not_show_an_older_one_again() {
    let (_collection, push) = changing();
    let remote = Remote::default();
    push(&remote, "c", b"first");
    let is_armed = Arc::new(AtomicBool::new(false));
    let (armed, (began, begins)) = (is_armed.clone(), mpsc::channel());
    let (ended, ends) = mpsc::channel();
    let ends = Mutex::new(ends);
    let slow = Slow {
        remote: remote.clone(),
        after: move |_: &str| {
            // The first look has its answer late: once another look has ended, or waits for this one.
            if armed.swap(false, Ordering::Relaxed) {
                began.send(()).unwrap();
                ends.lock().recv_timeout(Duration::from_millis(500)).ok();
            }
            Ok(())
        },
    };
    let store = Arc::new(SnapshotDisk::new(Arc::new(slow))).open_store().unwrap();
    drop(store.collection("t", "c").unwrap());
    push(&remote, "c", b"second");
    is_armed.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| store.refresh(Look::All).unwrap());
        begins.recv().unwrap();
        push(&remote, "c", b"third");
        scope.spawn(|| {
            store.refresh(Look::All).unwrap();
            // The first look may have ended without it.
            ended.send(()).ok();
        });
        assert!(first.join().unwrap().failed.is_none());
    });
    assert_eq!(crate::fixture::read(&store.collection("t", "c").unwrap(), "f").unwrap(), b"third");
}

#[test]
fn collections_are_shown_as_they_are_found_and_one_that_fails_or_is_slow_stops_no_other() {
    let (_collection, push) = changing();
    let remote = Remote::default();
    let names = ["broken", "good", "slow"];
    names.iter().for_each(|name| push(&remote, name, b"first"));
    let is_armed = Arc::new(AtomicBool::new(false));
    let (shown, shows) = mpsc::channel::<()>();
    let shows = Mutex::new(shows);
    let armed = is_armed.clone();
    let slow = Slow {
        remote: remote.clone(),
        after: move |name: &str| match (armed.load(Ordering::Relaxed), name) {
            (true, "broken") => Err(io::ErrorKind::PermissionDenied.into()),
            (true, "slow") => {
                shows.lock().recv_timeout(Duration::from_secs(20)).map_err(io::Error::other)?;
                Ok(())
            }
            _ => Ok(()),
        },
    };
    let store = Arc::new(SnapshotDisk::new(Arc::new(slow))).open_store().unwrap();
    let read = |name: &str| crate::fixture::read(&store.collection("t", name).unwrap(), "f").unwrap();
    names.iter().for_each(|name| assert_eq!(read(name), b"first"));
    names.iter().for_each(|name| push(&remote, name, b"second"));
    is_armed.store(true, Ordering::Relaxed);
    let refreshed = std::thread::scope(|scope| {
        let refreshing = scope.spawn(|| store.refresh(Look::All).unwrap());
        support::wait_until("the good collection is shown", || read("good") == b"second");
        shown.send(()).unwrap();
        refreshing.join().unwrap()
    });
    assert_eq!(refreshed.paths, ["t/good", "t/slow"]);
    assert_eq!(refreshed.failed.unwrap().kind(), ErrorKind::Forbidden);
    assert_eq!((read("broken"), read("slow")), (b"first".to_vec(), b"second".to_vec()));
}

#[test]
fn a_new_snapshot_is_shown_under_another_number_once_it_is_asked_for() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let collection = create(&disk);
    import(&collection, "f", b"old", &Options::default()).unwrap();
    let remote = Remote::default();
    remote.push(&Frozen::of(&collection).unwrap(), CollectionName::new("t", "c"));
    let shown = Arc::new(remote.disk());
    let store = shown.clone().open_store().unwrap();
    let before = store.collection("t", "c").unwrap();
    import(&collection, "f", b"new one", &Options::default()).unwrap();
    remote.push(&Frozen::of(&collection).unwrap(), CollectionName::new("t", "c"));
    assert!(shown.shown()[0].2.manifest.number == 1);
    assert!(shown.renew("t", "c").unwrap());
    assert!(!shown.renew("t", "c").unwrap());
    assert_eq!(crate::fixture::read(&store.collection("t", "c").unwrap(), "f").unwrap(), b"old");
    store.forget("t", "c");
    let after = store.collection("t", "c").unwrap();
    assert_ne!(before.state().number(), after.state().number());
    assert_eq!(crate::fixture::read(&after, "f").unwrap(), b"new one");
    assert_eq!(crate::fixture::read(&before, "f").unwrap(), b"old");
    assert_eq!(store.space().unwrap().free, 0);
    let refused = store.collection_made("t", "x", Owner { uid: 0, gid: 0 }).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
}

#[test]
fn objects_of_an_import_that_has_not_ended_are_not_part_of_a_snapshot() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let collection = create(&disk);
    import(&collection, "f", &Numbers(1).bytes(50_000), &Options::default()).unwrap();
    let files = |collection: &Arc<Collection>| {
        let canonical = Frozen::of(collection).unwrap().canonical(REMOTE).unwrap();
        canonical.files().iter().map(|file| (file.kind, file.number, file.bytes)).collect::<Vec<_>>()
    };
    let before = files(&collection);
    // An import records this before it names its file.
    let object = collection.state().objects().next().unwrap().entry.clone();
    collection
        .record(tierfs::store::Touched::default(), |batch, _| {
            let id = tierfs::model::ObjectId(99);
            let creation = batch.next_sequence();
            batch.entry(tierfs::format::log::catalog::Entry::Object(
                tierfs::format::log::catalog::ObjectEntry { id, creation, bytes: 0, extent: None, ..object },
            ));
            Ok(())
        })
        .unwrap();
    assert_eq!(files(&collection), before);
}

/// Writes into a file and records that.
fn written(collection: &Arc<Collection>, at: u64, bytes: &[u8]) {
    let table = OpenFiles::default();
    let node = find(collection, "m.safetensors").unwrap().entry.id;
    let file = table.open(collection, node, Verify::First).unwrap();
    file.write(at, bytes).unwrap();
    file.flush().unwrap();
}

#[test]
fn each_operation_that_changes_bytes_leaves_those_of_a_frozen_collection() {
    for change in Change::ALL {
        let context = format!("{change:?} while frozen");
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let store = held_store(&disk);
        let engine = Engine::new(store.clone());
        let collection = store.collection_made("t", "c", Owner { uid: 0, gid: 0 }).unwrap();
        import(&collection, "m.safetensors", &model(1, 40), &Options::default()).unwrap();
        import(&collection, "small", &Numbers(2).bytes(9000), &Options::default()).unwrap();
        let end = model(1, 40).len() as u64;
        if change == Change::Return {
            // Blocks in slots, which a compaction writes back.
            written(&collection, end - 400_000, &Numbers(3).bytes(300_000));
            collection.sync().unwrap();
        }
        let expected = seen(&collection);
        let frozen = Frozen::of(&collection).unwrap();
        let node = find(&collection, "m.safetensors").unwrap().entry.id;
        match change {
            Change::Reclaim | Change::PunchLeft => {
                let to = MoveRequest {
                    to: MoveTo::parse_tier("q8").unwrap(),
                    consent: Consent::Given,
                    rows: None,
                };
                engine.set_tier(&collection, node, to, &Silent, &mut Moved::default()).unwrap();
            }
            Change::Append => written(&collection, end, &[7; 100_000]),
            Change::Remove => drop(open::unlink(&collection, ROOT, b"m.safetensors").unwrap()),
            Change::Slots => {
                open::unlink(&collection, ROOT, b"small").unwrap();
                import(&collection, "other", &Numbers(4).bytes(9000), &Options::default()).unwrap();
            }
            Change::Return => {}
            // Clones only: tests/remote/clones.rs.
            Change::Evict | Change::Adopt => continue,
        }
        for _ in 0..3 {
            collection.sync().unwrap();
            compact(&collection, &Silent).unwrap();
        }
        if change != Change::Remove {
            written(&collection, 200_000, &Numbers(5).bytes(200_000));
            collection.sync().unwrap();
        }
        let remote = Remote::default();
        remote.push(&frozen, CollectionName::new("t", "c"));
        assert_same(&seen(&remote.store().collection("t", "c").unwrap()), &expected, &context);
    }
}
