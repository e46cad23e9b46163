//! The cache on a bucket in memory: which requests readers cause, and what is left after a restart.

use std::collections::HashMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use object_store::memory::InMemory;
use parking_lot::Mutex;
use support::files_below;
use tempfile::TempDir;
use tierfs::format::snapshot::manifest::{FileKind, ManifestFile};
use tierfs::format::snapshot::piece_map::{PieceMap, PieceState};
use tierfs::remote::place::remote::Remote;
use tierfs::remote::read::cache::{Cache, Size};
use tierfs::remote::read::files::{Files, Source};
use tierfs::remote::read::published_collections::Published;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::pieces::layout::Layout;
use tierfs::store::{Access, SnapshotDisk, SnapshotFiles, Store};

use crate::faulty::{Call, Fault, Faulty};
use crate::push::{pushed, quiet, stored};
use crate::reading::files_of;

type Requests = Arc<Mutex<HashMap<String, u64>>>;

/// A bucket with the collection of `stored`, its files as the local store has them, and the requests for pieces.
pub fn bucket(
    fault: impl Fn(u64) -> Fault + Send + Sync + 'static,
) -> (Arc<Faulty>, HashMap<String, Vec<u8>>, Requests) {
    let (place, objects) = (stored(), Arc::new(InMemory::new()));
    pushed(&place, &quiet(&objects), 1).unwrap();
    let local = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Read, "").unwrap();
    let wanted = files_of(&local, "acme", "m");
    let requests = Requests::default();
    let noted = requests.clone();
    let bucket = Faulty::over(&objects, move |request| {
        if request.call != Call::Get || !request.key.contains("/piece/") {
            return Fault::None;
        }
        let mut noted = noted.lock();
        *noted.entry(request.key.to_owned()).or_default() += 1;
        fault(noted.values().sum())
    });
    (bucket, wanted, requests)
}

fn source(bucket: &Arc<Faulty>, directory: &Path, size: Size) -> Source {
    let remote = Remote::open(bucket.client()).unwrap();
    let cache = Cache::open(directory, size).unwrap();
    Source::new(remote, Some(cache), Box::new(|_, _| ())).on_demand()
}

pub fn opened(bucket: &Arc<Faulty>, directory: &Path, size: Size) -> Arc<Store> {
    let source = source(bucket, directory, size);
    let disk = SnapshotDisk::new(Arc::new(Published::new(source, HashMap::new())));
    Arc::new(Arc::new(disk).open_store().unwrap())
}

#[test]
fn many_readers_of_the_same_files_make_one_request_a_piece() {
    let (bucket, wanted, requests) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    let store = opened(&bucket, folder.path(), Size::Bytes(1 << 30));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert!(files_of(&store, "acme", "m") == wanted));
        }
    });
    let twice: Vec<String> =
        requests.lock().iter().filter(|(_, count)| **count > 1).map(|(key, _)| key.clone()).collect();
    assert!(twice.is_empty(), "requested more than once: {twice:?}");
}

#[test]
fn a_cache_that_was_closed_serves_all_bytes_without_a_request() {
    let (bucket, wanted, requests) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    assert!(files_of(&opened(&bucket, folder.path(), Size::Bytes(1 << 30)), "acme", "m") == wanted);
    requests.lock().clear();
    assert!(files_of(&opened(&bucket, folder.path(), Size::Bytes(1 << 30)), "acme", "m") == wanted);
    assert!(requests.lock().is_empty(), "{:?}", requests.lock());
}

#[test]
fn readers_get_the_right_bytes_while_every_third_request_fails() {
    for fault in [Fault::Fails, Fault::CutShort, Fault::Hangs, Fault::WrongByte] {
        let (bucket, wanted, _) = bucket(move |number| if number % 3 == 1 { fault } else { Fault::None });
        let folder = TempDir::new().unwrap();
        let store = opened(&bucket, folder.path(), Size::Bytes(1 << 30));
        assert!(files_of(&store, "acme", "m") == wanted, "{fault:?}");
    }
}

#[test]
fn a_cache_without_room_keeps_its_limit_and_reads_go_on() {
    let (bucket, wanted, _) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    let store = opened(&bucket, folder.path(), Size::Bytes(5 << 20));
    for _ in 0..2 {
        assert!(files_of(&store, "acme", "m") == wanted);
    }
    drop(store);
    let cache = Cache::open(folder.path(), Size::Bytes(5 << 20)).unwrap();
    assert!(cache.stored() <= 5 << 20, "{} bytes", cache.stored());
    cache.trim(0);
    assert_eq!(cache.list(), []);
}

#[test]
fn a_cache_is_saved_at_the_end_of_a_mount_though_something_keeps_it_open() {
    let (bucket, wanted, _) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    let store = opened(&bucket, folder.path(), Size::default());
    assert!(files_of(&store, "acme", "m") == wanted);
    // Durable pieces, of all maps.
    let durable = || {
        let maps = files_below(&folder.path().join("blob"));
        let maps = maps.iter().filter(|name| name.extension().is_some());
        let maps = maps.map(|name| std::fs::read(folder.path().join("blob").join(name)).unwrap());
        let states = maps.flat_map(|map| PieceMap::parse(&map).unwrap().states);
        states.filter(|state| *state == PieceState::Here).count()
    };
    assert_eq!(durable(), 0);
    store.save_cache();
    assert!(durable() > 0);
}

#[test]
fn files_that_a_killed_process_left_without_a_map_are_removed() {
    let folder = TempDir::new().unwrap();
    drop(Cache::open(folder.path(), Size::default()).unwrap());
    let left = folder.path().join("blob/00112233445566778899aabbccddeeff");
    std::fs::write(&left, vec![1; 9000]).unwrap();
    let cache = Cache::open(folder.path(), Size::default()).unwrap();
    assert!(!left.exists() && cache.stored() == 0);
}

#[test]
fn a_cache_of_the_former_format_loses_its_files_and_keeps_manifests_logs_and_files_of_others() {
    let (bucket, wanted, requests) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    assert!(files_of(&opened(&bucket, folder.path(), Size::default()), "acme", "m") == wanted);
    let names = |directory: &str| support::names(&folder.path().join(directory));
    let kept = [names("manifest"), names("log")];
    std::fs::write(folder.path().join("blob/note.map"), "mine").unwrap();
    std::fs::write(folder.path().join("cache.toml"), "format = 2\n").unwrap();
    let cache = Cache::open(folder.path(), Size::default()).unwrap();
    assert_eq!((names("blob"), [names("manifest"), names("log")]), (vec!["note.map".to_owned()], kept));
    drop(cache);
    assert_eq!(std::fs::read_to_string(folder.path().join("cache.toml")).unwrap(), "format = 3\n");
    requests.lock().clear();
    for is_cached in [false, true] {
        assert!(files_of(&opened(&bucket, folder.path(), Size::default()), "acme", "m") == wanted);
        assert_eq!(requests.lock().is_empty(), is_cached);
        requests.lock().clear();
    }
}

#[test]
fn a_file_whose_map_is_damaged_is_fetched_anew_beside_those_who_have_it_open() {
    let (bucket, wanted, _) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    assert_eq!(files_of(&opened(&bucket, folder.path(), Size::default()), "acme", "m"), wanted);
    let blobs = folder.path().join("blob");
    let paths = || std::fs::read_dir(&blobs).unwrap().map(|entry| entry.unwrap().path());
    let maps: Vec<_> = paths().filter(|path| path.extension().is_some()).collect();
    let held: Vec<_> = maps.iter().map(|map| std::fs::File::open(map.with_extension("")).unwrap()).collect();
    let before: Vec<_> = maps.iter().map(|map| std::fs::read(map.with_extension("")).unwrap()).collect();
    maps.iter().for_each(|map| std::fs::write(map, "no map").unwrap());
    assert_eq!(files_of(&opened(&bucket, folder.path(), Size::default()), "acme", "m"), wanted);
    for ((held, before), map) in held.iter().zip(before).zip(&maps) {
        let mut now = vec![0; before.len()];
        held.read_exact_at(&mut now, 0).unwrap();
        assert!(now == before, "{}", map.display());
        // ext4 writes back a file that was shortened to nothing whenever a reader closes it.
        let (old, new) = (held.metadata().unwrap(), std::fs::metadata(map.with_extension("")).unwrap());
        assert_ne!(old.ino(), new.ino());
    }
    assert!(!maps.is_empty());
}

#[test]
fn a_piece_without_room_is_requested_once_for_all_its_parts() {
    let (bucket, _, requests) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    let source = Arc::new(source(&bucket, folder.path(), Size::Bytes(1 << 20)));
    let found = source.remote().manifest("acme", "m", 1).unwrap().unwrap();
    let files = Files::new(&source, &found.manifest).unwrap();
    let largest = found.manifest.files.iter().map(|file| file.bytes).max().unwrap();
    let index = found.manifest.files.iter().position(|file| file.bytes == largest).unwrap();
    let mut part = vec![0; 128 << 10];
    for at in (0..largest - part.len() as u64).step_by(part.len()) {
        files.read_at(index, &mut part, at).unwrap();
    }
    let requests = requests.lock();
    assert!(!requests.is_empty() && requests.values().all(|count| *count == 1), "{requests:?}");
}

#[test]
fn pieces_come_from_a_mirror_and_from_the_remote_where_the_mirror_fails_or_lies() {
    let (place, objects) = (stored(), Arc::new(InMemory::new()));
    pushed(&place, &quiet(&objects), 1).unwrap();
    let local = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Read, "").unwrap();
    let wanted = files_of(&local, "acme", "m");
    // Requests for pieces, and for other objects.
    let counted = |fault: Fault| {
        let counts = Arc::new(Mutex::new((0, 0)));
        let counting = counts.clone();
        let bucket = Faulty::over(&objects, move |request| {
            let mut counts = counting.lock();
            if request.key.contains("/piece/") {
                counts.0 += 1;
                return fault;
            }
            counts.1 += 1;
            Fault::None
        });
        (bucket, counts)
    };
    let pieces = quiet(&objects).client().list("piece", None).unwrap().len();
    for (fault, asked) in
        [(Fault::None, pieces), (Fault::NotFound, pieces), (Fault::Denied, 1), (Fault::WrongByte, 1)]
    {
        let ((origin, at_origin), (mirror, at_mirror)) = (counted(Fault::None), counted(fault));
        let folder = TempDir::new().unwrap();
        let source = source(&origin, folder.path(), Size::default()).with_mirrors(vec![mirror.client()]);
        let disk = SnapshotDisk::new(Arc::new(Published::new(source, HashMap::new())));
        let store = Arc::new(Arc::new(disk).open_store().unwrap());
        assert!(files_of(&store, "acme", "m") == wanted, "{fault:?}");
        // Manifests and names come from the remote alone.
        assert_eq!(*at_mirror.lock(), (asked, 0), "{fault:?}");
        let expected = if fault == Fault::None { 0 } else { pieces };
        assert_eq!(at_origin.lock().0, expected, "{fault:?}");
    }
}

#[test]
fn bytes_that_the_kernel_has_open_are_not_replaced_by_wrong_ones() {
    let is_wrong = Arc::new(AtomicBool::new(false));
    let wrong = is_wrong.clone();
    let (bucket, ..) =
        bucket(move |_| if wrong.load(Ordering::SeqCst) { Fault::WrongByte } else { Fault::None });
    let folder = TempDir::new().unwrap();
    let source = Arc::new(source(&bucket, folder.path(), Size::Bytes(1 << 30)));
    let found = source.remote().manifest("acme", "m", 1).unwrap().unwrap();
    let files = Files::new(&source, &found.manifest).unwrap();
    let is_data = |file: &ManifestFile| file.kind == FileKind::Data && file.bytes > 8 << 20;
    let index = found.manifest.files.iter().position(is_data).unwrap();
    let mut right = vec![0; found.manifest.files[index].bytes as usize];
    files.read_at(index, &mut right, 0).unwrap();
    let kernel = std::fs::File::from(files.descriptor(index).unwrap().unwrap());
    is_wrong.store(true, Ordering::SeqCst);
    assert!(files.refetch(index, 0, right.len() as u64).unwrap());
    assert!(files.descriptor(index).unwrap().is_none());
    let mut found = vec![0; right.len()];
    assert!(files.read_at(index, &mut found, 0).is_err());
    kernel.read_exact_at(&mut found, 0).unwrap();
    assert!(found == right, "a reader of the descriptor got wrong bytes");
    is_wrong.store(false, Ordering::SeqCst);
    // The failure is the answer for two seconds.
    support::wait_until("the remote is asked again", || files.read_at(index, &mut found, 0).is_ok());
    assert!(found == right && files.descriptor(index).unwrap().is_some());
}

#[test]
fn a_cache_of_many_files_keeps_few_of_them_open() {
    let (bucket, ..) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    let manifest = Remote::open(bucket.client()).unwrap().manifest("acme", "m", 1).unwrap().unwrap().manifest;
    let cache = Cache::open(folder.path(), Size::default()).unwrap();
    for number in 0..1500 {
        let file =
            ManifestFile { kind: FileKind::Data, number, bytes: number, mtime: 0, extents: Vec::new() };
        cache.file(&Arc::new(Layout::of(&manifest, &file))).unwrap();
    }
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let below = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let open = below.filter(|path| path.starts_with(folder.path())).count();
    assert!(open < 1100, "{open} descriptors");
    assert_eq!(cache.list().len(), 1500);
}

#[test]
fn a_remote_that_does_not_answer_fails_a_file_once_and_soon_after_answers_again() {
    let hangs = Arc::new(AtomicBool::new(true));
    let hung = hangs.clone();
    let (bucket, ..) = bucket(move |_| if hung.load(Ordering::SeqCst) { Fault::Hangs } else { Fault::None });
    let folder = TempDir::new().unwrap();
    let remote = Remote::open(bucket.client()).unwrap();
    let cache = Cache::open(folder.path(), Size::Bytes(1 << 30)).unwrap();
    let source = Arc::new(Source::new(remote, Some(cache), Box::new(|_, _| ())));
    let found = source.remote().manifest("acme", "m", 1).unwrap().unwrap();
    let files = Files::new(&source, &found.manifest).unwrap();
    let is_data = |file: &ManifestFile| file.kind == FileKind::Data && file.bytes > 8 << 20;
    let index = found.manifest.files.iter().position(is_data).unwrap();
    let (begun, mut part) = (Instant::now(), vec![0; 128 << 10]);
    // A program's read, and what the kernel makes of it when it fails.
    let at = found.manifest.files[index].bytes / 2;
    assert!(files.read_at(index, &mut part, at).is_err());
    for from in [at, at + 4096] {
        assert!(files.read_at(index, &mut part[..4096], from).is_err());
    }
    // One deadline is 1.5 s, and its last request may take 0.2 s.
    assert!(begun.elapsed() < Duration::from_millis(2900), "{:?}", begun.elapsed());
    hangs.store(false, Ordering::SeqCst);
    support::wait_until("the file is read again", || files.read_at(index, &mut part, at).is_ok());
}
