//! Logs, which a remote serves as others wrote them: many changes of what is large, shared names, claims of huge runs,
//! damage in many places.

use std::sync::Arc;

use support::{Random, allocated_bytes, scale};
use tierfs::format::budget::{STEPS_MIN, STEPS_PER_BYTE};
use tierfs::format::files::shard_index;
use tierfs::format::log::catalog::{
    Content, Entry, Extent, FileEntry, NodeEntry, NodeType, ObjectEntry, OutsideFile, OutsidePlace,
    TensorEntry,
};
use tierfs::format::log::record::{LOG_VERSION, ObjectDescription, Record, Stored};
use tierfs::format::log::slot::SLOT_BYTES;
use tierfs::model::{Dtype, EntryId, ErrorKind, ObjectId, Owner, SeedId, Shape, StoreId, TensorId, Tier};
use tierfs::store::disk::File;
use tierfs::store::{ROOT, replay};

use super::{FILES, Source, count, is_bounded, letters, name};

const STORE: StoreId = StoreId(0x5707e);
const BLOCK_BYTES: u32 = 4096;
/// Records of a batch that is ended among others.
const BATCH_RECORDS: u64 = 64;

/// A log that is being written.
struct Log {
    bytes: Vec<u8>,
    sequence: u64,
    batch: u64,
    begin: usize,
    sums: Vec<u8>,
    /// The highest number of a node, name or object.
    last: u64,
}

impl Log {
    fn new() -> Log {
        let mut log = Log { bytes: Vec::new(), sequence: 0, batch: 0, begin: 0, sums: Vec::new(), last: 9 };
        log.put(&Record::Header { version: LOG_VERSION, store: STORE, generation: 1 }, &[]);
        (log.begin, log.sums) = (log.bytes.len(), Vec::new());
        log.entry(&Entry::Collection { number: 1, created_at: 0, last_entry: 0 });
        log.directory(ROOT.0);
        log
    }

    fn put(&mut self, record: &Record, payload: &[u8]) {
        let mut slot = record.to_slot();
        slot.seal(1, self.sequence);
        self.sequence += 1;
        self.sums.extend(slot.checksum().to_le_bytes());
        self.bytes.extend(slot.0);
        self.bytes.extend(payload);
        self.bytes.resize(self.bytes.len().next_multiple_of(SLOT_BYTES), 0);
    }

    fn entry(&mut self, entry: &Entry) {
        let payload = entry.to_bytes();
        let (len, checksum) = (payload.len() as u32, crc32c::crc32c(&payload));
        self.put(&Record::Catalog { len, checksum, kind: entry.kind(), version: entry.version() }, &payload);
    }

    fn commit(&mut self, unsynced: u32) {
        self.batch += 1;
        let slots = ((self.bytes.len() - self.begin) / SLOT_BYTES) as u32;
        let checksum = crc32c::crc32c(&self.sums);
        self.put(&Record::Commit { batch: self.batch, slots, checksum, unsynced }, &[]);
        (self.begin, self.sums) = (self.bytes.len(), Vec::new());
    }

    /// Now and then ends the batch.
    fn step(&mut self) {
        if self.sequence.is_multiple_of(BATCH_RECORDS) {
            self.commit(0);
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn node(&mut self, id: u64, node_type: NodeType) {
        self.entry(&Entry::Node(Box::new(NodeEntry::new(
            EntryId(id),
            0o644,
            Owner { uid: 0, gid: 0 },
            0,
            node_type,
        ))));
    }

    fn directory(&mut self, id: u64) {
        self.node(id, NodeType::Directory);
    }

    fn name(&mut self, parent: u64, name: &str, node: u64) {
        let (entry, parent, node) = (EntryId(self.number()), EntryId(parent), EntryId(node));
        self.entry(&Entry::Name { parent, entry, name: name.as_bytes().into(), node });
    }

    fn name_removed(&mut self, parent: u64, name: &str) {
        self.entry(&Entry::NameRemoved { parent: EntryId(parent), name: name.as_bytes().into() });
    }

    fn object_of(&mut self, id: u64, dtype: Dtype, blocks: u64) {
        self.entry(&Entry::Object(ObjectEntry {
            id: ObjectId(u128::from(id)),
            tensor: TensorId(1),
            seed: SeedId(0),
            creation: 1,
            dtype,
            bytes: blocks * u64::from(BLOCK_BYTES),
            block_bytes: BLOCK_BYTES,
            extent: Some(Extent { file: id, offset: 0 }),
            parent: None,
        }));
    }

    fn object(&mut self, blocks: u64) -> u64 {
        let id = self.number();
        self.object_of(id, Dtype::U8, blocks);
        id
    }

    fn file(&mut self, content: Content, objects: &[u64]) -> u64 {
        let id = self.number();
        let objects: Vec<ObjectId> = objects.iter().map(|object| ObjectId(u128::from(*object))).collect();
        self.node(id, NodeType::File(Box::new(FileEntry::new(content, objects))));
        id
    }

    /// A container of empty tensors. Each has an object of its own.
    fn container(&mut self, names: impl IntoIterator<Item = String>) -> u64 {
        let names: Vec<String> = names.into_iter().collect();
        let objects: Vec<u64> = names.iter().map(|_| self.object(0)).collect();
        let container = self.file(Content::Safetensors, &objects);
        for (object, name) in objects.iter().zip(names) {
            let mut part = FileEntry::new(Content::Part, [ObjectId(u128::from(*object))]);
            let shape = Shape::new(&[0]).unwrap();
            part.tensor =
                Some(TensorEntry { name: name.into(), dtype: Dtype::U8, shape, parent: TensorId(0) });
            part.container = Some(EntryId(container));
            let id = self.number();
            self.node(id, NodeType::File(Box::new(part)));
        }
        container
    }

    fn setting(&mut self, node: u64, key: &str, value: String) {
        self.entry(&Entry::Setting { node: EntryId(node), key: key.to_owned(), value: Some(value) });
    }

    /// A run of exact blocks from the object's first on.
    fn run(&mut self, object: u64, blocks: u32) {
        let array = vec![7; blocks as usize * 4];
        let mut record = Record::run(ObjectId(u128::from(object)), 0, described(), 0, 0);
        if let Record::CreateRun { stored, .. } = &mut record {
            (stored.len, stored.checksum) = (blocks, crc32c::crc32c(&array));
        }
        self.put(&record, &array);
    }

    fn empty(&mut self, object: u64, block: u32, count: u32) {
        let (object, stored) = (ObjectId(u128::from(object)), Stored::ZEROS);
        self.put(&Record::EmptyRun { object, block, count, stored, created_at: 0 }, &[]);
    }

    fn block(&mut self, object: u64, block: u32) {
        let (tier, len) = (Tier::Exact, BLOCK_BYTES);
        let stored = Stored { tier, scale: 0.0, checksum: 0, offset: 0, len, in_data: false };
        let object = ObjectId(u128::from(object));
        self.put(&Record::Create { object, block, described: described(), stored, created_at: 0 }, &[]);
    }
}

fn described() -> ObjectDescription {
    ObjectDescription { dtype: Dtype::U8, shape: Shape::default(), parent: None, reconstruct: 0 }
}

/// A structure of a log, of a size.
type Part = fn(&mut Log, usize);

/// A file with many names, which go again, the first ones first.
fn many_names(log: &mut Log, size: usize) {
    let file = log.file(Content::Plain, &[]);
    for place in 0..size {
        log.name(ROOT.0, &format!("{file}.{place}"), file);
        log.step();
    }
    for place in 0..size {
        log.name_removed(ROOT.0, &format!("{file}.{place}"));
        log.step();
    }
}

/// A container of many tensors that is renamed in a batch each.
fn renamed(log: &mut Log, size: usize) {
    let container = log.container((0..size).map(|place| place.to_string()));
    for place in 0..size {
        log.name(ROOT.0, &format!("{container}.{}", place % 2), container);
        log.name_removed(ROOT.0, &format!("{container}.{}", (place + 1) % 2));
        log.commit(0);
    }
}

/// A container of many tensors that has many names in many directories.
fn linked(log: &mut Log, size: usize) {
    let container = log.container((0..size).map(|place| place.to_string()));
    for place in 0..size {
        let directory = log.number();
        log.directory(directory);
        log.name(directory, &format!("{place}.safetensors"), container);
        log.name(ROOT.0, &format!("{container}.{place}"), container);
        log.step();
    }
}

/// A file of many objects that is written to in a batch each.
fn written(log: &mut Log, size: usize) {
    let objects: Vec<u64> = (0..size).map(|_| log.object(0)).collect();
    let file = log.file(Content::Plain, &objects);
    for _ in 0..size {
        log.object_of(objects[0], Dtype::U8, 0);
        log.entry(&Entry::Written { node: EntryId(file), mtime: 0, ctime: 0 });
        log.commit(0);
    }
}

/// An index of a sharded model with many shards, in many directories.
fn indexed(log: &mut Log, size: usize) {
    let index = log.file(Content::Plain, &[]);
    let files = (0..size).map(|place| (format!("{place}.safetensors"), vec!["w".to_owned()])).collect();
    log.setting(index, "shards", shard_index::to_lines(&files));
    for place in 0..size {
        let directory = log.number();
        log.directory(directory);
        log.name(directory, "x.safetensors.index.json", index);
        let container = log.container(["w".to_owned()]);
        log.name(directory, &format!("{place}.safetensors"), container);
        log.step();
    }
}

/// Many containers of one directory with tensors of one name.
fn alike(log: &mut Log, size: usize) {
    for place in 0..size {
        let container = log.container(["w".to_owned(), "w/x".to_owned()]);
        log.name(ROOT.0, &format!("{container}.{}.npz", place * 7919 % 1000), container);
        log.step();
    }
}

/// A long run in which zeros replace many blocks, each apart, then all blocks anew.
fn holes(log: &mut Log, size: usize) {
    let blocks = 100 * size as u32;
    let object = log.object(u64::from(blocks) + 9);
    log.run(object, blocks);
    for place in 0..size as u32 {
        log.empty(object, place * 100, 70);
        log.step();
    }
    log.run(object, blocks);
    // A record of few bytes that covers everything.
    (0..size as u32).for_each(|place| log.empty(object, place % 9, blocks));
}

/// Two objects with entries and runs whose blocks move in turns, and that become of other types.
fn in_turns(log: &mut Log, size: usize) {
    let objects = [log.object(2 * size as u64 + 9), log.object(1 << 30)];
    objects.iter().for_each(|object| log.run(*object, 2 * size as u32 + 9));
    objects.iter().for_each(|object| log.empty(*object, size as u32 / 2, 9));
    for place in 0..size as u32 {
        objects.iter().for_each(|object| log.block(*object, 2 * place));
        let dtype = if place % 2 == 0 { Dtype::U8 } else { Dtype::I8 };
        log.object_of(objects[0], dtype, 2 * size as u64 + 9 + u64::from(place) % 7);
        log.step();
    }
}

/// Zeros over most blocks of a file outside the store, again and again.
fn zeros_over_an_outside_file(log: &mut Log, size: usize) {
    let (id, blocks) = (log.number(), 100 * size as u32);
    let bytes = u64::from(blocks) * u64::from(BLOCK_BYTES);
    let place = OutsidePlace::Path(b"/outside".to_vec());
    log.entry(&Entry::Outside(OutsideFile { file: id, place, bytes, mtime: 0 }));
    log.object_of(id, Dtype::U8, u64::from(blocks));
    log.run(id, blocks);
    for place in 0..size as u32 {
        log.empty(id, place % 9, blocks - 9);
        log.step();
    }
}

const PARTS: [(&str, Part); 9] = [
    ("a file of many names", many_names),
    ("a container that is often renamed", renamed),
    ("a container of many names", linked),
    ("a file of many objects that is often written to", written),
    ("an index in many directories", indexed),
    ("containers with tensors of one name", alike),
    ("a run with many holes", holes),
    ("blocks of two objects in turns", in_turns),
    ("zeros over an outside file", zeros_over_an_outside_file),
];

/// Adds whole batches, and between them bad slots of four kinds: noise, zeros, a record whose payload does not verify, a
/// Commit of slots that are not there. The last batch says that all before it are durable.
fn damage(log: &mut Log, places: usize) {
    for place in 0..places {
        match place % 4 {
            0 => log.bytes.extend([0xab; SLOT_BYTES]),
            1 => log.bytes.extend([0; SLOT_BYTES]),
            2 => log.put(&Record::Catalog { len: 1 << 12, checksum: 1, kind: 3, version: 5 }, &[]),
            _ => {
                log.put(&Record::Commit { batch: log.batch, slots: 9, checksum: 1, unsynced: u32::MAX }, &[])
            }
        }
        (log.begin, log.sums) = (log.bytes.len(), Vec::new());
        log.batch += 1;
        for _ in 0..2 {
            log.entry(&Entry::Setting { node: ROOT, key: "k".to_owned(), value: None });
            log.commit(u32::MAX);
        }
    }
}

fn random_log(random: &mut Random) -> Log {
    let mut log = Log::new();
    for _ in 0..1 + random.below(4) {
        let (_, part) = PARTS[random.below(PARTS.len())];
        part(&mut log, count(random) / 20);
        if random.below(3) == 0 {
            let names: Vec<String> = (0..random.below(50)).map(|_| name(random)).collect();
            let container = log.container(names);
            log.name(ROOT.0, &format!("{container}{}", letters(random, 2).replace('/', "-")), container);
        }
    }
    log.commit(0);
    if random.below(3) == 0 {
        damage(&mut log, random.below(300));
        log.commit(0);
    }
    log
}

fn file(log: Log) -> Arc<dyn File> {
    Arc::new(Source(log.bytes))
}

#[test]
fn logs_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    for number in 0..FILES / 2 * scale() as usize {
        let mut random = Random(number as u64);
        let log = random_log(&mut random);
        let len = log.bytes.len() as u64;
        let file = file(log);
        let mut steps = Some(0);
        let about = format!("log {number}, {len} bytes");
        is_bounded(&about, len, || steps = replay(&file, STORE).ok().map(|replayed| replayed.steps));
        assert!(steps.is_none_or(|steps| steps <= STEPS_MIN + STEPS_PER_BYTE * len), "{about}: {steps:?}");
    }
}

/// Bytes that the replay of a log of this size allocates, and those of the log.
fn allocated(part: Part, size: usize) -> (u64, u64) {
    let mut log = Log::new();
    part(&mut log, size);
    log.commit(0);
    let len = log.bytes.len() as u64;
    let file = file(log);
    let all = allocated_bytes(|| {
        let replayed = replay(&file, STORE).unwrap();
        assert!(replayed.damage.is_none(), "{:?}", replayed.damage);
        assert_eq!((replayed.steps, replayed.end.bytes), (0, len));
    });
    (all, len)
}

#[test]
fn twice_the_records_take_twice_the_memory_and_not_four_times() {
    for (what, part) in PARTS {
        let ((small, _), (large, len)) = (allocated(part, 1000), allocated(part, 4000));
        let text = format!("{what}: {small} bytes, then {large} for a log of {len}");
        assert!(large <= 6 * small && large <= 600 * len, "{text}");
        println!("{text}");
    }
}

#[test]
fn a_container_shows_its_tensors_under_its_first_names() {
    let mut log = Log::new();
    linked(&mut log, 300);
    log.commit(0);
    let state = replay(&file(log), STORE).unwrap().state;
    let has_tensor = |directory: EntryId| {
        let tensors = state.find(directory, b".tensors").unwrap();
        state.find(tensors, b"0").is_some()
    };
    let directories = state.directory(ROOT).unwrap().len();
    assert_eq!(directories, 300, "only the names of the container");
    assert!(has_tensor(ROOT));
    let shown = state
        .nodes()
        .filter(|node| state.directory(node.entry.id).is_some_and(|_| has_tensor(node.entry.id)));
    assert!((100..300).contains(&shown.count()));
}

#[test]
fn a_log_that_is_damaged_in_many_places_is_read_within_its_budget() {
    for (places, unsynced) in [(40, 0), (4000, 0), (4000, u32::MAX)] {
        let mut log = Log::new();
        log.commit(0);
        damage(&mut log, places);
        log.commit(unsynced);
        let len = log.bytes.len() as u64;
        let replayed = replay(&file(log), STORE).unwrap();
        assert!(replayed.steps <= 16 * len, "{} steps for {len} bytes", replayed.steps);
        assert_eq!(replayed.damage.is_some(), unsynced == 0, "what was never durable is a torn end");
    }
}

#[test]
fn a_log_whose_payloads_are_all_bad_and_reach_to_its_end_is_refused() {
    let mut log = Log::new();
    log.commit(0);
    let slots = 2000;
    for place in 0..slots {
        let len = (slots - place) * SLOT_BYTES as u32;
        log.put(&Record::Catalog { len, checksum: 1, kind: 3, version: 5 }, &[]);
    }
    log.bytes.extend([1; 2 * SLOT_BYTES]);
    let error = replay(&file(log), STORE).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("damaged in too many places"), "{error}");
}
