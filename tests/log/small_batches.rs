//! The log of small files that programs make, write and remove.

use std::sync::Arc;

use tierfs::model::{CollectionName, Owner};
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, Collection, ROOT, Verify};
use tierfs::vfs::open::{OpenFiles, create, unlink};

use crate::fixture::{LOG, SLOT, STORE, batches, noise, open, picture};

fn made() -> (Arc<dyn Disk>, Arc<Collection>) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    disk.create_directory("t").unwrap();
    let collection =
        Collection::create(&disk, STORE, CollectionName::new("t", "c"), 1, Owner { uid: 0, gid: 0 }, 0o755)
            .unwrap();
    (disk, Arc::new(collection))
}

fn log_of(disk: &Arc<dyn Disk>) -> Vec<u8> {
    let file = disk.open(LOG, Open::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn name(number: usize) -> Vec<u8> {
    format!("file-{number}").into_bytes()
}

#[test]
fn a_small_file_that_is_made_written_and_removed_takes_600_bytes_of_log() {
    let (disk, collection) = made();
    let table = OpenFiles::default();
    let before = log_of(&disk).len();
    const FILES: usize = 100;
    for number in 0..FILES {
        let node = create(&collection, ROOT, &name(number), 0o644, Owner { uid: 1000, gid: 1000 }).unwrap();
        let open_file = table.open(&collection, node, Verify::First).unwrap();
        open_file.write(0, &noise(100)).unwrap();
        open_file.flush().unwrap();
        if number % 2 == 0 {
            unlink(&collection, ROOT, &name(number)).unwrap();
        }
    }
    let log = log_of(&disk);
    assert!((log.len() - before) / FILES <= 600, "{} bytes a file", (log.len() - before) / FILES);
    assert_eq!(batches(&log[before - SLOT..]).len(), FILES * 2 + FILES / 2, "one batch each");
    let before = picture(&collection);
    drop(collection);
    let again = open(&disk, Access::Write).unwrap();
    assert!(again.events().is_empty() && again.damage().is_none(), "{:?}", again.events());
    let found = picture(&again);
    assert!(found == before, "another state after reopening");
    assert_eq!(found["/file-99"].1, Ok(noise(100)));
}

#[test]
fn the_log_of_removed_files_is_given_back_by_the_next_sync() {
    const FILES: usize = 12_000;
    let (disk, collection) = made();
    for number in 0..FILES {
        create(&collection, ROOT, &name(number), 0o644, Owner { uid: 0, gid: 0 }).unwrap();
    }
    collection.sync().unwrap();
    collection.checkpoint_now().unwrap();
    let full = log_of(&disk).len();
    for number in 0..FILES - 10 {
        unlink(&collection, ROOT, &name(number)).unwrap();
        if number % 1000 == 0 {
            collection.sync().unwrap();
        }
    }
    collection.sync().unwrap();
    let left = log_of(&disk).len();
    assert!(full > 4 << 20 && left < 1 << 20, "{full} bytes with all files, {left} without");
    let before = picture(&collection);
    assert_eq!(before.len(), 11);
    drop(collection);
    assert!(picture(&open(&disk, Access::Read).unwrap()) == before);
}

#[test]
fn a_log_that_grows_with_its_files_is_not_written_anew() {
    let (disk, collection) = made();
    for number in 0..40_000 {
        create(&collection, ROOT, &name(number), 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        if number % 4000 == 0 {
            collection.sync().unwrap();
        }
    }
    collection.sync().unwrap();
    assert!(log_of(&disk).len() > 4 << 20, "{}", log_of(&disk).len());
    assert_eq!(collection.last_checkpoint(), None);
}

#[test]
fn a_damaged_small_batch_is_damage_and_later_ones_count() {
    let (disk, collection) = made();
    let mut ends = Vec::new();
    for number in 0..4 {
        create(&collection, ROOT, &name(number), 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        ends.push(log_of(&disk).len());
        // The next batch says that this one is durable.
        collection.sync_unmarked().unwrap();
    }
    drop(collection);
    let whole = log_of(&disk);
    let mut log = whole.clone();
    log[ends[1] - SLOT..ends[1]].fill(0xa5);
    disk.open(LOG, Open::Write).unwrap().write_at(&log, 0).unwrap();
    let damaged = open(&disk, Access::Read).unwrap();
    assert!(damaged.damage().is_some());
    let found = picture(&damaged);
    let has = |number: usize| found.contains_key(&format!("/file-{number}"));
    assert_eq!([0, 1, 2, 3].map(has), [true, false, true, true]);
    drop(damaged);
    // At the end of the log it is a torn end.
    let mut log = whole[..ends[3]].to_vec();
    let end = log.len();
    log[end - SLOT..].fill(0xa5);
    let file = disk.open(LOG, Open::Write).unwrap();
    file.write_at(&log, 0).unwrap();
    file.set_len(end as u64).unwrap();
    let torn = open(&disk, Access::Read).unwrap();
    assert_eq!(torn.damage(), None);
    assert_eq!(picture(&torn).len(), 4);
}
