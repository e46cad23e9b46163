//! Tenants with many collections: directories are shown by the list of them, which pushes write and nobody must trust.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path as FilePath;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use support::{Mounted, Place, answer, as_user, get, run, tierfs};
use tempfile::TempDir;
use tierfs::control::controls;
use tierfs::format::snapshot::keys;
use tierfs::format::snapshot::manifest::Manifest;
use tierfs::format::snapshot::tenant_list::{LIST_BYTES_MAX, TenantList};
use tierfs::model::{ErrorKind, Owner, Silent};
use tierfs::remote::client::{Client, Deadlines};
use tierfs::remote::place::garbage::{Keep, collect};
use tierfs::remote::place::remote::Remote;
use tierfs::remote::push::parameters::Parameters;
use tierfs::remote::push::publish::push;
use tierfs::remote::read::cache::{Cache, Size};
use tierfs::remote::read::files::Source;
use tierfs::remote::read::published_collections::Published;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, SnapshotDisk, Snapshots, Store, Verify};
use tierfs::vfs::{Ino, ListMode, Vfs};

use crate::faulty::{Call, Fault, Faulty};
use crate::push::{pushed, quiet, remote, request, stored};

/// A bucket that answers each request after a while, and listings a thousand keys at a time.
pub struct Far {
    objects: Arc<InMemory>,
    delay: Duration,
    requests: Arc<AtomicU64>,
}

const PAGE: usize = 1000;

impl Far {
    pub fn over(objects: &Arc<InMemory>, delay: Duration) -> Arc<Far> {
        Arc::new(Far { objects: objects.clone(), delay, requests: Arc::default() })
    }

    async fn answered<T>(&self, request: impl Future<Output = T>) -> T {
        self.requests.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(self.delay).await;
        request.await
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Far {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Far")
    }
}

impl fmt::Display for Far {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Far")
    }
}

#[async_trait]
impl ObjectStore for Far {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.answered(self.objects.put_opts(key, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        self.answered(self.objects.get_opts(key, options)).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (requests, delay) = (self.requests.clone(), self.delay);
        let listed = self.objects.list(prefix).enumerate();
        let listed = listed.then(move |(place, object)| {
            let requests = requests.clone();
            async move {
                if place % PAGE == 0 {
                    requests.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(delay).await;
                }
                object
            }
        });
        listed.boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.answered(self.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

fn mounted(bucket: &Arc<Far>, cache: &FilePath) -> Vfs {
    mounted_by(Client::over(bucket.clone(), "models", "memory://models", Deadlines::default()), cache)
}

fn mounted_by(client: Client, cache: &FilePath) -> Vfs {
    let (remote, listing) = Remote::open_and_list(client).unwrap();
    let cache = Cache::open(cache, Size::Bytes(1 << 30)).unwrap();
    let source = Source::new(remote, Some(cache), Box::new(|path, text| panic!("{path}: {text}")));
    let published = Published::new(source, HashMap::new()).with_listing(listing);
    let store = Arc::new(SnapshotDisk::new(Arc::new(published))).open_store().unwrap();
    Vfs::new(Arc::new(store), ListMode::Files, Verify::First, Owner { uid: 0, gid: 0 }, controls())
}

/// The names in the directory of the tenant, with modes and times.
fn listed(vfs: &Vfs) -> BTreeMap<String, (u32, i64)> {
    let (tenant, _) = vfs.lookup(Ino::ROOT, b"acme").unwrap();
    let mut found = BTreeMap::new();
    let mut take = |listed: tierfs::vfs::Listed| {
        found.insert(String::from_utf8(listed.name).unwrap(), (listed.attr.mode, listed.attr.mtime));
        true
    };
    vfs.list(tenant, 0, &mut take).unwrap();
    found.retain(|name, _| !name.starts_with('.'));
    found
}

/// A bucket with this many collections, each with one snapshot, as an older program pushed them.
fn many(count: u32) -> Arc<InMemory> {
    let (place, objects) = (stored(), Arc::new(InMemory::new()));
    pushed(&place, &quiet(&objects), 1).unwrap();
    let client = quiet(&objects).client();
    let bytes = client.get(&keys::snapshot("acme", "m", 1), 1 << 20).unwrap().unwrap();
    let mut manifest = Manifest::parse(&bytes).unwrap();
    for number in 0..count {
        manifest.collection.name = format!("c{number:05}");
        manifest.collection.owner.mode = 0o700 + number % 64;
        let (name, bytes) = (&manifest.collection.name, Bytes::from(manifest.to_bytes().unwrap()));
        client.put(&keys::snapshot("acme", name, 1), bytes).unwrap();
        client.put(&keys::head("acme", name), Bytes::from(format!("{:016x}", 1))).unwrap();
    }
    objects
}

const KEEP: Keep =
    Keep { last: 3, younger: Duration::from_secs(7 * 86_400), grace: Duration::from_secs(86_400) };

#[test]
fn ten_thousand_collections_are_listed_in_few_requests_once_garbage_was_collected() {
    let objects = many(9_999);
    collect(&Remote::open(quiet(&objects).client()).unwrap(), &KEEP, false).unwrap();
    let (bucket, folder) = (Far::over(&objects, Duration::from_millis(25)), TempDir::new().unwrap());
    let begun = Instant::now();
    let vfs = mounted(&bucket, folder.path());
    let of_mount = bucket.requests();
    let found = listed(&vfs);
    let (took, requests) = (begun.elapsed(), bucket.requests() - of_mount);
    println!("{} collections in {took:?} by {requests} requests after {of_mount}", found.len());
    assert_eq!((found.len(), of_mount), (10_000, 2));
    assert!((0..9_999_u32).all(|number| found[&format!("c{number:05}")].0 == 0o700 + number % 64));
    // Ten pages of hints, the list, the names of tenants, and the manifest that says who owns the tenant.
    assert!(requests <= 15, "{requests}");
    assert!(took < Duration::from_millis(1500), "{took:?}");
    assert!(vfs.store().open_collections().is_empty());
    // The first look into one opens that one.
    let (tenant, _) = vfs.lookup(Ino::ROOT, b"acme").unwrap();
    let attr = vfs.look_up_unopened(tenant, b"c00007").unwrap();
    let mut names = Vec::new();
    let mut look = || {
        vfs.list(attr.ino, 0, &mut |listed| {
            names.push(listed.name);
            true
        })
    };
    // It has another mode: whoever was let in by that of the list is not, until the kernel has the right one.
    assert_eq!(look().unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(look().unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(vfs.take_pending_invalidations().nodes, [attr.ino]);
    assert_ne!(vfs.stat(attr.ino).unwrap().mode, attr.mode);
    look().unwrap();
    assert!(names.contains(&b"config.json".to_vec()));
    assert_eq!(vfs.store().open_collections().len(), 1);
    assert!(vfs.look_up_unopened(tenant, b"c00007").is_none());
    assert_eq!(vfs.lookup(tenant, b"c00007").unwrap().0, attr.ino, "the number stays");
}

#[test]
fn collections_without_entries_are_shown_by_their_manifests_many_at_a_time() {
    let objects = many(1200);
    let (bucket, folder) = (Far::over(&objects, Duration::from_millis(20)), TempDir::new().unwrap());
    let vfs = mounted(&bucket, folder.path());
    let begun = Instant::now();
    let found = listed(&vfs);
    let (took, requests) = (begun.elapsed(), bucket.requests());
    println!("{} collections in {took:?} by {requests} requests", found.len());
    assert_eq!(found.len(), 1201);
    assert_eq!(found["c00009"].0, 0o711);
    assert!(vfs.store().open_collections().is_empty());
    // One after another they would take more than a minute.
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// Requests that last as long as those of a real server, but are given up sooner.
const PATIENT: Deadlines = Deadlines {
    stall: Duration::from_millis(500),
    silence: Duration::from_secs(1),
    upload: Duration::from_secs(10),
    total: Duration::from_secs(6),
    pause: Duration::from_millis(20),
    pause_max: Duration::from_secs(1),
};

/// A bucket whose server never answers for the snapshots of ten collections, `c00000` to `c00009`, while `hangs` is set.
fn with_ten_hanging(objects: &Arc<InMemory>, hangs: &Arc<AtomicBool>) -> Client {
    let hangs = hangs.clone();
    let bucket = Faulty::over(objects, move |request| {
        let is_one = request.key.contains("/acme/c0000") && request.call == Call::Get;
        if is_one && hangs.load(Ordering::SeqCst) { Fault::Hangs } else { Fault::None }
    });
    Client::over(bucket, "models", "memory://models", PATIENT)
}

#[test]
fn ten_collections_of_a_hundred_that_hang_cost_a_listing_one_timeout_and_hide_no_other() {
    // The others are listed by their manifests, or by the entries of the tenant's list.
    for has_list in [false, true] {
        let (objects, folder) = (many(100), TempDir::new().unwrap());
        if has_list {
            collect(&Remote::open(quiet(&objects).client()).unwrap(), &KEEP, false).unwrap();
        }
        let hangs = Arc::new(AtomicBool::new(true));
        let vfs = mounted_by(with_ten_hanging(&objects, &hangs), folder.path());
        let (tenant, _) = vfs.lookup(Ino::ROOT, b"acme").unwrap();
        let begun = Instant::now();
        assert_eq!(vfs.stat(tenant).unwrap().mode, 0o755, "another collection says it");
        let looked = begun.elapsed();
        let found = listed(&vfs);
        println!("{} collections in {:?}, {looked:?} for the tenant", found.len(), begun.elapsed());
        let hanging = if has_list { 0 } else { 10 };
        assert!((hanging..100_u32).all(|number| found[&format!("c{number:05}")].0 == 0o700 + number % 64));
        assert_eq!(found.len(), 101 - hanging as usize);
        assert!(begun.elapsed() < PATIENT.total * 2, "{:?}", begun.elapsed());
        // The next listing knows them.
        let begun = Instant::now();
        assert_eq!(listed(&vfs).len(), found.len());
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    }
}

#[test]
fn others_go_on_while_a_program_waits_for_collections_that_hang() {
    let (objects, folder, hangs) = (many(100), TempDir::new().unwrap(), Arc::new(AtomicBool::new(true)));
    let vfs = mounted_by(with_ten_hanging(&objects, &hangs), folder.path());
    let (tenant, _) = vfs.lookup(Ino::ROOT, b"acme").unwrap();
    vfs.stat(tenant).unwrap();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..10)
            .map(|number| {
                let vfs = &vfs;
                let name = format!("c{number:05}");
                scope.spawn(move || {
                    let begun = Instant::now();
                    let error = vfs.lookup(tenant, name.as_bytes()).err().unwrap();
                    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                    begun.elapsed()
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        let begun = Instant::now();
        let (collection, _) = vfs.lookup(tenant, b"m").unwrap();
        vfs.list(collection, 0, &mut |_| true).unwrap();
        let took = begun.elapsed();
        println!("another collection was opened in {took:?}");
        assert!(took < PATIENT.total / 2, "{took:?}");
        for waiting in waiting {
            let took = waiting.join().unwrap();
            assert!(took < PATIENT.total + Duration::from_secs(2), "they wait together: {took:?}");
        }
    });
    hangs.store(false, Ordering::SeqCst);
    vfs.lookup(tenant, b"c00003").unwrap();
}

/// The threads of this process that read manifests for listings.
fn readers() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.trim() == "manifest").count()
}

#[test]
fn listings_of_a_silent_remote_that_are_repeated_wait_with_a_bounded_number_of_threads() {
    const HANGING: usize = 50;
    let (objects, folder) = (many(HANGING as u32), TempDir::new().unwrap());
    let bucket = Faulty::over(&objects, |request| {
        let is_one = request.key.contains("/acme/c") && request.call == Call::Get;
        if is_one { Fault::Hangs } else { Fault::None }
    });
    // The deadline of a request is later than the end of the test.
    let deadlines = Deadlines { total: Duration::from_secs(60), ..PATIENT };
    let (remote, listing) =
        Remote::open_and_list(Client::over(bucket, "models", "memory://models", deadlines)).unwrap();
    let cache = Cache::open(folder.path(), Size::Bytes(1 << 30)).unwrap();
    let source = Source::new(remote, Some(cache), Box::new(|path, text| println!("{path}: {text}")));
    let published = Published::new(source, HashMap::new()).with_listing(listing);
    for round in 0..6 {
        let begun = Instant::now();
        let entries = published.entries("acme").unwrap().unwrap();
        println!("{} entries in {:?}, {} threads", entries.entries.len(), begun.elapsed(), readers());
        assert_eq!(entries.entries.keys().collect::<Vec<_>>(), ["m"], "{round}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        // Two listings may begin at the same time.
        assert!(readers() <= 2 * HANGING, "{} threads", readers());
        published.list_again();
        std::thread::sleep(Duration::from_millis(1500));
    }
}

#[test]
fn a_tenant_whose_collections_cannot_be_read_is_closed_only_until_they_can() {
    let (objects, folder) = (many(3), TempDir::new().unwrap());
    let fails = Arc::new(AtomicBool::new(true));
    let bucket = Faulty::over(&objects, {
        let fails = fails.clone();
        move |request| {
            let is_manifest = request.key.contains("/acme/") && request.call == Call::Get;
            if is_manifest && fails.load(Ordering::SeqCst) { Fault::Denied } else { Fault::None }
        }
    });
    let vfs = mounted_by(bucket.client(), folder.path());
    let (tenant, _) = vfs.lookup(Ino::ROOT, b"acme").unwrap();
    assert_eq!(vfs.stat(tenant).unwrap().mode, 0o700);
    let before = bucket.requests();
    assert_eq!(vfs.stat(tenant).unwrap().mode, 0o700);
    assert_eq!(bucket.requests(), before, "it is not asked for again at once");
    fails.store(false, Ordering::SeqCst);
    support::wait_until("the tenant is as its manifests say", || vfs.stat(tenant).unwrap().mode == 0o755);
}

/// The list of the tenant as it is stored.
fn stored_list(objects: &Arc<InMemory>) -> TenantList {
    let bytes = quiet(objects).client().get("list/acme", 1 << 20).unwrap().unwrap();
    TenantList::parse(&bytes).unwrap()
}

#[test]
fn pushes_at_the_same_time_lose_no_entry_of_each_other() {
    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let (place, objects) = (stored(), Arc::new(InMemory::new()));
    for name in NAMES {
        place.import(&format!("acme/{name}"), &[&place.path("in/config.json")], &[]);
    }
    pushed(&place, &quiet(&objects), 1).unwrap();
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test").unwrap();
    let collections = NAMES.map(|name| store.collection("acme", name).unwrap());
    let bucket = fs::canonicalize(place.store()).unwrap().with_file_name("bucket");
    fs::create_dir(&bucket).unwrap();
    // A directory cannot compare ETags: what is lost comes back with the next collection of garbage.
    let directory = format!("file://{}", bucket.display());
    let of_directory = Client::open(&directory).unwrap();
    Remote::open_or_create(of_directory.clone(), tierfs::model::StoreId(5), 1).unwrap();
    for (client, compares) in [(quiet(&objects).client(), true), (of_directory, false)] {
        let remote = Remote::open(client.clone()).unwrap();
        std::thread::scope(|scope| {
            for (number, name) in (10..).zip(NAMES) {
                let (remote, collection) = (&remote, &collections[number as usize - 10]);
                let request = Parameters { collection: name.to_owned(), ..request(number) };
                scope.spawn(move || push(remote, collection, &request, &Silent).unwrap());
            }
        });
        if !compares {
            collect(&remote, &KEEP, false).unwrap();
        }
        let list = TenantList::parse(&client.get("list/acme", 1 << 20).unwrap().unwrap()).unwrap();
        for name in NAMES {
            let head = client.list("head/acme", None).unwrap();
            let head = head.iter().find(|head| head.key.ends_with(name)).unwrap();
            assert_eq!((list.0[name].number, &*list.0[name].head), (1, head.e_tag()), "{name}");
        }
    }
}

#[test]
fn a_collection_of_garbage_makes_the_list_anew_and_keeps_what_pushes_know() {
    let (place, objects) = (stored(), Arc::new(InMemory::new()));
    pushed(&place, &quiet(&objects), 1).unwrap();
    let by_push = stored_list(&objects);
    assert_ne!(by_push.0["m"].directory.links, 1);
    let (client, remote) = (quiet(&objects).client(), remote(&quiet(&objects)).unwrap());
    collect(&remote, &KEEP, false).unwrap();
    assert_eq!(stored_list(&objects), by_push);
    let mut wrong = by_push.clone();
    wrong.0.insert("gone".to_owned(), by_push.0["m"].clone());
    let texts = [wrong.to_text(), "no list".to_owned(), String::new()];
    for text in texts {
        client.put("list/acme", Bytes::from(text)).unwrap();
        collect(&remote, &KEEP, false).unwrap();
        let found = stored_list(&objects);
        let of = |list: &TenantList| (list.0["m"].number, list.0["m"].digest, list.0["m"].head.clone());
        assert_eq!((found.0.len(), of(&found)), (1, of(&by_push)));
    }
    client.delete(&["list/acme".to_owned(), "head/acme/m".to_owned()]).unwrap();
    collect(&remote, &KEEP, false).unwrap();
    assert_eq!(stored_list(&objects).0["m"].number, 1);
    assert_eq!(client.get("head/acme/m", 99).unwrap().unwrap(), b"0000000000000001");
}

struct Stand {
    place: Place,
    url: String,
}

impl Stand {
    /// A store with two collections, pushed to a directory.
    fn new() -> Stand {
        let place = Place::new();
        run([FilePath::new("init"), &place.store()]).ok();
        for (name, text) in [("a", "first"), ("b", "second")] {
            place.write(&format!("{name}/x/deep/file.txt"), text);
            place.write(&format!("{name}/y/file.txt"), text);
            place.import(&format!("acme/{name}"), &[&place.path(name)], &[]);
        }
        let mounted = place.mount(&[]);
        fs::set_permissions(mounted.path("acme/b"), fs::Permissions::from_mode(0o2750)).unwrap();
        chown(mounted.path("acme/b"), Some(12), Some(34)).unwrap();
        mounted.unmount();
        fs::create_dir(place.path("bucket")).unwrap();
        let url = format!("file://{}", place.path("bucket").display());
        let stand = Stand { place, url };
        stand.push("acme/a", &["--create"]);
        stand.push("acme/b", &[]);
        stand
    }

    fn push(&self, collection: &str, options: &[&str]) {
        let mut command = tierfs();
        answer(command.arg("push").arg(self.place.store()).args([collection, &self.url]).args(options)).ok();
    }

    fn mount(&self, cache: &str) -> Mounted {
        let cache = self.place.path(cache);
        let options = ["--cache", cache.to_str().unwrap()];
        self.place.mount_store_by(&mut tierfs(), (&self.url).into(), "remote", &options)
    }

    /// The number of collections whose logs were read.
    fn opened(&self, cache: &str) -> usize {
        fs::read_dir(self.place.path(cache).join("log")).unwrap().count()
    }
}

/// The attributes of both collections.
fn stats(mounted: &Mounted) -> Vec<(u64, u32, u64, u32, u32, i64, i64)> {
    let stat = |name| {
        let found = fs::metadata(mounted.path("acme").join(name)).unwrap();
        let (mode, links) = (found.mode(), found.nlink());
        (found.ino(), mode, links, found.uid(), found.gid(), found.mtime_nsec(), found.ctime_nsec())
    };
    vec![stat("a"), stat("b")]
}

fn list(mounted: &Mounted) -> String {
    let listed = Command::new("ls").arg("-ln").arg(mounted.path("acme")).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8(listed.stdout).unwrap()
}

#[test]
fn a_listing_with_attributes_opens_nothing_and_says_what_a_look_inside_says() {
    let stand = Stand::new();
    let mounted = stand.mount("cache");
    let text = list(&mounted);
    assert!(text.contains("drwxr-s--- 4 12 34"), "{text}");
    let before = stats(&mounted);
    assert_eq!(stand.opened("cache"), 0, "nothing is opened");
    assert_eq!(fs::read_to_string(mounted.path("acme/b/y/file.txt")).unwrap(), "second");
    assert_eq!(stand.opened("cache"), 1, "only what is entered is opened");
    assert_eq!(get(&mounted.path("acme/a"), "snapshot"), "1");
    assert_eq!(fs::read_to_string(mounted.path("acme/a/x/deep/file.txt")).unwrap(), "first");
    assert_eq!(stats(&mounted), before);
    assert_eq!(list(&mounted), text);
    mounted.unmount();
    // A removed collection leaves the list, and its directory.
    answer(tierfs().args(["rm", &stand.url, "acme/a"])).ok();
    let mounted = stand.mount("other");
    assert_eq!(support::names(&mounted.path("acme")), ["b"]);
    mounted.unmount();
}

#[test]
fn a_list_that_is_missing_old_wrong_or_made_up_shows_no_wrong_name_and_no_wrong_byte() {
    let stand = Stand::new();
    let path = stand.place.path("bucket/list/acme");
    let old = fs::read_to_string(&path).unwrap();
    stand.place.write("more/new.txt", "new");
    stand.place.import("acme/a", &[&stand.place.path("more/new.txt")], &[]);
    stand.push("acme/a", &[]);
    let new = fs::read_to_string(&path).unwrap();
    assert_eq!(new.lines().count(), 3);
    let made_up = format!("{new}zzz{}\n", &new.lines().nth(1).unwrap()[1..]);
    let later = new.replace("0000000000000002", "0000000000000063");
    let other = new.replace(" shown ", " removed ");
    let without = new
        .lines()
        .filter(|line| !line.starts_with("b "))
        .fold(String::new(), |text, line| text + line + "\n");
    let lists = [
        None,
        Some(&old),
        Some(&made_up),
        Some(&later),
        Some(&without),
        Some(&"\0".repeat(99)),
        Some(&other),
    ];
    for (number, text) in lists.into_iter().enumerate() {
        match text {
            None => fs::remove_file(&path).unwrap(),
            Some(text) => fs::write(&path, text).unwrap(),
        }
        let cache = format!("cache{number}");
        let mounted = stand.mount(&cache);
        let text = list(&mounted);
        assert!(text.contains("drwxr-s--- ") && text.contains(" 12 34 "), "{number}: {text}");
        assert_eq!(stand.opened(&cache), 0, "{number}");
        assert_eq!(support::names(&mounted.path("acme")), ["a", "b"], "{number}");
        for (name, wanted) in [("a/new.txt", "new"), ("a/y/file.txt", "first"), ("b/y/file.txt", "second")] {
            assert_eq!(fs::read_to_string(mounted.path("acme").join(name)).unwrap(), wanted, "{number}");
        }
        assert_eq!(get(&mounted.path("acme/a"), "snapshot"), "2");
        mounted.unmount();
    }
}

#[test]
fn a_list_lets_nobody_into_a_collection_that_its_owner_keeps_closed() {
    let stand = Stand::new();
    let (path, cache) = (stand.place.path("bucket/list/acme"), stand.place.path("cache"));
    // The manifests of the first ones are read for the owner of the tenant.
    for name in ["acme/a1", "acme/a2", "acme/a3", "acme/a4"] {
        stand.place.import(name, &[&stand.place.path("a")], &[]);
        stand.push(name, &[]);
    }
    let mut listed = TenantList::parse(&fs::read(&path).unwrap()).unwrap();
    let hint = listed.0.get_mut("b").unwrap();
    (hint.owner.mode, hint.owner.uid) = (0o777, 65534);
    fs::write(&path, listed.to_text()).unwrap();
    let options = ["--allow-other", "--cache", cache.to_str().unwrap()];
    let mounted = stand.place.mount_store_by(&mut tierfs(), (&stand.url).into(), "remote", &options);
    let text = list(&mounted);
    assert!(text.contains("drwxrwxrwx"), "{text}");
    let by = |user, line| as_user(user, user, &mounted.mountpoint, line);
    let inside = by(65534, "cd acme/b && cat y/file.txt");
    assert!(inside.out.is_empty() && inside.code != Some(0), "{inside:?}");
    for line in ["cat acme/b/y/file.txt", "ls acme/b", "cat acme/b/.ctl/status"] {
        let answer = by(65534, line);
        assert!(answer.out.is_empty() && answer.err.contains("Permission denied"), "{line}: {answer:?}");
    }
    assert_eq!(by(12, "cat acme/b/y/file.txt").out, "second");
    assert!(list(&mounted).contains("drwxr-s--- 4 12 34"));
    mounted.unmount();
}

#[test]
fn a_list_that_cannot_be_read_hinders_no_directory_push_or_collection_of_garbage() {
    let stand = Stand::new();
    let (path, cache) = (stand.place.path("bucket/list/acme"), stand.place.path("cache"));
    let spoil = || fs::File::create(&path).unwrap().set_len(LIST_BYTES_MAX + 1).unwrap();
    spoil();
    let options = ["--cache", cache.to_str().unwrap(), "--follow", "0.2"];
    let mounted = stand.place.mount_store_by(&mut tierfs(), (&stand.url).into(), "remote", &options);
    assert!(list(&mounted).contains("drwxr-s--- "));
    assert_eq!(get(&mounted.path("acme/a"), "snapshot"), "1");
    stand.place.write("more/new.txt", "new");
    stand.place.import("acme/a", &[&stand.place.path("more/new.txt")], &[]);
    stand.push("acme/a", &[]);
    let numbers = || TenantList::parse(&fs::read(&path).unwrap()).unwrap().0.len();
    assert_eq!(numbers(), 1, "the push has made it anew");
    spoil();
    fs::write(stand.place.path("bucket/tierfs.pushed"), "0".repeat(32)).unwrap();
    support::wait_until("the push is shown", || get(&mounted.path("acme/a"), "snapshot") == "2");
    answer(tierfs().args(["gc", &stand.url])).ok();
    assert_eq!(numbers(), 2);
    mounted.unmount();
}

#[test]
fn a_push_without_a_note_is_shown_while_others_push_all_the_time() {
    let stand = Stand::new();
    let (path, pushed) = (stand.place.path("bucket/list/acme"), stand.place.path("bucket/tierfs.pushed"));
    let old = fs::read(&path).unwrap();
    let cache = stand.place.path("cache");
    let options = ["--cache", cache.to_str().unwrap(), "--follow", "0.2"];
    let mounted = stand.place.mount_store_by(&mut tierfs(), (&stand.url).into(), "remote", &options);
    assert_eq!(get(&mounted.path("acme/a"), "snapshot"), "1");
    for (number, is_noted) in [("2", false), ("3", true)] {
        stand.place.write("more/new.txt", number);
        stand.place.import("acme/a", &[&stand.place.path("more/new.txt")], &[]);
        let before = fs::read(&pushed).unwrap_or_else(|_| b"0".repeat(32));
        stand.push("acme/a", &[]);
        fs::write(&path, &old).unwrap();
        match is_noted {
            true => fs::write(&pushed, before).unwrap(),
            false => fs::remove_file(&pushed).unwrap(),
        }
        let mut others = 0_u128;
        support::wait_until("the push is shown", || {
            if is_noted {
                others += 1;
                fs::write(&pushed, format!("{others:032x}")).unwrap();
            }
            get(&mounted.path("acme/a"), "snapshot") == number
        });
    }
    mounted.unmount();
}

#[test]
fn a_mount_that_follows_asks_only_for_collections_that_were_pushed() {
    let stand = Stand::new();
    let cache = stand.place.path("cache");
    let options = ["--cache", cache.to_str().unwrap(), "--follow", "0.2"];
    let mounted = stand.place.mount_store_by(&mut tierfs(), (&stand.url).into(), "remote", &options);
    for name in ["a", "b"] {
        assert_eq!(get(&mounted.path("acme").join(name), "snapshot"), "1");
    }
    stand.place.write("more/new.txt", "new");
    stand.place.import("acme/a", &[&stand.place.path("more/new.txt")], &[]);
    stand.push("acme/a", &[]);
    support::wait_until("the push is shown", || get(&mounted.path("acme/a"), "snapshot") == "2");
    assert_eq!(get(&mounted.path("acme/b"), "snapshot"), "1");
    // An entry that names another number than the remote has leads nowhere.
    let path = stand.place.path("bucket/list/acme");
    let text = fs::read_to_string(&path).unwrap().replace("0000000000000002", "0000000000000009");
    fs::write(&path, text).unwrap();
    fs::write(stand.place.path("bucket/tierfs.pushed"), "0".repeat(32)).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(get(&mounted.path("acme/a"), "snapshot"), "2");
    assert_eq!(fs::read_to_string(mounted.path("acme/a/new.txt")).unwrap(), "new");
    mounted.unmount();
}
