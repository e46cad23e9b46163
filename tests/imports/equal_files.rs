//! Files with the same bytes: stored once, and each stays intact after any change of the other.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use support::{
    Mounted, Place, Random, answer, assert_same, container_of, fsck, get, run, scale, set, tierfs, usage,
};

/// A container of 1.2 MB.
fn model(seed: u64) -> Vec<u8> {
    container_of(&mut Random(seed), &[("w", 250_000), ("b/v", 50_001)])
}

/// The data files of a collection with their link counts, in order.
fn data_files(store: &Path, collection: &str) -> Vec<(PathBuf, u64)> {
    let listed = fs::read_dir(store.join(collection).join("data")).unwrap();
    let mut files: Vec<PathBuf> = listed.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::metadata(path).unwrap().nlink())).collect()
}

/// The only data file of a collection, which is not shared.
fn only_data_file(store: &Path, collection: &str) -> PathBuf {
    assert_eq!(names(store, collection), [1]);
    data_files(store, collection).remove(0).0
}

fn names(store: &Path, collection: &str) -> Vec<u64> {
    data_files(store, collection).into_iter().map(|(_, names)| names).collect()
}

fn allocated(store: &Path) -> u64 {
    let output = std::process::Command::new("du").arg("-sB1").arg(store).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// `t/a/m.safetensors` and `t/b/m.safetensors`, imported from the same bytes.
fn two(seed: u64) -> (Place, Vec<u8>) {
    let (place, bytes) = (Place::new(), model(seed));
    let source = place.write("in/m.safetensors", &bytes);
    place.import("t/a", &[&source], &[]);
    place.import("t/b", &[&source], &[]);
    assert_eq!((names(&place.store(), "t/a"), names(&place.store(), "t/b")), (vec![2], vec![2]));
    (place, bytes)
}

fn read(mounted: &Mounted, path: &str) -> Vec<u8> {
    fs::read(mounted.path(path)).unwrap()
}

#[test]
fn a_large_file_in_two_collections_takes_its_space_once() {
    let place = Place::new();
    let bytes = (32 << 20) * scale() as usize;
    let source = place.write("in/m.bin", Random(91).bytes(bytes));
    place.import("t/a", &[&source], &[]);
    let once = allocated(&place.store());
    let summary = place.try_import("t/b", &[&source], &[]).ok();
    assert!(summary.contains("shared with files of the store"), "{summary}");
    let twice = allocated(&place.store());
    assert!(once >= bytes as u64 && twice < once + (1 << 20), "{once}, then {twice}");
    let mounted = place.mount(&[]);
    for path in ["t/a/m.bin", "t/b/m.bin"] {
        assert!(read(&mounted, path) == fs::read(&source).unwrap());
    }
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    assert!(status.contains(&format!("shared bytes {bytes}\n")), "{status}");
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn files_that_are_copied_into_a_mount_share_what_is_there() {
    let (place, bytes) = (Place::new(), model(92));
    let source = place.write("in/m.safetensors", &bytes);
    let mounted = place.mount(&["--create"]);
    for directory in ["t/a", "t/b"] {
        fs::create_dir_all(mounted.path(directory)).unwrap();
        fs::copy(&source, mounted.path(directory).join("m.safetensors")).unwrap();
    }
    let plain = Random(93).bytes(300_000);
    fs::write(mounted.path("t/a/plain"), &plain).unwrap();
    fs::write(mounted.path("t/a/again"), &plain).unwrap();
    // Another file of that length.
    fs::write(mounted.path("t/a/other"), Random(94).bytes(300_000)).unwrap();
    let mut other = plain.clone();
    other[150_000] ^= 1;
    fs::write(mounted.path("t/b/near"), &other).unwrap();
    assert_eq!(read(&mounted, "t/b/b/v"), read(&mounted, "t/a/b/v"));
    for (path, wanted) in [
        ("t/a/m.safetensors", &bytes),
        ("t/b/m.safetensors", &bytes),
        ("t/a/again", &plain),
        ("t/b/near", &other),
    ] {
        assert_same(&read(&mounted, path), wanted, path);
    }
    mounted.unmount();
    let mut all = names(&place.store(), "t/a");
    all.sort_unstable();
    assert_eq!((all, names(&place.store(), "t/b")), (vec![1, 2, 2, 2], vec![2, 1]));
    fsck(&place.store());
}

#[test]
fn closed_files_come_to_share_while_nobody_has_them_open_and_nothing_else_of_them_changes() {
    let (place, plain) = (Place::new(), Random(97).bytes(300_000));
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/a")).unwrap();
    fs::create_dir_all(mounted.path("t/b")).unwrap();
    let other: Vec<u8> = plain.iter().map(|byte| byte ^ 1).collect();
    for (name, bytes) in [("a/one", &plain), ("a/two", &plain), ("b/held", &other), ("b/too", &other)] {
        fs::write(mounted.path("t").join(name), bytes).unwrap();
    }
    let held = ["t/b/held", "t/b/too"].map(|path| fs::File::open(mounted.path(path)).unwrap());
    let two = mounted.path("t/a/two");
    set(&two, "lossy", "allow").unwrap();
    let times = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.ctime(), found.ctime_nsec(), found.mtime_nsec(), found.ino())
    };
    let before = times(&two);
    assert_eq!(names(&place.store(), "t/a"), [1, 1]);
    support::wait_until("two files share", || names(&place.store(), "t/a") == [2, 2]);
    assert_eq!((times(&two), get(&two, "lossy")), (before, "allow".to_owned()));
    assert_eq!(names(&place.store(), "t/b"), [1, 1]);
    drop(held);
    support::wait_until("the others share too", || names(&place.store(), "t/b") == [2, 2]);
    // A change of one leaves the others.
    let file = fs::OpenOptions::new().write(true).open(&two).unwrap();
    file.write_all_at(b"changed", 100_000).unwrap();
    drop(file);
    let mut changed = plain.clone();
    changed[100_000..100_007].copy_from_slice(b"changed");
    for (path, wanted) in [("t/a/one", &plain), ("t/a/two", &changed), ("t/b/held", &other)] {
        assert_same(&read(&mounted, path), wanted, path);
    }
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn files_share_beside_a_directory_with_settings_for_what_arrives() {
    let (place, plain) = (Place::new(), Random(96).bytes(300_000));
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/a/kv")).unwrap();
    set(&mounted.path("t/a/kv"), "arrive", "packed").unwrap();
    for name in ["one", "two", "kv/x.tmp"] {
        fs::write(mounted.path("t/a").join(name), &plain).unwrap();
    }
    fs::rename(mounted.path("t/a/kv/x.tmp"), mounted.path("t/a/kv/x")).unwrap();
    for name in ["one", "two", "kv/x"] {
        assert_same(&read(&mounted, &format!("t/a/{name}")), &plain, name);
    }
    mounted.unmount();
    assert!(names(&place.store(), "t/a").iter().filter(|names| **names >= 2).count() >= 2);
    fsck(&place.store());
}

#[test]
fn tenants_share_only_where_the_store_says_so_and_no_share_stores_again() {
    let (place, bytes) = (Place::new(), model(95));
    let source = place.write("in/m.safetensors", &bytes);
    place.import("t/a", &[&source], &[]);
    place.import("u/a", &[&source], &[]);
    place.import("t/b", &[&source], &["--no-share"]);
    let store = place.store();
    assert_eq!(
        (names(&store, "t/a"), names(&store, "u/a"), names(&store, "t/b")),
        (vec![1], vec![1], vec![1])
    );
    let settings = store.join("tierfs.toml");
    let text = fs::read_to_string(&settings).unwrap();
    assert!(text.contains("share = \"tenant\""), "{text}");
    fs::write(&settings, text.replace("\"tenant\"", "\"none\"")).unwrap();
    place.import("t/c", &[&source], &[]);
    assert_eq!(names(&store, "t/c"), [1]);
    fs::write(&settings, text.replace("\"tenant\"", "\"store\"")).unwrap();
    place.import("v/a", &[&source], &[]);
    assert_eq!(names(&store, "v/a"), [2]);
    fs::write(&settings, text.replace("\"tenant\"", "\"some\"")).unwrap();
    assert!(place.try_import("v/b", &[&source], &[]).failed(1, &[]).contains("share"));
    fs::write(&settings, text).unwrap();
    fsck(&store);
}

#[test]
fn each_owner_is_charged_in_full() {
    let (place, bytes) = two(96);
    let mounted = place.mount(&[]);
    for collection in ["t/a", "t/b"] {
        let stored = get(&mounted.path(collection).join("m.safetensors"), "bytes_stored");
        assert_eq!(stored, (300_001 * 4).to_string());
        assert_eq!(usage(&mounted, collection)[1..], [bytes.len() as u64; 2]);
    }
    assert_eq!(usage(&mounted, "t")[1..], [2 * bytes.len() as u64; 2]);
}

#[test]
fn a_copy_of_the_store_works_with_and_without_its_links() {
    let (place, bytes) = two(97);
    for (name, options) in [("linked", "-a"), ("parted", "-r")] {
        let copy = place.path(name);
        let copied = std::process::Command::new("cp").arg(options).arg(place.store()).arg(&copy).status();
        assert!(copied.unwrap().success());
        fsck(&copy);
        let wanted = if name == "linked" { [2] } else { [1] };
        assert_eq!(
            (names(&copy, "t/a").as_slice(), names(&copy, "t/b").as_slice()),
            (&wanted[..], &wanted[..])
        );
        let out = place.path("out");
        let arguments = ["export".as_ref(), copy.as_os_str(), "t/b".as_ref(), out.as_os_str()];
        answer(tierfs().args(arguments)).ok();
        assert_same(&fs::read(place.path("out/m.safetensors")).unwrap(), &bytes, name);
        fs::remove_dir_all(place.path("out")).unwrap();
    }
}

/// Another program gave the data file a name and keeps its bytes.
#[test]
fn a_data_file_with_a_foreign_name_is_never_changed_in_place() {
    let place = Place::new();
    let bytes = model(98);
    place.import("t/a", &[&place.write("in/m.safetensors", &bytes)], &[]);
    let data = only_data_file(&place.store(), "t/a");
    let foreign = place.path("foreign");
    fs::hard_link(&data, &foreign).unwrap();
    let mounted = place.mount(&[]);
    let path = mounted.path("t/a/m.safetensors");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"changed", bytes.len() as u64 - 70_000).unwrap();
    file.sync_all().unwrap();
    set(&path, "lossy", "allow").unwrap();
    set(&path, "tier", "q8:all").unwrap();
    file.write_all_at(&[7; 100_000], bytes.len() as u64).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mounted.job("t/a/.ctl/compact", "start");
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    mounted.job("t/a/.ctl/compact", "start");
    mounted.unmount();
    assert_same(&fs::read(&foreign).unwrap(), &bytes, "the foreign name");
    fsck(&place.store());
}

#[test]
fn a_compaction_gives_back_the_space_of_a_moved_file_once_the_other_is_gone() {
    let (place, bytes) = two(99);
    let mounted = place.mount(&[]);
    let moved = mounted.path("t/b/m.safetensors");
    let said = run(["tier".as_ref(), "q3:all".as_ref(), moved.as_os_str(), "--lossy".as_ref()]).ok();
    assert!(said.contains("take their space as before, since other files share them"), "{said}");
    assert_same(&read(&mounted, "t/a/m.safetensors"), &bytes, "the other");
    fs::remove_file(mounted.path("t/a/m.safetensors")).unwrap();
    mounted.unmount();
    let mounted = place.mount(&[]);
    let lossy = read(&mounted, "t/b/m.safetensors");
    mounted.job("t/b/.ctl/compact", "start");
    assert_same(&read(&mounted, "t/b/m.safetensors"), &lossy, "after the compaction");
    mounted.unmount();
    let data = only_data_file(&place.store(), "t/b");
    let blocks = fs::metadata(data).unwrap().blocks() * 512;
    assert!(blocks < bytes.len() as u64 / 4, "{blocks} of {}", bytes.len());
    fsck(&place.store());
}

/// A damaged block is damaged in both files, and each repair stores it elsewhere.
#[test]
fn a_damaged_block_is_damaged_in_both_and_repaired_for_one_alone() {
    let (place, bytes) = two(100);
    let (data, _) = data_files(&place.store(), "t/a").remove(0);
    let file = fs::OpenOptions::new().write(true).open(&data).unwrap();
    file.write_all_at(b"damaged!", 700_000).unwrap();
    drop(file);
    let found = answer(tierfs().arg("fsck").arg(place.store()));
    let text = format!("{found:?}");
    assert!(text.contains("t/a") && text.contains("t/b"), "{text}");
    let mounted = place.mount(&[]);
    // Correct bytes written over the block of one file go elsewhere.
    let path = mounted.path("t/a/m.safetensors");
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&bytes[600_000..800_000], 600_000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_same(&read(&mounted, "t/a/m.safetensors"), &bytes, "written over");
    assert!(fs::read(mounted.path("t/b/m.safetensors")).is_err());
    // A later import of the same file does not share the damaged one.
    fs::write(mounted.path("t/b/new.safetensors"), &bytes).unwrap();
    assert_same(&read(&mounted, "t/b/new.safetensors"), &bytes, "arrived again");
    mounted.unmount();
    run(["fsck".as_ref(), "--repair".as_ref(), place.store().as_os_str()]);
    let mounted = place.mount(&[]);
    assert_same(&read(&mounted, "t/a/m.safetensors"), &bytes, "after the repair");
    assert_same(&read(&mounted, "t/b/new.safetensors"), &bytes, "after the repair");
}

#[test]
fn two_files_that_share_a_data_file_are_read_by_the_kernel_at_once() {
    let (place, bytes) = two(101);
    let mounted = place.mount(&[]);
    let paths = ["t/a/m.safetensors", "t/b/m.safetensors"];
    paths.iter().for_each(|path| assert_same(&read(&mounted, path), &bytes, path));
    let before = mounted.counter("passthrough_opens");
    let files = paths.map(|path| fs::File::open(mounted.path(path)).unwrap());
    assert_eq!(mounted.counter("passthrough_opens") - before, 2);
    let both = |context: &str| {
        for file in &files {
            let mut found = vec![0; bytes.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            assert_same(&found, &bytes, context);
        }
    };
    both("both open");
    // An open file keeps its bytes whatever becomes of the other.
    fs::remove_file(mounted.path(paths[0])).unwrap();
    both("one removed");
    fs::write(mounted.path("t/a/new.safetensors"), &bytes).unwrap();
    both("one arrived again");
    drop(files);
    let file = fs::OpenOptions::new().write(true).open(mounted.path(paths[1])).unwrap();
    file.write_all_at(&[9; 100_000], 500_000).unwrap();
    drop(file);
    assert_same(&read(&mounted, "t/a/new.safetensors"), &bytes, "the other written");
    assert_same(&read(&mounted, paths[1])[500_000..600_000], &[9; 100_000], "the written one");
}

/// One of the two files, and its expected content.
struct Side {
    path: &'static str,
    collection: &'static str,
    bytes: Vec<u8>,
}

impl Side {
    fn check(&self, mounted: &Mounted, context: &str) {
        assert_same(&read(mounted, self.path), &self.bytes, &format!("{context}: {}", self.path));
    }

    /// After damage to a data file: what can be read is right. A damaged file is removed and written anew. Whether it
    /// was.
    fn mend(&mut self, mounted: &Mounted, source: &[u8], context: &str) -> bool {
        let path = mounted.path(self.path);
        let file = fs::File::open(&path).unwrap();
        let mut is_damaged = false;
        for (place, wanted) in self.bytes.chunks(4096).enumerate() {
            let mut found = vec![0; wanted.len()];
            match file.read_exact_at(&mut found, place as u64 * 4096) {
                Ok(()) => assert_same(&found, wanted, context),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{context}");
                    is_damaged = true;
                }
            }
        }
        drop(file);
        if is_damaged {
            fs::remove_file(&path).unwrap();
            fs::write(&path, source).unwrap();
            self.bytes = source.to_vec();
            self.check(mounted, context);
        }
        is_damaged
    }

    /// Changes the file in some way. The file after a lossy move is read back.
    fn step(&mut self, (place, mounted): (&Place, &Mounted), random: &mut Random, source: &[u8]) -> String {
        let path = mounted.path(self.path);
        let open = || fs::OpenOptions::new().write(true).open(&path).unwrap();
        let control = format!("{}/.ctl/compact", self.collection);
        match random.below(10) {
            0 | 1 => {
                let (at, len) = (random.below(self.bytes.len() + 1), 1 + random.below(200_000));
                let new = random.bytes(len);
                let end = (at + len).max(self.bytes.len());
                self.bytes.resize(end, 0);
                self.bytes[at..at + len].copy_from_slice(&new);
                let file = open();
                file.write_all_at(&new, at as u64).unwrap();
                if random.below(2) == 0 {
                    file.sync_all().unwrap();
                }
                format!("{len} bytes written at {at}")
            }
            2 => {
                let len = random.below(self.bytes.len() + 100_000);
                self.bytes.resize(len, 0);
                open().set_len(len as u64).unwrap();
                format!("cut or extended to {len}")
            }
            3 => {
                let tier = ["q8:all", "q3:all", "exact"][random.below(3)];
                let moved = set(&path, "lossy", "allow").and_then(|()| set(&path, "tier", tier));
                self.bytes = fs::read(&path).unwrap();
                format!("moved to {tier}: {moved:?}")
            }
            4 | 5 => {
                fs::remove_file(&path).unwrap();
                fs::write(&path, source).unwrap();
                self.bytes = source.to_vec();
                "removed and written anew".to_owned()
            }
            6 => {
                let gone = set(&path, "lossy", "allow").and_then(|()| set(&path, "evict", "discard"));
                fs::remove_file(&path).unwrap();
                fs::write(&path, source).unwrap();
                self.bytes = source.to_vec();
                format!("discarded ({gone:?}), removed and written anew")
            }
            8 => {
                let out = place.path(format!("out{}", random.below(1 << 30)));
                let arguments =
                    [std::ffi::OsString::from("export"), place.store().into(), self.collection.into()];
                answer(tierfs().args(arguments).arg(&out)).ok();
                assert_same(&fs::read(out.join("m.safetensors")).unwrap(), &self.bytes, "the export");
                fs::remove_dir_all(out).unwrap();
                "exported".to_owned()
            }
            7 => {
                let moved = path.with_file_name("moved.safetensors");
                fs::rename(&path, &moved).unwrap();
                fs::rename(&moved, &path).unwrap();
                "renamed and back".to_owned()
            }
            _ => {
                mounted.job(&control, "start");
                "compacted".to_owned()
            }
        }
    }
}

#[test]
fn a_change_of_one_equal_file_leaves_the_other_intact() {
    for seed in 0..4 * u64::from(scale()) {
        let (place, source) = two(200 + seed);
        let mut random = Random(300 + seed);
        let side = |path, collection| Side { path, collection, bytes: source.clone() };
        let mut sides = [side("t/a/m.safetensors", "t/a"), side("t/b/m.safetensors", "t/b")];
        let mut mounted = place.mount(&[]);
        let mut history = Vec::new();
        for step in 0..24 {
            let which = random.below(2);
            let did = sides[which].step((&place, &mounted), &mut random, &source);
            history.push(format!("{}: {did}", sides[which].collection));
            let context = format!("seed {seed}, {history:#?}");
            sides.iter().for_each(|side| side.check(&mounted, &context));
            if step % 8 == 7 {
                if random.below(2) == 0 {
                    // Unsynced changes may be lost.
                    sides.iter().for_each(|side| {
                        let file = fs::File::open(mounted.path(side.path)).unwrap();
                        file.sync_all().unwrap();
                    });
                    mounted.kill();
                    drop(mounted);
                } else {
                    mounted.unmount();
                }
                fsck(&place.store());
                run(["fsck".as_ref(), "--repair".as_ref(), place.store().as_os_str()]);
                let hurt = (random.below(2) == 0).then(|| {
                    let (data, _) = data_files(&place.store(), sides[which].collection).remove(0);
                    let at = random.below(fs::metadata(&data).unwrap().len().max(1) as usize) as u64;
                    let file = fs::OpenOptions::new().read(true).write(true).open(&data).unwrap();
                    let mut byte = [0];
                    if file.read_at(&mut byte, at).unwrap() == 1 {
                        file.write_all_at(&[byte[0] ^ 16], at).unwrap();
                    }
                    format!("byte {at} of {} damaged", data.display())
                });
                mounted = place.mount(&[]);
                let context = format!("{context}, mounted again, {hurt:?}");
                if hurt.is_some() {
                    let mended = sides.each_mut().map(|side| side.mend(&mounted, &source, &context));
                    history.push(format!("{hurt:?}, mended {mended:?}"));
                }
                sides.iter().for_each(|side| side.check(&mounted, &context));
            }
        }
    }
}
