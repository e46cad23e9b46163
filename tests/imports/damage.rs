//! Payloads that differ from the stored ones, and files that are truncated or missing.

use std::sync::Arc;

use tierfs::ingest::Options;
use tierfs::model::{CollectionName, ErrorKind, MoveTo, Owner};
use tierfs::store::Collection;
use tierfs::store::Verify;
use tierfs::store::disk::{Disk, Open};

use crate::fixture::{Numbers, create, files, import, npy_file, on_each_disk, open, read, stream};

const BLOCK: usize = 16 << 10;

/// `exact` in a data file, `small` in `tier0.dat`, `q` and `z` in `tier1.dat`.
fn fill(disk: &Arc<dyn Disk>) -> Vec<(&'static str, Vec<u8>)> {
    let collection = create(disk);
    let mut numbers = Numbers(9);
    let q8 = Options { tier: Some(MoveTo::parse("q8:all").unwrap()), ..Options::default() };
    import(&collection, "exact", &numbers.bytes(5 * BLOCK), &Options::default()).unwrap();
    import(&collection, "small", &numbers.bytes(100), &Options::default()).unwrap();
    let floats = |numbers: &mut Numbers| -> Vec<u8> {
        numbers.floats(3 * BLOCK / 4).iter().flat_map(|value| value.to_le_bytes()).collect()
    };
    for name in ["q.npy", "z.npy"] {
        import(&collection, name, &npy_file("<f4", "(12288,)", &floats(&mut numbers)), &q8).unwrap();
    }
    let paths = ["exact", "small", "q", "q.npy", "z", "z.npy"];
    paths.map(|path| (path, read(&collection, path).unwrap())).to_vec()
}

/// Reads every part of every file; returns the blocks that fail, and finds no wrong byte.
fn failing(collection: &Arc<Collection>, right: &[(&str, Vec<u8>)]) -> Vec<(String, usize)> {
    let mut failed = Vec::new();
    for (path, bytes) in right {
        let stream = stream(collection, path, Verify::First);
        for from in (0..bytes.len()).step_by(1024) {
            let mut out = vec![0; 1024.min(bytes.len() - from)];
            match stream.read(from as u64, &mut out) {
                Ok(_) => assert!(out == bytes[from..from + out.len()], "{path} at {from}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{path} at {from}: {error}");
                    let text = error.to_string();
                    assert!(text.contains("t/c/") && text.contains("fsck"), "{text}");
                    failed.push(((*path).to_owned(), from / BLOCK));
                }
            }
        }
    }
    failed.dedup();
    failed
}

#[test]
fn a_flipped_bit_fails_only_its_block() {
    on_each_disk(|disk| {
        let right = fill(&disk);
        let mut flips = Numbers(11);
        for (path, bytes) in files(&disk, "t/c") {
            if path.ends_with("meta.log") {
                continue;
            }
            for _ in 0..10 {
                let at = flips.below(bytes.len() as u64);
                let file = disk.open(&path, Open::Write).unwrap();
                file.write_at(&[bytes[at as usize] ^ 1 << flips.below(8)], at).unwrap();
                let collection = open(&disk).unwrap();
                // A part of an .npy belongs to the file too; the padding of a slot belongs to none.
                let failed = failing(&collection, &right);
                assert!(failed.len() <= 4, "{path} at {at}: {failed:?}");
                if path.ends_with("/data/0000000000000001") {
                    assert_eq!(failed, [("exact".to_owned(), at as usize / BLOCK)], "{path} at {at}");
                }
                file.write_at(&[bytes[at as usize]], at).unwrap();
            }
        }
        assert_eq!(failing(&open(&disk).unwrap(), &right), []);
    });
}

#[test]
fn a_truncated_data_file_fails_only_the_missing_bytes() {
    on_each_disk(|disk| {
        let right = fill(&disk);
        let (data, bytes) = files(&disk, "t/c/data").remove(0);
        let file = disk.open(&data, Open::Write).unwrap();
        file.set_len(bytes.len() as u64 - 1).unwrap();
        assert_eq!(failing(&open(&disk).unwrap(), &right), [("exact".to_owned(), 4)]);
        file.set_len(BLOCK as u64).unwrap();
        let collection = open(&disk).unwrap();
        assert_eq!(failing(&collection, &right), [1, 2, 3, 4].map(|block| ("exact".to_owned(), block)));
    });
}

#[test]
fn a_missing_data_file_fails_its_blocks_and_is_not_recreated_empty() {
    on_each_disk(|disk| {
        let right = fill(&disk);
        for (path, bytes) in files(&disk, "t/c") {
            if path.ends_with("meta.log") {
                continue;
            }
            disk.remove_file(&path).unwrap();
            let collection = open(&disk).unwrap();
            let failed = failing(&collection, &right);
            assert!(!failed.is_empty(), "{path}");
            let is_tier1 = path.ends_with("tier1.dat");
            assert!(failed.iter().all(|(name, _)| name.starts_with(['q', 'z']) || !is_tier1), "{failed:?}");
            let floats = npy_file("<f4", "(1000,)", &[0; 4000]);
            let q8 = Options { tier: Some(MoveTo::parse("q8:all").unwrap()), ..Options::default() };
            let added = import(&collection, "new.npy", &floats, &q8);
            assert_eq!(added.is_ok(), path.contains("/data/"), "{path}");
            assert!(disk.open(&path, Open::Read).is_err(), "{path} is there again");
            disk.open(&path, Open::Create).unwrap().write_at(&bytes, 0).unwrap();
        }
        assert_eq!(failing(&open(&disk).unwrap(), &right), []);
    });
}

#[test]
fn a_collection_without_its_log_does_not_open_as_a_new_one() {
    on_each_disk(|disk| {
        fill(&disk);
        let before = files(&disk, "t/c/data");
        let log = disk.open("t/c/meta.log", Open::Write).unwrap();
        for len in [128, 100, 0] {
            log.set_len(len).unwrap();
            let made = Collection::create(
                &disk,
                crate::fixture::STORE,
                CollectionName::new("t", "c"),
                1,
                Owner { uid: 0, gid: 0 },
                0o755,
            );
            assert_eq!(made.err().map(|error| error.kind()), Some(ErrorKind::Corrupt));
        }
        disk.remove_file("t/c/meta.log").unwrap();
        let made = Collection::create(
            &disk,
            crate::fixture::STORE,
            CollectionName::new("t", "c"),
            1,
            Owner { uid: 0, gid: 0 },
            0o755,
        );
        assert_eq!(made.err().map(|error| error.kind()), Some(ErrorKind::Corrupt));
        assert!(files(&disk, "t/c/data") == before);
    });
}

#[test]
fn a_flipped_bit_fails_a_long_read_and_the_bytes_around_it_stay_readable() {
    on_each_disk(|disk| {
        const BYTES: usize = 2 << 20;
        let collection = create(&disk);
        let bytes = Numbers(12).bytes(BYTES);
        import(&collection, "long", &bytes, &Options::default()).unwrap();
        let right = read(&collection, "long").unwrap();
        drop(collection);
        let file = disk.open("t/c/data/0000000000000001", Open::Write).unwrap();
        // In one of the first and in one of the last blocks: every reader of that part gets an error.
        for at in [100_000, BYTES - 100_000] {
            file.write_at(&[bytes[at] ^ 1], at as u64).unwrap();
            let collection = open(&disk).unwrap();
            let stream = stream(&collection, "long", Verify::First);
            let mut out = vec![0; BYTES];
            assert_eq!(stream.read(0, &mut out).unwrap_err().kind(), ErrorKind::Corrupt);
            assert_eq!(stream.read(0, &mut out[..at & !65_535]).unwrap(), at & !65_535);
            assert!(out[..at & !65_535] == right[..at & !65_535]);
            let after = (at | 65_535) + 1;
            assert_eq!(stream.read(after as u64, &mut out).unwrap(), BYTES - after);
            assert!(out[..BYTES - after] == right[after..]);
            file.write_at(&[bytes[at]], at as u64).unwrap();
        }
    });
}
