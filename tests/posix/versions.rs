//! Many readers, each of which must see one whole version, while writers replace the files.

use std::fs;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tierfs::model::{CollectionName, Owner, StoreId};
use tierfs::store::Collection;
use tierfs::store::ROOT;
use tierfs::store::disk::{Disk, files::FileDisk};
use tierfs::store::{OpenObject, Verify};
use tierfs::vfs::open::{self, OpenFile, OpenFiles};

use support::{Fixture, goes_on, scale};

const FILES: usize = 6;
const BLOCKS: usize = 5;
const BLOCK_BYTES: usize = 16 << 10;

/// Each byte of block `place` of version `version` has one value.
fn value(version: u8, place: usize) -> u8 {
    version.wrapping_mul(7).wrapping_add(place as u8)
}

#[test]
fn a_block_that_is_rewritten_repeatedly_is_never_read_torn() {
    let (_folder, open_file) = live_file();
    open_file.write(0, &[0; 64 << 10]).unwrap();
    let until = Instant::now() + Duration::from_secs(2) * scale();
    let (reads, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 0u64.. {
                open_file.write(0, &[version as u8; 64 << 10]).unwrap();
                if version % 50 == 0 {
                    open_file.flush().unwrap();
                }
                if !goes_on(until, reads.load(Ordering::Relaxed), 100) {
                    is_over.store(true, Ordering::Relaxed);
                    return;
                }
            }
        });
        for _ in 0..3 {
            scope.spawn(|| {
                let mut block = vec![0; 64 << 10];
                while !is_over.load(Ordering::Relaxed) {
                    open_file.read(0, &mut block).unwrap();
                    let is_whole = |block: &[u8]| block.iter().all(|byte| *byte == block[0]);
                    assert!(block.chunks(BLOCK_BYTES).all(is_whole), "a block of two versions");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
}

/// A file in the folder, and its collection.
fn live_file() -> (tempfile::TempDir, Arc<OpenFile>) {
    let folder = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(FileDisk::create(folder.path()).unwrap());
    disk.create_directory("t").unwrap();
    let collection = Arc::new(
        Collection::create(
            &disk,
            StoreId(1),
            CollectionName::new("t", "c"),
            1,
            Owner { uid: 0, gid: 0 },
            0o755,
        )
        .unwrap(),
    );
    let node = open::create(&collection, ROOT, b"f", 0o644, Owner { uid: 0, gid: 0 }).unwrap();
    let open_file = OpenFiles::default().open(&collection, node, Verify::First).unwrap();
    (folder, open_file)
}

/// The state takes a batch in while its names are looked up.
#[test]
fn holes_of_a_file_that_grows_and_shrinks_read_as_zeros_and_are_not_reported_corrupt() {
    let (_folder, open_file) = live_file();
    let until = Instant::now() + Duration::from_secs(2) * scale();
    let (reads, checks) = (AtomicU64::new(0), AtomicU64::new(0));
    let more = || {
        goes_on(until, reads.load(Ordering::Relaxed), 100)
            || goes_on(until, checks.load(Ordering::Relaxed), 100)
    };
    let object = || open_file.collection().objects_of(open_file.node()).unwrap().pop();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let sizes = [40, 400, 20, 800, 0].map(|blocks| blocks * BLOCK_BYTES as u64 + blocks);
            for size in sizes.into_iter().cycle().take_while(|_| more()) {
                open_file.truncate(size).unwrap();
                open_file.flush().unwrap();
            }
        });
        scope.spawn(|| {
            let mut bytes = vec![1; 500 * BLOCK_BYTES];
            while more() {
                let count = open_file.read(10_000, &mut bytes).unwrap();
                assert!(bytes[..count].iter().all(|byte| *byte == 0));
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while more() {
                let Some(object) = object() else { continue };
                let open = OpenObject::open(open_file.collection(), &object, Verify::Always).unwrap();
                for index in 0..object.described() {
                    open.check(index).unwrap();
                    checks.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    });
}

#[test]
fn every_reader_sees_one_whole_version_while_files_are_replaced() {
    let mut fixture = Fixture::new();
    let path = |n: usize| fixture.path(&format!("f{n}"));
    let write = |path: &std::path::Path, version: u8, synced: bool| {
        let mut file = fs::File::create(path).unwrap();
        for place in 0..BLOCKS {
            file.write_all(&[value(version, place); BLOCK_BYTES]).unwrap();
        }
        if synced {
            file.sync_all().unwrap();
        }
    };
    for n in 0..FILES {
        write(&path(n), 0, true);
    }
    let (reads, writes) = (AtomicU64::new(0), AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(15) * scale();
    let check = |bytes: &[u8], what: usize| {
        assert_eq!(bytes.len(), BLOCKS * BLOCK_BYTES);
        let version = (0..=255).find(|&version| value(version, 0) == bytes[0]).unwrap();
        for (place, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
            let other = block.iter().position(|byte| *byte != value(version, place));
            assert_eq!(other, None, "f{what}, block {place} of version {version}");
        }
    };
    let more = || {
        goes_on(until, reads.load(Ordering::Relaxed), 200)
            || goes_on(until, writes.load(Ordering::Relaxed), 50)
    };
    std::thread::scope(|scope| {
        for reader in 0..16 {
            let (more, reads, check, path) = (&more, &reads, &check, &path);
            scope.spawn(move || {
                let mut n = reader;
                while more() {
                    n = (n + 1) % FILES;
                    // This holds however often the name is given to another file meanwhile.
                    let mut file = fs::File::open(path(n)).unwrap();
                    let mut bytes = Vec::new();
                    file.read_to_end(&mut bytes).unwrap();
                    check(&bytes, n);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for writer in 0..4usize {
            let (more, writes, write, path, fixture) = (&more, &writes, &write, &path, &fixture);
            scope.spawn(move || {
                let mut version = writer as u8;
                while more() {
                    version = version.wrapping_add(4);
                    let temporary = fixture.path(&format!(".t{writer}"));
                    write(&temporary, version, version % 16 < 4);
                    fs::rename(&temporary, path(usize::from(version) % FILES)).unwrap();
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let bytes: Vec<Vec<u8>> = (0..FILES).map(|n| fs::read(path(n)).unwrap()).collect();
    fixture.crash();
    for (n, wanted) in bytes.iter().enumerate() {
        check(wanted, n);
        assert!(fixture.read(&format!("f{n}")) == *wanted);
    }
    fixture.unmount();
    assert!(fixture.data_files() <= FILES + 1, "{} data files", fixture.data_files());
}
