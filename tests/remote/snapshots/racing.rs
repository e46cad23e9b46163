//! Collections of a remote that are opened while others, or they themselves, get newer snapshots all the time.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, OnceLock, Weak};
use std::time::Duration;

use tierfs::control::controls;
use tierfs::ingest::Options;
use tierfs::model::{CollectionName, ErrorKind, Owner, StoreId};
use tierfs::store::disk::Disk;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::{Directories, Frozen, Snapshot, SnapshotDisk, SnapshotFiles, Snapshots, Store, Verify};
use tierfs::vfs::{Ino, ListMode, Vfs};

use super::memory::Remote;
use crate::fixture::{create, import};

/// Reads of a log after which no newer snapshots come, so that no test goes on for ever.
const READS_MAX: u32 = 60;

/// A remote that shows a newer snapshot of `renewed` whenever the log of `c` is read.
#[derive(Clone)]
struct Racing {
    remote: Remote,
    renewed: &'static str,
    fails: bool,
    delay: Duration,
    /// How often the log of `c` was read from its beginning.
    reads: Arc<AtomicU32>,
    frozen: Arc<Frozen>,
    disk: Arc<OnceLock<Weak<SnapshotDisk>>>,
}

impl Racing {
    fn new(renewed: &'static str) -> Racing {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        let collection = create(&disk);
        import(&collection, "f", b"bytes", &Options::default()).unwrap();
        let (remote, frozen) = (Remote::default(), Arc::new(Frozen::of(&collection).unwrap()));
        for name in ["c", "other"] {
            remote.push(&frozen, CollectionName::new("t", name));
        }
        let (reads, disk) = (Arc::default(), Arc::default());
        Racing { remote, renewed, fails: false, delay: Duration::ZERO, reads, frozen, disk }
    }

    fn store(&self) -> Store {
        let disk = Arc::new(SnapshotDisk::new(Arc::new(self.clone())));
        self.disk.set(Arc::downgrade(&disk)).unwrap();
        disk.open_store().unwrap()
    }

    fn reads(&self) -> u32 {
        self.reads.load(Ordering::SeqCst)
    }
}

impl Snapshots for Racing {
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
        Ok(found.map(|found| match collection {
            "c" => {
                Snapshot { files: Arc::new(Files { of: self.clone(), below: found.files.clone() }), ..found }
            }
            _ => found,
        }))
    }
}

struct Files {
    of: Racing,
    below: Arc<dyn SnapshotFiles>,
}

impl SnapshotFiles for Files {
    fn read_at(&self, file: usize, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if file == 0 && offset == 0 && self.of.reads.fetch_add(1, Ordering::SeqCst) < READS_MAX {
            std::thread::sleep(self.of.delay);
            if !self.of.renewed.is_empty() {
                self.of.remote.push(&self.of.frozen, CollectionName::new("t", self.of.renewed));
                let disk = self.of.disk.get().and_then(Weak::upgrade).unwrap();
                // Its own log would be read for that, and so on.
                if self.of.renewed != "c" || self.of.reads() % 2 == 1 {
                    disk.renew("t", self.of.renewed).unwrap();
                }
            }
            if self.of.fails {
                return Err(io::Error::other("on purpose"));
            }
        }
        self.below.read_at(file, buffer, offset)
    }
}

#[test]
fn a_collection_is_read_once_while_others_get_newer_snapshots() {
    let quiet = Racing::new("");
    quiet.store().collection("t", "c").unwrap();
    let remote = Racing::new("other");
    let store = remote.store();
    store.collection("t", "other").unwrap();
    store.collection("t", "c").unwrap();
    assert_eq!(remote.reads(), quiet.reads());
    let remote = Racing { fails: true, ..Racing::new("other") };
    let store = remote.store();
    store.collection("t", "other").unwrap();
    let error = store.collection("t", "c").err().unwrap();
    assert_eq!((error.kind(), remote.reads()), (ErrorKind::Io, 1), "{error}");
}

#[test]
fn a_collection_opens_while_it_gets_newer_snapshots_all_the_time() {
    let remote = Racing::new("c");
    let store = remote.store();
    let opened = store.collection("t", "c").unwrap();
    assert!(remote.reads() < READS_MAX, "{}", remote.reads());
    assert_eq!(crate::fixture::read(&opened, "f").unwrap(), b"bytes");
}

#[test]
fn threads_that_open_a_collection_at_a_time_read_it_once_and_share_the_error() {
    let alone = Racing::new("");
    alone.store().collection("t", "c").unwrap();
    for fails in [false, true] {
        let remote = Racing { fails, delay: Duration::from_millis(300), ..Racing::new("") };
        let (store, barrier) = (remote.store(), Barrier::new(16));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    barrier.wait();
                    assert_eq!(store.collection("t", "c").is_err(), fails);
                });
            }
        });
        assert_eq!(remote.reads(), if fails { 1 } else { alone.reads() });
    }
}

/// A remote whose entries are older than the names of its collections.
struct Aged(Remote);

impl Snapshots for Aged {
    fn place(&self) -> String {
        self.0.place()
    }

    fn id(&self) -> StoreId {
        self.0.id()
    }

    fn tenants(&self) -> io::Result<Vec<String>> {
        self.0.tenants()
    }

    fn collections(&self, tenant: &str) -> io::Result<Vec<String>> {
        self.0.collections(tenant)
    }

    fn open(&self, tenant: &str, collection: &str) -> io::Result<Option<Snapshot>> {
        self.0.open(tenant, collection)
    }

    fn entries(&self, _tenant: &str) -> io::Result<Option<Arc<Directories>>> {
        let left_out = BTreeSet::from(["other".to_owned()]);
        Ok(Some(Arc::new(Directories { left_out, ..Directories::default() })))
    }
}

#[test]
fn a_listing_has_the_collections_that_are_newer_than_its_entries() {
    let remote = Aged(Racing::new("").remote);
    let store = Arc::new(SnapshotDisk::new(Arc::new(remote))).open_store().unwrap();
    let owner = Owner { uid: 0, gid: 0 };
    let vfs = Vfs::new(Arc::new(store), ListMode::Files, Verify::First, owner, controls());
    let (tenant, _) = vfs.lookup(Ino::ROOT, b"t").unwrap();
    let mut names = Vec::new();
    let mut take = |listed: tierfs::vfs::Listed| {
        names.push(String::from_utf8(listed.name).unwrap());
        true
    };
    vfs.list(tenant, 0, &mut take).unwrap();
    names.retain(|name| !name.starts_with('.'));
    assert_eq!(names, ["c"], "the manifest of the other has not come");
}
