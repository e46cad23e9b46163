//! Manifests and logs in the cache: a second mount asks for neither, and wrong bytes of them are never used.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::memory::InMemory;
use support::names;
use tempfile::TempDir;
use tierfs::model::CollectionName;
use tierfs::remote::read::cache::object_cache::Kind;
use tierfs::remote::read::cache::{Cache, Size};

use crate::push::quiet;
use crate::reading::files_of;
use crate::rounds::{PART, Rounds, first_bytes, mounted, published, push_as};

/// The files of both directories.
fn kept(cache: &Path) -> Vec<PathBuf> {
    let in_directory = |name: &str| -> Vec<PathBuf> {
        let folder = cache.join(name);
        names(&folder).iter().map(|name| folder.join(name)).collect()
    };
    ["manifest", "log"].into_iter().flat_map(in_directory).collect()
}

/// Mounts and reads a part of the large file of each of these collections.
fn read(objects: &Arc<InMemory>, cache: &Path, collections: &[&str]) -> (Vec<Vec<u8>>, Vec<String>) {
    let bucket = Rounds::over(objects);
    let store = mounted(&bucket, cache);
    let found = collections
        .iter()
        .map(|name| first_bytes(&store, CollectionName::new("acme", name), "large.safetensors", PART));
    let found = found.collect();
    drop(store);
    (found, bucket.requests().into_iter().map(|(_, key)| key).collect())
}

#[test]
fn a_second_mount_asks_for_no_manifest_and_no_log_and_takes_one_round_trip() {
    let (objects, place, wanted) = published(&[]);
    let folder = TempDir::new().unwrap();
    let (found, first) = read(&objects, folder.path(), &["m"]);
    assert!(found == [wanted.clone()]);
    assert!(first.contains(&"snap/acme/m/0000000000000001".to_owned()), "{first:?}");
    // A read of a few bytes leaves no piece in the cache.
    files_of(&mounted(&Rounds::over(&objects), folder.path()), "acme", "m");
    let bucket = Rounds::over(&objects);
    let store = mounted(&bucket, folder.path());
    assert!(first_bytes(&store, CollectionName::new("acme", "m"), "large.safetensors", PART) == wanted);
    assert_eq!(bucket.count(), 2, "the mount, and whether something is newer");
    let len = quiet(&objects).client().list("snap", None).unwrap()[0].len;
    let digest = format!("snap/acme/m/0000000000000001 bytes={}-{}", len - 32, len - 1);
    let mut requests: Vec<String> = bucket.requests().into_iter().map(|(_, key)| key).collect();
    requests.sort();
    assert_eq!(requests, ["list models/snap", &digest, "snap/acme/m/0000000000000002", "tierfs.remote"]);
    drop(store);
    // A newer snapshot is found as before, and kept.
    place.import("acme/m", &[&place.write("two.json", b"{}")], &[]);
    push_as(&place, &objects, "m", 2);
    for is_kept in [false, true] {
        let bucket = Rounds::over(&objects);
        let store = mounted(&bucket, folder.path());
        assert_eq!(first_bytes(&store, CollectionName::new("acme", "m"), "two.json", 0..2), b"{}");
        let requests = bucket.requests();
        let is_asked = requests.iter().any(|(_, key)| key == "snap/acme/m/0000000000000002");
        assert_eq!(is_asked, !is_kept, "{requests:?}");
    }
    assert_eq!(kept(folder.path()).len(), 4);
}

/// Changes a file of a cache in a way of its own; `other` is another file of the same directory.
type Change = fn(&Path, &Path);

#[test]
fn wrong_manifests_and_logs_in_the_cache_are_refused_and_fetched_again() {
    let changes: [Change; 6] = [
        |path, _| {
            let mut bytes = fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).unwrap();
        },
        |path, _| fs::write(path, &fs::read(path).unwrap()[1..]).unwrap(),
        |path, _| fs::write(path, b"").unwrap(),
        // Right bytes, of another name.
        |path, other| {
            fs::copy(other, path).unwrap();
        },
        |path, other| {
            fs::remove_file(path).unwrap();
            symlink(other, path).unwrap();
        },
        |path, _| {
            fs::remove_file(path).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
        },
    ];
    let (objects, place, wanted) = published(&[]);
    place.import("acme/m", &[&place.write("two.json", b"{}")], &[]);
    push_as(&place, &objects, "n", 2);
    let wanted = [wanted.clone(), wanted];
    let folder = TempDir::new().unwrap();
    assert!(read(&objects, folder.path(), &["m", "n"]).0 == wanted);
    let files = kept(folder.path());
    let right: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).unwrap()).collect();
    assert_eq!(files.len(), 4, "{files:?}");
    for (number, change) in changes.iter().enumerate() {
        for pair in files.chunks(2) {
            change(&pair[0], &pair[1]);
            assert!(read(&objects, folder.path(), &["m", "n"]).0 == wanted, "change {number}");
        }
        let found: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).unwrap()).collect();
        assert!(found == right, "change {number} was not mended");
    }
}

#[test]
fn a_keyframe_that_is_asked_for_while_it_is_written_or_that_somebody_has_removed_is_kept() {
    let folder = TempDir::new().unwrap();
    let cache = Cache::open(folder.path(), Size::Bytes(1 << 30)).unwrap();
    for round in 0..20 {
        let bytes = vec![round; 2 << 20];
        let (name, len) = (*blake3::hash(&bytes).as_bytes(), bytes.len() as u64);
        let is_written = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_written.load(Ordering::Relaxed) {
                    assert!(cache.kept(Kind::Base, &name, len).is_none_or(|found| found == bytes));
                }
            });
            cache.keep(Kind::Base, &name, &bytes).unwrap();
            is_written.store(true, Ordering::Relaxed);
        });
        assert!(cache.kept(Kind::Base, &name, len).as_ref() == Some(&bytes), "round {round}");
        if round % 10 == 0 {
            fs::remove_file(folder.path().join("base").join(tierfs::model::hex(&name))).unwrap();
            assert_eq!(cache.kept(Kind::Base, &name, len), None);
            cache.keep(Kind::Base, &name, &bytes).unwrap();
            assert!(cache.kept(Kind::Base, &name, len).as_ref() == Some(&bytes), "round {round}");
        }
    }
}

#[test]
fn objects_that_threads_keep_at_the_same_time_never_pass_the_limit() {
    const LIMIT: u64 = 6 << 20;
    let folder = TempDir::new().unwrap();
    let cache = Cache::open(folder.path(), Size::Bytes(LIMIT)).unwrap();
    let (base, are_kept) = (folder.path().join("base"), AtomicBool::new(false));
    // A file that is removed while the directory is read counts, so the sum may be one file too much.
    let stored = || -> u64 {
        let sizes = fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().metadata());
        sizes.filter_map(|found| found.ok()).map(|found| found.len()).sum()
    };
    let most = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !are_kept.load(Ordering::Relaxed) {
                most = most.max(stored());
            }
            most
        });
        let keepers: Vec<_> = (0..4_u8)
            .map(|keeper| {
                let cache = &cache;
                scope.spawn(move || {
                    for round in 0..40 {
                        let bytes = [vec![keeper, round], vec![0; 2 << 20]].concat();
                        cache.keep(Kind::Base, blake3::hash(&bytes).as_bytes(), &bytes).unwrap();
                    }
                })
            })
            .collect();
        keepers.into_iter().for_each(|keeper| keeper.join().unwrap());
        are_kept.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    assert!(most > 0 && most <= LIMIT + (2 << 20), "{most} bytes");
    assert!(stored() <= LIMIT, "{} bytes", stored());
}

#[test]
fn kept_objects_are_listed_verified_counted_and_trimmed_and_drafts_go() {
    let (objects, _place, _) = published(&[]);
    let folder = TempDir::new().unwrap();
    read(&objects, folder.path(), &["m"]);
    let files = kept(folder.path());
    let draft = files[0].with_extension("7.new");
    fs::write(&draft, b"half").unwrap();
    let cache = Cache::open(folder.path(), Size::default()).unwrap();
    assert!(!draft.exists());
    let listed = cache.list();
    for path in &files {
        let place = path.strip_prefix(folder.path()).unwrap().to_str().unwrap();
        let found = listed.iter().find(|file| file.name == place).unwrap_or_else(|| panic!("{listed:?}"));
        assert_eq!(found.stored, fs::metadata(path).unwrap().len());
        assert!(found.used > 1_700_000_000_000_000_000);
    }
    let sum: u64 = listed.iter().map(|file| file.stored).sum();
    assert_eq!(cache.stored(), sum);
    fs::write(&files[1], vec![0; fs::metadata(&files[1]).unwrap().len() as usize]).unwrap();
    let verified = cache.verify().unwrap();
    let wrong: Vec<&str> =
        verified.iter().filter(|file| file.is_damaged()).map(|file| file.name.as_str()).collect();
    assert_eq!(wrong, [files[1].strip_prefix(folder.path()).unwrap().to_str().unwrap()]);
    assert!(files[0].exists() && !files[1].exists());
    cache.trim(0);
    assert_eq!((cache.stored(), kept(folder.path()).len()), (0, 0));
}
