//! Short reads here and there in large files of a remote: few bytes for each, and never unverified ones.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use object_store::memory::InMemory;
use support::{Place, Random, container_of};
use tempfile::TempDir;
use tierfs::format::snapshot::{keys, manifest};
use tierfs::model::{OwnedCollectionName, Silent, hex};
use tierfs::remote::client::{Client, Deadlines};
use tierfs::remote::place::at::At;
use tierfs::remote::place::remote::Remote;
use tierfs::remote::push::publish::push;
use tierfs::remote::read::cache::{Cache, Size};
use tierfs::remote::read::files::Source;
use tierfs::remote::read::published_collections::Published;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, OpenObject, SnapshotDisk, Store, Verify};
use tierfs::stream::{Segment, Stream};

use crate::faulty::{Call, Fault, Faulty};
use crate::many_collections::Far;
use crate::push::{quiet, remote, request};

const MIB: u64 = 1 << 20;

/// A bucket with `acme/m`, which has one file of 64 MiB, and its bytes. Large tensors have blocks of 128 KiB.
fn bucket() -> (Arc<InMemory>, Vec<u8>) {
    bucket_of(&[("a", 9 << 20), ("b", 7 << 20)])
}

/// The same of tensors with so many elements.
fn bucket_of(tensors: &[(&str, usize)]) -> (Arc<InMemory>, Vec<u8>) {
    let (place, objects) = (Place::new(), Arc::new(InMemory::new()));
    let large = container_of(&mut Random(21), tensors);
    place.write("in/large.safetensors", &large);
    support::run([Path::new("init"), &place.store()]).ok();
    place.import("acme/m", &[&place.path("in")], &[]);
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test").unwrap();
    let collection = store.collection("acme", "m").unwrap();
    push(&remote(&quiet(&objects)).unwrap(), &collection, &request(1), &Silent).unwrap();
    (objects, large)
}

struct Opened {
    store: Arc<Store>,
    stream: Stream,
}

fn opened(bucket: &Arc<Faulty>, cache: &Path) -> Opened {
    opened_by(bucket.client(), Some(Cache::open(cache, Size::Bytes(1 << 30)).unwrap()))
}

fn opened_by(client: Client, cache: Option<Cache>) -> Opened {
    opened_at(client, cache, HashMap::new())
}

fn opened_at(client: Client, cache: Option<Cache>, wanted: HashMap<OwnedCollectionName, At>) -> Opened {
    let remote = Remote::open(client).unwrap();
    let source = Source::new(remote, cache, Box::new(|_, _| ())).reading_ahead();
    let disk = SnapshotDisk::new(Arc::new(Published::new(source, wanted)));
    let store = Arc::new(Arc::new(disk).open_store().unwrap());
    let collection = store.collection("acme", "m").unwrap();
    let node = {
        let state = collection.state();
        let mut nodes = state.nodes().map(|node| node.entry.id);
        nodes.find(|id| state.path(*id) == b"large.safetensors").unwrap()
    };
    let open = |object| Segment::Object(OpenObject::open(&collection, object, Verify::First).unwrap());
    let stream = Stream::new(collection.objects_of(node).unwrap().iter().map(open).collect()).unwrap();
    Opened { store, stream }
}

impl Opened {
    fn received(&self) -> u64 {
        self.store.traffic().unwrap().received_bytes
    }

    fn read(&self, from: u64, len: usize) -> Result<Vec<u8>, tierfs::model::Error> {
        let mut bytes = vec![0; len];
        self.stream.read(from, &mut bytes).map(|_| bytes)
    }
}

#[test]
fn a_short_read_fetches_its_blocks_until_a_run_is_seen() {
    let small = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|name| (name, 2 << 20));
    // A piece of which half was read comes as a whole.
    let large = [("a", 9 << 20), ("b", 7 << 20)];
    for (tensors, block, reads) in [(&small[..], 16 << 10, 200), (&large[..], 128 << 10, 60)] {
        let (objects, large) = bucket_of(tensors);
        reads_of(&objects, &large, block, reads);
    }
}

fn reads_of(objects: &Arc<InMemory>, large: &[u8], block: u64, reads: u64) {
    let (quiet, folder) = (quiet(objects), TempDir::new().unwrap());
    let opened = opened(&quiet, folder.path());
    let random = &mut Random(5);
    let before = opened.received();
    for _ in 0..reads {
        // The beginning of a file is read by its piece.
        let at = (12 << 20) + random.below(large.len() - (12 << 20) - 4096);
        assert!(opened.read(at as u64, 4096).unwrap() == large[at..at + 4096]);
    }
    let each = (opened.received() - before) / reads;
    println!("{each} bytes for each of {reads} reads of 4 KiB in blocks of {block}");
    // Some lie in two blocks.
    assert!(each <= block * 3 / 2, "{each}");
    // All of it, in order and by several pieces: no byte of it twice, but for the parts.
    let before = opened.received();
    for (at, chunk) in (0..).step_by(1 << 17).zip(large.chunks(1 << 17)) {
        assert!(opened.read(at, chunk.len()).unwrap() == chunk);
    }
    let fetched = opened.received() - before;
    assert!(fetched <= large.len() as u64 + MIB, "{fetched}");
    let before = opened.received();
    assert!(opened.read(0, large.len()).unwrap() == large);
    assert_eq!(opened.received(), before);
}

#[test]
fn a_part_with_wrong_bytes_is_never_given_out() {
    let (objects, large) = bucket();
    let parts = Arc::new(AtomicU64::new(0));
    let seen = parts.clone();
    // Every second piece or part of one is wrong.
    let wrong = Faulty::over(&objects, move |request| {
        let is_piece = request.call == Call::Get && request.key.contains("/piece/");
        let is_wrong = is_piece && seen.fetch_add(1, Ordering::SeqCst) % 2 == 1;
        if is_wrong { Fault::WrongByte } else { Fault::None }
    });
    let folder = TempDir::new().unwrap();
    let opened = opened(&wrong, folder.path());
    let random = &mut Random(6);
    let (mut right, mut failed) = (0, 0);
    for _ in 0..300 {
        let at = random.below(large.len() - 70_000);
        let len = 1 + random.below(70_000);
        match opened.read(at as u64, len) {
            Ok(bytes) => {
                assert!(bytes == large[at..at + len], "wrong bytes at {at}");
                right += 1;
            }
            Err(_) => failed += 1,
        }
    }
    println!("{right} right, {failed} failed, {} requests", parts.load(Ordering::SeqCst));
    assert!(right > 200);
}

#[test]
fn no_part_of_a_piece_is_read_of_a_snapshot_that_is_named_by_its_digest() {
    let (objects, large) = bucket();
    let client = quiet(&objects).client();
    let stored = client.get(&keys::snapshot("acme", "m", 1), MIB).unwrap().unwrap();
    let digest = hex(&manifest::digest(&stored).unwrap());
    for (at, are_read) in [("1", true), (digest.as_str(), false)] {
        let wanted = HashMap::from([(OwnedCollectionName::new("acme", "m"), At::parse(at))]);
        for cached in [true, false] {
            let folder = TempDir::new().unwrap();
            let cache = cached.then(|| Cache::open(folder.path(), Size::Bytes(1 << 30)).unwrap());
            let opened = opened_at(quiet(&objects).client(), cache, wanted.clone());
            let before = opened.received();
            for at in (12 * MIB..60 * MIB).step_by(9 << 20) {
                assert!(opened.read(at, 4096).unwrap() == large[at as usize..at as usize + 4096]);
            }
            let fetched = opened.received() - before;
            assert_eq!(fetched < 4 * MIB, are_read, "{at}, cached: {cached}: {fetched} bytes");
        }
    }
}

#[test]
fn bytes_that_left_the_cache_are_compared_before_they_are_given_out_again() {
    let (objects, large) = bucket();
    let wrong = Arc::new(AtomicU64::new(0));
    let is_wrong = wrong.clone();
    let bucket = Faulty::over(&objects, move |request| {
        let is_piece = request.call == Call::Get && request.key.contains("/piece/");
        if is_piece && is_wrong.load(Ordering::SeqCst) > 0 { Fault::WrongByte } else { Fault::None }
    });
    let folder = TempDir::new().unwrap();
    let opened = opened(&bucket, folder.path());
    // Blocks are checked by short reads, and by reads of pieces.
    for at in (0..60 * MIB).step_by(5 << 20) {
        assert!(opened.read(at, 4096).unwrap() == large[at as usize..at as usize + 4096]);
    }
    // So many parts that the first ones leave memory.
    for at in (2 * MIB..60 * MIB).step_by(100_000) {
        assert!(opened.read(at, 64).unwrap() == large[at as usize..at as usize + 64]);
    }
    wrong.store(1, Ordering::SeqCst);
    for at in (0..60 * MIB).step_by(5 << 20) {
        if let Ok(bytes) = opened.read(at + 100, 300) {
            assert!(bytes == large[at as usize + 100..at as usize + 400], "wrong bytes at {at}");
        }
    }
}

#[test]
fn a_read_without_room_or_without_a_cache_takes_as_long_as_with_one_and_fetches_nothing_twice() {
    let (objects, large) = bucket();
    let full = |size| {
        let folder = TempDir::new().unwrap();
        let cache = Cache::open(folder.path(), Size::Bytes(size)).unwrap();
        (Some(folder), Some(cache))
    };
    let caches =
        [("with room", full(1 << 30)), ("without room", full(1 << 20)), ("without a cache", (None, None))];
    let mut times = Vec::new();
    for (name, (_folder, cache)) in caches {
        // Each request takes long, so that readers need pieces ahead.
        let far = Far::over(&objects, Duration::from_millis(150));
        let client = Client::over(far.clone(), "models", "memory://models", Deadlines::default());
        let opened = opened_by(client, cache);
        let (before, requests, begun) = (opened.received(), far.requests(), Instant::now());
        for (at, chunk) in (0..).step_by(1 << 17).zip(large.chunks(1 << 17)) {
            assert!(opened.read(at, chunk.len()).unwrap() == chunk, "{name}");
        }
        let (took, fetched) = (begun.elapsed(), opened.received() - before);
        println!("{name}: {took:?}, {fetched} bytes, {} requests", far.requests() - requests);
        assert!(fetched <= large.len() as u64 + MIB, "{name}: {fetched}");
        times.push(took);
    }
    // The machine is shared.
    assert!(times[1] < times[0] * 2 && times[2] < times[0] * 2, "{times:?}");
}

#[test]
fn readers_of_the_same_bytes_without_a_cache_make_one_request_a_piece() {
    let (objects, large) = bucket();
    let opened = opened_by(quiet(&objects).client(), None);
    let before = opened.received();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert!(opened.read(0, large.len()).unwrap() == large));
        }
    });
    let fetched = opened.received() - before;
    assert!(fetched <= large.len() as u64 + MIB, "{fetched}");
}
