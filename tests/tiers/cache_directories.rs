//! Directories with `policy=cache:SIZE`, under programs that write and read.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::{Place, Random, get, npy_file, run, set, wait_until};

const FILE: usize = 200 << 10;

/// A store with an empty collection `kv/cache`, which is mounted.
fn cache(limit: &str) -> (Place, support::Mounted) {
    let place = Place::new();
    run(["init".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    fs::create_dir_all(mounted.path("kv/cache")).unwrap();
    set(&mounted.path("kv/cache"), "policy", limit).unwrap();
    (place, mounted)
}

/// The bytes of a file, from its name.
fn bytes_of(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
    Random(seed).bytes(FILE)
}

/// Writes a file as engines do: under another name first.
fn put(directory: &Path, name: &str) {
    let new = directory.join(format!("{name}.tmp"));
    let mut file = fs::File::options().write(true).create_new(true).open(&new).unwrap();
    file.write_all(&bytes_of(name)).unwrap();
    drop(file);
    fs::rename(&new, directory.join(name)).unwrap();
}

/// The names and the sum of the sizes of the files below a directory.
fn held(directory: &Path) -> (Vec<String>, u64) {
    let (mut names, mut bytes) = (Vec::new(), 0);
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        // A file may go between the two requests.
        let Ok(found) = fs::symlink_metadata(entry.path()) else { continue };
        if found.is_dir() {
            let (below, more) = held(&entry.path());
            names.extend(below);
            bytes += more;
        } else {
            names.push(entry.file_name().into_string().unwrap());
            bytes += found.len();
        }
    }
    names.sort();
    (names, bytes)
}

#[test]
fn a_cache_holds_its_limit_and_a_file_a_writer_while_readers_see_whole_files_or_none() {
    const WRITERS: usize = 4;
    let (_place, mounted) = cache("cache:4M");
    let root = mounted.path("kv/cache");
    for writer in 0..WRITERS {
        fs::create_dir(root.join(format!("w{writer}"))).unwrap();
    }
    let (is_over, reads, most) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let directory = root.join(format!("w{writer}"));
                scope.spawn(move || (0..60).for_each(|number| put(&directory, &format!("{writer}-{number}"))))
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(held(&root).1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let mut random = Random(5);
            while !is_over.load(Ordering::Relaxed) {
                let (writer, number) = (random.next() % WRITERS as u64, random.next() % 60);
                let name = format!("{writer}-{number}");
                match fs::read(root.join(format!("w{writer}/{name}"))) {
                    Ok(found) => {
                        assert!(found == bytes_of(&name), "{name} has {} bytes", found.len());
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{name}"),
                }
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(reads.into_inner() > 0);
    // A listing takes a while: it counts a file under both of its names, and files that went beside those that came for them.
    // 47 MiB are written in all.
    let most = most.into_inner();
    assert!(most <= 2 * (4 << 20), "{most}");
    wait_until("it is within its limit", || held(&root).1 <= 4 << 20);
    assert!(held(&root).1 > (4 << 20) - 2 * FILE as u64, "more was removed than needed");
}

#[test]
fn an_open_keeps_a_file_longer_than_files_that_were_written_after_it() {
    let (place, mounted) = cache(&format!("cache:{}", 5 * FILE));
    let root = mounted.path("kv/cache");
    ["a", "b", "c", "d", "e"].into_iter().for_each(|name| put(&root, name));
    // The second open is served by the kernel.
    for _ in 0..2 {
        assert!(fs::read(root.join("a")).unwrap() == bytes_of("a"));
    }
    put(&root, "f");
    wait_until("the oldest is gone", || held(&root).0 == ["a", "c", "d", "e", "f"]);
    mounted.unmount();
    let mounted = place.mount(&[]);
    let root = mounted.path("kv/cache");
    put(&root, "g");
    wait_until("one more is gone", || held(&root).0.len() == 5);
    assert!(held(&root).0.contains(&"g".to_owned()));
}

#[test]
fn bytes_that_a_rename_takes_into_a_cache_count_and_those_below_another_policy_do_not() {
    let (_place, mounted) = cache("manual");
    let root = mounted.path("kv/cache");
    let [inside, kept, beside] = ["inside", "inside/kept", "beside"].map(|name| root.join(name));
    [&inside, &kept, &beside].into_iter().for_each(|directory| fs::create_dir(directory).unwrap());
    set(&inside, "policy", &format!("cache:{}", 3 * FILE)).unwrap();
    set(&kept, "policy", "manual").unwrap();
    ["k1", "k2", "k3", "k4"].into_iter().for_each(|name| put(&kept, name));
    ["b1", "b2", "b3", "b4", "b5"].into_iter().for_each(|name| put(&beside, name));
    ["a", "b", "c"].into_iter().for_each(|name| put(&inside, name));
    std::thread::sleep(std::time::Duration::from_millis(1200));
    assert_eq!(held(&root).0.len(), 12, "the cache is within its limit");
    fs::rename(beside.join("b1"), inside.join("b1")).unwrap();
    wait_until("the first is gone", || held(&inside).0 == ["b", "b1", "c", "k1", "k2", "k3", "k4"]);
    set(&kept, "policy", "cache:100%").unwrap();
    assert_eq!(get(&kept, "policy"), "cache:100%");
    set(&inside, "policy", "cache:0").unwrap();
    wait_until("only the other policy's are left", || held(&inside).0 == ["k1", "k2", "k3", "k4"]);
    assert_eq!(held(&beside).0.len(), 4);
}

#[test]
fn a_cache_says_its_limit_as_its_size_and_keeps_pinned_and_open_containers() {
    let (_place, mounted) = cache("cache:1M");
    let root = mounted.path("kv/cache");
    let found = rustix::fs::statvfs(&root).unwrap();
    assert_eq!((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize), (1 << 20, 1 << 20));
    let array = npy_file(&Random(3).floats(60_000));
    ["pinned.npy", "open.npy", "other.npy"]
        .into_iter()
        .for_each(|name| fs::write(root.join(name), &array).unwrap());
    let found = rustix::fs::statvfs(&root).unwrap();
    let left = found.f_bavail * found.f_frsize;
    assert!(left < (1 << 20) - 3 * 240_000 && left > (1 << 20) - 3 * 260_000, "{left}");
    fs::remove_file(root.join("open.npy")).unwrap();
    let found = rustix::fs::statvfs(&root).unwrap();
    assert!(found.f_bavail * found.f_frsize > left + 230_000);
    fs::write(root.join("open.npy"), &array).unwrap();
    set(&root.join("pinned.npy"), "pin", "1").unwrap();
    let open = fs::File::open(root.join(".tensors/open")).unwrap();
    for number in 0..12 {
        put(&root, &format!("more{number}"));
    }
    wait_until("the others are gone", || !root.join("other.npy").exists());
    wait_until("it is within its limit", || held(&root).1 <= 1 << 20);
    assert_eq!(fs::read(root.join("pinned.npy")).unwrap(), array);
    assert_eq!(fs::read(root.join("open.npy")).unwrap(), array);
    drop(open);
}

#[test]
fn names_of_files_elsewhere_count_and_give_back_only_what_the_cache_loses() {
    let (_place, mounted) = cache("manual");
    let root = mounted.path("kv/cache");
    let [inside, beside] = ["inside", "beside"].map(|name| root.join(name));
    [&inside, &beside].into_iter().for_each(|directory| fs::create_dir(directory).unwrap());
    set(&inside, "policy", &format!("cache:{}", 3 * FILE)).unwrap();
    ["b1", "b2"].into_iter().for_each(|name| put(&beside, name));
    ["a", "b", "c"].into_iter().for_each(|name| put(&inside, name));
    fs::hard_link(beside.join("b1"), inside.join("b1")).unwrap();
    wait_until("the first is gone", || held(&inside).0 == ["b", "b1", "c"]);
    // The next victim keeps its bytes by another name.
    fs::hard_link(inside.join("b"), beside.join("b")).unwrap();
    fs::read(inside.join("c")).unwrap();
    put(&inside, "d");
    wait_until("one more is gone", || held(&inside).0.len() == 3);
    assert_eq!(held(&beside).0, ["b", "b1", "b2"]);
    assert!(fs::read(beside.join("b")).unwrap() == bytes_of("b"));
}

#[test]
fn a_cache_of_pinned_files_takes_new_ones_and_the_kernel_forgets_names_that_went() {
    let (_place, mounted) = cache(&format!("cache:{}", 2 * FILE));
    let root = mounted.path("kv/cache");
    ["p1", "p2"].into_iter().for_each(|name| put(&root, name));
    ["p1", "p2"].into_iter().for_each(|name| set(&root.join(name), "pin", "1").unwrap());
    for number in 0..20 {
        put(&root, &format!("n{number}"));
        assert!(fs::metadata(root.join("p1")).is_ok());
    }
    set(&root, "policy", &format!("cache:{}", 4 * FILE)).unwrap();
    put(&root, "last");
    wait_until("it is within its limit", || held(&root).1 <= 4 * FILE as u64);
    // The kernel may keep a name for ten seconds.
    wait_until("the kernel knows only the names that are there", || {
        let (names, _) = held(&root);
        let agrees = |name: String| fs::metadata(root.join(&name)).is_ok() == names.contains(&name);
        (0..20).all(|number| agrees(format!("n{number}")))
    });
    let (names, _) = held(&root);
    assert!(names.contains(&"p1".to_owned()) && names.contains(&"p2".to_owned()));
}
