//! Files that were imported in place: nothing is copied, and they stay exact sources for later moves.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use rustix::io::Errno;

use crate::moves::stored_bytes;
use support::{
    Aligned, Mounted, Place, Random, container_of, files_below, get, minilm, npy_file, open_direct, read_at,
    refused_set, run, set, try_get, wait_until,
};

/// Sets an attribute of a directory and waits until the job has succeeded.
pub fn set_below(mounted: &Mounted, path: &Path, name: &str, value: &str) {
    let jobs = || fs::read_to_string(mounted.path(".ctl/jobs")).unwrap();
    let before = jobs().lines().count();
    set(path, name, value).unwrap();
    let ended = || jobs().lines().nth(before).is_some_and(|line| line.contains(" done in "));
    let failed = || jobs().lines().nth(before).is_some_and(|line| line.contains(" failed"));
    wait_until("the job ends", || ended() || failed());
    assert!(ended(), "{}", jobs());
}

/// The contents of all files of a collection after an import into a tier.
fn imported_into(source: &Path, tier: &str, names: &[PathBuf]) -> Vec<Vec<u8>> {
    let place = Place::new();
    place.import("t/c", &[source], &["--tier", tier, "--encoder", "absmax"]);
    let mounted = place.mount(&["--read-only"]);
    all(&mounted, names)
}

fn all(mounted: &Mounted, names: &[PathBuf]) -> Vec<Vec<u8>> {
    names.iter().map(|name| fs::read(mounted.path(Path::new("t/c").join(name))).unwrap()).collect()
}

fn stamp(path: &Path) -> (Vec<u8>, SystemTime) {
    (fs::read(path).unwrap(), fs::metadata(path).unwrap().modified().unwrap())
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

const EIO: i32 = 5;

#[test]
fn a_model_in_place_changes_tiers_under_readers_and_equals_the_source_again() {
    let source = minilm().join("model.safetensors");
    let before = stamp(&source);
    let place = Place::new();
    place.import("t/c", &[&source], &["--in-place"]);
    assert!(stored_bytes(&place.store()) < 2 << 20, "{} bytes were copied", stored_bytes(&place.store()));
    let mounted = place.mount(&[]);
    let collection = mounted.path("t/c");
    let container = collection.join("model.safetensors");
    assert!(fs::read(&container).unwrap() == before.0, "not the source");
    let tensors = files_below(&collection.join(".tensors"));
    let tensors = tensors.into_iter().map(|name| Path::new(".tensors").join(name));
    let names: Vec<PathBuf> = files_below(&collection).into_iter().chain(tensors).collect();
    let place_of_container = names.iter().position(|name| name.ends_with("model.safetensors")).unwrap();
    assert!(names.len() > 50);
    let exact = all(&mounted, &names);
    let (cold, hot) = (imported_into(&source, "q3:all", &names), imported_into(&source, "q8:all", &names));
    assert!(cold[place_of_container] != hot[place_of_container] && hot[place_of_container] != before.0);
    let (ended, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..16 {
            let (collection, names, exact, cold, hot) = (&collection, &names, &exact, &cold, &hot);
            let (ended, reads) = (&ended, &reads);
            scope.spawn(move || {
                // With the cache, whole pages are of one tier; without it, whole blocks. Tensors, not the container:
                // there blocks do not begin at pages.
                let direct = seed % 2 == 0;
                let len = if direct { 16_384 } else { 4096 };
                let mut random = Random(seed);
                let mut buffer = Aligned::new(16_384);
                while !ended.load(Ordering::Relaxed) {
                    let which = random.below(names.len());
                    let bytes = exact[which].len();
                    if which == place_of_container || bytes < len {
                        continue;
                    }
                    let path = collection.join(&names[which]);
                    let file = if direct { open_direct(&path) } else { fs::File::open(&path).unwrap() };
                    for _ in 0..20 {
                        let at = random.below(bytes / len) * len;
                        let found = buffer.pages(len);
                        assert_eq!(read_at(&file, found, at as u64), len);
                        let is_one =
                            [exact, cold, hot].iter().any(|state| found == &state[which][at..at + len]);
                        assert!(is_one, "{} at {at}: none of its states", names[which].display());
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let ender = Ender(&ended);
        set(&collection, "encoder", "absmax").unwrap();
        for (tier, wanted) in [("q3:all", &cold), ("q8:all", &hot), ("exact", &exact)] {
            set_below(&mounted, &collection, "tier", tier);
            let found = all(&mounted, &names);
            for ((name, found), wanted) in names.iter().zip(&found).zip(wanted.iter()) {
                assert!(found == wanted, "{} in {tier}", name.display());
            }
        }
        drop(ender);
    });
    assert!(reads.load(Ordering::Relaxed) > 100);
    assert!(fs::read(&container).unwrap() == before.0);
    assert!(stored_bytes(&place.store()) < 8 << 20, "{} bytes", stored_bytes(&place.store()));
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert!(fs::read(mounted.path("t/c/model.safetensors")).unwrap() == before.0);
    assert!(stamp(&source) == before, "the source was changed");
}

/// Stops the readers also if the test fails.
struct Ender<'a>(&'a AtomicBool);

impl Drop for Ender<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn exact_bytes_are_given_up_only_with_an_origin_and_unless_written() {
    let source = container_of(&mut Random(21), &[("v", 100_000), ("w", 100_000)]);
    let place = Place::new();
    let model = place.write("m.safetensors", &source);
    let copied = place.write("copied.npy", npy_file(&Random(22).floats(70_000)));
    place.import("t/c", &[&model], &["--in-place"]);
    place.import("t/c", &[&copied], &[]);
    let mounted = place.mount(&[]);
    let (container, w) = (mounted.path("t/c/m.safetensors"), mounted.path("t/c/w"));
    let copied = mounted.path("t/c/copied");
    assert!(refused_set(&copied, "tier", "q8", Errno::PERM).contains("lossy"));
    assert!(refused_set(&copied, "reconstruct", "origin", Errno::INVAL).contains("in place"));
    set(&w, "tier", "q8").unwrap();
    let data = source.len() - 800_000;
    let exact = &source[data + 400_000..];
    let hot = fs::read(&w).unwrap();
    assert!(hot != exact && get(&w, "tier") == "q8");
    // A whole block and a few elements of another are written.
    let block = 16_384;
    let new = Random(23).floats(block / 4);
    let file = fs::OpenOptions::new().write(true).open(&w).unwrap();
    file.write_all_at(&new, block as u64).unwrap();
    file.write_all_at(&[0; 8], 5 * block as u64 + 64).unwrap();
    drop(file);
    let mut wanted = hot;
    wanted[block..2 * block].copy_from_slice(&new);
    wanted[5 * block + 64..5 * block + 72].fill(0);
    let check = |mounted: &Mounted, wanted: &[u8], what: &str| {
        assert!(fs::read(mounted.path("t/c/w")).unwrap() == wanted, "{what}");
    };
    check(&mounted, &wanted, "written");
    for tier in ["q3", "q7"] {
        assert!(refused_set(&w, "tier", tier, Errno::PERM).contains("lossy"), "{tier}");
    }
    assert!(refused_set(&w, "tier", "exact", Errno::INVAL).contains("more precise"));
    assert!(refused_set(&w, "evict", "1", Errno::INVAL).contains("reconstruct"));
    check(&mounted, &wanted, "refused");
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    check(&mounted, &wanted, "mounted again");
    let w = mounted.path("t/c/w");
    assert!(refused_set(&w, "tier", "exact", Errno::INVAL).contains("more precise"));
    // The patched block is written whole, so that nothing stays less than exact.
    let file = fs::OpenOptions::new().write(true).open(&w).unwrap();
    file.write_all_at(&new, 5 * block as u64).unwrap();
    drop(file);
    set(&w, "tier", "exact").unwrap();
    let mut wanted = exact.to_vec();
    wanted[block..2 * block].copy_from_slice(&new);
    wanted[5 * block..6 * block].copy_from_slice(&new);
    check(&mounted, &wanted, "exact again");
    assert!(refused_set(&w, "tier", "q8", Errno::PERM).contains("lossy"));
    set(&mounted.path("t/c/v"), "tier", "q5").unwrap();
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    check(&mounted, &wanted, "at the end");
    assert_eq!(get(&mounted.path("t/c/v"), "tier"), "q5");
    assert_eq!(fs::read(&model).unwrap(), source);
    drop(container);
}

#[test]
fn an_outside_file_is_compared_again_when_another_file_or_another_time_is_under_its_name() {
    let source = container_of(&mut Random(61), &[("v", 50_000)]);
    let place = Place::new();
    let model = place.write("m.safetensors", &source);
    place.import("t/c", &[&model], &["--in-place"]);
    let mounted = place.mount(&[]);
    let v = mounted.path("t/c/v");
    let time = fs::metadata(&model).unwrap().modified().unwrap();
    let mut other = source.clone();
    let last = other.len() - 1;
    other[last] ^= 1;
    // This move compares its blocks.
    set(&v, "tier", "q8").unwrap();
    let hot = fs::read(&v).unwrap();
    let replacement = place.write("other", &other);
    fs::File::open(&replacement).unwrap().set_modified(time).unwrap();
    fs::rename(&replacement, &model).unwrap();
    assert!(refused_set(&v, "tier", "exact", Errno::INVAL).contains("more precise"));
    assert!(fs::read(&v).unwrap() == hot && get(&v, "tier") == "q8", "the only good copy was given up");
    fs::write(&model, &source).unwrap();
    fs::File::open(&model).unwrap().set_modified(time).unwrap();
    set(&v, "tier", "exact").unwrap();
    set(&v, "tier", "q8").unwrap();
    // The same file, after a write to it.
    fs::write(&model, &other).unwrap();
    assert!(refused_set(&v, "tier", "exact", Errno::INVAL).contains("more precise"));
    fs::write(&model, &source).unwrap();
    // The daemon has not allocated anything in the tier file since it began.
    mounted.unmount();
    let _mounted = place.mount(&[]);
    set(&v, "tier", "exact").unwrap();
    assert!(fs::read(&v).unwrap() == source[source.len() - 200_000..]);
    let tiers = (0..4).map(|tier| place.store().join(format!("t/c/tier{tier}.dat")));
    let taken: u64 = tiers.filter_map(|path| fs::metadata(path).ok()).map(|file| file.blocks()).sum();
    assert_eq!(taken, 0, "sectors of tier files after the return to the outside file");
}

#[test]
fn truncating_growing_and_replacing_a_file_in_place_leaves_its_source_unchanged() {
    let bytes = Random(31).bytes(100_000);
    let place = Place::new();
    let source = place.write("in/plain.bin", &bytes);
    let before = stamp(&source);
    place.import("t/c", &[&source], &["--in-place"]);
    let mounted = place.mount(&[]);
    let path = mounted.path("t/c/plain.bin");
    let mut wanted = bytes.clone();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"end", wanted.len() as u64).unwrap();
    wanted.extend(b"end");
    drop(file);
    assert!(fs::read(&path).unwrap() == wanted);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(50_001).unwrap();
    file.set_len(70_000).unwrap();
    wanted.truncate(50_001);
    wanted.resize(70_000, 0);
    drop(file);
    assert!(fs::read(&path).unwrap() == wanted);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    let path = mounted.path("t/c/plain.bin");
    assert!(fs::read(&path).unwrap() == wanted);
    fs::write(&path, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    fs::remove_file(&path).unwrap();
    mounted.unmount();
    // A file of the store never gets the number of the outside file.
    let other = place.write("in/other.bin", Random(32).bytes(90_000));
    place.import("t/c", &[&other], &[]);
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    assert!(stamp(&source) == before);
    let mounted = place.mount(&[]);
    assert!(fs::read(mounted.path("t/c/other.bin")).unwrap() == fs::read(&other).unwrap());
}

#[test]
fn a_changed_source_fails_only_its_own_blocks() {
    let place = Place::new();
    let one = place.write("in/one.npy", npy_file(&Random(41).floats(100_000)));
    let two = place.write("in/two.npy", npy_file(&Random(42).floats(100_000)));
    place.import("t/c", &[one.parent().unwrap()], &["--in-place"]);
    let (bytes, mtime) = stamp(&one);
    let data = &bytes[128..];
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/one");
    let restore = || {
        fs::write(&one, &bytes).unwrap();
        fs::File::options().write(true).open(&one).unwrap().set_modified(mtime).unwrap();
    };
    let read = || {
        set(&tensor, "evict", "cache").unwrap();
        fs::read(&tensor)
    };
    assert!(read().unwrap() == data);
    type Change<'a> = &'a dyn Fn();
    let changes: [(&str, Change); 3] = [
        ("truncated", &|| fs::File::options().write(true).open(&one).unwrap().set_len(300_000).unwrap()),
        ("grown", &|| fs::File::options().write(true).open(&one).unwrap().set_len(500_000).unwrap()),
        ("removed", &|| fs::remove_file(&one).unwrap()),
    ];
    for (what, change) in changes {
        // A program that has a file open keeps it after the unlink.
        let held = (what != "removed").then(|| open_direct(&tensor));
        change();
        // The daemon learns of the close only afterwards.
        wait_until(what, || errno(read()) == Some(EIO));
        if let Some(held) = held {
            let mut buffer = Aligned::new(4096);
            assert_eq!(errno(held.read_at(buffer.pages(4096), 8192)), Some(EIO), "{what}, open");
        }
        assert!(fs::read(mounted.path("t/c/two")).unwrap() == fs::read(&two).unwrap()[128..]);
        let verified = fs::read_to_string(mounted.path("t/c/.ctl/verify/one")).unwrap();
        assert!(verified.contains("corrupt 25 of 25"), "{what}: {verified}");
        restore();
        assert!(read().unwrap() == data, "{what} and restored");
    }
    // Other bytes with the same time: the checksum of one block detects them.
    let file = fs::File::options().write(true).open(&one).unwrap();
    file.write_all_at(&[bytes[128 + 40_000] ^ 1], 128 + 40_000).unwrap();
    file.set_modified(mtime).unwrap();
    set(&tensor, "evict", "cache").unwrap();
    let file = fs::File::open(&tensor).unwrap();
    let mut part = vec![0; 16_384];
    assert_eq!(errno(file.read_exact_at(&mut part, 32_768)), Some(EIO));
    file.read_exact_at(&mut part, 65_536).unwrap();
    assert!(part == data[65_536..81_920]);
    drop(file);
    assert!(refused_set(&tensor, "tier", "q8", Errno::PERM).contains("lossy"));
    restore();
    // Tensors that no longer use it do not need it, and cannot return without it.
    set(&tensor, "tier", "q8").unwrap();
    fs::remove_file(&one).unwrap();
    assert!(read().unwrap() != data);
    assert!(refused_set(&tensor, "tier", "exact", Errno::INVAL).contains("more precise"));
    assert!(refused_set(&tensor, "tier", "q3", Errno::PERM).contains("lossy"));
    restore();
    set(&tensor, "tier", "exact").unwrap();
    assert!(read().unwrap() == data);
}

#[test]
fn evicted_tensors_are_read_from_their_origin_and_discarded_ones_are_absent() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(51).floats(100_000)));
    place.import("t/c", &[&source], &["--in-place"]);
    let (bytes, mtime) = stamp(&source);
    let data = &bytes[128..];
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    assert!(refused_set(&tensor, "evict", "1", Errno::INVAL).contains("reconstruct"));
    assert!(refused_set(&tensor, "reconstruct", "magic", Errno::INVAL).contains("origin"));
    set(&tensor, "reconstruct", "origin").unwrap();
    set(&tensor, "tier", "q3").unwrap();
    set(&tensor, "evict", "1").unwrap();
    let shown = ["tier", "bytes_stored", "reconstruct"].map(|name| get(&tensor, name));
    assert_eq!(shown, ["absent", "0", "origin"]);
    assert!(fs::read(&tensor).unwrap() == data);
    assert!(fs::read(mounted.path("t/c/w.npy")).unwrap() == bytes);
    assert!(refused_set(&tensor, "reconstruct", "none", Errno::BUSY).contains("absent"));
    mounted.kill();
    drop(mounted);
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    assert!(fs::read(&tensor).unwrap() == data);
    // A write into an absent block rebuilds the block first.
    let file = fs::File::options().write(true).open(&tensor).unwrap();
    file.write_all_at(b"four", 100_000).unwrap();
    drop(file);
    let mut wanted = data.to_vec();
    wanted[100_000..100_004].copy_from_slice(b"four");
    assert!(fs::read(&tensor).unwrap() == wanted);
    assert!(refused_set(&tensor, "evict", "1", Errno::INVAL).contains("reconstruct"));
    fs::File::options().write(true).open(&source).unwrap().set_modified(SystemTime::now()).unwrap();
    set(&tensor, "evict", "cache").unwrap();
    assert!(fs::read(&tensor).unwrap() == wanted, "touched");
    set(&tensor, "tier", "exact").unwrap();
    assert!(fs::read(&tensor).unwrap() == wanted);
    fs::File::options().write(true).open(&source).unwrap().set_modified(mtime).unwrap();
    set(&tensor, "lossy", "allow").unwrap();
    set(&tensor, "evict", "discard").unwrap();
    assert_eq!(errno(fs::read(&tensor)), Some(Errno::NODATA.raw_os_error()));
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert_eq!(errno(fs::read(mounted.path("t/c/w"))), Some(Errno::NODATA.raw_os_error()));
    mounted.unmount();
    let mounted = place.mount(&["--zero-fill"]);
    assert!(fs::read(mounted.path("t/c/w")).unwrap() == vec![0; data.len()]);
    assert!(stamp(&source) == (bytes, mtime));
}

/// The generation of a collection's log.
fn generation(place: &Place) -> u64 {
    let log = fs::read(place.store().join("t/c/meta.log")).unwrap();
    u64::from_le_bytes(log[43..51].try_into().unwrap())
}

#[test]
fn a_rewritten_log_knows_origins_and_severed_blocks() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(61).floats(4 << 20)));
    place.import("t/c", &[&source], &["--in-place", "--block-bytes", "4096"]);
    let before = stamp(&source);
    let data = &before.0[128..];
    let mut mounted = place.mount(&[]);
    let new = Random(62).floats(1024);
    let mut exact = data.to_vec();
    exact[40_960..45_056].copy_from_slice(&new);
    set(&mounted.path("t/c"), "encoder", "absmax").unwrap();
    set(&mounted.path("t/c/w"), "tier", "q3").unwrap();
    let file = fs::File::options().write(true).open(mounted.path("t/c/w")).unwrap();
    file.write_all_at(&new, 40_960).unwrap();
    drop(file);
    let mut moves = 0;
    while generation(&place) == 1 {
        moves += 1;
        assert!(moves < 12, "the log is not written anew");
        let tensor = mounted.path("t/c/w");
        set(&tensor, "lossy", "allow").unwrap();
        set(&tensor, "tier", "exact").unwrap();
        assert!(fs::read(&tensor).unwrap() == exact);
        // The block that was written would be lost.
        set(&tensor, "lossy", "deny").unwrap();
        assert!(refused_set(&tensor, "tier", "q8", Errno::PERM).contains("lossy"));
        let file = fs::File::options().write(true).open(&tensor).unwrap();
        set(&tensor, "lossy", "allow").unwrap();
        set(&tensor, "tier", "q8").unwrap();
        file.write_all_at(&new, 40_960).unwrap();
        drop(file);
    }
    let hot = fs::read(mounted.path("t/c/w")).unwrap();
    assert!(hot[..40_960] != data[..40_960] && hot[40_960..45_056] == new);
    mounted.kill();
    drop(mounted);
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    assert!(fs::read(&tensor).unwrap() == hot);
    set(&tensor, "lossy", "deny").unwrap();
    assert!(refused_set(&tensor, "tier", "q3", Errno::PERM).contains("lossy"));
    set(&tensor, "tier", "exact").unwrap();
    assert!(fs::read(&tensor).unwrap() == exact);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    assert!(stamp(&source) == before);
}

#[test]
fn files_that_cannot_stay_in_place_are_refused() {
    let place = Place::new();
    let source = place.write("in/a.bin", Random(71).bytes(50_000));
    place.import("t/c", &[&source], &["--in-place"]);
    let mounted = place.mount(&[]);
    let other = Place::new();
    // On a tierfs mount, directly and through a link.
    let link = other.path("link.bin");
    std::os::unix::fs::symlink(mounted.path("t/c/a.bin"), &link).unwrap();
    for path in [mounted.path("t/c/a.bin"), link] {
        let answer = other.try_import("t/c", &[&path], &["--in-place"]);
        assert!(answer.code == Some(1) && answer.err.contains("lies on the tierfs"), "{answer:?}");
    }
    mounted.unmount();
    let inside = place.store().join("t/c/meta.log");
    let answer = place.try_import("t/c", &[&inside], &["--in-place"]);
    assert!(answer.code == Some(1) && answer.err.contains("in the store itself"), "{answer:?}");
    assert_eq!(place.try_import("t/c", &[&source], &["--in-place", "--tier", "q8"]).code, Some(2));
    // A link is followed: its target is the source.
    let link = place.path("to-a.bin");
    std::os::unix::fs::symlink(&source, &link).unwrap();
    place.import("t/c", &[&link], &["--in-place"]);
    fs::remove_file(&link).unwrap();
    let mounted = place.mount(&[]);
    assert!(fs::read(mounted.path("t/c/to-a.bin")).unwrap() == fs::read(&source).unwrap());
    assert_eq!(try_get(&mounted.path("t/c/to-a.bin"), "why").ok(), None);
    assert!(fs::metadata(&source).unwrap().size() == 50_000);
}

#[test]
fn a_daemon_killed_during_a_move_leaves_each_block_in_one_of_its_tiers() {
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&Random(91).floats(1 << 20)));
    let before = stamp(&source);
    place.import("t/c", &[&source], &["--in-place", "--block-bytes", "4096"]);
    let names = [PathBuf::from("w")];
    let imported = |tier: &str| {
        let place = Place::new();
        let options = ["--tier", tier, "--encoder", "absmax", "--block-bytes", "4096"];
        place.import("t/c", &[&source], &options);
        all(&place.mount(&["--read-only"]), &names).remove(0)
    };
    let states = [before.0[128..].to_vec(), imported("q8:all"), imported("q3:all")];
    let mut random = Random(92);
    for round in 0..6 {
        let mounted = place.mount(&[]);
        let tensor = mounted.path("t/c/w");
        set(&mounted.path("t/c"), "encoder", "absmax").unwrap();
        std::thread::scope(|scope| {
            // It ends with the daemon.
            scope.spawn(
                || {
                    while ["q8", "q3", "exact"].iter().all(|tier| set(&tensor, "tier", tier).is_ok()) {}
                },
            );
            std::thread::sleep(std::time::Duration::from_millis(random.next() % 400));
            mounted.kill();
            // A request without an answer ends with the connection.
            drop(mounted);
        });
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
        let mounted = place.mount(&[]);
        let found = fs::read(mounted.path("t/c/w")).unwrap();
        for (index, block) in found.chunks(4096).enumerate() {
            let at = index * 4096;
            let is_one = states.iter().any(|state| block == &state[at..at + block.len()]);
            assert!(is_one, "round {round}, block {index}: none of its states");
        }
        mounted.unmount();
    }
    let mounted = place.mount(&[]);
    set(&mounted.path("t/c/w"), "tier", "exact").unwrap();
    assert!(fs::read(mounted.path("t/c/w.npy")).unwrap() == before.0);
    assert!(stamp(&source) == before);
}
