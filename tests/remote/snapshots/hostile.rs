//! Somebody else can write the remote: manifests, logs and pieces that nobody would push.

use std::sync::Arc;

use tierfs::format::log::catalog::{Entry, OutsideFile, OutsidePlace, SourcePlace};
use tierfs::format::log::slot::{RawSlot, SLOT_BYTES};
use tierfs::format::snapshot::manifest::FileKind;
use tierfs::format::snapshot::references::Version;
use tierfs::ingest::Options;
use tierfs::model::{CollectionName, ErrorKind, Owner, StoreId};
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, CloneSource, Cloned, Collection, Frozen, Store, Touched};

use super::memory::{REMOTE, Remote};
use crate::fixture::{Numbers, create, f32s, import, read, safetensors_file};

fn pushed() -> (Remote, Vec<u8>, Vec<u8>) {
    let collection = create(&(Arc::new(MemoryDisk::new()) as Arc<dyn Disk>));
    let bytes = safetensors_file(&[f32s("w", &[200, 200], &mut Numbers(3))]);
    import(&collection, "m.safetensors", &bytes, &Options::default()).unwrap();
    let remote = Remote::default();
    let canonical = Frozen::of(&collection).unwrap().canonical(REMOTE).unwrap();
    remote.push_canonical(&canonical, CollectionName::new("t", "c"));
    (remote, canonical.log().to_vec(), bytes)
}

#[test]
fn a_log_that_is_cut_or_changed_opens_as_damaged_or_not_at_all() {
    let (remote, log, bytes) = pushed();
    assert_eq!(read(&remote.store().collection("t", "c").unwrap(), "m.safetensors").unwrap(), bytes);
    for slot in 0..log.len() / SLOT_BYTES {
        let mut changed = log.clone();
        changed[slot * SLOT_BYTES + 30..][..8].fill(0xa5);
        remote.change_log(CollectionName::new("t", "c"), &changed);
        if let Ok(collection) = remote.store().collection("t", "c") {
            let found = collection.state().find(tierfs::store::ROOT, b"m.safetensors");
            // Never other bytes.
            if found.is_some()
                && let Ok(found) = read(&collection, "m.safetensors")
            {
                assert!(found == bytes, "slot {slot}");
            }
        }
    }
    for len in [0, 1, SLOT_BYTES, log.len() - 1, log.len() / 2] {
        if len == 0 {
            continue;
        }
        remote.change_log(CollectionName::new("t", "c"), &log[..len]);
        let opened = remote.store().collection("t", "c");
        assert!(
            opened.is_err_and(|error| matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt)),
            "{len}"
        );
    }
}

#[test]
fn a_log_with_the_highest_numbers_gets_no_number_and_is_refused() {
    let (remote, log, _) = pushed();
    let mut last = RawSlot(log[log.len() - SLOT_BYTES..].try_into().unwrap());
    // The Commit of the highest batch with the highest number.
    last.put(21, u64::MAX.to_le_bytes());
    last.seal(1, u64::MAX);
    let changed = [&log[..log.len() - SLOT_BYTES], &last.0].concat();
    remote.change_log(CollectionName::new("t", "c"), &changed);
    assert_eq!(remote.store().collection("t", "c").err().unwrap().kind(), ErrorKind::Io);
}

#[test]
fn a_data_file_of_any_claimed_length_takes_no_memory_and_reads_as_an_error() {
    let (remote, ..) = pushed();
    remote.change(CollectionName::new("t", "c"), |manifest| {
        for file in manifest.files.iter_mut().filter(|file| file.kind != FileKind::Log) {
            file.bytes = i64::MAX as u64;
            file.extents.clear();
        }
    });
    let collection = remote.store().collection("t", "c").unwrap();
    assert_eq!(read(&collection, "m.safetensors").unwrap_err().kind(), ErrorKind::Corrupt);
    remote.change(CollectionName::new("t", "c"), |manifest| manifest.files.truncate(1));
    let collection = remote.store().collection("t", "c").unwrap();
    assert_eq!(read(&collection, "m.safetensors").unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_damaged_copy_of_a_payload_is_fetched_again_once() {
    let (remote, _, bytes) = pushed();
    for (times, is_read) in [(1, true), (2, false)] {
        let collection = remote.store().collection("t", "c").unwrap();
        remote.damage(times);
        let found = read(&collection, "m.safetensors");
        assert_eq!(found.is_ok_and(|found| found == bytes), is_read, "damaged {times} times");
        assert_eq!(remote.fetched_again(), 1);
        remote.damage(0);
    }
}

#[test]
fn a_remote_whose_log_is_of_another_is_refused() {
    let (remote, log, _) = pushed();
    let mut header = RawSlot(log[..SLOT_BYTES].try_into().unwrap());
    header.put(27, 5_u128.to_le_bytes());
    header.seal(1, 0);
    remote.change_log(CollectionName::new("t", "c"), &[&header.0, &log[SLOT_BYTES..]].concat());
    let refused = remote.store().collection("t", "c").err().unwrap();
    assert!(refused.to_string().contains("belongs to store"), "{refused}");
}

#[test]
fn a_log_that_leads_to_files_of_this_machine_makes_no_clone() {
    let (remote, ..) = pushed();
    let name = CollectionName::new("t", "c");
    let folder = support::Place::new();
    folder.write("secret", b"of this machine");
    let path = folder.path("secret").into_os_string().into_encoded_bytes();
    let source = format!("file://{}", folder.path("").display());
    let object = Box::new(SourcePlace { source, key: "secret".to_owned(), version: Version::Fixed });
    for place in [OutsidePlace::Path(path), OutsidePlace::Object { object, is_read: false }] {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        disk.create_directory("t").unwrap();
        let collection = Collection::create(&disk, REMOTE, name, 1, Owner::default(), 0o755).unwrap();
        let outside = OutsideFile { file: 1, place, bytes: 15, mtime: 0 };
        let recorded = collection.commit(Touched::default(), |batch, _| {
            batch.entry(Entry::Outside(outside.clone()));
            Ok(())
        });
        recorded.unwrap();
        let file = disk.open("t/c/meta.log", Open::Read).unwrap();
        let mut log = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut log, 0).unwrap();
        remote.change_log(name, &log);
        let mut manifest = None;
        remote.change(name, |changed| manifest = Some(changed.clone()));
        let here: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        Store::create(&*here, StoreId(7)).unwrap();
        let store = Store::open(here, Access::Write, "test").unwrap();
        let source = CloneSource {
            url: "memory://".to_owned(),
            remote: REMOTE,
            tenant: "t".to_owned(),
            collection: "c".to_owned(),
            number: 1,
            log: *blake3::hash(&log).as_bytes(),
            push: None,
            mark: None,
        };
        let cloned = Cloned { source, manifest: &manifest.unwrap(), log: &log, needs: &[] };
        let refused = store.clone_snapshot(name, &cloned, Owner::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        assert!(refused.to_string().contains("outside of the remote"), "{refused}");
        assert!(store.collection("t", "c").is_err());
    }
}
