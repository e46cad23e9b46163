//! Pinned files: a copy of their bytes, which the kernel reads by passthrough.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tierfs::store::disk::Disk;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Pin, ROOT, Store};

use crate::healing::{block, count_events, flip, verified};
use support::{
    Mapping, Mounted, Place, Random, assert_same, container_of, fsck, get, npy_file, open_direct, read_at,
    refused_set, run, scale, set, wait_until,
};

const TENSORS: [(&str, usize); 3] = [("a", 150_000), ("b", 70_001), ("norm", 3000)];

/// A container with two encoded tensors, and an array.
fn with_pinnable_files() -> (Place, Mounted) {
    with_encoded_tensors("q8")
}

fn with_encoded_tensors(tier: &str) -> (Place, Mounted) {
    let place = Place::new();
    let model = place.write("in/m.safetensors", container_of(&mut Random(21), &TENSORS));
    let bare = place.write("in/bare.npy", npy_file(&Random(22).floats(100_000)));
    place.import("t/c", &[&model, &bare], &[]);
    let mounted = place.mount(&[]);
    set(&mounted.path("t/c"), "lossy", "allow").unwrap();
    for name in ["a", "b", "bare"] {
        set(&mounted.path(Path::new("t/c").join(name)), "tier", tier).unwrap();
    }
    (place, mounted)
}

/// Reads a file; returns its content and whether the kernel read it by passthrough.
fn read(mounted: &Mounted, path: &Path) -> (Vec<u8>, bool) {
    let before = mounted.counter("passthrough_opens");
    let bytes = fs::read(path).unwrap();
    (bytes, mounted.counter("passthrough_opens") > before)
}

/// Waits until passthrough serves a file; returns its content.
#[track_caller]
fn read_by_kernel(mounted: &Mounted, path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    wait_until("the kernel reads it itself", || {
        let before = mounted.counter("reads");
        let (found, is_by_kernel) = read(mounted, path);
        bytes = found;
        // The counters were read twice before, and once for this.
        is_by_kernel && mounted.counter("reads") - before == 3
    });
    bytes
}

/// Names of the files with copies.
fn copies(mounted: &Mounted) -> Vec<PathBuf> {
    let listed = fs::read_dir(mounted.store.join("t/c/pinned")).into_iter().flatten();
    listed.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn pinned_files_are_read_without_the_daemon_and_keep_their_bytes() {
    let (place, mounted) = with_pinnable_files();
    let folder = mounted.path("t/c");
    let names = ["a", "b", "norm", "m.safetensors", "bare"];
    let before: Vec<Vec<u8>> = names.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect();
    let blocks: Vec<u64> =
        names.iter().map(|name| fs::metadata(folder.join(name)).unwrap().blocks()).collect();
    let epochs = fs::read(mounted.path("t/c/.ctl/blocks/a")).unwrap();
    assert_eq!(get(&mounted.path("t/c/a"), "pin"), "0");
    run(["pin".as_ref(), folder.join("m.safetensors").as_os_str()]).ok();
    assert_eq!(
        (get(&mounted.path("t/c/a"), "pin"), copies(&mounted).len()),
        ("1".into(), 1),
        "one copy for all"
    );
    // A tensor of a container that is pinned itself has its own copy.
    for name in ["a", "b", "norm", "bare"] {
        run(["pin".as_ref(), folder.join(name).as_os_str()]).ok();
    }
    let check = |mounted: &Mounted| {
        for (name, wanted) in names.iter().zip(&before) {
            let path = mounted.path(Path::new("t/c").join(name));
            assert_eq!(get(&path, "pin"), "1", "{name}");
            assert_same(&read_by_kernel(mounted, &path), wanted, name);
        }
    };
    check(&mounted);
    let bytes: usize = before.iter().map(Vec::len).sum();
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    assert!(status.contains(&format!("pinned bytes {bytes}\n")), "{status}");
    let now: Vec<u64> = names.iter().map(|name| fs::metadata(folder.join(name)).unwrap().blocks()).collect();
    assert_eq!(now, blocks);
    assert_eq!(fs::read(mounted.path("t/c/.ctl/blocks/a")).unwrap(), epochs);
    // Opened for writing it is served by the daemon, and the copy stays unchanged.
    let held: Vec<Vec<u8>> = copies(&mounted).iter().map(|path| fs::read(path).unwrap()).collect();
    let file = fs::File::options().read(true).write(true).open(mounted.path("t/c/a")).unwrap();
    let mut got = vec![0; before[0].len()];
    assert_eq!(read_at(&file, &mut got, 0), got.len());
    assert_same(&got, &before[0], "a");
    drop(file);
    assert_eq!(copies(&mounted).iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>(), held);
    check(&mounted);
    mounted.unmount();
    fsck(&place.store());
    let mounted = place.mount(&[]);
    check(&mounted);
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&["--read-only"]);
    check(&mounted);
    mounted.unmount();
    let mounted = place.mount(&[]);
    check(&mounted);
    // Unpinning a directory unpins all files below.
    run(["unpin".as_ref(), mounted.path("t/c").as_os_str()]).ok();
    assert_eq!(get(&mounted.path("t/c/a"), "pin"), "0");
    // A copy is removed after the kernel has closed it.
    wait_until("the copies' end", || copies(&mounted).is_empty());
    run(["pin".as_ref(), mounted.path("t/c").as_os_str()]).ok();
    for name in names {
        assert_eq!(get(&mounted.path(Path::new("t/c").join(name)), "pin"), "1", "{name}");
    }
    assert_same(&read_by_kernel(&mounted, &mounted.path("t/c/m.safetensors")), &before[3], "container");
    assert_eq!(copies(&mounted).len(), 2, "a copy for each container");
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn pinned_tensors_are_not_moved_and_may_be_renamed_and_removed() {
    let (place, mounted) = with_pinnable_files();
    let folder = mounted.path("t/c");
    let bare = mounted.path("t/c/bare");
    set(&bare, "pin", "1").unwrap();
    for (name, value) in [("tier", "q3"), ("evict", "discard")] {
        assert!(refused_set(&bare, name, value, Errno::BUSY).contains("pinned"));
    }
    assert_eq!(set(&bare, "pin", "2"), Err(Errno::INVAL));
    set(&folder.join("m.safetensors"), "pin", "1").unwrap();
    set(&mounted.path("t/c/a"), "pin", "0").unwrap();
    for path in [mounted.path("t/c/a"), folder.join("m.safetensors")] {
        assert!(refused_set(&path, "tier", "q3:all", Errno::BUSY).contains("pinned"));
    }
    let (one, other) = (folder.join("m.safetensors"), folder.join("n.safetensors"));
    let wanted = fs::read(&one).unwrap();
    fs::rename(&one, &other).unwrap();
    assert_same(&read_by_kernel(&mounted, &other), &wanted, "renamed");
    let open = fs::File::open(&other).unwrap();
    assert_eq!(copies(&mounted).len(), 2);
    fs::remove_file(&other).unwrap();
    fs::remove_file(folder.join("bare.npy")).unwrap();
    let mut got = vec![0; wanted.len()];
    assert_eq!(read_at(&open, &mut got, 0), got.len());
    assert_same(&got, &wanted, "removed");
    drop(open);
    wait_until("the copies go", || {
        fs::write(mounted.path(".ctl/sync"), "1").unwrap();
        copies(&mounted).is_empty()
    });
    mounted.unmount();
    place.mount(&[]).unmount();
    fsck(&place.store());
}

#[test]
fn writes_to_a_pinned_tensor_are_read_and_copied_again() {
    let (place, mounted) = with_pinnable_files();
    let folder = mounted.path("t/c");
    let container = folder.join("m.safetensors");
    set(&container, "pin", "1").unwrap();
    set(&mounted.path("t/c/a"), "pin", "1").unwrap();
    let (mut a, mut whole) = (fs::read(mounted.path("t/c/a")).unwrap(), fs::read(&container).unwrap());
    let begin = whole.windows(64).position(|part| part == &a[..64]).unwrap();
    let old = fs::File::open(&container).unwrap();
    let mapped = Mapping::of(&container, libc::MAP_SHARED);
    for round in 0..3_u8 {
        let at = 1000 + 70_000 * usize::from(round);
        a[at..at + 9].fill(round + 1);
        whole[begin + at..begin + at + 9].fill(round + 1);
        let by_container = round == 1;
        let (path, place) =
            if by_container { (&container, begin + at) } else { (&mounted.path("t/c/a"), at) };
        let file = fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(&[round + 1; 9], place as u64).unwrap();
        drop(file);
        assert_same(&fs::read(mounted.path("t/c/a")).unwrap(), &a, "a");
        assert_same(&fs::read(&container).unwrap(), &whole, "container");
        assert_eq!(get(&mounted.path("t/c/a"), "pin"), "1");
        assert_same(&read_by_kernel(&mounted, &mounted.path("t/c/a")), &a, "a, copied anew");
        if round == 2 {
            break;
        }
    }
    // A program that has it open and mapped sees the version of the open, or a later one.
    let mut got = vec![0; whole.len()];
    assert_eq!(read_at(&old, &mut got, 0), got.len());
    assert_eq!(mapped.bytes().len(), whole.len());
    drop((old, mapped));
    assert_same(&read_by_kernel(&mounted, &container), &whole, "container, copied anew");
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    assert_same(&fs::read(mounted.path("t/c/a")).unwrap(), &a, "a, after a kill");
    assert_same(&read_by_kernel(&mounted, &mounted.path("t/c/m.safetensors")), &whole, "container");
    mounted.unmount();
    fsck(&place.store());
}

/// Opened for writing, so that the daemon serves it, and with O_DIRECT.
fn read_by_daemon(path: &Path) -> fs::File {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    file
}

#[test]
fn flipped_bits_of_a_pinned_tensor_heal_from_its_copy() {
    for tier in ["q8", "q3", "q3x"] {
        let (place, mounted) = with_encoded_tensors(tier);
        let folder = mounted.path("t/c");
        // A block with a patch.
        let file = fs::File::options().write(true).open(mounted.path("t/c/bare")).unwrap();
        file.write_all_at(&[1; 8], 7 * 16_384 + 64).unwrap();
        drop(file);
        let names = ["a", "bare", "norm"];
        let wanted = names.map(|name| fs::read(folder.join(name)).unwrap());
        for name in ["m.safetensors", "bare.npy"] {
            set(&folder.join(name), "pin", "1").unwrap();
        }
        flip(&mounted, "a", &[1, 3]);
        flip(&mounted, "bare", &[2, 7]);
        flip(&mounted, "norm", &[0]);
        for (name, wanted) in names.iter().zip(&wanted).take(2) {
            let file = read_by_daemon(&mounted.path(Path::new("t/c").join(name)));
            for index in [1, 2, 3, 7] {
                let mut got = vec![0; 16_384];
                assert_eq!(read_at(&file, &mut got, index * 16_384), got.len(), "{tier} {name} {index}");
                assert_same(&got, &wanted[index as usize * 16_384..][..16_384], name);
            }
        }
        wait_until("what was read was rewritten", || {
            ["a", "bare"].iter().all(|name| verified(&mounted, name) == "ok")
        });
        assert_eq!(verified(&mounted, "norm"), "corrupt 1 of 1");
        fs::write(mounted.path(".ctl/scrub"), "start").unwrap();
        wait_until("a scrub heals", || verified(&mounted, "norm") == "ok");
        assert_eq!([count_events(&mounted, "repair", "a"), count_events(&mounted, "repair", "bare")], [2, 2]);
        // The copies are unchanged: readers saw no change.
        assert_eq!(copies(&mounted).len(), 2, "{tier}");
        mounted.unmount();
        fsck(&place.store());
        let mounted = place.mount(&["--passthrough", "off"]);
        for (name, wanted) in names.iter().zip(&wanted) {
            assert_same(&fs::read(mounted.path(Path::new("t/c").join(name))).unwrap(), wanted, name);
        }
    }
}

#[test]
fn a_copy_with_a_flipped_bit_is_never_served_and_is_made_again() {
    let (place, mounted) = with_pinnable_files();
    let path = mounted.path("t/c/bare");
    let wanted = fs::read(&path).unwrap();
    set(&path, "pin", "1").unwrap();
    let copy = copies(&mounted).remove(0);
    mounted.unmount();
    let mut bytes = fs::read(&copy).unwrap();
    bytes[123_456] ^= 1;
    fs::write(&copy, bytes).unwrap();
    let found = run(["fsck".as_ref(), place.store().as_os_str()]);
    assert_eq!(found.code, Some(3));
    assert!(found.out.contains("t/c/bare: ") && found.out.contains("BLAKE3"), "{}", found.out);
    let mounted = place.mount(&[]);
    let path = mounted.path("t/c/bare");
    // No block is rebuilt from it either.
    flip(&mounted, "bare", &[4]);
    assert_eq!(block(&path, 4), Err(Errno::IO));
    assert_eq!(count_events(&mounted, "corruption", "bare"), 2);
    assert_eq!(block(&path, 3).unwrap(), wanted[3 * 16_384..4 * 16_384]);
    flip(&mounted, "bare", &[4]);
    for _ in 0..20 {
        assert_same(&fs::read(&path).unwrap(), &wanted, "meanwhile");
    }
    mounted.unmount();
    let mounted = place.mount(&[]);
    let path = mounted.path("t/c/bare");
    assert_same(&read_by_kernel(&mounted, &path), &wanted, "made anew");
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn a_copy_damaged_during_the_mount_heals_no_block() {
    for tier in ["exact", "q3"] {
        let (_place, mounted) = with_encoded_tensors(tier);
        let path = mounted.path("t/c/bare");
        let wanted = fs::read(&path).unwrap();
        set(&path, "pin", "1").unwrap();
        let copy = fs::File::options().read(true).write(true).open(copies(&mounted).remove(0)).unwrap();
        // In another, unverified block, and in this one.
        for at in [5, 4 * 16_384 + 100] {
            let mut byte = [0];
            copy.read_exact_at(&mut byte, at).unwrap();
            copy.write_all_at(&[byte[0] ^ 4], at).unwrap();
        }
        flip(&mounted, "bare", &[4]);
        let file = read_by_daemon(&path);
        let mut got = vec![0; 16_384];
        assert_eq!(file.read_exact_at(&mut got, 4 * 16_384).unwrap_err().raw_os_error(), Some(5), "{tier}");
        file.read_exact_at(&mut got, 3 * 16_384).unwrap();
        assert_same(&got, &wanted[3 * 16_384..4 * 16_384], tier);
    }
}

#[test]
fn a_copy_whose_pin_has_ended_is_not_told_as_corrupt() {
    let (place, mounted) = with_pinnable_files();
    set(&mounted.path("t/c/bare.npy"), "pin", "1").unwrap();
    assert_eq!(copies(&mounted).len(), 1);
    mounted.unmount();
    let disk: Arc<dyn Disk> = Arc::new(FileDisk::new(&place.store()));
    let store = Store::open(disk, Access::Write, "a test").unwrap();
    let collection = store.collection("t", "c").unwrap();
    let node = collection.state().directory(ROOT).unwrap().get(b"bare.npy").unwrap();
    let copy = collection.state().copy_of(Pin::file(node)).unwrap().clone();
    fs::remove_dir_all(place.store().join("t/c/pinned")).unwrap();
    let told = || collection.event_log().range().1;
    let before = told();
    // The root has no copy, as a file whose pin ended between the look at the log and the open of the copy.
    assert!(!collection.is_still_sound(Pin::file(ROOT), &copy, &|| false));
    assert_eq!(told(), before);
    assert!(!collection.is_still_sound(Pin::file(node), &copy, &|| false));
    assert!(told() > before);
}

#[test]
fn readers_get_no_error_while_files_are_pinned_and_written() {
    let (place, mounted) = with_pinnable_files();
    let path = mounted.path("t/c/a");
    let wanted = fs::read(&path).unwrap();
    let ends = AtomicBool::new(false);
    let is_right = |bytes: &[u8]| {
        // The writer fills the first 4096 bytes with one value.
        bytes[4096..] == wanted[4096..]
            && (bytes[..4096] == wanted[..4096] || bytes[..4096].iter().all(|byte| *byte < 50))
    };
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (path, ends) = (&path, &ends);
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    match reader {
                        0 => assert!(is_right(&fs::read(path).unwrap())),
                        1 => assert!(is_right(Mapping::of(path, libc::MAP_SHARED).bytes())),
                        2 => assert!(is_right(Mapping::of(path, libc::MAP_PRIVATE).bytes())),
                        _ => drop(open_direct(path)),
                    }
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(5) * scale();
        let mut round = 0_u8;
        while Instant::now() < until {
            round = (round + 1) % 50;
            set(&path, "pin", "1").unwrap();
            if round.is_multiple_of(3) {
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.write_all_at(&[round; 4096], 0).unwrap();
            }
            if round.is_multiple_of(2) {
                set(&path, "pin", "0").unwrap();
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn a_full_store_refuses_pins_with_a_reason() {
    let place = Place::new();
    let store = place.store();
    fs::create_dir(&store).unwrap();
    rustix::mount::mount("tmpfs", &store, "tmpfs", rustix::mount::MountFlags::empty(), c"size=15m").unwrap();
    run(["init".as_ref(), store.as_os_str()]).ok();
    let one = place.write("in/one.npy", npy_file(&Random(31).floats(1_000_000)));
    let two = place.write("in/two.npy", npy_file(&Random(32).floats(1_000_000)));
    place.import("t/c", &[&one, &two], &[]);
    let mounted = place.mount(&[]);
    let (one, two) = (mounted.path("t/c/one"), mounted.path("t/c/two"));
    let wanted = fs::read(&two).unwrap();
    set(&one, "pin", "1").unwrap();
    assert!(refused_set(&two, "pin", "1", Errno::NOSPC).contains("pinned"));
    assert_eq!((get(&one, "pin"), get(&two, "pin"), copies(&mounted).len()), ("1".into(), "0".into(), 1));
    set(&one, "pin", "0").unwrap();
    let array = mounted.path("t/c/two.npy");
    set(&array, "pin", "1").unwrap();
    assert_eq!((get(&array, "pin"), get(&two, "pin"), copies(&mounted).len()), ("1".into(), "1".into(), 1));
    set(&array, "pin", "0").unwrap();
    // There is room for one of two copies.
    run(["pin".as_ref(), mounted.path("t").join("c").as_os_str()]).failed(1, &["space"]);
    assert_eq!(copies(&mounted).len(), 0);
    set(&two, "pin", "1").unwrap();
    assert_same(&read_by_kernel(&mounted, &two), &wanted, "two");
    mounted.unmount();
    fsck(&place.store());
    rustix::mount::unmount(&store, rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_daemon_that_is_killed_while_it_pins_leaves_files_pinned_or_not() {
    let (place, mut mounted) = with_pinnable_files();
    let wanted = fs::read(mounted.path("t/c/m.safetensors")).unwrap();
    for round in 0..8_u64 {
        let container = mounted.path("t/c/m.safetensors");
        let value = if get(&container, "pin") == "1" { "0" } else { "1" };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The daemon may be killed before it answers.
                set(&container, "pin", value).unwrap_or_default();
            });
            std::thread::sleep(Duration::from_millis(round * 3));
            mounted.kill();
        });
        drop(mounted);
        fsck(&place.store());
        mounted = place.mount(&[]);
        let container = mounted.path("t/c/m.safetensors");
        let is_pinned = get(&container, "pin") == "1";
        assert_eq!(copies(&mounted).len(), usize::from(is_pinned), "round {round}");
        assert_same(&fs::read(&container).unwrap(), &wanted, "container");
        if is_pinned {
            assert_same(&read_by_kernel(&mounted, &container), &wanted, "copy");
        }
    }
}
