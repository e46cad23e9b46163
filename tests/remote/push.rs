//! Pushes to a bucket whose requests fail: readers see a snapshot whole, and nothing is stored twice.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use object_store::memory::InMemory;
use support::{Place, Random, container_of};
use tierfs::format::snapshot::manifest::OwnerAndMode;
use tierfs::model::{ErrorKind, Result, Silent, StoreId};
use tierfs::remote::place::remote::Remote;
use tierfs::remote::push::outcome::Pushed;
use tierfs::remote::push::parameters::{Caption, Keyframes, May, Parameters, Variants};
use tierfs::remote::push::publish::push;
use tierfs::remote::read::files::Source;
use tierfs::remote::read::published_collections::Published;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, SnapshotDisk, Store};

use crate::faulty::{Call, Fault, Faulty};

const CREATED: u64 = 1_800_000_000_000_000_000;

/// A store with the collection `acme/m`, which has a container of 12 MiB, a small file and an encoded one.
pub fn stored() -> Place {
    let place = Place::new();
    let random = &mut Random(15);
    let large = container_of(random, &[("a", 3 << 18), ("b", 9 << 18)]);
    place.write("in/large.safetensors", large);
    place.write("in/config.json", b"{\"model_type\": \"small\"}");
    let encoded = container_of(random, &[("w", 1 << 18)]);
    place.write("q8.safetensors", encoded);
    support::run([Path::new("init"), &place.store()]).ok();
    place.import("acme/m", &[&place.path("in")], &[]);
    place.import("acme/m", &[&place.path("q8.safetensors")], &["--tier", "q8:all"]);
    place
}

pub fn request(push: u128) -> Parameters {
    Parameters {
        tenant: "acme".to_owned(),
        collection: "m".to_owned(),
        tenant_owner: OwnerAndMode { uid: 0, gid: 0, mode: 0o755 },
        caption: Caption::default(),
        jobs: 1,
        push,
        created_at: CREATED,
        may: May::default(),
        dedup_with: Vec::new(),
        variants: Variants::These(Vec::new()),
        keyframes: Keyframes::default(),
        signer: None,
    }
}

pub fn remote(bucket: &Arc<Faulty>) -> Result<Remote> {
    Remote::open_or_create(bucket.client(), StoreId(99), 1)
}

pub fn pushed(place: &Place, bucket: &Arc<Faulty>, number: u128) -> Result<Pushed> {
    pushed_as(place, bucket, &request(number))
}

fn pushed_as(place: &Place, bucket: &Arc<Faulty>, request: &Parameters) -> Result<Pushed> {
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test")?;
    push(&remote(bucket)?, &store.collection("acme", "m")?, request, &Silent)
}

pub fn quiet(objects: &Arc<InMemory>) -> Arc<Faulty> {
    Faulty::over(objects, |_| Fault::None)
}

/// The newest snapshot's number and its files, as a fresh reader sees them; `None` if there is no snapshot.
pub fn seen(objects: &Arc<InMemory>) -> Option<(u64, HashMap<String, Vec<u8>>)> {
    let remote = Remote::open(quiet(objects).client()).ok()?;
    let number = remote.newest("acme", "m").unwrap()?;
    let source = Source::new(remote, None, Box::new(|path, text| panic!("{path}: {text}")));
    let disk = SnapshotDisk::new(Arc::new(Published::new(source, HashMap::new())));
    let store = Arc::new(Arc::new(disk).open_store().unwrap());
    Some((number, crate::reading::files_of(&store, "acme", "m")))
}

pub fn keys(objects: &Arc<InMemory>) -> Vec<String> {
    let listed = quiet(objects).client().list("piece", None).unwrap();
    listed.into_iter().map(|object| object.key).collect()
}

#[test]
fn a_pushed_collection_reads_as_the_local_one_and_a_second_push_sends_nothing() {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    let first = pushed(&place, &quiet(&objects), 1).unwrap();
    assert_eq!((first.number, first.is_unchanged, first.pieces_sent), (1, false, first.pieces));
    let local = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Read, "").unwrap();
    let wanted = crate::reading::files_of(&Arc::new(local), "acme", "m");
    assert_eq!(wanted["large.safetensors"], fs::read(place.path("in/large.safetensors")).unwrap());
    let (number, found) = seen(&objects).unwrap();
    assert_eq!(number, 1);
    assert!(found == wanted, "{:?} differ", found.keys());
    let again = pushed(&place, &quiet(&objects), 2).unwrap();
    assert_eq!((again.number, again.is_unchanged, again.bytes_sent), (1, true, 0));
}

/// Overwrites all payloads of the store, which its log does not know.
fn damage(place: &Place) {
    let folder = place.store().join("acme/m");
    let files = support::files_below(&folder).into_iter();
    for file in
        files.filter(|file| file.starts_with("data") || file.extension().is_some_and(|it| it == "dat"))
    {
        let path = folder.join(file);
        let bytes = fs::metadata(&path).unwrap().len() as usize;
        fs::write(&path, vec![0; bytes]).unwrap();
    }
}

#[test]
fn a_push_of_a_state_that_was_pushed_reads_no_payload_and_makes_four_requests() {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    pushed(&place, &quiet(&objects), 1).unwrap();
    let first = seen(&objects).unwrap();
    damage(&place);
    let bucket = quiet(&objects);
    let again = pushed(&place, &bucket, 2).unwrap();
    assert_eq!((again.number, again.is_unchanged, again.bytes_sent), (1, true, 0));
    // The remote's name, the hint, whether there is a newer snapshot, and the manifest.
    assert_eq!(bucket.requests(), 4);
    // Another description is a new snapshot of the same payloads.
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test").unwrap();
    let (opened, collection) = (remote(&quiet(&objects)).unwrap(), store.collection("acme", "m").unwrap());
    let described = Parameters { tenant_owner: OwnerAndMode { uid: 7, gid: 7, mode: 0o700 }, ..request(3) };
    let second = push(&opened, &collection, &described, &Silent).unwrap();
    assert_eq!((second.number, second.is_unchanged, second.bytes_sent), (2, false, 0));
    assert!(seen(&objects).unwrap() == (2, first.1));
    drop((store, collection));
    // Another state has other payloads, which are read.
    place.import("acme/m", &[&place.write("more.json", b"{}")], &[]);
    assert_eq!(pushed(&place, &quiet(&objects), 4).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_push_killed_at_any_request_leaves_a_whole_snapshot_and_the_next_push_stores_nothing_twice() {
    let place = stored();
    let reference = Arc::new(InMemory::new());
    pushed(&place, &quiet(&reference), 1).unwrap();
    let first = seen(&reference).unwrap();
    place.write("more/second.json", vec![7; 100_000]);
    place.import("acme/m", &[&place.path("more/second.json")], &[]);
    let bucket = quiet(&Arc::new(reference.fork()));
    pushed(&place, &bucket, 2).unwrap();
    let (requests, second) = (bucket.requests(), seen(&bucket.objects).unwrap());
    assert_eq!((first.0, second.0), (1, 2));
    let all = keys(&bucket.objects);
    for killed_at in 0..requests {
        for fault in [Fault::Hangs, Fault::AnswerLost] {
            let objects = Arc::new(reference.fork());
            // The process that waits for the answer is gone: no request follows.
            let dying = Faulty::over(&objects, move |request| match request.number {
                number if number == killed_at => fault,
                number if number > killed_at => Fault::Denied,
                _ => Fault::None,
            });
            drop(pushed(&place, &dying, 3));
            let after = seen(&objects).unwrap();
            assert!(after == first || after == second, "killed at request {killed_at} ({fault:?})");
            let next = pushed(&place, &quiet(&objects), 4).unwrap();
            assert_eq!(next.number, 2, "killed at request {killed_at} ({fault:?})");
            assert!(seen(&objects).unwrap() == second, "killed at request {killed_at} ({fault:?})");
            assert_eq!(keys(&objects), all, "killed at request {killed_at} ({fault:?})");
        }
    }
}

#[test]
fn a_push_after_one_that_failed_asks_for_its_pieces_and_does_not_send_them_again() {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    let failing = Faulty::over(&objects, |request| {
        let is_commit = request.call == Call::Put && request.key.contains("/snap/");
        if is_commit { Fault::Denied } else { Fault::None }
    });
    pushed(&place, &failing, 1).unwrap_err();
    let all = keys(&objects);
    assert!(all.len() > 3, "{all:?}");
    let sent = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = sent.clone();
    let bucket = Faulty::over(&objects, move |request| {
        let is_piece = request.call == Call::Put && request.key.contains("/piece/");
        counted.fetch_add(u64::from(is_piece), std::sync::atomic::Ordering::SeqCst);
        Fault::None
    });
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test").unwrap();
    let collection = store.collection("acme", "m").unwrap();
    let one_at_a_time = Parameters { jobs: 1, ..request(2) };
    let second = push(&remote(&bucket).unwrap(), &collection, &one_at_a_time, &Silent).unwrap();
    assert_eq!((second.number, second.pieces_sent, keys(&objects)), (1, 0, all));
    // The first one tells that there are some.
    assert_eq!(sent.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn a_lost_answer_to_the_commit_is_a_success_and_not_somebody_elses_push() {
    let place = stored();
    let lost = std::sync::atomic::AtomicBool::new(false);
    let bucket = Faulty::over(&Arc::new(InMemory::new()), move |request| {
        let is_commit = request.call == Call::Put && request.key.contains("/snap/");
        let is_first = is_commit && !lost.swap(true, std::sync::atomic::Ordering::SeqCst);
        if is_first { Fault::AnswerLost } else { Fault::None }
    });
    assert_eq!(pushed(&place, &bucket, 2).unwrap().number, 1);
}

#[test]
fn one_of_two_pushers_wins_and_the_other_is_told() {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    let other = Place::new();
    support::run([Path::new("init"), &other.store()]).ok();
    let plain = other.write("note.txt", b"another model");
    other.import("acme/m", &[&plain], &[]);
    // The other push happens between the last look and the commit of this one.
    let (winner, won) = (objects.clone(), std::sync::atomic::AtomicBool::new(false));
    let other = Arc::new(other);
    let (pusher, bucket_objects) = (other.clone(), winner);
    let bucket = Faulty::over(&objects, move |request| {
        let is_commit = request.call == Call::Put && request.key.contains("/snap/");
        if is_commit && !won.swap(true, std::sync::atomic::Ordering::SeqCst) {
            let (pusher, objects) = (pusher.clone(), bucket_objects.clone());
            let pushing = std::thread::spawn(move || pushed(&pusher, &quiet(&objects), 8).unwrap());
            assert_eq!(pushing.join().unwrap().number, 1);
        }
        Fault::None
    });
    let error = pushed(&place, &bucket, 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    assert!(error.to_string().contains("another machine has pushed snapshot 1 of acme/m"), "{error}");
    assert_eq!(seen(&objects).unwrap().1.keys().collect::<Vec<_>>(), ["note.txt"]);
    assert_eq!(pushed(&place, &quiet(&objects), 10).unwrap_err().kind(), ErrorKind::Exists);
    // The next push of the loser finds the pieces that it has sent.
    let forced = Parameters { may: May { force: true, ..May::default() }, ..request(11) };
    assert_eq!(pushed_as(&place, &quiet(&objects), &forced).unwrap().number, 2);
}

#[test]
fn a_bucket_that_ignores_conditions_is_refused_unless_nobody_else_writes() {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    remote(&quiet(&objects)).unwrap();
    let careless = || Faulty::over(&objects, |_| Fault::IgnoresCondition);
    let error = pushed(&place, &careless(), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("--single-writer"), "{error}");
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test").unwrap();
    let alone = Parameters { may: May { single_writer: true, ..May::default() }, ..request(2) };
    let bucket = careless();
    let done = push(&remote(&bucket).unwrap(), &store.collection("acme", "m").unwrap(), &alone, &Silent);
    assert_eq!(done.unwrap().number, 1);
}

#[test]
fn a_prefix_without_a_remote_says_how_to_make_one() {
    let error = Remote::open(quiet(&Arc::new(InMemory::new())).client()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("--create"), "{error}");
}
