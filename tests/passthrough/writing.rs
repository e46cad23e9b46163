//! Passthrough readers while others write, rename and remove.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::fixture::{Fixture, number};
use support::{Mapping, Place, WritableMapping, assert_same, goes_on, open_direct, read_at};

fn open_to_write(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn all_of(file: &fs::File, bytes: usize) -> Vec<u8> {
    let mut got = vec![0; bytes];
    let count = read_at(file, &mut got, 0);
    got.truncate(count);
    got
}

#[test]
fn a_writer_never_reaches_the_physical_file_and_earlier_readers_keep_what_they_opened() {
    let fixture = Fixture::new(&[]);
    let (name, before) = ("sub/vocab.txt", fixture.source("sub/vocab.txt"));
    let path = fixture.path(name);
    fixture.check(name);
    let stored = fixture.data();
    let (opens, reader) = fixture.by_kernel(|| fs::File::open(&path).unwrap());
    let mapping = Mapping::of(&path, libc::MAP_SHARED);
    assert_eq!(opens, 1);
    let writer = open_to_write(&path);
    let mut after = before.clone();
    after[..10].copy_from_slice(b"0123456789");
    writer.write_all_at(b"0123456789", 0).unwrap();
    // A reader that opens the file during the write sees the write at once.
    let beside = fs::File::open(&path).unwrap();
    assert_same(&all_of(&beside, before.len()), &after, "beside the writer");
    writer.write_all_at(b"XYZ", 50_000).unwrap();
    after[50_000..50_003].copy_from_slice(b"XYZ");
    assert_same(&all_of(&beside, before.len()), &after, "beside the writer, again");
    let mut mapped = WritableMapping::whole(&writer, libc::MAP_SHARED);
    mapped.bytes()[99_000] = !before[99_000];
    after[99_000] = !before[99_000];
    drop((mapped, writer));
    for _ in 0..2 {
        // With O_DIRECT, so that the daemon verifies the blocks at their new places.
        assert_same(&all_of(&open_direct(&path), 1 << 20), &after, "checked again");
        let (opens, now) = fixture.by_kernel(|| fs::read(&path).unwrap());
        assert_same(&now, &after, "after the writer");
        assert_eq!(opens, 0);
    }
    assert_same(&all_of(&reader, before.len()), &before, "an earlier descriptor");
    assert_same(mapping.bytes(), &before, "an earlier mapping");
    assert!(stored == fixture.data(), "the physical file changed");
}

#[test]
fn a_writable_descriptor_that_writes_nothing_changes_nothing() {
    let fixture = Fixture::new(&[]);
    let path = fixture.path("x.npy");
    fixture.check("x.npy");
    let reader = fs::File::open(&path).unwrap();
    for _ in 0..3 {
        let (opens, writer) = fixture.by_kernel(|| open_to_write(&path));
        assert_eq!(opens, 0);
        let (opens, _) = fixture.by_kernel(|| fs::File::open(&path).unwrap());
        assert_eq!(opens, 0, "a reader beside a writer");
        drop(writer);
        // The kernel reports it late.
        support::wait_until("the end of the writer", || {
            fixture.by_kernel(|| fs::read(&path).unwrap()).0 == 1
        });
    }
    assert_same(&all_of(&reader, 1 << 20), &fixture.source("x.npy"), "a descriptor");
}

#[test]
fn a_writer_of_a_tensor_ends_passthrough_of_its_container() {
    let fixture = Fixture::new(&[]);
    let container = fixture.path("model.safetensors");
    fixture.check("model.safetensors");
    let (opens, reader) = fixture.by_kernel(|| fs::File::open(&container).unwrap());
    assert_eq!(opens, 1);
    let before = fixture.source("model.safetensors");
    let writer = open_to_write(&fixture.path("a"));
    let (opens, beside) = fixture.by_kernel(|| fs::File::open(&container).unwrap());
    assert_eq!(opens, 0);
    writer.write_all_at(&[1, 2, 3, 4], 400).unwrap();
    drop(writer);
    let mut after = before.clone();
    let at = before.len() - (1000 + 5001 + 8) * 4 + 400;
    after[at..at + 4].copy_from_slice(&[1, 2, 3, 4]);
    assert_same(&all_of(&open_direct(&container), 1 << 20), &after, "the container, checked again");
    let (opens, read) = fixture.by_kernel(|| fs::read(&container).unwrap());
    assert_same(&read, &after, "the container");
    assert_eq!(opens, 0);
    assert_same(&all_of(&beside, before.len()), &after, "open beside the writer");
    assert_same(&all_of(&reader, before.len()), &before, "open before");
}

#[test]
fn sizes_modes_times_and_links_change_by_name_as_before() {
    let fixture = Fixture::new(&[]);
    let path = fixture.path("sub/vocab.txt");
    let before = fixture.source("sub/vocab.txt");
    fixture.check("sub/vocab.txt");
    let daemon = open_direct(&path);
    let (opens, reader) = fixture.by_kernel(|| fs::File::open(&path).unwrap());
    assert_eq!(opens, 1);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    reader.set_times(fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH)).unwrap();
    fs::hard_link(&path, fixture.path("sub/second")).unwrap();
    for found in [fs::metadata(&path).unwrap(), reader.metadata().unwrap(), daemon.metadata().unwrap()]
        .iter()
        .chain([&fs::metadata(fixture.path("sub/second")).unwrap()])
    {
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o640, 12, 34));
        assert_eq!((found.mtime(), found.nlink(), found.ino()), (0, 2, number(&path)));
    }
    assert_same(&fixture.read_by_kernel(&fixture.path("sub/second")), &before, "the second name");
    let short = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends with a zero byte.
    assert_eq!(unsafe { libc::truncate(short.as_ptr(), 1000) }, 0);
    assert_eq!(all_of(&daemon, before.len()), &before[..1000]);
    for path in [&path, &fixture.path("sub/second")] {
        let (opens, now) = fixture.by_kernel(|| fs::read(path).unwrap());
        assert_eq!((opens, &now[..]), (0, &before[..1000]));
    }
    let longer = open_to_write(&path);
    longer.set_len(70_000).unwrap();
    let mut wanted = before[..1000].to_vec();
    wanted.resize(70_000, 0);
    assert_same(&fs::read(&path).unwrap(), &wanted, "grown again");
    assert_same(&all_of(&daemon, before.len()), &wanted, "grown again, open");
    assert_same(&all_of(&reader, before.len()), &before, "the first version");
}

#[test]
fn a_file_that_is_overwritten_in_place_is_another_for_later_readers_only() {
    let fixture = Fixture::new(&[]);
    for name in ["sub/vocab.txt", "model.safetensors"] {
        let (path, before) = (fixture.path(name), fixture.source(name));
        fixture.check(name);
        let (opens, reader) = fixture.by_kernel(|| fs::File::open(&path).unwrap());
        let mapping = Mapping::of(&path, libc::MAP_SHARED);
        assert_eq!(opens, 1);
        let after: Vec<u8> = before.iter().map(|byte| !byte).collect();
        for content in [&after, &before, &after] {
            // Creates it if it is missing, truncates and writes it.
            fs::write(&path, content).unwrap();
            assert_same(&fs::read(&path).unwrap(), content, name);
        }
        assert_same(&all_of(&reader, 1 << 20), &before, name);
        assert_same(mapping.bytes(), &before, name);
        // A read through the daemon verifies the file, and later opens use passthrough once the earlier version is
        // closed.
        assert_same(&all_of(&open_direct(&path), 1 << 20), &after, name);
        assert_eq!(fixture.by_kernel(|| fs::read(&path).unwrap()), (0, after.clone()), "{name}");
        drop((reader, mapping));
        support::wait_until("the new version from the kernel", || {
            let (opens, read) = fixture.by_kernel(|| fs::read(&path).unwrap());
            assert_same(&read, &after, name);
            opens == 1
        });
    }
}

#[test]
fn appended_bytes_are_read_by_all_and_the_file_keeps_passthrough() {
    let fixture = Fixture::new(&[]);
    let path = fixture.path("sub/vocab.txt");
    let mut wanted = fixture.source("sub/vocab.txt");
    fixture.check("sub/vocab.txt");
    let (opens, reader) = fixture.by_kernel(|| fs::File::open(&path).unwrap());
    assert_eq!(opens, 1);
    for round in 0..5_u8 {
        let more = vec![round; 30_001];
        wanted.extend_from_slice(&more);
        let mut writer = fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut writer, &more).unwrap();
        drop(writer);
        assert_eq!(reader.metadata().unwrap().len(), wanted.len() as u64);
        assert_same(&all_of(&reader, 1 << 20), &wanted, "the earlier descriptor");
        let direct = open_direct(&path);
        assert_same(&all_of(&direct, 1 << 20), &wanted, "the daemon");
        drop(direct);
        assert_same(&fixture.read_by_kernel(&path), &wanted, "a later descriptor");
    }
}

#[test]
fn a_replaced_or_removed_file_stays_readable_through_its_descriptors() {
    let fixture = Fixture::new(&[]);
    let (path, before) = (fixture.path("sub/vocab.txt"), fixture.source("sub/vocab.txt"));
    fixture.check("sub/vocab.txt");
    let (opens, first) = fixture.by_kernel(|| fs::File::open(&path).unwrap());
    let mapping = Mapping::of(&path, libc::MAP_SHARED);
    assert_eq!(opens, 1);
    let newer = vec![9; 200_000];
    fs::write(fixture.path("sub/new"), &newer).unwrap();
    fs::rename(fixture.path("sub/new"), &path).unwrap();
    assert_same(&fs::read(&path).unwrap(), &newer, "the new file");
    assert_same(&all_of(&first, 1 << 20), &before, "the old file");
    assert_eq!(first.metadata().unwrap().nlink(), 0);
    // With O_DIRECT, so that the daemon verifies it.
    assert_same(&all_of(&open_direct(&path), 1 << 20), &newer, "checked");
    assert_same(&fixture.read_by_kernel(&path), &newer, "the new file, again");
    let second = fs::File::open(&path).unwrap();
    // The kernel has cached it, and no program has it open.
    let known =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(fixture.path("x.npy")).unwrap();
    fixture.check("x.npy");
    let pinned =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(fixture.path("x.npy")).unwrap();
    let (opens, _) = fixture.by_kernel(|| fs::read(fixture.path("x.npy")).unwrap());
    assert_eq!(opens, 1);
    let third =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(fixture.path("x.npy")).unwrap();
    fs::remove_file(fixture.path("x.npy")).unwrap();
    fs::remove_file(&path).unwrap();
    // This releases the space of files that no program has open.
    fs::write(fixture.path("sub/other"), vec![1; 300_000]).unwrap();
    fs::File::open(fixture.path("sub/other")).unwrap().sync_all().unwrap();
    fs::write(fixture.path("sub/another"), vec![2; 300_000]).unwrap();
    let reopen = |file: &fs::File| fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let again = reopen(&second);
    let array = fixture.source("x.npy");
    for file in [&known, &pinned, &third] {
        assert_same(&all_of(&reopen(file), 1 << 20), &array, "opened for the first time");
    }
    for (file, wanted) in [(&first, &before), (&second, &newer), (&again, &newer)] {
        assert_same(&all_of(file, 1 << 20), wanted, "without a name");
    }
    assert_same(mapping.bytes(), &before, "mapped without a name");
    assert_eq!(second.metadata().unwrap().nlink(), 0);
    drop((first, second, again, mapping, known, pinned, third));
    fixture.mounted.unmount();
    let fsck = support::run(["fsck".as_ref(), fixture.place.store().as_os_str()]);
    fsck.ok();
}

#[test]
fn a_move_to_another_tier_keeps_the_old_bytes_for_open_readers() {
    let place = Place::new();
    let before = support::container_of(&mut support::Random(5), &[("a", 300_000)]);
    place.import("demo/model", &[&place.write("m.safetensors", &before)], &[]);
    let mounted = place.mount(&[]);
    let path = mounted.path("demo/model/m.safetensors");
    assert_same(&fs::read(&path).unwrap(), &before, "checked");
    let opens = || mounted.stats()["passthrough_opens"].as_u64().unwrap();
    let before_both = opens();
    let reader = fs::File::open(&path).unwrap();
    let mapping = Mapping::of(&path, libc::MAP_SHARED);
    assert_eq!(opens(), before_both + 2);
    let flags = rustix::fs::XattrFlags::empty();
    let tensor = mounted.path("demo/model/a");
    rustix::fs::setxattr(&tensor, "user.tierfs.lossy", b"allow", flags).unwrap();
    rustix::fs::setxattr(&tensor, "user.tierfs.tier", b"q8", flags).unwrap();
    // This releases unused space.
    let make_room = || {
        fs::write(mounted.path("demo/model/other"), b"x").unwrap();
        fs::File::open(mounted.path("demo/model/other")).unwrap().sync_all().unwrap();
    };
    make_room();
    let after = fs::read(&path).unwrap();
    assert_eq!(opens(), before_both + 2);
    assert_ne!(after, before);
    assert_same(&after[before.len() - 1_200_000..], &fs::read(&tensor).unwrap(), "the container");
    assert_same(&all_of(&reader, 2 << 20), &before, "an earlier descriptor");
    assert_same(mapping.bytes(), &before, "an earlier mapping");
    let stored = || -> u64 {
        let files = fs::read_dir(place.store().join("demo/model/data")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
    };
    assert!(stored() >= 1_200_000, "{}", stored());
    drop((reader, mapping));
    support::wait_until("the end of the bytes where they were", || {
        make_room();
        stored() < 300_000
    });
    assert_same(&fs::read(&path).unwrap(), &after, "afterwards");
}

#[test]
fn closed_and_removed_files_take_no_space() {
    let fixture = Fixture::new(&[]);
    fixture.check("sub/vocab.txt");
    let before = fixture.data().len();
    let reader = fs::File::open(fixture.path("sub/vocab.txt")).unwrap();
    fs::remove_file(fixture.path("sub/vocab.txt")).unwrap();
    drop(reader);
    support::wait_until("the end of the data file", || {
        fs::write(fixture.path("sub/other"), b"x").unwrap();
        fs::File::open(fixture.path("sub/other")).unwrap().sync_all().unwrap();
        fs::remove_file(fixture.path("sub/other")).unwrap();
        fs::File::open(fixture.path("sub")).unwrap().sync_all().unwrap();
        fixture.data().len() < before
    });
}

mod heavy {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    const BYTES: usize = 300_000;

    fn content(at: usize) -> u8 {
        (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]
    }

    /// Opens, reads and maps; all bytes of a version are the same. The bytes of the mapping.
    fn read_once(path: &Path, round: u64) {
        let file = match round % 4 {
            0 => open_direct(path),
            _ => fs::File::open(path).unwrap_or_else(|error| panic!("opening: {error}")),
        };
        let mut got = vec![0; 2 * BYTES];
        let count = read_at(&file, &mut got, 0);
        assert!(count >= BYTES, "{count} bytes");
        let wrong = got[..count].iter().enumerate().position(|(at, byte)| *byte != content(at));
        assert_eq!(wrong, None, "of {count} bytes, round {round}");
        if round % 4 == 1 {
            let mapping = Mapping::of(path, libc::MAP_SHARED);
            for at in (0..BYTES).step_by(4096) {
                assert_eq!(mapping.bytes()[at], content(at));
            }
        }
    }

    #[test]
    fn readers_get_no_error_while_a_writer_opens_writes_renames_and_closes() {
        let place = Place::new();
        let bytes: Vec<u8> = (0..2 * BYTES).map(content).collect();
        place.import("demo/model", &[&place.write("vocab.txt", &bytes[..BYTES])], &[]);
        let mounted = place.mount(&["--threads", "4"]);
        let path = mounted.path("demo/model/vocab.txt");
        let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let opens = || mounted.stats()["passthrough_opens"].as_u64().unwrap();
        let mut rounds = 0;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) {
                        read_once(&path, round);
                        round += 1;
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // The readers end in any case.
            let writing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let until = Instant::now() + Duration::from_secs(10);
                while goes_on(until, rounds, 10) || reads.load(Ordering::Relaxed) < 40 || opens() < 10 {
                    rounds += 1;
                    let writer = open_to_write(&path);
                    let len = writer.metadata().unwrap().len() as usize;
                    match rounds % 5 {
                        0 => writer.write_all_at(&bytes[5000..9000], 5000).unwrap(),
                        1 if len + 4001 < 2 * BYTES => {
                            writer.write_all_at(&bytes[len..len + 4001], len as u64).unwrap();
                        }
                        2 => {
                            let new = path.with_extension("new");
                            fs::write(&new, &bytes[..BYTES]).unwrap();
                            fs::rename(new, &path).unwrap();
                        }
                        3 => fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap(),
                        _ => {}
                    }
                    drop(writer);
                    std::thread::park_timeout(Duration::from_millis(rounds % 40));
                }
            }));
            stop.store(true, Ordering::Relaxed);
            writing.unwrap();
        });
        let stats = mounted.stats();
        assert_eq!((&stats["errors"], &stats["corrupt"]), (&0.into(), &0.into()));
        mounted.unmount();
        support::run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    }
}
