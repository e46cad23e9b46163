//! Numbers at the end of their range, in made-up logs: there is a next one, or an error.

use std::sync::Arc;

use tierfs::format::log::access::{History, to_bytes};
use tierfs::format::log::catalog::{Entry, Extent, ObjectEntry};
use tierfs::format::log::record::{LOG_VERSION, Record};
use tierfs::model::{Dtype, EntryId, ObjectId, Result};
use tierfs::store::FileUse;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, Collection, Store};

use super::fixture::{LOG, STORE, World, import, noise, open, picture};
use super::hostile::{Said, create, exact, file, name, object, peak, root};

/// A log whose records have chosen sequence numbers.
struct Written {
    log: Vec<u8>,
    generation: u64,
    begin: usize,
    sums: Vec<u8>,
}

impl Written {
    fn new(generation: u64) -> Written {
        let mut new = Written { log: Vec::new(), generation, begin: 0, sums: Vec::new() };
        new.put(0, &Record::Header { version: LOG_VERSION, store: STORE, generation }, &[]);
        new.begin = new.log.len();
        new.sums.clear();
        new
    }

    fn put(&mut self, sequence: u64, record: &Record, payload: &[u8]) {
        let mut slot = record.to_slot();
        slot.seal(self.generation, sequence);
        self.log.extend(slot.0);
        self.log.extend(payload);
        self.log.resize(self.log.len().next_multiple_of(128), 0);
        self.sums.extend(slot.checksum().to_le_bytes());
    }

    /// Records with these numbers, and their Commit with the last of them.
    fn batch(&mut self, batch: u64, sequences: &mut dyn Iterator<Item = u64>, said: Vec<Said>) -> &mut Self {
        for said in said {
            let sequence = sequences.next().unwrap();
            match said {
                Said::Record(record) => self.put(sequence, &record, &[]),
                Said::Entry(entry) => {
                    let payload = entry.to_bytes();
                    let (len, checksum) = (payload.len() as u32, crc32c::crc32c(&payload));
                    let (kind, version) = (entry.kind(), entry.version());
                    self.put(sequence, &Record::Catalog { len, checksum, kind, version }, &payload);
                }
                Said::Run(..) | Said::Slots(..) => unreachable!(),
            }
        }
        let slots = ((self.log.len() - self.begin) / 128) as u32;
        let checksum = crc32c::crc32c(&self.sums);
        let sequence = sequences.next().unwrap();
        self.put(sequence, &Record::Commit { batch, slots, checksum, unsynced: 0 }, &[]);
        self.begin = self.log.len();
        self.sums.clear();
        self
    }

    fn disk(&self) -> Arc<dyn Disk> {
        let files = [(LOG.to_owned(), self.log.clone()), ("t/c/tier0.dat".to_owned(), vec![0; 4096])];
        let world = World { files: files.into(), steps: Vec::new() };
        world.disk(world.log())
    }
}

/// Opens it for writing, adds files, checkpoints the log, and opens it again: the added files are there.
fn used(disk: &Arc<dyn Disk>, what: &str) -> Result<()> {
    drop(open(disk, Access::Read).map(|read| picture(&read)));
    let collection = open(disk, Access::Write)?;
    let before = picture(&collection);
    let done = use_it(&collection);
    let now = picture(&collection);
    drop(collection);
    let again = open(disk, Access::Read).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(picture(&again), now, "{what}");
    assert!(again.damage().is_none() || done.is_err(), "{what}: {:?}", again.damage());
    assert!(done.is_err() || now.len() == before.len() + 2, "{what}: what was added is not there");
    done
}

fn use_it(collection: &Arc<Collection>) -> Result<()> {
    import(collection, "small", &[7; 300], &Default::default())?;
    collection.checkpoint_now()?;
    import(collection, "large", &noise(20_000), &Default::default())?;
    collection.checkpoint_now().map(drop)
}

fn thing(creation: u64, extent: Option<u64>) -> Vec<Said> {
    let Entry::Object(entry) = object(9, Dtype::U8, 4096, 4096) else { panic!() };
    let extent = extent.map(|file| Extent { file, offset: 0 });
    vec![
        Said::Entry(Entry::Object(ObjectEntry { creation, extent, ..entry })),
        Said::Record(create(9, 0, exact(0, 4096))),
        Said::Entry(file(2, 9)),
        Said::Entry(name(2)),
    ]
}

#[test]
fn records_with_the_highest_sequence_numbers_leave_one_or_are_refused() {
    let most = 1 << 63;
    let near = (most - 60..most + 2).chain(u64::MAX - 20..=u64::MAX);
    for first in [9, 1 << 40, 1 << 62].into_iter().chain(near) {
        let mut log = Written::new(1);
        let mut sequences = (first..=u64::MAX).chain(std::iter::repeat(u64::MAX));
        log.batch(1, &mut (1..9), root()).batch(2, &mut sequences, thing(first, None));
        let used = used(&log.disk(), &format!("numbers from {first} on"));
        assert!(used.is_ok() || first > 1 << 62, "numbers from {first} on: {used:?}");
    }
}

#[test]
fn a_batch_with_the_highest_sequence_number_after_a_bad_one_leaves_none() {
    for number in [3, 1 << 40, u64::MAX - 1, u64::MAX] {
        let mut log = Written::new(1);
        log.batch(1, &mut (1..9), root()).batch(2, &mut (9..20), thing(9, None));
        let bad = log.begin - 128;
        log.log[bad..].fill(0xab);
        log.batch(number, &mut (20..40), vec![Said::Entry(file(3, 9))]);
        log.batch(number.wrapping_add(1), &mut (40..60), vec![Said::Entry(file(4, 9))]);
        let used = used(&log.disk(), &format!("batch {number}"));
        assert!(used.is_err() || number > 1 << 40, "batch {number} is lost, and nobody says so");
    }
}

#[test]
fn generations_continue_after_the_highest() {
    for generation in [1, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
        let mut log = Written::new(generation);
        log.batch(1, &mut (1..9), root()).batch(2, &mut (9..20), thing(9, None));
        used(&log.disk(), &format!("generation {generation}")).unwrap();
    }
}

#[test]
fn an_object_created_by_a_later_record_is_refused() {
    for (creation, is_right) in
        [(9, true), (1, true), (0, false), (10, false), (1 << 40, false), (u64::MAX, false)]
    {
        let mut log = Written::new(1);
        log.batch(1, &mut (1..9), root()).batch(2, &mut (9..20), thing(creation, None));
        let used = used(&log.disk(), &format!("creation {creation}"));
        assert_eq!(used.is_ok(), is_right, "creation {creation}: {used:?}");
    }
}

#[test]
fn data_files_are_created_until_their_numbers_are_exhausted() {
    for (number, is_right) in [(1, true), (u64::MAX - 3, true), (u64::MAX - 1, false), (u64::MAX, false)] {
        let mut log = Written::new(1);
        log.batch(1, &mut (1..9), root()).batch(2, &mut (9..20), thing(9, Some(number)));
        let disk = log.disk();
        disk.open(&format!("t/c/data/{number:016x}"), Open::Create).unwrap();
        let used = used(&disk, &format!("data file {number}"));
        assert_eq!(used.is_ok(), is_right, "data file {number}: {used:?}");
    }
}

#[test]
fn usage_records_of_unknown_blocks_get_no_memory() {
    let blocks = 1_u32 << 31;
    let mut log = Written::new(1);
    let entry = Said::Entry(object(9, Dtype::U8, u64::from(blocks) * 4096, 4096));
    let said = vec![entry, Said::Record(create(9, 0, exact(0, 4096))), Said::Entry(file(2, 9))];
    log.batch(1, &mut (1..9), root()).batch(2, &mut (9..20), said);
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    Store::create(&*disk, STORE).unwrap();
    ["t", "t/c", "t/c/data"].iter().for_each(|path| disk.create_directory(path).unwrap());
    let history = History { count: 1, last: 5, created: 5, window: 1, ema: 0.5 };
    let kept = [(ObjectId(9), 0, history), (ObjectId(9), blocks - 1, history)];
    let put = |path: &str, bytes: &[u8]| disk.open(path, Open::Create).unwrap().write_at(bytes, 0).unwrap();
    put(LOG, &log.log);
    put("t/c/access", &to_bytes(60, &kept));
    let needed = peak(|| {
        let store = Store::open(disk.clone(), Access::Read, "").unwrap();
        let collection = store.collection("t", "c").unwrap();
        assert!(collection.damage().is_none());
        let object = collection.objects_of(EntryId(2)).unwrap().remove(0);
        object.accesses.count(0..1, object.layout().blocks(), FileUse { created: 5, now: 6, share: 0.1 });
        let used = object.accesses.used(blocks);
        assert_eq!(used.len(), 1, "{used:?}");
        assert_eq!((used[0].0, used[0].1.count), (0, 2));
    });
    assert!(needed < 1 << 20, "{needed} bytes");
}
