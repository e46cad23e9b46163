//! A whole log on a disk in memory. The first byte is 0: the rest is `meta.log`. Otherwise the rest are slots and
//! payloads after the header, which get their checksums, numbers and Commits here, since random input would never have
//! them right.

use std::sync::Arc;

use tierfs::format::log::record::{LOG_VERSION, Record};
use tierfs::format::log::slot::{RawSlot, SLOT_BYTES};
use tierfs::ingest::{Options, Origin, Target, import_file};
use tierfs::model::{CollectionName, EntryId, ErrorKind, Owner, Silent, StoreId};
use tierfs::store::ROOT;
use tierfs::store::Settings;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::replay;
use tierfs::store::{Access, Collection};
use tierfs::store::{OpenObject, Verify};

use super::bounded::Bounded;

const STORE: StoreId = StoreId(0x5707e);
const LOG: &str = "t/c/meta.log";
/// The range that is read at each end of an object.
const PART_BYTES: u64 = 20_000;
const NEW: &[u8] = b"\xff a name that no log has by chance";

pub fn check(bytes: &[u8]) {
    let Some((is_sealed, bytes)) = bytes.split_first() else { return };
    let (log, store) = match is_sealed {
        0 => (bytes.to_vec(), store_of(bytes)),
        _ => (sealed(bytes), STORE),
    };
    ends_where_it_says(&log, store);
    let disk = disk(&log);
    let Ok(read) = open(&disk, store, Access::Read) else { return };
    let before = picture(&read);
    assert!(before.len() <= log.len(), "more than the log can say");
    read_a_little(&read);
    drop(read);
    // Opening for writing repairs and removes nameless objects, and changes no named one.
    let Ok(collection) = open(&disk, store, Access::Write) else { return };
    assert!(picture(&collection) == before, "opening to write changed what is seen");
    let is_whole = collection.damage().is_none();
    let added = import(&collection, store);
    drop(collection);
    let again =
        open(&disk, store, Access::Read).unwrap_or_else(|error| panic!("once opened, not again: {error}"));
    match added {
        Ok(()) => {
            assert!(is_whole, "a damaged log takes a file");
            let found = again.state().directory(ROOT).and_then(|directory| directory.get(NEW));
            let node = found.unwrap_or_else(|| panic!("the file is lost"));
            assert_eq!(bytes_of(&again, node), new_bytes());
        }
        Err(error) if is_whole => {
            assert!(picture(&again) == before, "nothing was taken ({error}), yet something changed");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}"),
    }
}

fn new_bytes() -> Vec<u8> {
    (0..300_u32).map(|place| (place % 251) as u8).collect()
}

/// The store that a log's header names.
fn store_of(log: &[u8]) -> StoreId {
    let slot = log.first_chunk().copied().map(RawSlot);
    match slot.map(|slot| Record::parse(&slot)) {
        Some(Ok(Record::Header { store, .. })) => store,
        _ => STORE,
    }
}

/// A log of these slots: the target adds a header and a Commit and seals all slots.
fn sealed(mut rest: &[u8]) -> Vec<u8> {
    let mut log = Vec::new();
    let mut header = Record::Header { version: LOG_VERSION, store: STORE, generation: 1 }.to_slot();
    header.seal(1, 0);
    log.extend(header.0);
    let (mut sequence, mut batch, mut begin) = (1, 0_u64, log.len());
    let mut checksums = Vec::new();
    let commit = |log: &mut Vec<u8>,
                  checksums: &mut Vec<u8>,
                  begin: &mut usize,
                  batch: u64,
                  sequence: u64,
                  unsynced| {
        let slots = ((log.len() - *begin) / SLOT_BYTES) as u32;
        let checksum = crc32c::crc32c(checksums);
        let mut slot = Record::Commit { batch, slots, checksum, unsynced }.to_slot();
        slot.seal(1, sequence);
        log.extend(slot.0);
        checksums.clear();
        *begin = log.len();
    };
    while !rest.is_empty() {
        let mut slot = RawSlot([0; SLOT_BYTES]);
        let (head, after) = rest.split_at(rest.len().min(SLOT_BYTES));
        slot.0[..head.len()].copy_from_slice(head);
        rest = after;
        let record = Record::parse(&slot);
        if let Ok(Record::Commit { unsynced, .. }) = record {
            batch += 1;
            commit(&mut log, &mut checksums, &mut begin, batch, sequence, unsynced);
            sequence += 1;
            continue;
        }
        let wanted = record.map_or(0, |record| record.payload_len());
        let (payload, after) = rest.split_at(rest.len().min(usize::try_from(wanted).unwrap_or(usize::MAX)));
        rest = after.get(payload.len().next_multiple_of(SLOT_BYTES) - payload.len()..).unwrap_or_default();
        let (count, checksum) = (payload.len() as u32, crc32c::crc32c(payload).to_le_bytes());
        match slot.kind() {
            6 => slot.body(21, count.to_le_bytes()).body(25, checksum),
            8 => slot.body(46, (count / 4).to_le_bytes()).body(50, checksum),
            11 => {
                batch += 1;
                slot.body(21, batch.to_le_bytes()).body(33, count.to_le_bytes()).body(37, checksum)
            }
            _ => &mut slot,
        };
        slot.seal(1, sequence);
        sequence += 1;
        checksums.extend(slot.checksum().to_le_bytes());
        log.extend(slot.0);
        log.extend(payload);
        log.resize(log.len().next_multiple_of(SLOT_BYTES), 0);
        if slot.kind() == 11 {
            // It is a batch by itself.
            sequence += u64::from(u16::from_le_bytes(slot.get::<41, 2>()));
            checksums.clear();
            begin = log.len();
        }
    }
    commit(&mut log, &mut checksums, &mut begin, batch + 1, sequence, 0);
    log
}

/// A log that is truncated where its replay ended gives the same state.
fn ends_where_it_says(log: &[u8], store: StoreId) {
    let file = |bytes: &[u8]| {
        let file = MemoryDisk::new().open("log", Open::Create).unwrap_or_else(|error| panic!("{error}"));
        file.write_at(bytes, 0).unwrap_or_else(|error| panic!("{error}"));
        file
    };
    let Ok(whole) = replay(&file(log), store) else { return };
    assert!(whole.end.bytes <= log.len() as u64);
    // An object in a small batch takes more bytes than its identity.
    assert!(whole.state.objects().count() <= log.len() / 16);
    if whole.damage.is_some() {
        return;
    }
    let cut =
        replay(&file(&log[..whole.end.bytes as usize]), store).unwrap_or_else(|error| panic!("{error}"));
    assert!(cut.damage.is_none() && cut.end.bytes == whole.end.bytes);
    assert_eq!((cut.end.batch, cut.end.next_sequence), (whole.end.batch, whole.end.next_sequence));
}

fn disk(log: &[u8]) -> Arc<dyn Disk> {
    let disk = MemoryDisk::new();
    for directory in ["t", "t/c", "t/c/data"] {
        disk.create_directory(directory).unwrap_or_else(|error| panic!("{error}"));
    }
    let payloads: Vec<u8> = (0..10_000_u32).map(|place| (place % 13) as u8).collect();
    for path in ["t/c/data/0000000000000001", "t/c/tier0.dat", "t/c/tier1.dat", "t/c/delta.dat", LOG] {
        let bytes = if path == LOG { log } else { &payloads };
        let file = disk.open(path, Open::Create).unwrap_or_else(|error| panic!("{error}"));
        file.write_at(bytes, 0).unwrap_or_else(|error| panic!("{error}"));
    }
    Arc::new(Bounded(disk))
}

fn open(disk: &Arc<dyn Disk>, store: StoreId, access: Access) -> tierfs::model::Result<Arc<Collection>> {
    tierfs::store::open_collection(disk, store, CollectionName::new("t", "c"), access).map(Arc::new)
}

/// Every name with its directory and its node.
fn picture(collection: &Collection) -> Vec<String> {
    let state = collection.state();
    let mut names: Vec<String> = state
        .nodes()
        .flat_map(|node| {
            let id = node.entry.id;
            state.links(id).iter().map(move |(parent, name)| (id, parent.0, name.clone(), node.bytes))
        })
        .map(|(id, parent, name, bytes)| format!("{parent}/{} {} {bytes}", name.escape_ascii(), id.0))
        .collect();
    names.sort();
    names
}

/// Every outcome is correct except a panic or unbounded memory, because the checksums are made up.
fn read_a_little(collection: &Arc<Collection>) {
    let nodes: Vec<EntryId> = collection.state().nodes().map(|node| node.entry.id).take(20).collect();
    for object in nodes.iter().flat_map(|node| collection.objects_of(*node).unwrap_or_default()).take(40) {
        let Ok(object) = OpenObject::open(collection, &object, Verify::First) else { continue };
        let part = object.bytes().min(PART_BYTES);
        let mut out = vec![0; part as usize];
        for from in [0, object.bytes() - part] {
            drop(object.read(from, &mut out));
        }
        assert!(part == 0 || object.read(object.bytes(), &mut [0]).is_err(), "a byte past the end");
    }
}

fn import(collection: &Arc<Collection>, store: StoreId) -> tierfs::model::Result<()> {
    let source = MemoryDisk::new().open("s", Open::Create).unwrap_or_else(|error| panic!("{error}"));
    source.write_at(&new_bytes(), 0).unwrap_or_else(|error| panic!("{error}"));
    let target = Target { directories: Vec::new(), name: NEW.to_vec() };
    let origin = Origin { mode: 0o640, owner: Owner { uid: 1, gid: 2 }, atime: 4, mtime: 3, sha256: None };
    import_file(collection, &Settings::new(store), &target, &source, &origin, &Options::default(), &Silent)
        .map(|_| ())
}

fn bytes_of(collection: &Arc<Collection>, node: EntryId) -> Vec<u8> {
    let mut bytes = Vec::new();
    for object in collection.objects_of(node).unwrap_or_else(|error| panic!("{error}")) {
        let object =
            OpenObject::open(collection, &object, Verify::Always).unwrap_or_else(|error| panic!("{error}"));
        let mut part = vec![0; object.bytes() as usize];
        object.read(0, &mut part).unwrap_or_else(|error| panic!("{error}"));
        bytes.extend(part);
    }
    bytes
}
