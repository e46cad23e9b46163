//! Weights that change a little from push to push: they are sent as differences from a keyframe, and readers get the
//! bytes of every snapshot.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;
use parking_lot::Mutex;
use support::{Place, Random, answer, safetensors_file, tierfs};
use tempfile::TempDir;
use tierfs::format::snapshot::manifest::{Manifest, OwnerAndMode, Piece, PieceEncoding};
use tierfs::model::{CollectionName, OwnedCollectionName, Owner, Silent};
use tierfs::remote::clone::{ClonePieces, ClonedFrom, clone};
use tierfs::remote::place::at::At;
use tierfs::remote::place::garbage::{Keep, collect};
use tierfs::remote::place::remote::Remote;
use tierfs::remote::push::outcome::Pushed;
use tierfs::remote::push::parameters::{DifferenceLimits, Keyframes, Parameters};
use tierfs::remote::push::publish::push;
use tierfs::remote::read::cache::{Cache, Size};
use tierfs::remote::read::files::Source;
use tierfs::remote::read::published_collections::Published;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Look, SnapshotDisk, Store};

use crate::faulty::{Call, Clock, Fault, Faulty};
use crate::push::{keys, quiet, remote, request, seen};
use crate::reading::files_of;
use crate::rounds::first_bytes;

const MIB: usize = 1 << 20;
const FILE: &str = "model.safetensors";

/// Weights of three tensors in BF16, of which the first and the last have this many elements.
struct Weights {
    random: Random,
    counts: [usize; 3],
    bytes: Vec<u8>,
}

impl Weights {
    fn new(elements: usize) -> Weights {
        let mut random = Random(77);
        let counts = [elements, 1000, elements];
        let floats = random.floats(counts.iter().sum());
        let bytes = floats.chunks_exact(4).flat_map(|float| [float[2], float[3]]).collect();
        Weights { random, counts, bytes }
    }

    /// Moves one of this many elements to the next float up or down.
    fn step(&mut self, one_of: usize) {
        for element in self.bytes.chunks_exact_mut(2) {
            let random = self.random.next();
            if random.is_multiple_of(one_of as u64) {
                let moved = u16::from_le_bytes([element[0], element[1]]);
                let moved = if random >> 63 == 0 { moved.wrapping_add(1) } else { moved.wrapping_sub(1) };
                element.copy_from_slice(&moved.to_le_bytes());
            }
        }
    }

    /// A file with this text in its header.
    fn file(&self, text: &str) -> Vec<u8> {
        let mut header = serde_json::json!({ "__metadata__": { "step": text } });
        let mut at = 0;
        for (name, count) in ["embed", "norm", "head"].iter().zip(self.counts) {
            let end = at + 2 * count;
            header[name] =
                serde_json::json!({ "dtype": "BF16", "shape": [count], "data_offsets": [at, end] });
            at = end;
        }
        safetensors_file(&header.to_string(), &self.bytes)
    }
}

/// A store whose collection `acme/m` is imported again and again, and pushed to a bucket.
struct Trained {
    place: Place,
    objects: Arc<InMemory>,
    weights: Weights,
    pushes: u128,
}

impl Trained {
    fn new(elements: usize) -> Trained {
        let place = Place::new();
        support::run([Path::new("init"), &place.store()]).ok();
        place.write("in/config.json", b"{}");
        Trained { place, objects: Arc::new(InMemory::new()), weights: Weights::new(elements), pushes: 0 }
    }

    /// Imports the weights. Returns the file.
    fn import(&self, text: &str) -> Vec<u8> {
        let file = self.weights.file(text);
        self.place.write(&format!("in/{FILE}"), &file);
        self.place.import("acme/m", &[&self.place.path("in")], &[]);
        file
    }

    fn push_as(&mut self, bucket: &Arc<Faulty>, parameters: Parameters) -> tierfs::model::Result<Pushed> {
        self.pushes += 1;
        let parameters = Parameters { push: self.pushes, ..parameters };
        let store = Store::open(Arc::new(FileDisk::new(&self.place.store())), Access::Write, "test")?;
        push(&remote(bucket)?, &store.collection("acme", "m")?, &parameters, &Silent)
    }

    fn push(&mut self) -> Pushed {
        self.push_as(&quiet(&self.objects), request(0)).unwrap()
    }

    fn newest(&self) -> Arc<Manifest> {
        let remote = Remote::open(quiet(&self.objects).client()).unwrap();
        remote.newest_manifest("acme", "m").unwrap().0.unwrap().manifest
    }

    /// Numbers of pieces that are differences, and of pieces in all.
    fn differences(&self) -> (usize, usize) {
        let manifest = self.newest();
        let is_difference = |piece: &&Piece| piece.encoding == PieceEncoding::Difference;
        (manifest.pieces.iter().filter(is_difference).count(), manifest.pieces.len())
    }
}

/// The file of a snapshot, through a cache if there is one.
fn read_at(bucket: &Arc<Faulty>, cache: Option<&Path>, number: u64) -> Vec<u8> {
    read_of(bucket, cache, "m", number)
}

/// The same of a collection of the tenant.
fn read_of(bucket: &Arc<Faulty>, cache: Option<&Path>, collection: &str, number: u64) -> Vec<u8> {
    let store = mounted_at(bucket, cache, collection, number);
    files_of(&store, "acme", collection).remove(FILE).unwrap()
}

/// A store that shows this snapshot.
fn mounted_at(bucket: &Arc<Faulty>, cache: Option<&Path>, collection: &str, number: u64) -> Arc<Store> {
    let remote = Remote::open(bucket.client()).unwrap();
    let cache = cache.map(|folder| Cache::open(folder, Size::Bytes(1 << 32)).unwrap());
    let source = Source::new(remote, cache, Box::new(|path, text| panic!("{path}: {text}"))).on_demand();
    let name = OwnedCollectionName::new("acme", collection);
    let wanted = HashMap::from([(name, At::Number(number))]);
    let disk = SnapshotDisk::new(Arc::new(Published::new(source, wanted)));
    Arc::new(Arc::new(disk).open_store().unwrap())
}

/// A bucket that adds up the bytes of the pieces that are read.
fn counting(objects: &Arc<InMemory>) -> (Arc<Faulty>, Arc<Mutex<Vec<String>>>) {
    let read = Arc::new(Mutex::new(Vec::new()));
    let noted = read.clone();
    let bucket = Faulty::over(objects, move |request| {
        if request.call == Call::Get && request.key.contains("/piece/") {
            noted.lock().push(request.key.to_owned());
        }
        Fault::None
    });
    (bucket, read)
}

/// A push with other limits.
fn limited(limits: DifferenceLimits) -> Parameters {
    Parameters { keyframes: Keyframes { limits, ..Keyframes::default() }, ..request(0) }
}

#[test]
fn a_push_of_weights_that_moved_a_little_sends_little_and_every_snapshot_reads_as_it_was() {
    let mut trained = Trained::new(11_340_000);
    let bytes = trained.import("0").len() as u64;
    assert!(bytes > 45_000_000);
    let mut files = vec![trained.weights.file("0")];
    let first = trained.push();
    assert!(first.bytes_sent >= bytes);
    for (one_of, text, most) in
        [(10_000, "1", bytes / 1000), (100, "a longer text", bytes / 50), (10_000, "3", bytes / 50)]
    {
        trained.weights.step(one_of);
        files.push(trained.import(text));
        let pushed = trained.push();
        println!(
            "1 of {one_of} elements: {} of {bytes} bytes, {:.4} %",
            pushed.bytes_sent,
            100.0 * pushed.bytes_sent as f64 / bytes as f64
        );
        assert!(pushed.bytes_sent <= most, "{} bytes for 1 of {one_of} elements", pushed.bytes_sent);
    }
    for (number, file) in (1..).zip(&files) {
        assert!(read_at(&quiet(&trained.objects), None, number) == *file, "snapshot {number}");
    }
}

#[test]
fn a_reader_with_the_keyframe_fetches_the_differences_alone_and_another_one_both() {
    let mut trained = Trained::new(4 * MIB);
    let first = trained.import("0");
    let base = trained.push();
    trained.weights.step(100);
    let second = trained.import("1");
    let step = trained.push();
    trained.weights.step(100);
    let third = trained.import("2");
    trained.push();
    let (with, without) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (bucket, read) = counting(&trained.objects);
    assert!(read_at(&bucket, Some(with.path()), 1) == first);
    let whole: Vec<String> = std::mem::take(&mut *read.lock());
    // The cache was closed meanwhile.
    let before = bucket.received();
    assert!(read_at(&bucket, Some(with.path()), 2) == second);
    let (received, keys) = (bucket.received() - before, std::mem::take(&mut *read.lock()));
    assert!(!keys.iter().any(|key| whole.contains(key)), "{keys:?}");
    assert!(received < step.bytes_sent + 64_000, "{received} bytes for {}", step.bytes_sent);
    let before = bucket.received();
    assert!(read_at(&bucket, Some(without.path()), 2) == second);
    let received = bucket.received() - before;
    assert!((base.bytes_sent..base.bytes_sent + step.bytes_sent + 64_000).contains(&received), "{received}");
    read.lock().clear();
    // It has kept the keyframe, of which it has read no file.
    assert!(read_at(&bucket, Some(without.path()), 3) == third);
    assert!(!read.lock().iter().any(|key| whole.contains(key)), "{:?}", read.lock());
    let cache = Cache::open(without.path(), Size::Bytes(1 << 32)).unwrap();
    assert!(cache.verify().unwrap().iter().all(|verified| verified.removed.is_none()));
}

#[test]
fn a_keyframe_in_one_idle_file_is_found_although_others_lack_it() {
    let mut trained = Trained::new(2 * MIB);
    trained.import("0");
    trained.push();
    let begin = trained.weights.bytes.len() - 4 * MIB;
    // The first tensor stays as it is.
    for seed in 0..4 {
        let noise = Random(seed).bytes(4 * MIB);
        trained.weights.bytes[begin..].copy_from_slice(&noise);
        trained.import("0");
        trained.push();
    }
    trained.weights.step(100);
    let file = trained.import("1");
    trained.push();
    let folder = TempDir::new().unwrap();
    let (bucket, read) = counting(&trained.objects);
    read_at(&bucket, Some(folder.path()), 1);
    let whole: Vec<String> = std::mem::take(&mut *read.lock());
    // Of each of these the last tensor, the keyframe of which is the last one.
    for number in 2..6 {
        let store = mounted_at(&bucket, Some(folder.path()), "m", number);
        let end = (file.len() - 100) as u64..file.len() as u64;
        first_bytes(&store, CollectionName::new("acme", "m"), FILE, end);
    }
    read.lock().clear();
    assert!(read_at(&bucket, Some(folder.path()), 6) == file);
    assert!(!read.lock().iter().any(|key| whole.contains(key)), "{:?}", read.lock());
}

#[test]
fn a_reader_whose_cache_has_no_room_gets_the_bytes() {
    let mut trained = Trained::new(3 * MIB);
    trained.import("0");
    trained.push();
    trained.weights.step(100);
    let file = trained.import("1");
    trained.push();
    let folder = TempDir::new().unwrap();
    let remote = Remote::open(quiet(&trained.objects).client()).unwrap();
    let cache = Cache::open(folder.path(), Size::Bytes(1 << 20)).unwrap();
    let source = Source::new(remote, Some(cache), Box::new(|_, _| ()));
    let disk = SnapshotDisk::new(Arc::new(Published::new(source, HashMap::new())));
    let store = Arc::new(Arc::new(disk).open_store().unwrap());
    assert!(files_of(&store, "acme", "m")[FILE] == file);
}

#[test]
fn a_keyframe_serves_a_number_of_pushes_and_a_tensor_that_changed_much_is_one_itself() {
    let mut trained = Trained::new(2 * MIB);
    trained.import("0");
    trained.push();
    let pushed = |trained: &mut Trained, text: &str, pushes_max| {
        let limits = DifferenceLimits { pushes_max, percent_max: 25 };
        let file = trained.import(text);
        let parameters = limited(limits);
        let done = trained.push_as(&quiet(&trained.objects), parameters).unwrap();
        assert!(seen(&trained.objects).unwrap().1[FILE] == file, "{text}");
        (done.bytes_sent > MIB as u64, trained.differences().0 > 0)
    };
    for (step, wanted) in [(1, (false, true)), (2, (false, true)), (3, (true, false)), (4, (false, true))] {
        trained.weights.step(100);
        assert_eq!(pushed(&mut trained, &step.to_string(), 2), wanted, "step {step}");
    }
    // Every element of the last tensor changes, and the others a little.
    trained.weights.step(100);
    let begin = trained.weights.bytes.len() - 4 * MIB;
    let noise = Random(5).bytes(4 * MIB);
    trained.weights.bytes[begin..].copy_from_slice(&noise);
    assert_eq!(pushed(&mut trained, "5", 16), (true, true));
    let (before, _) = trained.differences();
    trained.weights.step(100);
    assert_eq!(pushed(&mut trained, "6", 16), (false, true));
    assert!(trained.differences().0 > before, "the tensor is a keyframe now");
    // Nothing is a difference if the user says so.
    trained.weights.step(100);
    trained.import("7");
    let none = DifferenceLimits { pushes_max: 0, percent_max: 25 };
    trained.push_as(&quiet(&trained.objects), limited(none)).unwrap();
    assert_eq!(trained.differences().0, 0);
}

#[test]
fn an_unchanged_tensor_is_not_sent_again_when_its_keyframe_is_old() {
    let mut trained = Trained::new(2 * MIB);
    trained.import("0");
    trained.push();
    trained.weights.step(100);
    trained.import("1");
    trained.push();
    for step in 0..3 {
        trained.place.write("in/config.json", format!("{{\"step\": {step}}}"));
        trained.import("1");
        let limits = DifferenceLimits { pushes_max: 1, percent_max: 25 };
        let (parameters, bucket) = (limited(limits), quiet(&trained.objects));
        let pushed = trained.push_as(&bucket, parameters).unwrap();
        assert!(!pushed.is_unchanged && pushed.bytes_sent < 20_000 && pushed.differences > 0, "{pushed:?}");
        assert!(bucket.received() < 50_000, "{} bytes, so keyframes were read", bucket.received());
    }
}

#[test]
fn a_push_names_the_differences_of_another_collection_that_has_more_snapshots() {
    let mut trained = Trained::new(2 * MIB);
    trained.import("0");
    trained.push();
    let other = || Parameters {
        collection: "other".to_owned(),
        dedup_with: vec![OwnedCollectionName::new("acme", "m")],
        ..request(0)
    };
    let bucket = quiet(&trained.objects);
    trained.push_as(&bucket, other()).unwrap();
    for step in 0..3 {
        trained.place.write("in/config.json", format!("{{\"step\": {step}}}"));
        trained.import("0");
        trained.push();
    }
    trained.weights.step(100);
    let file = trained.import("1");
    trained.push();
    let since: Vec<u64> = trained.newest().differences.iter().map(|difference| difference.since).collect();
    assert!(since.contains(&4), "{since:?}");
    let pushed = trained.push_as(&bucket, other()).unwrap();
    assert!(pushed.number == 2 && pushed.differences > 0 && pushed.bytes_sent < 20_000, "{pushed:?}");
    assert!(read_of(&bucket, None, "other", 2) == file);
}

#[test]
fn types_without_small_differences_and_files_in_slots_are_pushed_as_differences_too() {
    let place = Place::new();
    support::run([Path::new("init"), &place.store()]).ok();
    let random = &mut Random(3);
    let (mut ids, mut plain) = (random.bytes(5 * MIB), random.bytes(6 * MIB));
    let ids_file = |ids: &[u8]| {
        let header = serde_json::json!({ "ids": { "dtype": "I64", "shape": [ids.len() / 8], "data_offsets": [0, ids.len()] } });
        safetensors_file(&header.to_string(), ids)
    };
    // Small files lie in slots of a tier file, one after the other.
    let mut small: Vec<Vec<u8>> = (0..400).map(|_| random.bytes(12_000)).collect();
    let objects = Arc::new(InMemory::new());
    let mut number = 0;
    let mut pushed = |ids: &[u8], plain: &[u8], small: &[Vec<u8>]| {
        place.write("in/ids.safetensors", ids_file(ids));
        place.write("in/plain.bin", plain);
        for (place_of, bytes) in small.iter().enumerate() {
            place.write(&format!("in/small/{place_of}"), bytes);
        }
        place.import("acme/m", &[&place.path("in")], &[]);
        number += 1;
        let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test").unwrap();
        let collection = store.collection("acme", "m").unwrap();
        push(&remote(&quiet(&objects)).unwrap(), &collection, &request(number), &Silent).unwrap()
    };
    pushed(&ids, &plain, &small);
    for at in (0..5 * MIB).step_by(40_000) {
        ids[at] ^= 1;
        plain[at] ^= 0x80;
    }
    small.iter_mut().step_by(7).for_each(|bytes| bytes[500] ^= 1);
    let second = pushed(&ids, &plain, &small);
    println!("{second:?}");
    assert!(second.bytes_sent < 200_000, "{second:?}");
    let newest = Remote::open(quiet(&objects).client()).unwrap().newest_manifest("acme", "m").unwrap().0;
    let stretches = newest.unwrap().manifest.differences.iter().map(|it| it.stretches.len()).max();
    assert!(stretches < Some(20), "{stretches:?}: the zeros between slots lie in the keyframe too");
    let found = seen(&objects).unwrap().1;
    assert!(found["ids.safetensors"] == ids_file(&ids) && found["plain.bin"] == plain);
    assert!((0..400).all(|place| found[&format!("small/{place}")] == small[place]));
}

#[test]
fn a_push_of_differences_killed_at_any_request_leaves_a_whole_snapshot() {
    let mut trained = Trained::new(MIB);
    trained.import("0");
    trained.push();
    let first = seen(&trained.objects).unwrap();
    trained.weights.step(50);
    trained.import("1");
    let reference = trained.objects.clone();
    let bucket = quiet(&Arc::new(reference.fork()));
    trained.push_as(&bucket, request(0)).unwrap();
    let (requests, second, all) = (bucket.requests(), seen(&bucket.objects).unwrap(), keys(&bucket.objects));
    assert_eq!((first.0, second.0), (1, 2));
    for killed_at in 0..requests {
        for fault in [Fault::Hangs, Fault::AnswerLost] {
            let objects = Arc::new(reference.fork());
            let dying = Faulty::over(&objects, move |request| match request.number {
                number if number == killed_at => fault,
                number if number > killed_at => Fault::Denied,
                _ => Fault::None,
            });
            drop(trained.push_as(&dying, request(0)));
            let after = seen(&objects).unwrap();
            assert!(after == first || after == second, "killed at request {killed_at} ({fault:?})");
            // A request that fails and a keyframe that cannot be read make the push send more, and never less.
            trained.push_as(&quiet(&objects), request(0)).unwrap();
            assert!(seen(&objects).unwrap() == second, "killed at request {killed_at} ({fault:?})");
            let now = keys(&objects);
            assert!(all.iter().all(|key| now.contains(key)), "killed at request {killed_at} ({fault:?})");
        }
    }
}

#[test]
fn garbage_is_collected_without_the_keyframe_that_differences_need() {
    const DAY: u64 = 24 * 3600;
    let mut trained = Trained::new(MIB);
    let clock = Arc::new(Clock::default());
    clock.advance(1_900_000_000);
    let bucket = Faulty::at(&trained.objects, Some(&clock), |_| Fault::None);
    trained.import("0");
    trained.push_as(&bucket, request(0)).unwrap();
    let mut file = Vec::new();
    for step in 1..4 {
        trained.weights.step(100);
        file = trained.import(&step.to_string());
        trained.push_as(&bucket, request(0)).unwrap();
    }
    let keep = Keep { last: 1, younger: Duration::ZERO, grace: Duration::from_secs(DAY) };
    let before = keys(&trained.objects).len();
    for _ in 0..3 {
        clock.advance(2 * DAY);
        collect(&Remote::open(bucket.client()).unwrap(), &keep, false).unwrap();
    }
    let remote = Remote::open(bucket.client()).unwrap();
    assert_eq!(remote.numbers("acme", "m").unwrap(), [4]);
    assert!(keys(&trained.objects).len() < before);
    assert!(seen(&trained.objects).unwrap().1[FILE] == file);
    // The next push finds the keyframe without its snapshot.
    trained.weights.step(100);
    let file = trained.import("4");
    let pushed = trained.push_as(&bucket, request(0)).unwrap();
    assert!(pushed.bytes_sent < 200_000, "{pushed:?}");
    assert!(seen(&trained.objects).unwrap().1[FILE] == file);
}

#[test]
fn a_keyframe_with_other_bytes_is_an_error_and_never_other_bytes() {
    let mut trained = Trained::new(MIB);
    trained.import("0");
    trained.push();
    let whole = keys(&trained.objects);
    trained.weights.step(100);
    let file = trained.import("1");
    trained.push();
    let wrong = Faulty::over(&trained.objects, move |request| {
        let is_base =
            request.call == Call::Get && whole.iter().any(|key| request.key.ends_with(key.as_str()));
        if is_base { Fault::WrongByte } else { Fault::None }
    });
    let remote = Remote::open(wrong.client()).unwrap();
    let disk = SnapshotDisk::new(Arc::new(Published::new(
        Source::new(remote, None, Box::new(|_, _| ())),
        HashMap::new(),
    )));
    let store = Arc::new(Arc::new(disk).open_store().unwrap());
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| files_of(&store, "acme", "m")));
    assert!(failed.is_err());
    assert!(seen(&trained.objects).unwrap().1[FILE] == file);
}

#[test]
fn a_push_whose_keyframe_is_gone_or_wrong_sends_all() {
    for fault in [Fault::NotFound, Fault::WrongByte] {
        let mut trained = Trained::new(MIB);
        trained.import("0");
        trained.push();
        let whole = keys(&trained.objects);
        trained.weights.step(100);
        let file = trained.import("1");
        let faulty = Faulty::over(&trained.objects, move |request| {
            let is_base =
                request.call == Call::Get && whole.iter().any(|key| request.key.ends_with(key.as_str()));
            if is_base { fault } else { Fault::None }
        });
        let pushed = trained.push_as(&faulty, request(0)).unwrap();
        assert!(pushed.bytes_sent > MIB as u64, "{pushed:?}");
        assert!(seen(&trained.objects).unwrap().1[FILE] == file, "{fault:?}");
        assert_eq!(fs::read(trained.place.path("in").join(FILE)).unwrap(), file);
    }
}

#[test]
fn a_clone_of_differences_reads_them_and_a_push_from_it_names_them_again() {
    let mut trained = Trained::new(2 * MIB);
    trained.import("0");
    trained.push();
    let mut files = Vec::new();
    for step in 1..3 {
        trained.weights.step(100);
        files.push(trained.import(&step.to_string()));
        trained.push();
    }
    let folder = TempDir::new().unwrap();
    support::run([Path::new("init"), folder.path()]).ok();
    let store = Store::open(Arc::new(FileDisk::new(folder.path())), Access::Write, "test").unwrap();
    let bucket = quiet(&trained.objects);
    let opened = bucket.clone();
    let pieces = ClonePieces::over(
        Box::new(move |_| Ok(opened.client())),
        Box::new(|path, text| panic!("{path}: {text}")),
    );
    store.set_piece_source(Arc::new(pieces));
    let (store, remote) = (Arc::new(store), Remote::open(bucket.client()).unwrap());
    for (name, number) in [("old", 2), ("m", 3)] {
        let from = ClonedFrom {
            remote: &remote,
            url: "memory://models",
            collection: CollectionName::new("acme", "m"),
            at: &At::Number(number),
            trust: None,
            mark: None,
        };
        clone(&store, from, CollectionName::new("acme", name), Owner::default()).unwrap();
    }
    // The clone's push names the pieces that were never read, with their keyframe.
    let collection = store.collection("acme", "m").unwrap();
    let described = Parameters { tenant_owner: OwnerAndMode { uid: 1, gid: 1, mode: 0o755 }, ..request(70) };
    let pushed = push(&remote, &collection, &described, &Silent).unwrap();
    assert_eq!((pushed.number, pushed.bytes_sent), (4, 0));
    assert!(files_of(&store, "acme", "m")[FILE] == files[1]);
    assert!(files_of(&store, "acme", "old")[FILE] == files[0]);
    assert!(read_at(&bucket, None, 4) == files[1]);
    assert_eq!(trained.differences().0, pushed.differences);
    // Under another name, whose first snapshot has a lower number than those of its keyframes.
    let renamed = Parameters { collection: "renamed".to_owned(), ..request(72) };
    let pushed = push(&remote, &store.collection("acme", "old").unwrap(), &renamed, &Silent).unwrap();
    assert_eq!((pushed.number, pushed.pieces_sent), (1, 0));
    assert!(pushed.differences > 0 && read_of(&bucket, None, "renamed", 1) == files[0]);
    // Bytes that the clone changes are again a difference.
    let node = {
        let state = collection.state();
        let mut nodes = state.nodes().filter(|node| node.file().is_some());
        nodes.find(|node| state.path(node.entry.id) == FILE.as_bytes()).unwrap().entry.id
    };
    let mut wanted = files[1].clone();
    for at in (100_000..wanted.len() as u64).step_by(100_000) {
        let byte = [wanted[at as usize] ^ 1];
        crate::clones::write(&collection, node, at, &byte).unwrap();
        wanted[at as usize] = byte[0];
    }
    let pushed = push(&remote, &collection, &request(71), &Silent).unwrap();
    assert!(pushed.bytes_sent < 200_000, "{pushed:?}");
    assert!(read_at(&bucket, None, 5) == wanted);
}

/// Runs the program on a remote that is a directory.
#[test]
fn commands_push_and_mount_differences_also_of_bytes_written_in_place() {
    let place = Place::new();
    support::run([Path::new("init"), &place.store()]).ok();
    fs::create_dir(place.path("bucket")).unwrap();
    let url = format!("file://{}", place.path("bucket").display());
    let mut weights = Weights::new(3 * MIB);
    place.write(&format!("in/{FILE}"), weights.file("0"));
    place.import("acme/m", &[&place.path("in")], &[]);
    let push = |options: &[&str]| -> serde_json::Value {
        let mut command = tierfs();
        command.arg("push").arg(place.store()).args(["acme/m", &url, "--json"]).args(options);
        serde_json::from_str(&answer(&mut command).ok()).unwrap()
    };
    let whole = push(&["--create"])["bytes_sent"].as_u64().unwrap();
    let mut files = vec![weights.file("0")];
    // In place, through the mount: changed blocks lie in slots until a compaction.
    let mounted = place.mount(&[]);
    weights.step(1000);
    files.push(weights.file("0"));
    {
        let file = fs::OpenOptions::new().write(true).open(mounted.path("acme/m").join(FILE)).unwrap();
        for (place_of, (old, new)) in files[0].chunks(4096).zip(files[1].chunks(4096)).enumerate() {
            if old != new {
                file.write_all_at(new, 4096 * place_of as u64).unwrap();
            }
        }
        file.sync_all().unwrap();
    }
    mounted.unmount();
    let second = push(&[]);
    println!("written in place: {second}");
    assert!(second["bytes_sent"].as_u64().unwrap() * 20 < whole, "{second}");
    // A copy over the file.
    let mounted = place.mount(&[]);
    weights.step(1000);
    files.push(weights.file("another header"));
    fs::write(mounted.path("acme/m").join(FILE), &files[2]).unwrap();
    let third = push(&["--keyframe-after", "5", "--difference-max", "20"]);
    mounted.unmount();
    assert!(third["bytes_sent"].as_u64().unwrap() * 20 < whole, "{third}");
    let keyframes = place.path("keyframes");
    let held = Cache::open(&keyframes, Size::Bytes(1 << 30)).unwrap();
    let options = ["--keyframe-after", "0", "--message", "the same", "--cache"];
    let all = push(&[&options[..], &[keyframes.to_str().unwrap()]].concat());
    drop(held);
    assert_eq!(all["unchanged"], true);
    let cache = place.path("cache");
    for (number, file) in (1..).zip(&files) {
        let at = format!("acme/m={number}");
        let options = ["--cache", cache.to_str().unwrap(), "--at", &at];
        let mounted = place.mount_store_by(&mut tierfs(), PathBuf::from(&url), "remote", &options);
        let found = fs::read(mounted.path("acme/m").join(FILE)).unwrap();
        support::assert_same(&found, file, &at);
        mounted.unmount();
    }
    answer(tierfs().arg("fsck").arg(&url)).ok();
    answer(tierfs().arg("cache").arg(&cache).arg("--verify")).ok();
    let exported = place.path("exported");
    answer(tierfs().arg("export").arg(&url).arg("acme/m").arg(&exported)).ok();
    support::assert_same(&fs::read(exported.join(FILE)).unwrap(), &files[2], "exported");
}

#[test]
fn a_mount_that_shows_the_next_snapshot_fetches_no_piece_again_that_did_not_change() {
    let mut trained = Trained::new(3 * MIB);
    trained.import("0");
    trained.push();
    let folder = TempDir::new().unwrap();
    let (bucket, read) = counting(&trained.objects);
    let cache = Cache::open(folder.path(), Size::Bytes(1 << 32)).unwrap();
    let source =
        Source::new(Remote::open(bucket.client()).unwrap(), Some(cache), Box::new(|_, _| ())).on_demand();
    let disk = SnapshotDisk::new(Arc::new(Published::new(source, HashMap::new())));
    let store = Arc::new(Arc::new(disk).open_store().unwrap());
    drop(files_of(&store, "acme", "m"));
    // The last tensor becomes another one.
    let begin = trained.weights.bytes.len() - 6 * MIB;
    let noise = Random(9).bytes(6 * MIB);
    trained.weights.bytes[begin..].copy_from_slice(&noise);
    let file = trained.import("0");
    trained.push();
    read.lock().clear();
    assert_eq!(store.refresh(Look::All).unwrap().paths, ["acme/m"]);
    let before = bucket.received();
    assert!(files_of(&store, "acme", "m")[FILE] == file);
    let received = bucket.received() - before;
    assert!((6 * MIB as u64..7 * MIB as u64).contains(&received), "{received} bytes, {:?}", read.lock());
}

#[test]
fn a_push_that_keeps_keyframes_reads_none_of_them_from_the_remote() {
    let mut trained = Trained::new(2 * MIB);
    let folder = TempDir::new().unwrap();
    for step in 0..3 {
        trained.weights.step(100);
        let file = trained.import(&step.to_string());
        let (bucket, read) = counting(&trained.objects);
        let cache = Some(Arc::new(Cache::open(folder.path(), Size::Bytes(1 << 30)).unwrap()));
        let pushed = trained
            .push_as(
                &bucket,
                Parameters { keyframes: Keyframes { cache, ..Keyframes::default() }, ..request(0) },
            )
            .unwrap();
        assert_eq!(pushed.bytes_sent < 300_000, step > 0, "{pushed:?}");
        let of_weights = trained.newest().pieces.iter().filter(|piece| piece.raw > MIB as u32).count();
        // The log of the newest snapshot is read.
        assert!(
            of_weights >= 2 && bucket.received() < 200_000,
            "{} bytes, {:?}",
            bucket.received(),
            read.lock()
        );
        assert!(seen(&trained.objects).unwrap().1[FILE] == file);
    }
}
