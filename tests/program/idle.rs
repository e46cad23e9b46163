//! Collections that nobody uses are closed when all take more memory than a setting says, and opened again.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use support::{Mounted, Place, Random, container_of, get, limits, put, refused, set, usage, wait_until};

const COLLECTIONS: usize = 12;

/// A store with collections of a container with tensors in directories, in two tenants.
fn store() -> Place {
    let place = Place::new();
    for number in 0..COLLECTIONS {
        let tensors = [("layers.0.up", 4096), ("layers/1/up", 4096), ("layers/1/down", 5000), ("norm", 64)];
        let bytes = container_of(&mut Random(number as u64 + 1), &tensors);
        let folder = place.path(format!("model{number}"));
        place.write(&format!("model{number}/deep/model.safetensors"), bytes);
        place.write(&format!("model{number}/notes.txt"), format!("notes {number}"));
        let options: &[&str] = if number % 3 == 0 { &["--tier", "q8:all"] } else { &[] };
        place.import(&format!("t{}/c{number}", number % 2), &[&folder], options);
    }
    place
}

fn keep_at_most(place: &Place, bytes: u64) {
    let path = place.store().join("tierfs.toml");
    let text = fs::read_to_string(&path).unwrap();
    let lines = text.lines().map(|line| match line.starts_with("idle_memory_max") {
        true => format!("idle_memory_max = {bytes}\n"),
        false => format!("{line}\n"),
    });
    fs::write(&path, lines.collect::<String>()).unwrap();
}

/// All names below a directory with their inode numbers, sizes and bytes.
fn everything(mounted: &Mounted) -> BTreeMap<PathBuf, (u64, u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![mounted.mountpoint.clone()];
    while let Some(directory) = waiting.pop() {
        let mut names: Vec<PathBuf> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        // A listing has no names with a dot.
        names.extend(Some(directory.join(".tensors")).filter(|tensors| tensors.exists()));
        for path in names {
            let metadata = fs::metadata(&path).unwrap();
            let bytes = if metadata.is_dir() { Vec::new() } else { fs::read(&path).unwrap() };
            if metadata.is_dir() {
                waiting.push(path.clone());
            }
            found.insert(path, (metadata.ino(), metadata.len(), bytes));
        }
    }
    found
}

fn open_collections(mounted: &Mounted) -> u64 {
    mounted.counter("open_collections")
}

/// Opens one collection after the other, so that others are closed. Of those at most two stay.
fn close_others(mounted: &Mounted) {
    wait_until("few open collections", || {
        for number in 0..COLLECTIONS {
            fs::metadata(mounted.path(format!("t{}/c{number}/notes.txt", number % 2))).unwrap();
        }
        open_collections(mounted) <= 2
    });
}

/// The totals of the store and of each collection.
fn totals(mounted: &Mounted) -> serde_json::Value {
    let mut stats = mounted.stats();
    let kept =
        ["tenants", "collections", "files", "log_bytes", "pinned_bytes", "tiers", "shares", "problems"];
    stats.as_object_mut().unwrap().retain(|key, _| kept.contains(&key.as_str()));
    stats
}

#[test]
fn a_closed_collection_has_the_same_bytes_numbers_and_totals_when_it_is_used_again() {
    let place = store();
    let mounted = place.mount(&[]);
    let wanted_totals = totals(&mounted);
    assert_eq!(open_collections(&mounted), COLLECTIONS as u64);
    mounted.unmount();
    keep_at_most(&place, 0);
    let mounted = place.mount(&[]);
    let first = everything(&mounted);
    assert!(first.len() > COLLECTIONS * 8, "{}", first.len());
    assert!(first.keys().any(|path| path.ends_with(".tensors/layers/1")), "{:?}", first.keys());
    close_others(&mounted);
    assert!(everything(&mounted) == first);
    // The second time all but the open ones are counted without being opened.
    for _ in 0..2 {
        assert_eq!(totals(&mounted), wanted_totals);
        close_others(&mounted);
    }
    // Totals and listings of collections do not make each other forget.
    let before = mounted.counter("open_collections");
    for _ in 0..3 {
        for tenant in ["t0", "t1"] {
            for entry in fs::read_dir(mounted.path(tenant)).unwrap() {
                entry.unwrap().metadata().unwrap();
            }
        }
        assert_eq!(totals(&mounted), wanted_totals);
        assert_eq!(open_collections(&mounted), before);
    }
    let opens = |text: String| text.lines().find(|line| line.starts_with("collections")).unwrap().to_owned();
    assert!(opens(fs::read_to_string(mounted.path(".ctl/status")).unwrap()).ends_with(" 12"));
    assert!(open_collections(&mounted) <= 2);
    mounted.unmount();
    support::fsck(&place.store());
}

#[test]
fn files_directories_and_names_that_programs_hold_outlive_the_close_of_their_collection() {
    let place = store();
    keep_at_most(&place, 0);
    let mounted = place.mount(&[]);
    let held = |path: &str| {
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH).open(mounted.path(path)).unwrap()
    };
    // The kernel knows these, and the daemon has nothing open for them.
    let directories = [held("t1/c1"), held("t1/c1/deep/.tensors/layers/1"), held("t1/c1/.as/npy/deep")];
    let file = fs::File::open(mounted.path("t0/c2/notes.txt")).unwrap();
    close_others(&mounted);
    let listed =
        |directory: &fs::File| support::names(Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())));
    assert_eq!(listed(&directories[0]), ["deep", "notes.txt"]);
    assert_eq!(listed(&directories[1]), ["down", "up"]);
    assert!(!listed(&directories[2]).is_empty());
    let mut bytes = [0; 7];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"notes 2");
    // The collection of an open file stays, and its files can be written.
    let written = fs::File::create(mounted.path("t0/c4/new.bin")).unwrap();
    written.write_all_at(&[7; 10_000], 0).unwrap();
    close_others(&mounted);
    written.write_all_at(&[8; 10_000], 10_000).unwrap();
    drop(written);
    close_others(&mounted);
    assert!(fs::read(mounted.path("t0/c4/new.bin")).unwrap() == [[7; 10_000], [8; 10_000]].concat());
    let renamed = mounted.path("t0/moved");
    let below = [held("t0/c4/deep/.tensors"), held("t0/c4/deep/.tensors/layers/1")];
    fs::rename(mounted.path("t0/c4"), &renamed).unwrap();
    // No log has the numbers of these directories: another one, looked up first, must not get one of them.
    fs::metadata(renamed.join(".tensors")).unwrap();
    assert_eq!(listed(&below[1]), ["down", "up"]);
    assert!(listed(&below[0]).contains(&"layers".to_owned()));
    drop(below);
    fs::rename(&renamed, mounted.path("t0/c4")).unwrap();
    close_others(&mounted);
    assert_eq!(listed(&directories[1]), ["down", "up"]);
    drop((directories, file));
    mounted.unmount();
    support::fsck(&place.store());
}

#[test]
fn a_collection_is_found_by_its_new_name_though_programs_look_it_up_while_it_is_renamed() {
    let place = store();
    let mounted = place.mount(&[]);
    let names = ["t0/c2", "t0/renamed", "t1/renamed"].map(|name| mounted.path(name));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    fs::metadata(name.join("notes.txt")).ok();
                }
            });
        }
        for round in 0..60 {
            let (from, to) = (&names[round % 3], &names[(round + 1) % 3]);
            wait_until("the rename", || match fs::rename(from, to) {
                Ok(()) => true,
                // A request uses it just now.
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "round {round}");
                    false
                }
            });
            assert_eq!(fs::read(to.join("notes.txt")).unwrap(), b"notes 2", "round {round}");
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    mounted.unmount();
    support::fsck(&place.store());
}

#[test]
fn quotas_settings_and_accesses_are_those_from_before_the_close() {
    let place = store();
    keep_at_most(&place, 0);
    let mounted = place.mount(&[]);
    put(&mounted.path("t0/.ctl/quota"), "files=100").unwrap();
    put(&mounted.path("t0/c2/.ctl/quota"), "bytes=1M").unwrap();
    let tensor = mounted.path("t0/c6/deep/.tensors/layers/1/up");
    fs::read(&tensor).unwrap();
    let accesses = || get(&tensor, "access").split(' ').next().unwrap().to_owned();
    let counted = accesses();
    assert_ne!(counted, "0");
    set(&mounted.path("t1/c3"), "encoder", "absmax").unwrap();
    let before = (usage(&mounted, "t0"), usage(&mounted, "t0/c2"));
    close_others(&mounted);
    assert_eq!((usage(&mounted, "t0"), usage(&mounted, "t0/c2")), before);
    assert_eq!(limits(&mounted, "t0/c2"), "bytes=1048576 stored=none files=none");
    refused(fs::write(mounted.path("t0/c2/big"), vec![1; 1 << 20]), libc::EDQUOT);
    fs::remove_file(mounted.path("t0/c2/big")).unwrap();
    close_others(&mounted);
    assert_eq!(usage(&mounted, "t0"), before.0);
    assert_eq!(accesses(), counted);
    assert_eq!(get(&mounted.path("t1/c3"), "encoder"), "absmax");
    // A collection that the periodic work looks at stays open.
    set(&mounted.path("t1/c5"), "policy", "auto").unwrap();
    wait_until("two open collections", || {
        close_others(&mounted);
        open_collections(&mounted) == 2
    });
    mounted.unmount();
    support::fsck(&place.store());
}
