//! Clones in this process, on a bucket in memory whose requests fail: compared with the store that was pushed, and
//! with a second store to which the same happens.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use object_store::memory::InMemory;
use parking_lot::Mutex;
use support::{Place, Random, assert_same, scale};
use tierfs::engine::{Consent, Engine, Evict, EvictRequest, LOSSY, MoveRequest, Moved, compact, set_setting};
use tierfs::model::{CollectionName, EntryId, ErrorKind, MoveTo, Owner, Result, Silent};
use tierfs::remote::clone::{Changes, ClonePieces, ClonedFrom, Made, clone, pull};
use tierfs::remote::place::at::At;
use tierfs::remote::place::remote::Remote;
use tierfs::remote::push::outcome::Pushed;
use tierfs::remote::push::publish::push;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Collection, OpenObject, ROOT, Store, Verify};
use tierfs::vfs::open::{self, OpenFiles};

use crate::faulty::{Call, Fault, Faulty};
use crate::push::{pushed, quiet, request, stored};
use crate::reading::files_of;

const URL: &str = "memory://models";

/// A store with a clone of `acme/m`.
struct Cloned {
    path: PathBuf,
    engine: Engine,
    store: Arc<Store>,
    told: Arc<Mutex<Vec<String>>>,
}

fn remote(bucket: &Arc<Faulty>) -> Remote {
    Remote::open(bucket.client()).unwrap()
}

/// Clones the collection `acme/{from}` as `acme/{to}`.
fn clone_of(store: &Store, remote: &Remote, from: &str, at: &At, to: &str) -> Result<Made> {
    let from = ClonedFrom {
        remote,
        url: URL,
        collection: CollectionName::new("acme", from),
        at,
        trust: None,
        mark: None,
    };
    clone(store, from, CollectionName::new("acme", to), Owner::default())
}

impl Cloned {
    /// Makes a clone in a new store below a directory.
    fn new(folder: &Path, bucket: &Arc<Faulty>) -> Cloned {
        let path = folder.join("cloned");
        support::run([Path::new("init"), &path]).ok();
        let cloned = Cloned::open(&path, bucket);
        let made = clone_of(&cloned.store, &remote(bucket), "m", &At::Newest, "m");
        made.unwrap();
        cloned
    }

    fn open(path: &Path, bucket: &Arc<Faulty>) -> Cloned {
        let store = Store::open(Arc::new(FileDisk::new(path)), Access::Write, "test").unwrap();
        let (bucket, told) = (bucket.clone(), Arc::new(Mutex::new(Vec::new())));
        let texts = told.clone();
        let tell = Box::new(move |path: &str, text: &str| texts.lock().push(format!("{path}: {text}")));
        store.set_piece_source(Arc::new(ClonePieces::over(Box::new(move |_| Ok(bucket.client())), tell)));
        let store = Arc::new(store);
        Cloned { path: path.to_owned(), engine: Engine::new(store.clone()), store, told }
    }

    /// Closes the store and opens it again.
    fn reopened(self, bucket: &Arc<Faulty>) -> Cloned {
        let Cloned { path, engine, store, .. } = self;
        drop((engine, store));
        Cloned::open(&path, bucket)
    }

    fn collection(&self) -> Arc<Collection> {
        self.store.collection("acme", "m").unwrap()
    }

    fn files(&self) -> HashMap<String, Vec<u8>> {
        files_of(&self.store, "acme", "m")
    }

    fn evict(&self) -> Result<u64> {
        let mut moved = Moved::default();
        let what = EvictRequest { what: Evict::Stored, consent: Consent::AsSet, user: None };
        self.engine.evict(&self.collection(), ROOT, what, &Silent, &mut moved)?;
        Ok(moved.to_remote.unwrap())
    }

    fn push(&self, bucket: &Arc<Faulty>, number: u128) -> Result<Pushed> {
        push(&remote(bucket), &self.collection(), &request(number), &Silent)
    }

    fn pull(&self, bucket: &Arc<Faulty>, changes: Changes) -> Result<Made> {
        pull(&self.store, &remote(bucket), CollectionName::new("acme", "m"), &At::Newest, None, changes)
    }

    /// Bytes that the files of payloads take on the disk.
    fn allocated(&self) -> u64 {
        let folder = self.path.join("acme/m");
        let below = support::files_below(&folder).into_iter();
        let payloads = below.filter(|file| {
            file.extension().is_some_and(|end| end == "dat") || file.parent() == Some(Path::new("data"))
        });
        let payloads = payloads.filter(|file| file.extension().is_none_or(|end| end != "map"));
        payloads.map(|file| fs::metadata(folder.join(file)).unwrap().blocks() * 512).sum()
    }

    fn node(&self, name: &str) -> EntryId {
        node(&self.collection(), name)
    }

    fn write(&self, name: &str, at: u64, bytes: &[u8]) -> Result<()> {
        write(&self.collection(), self.node(name), at, bytes)
    }
}

fn node(collection: &Collection, name: &str) -> EntryId {
    let state = collection.state();
    let found = state.nodes().find(|node| state.path(node.entry.id) == name.as_bytes());
    found.unwrap_or_else(|| panic!("there is no {name}")).entry.id
}

pub fn write(collection: &Arc<Collection>, node: EntryId, at: u64, bytes: &[u8]) -> Result<()> {
    let table = OpenFiles::default();
    let file = table.open(collection, node, Verify::First)?;
    file.write(at, bytes)?;
    file.flush().map(drop)
}

fn assert_same_files(found: &HashMap<String, Vec<u8>>, wanted: &HashMap<String, Vec<u8>>, what: &str) {
    let names = |files: &HashMap<String, Vec<u8>>| {
        let mut names: Vec<String> = files.keys().cloned().collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(found), names(wanted), "{what}");
    wanted.iter().for_each(|(name, bytes)| assert_same(&found[name], bytes, &format!("{what}: {name}")));
}

fn local(place: &Place) -> HashMap<String, Vec<u8>> {
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Read, "").unwrap();
    files_of(&store, "acme", "m")
}

/// A bucket that notes which pieces are asked for.
fn noting(objects: &Arc<InMemory>) -> (Arc<Faulty>, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    let bucket = Faulty::over(objects, move |request| {
        if request.call == Call::Get && request.key.contains("piece/") {
            noted.lock().push(request.key.to_owned());
        }
        Fault::None
    });
    (bucket, asked)
}

/// A store, a bucket that it was pushed to, and a clone.
type Fixture = (Place, Arc<InMemory>, Arc<Faulty>, Arc<Mutex<Vec<String>>>, Cloned);

fn fixture() -> Fixture {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    pushed(&place, &quiet(&objects), 1).unwrap();
    let (bucket, asked) = noting(&objects);
    let cloned = Cloned::new(&place.path(""), &bucket);
    (place, objects, bucket, asked, cloned)
}

#[test]
fn a_clone_reads_as_the_pushed_collection_and_fetches_each_piece_once() {
    let (place, _, bucket, asked, cloned) = fixture();
    assert_eq!(cloned.allocated(), 0, "something is here already");
    asked.lock().clear();
    let wanted = local(&place);
    assert_same_files(&cloned.files(), &wanted, "cold");
    let mut keys = asked.lock().clone();
    assert!(!keys.is_empty());
    keys.sort_unstable();
    let all = keys.len();
    keys.dedup();
    assert_eq!(keys.len(), all, "a piece was fetched twice");
    assert_same_files(&cloned.files(), &wanted, "again");
    let cloned = cloned.reopened(&bucket);
    assert_same_files(&cloned.files(), &wanted, "after a restart");
    assert_eq!(asked.lock().len(), all, "a piece that is here was fetched");
    assert!(cloned.told.lock().is_empty());
    drop(cloned);
    support::fsck(&place.path("cloned"));
}

#[test]
fn everything_can_be_evicted_and_reads_again_also_without_a_network_what_is_here() {
    let (place, objects, bucket, _, cloned) = fixture();
    let wanted = local(&place);
    for round in 0..3 {
        assert_same_files(&cloned.files(), &wanted, "read");
        assert!(cloned.allocated() > 0);
        assert!(cloned.evict().unwrap() > 10 << 20);
        assert_eq!(cloned.allocated(), 0, "round {round}");
    }
    let cloned = cloned.reopened(&bucket);
    assert_eq!(cloned.evict().unwrap(), 0);
    let config = |cloned: &Cloned| {
        let objects = cloned.collection().objects_of(cloned.node("config.json")).unwrap();
        let open = tierfs::store::OpenObject::open(&cloned.collection(), &objects[0], Verify::First).unwrap();
        let mut bytes = vec![0; open.bytes() as usize];
        open.read(0, &mut bytes).map(|()| bytes)
    };
    assert_eq!(config(&cloned).unwrap(), wanted["config.json"]);
    let cloned = cloned.reopened(&bucket);
    // The network goes.
    for (fault, kind) in [(Fault::Denied, ErrorKind::Forbidden), (Fault::NotFound, ErrorKind::Io)] {
        let broken = Faulty::over(
            &objects,
            move |request| {
                if request.key.contains("piece/") { fault } else { Fault::None }
            },
        );
        let path = cloned.path.clone();
        let cloned_now = Cloned::open_beside(&path, &broken);
        assert_eq!(config(&cloned_now).unwrap(), wanted["config.json"], "what is here reads");
        let large = node(&cloned_now.collection(), "large.safetensors");
        let objects = cloned_now.collection().objects_of(large).unwrap();
        let open =
            tierfs::store::OpenObject::open(&cloned_now.collection(), &objects[1], Verify::First).unwrap();
        let error = open.read(0, &mut [0; 100]).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(cloned_now.told.lock().len(), 1, "{:?}", cloned_now.told);
        drop(open);
    }
}

impl Cloned {
    /// Opens a copy of a clone.
    fn open_beside(path: &Path, bucket: &Arc<Faulty>) -> Cloned {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let copy = path.with_extension(COPIES.fetch_add(1, Ordering::Relaxed).to_string());
        let copied = std::process::Command::new("cp").arg("-a").arg(path).arg(&copy).status().unwrap();
        assert!(copied.success());
        Cloned::open(&copy, bucket)
    }
}

#[test]
fn a_push_from_a_clone_sends_what_changed_and_reads_nothing_that_was_never_here() {
    let (place, objects, bucket, asked, cloned) = fixture();
    asked.lock().clear();
    let same = cloned.push(&bucket, 2).unwrap();
    assert_eq!((same.number, same.is_unchanged, same.pieces_sent), (1, true, 0));
    assert!(asked.lock().is_empty(), "{:?}", asked.lock());
    let mut wanted = local(&place);
    cloned.write("config.json", 3, b"CHANGED").unwrap();
    wanted.get_mut("config.json").unwrap()[3..10].copy_from_slice(b"CHANGED");
    cloned.collection().sync().unwrap();
    let before = asked.lock().len();
    let changed = cloned.push(&bucket, 3).unwrap();
    assert_eq!((changed.number, changed.is_unchanged), (2, false));
    assert!(changed.bytes_sent < 1 << 20, "{changed:?}");
    assert!(asked.lock().len() <= before + 1, "{:?}", asked.lock());
    // Another clone has the change; this one can give everything back now.
    let other = Place::new();
    let second = Cloned::new(&other.path(""), &quiet(&objects));
    assert_same_files(&second.files(), &wanted, "the second clone");
    assert_same_files(&cloned.files(), &wanted, "the first clone");
    cloned.evict().unwrap();
    assert_eq!(cloned.allocated(), 0);
    let cloned = cloned.reopened(&bucket);
    assert_same_files(&cloned.files(), &wanted, "after an eviction");
    assert!(cloned.push(&bucket, 4).unwrap().is_unchanged);
}

#[test]
fn new_files_and_moved_tensors_can_be_evicted_once_they_are_pushed() {
    let (place, objects, bucket, _, cloned) = fixture();
    let large = cloned.node("large.safetensors");
    set_setting(&cloned.collection(), ROOT, &LOSSY, "allow").unwrap();
    let to = MoveRequest { to: MoveTo::parse_tier("q5:all").unwrap(), consent: Consent::Given, rows: None };
    cloned.engine.set_tier(&cloned.collection(), large, to, &Silent, &mut Moved::default()).unwrap();
    let bytes = Random(3).bytes(3 << 20);
    let made = open::create(&cloned.collection(), ROOT, b"new.bin", 0o644, Owner { uid: 0, gid: 0 }).unwrap();
    write(&cloned.collection(), made, 0, &bytes).unwrap();
    let wanted = cloned.files();
    assert_eq!(wanted["new.bin"], bytes);
    // Its own bytes stay.
    cloned.evict().unwrap();
    assert!(cloned.allocated() > 3 << 20);
    assert_same_files(&cloned.files(), &wanted, "after an eviction");
    cloned.push(&bucket, 2).unwrap();
    cloned.evict().unwrap();
    assert!(cloned.allocated() < 1 << 20, "{}", cloned.allocated());
    assert_same_files(&cloned.files(), &wanted, "after a push and an eviction");
    let other = Place::new();
    assert_same_files(&Cloned::new(&other.path(""), &quiet(&objects)).files(), &wanted, "another clone");
    drop((place, cloned));
}

#[test]
fn a_pull_replaces_an_unchanged_clone_and_refuses_a_changed_one() {
    let (place, objects, bucket, asked, cloned) = fixture();
    assert_same_files(&cloned.files(), &local(&place), "first");
    assert!(cloned.pull(&bucket, Changes::Refuse).unwrap().is_unchanged);
    // Somebody else pushes.
    let other = Place::new();
    let second = Cloned::new(&other.path(""), &quiet(&objects));
    second.write("config.json", 0, b"theirs").unwrap();
    let theirs = second.files();
    assert_eq!(second.push(&quiet(&objects), 2).unwrap().number, 2);
    asked.lock().clear();
    let made = cloned.pull(&bucket, Changes::Refuse).unwrap();
    assert_eq!((made.number, made.is_unchanged), (2, false));
    assert_same_files(&cloned.files(), &theirs, "pulled");
    let fetched = asked.lock().len();
    assert!(fetched <= 4, "what was here was fetched again: {fetched} requests");
    // Both change.
    second.write("config.json", 0, b"THEIRS").unwrap();
    let theirs = second.files();
    second.push(&quiet(&objects), 3).unwrap();
    cloned.write("config.json", 7, b"mine").unwrap();
    let mine = cloned.files();
    let refused = cloned.pull(&bucket, Changes::Refuse).unwrap_err();
    assert!(refused.to_string().contains("--theirs"), "{refused}");
    let refused = cloned.push(&bucket, 4).unwrap_err();
    assert!(refused.to_string().contains("tierfs pull"), "{refused}");
    assert_same_files(&cloned.files(), &mine, "refused");
    let cloned = cloned.reopened(&bucket);
    assert_eq!(cloned.pull(&bucket, Changes::Discard).unwrap().number, 3);
    assert_same_files(&cloned.files(), &theirs, "theirs");
    let cloned = cloned.reopened(&bucket);
    assert_same_files(&cloned.files(), &theirs, "theirs, after a restart");
    cloned.evict().unwrap();
    assert_eq!(cloned.allocated(), 0);
    assert_same_files(&cloned.files(), &theirs, "theirs, after an eviction");
    drop(cloned);
    support::fsck(&place.path("cloned"));
}

#[test]
fn damaged_blocks_heal_from_the_remote_whether_their_piece_was_written_to_or_not() {
    let (place, _, bucket, _, cloned) = fixture();
    let wanted = local(&place);
    assert_same_files(&cloned.files(), &wanted, "read");
    // A short write makes a piece own; its other blocks are still those of the remote.
    let header = wanted["large.safetensors"].len() as u64 - 100;
    cloned.write("large.safetensors", header, &wanted["large.safetensors"][header as usize..]).unwrap();
    cloned.collection().sync().unwrap();
    let cloned = cloned.reopened(&bucket);
    let data: Vec<PathBuf> = support::files_below(&cloned.path.join("acme/m/data"))
        .into_iter()
        .filter(|file| file.extension().is_none())
        .collect();
    let mut damaged = 0;
    for file in data {
        let file =
            fs::OpenOptions::new().write(true).open(cloned.path.join("acme/m/data").join(file)).unwrap();
        let len = file.metadata().unwrap().len();
        for at in (1 << 20..len).step_by(3 << 20) {
            file.write_all_at(&[0x55; 999], at).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 2);
    assert_same_files(&cloned.files(), &wanted, "damaged");
    assert!(cloned.engine.scrub(&cloned.collection(), &Silent).unwrap().corrupt <= damaged);
    cloned.engine.heal_waiting().unwrap();
    let found = cloned.engine.scrub(&cloned.collection(), &Silent).unwrap();
    assert_eq!(found.corrupt, 0);
    drop(cloned);
    support::fsck(&place.path("cloned"));
}

/// Does work until the remote lets it succeed.
fn retried<T>(what: &str, mut work: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..200 {
        match work() {
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Forbidden) => {}
            done => return done,
        }
    }
    panic!("{what} never succeeds");
}

/// The same change of a collection. The result says whether it was refused.
fn change(engine: &Engine, collection: &Arc<Collection>, seed: u64) -> std::result::Result<(), ErrorKind> {
    let random = &mut Random(seed);
    let names = ["large.safetensors", "config.json", "q8.safetensors"];
    let name = names[random.below(names.len())];
    let found = node(collection, name);
    let done = match random.below(8) {
        0..=3 => {
            let table = OpenFiles::default();
            let file = retried("open", || table.open(collection, found, Verify::First)).unwrap();
            // The header stays, so that the tensors do.
            let least = file.bytes().min(2000);
            let at = least + random.below((file.bytes() - least) as usize + 1) as u64;
            let most = [50, 70_000, 900_000][random.below(3)];
            let len = (1 + random.below(most)).min((file.bytes() - at) as usize + 20);
            let bytes = random.bytes(len);
            let written = retried("write", || file.write(at, &bytes)).map(drop);
            retried("flush", || file.flush()).unwrap();
            written
        }
        4 | 5 => {
            let tier = ["exact", "q8:all", "q5:all"][random.below(3)];
            let to =
                MoveRequest { to: MoveTo::parse_tier(tier).unwrap(), consent: Consent::Given, rows: None };
            retried("tier", || engine.set_tier(collection, found, to, &Silent, &mut Moved::default()))
                .map(drop)
        }
        6 => retried("compact", || compact(collection, &Silent)).map(drop),
        _ => retried("sync", || collection.sync()),
    };
    done.map_err(|error| error.kind())
}

#[test]
fn a_clone_whose_remote_fails_at_random_agrees_with_a_store_to_which_the_same_happens() {
    for seed in 0..2 * u64::from(scale()) {
        let place = stored();
        let objects = Arc::new(InMemory::new());
        pushed(&place, &quiet(&objects), 1).unwrap();
        let (fails, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_on, count) = (fails.clone(), failed.clone());
        let bucket = Faulty::over(&objects, move |request| {
            let is_piece = request.call == Call::Get && request.key.contains("piece/");
            if !is_on.load(Ordering::Relaxed) || !is_piece {
                return Fault::None;
            }
            let fault = match Random(seed * 1_000_003 + request.number).below(8) {
                0 => Fault::NotFound,
                1 => Fault::Denied,
                2 => Fault::WrongByte,
                3 => Fault::CutShort,
                _ => return Fault::None,
            };
            count.fetch_add(1, Ordering::Relaxed);
            fault
        });
        let mut cloned = Cloned::new(&place.path(""), &bucket);
        let plain = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test").unwrap();
        let plain = Arc::new(plain);
        let engine = Engine::new(plain.clone());
        for collection in [cloned.collection(), plain.collection("acme", "m").unwrap()] {
            set_setting(&collection, ROOT, &LOSSY, "allow").unwrap();
        }
        let mut random = Random(seed);
        let mut number = 1;
        for step in 0..25 {
            let (context, change_seed) = (format!("seed {seed}, step {step}"), random.below(1 << 40) as u64);
            fails.store(true, Ordering::Relaxed);
            let here = change(&cloned.engine, &cloned.collection(), change_seed);
            let there = change(&engine, &plain.collection("acme", "m").unwrap(), change_seed);
            assert_eq!(here, there, "{context}");
            match random.below(6) {
                0 | 1 => drop(retried("evict", || cloned.evict()).unwrap()),
                2 => cloned = cloned.reopened(&bucket),
                3 => {
                    number += 1;
                    let pushed = retried("push", || cloned.push(&bucket, number));
                    pushed.unwrap_or_else(|error| panic!("{context}: {error}"));
                }
                _ => {}
            }
            if step % 5 == 4 {
                fails.store(false, Ordering::Relaxed);
                let wanted = files_of(&plain, "acme", "m");
                assert_same_files(&cloned.files(), &wanted, &context);
            }
        }
        fails.store(false, Ordering::Relaxed);
        // Bytes that nothing names come back with the pieces that they were in.
        compact(&cloned.collection(), &Silent).unwrap();
        cloned.push(&bucket, 1000).unwrap();
        cloned.evict().unwrap();
        let wanted = files_of(&plain, "acme", "m");
        let left = cloned.allocated();
        assert!(left < 4 << 20, "seed {seed}: {left} bytes are left");
        assert_same_files(&cloned.files(), &wanted, &format!("seed {seed}, at the end"));
        let other = Place::new();
        let second = Cloned::new(&other.path(""), &quiet(&objects));
        assert_same_files(&second.files(), &wanted, &format!("seed {seed}, another clone"));
        drop((second, cloned));
        support::fsck(&place.path("cloned"));
        assert!(failed.load(Ordering::Relaxed) > 0, "nothing failed");
    }
}

#[test]
fn a_piece_that_could_not_be_had_a_moment_ago_is_not_asked_for_again() {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    pushed(&place, &quiet(&objects), 1).unwrap();
    let is_away = Arc::new(AtomicBool::new(false));
    let away = is_away.clone();
    let bucket =
        Faulty::over(
            &objects,
            move |_| {
                if away.load(Ordering::Relaxed) { Fault::Fails } else { Fault::None }
            },
        );
    let cloned = Cloned::new(&place.path(""), &bucket);
    let collection = cloned.collection();
    let objects = collection.objects_of(cloned.node("config.json")).unwrap();
    let read = || {
        let open = OpenObject::open(&collection, &objects[0], Verify::First)?;
        let mut bytes = vec![0; open.object().layout().bytes as usize];
        open.read(0, &mut bytes).map(|()| bytes)
    };
    is_away.store(true, Ordering::Relaxed);
    read().unwrap_err();
    let asked = bucket.requests();
    assert!(asked > 0);
    for _ in 0..3 {
        assert_eq!(read().unwrap_err().kind(), ErrorKind::Io);
    }
    assert_eq!(bucket.requests(), asked);
    is_away.store(false, Ordering::Relaxed);
    let begun = std::time::Instant::now();
    while read().is_err() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it stays away");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(read().unwrap(), fs::read(place.path("in/config.json")).unwrap());
}

#[test]
fn snapshots_that_are_no_collection_are_refused_and_leave_nothing() {
    let (place, objects, bucket, _, cloned) = fixture();
    let again = clone_of(&cloned.store, &remote(&bucket), "m", &At::Newest, "m");
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Exists);
    for (from, at) in [("none", At::Newest), ("m", At::Number(9)), ("m", At::Tag("v1".to_owned()))] {
        let made = clone_of(&cloned.store, &remote(&bucket), from, &at, "x");
        assert_eq!(made.unwrap_err().kind(), ErrorKind::NotFound);
    }
    // The log has other bytes than its name says.
    let broken =
        Faulty::over(
            &objects,
            |request| {
                if request.key.contains("piece/") { Fault::WrongByte } else { Fault::None }
            },
        );
    let made = clone_of(&cloned.store, &remote(&broken), "m", &At::Newest, "x");
    assert!(made.is_err());
    assert_eq!(cloned.store.collections("acme").unwrap(), ["m"]);
    assert_eq!(
        fs::read_dir(cloned.path.join("acme")).unwrap().count(),
        2,
        "a directory and the tenant's file"
    );
    drop((place, cloned));
}
