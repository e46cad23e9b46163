//! The program is killed before a system call: acknowledged changes are there, and no change is half done.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Store};

use crate::journal::{After, Journal};
use crate::stores::{SecondImport, check_after, copied, exported, fsck, grow_log, sources, store_with_files};
use crate::trace::{Daemon, Fault, Point, points, spread, traced};
use support::{Place, Random, answer, ended, run, safetensors_file, tierfs};

/// Calls that a short run tries for each workload.
const TRIED: usize = 40;

#[test]
fn an_import_killed_before_any_call_leaves_each_file_old_or_new() {
    let import = SecondImport::new();
    let (place, old, new, all) = (&import.place, &import.old, &import.new, &import.points);
    assert!(all.len() > 30, "{all:?}");
    let mut hits = 0;
    for point in spread(all.clone(), TRIED * 2) {
        let context = format!("killed before {point}");
        let store = copied(place, &place.store());
        hits += usize::from(import.run(&store, Some((&point, Fault::Kill))).is_none());
        fsck(&store, &context);
        let found = exported(place, &store);
        assert!(found.keys().eq(old.keys()), "{context}: {:?}", found.keys());
        for (name, bytes) in &found {
            let right = *bytes == old[name] || *bytes == new[name];
            assert!(right, "{context}: {} is neither old nor new", name.display());
        }
        let arguments = ["import".as_ref(), store.as_os_str(), "demo/c".as_ref(), import.source.as_os_str()];
        answer(tierfs().args(arguments).args(SecondImport::OPTIONS)).ok();
        fsck(&store, &context);
        assert!(exported(place, &store) == *new, "{context}: the second import is not whole");
        let files = fs::read_dir(store.join("demo/c/data")).unwrap().count();
        assert_eq!(files, fs::read_dir(place.store().join("demo/c/data")).unwrap().count(), "{context}");
    }
    assert!(hits > TRIED, "only {hits} imports were killed");
}

#[test]
fn an_import_that_shares_data_files_killed_before_any_call_leaves_the_other_collection_intact() {
    let place = Place::new();
    let folder = sources(&place, "one", 1);
    place.import("demo/c", &[&folder], &[]);
    let wanted = exported(&place, &place.store());
    let notes = place.path("notes");
    let import = |store: &Path, fault: Option<(&Point, Fault)>| {
        let arguments = [Path::new("import"), store, Path::new("demo/d"), &folder];
        let mut command = traced(&arguments, &notes, fault);
        ended(&mut command.spawn().unwrap(), "a traced import")
    };
    let names_of = |store: &Path, collection: &str| {
        let files = fs::read_dir(store.join(collection).join("data")).unwrap();
        let mut names: Vec<u64> = files.map(|file| file.unwrap().metadata().unwrap().nlink()).collect();
        names.sort_unstable();
        names
    };
    let store = copied(&place, &place.store());
    assert_eq!(import(&store, None), Some(0));
    assert_eq!(names_of(&store, "demo/d"), [2, 2, 2]);
    let all = points(&notes);
    assert!(all.iter().any(|point| point.call.starts_with("link")), "{all:?}");
    let mut hits = 0;
    for point in spread(all, TRIED) {
        let context = format!("killed before {point}");
        let store = copied(&place, &place.store());
        hits += usize::from(import(&store, Some((&point, Fault::Kill))).is_none());
        fsck(&store, &context);
        assert!(exported(&place, &store) == wanted, "{context}: the other collection changed");
        let arguments = ["import".as_ref(), store.as_os_str(), "demo/d".as_ref(), folder.as_os_str()];
        answer(tierfs().args(arguments)).ok();
        fsck(&store, &context);
        assert_eq!(names_of(&store, "demo/d"), [2, 2, 2], "{context}");
        fs::remove_dir_all(store.join("demo/c")).unwrap();
        fs::rename(store.join("demo/d"), store.join("demo/c")).unwrap();
        assert!(exported(&place, &store) == wanted, "{context}: the second import is not whole");
    }
    assert!(hits > TRIED / 2, "only {hits} imports were killed");
}

#[test]
fn a_daemon_killed_before_any_call_keeps_closed_renamed_and_synced_files() {
    let place = Place::new();
    let known = store_with_files(&place);
    let notes = place.path("notes");
    let journal = || known.clone();
    let store = copied(&place, &place.store());
    let daemon = Daemon::mount(&place, &store, &notes, None).unwrap();
    let mut all_of_it = journal();
    all_of_it.work(&daemon.path(""), 5, After::Stop);
    assert!(all_of_it.failed.is_empty(), "{:?}", all_of_it.failed);
    daemon.end();
    check_after(&place, &store, &all_of_it, "nothing was killed");
    let all = points(&notes);
    assert!(all.len() > 40, "{all:?}");
    let mut hits = 0;
    for point in spread(all, TRIED) {
        let context = format!("killed before {point}");
        let store = copied(&place, &place.store());
        let mut journal = journal();
        if let Some(daemon) = Daemon::mount(&place, &store, &notes, Some((&point, Fault::Kill))) {
            journal.work(&daemon.path(""), 5, After::Stop);
            daemon.end();
        }
        hits += usize::from(journal.done < all_of_it.done);
        check_after(&place, &store, &journal, &context);
    }
    assert!(hits > TRIED / 3, "only {hits} daemons were killed while there was work");
}

/// Lets the log of a collection grow until a checkpoint is due.
fn grow_log_of(store: &Path) {
    let store = Store::open(Arc::new(FileDisk::new(store)), Access::Write, "a test").unwrap();
    grow_log(&store.collection("demo", "c").unwrap());
}

#[test]
fn a_daemon_killed_during_a_log_rewrite_loses_nothing() {
    let place = Place::new();
    let known = store_with_files(&place);
    grow_log_of(&place.store());
    let log_bytes = |store: &Path| fs::metadata(store.join("demo/c/meta.log")).unwrap().len();
    assert!(log_bytes(&place.store()) > 4 << 20);
    let notes = place.path("notes");
    let work = |store: &Path, journal: &mut Journal, fault: Option<(&Point, Fault)>| {
        if let Some(daemon) = Daemon::mount(&place, store, &notes, fault) {
            journal.work(&daemon.path(""), 6, After::Stop);
            daemon.end();
        }
    };
    let journal = || known.clone();
    let store = copied(&place, &place.store());
    let mut all_of_it = journal();
    work(&store, &mut all_of_it, None);
    assert!(log_bytes(&store) < 1 << 20, "{} bytes", log_bytes(&store));
    // The calls from the creation of the new log to the first sync after its rename.
    let text = fs::read_to_string(&notes).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.iter().position(|line| line.contains("meta.log.new")).unwrap();
    let last = lines.iter().position(|line| line.contains("rename(")).unwrap() + 6;
    let (before, until) = (place.path("before"), place.path("until"));
    fs::write(&before, lines[..first].join("\n")).unwrap();
    fs::write(&until, lines[..last.min(lines.len())].join("\n")).unwrap();
    let known = points(&before);
    let all: Vec<Point> = points(&until).into_iter().filter(|point| !known.contains(point)).collect();
    assert!(all.iter().any(|point| point.call == "rename"), "{all:?}");
    let mut hits = 0;
    for point in spread(all, TRIED) {
        let context = format!("killed before {point}");
        let store = copied(&place, &place.store());
        let mut journal = journal();
        work(&store, &mut journal, Some((&point, Fault::Kill)));
        hits += usize::from(journal.done < all_of_it.done);
        check_after(&place, &store, &journal, &context);
    }
    assert!(hits >= 3, "only {hits} daemons were killed while there was work");
}

/// A container of bf16 numbers that packs well.
fn packable(place: &Place) -> std::path::PathBuf {
    let elements = 400_000;
    let mut random = Random(21);
    let data: Vec<u8> = (0..elements)
        .flat_map(|_| (0x3c00_u16 + random.below(6) as u16 * 128 + random.below(128) as u16).to_le_bytes())
        .collect();
    let header = serde_json::json!({
        "w": { "dtype": "BF16", "shape": [elements / 100, 100], "data_offsets": [0, data.len()] }
    });
    place.write("m.safetensors", safetensors_file(&header.to_string(), &data))
}

/// The files of a collection, by their paths.
type Files = std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>;

/// Packs and unpacks a file on a traced mount, with a fault, then checks that every byte is there. Returns
/// whether a request failed.
fn packs_in_spite_of(place: &Place, old: &Files, fault: (&Point, Fault), context: &str) -> bool {
    let notes = place.path("notes");
    let store = copied(place, &place.store());
    let mut has_failed = true;
    if let Some(daemon) = Daemon::mount(place, &store, &notes, Some(fault)) {
        let file = daemon.path("m.safetensors");
        let pack = |command: &str| run([command.as_ref(), file.as_os_str()]).code == Some(0);
        has_failed = [pack("pack"), pack("unpack"), pack("pack")].contains(&false);
        if let Ok(bytes) = fs::read(&file) {
            assert!(bytes == old[Path::new("m.safetensors")], "{context}: it reads as something else");
        }
        daemon.end();
    }
    fsck(&store, context);
    assert!(exported(place, &store) == *old, "{context}: bytes were lost");
    has_failed
}

#[test]
fn packing_and_unpacking_that_are_killed_or_find_a_full_disk_lose_nothing() {
    let place = Place::new();
    let source = packable(&place);
    place.import("demo/c", &[&source], &[]);
    let old = exported(&place, &place.store());
    let notes = place.path("notes");
    let store = copied(&place, &place.store());
    let daemon = Daemon::mount(&place, &store, &notes, None).unwrap();
    let file = daemon.path("m.safetensors");
    let stored = || support::get(&file, "bytes_stored").parse::<u64>().unwrap();
    let before = stored();
    run(["pack".as_ref(), file.as_os_str()]).ok();
    assert!(stored() * 10 < before * 8, "{} of {before}", stored());
    run(["unpack".as_ref(), file.as_os_str()]).ok();
    run(["pack".as_ref(), file.as_os_str()]).ok();
    daemon.end();
    let all = points(&notes);
    assert!(all.len() > 10, "{all:?}");
    let mut hits = 0;
    for point in spread(all.clone(), TRIED) {
        let context = format!("killed before {point}");
        hits += usize::from(packs_in_spite_of(&place, &old, (&point, Fault::Kill), &context));
    }
    assert!(hits > 3, "only {hits} daemons were killed while there was work");
    let writes = all.into_iter().filter(|point| ["pwrite64", "fallocate", "ftruncate"].contains(&point.call));
    // A request that finds the disk full once goes on after a sync, or fails.
    for point in spread(writes.collect(), TRIED) {
        let context = format!("no space for {point}");
        packs_in_spite_of(&place, &old, (&point, Fault::Error("ENOSPC")), &context);
    }
}

/// The states of the files of copies and holes after each step: copies as they are written grow to the first.
struct Copied {
    whole: Vec<u8>,
    punched: Vec<u8>,
    part: Vec<u8>,
    named: Vec<u8>,
}

impl Copied {
    const HOLE: std::ops::Range<usize> = 5_000..300_000;

    fn of(model: &[u8]) -> Copied {
        let mut punched = model.to_vec();
        punched[Copied::HOLE].fill(0);
        let part = [&[0; 100][..], &punched[4_096..904_096]].concat();
        Copied { whole: model.to_vec(), punched, part, named: model[..500_000].to_vec() }
    }

    /// Copies a container, punches a hole into the copy, copies a part of that, and gives a copy without a name one.
    /// Returns the number of steps that were answered.
    fn work(folder: &Path) -> usize {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::OpenOptionsExt;

        let mut done = 0;
        let mut steps = || -> std::io::Result<()> {
            let new = |name: &str| {
                fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(folder.join(name))
            };
            let copy = |from: &fs::File, mut at: u64, to: &fs::File, mut place: u64, bytes: usize| {
                let mut left = bytes;
                while left > 0 {
                    let count = rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut place), left)?;
                    assert!(count > 0);
                    left -= count;
                }
                to.sync_all()
            };
            let model = fs::File::open(folder.join("m.safetensors"))?;
            let bytes = model.metadata()?.len() as usize;
            let first = new("whole")?;
            copy(&model, 0, &first, 0, bytes)?;
            done += 1;
            let flags = rustix::fs::FallocateFlags::KEEP_SIZE | rustix::fs::FallocateFlags::PUNCH_HOLE;
            rustix::fs::fallocate(&first, flags, Copied::HOLE.start as u64, Copied::HOLE.len() as u64)?;
            first.sync_all()?;
            done += 1;
            copy(&first, 4_096, &new("part")?, 100, 900_000)?;
            done += 1;
            let mut options = fs::OpenOptions::new();
            let nameless = options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(folder)?;
            copy(&model, 0, &nameless, 0, 500_000)?;
            let own = format!("/proc/self/fd/{}", nameless.as_raw_fd());
            let (from, flags) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_FOLLOW);
            rustix::fs::linkat(from, own, from, folder.join("named"), flags)?;
            done += 1;
            Ok(())
        };
        if let Err(error) = steps() {
            println!("after {done} steps: {error}");
        }
        done
    }

    fn check(&self, found: &Files, done: usize, context: &str) {
        let of = |name: &str| found.get(Path::new(name)).map(Vec::as_slice);
        let is_begun =
            |found: Option<&[u8]>, whole: &[u8]| found.is_none_or(|found| whole.starts_with(found));
        assert!(of("m.safetensors") == Some(&self.whole), "{context}: the source changed");
        let first = of("whole");
        let is_right = match done {
            0 => is_begun(first, &self.whole),
            1 => first == Some(&self.whole) || first == Some(&self.punched),
            _ => first == Some(&self.punched),
        };
        assert!(is_right, "{context}: the copy after {done} steps has {:?} bytes", first.map(<[u8]>::len));
        let part = of("part");
        let is_right = if done < 3 { is_begun(part, &self.part) } else { part == Some(&self.part) };
        assert!(is_right, "{context}: the part after {done} steps has {:?} bytes", part.map(<[u8]>::len));
        let named = of("named");
        let is_right = named == Some(&self.named) || (done < 4 && named.is_none());
        assert!(
            is_right,
            "{context}: the named file after {done} steps has {:?} bytes",
            named.map(<[u8]>::len)
        );
    }
}

#[test]
fn copies_and_holes_killed_before_any_call_are_whole_once_they_are_answered() {
    let place = Place::new();
    let model = support::container_of(&mut Random(71), &[("w", 400_000), ("v", 3)]);
    let source = place.write("m.safetensors", &model);
    place.import("demo/c", &[&source], &[]);
    let (states, notes) = (Copied::of(&model), place.path("notes"));
    let store = copied(&place, &place.store());
    let daemon = Daemon::mount(&place, &store, &notes, None).unwrap();
    assert_eq!(Copied::work(&daemon.path("")), 4);
    daemon.end();
    states.check(&exported(&place, &store), 4, "nothing was killed");
    let all = points(&notes);
    assert!(all.len() > 20, "{all:?}");
    let mut hits = 0;
    for point in spread(all, TRIED) {
        let context = format!("killed before {point}");
        let store = copied(&place, &place.store());
        let mut done = 0;
        if let Some(daemon) = Daemon::mount(&place, &store, &notes, Some((&point, Fault::Kill))) {
            done = Copied::work(&daemon.path(""));
            daemon.end();
        }
        hits += usize::from(done < 4);
        fsck(&store, &context);
        states.check(&exported(&place, &store), done, &context);
    }
    assert!(hits > 5, "only {hits} daemons were killed while there was work");
}
