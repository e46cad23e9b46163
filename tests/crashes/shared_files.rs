//! Two collections that share a data file: the power fails after any change of an import that shares it, and of
//! writes, removals and compactions. Each file reads as it was before the change or as it is after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tierfs::engine::compact;
use tierfs::ingest::{Options, Origin, Target, import_file};
use tierfs::model::{ErrorKind, Owner, Result, Silent, StoreId};
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, File, Open};
use tierfs::store::{Access, Collection, ROOT, Store, Verify};
use tierfs::vfs::open::{self, OpenFiles};

use crate::power_cut_disk::CutDisk;
use crate::recorder::Recorder;
use support::{Random, container_of, scale};

const BYTES: usize = 100_000;
const COLLECTIONS: [&str; 2] = ["a", "b"];

/// The contents that file `f` of each collection may have; `None`: it is not there.
type Known = BTreeMap<&'static str, Vec<Option<Vec<u8>>>>;

fn opened(disk: &Arc<dyn Disk>) -> Store {
    Store::open(disk.clone(), Access::Write, "a test").unwrap()
}

fn collection(store: &Store, name: &str) -> Arc<Collection> {
    store.collection_made("t", name, Owner { uid: 0, gid: 0 }).unwrap()
}

fn import(store: &Store, name: &str, bytes: &[u8]) -> u64 {
    import_as(store, name, b"f", bytes)
}

fn import_as(store: &Store, name: &str, file: &[u8], bytes: &[u8]) -> u64 {
    let source: Arc<dyn File> = MemoryDisk::new().open("source", Open::Create).unwrap();
    source.write_at(bytes, 0).unwrap();
    let origin = Origin { mode: 0o644, owner: Owner { uid: 0, gid: 0 }, atime: 0, mtime: 0, sha256: None };
    let target = Target { directories: Vec::new(), name: file.to_vec() };
    let (collection, options) = (collection(store, name), Options::default());
    import_file(&collection, store.settings(), &target, &source, &origin, &options, &Silent).unwrap().shared
}

fn read(collection: &Arc<Collection>) -> Result<Option<Vec<u8>>> {
    read_as(collection, b"f")
}

fn read_as(collection: &Arc<Collection>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let node = collection.state().directory(ROOT).unwrap().get(name);
    let Some(node) = node else { return Ok(None) };
    let table = OpenFiles::default();
    let file = table.open(collection, node, Verify::Always)?;
    let mut bytes = vec![0; file.bytes() as usize];
    assert_eq!(file.read(0, &mut bytes)?, bytes.len());
    Ok(Some(bytes))
}

/// Checks both files. A file that is being written may have blocks that are not durable yet.
fn check(store: &Store, known: &Known, written: Option<&str>, context: &str) {
    for name in COLLECTIONS {
        let found = match read(&collection(store, name)) {
            Err(error) if written == Some(name) && error.kind() == ErrorKind::Corrupt => continue,
            found => found.unwrap_or_else(|error| panic!("{context}: {name}: {error}")),
        };
        let right = known[name].contains(&found);
        let found = found.map(|bytes| (bytes.len(), bytes.first().copied()));
        assert!(right, "{context}: {name} is {found:?}");
    }
}

/// Changes the file of one collection in some way, durably. Returns its content afterwards, and whether it was written
/// to.
fn step(
    store: &Store,
    name: &str,
    before: Option<Vec<u8>>,
    random: &mut Random,
    source: &[u8],
) -> (Option<Vec<u8>>, bool) {
    let collection = collection(store, name);
    let Some(mut bytes) = before.filter(|_| random.below(5) > 0) else {
        import(store, name, source);
        return (Some(source.to_vec()), false);
    };
    match random.below(4) {
        0 => {
            open::unlink(&collection, ROOT, b"f").unwrap();
            collection.sync().unwrap();
            return (None, false);
        }
        1 => {
            compact(&collection, &Silent).unwrap();
            return (Some(bytes), false);
        }
        _ => {
            let (at, len) = (random.below(bytes.len() + 1), 1 + random.below(40_000));
            let new = random.bytes(len);
            bytes.resize(bytes.len().max(at + new.len()), 0);
            bytes[at..at + new.len()].copy_from_slice(&new);
            let node = collection.state().directory(ROOT).unwrap().get(b"f").unwrap();
            let table = OpenFiles::default();
            let file = table.open(&collection, node, Verify::First).unwrap();
            file.write(at as u64, &new).unwrap();
            file.flush().unwrap();
            collection.sync().unwrap();
        }
    }
    (Some(bytes), true)
}

/// Cuts the power after each change of the second collection's file coming to share, of which all was durable before.
fn cut_while_sharing(name: &[u8], source: &[u8], seed: u64) {
    let recorder = Recorder::new(CutDisk::default());
    let disk: Arc<dyn Disk> = Arc::new(recorder.clone());
    Store::create(&*disk, StoreId(7)).unwrap();
    let store = opened(&disk);
    import_as(&store, "a", name, source);
    let second = collection(&store, "b");
    let node = open::create(&second, ROOT, name, 0o644, Owner { uid: 0, gid: 0 }).unwrap();
    let table = OpenFiles::default();
    let file = table.open(&second, node, Verify::First).unwrap();
    file.write(0, source).unwrap();
    file.flush().unwrap();
    second.sync().unwrap();
    let entry = || second.state().node(node).unwrap().entry.clone();
    let (from, before) = (recorder.count(), entry());
    // A container comes to share here.
    file.flush_closed(&mut open::Changes::default()).unwrap();
    if file.takes_comparison() {
        assert!(file.share_later(&Silent).unwrap(), "it is not shared");
        let after = entry();
        assert_eq!((after.ctime, after.mtime, after.mode), (before.ctime, before.mtime, before.mode));
    }
    second.sync().unwrap();
    assert_eq!(second.shared_bytes().files, 1);
    let mut chance = Random(seed + 50);
    for count in from..=recorder.count() {
        let state = recorder.again(CutDisk::default(), count);
        for kept in [0, 1, 2, 3, 3, 3, 3, 3].repeat(20) {
            let store = opened(&(Arc::new(state.cut(&mut chance, kept)) as Arc<dyn Disk>));
            for collection in COLLECTIONS.map(|name| collection(&store, name)) {
                let found = read_as(&collection, name);
                let found = found.unwrap_or_else(|error| {
                    panic!("change {count}, {kept} of 4 kept: {}: {error}", collection.path())
                });
                assert!(found.as_deref() == Some(source), "change {count}, {kept} of 4 kept: other bytes");
            }
        }
    }
}

/// Cuts the power after each change of a copy that shares the blocks of its source, and of what follows it.
fn cut_while_copying(name: &[u8], source: &[u8], seed: u64) {
    let recorder = Recorder::new(CutDisk::default());
    let disk: Arc<dyn Disk> = Arc::new(recorder.clone());
    Store::create(&*disk, StoreId(7)).unwrap();
    let store = opened(&disk);
    import_as(&store, "a", name, source);
    let (first, second) = (collection(&store, "a"), collection(&store, "b"));
    let table = OpenFiles::default();
    let open = |collection: &Arc<Collection>| {
        let node = collection.state().directory(ROOT).unwrap().get(name).unwrap();
        table.open(collection, node, Verify::First).unwrap()
    };
    let from = recorder.count();
    open::create(&second, ROOT, name, 0o644, Owner { uid: 0, gid: 0 }).unwrap();
    let (read, file) = (open(&first), open(&second));
    let open::CopyStep::Blocks(blocks) = read.copy_step(0..source.len() as u64).unwrap() else {
        panic!("nothing is shared")
    };
    assert_eq!(file.append_blocks(0, &blocks).unwrap(), source.len() as u64);
    file.flush_closed(&mut open::Changes::default()).unwrap();
    second.sync().unwrap();
    assert_eq!(second.shared_bytes().files, 1);
    let copied = recorder.count();
    // Then a write, and the removal of the source.
    let mut changed = source.to_vec();
    changed[50_000..50_009].copy_from_slice(b"the write");
    file.write(50_000, b"the write").unwrap();
    file.flush_closed(&mut open::Changes::default()).unwrap();
    second.sync().unwrap();
    let written = recorder.count();
    drop((read, file));
    open::unlink(&first, ROOT, name).unwrap();
    first.sync().unwrap();
    compact(&second, &Silent).unwrap();
    let mut chance = Random(seed + 50);
    for count in from..=recorder.count() {
        let state = recorder.again(CutDisk::default(), count);
        for kept in [0, 1, 2, 3, 3, 3].repeat(4) {
            let context = format!("change {count}, {kept} of 4 kept");
            let store = opened(&(Arc::new(state.cut(&mut chance, kept)) as Arc<dyn Disk>));
            let found = read_as(&collection(&store, "a"), name);
            let found = found.unwrap_or_else(|error| panic!("{context}: the source: {error}"));
            let is_gone = found.is_none() && count > written;
            assert!(is_gone || found.as_deref() == Some(source), "{context}: other bytes of the source");
            let found = read_as(&collection(&store, "b"), name);
            match &found {
                Ok(None) => assert!(count < copied, "{context}: no copy"),
                // Neither the copy nor the write was durable yet.
                Err(error) => {
                    assert!(count < written && error.kind() == ErrorKind::Corrupt, "{context}: {error}");
                }
                Ok(Some(bytes)) if bytes.is_empty() => assert!(count < copied, "{context}: no copy"),
                Ok(Some(bytes)) if *bytes == source => assert!(count < written, "{context}: no write"),
                Ok(Some(bytes)) => {
                    assert!(*bytes == changed && count >= copied, "{context}: other bytes of the copy");
                }
            }
        }
    }
}

#[test]
fn a_power_cut_while_a_file_is_copied_leaves_the_source_and_no_part_of_a_copy() {
    for seed in 0..u64::from(scale()) {
        cut_while_copying(b"f", &Random(seed).bytes(BYTES), seed);
    }
}

#[test]
fn a_power_cut_while_a_container_is_copied_leaves_the_source_and_no_part_of_a_copy() {
    for seed in 0..u64::from(scale()) {
        cut_while_copying(b"f.safetensors", &container_of(&mut Random(seed), &[("w", 25_000)]), seed);
    }
}

#[test]
fn a_power_cut_while_a_closed_file_comes_to_share_leaves_both_files_as_they_are() {
    for seed in 0..u64::from(scale()) {
        cut_while_sharing(b"f", &Random(seed).bytes(BYTES), seed);
    }
}

#[test]
fn a_power_cut_while_a_closed_container_comes_to_share_leaves_both_files_as_they_are() {
    for seed in 0..u64::from(scale()) {
        let source = container_of(&mut Random(seed), &[("w", 25_000)]);
        cut_while_sharing(b"f.safetensors", &source, seed);
    }
}

#[test]
fn a_power_cut_at_any_change_leaves_both_files_as_they_were_or_became() {
    let mut points = 0;
    for seed in 0..6 * u64::from(scale()) {
        let recorder = Recorder::new(CutDisk::default());
        let disk: Arc<dyn Disk> = Arc::new(recorder.clone());
        Store::create(&*disk, StoreId(7)).unwrap();
        let (mut random, mut chance) = (Random(seed), Random(seed + 50));
        let source = random.bytes(BYTES);
        let store = opened(&disk);
        assert_eq!(import(&store, "a", &source), 0);
        assert_eq!(import(&store, "b", &source), BYTES as u64, "it is not shared");
        let mut known: Known =
            COLLECTIONS.into_iter().map(|name| (name, vec![Some(source.clone())])).collect();
        for number in 0..8 {
            let name = COLLECTIONS[random.below(2)];
            let (from, before) = (recorder.count(), known[name][0].clone());
            let (after, is_written) = step(&store, name, before.clone(), &mut random, &source);
            known.insert(name, vec![before, after.clone()]);
            check(&store, &known, None, &format!("seed {seed}, step {number}"));
            let all: Vec<usize> = (from..=recorder.count()).collect();
            for &count in all.iter().step_by(all.len().div_ceil(12)).chain(all.last()) {
                let kept = chance.below(5);
                let cut = recorder.again(CutDisk::default(), count).cut(&mut chance, kept);
                let context = format!("seed {seed}, step {number}, change {count}, {kept} of 4 kept");
                let store = opened(&(Arc::new(cut) as Arc<dyn Disk>));
                check(&store, &known, is_written.then_some(name), &context);
                points += 1;
            }
            known.insert(name, vec![after]);
        }
    }
    assert!(points > 200, "{points} points");
}
