//! Copies and holes where they meet children that are stored as differences, pins, files that the kernel reads itself,
//! and files without a name that are closed meanwhile. Compared with vectors in memory.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;

use rustix::fs::{AtFlags, CWD, FallocateFlags, SeekFrom, copy_file_range, fallocate, linkat, seek};
use rustix::io::Errno;

use support::{Fixture, Mapping, Place, Random, assert_same, container_of, refused, run, scale};

const PUNCH: FallocateFlags = FallocateFlags::KEEP_SIZE.union(FallocateFlags::PUNCH_HOLE);

fn both(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn copy(from: &File, mut at: u64, to: &File, mut place: u64, bytes: usize) {
    let mut left = bytes;
    while left > 0 {
        let copied = copy_file_range(from, Some(&mut at), to, Some(&mut place), left).unwrap();
        assert!(copied > 0 && copied <= left);
        left -= copied;
    }
}

/// A container, and another whose tensor `w` differs in a few elements.
fn parent_and_child(random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let parent = container_of(random, &[("w", 400_000), ("x", 20_000)]);
    let mut child = parent.clone();
    let data = child.len() - 4 * 420_000;
    for element in (0..400_000).step_by(10_007) {
        child[data + 4 * element..][..4].copy_from_slice(&1.5_f32.to_le_bytes());
    }
    (parent, child)
}

#[test]
fn a_child_of_differences_is_copied_and_punched_as_any_file() {
    let place = Place::new();
    let (parent, mut child) = parent_and_child(&mut Random(31));
    let (one, other) =
        (place.write("one/m.safetensors", &parent), place.write("other/m.safetensors", &child));
    place.import("demo/base", &[&one], &[]);
    place.import("demo/m", &[&other], &["--parent", "demo/base", "--reconstruct", "delta"]);
    let mut fixture = Fixture::unmounted(place);
    fixture.mount();
    let original = child.clone();
    let source = File::open(fixture.path("m.safetensors")).unwrap();
    let end = original.len() as u64;
    assert_eq!(seek(&source, SeekFrom::Hole(0)), Ok(end));
    assert_eq!(seek(&source, SeekFrom::Data(77)), Ok(77));
    copy(&source, 0, &both(&fixture.path("whole.safetensors")), 0, original.len());
    copy(&source, 70_001, &both(&fixture.path("part")), 13, 900_000);
    let part = [&[0; 13][..], &original[70_001..970_001]].concat();
    let data = child.len() - 4 * 420_000;
    // A hole by the name of the tensor, and bytes of another file by that of the container.
    fallocate(both(&fixture.path(".tensors/w")), PUNCH, 100_000, 300_000).unwrap();
    child[data + 100_000..data + 400_000].fill(0);
    let from = File::open(fixture.path("part")).unwrap();
    copy(&from, 500_000, &both(&fixture.path("m.safetensors")), (data + 800_000) as u64, 200_000);
    child[data + 800_000..data + 1_000_000].copy_from_slice(&part[500_000..700_000]);
    drop((source, from));
    let check = |fixture: &Fixture, when: &str| {
        assert_same(&fixture.read("m.safetensors"), &child, &format!("the child {when}"));
        assert_same(&fixture.read(".tensors/m.safetensors/w"), &child[data..data + 1_600_000], when);
        assert_same(&fixture.read("whole.safetensors"), &original, &format!("its copy {when}"));
        assert_same(&fixture.read("part"), &part, &format!("a part {when}"));
    };
    check(&fixture, "after the changes");
    fixture.crash();
    check(&fixture, "after a crash");
    // The parent can be read, but neither copies nor holes reach it.
    let base = fixture.mounted().path("demo/base/m.safetensors");
    copy(&File::open(&base).unwrap(), 0, &both(&fixture.path("of-parent.safetensors")), 0, parent.len());
    refused(OpenOptions::new().write(true).open(&base), libc::EBUSY);
    assert_same(&fs::read(&base).unwrap(), &parent, "the parent");
    assert_same(&fixture.read("of-parent.safetensors"), &parent, "a copy of the parent");
    fixture.remount();
    fixture.mounted().job(".ctl/compact", "start");
    check(&fixture, "after a compaction");
    fixture.check();
}

#[test]
fn a_pinned_file_is_copied_and_keeps_what_it_answers() {
    let mut fixture = Fixture::new();
    let model = container_of(&mut Random(32), &[("a", 500_000), ("b", 3_000)]);
    fs::write(fixture.path("m.safetensors"), &model).unwrap();
    run(["tier", "q8:all", "--lossy", fixture.path(".tensors/a").to_str().unwrap()]).ok();
    let rounded = fixture.read("m.safetensors");
    run(["pin", fixture.path("m.safetensors").to_str().unwrap()]).ok();
    let source = File::open(fixture.path("m.safetensors")).unwrap();
    copy(&source, 0, &both(&fixture.path("copy.safetensors")), 0, rounded.len());
    assert_same(&fixture.read("copy.safetensors"), &rounded, "the copy");
    // A hole in a pinned file is made in what programs read, or refused.
    let mut wanted = rounded.clone();
    let at = rounded.len() - 4 * 503_000 + 40_000;
    if fallocate(both(&fixture.path("m.safetensors")), PUNCH, at as u64, 700_000).is_ok() {
        wanted[at..at + 700_000].fill(0);
    }
    let from = File::open(fixture.path("copy.safetensors")).unwrap();
    let mut written = at as u64 + 900_000;
    let tail = written as usize;
    if let Ok(count) = copy_file_range(
        &from,
        Some(&mut 2_000),
        both(&fixture.path("m.safetensors")),
        Some(&mut written),
        100_000,
    ) {
        wanted[tail..tail + count].copy_from_slice(&rounded[2_000..2_000 + count]);
    }
    drop((source, from));
    for when in ["at once", "after a crash", "after another"] {
        let found = fixture.read("m.safetensors");
        assert_same(&found, &wanted, &format!("the pinned file {when}"));
        assert_same(&fixture.read("copy.safetensors"), &rounded, &format!("the copy {when}"));
        fixture.crash();
    }
    fixture.check();
}

#[test]
fn readers_that_the_kernel_serves_keep_what_they_opened() {
    let fixture = Fixture::new();
    let mut random = Random(33);
    let (old, other) = (random.bytes(5_000_000), random.bytes(3_000_000));
    let mut wanted = old.clone();
    fs::write(fixture.path("plain"), &wanted).unwrap();
    fs::write(fixture.path("other"), &other).unwrap();
    fs::write(fixture.mounted().path(".ctl/sync"), "now").unwrap();
    // The first reads verify, later opens are passed through where the kernel offers it.
    for name in ["plain", "other"] {
        fixture.read(name);
    }
    let opens = || fixture.mounted().counter("passthrough_opens");
    let before = opens();
    let reader = File::open(fixture.path("plain")).unwrap();
    let is_kernels = opens() > before;
    println!("the kernel serves it: {is_kernels}");
    let mapping = Mapping::of(&fixture.path("plain"), libc::MAP_SHARED);
    let mut read = vec![0; wanted.len()];
    reader.read_exact_at(&mut read, 0).unwrap();
    assert_same(&read, &wanted, "before");
    let source = File::open(fixture.path("other")).unwrap();
    let writer = both(&fixture.path("plain"));
    copy(&source, 4_097, &writer, 1_000_000, 2_000_000);
    wanted[1_000_000..3_000_000].copy_from_slice(&other[4_097..2_004_097]);
    fallocate(&writer, PUNCH, 3_500_000, 900_000).unwrap();
    wanted[3_500_000..4_400_000].fill(0);
    for when in ["open for writing", "closed", "opened again"] {
        // All of it is old, or, where the daemon serves it, all is new.
        reader.read_exact_at(&mut read, 0).unwrap();
        let shown = if is_kernels { &old } else { &wanted };
        assert_same(&read, shown, when);
        assert_same(mapping.bytes(), shown, &format!("{when}, mapped"));
        assert_same(&fixture.read("plain"), &wanted, when);
        writer.sync_all().unwrap();
    }
    drop((reader, mapping, writer, source));
    assert_same(&fixture.read("other"), &other, "the source");
    fixture.check();
}

mod heavy {
    use super::*;

    /// One opening of a file without a name ends while another gives it a name.
    #[test]
    fn a_file_without_a_name_gets_one_while_it_is_closed() {
        let mut fixture = Fixture::new();
        let folder = fixture.path("");
        let rounds = 60 * scale() as usize;
        let barrier = Barrier::new(2);
        for round in 0..rounds {
            let bytes = Random(round as u64 + 1).bytes(1 + round * 7_919 % 200_000);
            let mut options = OpenOptions::new();
            let first = options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(&folder).unwrap();
            first.write_all_at(&bytes, 0).unwrap();
            let again = File::open(format!("/proc/self/fd/{}", first.as_raw_fd())).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    drop(first);
                });
                let named = scope.spawn(|| {
                    let own = format!("/proc/self/fd/{}", again.as_raw_fd());
                    barrier.wait();
                    linkat(CWD, own, CWD, folder.join(format!("named{round}")), AtFlags::SYMLINK_FOLLOW)
                });
                assert_eq!(named.join().unwrap(), Ok(()), "round {round}");
            });
            assert_same(&fixture.read(&format!("named{round}")), &bytes, "named");
            let mut read = vec![0; bytes.len()];
            again.read_exact_at(&mut read, 0).unwrap();
            assert_same(&read, &bytes, "open");
            drop(again);
            // Without a name it ends with its last opening, whichever that is.
            let first = options.open(&folder).unwrap();
            first.write_all_at(&bytes, 0).unwrap();
            let again = File::open(format!("/proc/self/fd/{}", first.as_raw_fd())).unwrap();
            let own = format!("/proc/self/fd/{}", again.as_raw_fd());
            std::thread::scope(|scope| {
                for file in [first, again] {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        drop(file);
                    });
                }
            });
            assert_eq!(
                linkat(CWD, own, CWD, folder.join("gone"), AtFlags::SYMLINK_FOLLOW),
                Err(Errno::NOENT)
            );
        }
        for when in ["before", "after"] {
            for round in 0..rounds {
                let bytes = Random(round as u64 + 1).bytes(1 + round * 7_919 % 200_000);
                assert_same(&fixture.read(&format!("named{round}")), &bytes, &format!("{when} a crash"));
            }
            assert_eq!(fs::read_dir(&folder).unwrap().count(), rounds);
            fixture.crash();
        }
        assert!(fixture.data_files() <= rounds, "{} data files", fixture.data_files());
        fixture.check();
    }
}
