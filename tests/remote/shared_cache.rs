//! One cache of several processes. Stores of one process that have a cache each exclude each other as processes do, because
//! locks belong to open files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use support::{
    Bucket, Manners, Mounted, Place, Random, answer, assert_same, container_of, tierfs, wait_until,
};
use tempfile::TempDir;
use tierfs::format::snapshot::piece_map::{ARRIVED, PieceMap, PieceState};
use tierfs::remote::read::cache::{Cache, Size};

use crate::cache::{bucket, opened};
use crate::faulty::Fault;
use crate::proxy::{self, Proxy};
use crate::reading::files_of;

const URL: &str = "s3://models/demo";
const FILES: [&str; 3] = ["one.safetensors", "two.safetensors", "config.json"];

/// The maps of a cache, by path.
fn maps(cache: &Path) -> Vec<PathBuf> {
    let folder = cache.join("blob");
    let names = support::files_below(&folder).into_iter().filter(|name| name.extension().is_some());
    names.map(|name| folder.join(name)).collect()
}

/// The bytes of states of a map, by their places.
fn states(map: &Path) -> Vec<(u64, u8)> {
    let bytes = fs::read(map).unwrap();
    let map = PieceMap::parse(&bytes).unwrap();
    let places = (0..map.pieces.len() as u32).map(|piece| map.places().state(piece));
    places.map(|at| (at, bytes[at as usize])).collect()
}

#[test]
fn stores_on_one_cache_fetch_each_piece_once_between_them() {
    let (bucket, wanted, requests) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    let stores: Vec<_> = (0..10).map(|_| opened(&bucket, folder.path(), Size::Bytes(1 << 30))).collect();
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| assert!(files_of(store, "acme", "m") == wanted));
        }
    });
    drop(stores);
    let requests = requests.lock();
    assert!(!requests.is_empty() && requests.values().all(|count| *count == 1), "{requests:?}");
    let verified = Cache::open(folder.path(), Size::default()).unwrap().verify().unwrap();
    assert!(verified.iter().all(|file| !file.is_damaged()), "{verified:?}");
}

#[test]
fn a_file_that_one_store_removes_is_fetched_anew_by_another_and_both_count_the_same() {
    let (bucket, wanted, requests) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    let (one, other) = (
        opened(&bucket, folder.path(), Size::Bytes(1 << 30)),
        opened(&bucket, folder.path(), Size::Bytes(1 << 30)),
    );
    assert!(files_of(&one, "acme", "m") == wanted && files_of(&other, "acme", "m") == wanted);
    requests.lock().clear();
    let cache = Cache::open(folder.path(), Size::Bytes(1 << 30)).unwrap();
    assert!(cache.stored() > 0);
    cache.trim(0);
    assert_eq!((cache.stored(), maps(folder.path()).len()), (0, 0));
    assert!(files_of(&one, "acme", "m") == wanted && files_of(&other, "acme", "m") == wanted);
    assert!(requests.lock().values().all(|count| *count == 1), "{:?}", requests.lock());
    let taken: u64 = cache.list().iter().map(|file| file.stored).sum();
    wait_until("the cache is looked at", || cache.stored() >= taken && cache.stored() > 12 << 20);
}

#[test]
fn stores_keep_one_limit_together() {
    const LIMIT: u64 = 8 << 20;
    let (bucket, wanted, _) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    let stores: Vec<_> = (0..4).map(|_| opened(&bucket, folder.path(), Size::Bytes(LIMIT))).collect();
    for _ in 0..2 {
        for store in &stores {
            assert!(files_of(store, "acme", "m") == wanted);
            let below = ["blob", "manifest", "log", "base", "index"].map(|name| folder.path().join(name));
            let files = below.iter().flat_map(|path| fs::read_dir(path).unwrap());
            let taken: u64 = files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum();
            // Maps are not counted.
            assert!(taken <= LIMIT + (1 << 20), "{taken} bytes");
        }
    }
}

#[test]
fn pieces_that_are_not_durable_outlive_a_killed_process_and_not_a_boot() {
    let (bucket, wanted, requests) = bucket(|_| Fault::None);
    let folder = TempDir::new().unwrap();
    let store = opened(&bucket, folder.path(), Size::default());
    assert!(files_of(&store, "acme", "m") == wanted);
    // A process that was killed has not saved its maps.
    drop(store);
    let arrive = || {
        for map in maps(folder.path()) {
            let mut bytes = fs::read(&map).unwrap();
            for (at, state) in states(&map) {
                assert_eq!(state, PieceState::Here.byte());
                bytes[at as usize] = ARRIVED;
            }
            fs::write(&map, bytes).unwrap();
        }
    };
    arrive();
    requests.lock().clear();
    assert!(files_of(&opened(&bucket, folder.path(), Size::default()), "acme", "m") == wanted);
    assert!(requests.lock().is_empty(), "{:?}", requests.lock());
    arrive();
    fs::write(folder.path().join("boot"), "another\n").unwrap();
    drop(Cache::open(folder.path(), Size::default()).unwrap());
    for map in maps(folder.path()) {
        assert!(states(&map).iter().all(|(_, state)| *state == PieceState::Remote.byte()));
    }
    assert!(files_of(&opened(&bucket, folder.path(), Size::default()), "acme", "m") == wanted);
    assert!(!requests.lock().is_empty());
}

/// A bucket with a model behind a proxy that counts.
struct Stand {
    place: Place,
    bucket: Bucket,
    proxy: Proxy,
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
    sources: Vec<Vec<u8>>,
}

impl Stand {
    fn new() -> Stand {
        let place = Place::new();
        let random = &mut Random(31);
        let weights =
            |random: &mut Random| container_of(random, &[("a", 3 << 20), ("b", 2 << 20), ("c", 1 << 18)]);
        let sources = vec![weights(random), weights(random), b"{\"model_type\": \"small\"}".to_vec()];
        for (name, bytes) in FILES.iter().zip(&sources) {
            place.write(&format!("in/{name}"), bytes);
        }
        support::run([Path::new("init"), &place.store()]).ok();
        place.import("acme/m", &[&place.path("in")], &[]);
        let directory = place.path("buckets/models/demo");
        fs::create_dir_all(&directory).unwrap();
        let (url, store) = (format!("file://{}", directory.display()), place.store());
        support::run(["push", store.to_str().unwrap(), "acme/m", &url, "--create"]).ok();
        let bucket = Bucket::with(&place.path("buckets"), 0, Manners::default());
        let proxy = Proxy::to(bucket.port());
        let counts = Arc::<Mutex<BTreeMap<String, u64>>>::default();
        let counting = counts.clone();
        proxy.plan(move |_, path| {
            if path.contains("/piece/") {
                *counting.lock().entry(path.to_owned()).or_default() += 1;
            }
            proxy::Fault::None
        });
        Stand { place, bucket, proxy, counts, sources }
    }

    fn mount(&self, name: &str, cache: &str, options: &[&str]) -> Mounted {
        let mut command = tierfs();
        command.envs(self.bucket.environment());
        command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.proxy.port()));
        let cache = self.place.path(cache);
        let options = [&["--cache", cache.to_str().unwrap()], options].concat();
        self.place.mount_store_by(&mut command, PathBuf::from(URL), name, &options)
    }

    /// Reads all files of a mount and compares them.
    fn read(&self, mounted: &Mounted) {
        for (name, source) in FILES.iter().zip(&self.sources) {
            assert_same(&fs::read(mounted.path("acme/m").join(name)).unwrap(), source, name);
        }
    }

    /// The requests for each piece since the last call.
    fn counted(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut *self.counts.lock())
    }

    fn verified(&self, cache: &str) -> serde_json::Value {
        let cache = self.place.path(cache);
        answer(tierfs().arg("cache").arg(cache).args(["--verify", "--json"])).json()
    }
}

mod heavy {
    use super::*;

    const MOUNTS: usize = 10;

    #[test]
    fn ten_mounts_on_one_cache_request_what_one_mount_requests() {
        let stand = Stand::new();
        let alone = stand.mount("alone", "cache-alone", &[]);
        stand.read(&alone);
        alone.unmount();
        let one = stand.counted();
        assert!(one.len() > 4, "{one:?}");
        let mounts: Vec<Mounted> =
            (0..MOUNTS).map(|number| stand.mount(&format!("m{number}"), "cache", &[])).collect();
        std::thread::scope(|scope| {
            for mounted in &mounts {
                scope.spawn(|| stand.read(mounted));
            }
        });
        let ten = stand.counted();
        println!("requests of one mount: {one:?}; of ten: {ten:?}");
        assert!(ten.values().sum::<u64>() <= one.values().sum(), "{ten:?}, by one mount {one:?}");
        let stored: u64 = stand.sources.iter().map(|source| source.len() as u64).sum();
        for mounted in &mounts {
            wait_until("each daemon counts all bytes", || {
                let cached = mounted.stats()["remote"]["cached_bytes"].as_u64().unwrap();
                cached >= stored && cached < stored + (4 << 20)
            });
        }
        mounts.into_iter().for_each(Mounted::unmount);
        assert_eq!(
            stand.verified("cache")["verified"]
                .as_array()
                .unwrap()
                .iter()
                .map(|file| file["dropped"].as_u64().unwrap())
                .sum::<u64>(),
            0
        );
    }

    #[test]
    fn killed_mounts_leave_the_others_all_bytes_and_no_piece_is_fetched_twice_but_those_on_their_way() {
        let stand = Stand::new();
        stand.proxy.slow_down(Duration::from_millis(4));
        let mounts: Vec<Mounted> =
            (0..MOUNTS).map(|number| stand.mount(&format!("m{number}"), "cache", &[])).collect();
        let (killed, living) = mounts.split_at(MOUNTS / 2);
        std::thread::scope(|scope| {
            for mounted in killed {
                // Its reads fail once its daemon is gone.
                scope.spawn(|| FILES.map(|name| drop(fs::read(mounted.path("acme/m").join(name)))));
            }
            for mounted in living {
                scope.spawn(|| stand.read(mounted));
            }
            for mounted in killed {
                std::thread::sleep(Duration::from_millis(150));
                mounted.kill();
            }
        });
        let counts = stand.counted();
        println!("requests with five kills: {counts:?}");
        // The first piece of a file has a request for its first bytes too.
        assert!(counts.values().all(|count| *count <= 2 + killed.len() as u64), "{counts:?}");
        let after = stand.mount("after", "cache", &[]);
        stand.read(&after);
        assert_eq!(stand.counted(), BTreeMap::new());
        after.unmount();
        drop(mounts);
        let verified = stand.verified("cache");
        let dropped: u64 = verified["verified"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| file["dropped"].as_u64().unwrap())
            .sum();
        assert_eq!(dropped, 0, "{verified}");
    }

    #[test]
    fn a_stopped_daemon_does_not_hold_up_the_others() {
        let stand = Stand::new();
        stand.proxy.slow_down(Duration::from_millis(20));
        let (stopped, other) = (stand.mount("stopped", "cache", &[]), stand.mount("other", "cache", &[]));
        let path = stopped.path("acme/m").join(FILES[0]);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_same(&fs::read(&path).unwrap(), &stand.sources[0], "after the stop"));
            wait_until("pieces are on their way", || stand.counts.lock().len() > 2);
            stopped.signal(libc::SIGSTOP);
            stand.proxy.slow_down(Duration::ZERO);
            let begun = Instant::now();
            stand.read(&other);
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
            stopped.signal(libc::SIGCONT);
        });
        stopped.unmount();
        other.unmount();
    }
}
