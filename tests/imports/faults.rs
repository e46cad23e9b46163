//! Imports that are interrupted, or that meet disk errors.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use tierfs::ingest::Options;
use tierfs::model::{ErrorKind, MoveTo, Result};
use tierfs::store::Collection;
use tierfs::store::Verify;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, File, ReadAt};

use crate::failing_disk::{FailingDisk, Failure};
use crate::fixture::{
    Numbers, create, f32s, files, find, import, import_from, on_each_disk, open, paths, read,
    safetensors_file, stream,
};

/// The imports in order; the last one replaces the first.
fn sources() -> Vec<(&'static str, Vec<u8>, Options)> {
    let mut numbers = Numbers(2);
    let q5 = || Options { tier: Some(MoveTo::parse("q5:all").unwrap()), ..Options::default() };
    let old = safetensors_file(&[f32s("a", &[6000], &mut numbers), f32s("d/b", &[100], &mut numbers)]);
    let new = safetensors_file(&[f32s("a", &[5000], &mut numbers), f32s("c", &[100], &mut numbers)]);
    vec![
        ("m.safetensors", old, q5()),
        ("plain", numbers.bytes(20_000), Options::default()),
        ("small", numbers.bytes(10), Options::default()),
        ("m.safetensors", new, q5()),
    ]
}

fn import_all(collection: &Arc<Collection>) -> Vec<Result<()>> {
    sources()
        .iter()
        .map(|(path, bytes, options)| import(collection, path, bytes, options).map(|_| ()))
        .collect()
}

/// The expected content after the first `count` imports.
fn pictures() -> Vec<Vec<(String, Vec<u8>)>> {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let collection = create(&disk);
    let mut pictures = vec![picture(&collection)];
    for (path, bytes, options) in sources() {
        import(&collection, path, &bytes, &options).unwrap();
        pictures.push(picture(&collection));
    }
    pictures
}

fn picture(collection: &Arc<Collection>) -> Vec<(String, Vec<u8>)> {
    let is_file = |path: &String| find(collection, path).unwrap().file().is_some();
    paths(collection)
        .into_iter()
        .filter(is_file)
        .map(|path| (path.clone(), read(collection, &path).unwrap()))
        .collect()
}

fn assert_no_orphans(collection: &Collection, disk: &Arc<dyn Disk>, context: &str) {
    let state = collection.state();
    let owned: HashSet<_> =
        state.nodes().filter_map(|node| node.file()).flat_map(|file| file.objects.iter().copied()).collect();
    let extents: HashSet<_> =
        state.objects().filter_map(|object| object.extent()).map(|extent| extent.file).collect();
    for object in state.objects() {
        assert!(owned.contains(&object.entry.id), "{context}: an object that no file has");
    }
    for (path, _) in files(disk, "t/c/data") {
        let id = u64::from_str_radix(path.rsplit('/').next().unwrap(), 16).unwrap();
        assert!(extents.contains(&id), "{context}: {path} belongs to nothing");
    }
}

fn fails_at_every_call(failure: Failure) {
    let pictures = pictures();
    for at in 0.. {
        let memory = MemoryDisk::new();
        let plain: Arc<dyn Disk> = Arc::new(memory.clone());
        drop(create(&plain));
        let failing = FailingDisk::new(&memory, at, failure);
        let disk: Arc<dyn Disk> = Arc::new(failing.clone());
        let context = format!("{failure:?} at call {at}");
        let done = open(&disk).map(|collection| import_all(&collection)).unwrap_or_default();
        if !failing.has_failed() {
            assert!(at > 30 && done.iter().all(Result::is_ok), "{context}");
            return;
        }
        let collection = open(&plain).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert!(collection.damage().is_none(), "{context}");
        let found = picture(&collection);
        // Each import is there whole or not at all; an acknowledged one is there.
        let acknowledged = done.iter().filter(|done| done.is_ok()).count();
        let is_prefix = done.iter().take(acknowledged).all(Result::is_ok);
        if is_prefix {
            let place = pictures.iter().position(|picture| *picture == found);
            let place = place.unwrap_or_else(|| panic!("{context}: {:?}", paths(&collection)));
            assert!(place == acknowledged || place == acknowledged + 1, "{context}: {place}");
        }
        assert_no_orphans(&collection, &plain, &context);
        for done in import_all(&collection) {
            done.unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        let collection = open(&plain).unwrap();
        assert!(picture(&collection) == *pictures.last().unwrap(), "{context}");
        assert_no_orphans(&collection, &plain, &context);
    }
}

#[test]
fn a_crash_at_any_call_leaves_whole_files() {
    fails_at_every_call(Failure::FromThenOn);
}

#[test]
fn an_error_at_any_call_leaves_whole_files() {
    fails_at_every_call(Failure::Once(io::ErrorKind::Other));
}

#[test]
fn a_full_disk_at_any_call_leaves_whole_files() {
    fails_at_every_call(Failure::Once(io::ErrorKind::StorageFull));
}

#[test]
fn a_failed_sync_stops_all_further_writes() {
    let mut refused = 0;
    for at in 0.. {
        let memory = MemoryDisk::new();
        drop(create(&(Arc::new(memory.clone()) as Arc<dyn Disk>)));
        let failing = FailingDisk::new(&memory, at, Failure::Once(io::ErrorKind::Other));
        let disk: Arc<dyn Disk> = Arc::new(failing.clone());
        let Ok(collection) = open(&disk) else { continue };
        let first = import(&collection, "a", &[1; 20_000], &Options::default());
        if !failing.has_failed() {
            break;
        }
        assert!(first.is_err(), "call {at}");
        let second = import(&collection, "b", b"b", &Options::default());
        if let Some(reason) = collection.poisoned() {
            assert!(reason.contains("fsck"), "{reason}");
            assert_eq!(second.unwrap_err().kind(), ErrorKind::ReadOnly);
            refused += 1;
            let (start, end) = collection.event_log().range();
            let mut told = vec![0; (end - start) as usize];
            collection.event_log().read(start, &mut told).unwrap();
            let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
            assert_eq!((&told["kind"], &told["path"]), (&"poisoned".into(), &"t/c".into()), "one event");
        } else {
            second.unwrap();
        }
    }
    // The sync of the log when it is opened; three syncs of the data, the writes of two batches, and a sync of the
    // log after each.
    assert_eq!(refused, 8);
}

#[test]
fn imports_fail_on_a_full_disk_and_work_again_when_space_returns() {
    for at in 0.. {
        let memory = MemoryDisk::new();
        let plain: Arc<dyn Disk> = Arc::new(memory.clone());
        drop(create(&plain));
        let failing = FailingDisk::new(&memory, at, Failure::Once(io::ErrorKind::StorageFull));
        let disk: Arc<dyn Disk> = Arc::new(failing.clone());
        let Ok(collection) = open(&disk) else { continue };
        if collection.poisoned().is_some() {
            // A failed sync counts as failed with any error number.
            continue;
        }
        let first = import(&collection, "a", &[1; 20_000], &Options::default());
        if !failing.has_failed() {
            return;
        }
        assert_eq!(first.unwrap_err().kind(), ErrorKind::Full, "call {at}");
        if collection.poisoned().is_none() {
            assert_no_orphans(&collection, &plain, &format!("call {at}"));
        }
        if collection.poisoned().is_none() {
            import(&collection, "b", b"b", &Options::default()).unwrap();
            drop(collection);
            let collection = open(&plain).unwrap();
            assert!(collection.events().is_empty(), "call {at}: {:?}", collection.events());
            assert_eq!(paths(&collection), ["b"], "call {at}");
        }
    }
}

/// A source that is shorter than its stated size.
struct Shrinking(Arc<dyn File>, u64);

impl ReadAt for Shrinking {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = self.1.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.0.read_at(&mut buffer[..end], offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
}

impl File for Shrinking {
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_source_that_shrinks_leaves_nothing() {
    on_each_disk(|disk| {
        let mut numbers = Numbers(12);
        let container =
            safetensors_file(&[f32s("a", &[8000], &mut numbers), f32s("b", &[8000], &mut numbers)]);
        let tier = |text: &str| Options { tier: Some(MoveTo::parse(text).unwrap()), ..Options::default() };
        let mut collection = create(&disk);
        for options in [Options::default(), tier("q8:all")] {
            for len in [0, 5, 100, 10_000, container.len() as u64 - 1] {
                let source: Arc<dyn File> = Arc::new(Shrinking(crate::fixture::file(&container), len));
                let error = import_from(&collection, "m.safetensors", &source, &options).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Io), "{len}: {error}");
                assert_eq!(paths(&collection), [""; 0]);
                drop(collection);
                collection = open(&disk).unwrap();
                assert_eq!(paths(&collection), [""; 0]);
                assert_no_orphans(&collection, &disk, &format!("cut at {len}"));
            }
        }
        import(&collection, "m.safetensors", &container, &Options::default()).unwrap();
        assert!(read(&collection, "m.safetensors").unwrap() == container);
    });
}

/// Bytes of the files that hold payloads.
fn payload_bytes(disk: &Arc<dyn Disk>) -> usize {
    let is_payload = |path: &str| !path.ends_with("meta.log");
    files(disk, "t/c").iter().filter(|(path, _)| is_payload(path)).map(|(_, bytes)| bytes.len()).sum()
}

#[test]
fn repeated_replacement_takes_no_more_space() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        let q8 = Options { tier: Some(MoveTo::parse("q8:all").unwrap()), ..Options::default() };
        let mut most = 0;
        for round in 0..20 {
            let mut numbers = Numbers(round);
            import(&collection, "plain", &numbers.bytes(20_000), &Options::default()).unwrap();
            import(&collection, "small", &numbers.bytes(1000), &Options::default()).unwrap();
            let tensors = safetensors_file(&[f32s("a", &[20_000], &mut numbers)]);
            import(&collection, "m.safetensors", &tensors, &q8).unwrap();
            let bytes = payload_bytes(&disk);
            if round < 2 {
                most = most.max(bytes);
            }
            assert!(bytes <= most, "round {round}: {bytes} bytes after {most}");
            assert_no_orphans(&collection, &disk, &format!("round {round}"));
        }
    });
}

#[test]
fn an_open_file_keeps_the_version_that_it_was_opened_with() {
    on_each_disk(|disk| {
        let q8 = Options { tier: Some(MoveTo::parse("q8:all").unwrap()), ..Options::default() };
        let file = |seed: u64| safetensors_file(&[f32s("a", &[20_000], &mut Numbers(seed))]);
        drop(create(&disk));
        for reopened in [false, true] {
            let mut collection = open(&disk).unwrap();
            for (path, options) in [("q/m.safetensors", &q8), ("e/m.safetensors", &Options::default())] {
                import(&collection, path, &file(1), options).unwrap();
            }
            if reopened {
                // The free space is known only after the old version was deleted.
                drop(collection);
                collection = open(&disk).unwrap();
            }
            for (path, options) in [("q/m.safetensors", &q8), ("e/m.safetensors", &Options::default())] {
                let right = read(&collection, path).unwrap();
                let held = stream(&collection, path, Verify::Always);
                for seed in 2..6 {
                    let exact = Options::default();
                    // The first import does not use the tier file.
                    let options = if seed == 2 { &exact } else { options };
                    import(&collection, path, &file(seed), options).unwrap();
                    let mut found = vec![0; right.len()];
                    held.read(0, &mut found).unwrap();
                    assert!(found == right, "{path}, {seed}");
                }
            }
        }
    });
}
