//! Numbers of new collections: no other has them, and to find one opens no collection.

use std::sync::Arc;

use tierfs::format::log::catalog::Entry;
use tierfs::model::Owner;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, Batch, ROOT, State, Store, Touched};

use super::fixture::STORE;

const FILE: &str = ".tierfs.number";

fn disk() -> Arc<dyn Disk> {
    let disk = MemoryDisk::new();
    Store::create(&disk, STORE).unwrap();
    Arc::new(disk)
}

fn opened(disk: &Arc<dyn Disk>) -> Store {
    Store::open(disk.clone(), Access::Write, "a test").unwrap()
}

fn made(store: &Store, name: &str) -> u32 {
    store.collection_made("t", name, Owner { uid: 0, gid: 0 }).unwrap().state().number()
}

fn write(disk: &Arc<dyn Disk>, path: &str, bytes: &[u8]) {
    disk.remove_file(path).unwrap();
    disk.open(path, Open::Create).unwrap().write_at(bytes, 0).unwrap();
}

#[test]
fn a_new_collection_gets_a_number_without_opening_the_others() {
    let disk = disk();
    let store = opened(&disk);
    let first: Vec<u32> = (0..5).map(|number| made(&store, &format!("c{number}"))).collect();
    assert_eq!(first, [1, 2, 3, 4, 5]);
    store.remove_collection("t", "c4").unwrap();
    drop(store);

    let store = opened(&disk);
    assert_eq!(made(&store, "after"), 6, "the number of a removed collection is not used again");
    assert_eq!(store.open_collections().len(), 1);
    drop(store);

    // One that does not open is in nobody's way.
    write(&disk, "t/c0/meta.log", &[0x55; 4096]);
    let store = opened(&disk);
    assert!(store.collection("t", "c0").is_err());
    assert_eq!(made(&store, "beside"), 7);
}

#[test]
fn without_a_file_that_makes_sense_the_logs_say_which_numbers_are_taken() {
    for content in ["", "7", "x\n", "-1\n", "99999999999\n", "4294967295\n", "8388609\n"] {
        let disk = disk();
        let store = opened(&disk);
        assert_eq!([made(&store, "a"), made(&store, "b")], [1, 2]);
        drop(store);
        write(&disk, FILE, content.as_bytes());
        assert_eq!(made(&opened(&disk), "c"), 3, "{content:?}");
        disk.remove_file(FILE).unwrap();
        assert_eq!(made(&opened(&disk), "d"), 4, "{content:?}");
    }
}

#[test]
fn a_number_that_an_open_collection_has_is_not_given_for_an_older_file() {
    let disk = disk();
    let store = opened(&disk);
    assert_eq!([made(&store, "a"), made(&store, "b")], [1, 2]);
    drop(store);
    write(&disk, FILE, b"1\n");
    let store = opened(&disk);
    store.collection("t", "b").unwrap();
    assert_eq!(made(&store, "c"), 3);
}

#[test]
fn after_a_repair_the_logs_say_which_numbers_are_taken() {
    let disk = disk();
    let store = opened(&disk);
    assert_eq!([made(&store, "a"), made(&store, "b")], [1, 2]);
    let collection = store.collection("t", "b").unwrap();
    let set = |batch: &mut Batch, _: &State| {
        let (key, value) = ("list".to_owned(), Some("files".to_owned()));
        batch.entry(Entry::Setting { node: ROOT, key, value });
        Ok(())
    };
    collection.record(Touched::default(), set).unwrap();
    collection.sync().unwrap();
    drop((collection, store));
    // The record behind the header has the number.
    disk.open("t/b/meta.log", Open::Write).unwrap().write_at(&[0x55; 128], 128).unwrap();
    let store = opened(&disk);
    store.repair("t", "b", 9).unwrap().unwrap();
    assert_eq!(store.collection("t", "b").unwrap().state().number(), 9);
    drop(store);
    assert_eq!(made(&opened(&disk), "c"), 10);
}
