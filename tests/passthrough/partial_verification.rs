//! Verification on open, step by step: it reads cached bytes only, ends at its time limit, and never marks a block
//! that was written meanwhile.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tierfs::model::{EntryId, ErrorKind, Owner, StoreId};
use tierfs::store::Unchecked;
use tierfs::store::Verify;
use tierfs::store::disk::forward::{ForwardDisk, ForwardFile};
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, File, Open};
use tierfs::store::{Access, Collection, Store};
use tierfs::vfs::open::{self, OpenFile, OpenFiles};

use support::Random;

const ROOT: EntryId = tierfs::store::ROOT;
const BYTES: usize = 2 << 20;
const BLOCKS: u32 = (BYTES >> 14) as u32;

/// The bytes of a disk that are cached, and an action that runs once during the query.
struct Watch {
    in_memory: AtomicU64,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

#[derive(Clone)]
struct Watched(MemoryDisk, Arc<Watch>);

struct WatchedFile(Arc<dyn File>, Arc<Watch>);

impl ForwardFile for WatchedFile {
    fn inner(&self) -> &dyn File {
        &*self.0
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = self.1.in_memory.load(Ordering::SeqCst).saturating_sub(offset);
        let len = buffer.len().min(rest as usize);
        let got = self.0.read_at(&mut buffer[..len], offset)?;
        // Not for the query of a single byte, which only tests for support.
        if len > 1
            && let Some(meanwhile) = self.1.meanwhile.lock().unwrap().take()
        {
            meanwhile();
        }
        Ok(got)
    }
}

impl ForwardDisk for Watched {
    fn inner(&self) -> &dyn Disk {
        &self.0
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(WatchedFile(self.0.open(path, how)?, self.1.clone())))
    }
}

/// A file of 128 unverified blocks, contiguous in a data file.
struct Fixture {
    disk: Watched,
    _store: Store,
    collection: Arc<Collection>,
    node: EntryId,
    open_file: Arc<OpenFile>,
    bytes: Vec<u8>,
}

impl Fixture {
    fn new() -> Fixture {
        let watch = Watch { in_memory: AtomicU64::new(u64::MAX), meanwhile: Mutex::default() };
        let disk = Watched(MemoryDisk::new(), Arc::new(watch));
        Store::create(&disk, StoreId(1)).unwrap();
        let store = Store::open(Arc::new(disk.clone()), Access::Write, "a test").unwrap();
        let collection = store.collection_made("acme", "m", Owner { uid: 0, gid: 0 }).unwrap();
        let node = open::create(&collection, ROOT, b"file", 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        let open_file = OpenFiles::default().open(&collection, node, Verify::First).unwrap();
        let bytes = Random(41).bytes(BYTES);
        open_file.write(0, &bytes).unwrap();
        open_file.flush().unwrap();
        Fixture { disk, _store: store, collection, node, open_file, bytes }
    }

    fn unchecked(&self) -> Option<Unchecked> {
        self.collection.unchecked_of(&self.collection.objects_of(self.node).unwrap())
    }

    /// The bytes of the physical file, if it may be shown.
    fn shown(&self) -> Option<Vec<u8>> {
        let backing = self.collection.backing_of(self.collection.objects_of(self.node).unwrap())?;
        let mut bytes = vec![0; BYTES];
        self.disk.0.open(backing.path(), Open::Read).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        Some(bytes)
    }

    fn checked(&self) -> Vec<u32> {
        let object = self.collection.objects_of(self.node).unwrap().remove(0);
        (0..BLOCKS).filter(|index| object.checked.get(*index)).collect()
    }
}

fn never() -> bool {
    false
}

#[test]
fn a_verification_that_runs_out_of_time_is_continued_by_the_next_open() {
    for threads in [4, 1] {
        goes_on(threads);
    }
}

fn goes_on(threads: usize) {
    let fixture = Fixture::new();
    assert_eq!((fixture.shown(), fixture.checked().len()), (None, 0));
    let asked = AtomicU64::new(0);
    let is_over = || asked.fetch_add(1, Ordering::SeqCst) == 3;
    assert!(!fixture.unchecked().unwrap().check(1, &is_over));
    let checked = fixture.checked();
    assert!(!checked.is_empty() && checked.len() < BLOCKS as usize, "{checked:?}");
    assert!(fixture.shown().is_none());
    assert!(!fixture.unchecked().unwrap().check(4, &|| true));
    assert_eq!(fixture.checked(), checked, "there was no time");
    assert!(fixture.unchecked().unwrap().check(threads, &never));
    assert!(fixture.shown().unwrap() == fixture.bytes);
}

#[test]
fn a_verification_ends_at_bytes_that_are_not_in_memory() {
    let fixture = Fixture::new();
    let has = |bytes: u64| fixture.disk.1.in_memory.store(bytes, Ordering::SeqCst);
    has(0);
    assert!(fixture.unchecked().is_none(), "nothing is in memory");
    has(BYTES as u64 / 2 + 100);
    for threads in [1, 3] {
        if let Some(unchecked) = fixture.unchecked() {
            assert!(!unchecked.check(threads, &never));
        }
        assert!(fixture.shown().is_none());
        assert!(fixture.checked().iter().all(|index| *index < BLOCKS / 2), "{:?}", fixture.checked());
    }
    has(u64::MAX);
    assert!(fixture.unchecked().unwrap().check(2, &never));
    assert!(fixture.shown().unwrap() == fixture.bytes);
}

#[test]
fn a_verification_finds_a_wrong_byte_and_does_not_mark_its_block() {
    let fixture = Fixture::new();
    let path = "acme/m/data/0000000000000001";
    let at = 70 * 16_384 + 5;
    fixture.disk.0.open(path, Open::Write).unwrap().write_at(&[!fixture.bytes[at]], at as u64).unwrap();
    for _ in 0..2 {
        assert!(!fixture.unchecked().unwrap().check(2, &never));
        assert!(!fixture.checked().contains(&70));
        assert!(fixture.shown().is_none());
    }
    let error = fixture.open_file.read(at as u64, &mut [0; 3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn a_verification_does_not_mark_a_block_that_is_written_meanwhile() {
    let fixture = Fixture::new();
    // A write that waits for space waits for the readers.
    fixture.collection.sync().unwrap();
    let (open_file, unchecked) = (fixture.open_file.clone(), fixture.unchecked().unwrap());
    *fixture.disk.1.meanwhile.lock().unwrap() = Some(Box::new(move || {
        open_file.write(0, &[9; 16_384]).unwrap();
        open_file.flush().unwrap();
    }));
    unchecked.check(1, &never);
    assert!(!fixture.checked().contains(&0), "what was checked is not what is there");
    assert!(fixture.shown().is_none() && fixture.unchecked().is_none(), "it lies in two files");
    let mut got = vec![0; BYTES];
    assert_eq!(fixture.open_file.read(0, &mut got).unwrap(), BYTES);
    assert!(got[..16_384] == [9; 16_384] && got[16_384..] == fixture.bytes[16_384..]);
}
