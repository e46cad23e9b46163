//! Damaged ends of logs that were written whole: a repair keeps the bytes that they name.

use std::sync::Arc;

use tierfs::format::log::catalog::NodeType;
use tierfs::format::log::record::Record;
use tierfs::format::log::slot::RawSlot;
use tierfs::ingest::{Blocking, Options};
use tierfs::model::{CollectionName, MoveTo, Owner};
use tierfs::store::ROOT;
use tierfs::store::Verify;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, Collection, EventKind};
use tierfs::vfs::open::{self, OpenFiles};

use crate::fixture::{LOG, SLOT, STORE, batches, files, import, noise, open, picture};

fn empty() -> (Arc<dyn Disk>, Arc<Collection>) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    disk.create_directory("t").unwrap();
    let collection =
        Collection::create(&disk, STORE, CollectionName::new("t", "c"), 1, Owner { uid: 7, gid: 8 }, 0o755)
            .unwrap();
    (disk, Arc::new(collection))
}

fn copy(disk: &Arc<dyn Disk>) -> Arc<dyn Disk> {
    let copied: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    for directory in ["t", "t/c", "t/c/data"] {
        copied.create_directory(directory).unwrap();
    }
    for (path, bytes) in files(disk) {
        copied.open(&path, Open::Create).unwrap().write_at(&bytes, 0).unwrap();
    }
    copied
}

/// Flips two bits of a slot of the log.
fn flip_two(disk: &Arc<dyn Disk>, at: usize) {
    let log = disk.open(LOG, Open::Write).unwrap();
    let mut bytes = [0; 2];
    log.read_exact_at(&mut bytes, at as u64 + 5).unwrap();
    log.write_at(&[bytes[0] ^ 0x10, bytes[1] ^ 4], at as u64 + 5).unwrap();
}

/// The contents of `lost+found`.
fn found(collection: &Arc<Collection>) -> Vec<Vec<u8>> {
    let all = picture(collection);
    let found = all.into_iter().filter(|(path, _)| path.starts_with("/lost+found/"));
    found.map(|(path, (_, bytes))| bytes.unwrap_or_else(|error| panic!("{path}: {error:?}"))).collect()
}

#[test]
fn two_flipped_bits_in_any_slot_of_the_last_batch_remove_no_imported_data() {
    let encoded = Options { tier: Some(MoveTo::parse("q8:all").unwrap()), ..Options::default() };
    let cut = Options { blocking: Blocking::bytes(4096).unwrap(), ..Options::default() };
    for (name, bytes, options) in [
        ("d/last", noise(50_000), cut),
        ("d/last", noise(900), Options::default()),
        ("d/last.npy", npy(3000), encoded),
    ] {
        let (disk, collection) = empty();
        import(&collection, "before", &noise(20_000), &Options::default()).unwrap();
        let before = picture(&collection);
        import(&collection, name, &bytes, &options).unwrap();
        let all = picture(&collection);
        let right: Vec<Vec<u8>> = all
            .iter()
            .filter(|(path, (node, _))| {
                !before.contains_key(*path) && matches!(node.node_type, NodeType::File(_))
            })
            .map(|(_, (_, bytes))| bytes.clone().unwrap())
            .collect();
        drop(collection);
        let log = files(&disk)[LOG].clone();
        let (begin, end) = *batches(&log).last().unwrap();
        let mut dropped = 0;
        for at in (begin..end).step_by(SLOT) {
            let place = format!("{} bytes, slot at {at} of {begin}..{end}", bytes.len());
            let disk = copy(&disk);
            flip_two(&disk, at);
            let damaged = files(&disk);
            drop(open(&disk, Access::Read).unwrap());
            assert!(files(&disk) == damaged, "{place}: opened to read, it changes");
            let collection = open(&disk, Access::Write).unwrap();
            assert_eq!(collection.damage(), None, "{place}");
            assert!(!collection.events().is_empty(), "{place}");
            let now = picture(&collection);
            if now.contains_key("/d") {
                // The padding between a payload and the end of its slot is ignored.
                assert!(now == all, "{place}");
                continue;
            }
            dropped += 1;
            assert_eq!(now["/before"].1, before["/before"].1, "{place}");
            let found = found(&collection);
            // The whole file consists of its parts in some order.
            let whole = right.iter().max_by_key(|bytes| bytes.len()).unwrap();
            let parts: usize = found.iter().map(Vec::len).sum();
            assert_eq!(parts, whole.len(), "{place}");
            for part in &found {
                let is_part = whole.windows(part.len()).any(|window| window == part);
                assert!(is_part, "{place}: bytes that nobody wrote");
            }
            let kept = files(&disk);
            assert!(kept.values().any(|bytes| *bytes == damaged[LOG]), "{place}: the log of before");
            // The collection takes further work, and the files stay.
            import(&collection, "after", &noise(30_000), &Options::default()).unwrap();
            drop(collection);
            let again = open(&disk, Access::Write).unwrap();
            assert!(again.events().is_empty() && again.damage().is_none(), "{place}");
            assert!(crate::dropped_end::found(&again) == found, "{place}: opened again");
            assert_eq!(picture(&again)["/after"].1, Ok(noise(30_000)), "{place}");
        }
        assert!(dropped >= 5, "{dropped} batches were dropped");
    }
}

/// A `.npy` of this many f32.
fn npy(count: usize) -> Vec<u8> {
    let mut header = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    header.extend(format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},), }}").as_bytes());
    header.resize(127, b' ');
    header.push(b'\n');
    header.extend((0..count).flat_map(|place| (place as f32).sin().to_le_bytes()));
    header
}

#[test]
fn an_unfinished_batch_leaves_nothing() {
    let (disk, collection) = empty();
    import(&collection, "before", &noise(20_000), &Options::default()).unwrap();
    let (right, kept) = (picture(&collection), files(&disk).len());
    import(&collection, "last", &noise(50_000), &Options::default()).unwrap();
    drop(collection);
    let (begin, end) = *batches(&files(&disk)[LOG]).last().unwrap();
    for len in (begin + 1..end).step_by(37) {
        let disk = copy(&disk);
        disk.open(LOG, Open::Write).unwrap().set_len(len as u64).unwrap();
        let collection = open(&disk, Access::Write).unwrap();
        assert!(picture(&collection) == right, "{len} bytes");
        assert_eq!(files(&disk).len(), kept, "{len} bytes: {:?}", files(&disk).keys());
    }
}

/// A file that was written through a mount.
struct Written {
    table: OpenFiles,
    collection: Arc<Collection>,
}

impl Written {
    fn create(&self, name: &str) {
        open::create(&self.collection, ROOT, name.as_bytes(), 0o644, Owner { uid: 7, gid: 8 }).unwrap();
    }

    fn write(&self, name: &str, at: u64, bytes: &[u8]) -> Arc<tierfs::vfs::open::OpenFile> {
        let node = self.collection.state().directory(ROOT).unwrap().get(name.as_bytes()).unwrap();
        let open_file = self.table.open(&self.collection, node, Verify::First).unwrap();
        open_file.write(at, bytes).unwrap();
        open_file
    }
}

#[test]
fn a_damaged_end_restores_the_earlier_state_and_keeps_the_dropped_bytes() {
    let (disk, collection) = empty();
    let world = Written { table: OpenFiles::default(), collection };
    let (first, second, third) = (noise(100_000), vec![0xb2; 16 << 10], vec![0xc3; 16 << 10]);
    for name in ["f", "small", "other"] {
        world.create(name);
    }
    world.write("f", 0, &first).flush().unwrap();
    world.write("small", 0, b"small before").flush().unwrap();
    // The second version lies in a slot of a tier file, and so do small files.
    world.write("f", 32 << 10, &second).flush().unwrap();
    world.collection.sync().unwrap();
    let log = files(&disk)[LOG].len();
    world.write("small", 0, b"small after.").flush().unwrap();
    world.write("f", 32 << 10, &third).flush().unwrap();
    // Like an fsync, after which the log does not record it as durable yet.
    world.collection.sync_unmarked().unwrap();
    // This takes freed space, and no batch names it.
    world.write("other", 0, &noise(200_000)[7..]);
    let slots = files(&disk)[LOG][log..].chunks(SLOT).count();
    let mut dropped = 0;
    for slot in 0..slots {
        let at = log + slot * SLOT;
        let bytes: [u8; SLOT] = files(&disk)[LOG][at..at + SLOT].try_into().unwrap();
        let raw = RawSlot(bytes);
        if raw.is_intact() && matches!(Record::parse(&raw), Ok(Record::Commit { slots: 0, .. })) {
            break;
        }
        let disk = copy(&disk);
        flip_two(&disk, at);
        let collection = open(&disk, Access::Write).unwrap();
        assert_eq!(collection.damage(), None, "slot {slot}");
        let now = picture(&collection);
        let is_dropped = collection.events().iter().any(|event| event.kind == EventKind::Dropped);
        let mut before = first.clone();
        before[32 << 10..48 << 10].copy_from_slice(&second);
        let mut after = first.clone();
        after[32 << 10..48 << 10].copy_from_slice(&third);
        let bytes = now["/f"].1.as_ref().unwrap();
        assert!(*bytes == before || *bytes == after, "slot {slot}: f reads otherwise");
        let small = now["/small"].1.as_ref().unwrap();
        assert!(small == b"small before" || small == b"small after.", "slot {slot}: {small:?}");
        if !is_dropped {
            // The padding between a payload and the end of its slot is ignored.
            assert!(*bytes == after && small == b"small after.", "slot {slot}");
            continue;
        }
        dropped += 1;
        // The later bytes are there of the block whose place is still readable.
        let raw_is_place = matches!(Record::parse(&raw), Ok(Record::Create { .. }));
        if *bytes == before && !raw_is_place {
            assert!(found(&collection).contains(&third), "slot {slot}: the later bytes are gone");
        }
        // The bytes stay while others write.
        let again = Written { table: OpenFiles::default(), collection };
        again.create("more");
        again.write("more", 0, &noise(300_000)).flush().unwrap();
        again.write("more", 4096, &noise(200_000)).flush().unwrap();
        again.collection.sync().unwrap();
        let set_aside = found(&again.collection);
        drop(again);
        let collection = open(&disk, Access::Write).unwrap();
        assert!(found(&collection) == set_aside, "slot {slot}");
        let (events, damage) = (collection.events(), collection.damage());
        assert!(events.is_empty() && damage.is_none(), "slot {slot}: {events:?}, {damage:?}");
    }
    assert!(dropped >= 5, "{dropped} of {slots} slots");
}

#[test]
fn a_bad_page_anywhere_in_a_rewritten_log_is_damage() {
    let (disk, collection) = empty();
    for number in 0..40 {
        import(&collection, &format!("f{number}"), &noise(300 + number), &Options::default()).unwrap();
    }
    collection.checkpoint_now().unwrap();
    let right = picture(&collection);
    drop(collection);
    let len = files(&disk)[LOG].len();
    for begin in (0..len).step_by(4096) {
        let disk = copy(&disk);
        let bad = vec![0xa5; 4096.min(len - begin)];
        disk.open(LOG, Open::Write).unwrap().write_at(&bad, begin as u64).unwrap();
        match open(&disk, Access::Write) {
            Err(error) => assert_eq!(begin, 0, "the header is in the first page: {error}"),
            Ok(collection) if collection.damage().is_some() => {}
            // Only the record that marks the log as durable.
            Ok(collection) => assert!(picture(&collection) == right, "page at {begin}: files are gone"),
        }
    }
}
