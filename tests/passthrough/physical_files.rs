//! The physical file with a file's bytes, at each step of its life.

use std::sync::Arc;

use tierfs::model::{EntryId, Owner, StoreId};
use tierfs::store::Backing;
use tierfs::store::Verify;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, Collection, Store};
use tierfs::vfs::open::{self, OpenFiles};

const ROOT: EntryId = tierfs::store::ROOT;

/// Reads the physical file, if there is one, and describes its content.
fn shown(disk: &MemoryDisk, collection: &Collection, node: EntryId) -> Option<Vec<u8>> {
    let backing: Backing = collection.backing_of(collection.objects_of(node).unwrap())?;
    let file = disk.open(backing.path(), Open::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

#[test]
fn a_file_has_a_physical_file_only_while_their_bytes_agree() {
    let disk = MemoryDisk::new();
    Store::create(&disk, StoreId(1)).unwrap();
    let store = Store::open(Arc::new(disk.clone()), Access::Write, "a test").unwrap();
    let collection = store.collection_made("acme", "m", Owner { uid: 0, gid: 0 }).unwrap();
    let node = open::create(&collection, ROOT, b"file", 0o644, Owner { uid: 0, gid: 0 }).unwrap();
    let open_file = OpenFiles::default().open(&collection, node, Verify::First).unwrap();
    let now = || shown(&disk, &collection, node);
    let read = || {
        let mut bytes = vec![0; open_file.bytes() as usize];
        assert_eq!(open_file.read(0, &mut bytes).unwrap(), bytes.len());
        bytes
    };
    let mut wanted: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(now(), None, "empty");
    open_file.write(0, &wanted).unwrap();
    assert_eq!((now(), open_file.backing().is_some()), (None, false), "not in the log");
    open_file.flush().unwrap();
    assert_eq!((now(), open_file.backing().is_some()), (None, false), "not checked");
    let mut part = vec![0; 60_000];
    open_file.read(0, &mut part).unwrap();
    assert_eq!(now(), None, "checked in part");
    assert_eq!(read(), wanted);
    assert_eq!((now().as_ref(), open_file.backing().is_some()), (Some(&wanted), true));
    // An append continues in the same file: unlogged, unverified, verified.
    open_file.write(100_000, &[7; 30_000]).unwrap();
    wanted.extend_from_slice(&[7; 30_000]);
    assert_eq!((now(), open_file.backing().is_some()), (None, false), "appended");
    open_file.flush().unwrap();
    assert_eq!(now(), None, "appended, not checked");
    assert_eq!(read(), wanted);
    assert_eq!(now().as_ref(), Some(&wanted));
    // An overwrite does not.
    open_file.write(50_000, &[9]).unwrap();
    wanted[50_000] = 9;
    assert_eq!((now(), open_file.backing().is_some()), (None, false), "written over");
    for _ in 0..2 {
        assert_eq!(read(), wanted);
        assert_eq!((now(), open_file.backing().is_some()), (None, false), "elsewhere in part");
        open_file.flush().unwrap();
    }
}

#[test]
fn a_truncated_file_has_no_physical_file_of_its_size() {
    let disk = MemoryDisk::new();
    Store::create(&disk, StoreId(1)).unwrap();
    let store = Store::open(Arc::new(disk.clone()), Access::Write, "a test").unwrap();
    let collection = store.collection_made("acme", "m", Owner { uid: 0, gid: 0 }).unwrap();
    let node = open::create(&collection, ROOT, b"file", 0o644, Owner { uid: 0, gid: 0 }).unwrap();
    let open_file = OpenFiles::default().open(&collection, node, Verify::First).unwrap();
    open_file.write(0, &[5; 16_384 * 5]).unwrap();
    open_file.flush().unwrap();
    for bytes in [16_384 * 4, 16_384 * 3 + 77, 16_384 * 5] {
        open_file.truncate(bytes).unwrap();
        for _ in 0..2 {
            let mut read = vec![1; bytes as usize];
            assert_eq!(open_file.read(0, &mut read).unwrap(), read.len());
            assert_eq!(shown(&disk, &collection, node), None, "{bytes}");
            open_file.flush().unwrap();
        }
    }
}
