//! Round trips: how many requests wait for the answer of another before a reader has its bytes.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tierfs::model::{CollectionName, Silent};
use tierfs::remote::client::{Client, Deadlines};
use tierfs::remote::place::remote::Remote;
use tierfs::remote::push::parameters::Parameters;
use tierfs::remote::push::publish::push;
use tierfs::remote::read::cache::{Cache, Size};
use tierfs::remote::read::files::Source;
use tierfs::remote::read::published_collections::Published;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, OpenObject, SnapshotDisk, Store, Verify};
use tierfs::stream::{Segment, Stream};

use crate::push::{pushed, quiet, remote, request, stored};

/// A bucket far away. A request is in the round after the last one that was answered when it began.
pub struct Rounds {
    objects: Arc<InMemory>,
    answered: Arc<AtomicU64>,
    /// The requests with their rounds.
    requests: Mutex<Vec<(u64, String)>>,
}

/// Long enough for requests of one moment to begin in it.
const FAR: Duration = Duration::from_millis(250);

impl Rounds {
    pub fn over(objects: &Arc<InMemory>) -> Arc<Rounds> {
        let (objects, requests) = (objects.clone(), Mutex::default());
        Arc::new(Rounds { objects, answered: Arc::default(), requests })
    }

    /// The rounds so far.
    pub fn count(&self) -> u64 {
        self.answered.load(Ordering::SeqCst)
    }

    /// The keys that were requested since the last call, with their rounds.
    pub fn requests(&self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.requests.lock())
    }

    pub fn client(self: &Arc<Rounds>) -> Client {
        Client::over(self.clone(), "models", "memory://models", Deadlines::default())
    }

    async fn round<T>(&self, key: &str, request: impl Future<Output = T>) -> T {
        let round = self.count() + 1;
        self.requests.lock().push((round, key.strip_prefix("models/").unwrap_or(key).to_owned()));
        tokio::time::sleep(FAR).await;
        let done = request.await;
        self.answered.fetch_max(round, Ordering::SeqCst);
        done
    }
}

impl fmt::Debug for Rounds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Rounds")
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Rounds")
    }
}

#[async_trait]
impl ObjectStore for Rounds {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.round(key.as_ref(), self.objects.put_opts(key, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        let range = options.range.as_ref().map_or_else(String::new, |range| format!(" {range}"));
        self.round(&format!("{key}{range}"), self.objects.get_opts(key, options)).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let round = self.count() + 1;
        let key = prefix.map(Path::to_string).unwrap_or_default();
        self.requests.lock().push((round, format!("list {key}")));
        let (objects, answered) = (self.objects.list(prefix), self.answered.clone());
        let late = async move {
            tokio::time::sleep(FAR).await;
            answered.fetch_max(round, Ordering::SeqCst);
            objects
        };
        stream::once(late).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let key = prefix.map(Path::to_string).unwrap_or_default();
        self.round(&format!("list {key}"), self.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// A mount of the bucket that has just answered.
pub fn mounted(bucket: &Arc<Rounds>, cache: &FilePath) -> Arc<Store> {
    let (remote, listing) = Remote::open_and_list(bucket.client()).unwrap();
    let cache = Cache::open(cache, Size::Bytes(1 << 30)).unwrap();
    let source = Source::new(remote, Some(cache), Box::new(|path, text| panic!("{path}: {text}")));
    let published = Published::new(source, HashMap::new()).with_listing(listing);
    Arc::new(Arc::new(SnapshotDisk::new(Arc::new(published))).open_store().unwrap())
}

/// Looks a tensor up as the kernel does, name by name, and reads a part of it.
pub fn first_bytes(
    store: &Arc<Store>,
    CollectionName { tenant, name }: CollectionName<'_>,
    path: &str,
    range: Range<u64>,
) -> Vec<u8> {
    assert!(store.tenants().unwrap().iter().any(|known| known == tenant));
    assert_eq!(store.tenant(tenant).entry().mode, 0o755);
    assert!(store.collections(tenant).unwrap().iter().any(|known| known == name));
    let collection = store.collection(tenant, name).unwrap();
    let node = {
        let state = collection.state();
        state.nodes().map(|node| node.entry.id).find(|id| state.path(*id) == path.as_bytes()).unwrap()
    };
    let objects = collection.objects_of(node).unwrap();
    let open = |object| Segment::Object(OpenObject::open(&collection, object, Verify::First).unwrap());
    let stream = Stream::new(objects.iter().map(open).collect()).unwrap();
    let mut bytes = vec![0; (range.end - range.start) as usize];
    stream.read(range.start, &mut bytes).unwrap();
    bytes
}

/// The place of 4 KiB in one block of the large file.
pub const PART: Range<u64> = (7 << 20) + 50_000..(7 << 20) + 54_096;

/// A bucket with `acme/m` and the same collection under other names, and the bytes of [`PART`].
pub fn published(others: &[&str]) -> (Arc<InMemory>, support::Place, Vec<u8>) {
    let (place, objects) = (stored(), Arc::new(InMemory::new()));
    pushed(&place, &quiet(&objects), 1).unwrap();
    for (number, other) in (2..).zip(others) {
        push_as(&place, &objects, other, number);
    }
    let source = std::fs::read(place.path("in/large.safetensors")).unwrap();
    (objects, place, source[PART.start as usize..PART.end as usize].to_vec())
}

pub fn push_as(place: &support::Place, objects: &Arc<InMemory>, name: &str, number: u128) {
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test").unwrap();
    let request = Parameters { collection: name.to_owned(), ..request(number) };
    push(&remote(&quiet(objects)).unwrap(), &store.collection("acme", "m").unwrap(), &request, &Silent)
        .unwrap();
}

#[test]
fn the_first_bytes_of_a_tensor_take_three_round_trips_after_the_mount() {
    let (objects, _place, wanted) = published(&["n", "z"]);
    // Alone, and as the last of a tenant's collections.
    for name in ["m", "z"] {
        let (bucket, folder) = (Rounds::over(&objects), TempDir::new().unwrap());
        let store = mounted(&bucket, folder.path());
        let at_mount = bucket.count();
        assert_eq!(at_mount, 1, "{:?}", bucket.requests());
        let found = first_bytes(&store, CollectionName::new("acme", name), "large.safetensors", PART);
        let rounds = bucket.count() - at_mount;
        assert!(found == wanted);
        assert!(rounds <= 3, "{rounds} rounds: {:?}", bucket.requests());
    }
}

#[test]
fn a_remote_that_one_listing_does_not_hold_is_listed_by_directory() {
    let (objects, _place, wanted) = published(&[]);
    let client = quiet(&objects).client();
    for number in 0..1000 {
        client.put(&format!("snap/acme/old/{number:016x}"), Bytes::new()).unwrap();
    }
    client.put("head/acme/old", Bytes::from(format!("{:016x}", 999))).unwrap();
    let (bucket, folder) = (Rounds::over(&objects), TempDir::new().unwrap());
    let store = mounted(&bucket, folder.path());
    assert!(first_bytes(&store, CollectionName::new("acme", "m"), "large.safetensors", PART) == wanted);
    assert_eq!(store.collections("acme").unwrap(), ["m", "old"]);
    // One whose hint is missing, since its push was killed, is opened by its name.
    client.delete(&["head/acme/m".to_owned()]).unwrap();
    let folder = TempDir::new().unwrap();
    let store = mounted(&Rounds::over(&objects), folder.path());
    assert_eq!(store.collections("acme").unwrap(), ["old"]);
    assert!(store.collection("acme", "m").is_ok());
}

#[test]
fn the_newest_snapshot_is_shown_whatever_was_listed_and_whatever_the_hint_says() {
    let (objects, place, _) = published(&[]);
    let (bucket, folder) = (Rounds::over(&objects), TempDir::new().unwrap());
    // Listed before the others are pushed.
    let store = mounted(&bucket, folder.path());
    for (number, name) in (2..).zip(["two.json", "three.json"]) {
        place.import("acme/m", &[&place.write(name, b"{}")], &[]);
        push_as(&place, &objects, "m", number);
    }
    assert_eq!(first_bytes(&store, CollectionName::new("acme", "m"), "three.json", 0..2), b"{}");
    drop(store);
    let client = quiet(&objects).client();
    let head = "head/acme/m";
    for hint in ["0000000000000001", "0000000000000002", "0000000000000063", "no number"] {
        client.put(head, Bytes::from(hint)).unwrap();
        let store = mounted(&Rounds::over(&objects), folder.path());
        assert_eq!(
            first_bytes(&store, CollectionName::new("acme", "m"), "three.json", 0..2),
            b"{}",
            "{hint}"
        );
    }
    client.delete(&[head.to_owned()]).unwrap();
    let store = mounted(&Rounds::over(&objects), folder.path());
    assert_eq!(first_bytes(&store, CollectionName::new("acme", "m"), "three.json", 0..2), b"{}");
    drop(store);
    // The listed snapshot and its successor are collected, so only the hint leads to the newest.
    let store = mounted(&Rounds::over(&objects), folder.path());
    place.import("acme/m", &[&place.write("four.json", b"{}")], &[]);
    push_as(&place, &objects, "m", 4);
    place.import("acme/m", &[&place.write("five.json", b"{}")], &[]);
    push_as(&place, &objects, "m", 5);
    let gone = (1..5).map(|number| format!("snap/acme/m/{number:016x}"));
    client.delete(&gone.collect::<Vec<_>>()).unwrap();
    assert_eq!(first_bytes(&store, CollectionName::new("acme", "m"), "five.json", 0..2), b"{}");
    drop(store);
    // Without a hint, what was listed is listed again.
    let store = mounted(&Rounds::over(&objects), folder.path());
    place.import("acme/m", &[&place.write("six.json", b"{}")], &[]);
    push_as(&place, &objects, "m", 6);
    place.import("acme/m", &[&place.write("seven.json", b"{}")], &[]);
    push_as(&place, &objects, "m", 7);
    client
        .delete(&[head.to_owned(), format!("snap/acme/m/{:016x}", 5), format!("snap/acme/m/{:016x}", 6)])
        .unwrap();
    assert_eq!(first_bytes(&store, CollectionName::new("acme", "m"), "seven.json", 0..2), b"{}");
}
