//! fallocate(2): files that grow, keep their size, and have ranges of zeros.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use support::{Fixture, Mapping, Random};

const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;

fn opened(fixture: &Fixture, name: &str, bytes: &[u8]) -> File {
    fs::write(fixture.path(name), bytes).unwrap();
    OpenOptions::new().read(true).write(true).open(fixture.path(name)).unwrap()
}

#[test]
fn a_file_grows_with_zeros_or_keeps_its_size() {
    let mut fixture = Fixture::new();
    let text = Random(1).bytes(100_000);
    let file = opened(&fixture, "f", &text);
    fallocate(&file, FallocateFlags::empty(), 50_000, 1_000_000).unwrap();
    let mut wanted = text.clone();
    wanted.resize(1_050_000, 0);
    assert!(fixture.read("f") == wanted);
    // Within the file nothing changes.
    fallocate(&file, FallocateFlags::empty(), 0, 10).unwrap();
    fallocate(&file, KEEP, 1_000_000, 5_000_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1_050_000);
    // posix_fallocate(3) has no other way now.
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, 1_100_000) }, 0);
    wanted.resize(1_100_000, 0);
    drop(file);
    fixture.remount();
    assert!(fixture.read("f") == wanted);
    fixture.check();
}

#[test]
fn punched_and_zeroed_ranges_read_as_zeros_also_in_mappings() {
    let mut fixture = Fixture::new();
    let mut wanted = Random(2).bytes(3_000_000);
    let file = opened(&fixture, "f", &wanted);
    let mapping = Mapping::of(&fixture.path("f"), libc::MAP_SHARED);
    assert!(mapping.bytes() == wanted);
    let punch = KEEP | FallocateFlags::PUNCH_HOLE;
    for (flags, from, to) in [
        (punch, 100, 200),
        (punch, 4096, 1_500_001),
        (FallocateFlags::ZERO_RANGE | KEEP, 2_000_000, 2_000_001),
    ] {
        fallocate(&file, flags, from, to - from).unwrap();
        wanted[from as usize..to as usize].fill(0);
        assert!(fixture.read("f") == wanted && mapping.bytes() == wanted, "{flags:?} {from}");
    }
    // Beyond the end a hole changes nothing, and a range of zeros grows the file.
    fallocate(&file, punch, 2_999_000, 10_000).unwrap();
    wanted[2_999_000..].fill(0);
    assert!(fixture.read("f") == wanted);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 2_998_000, 10_000).unwrap();
    wanted[2_998_000..].fill(0);
    wanted.resize(3_008_000, 0);
    assert!(fixture.read("f") == wanted);
    file.write_all_at(b"later", 10_000).unwrap();
    wanted[10_000..10_005].copy_from_slice(b"later");
    drop((mapping, file));
    fixture.remount();
    assert!(fixture.read("f") == wanted);
    fixture.check();
}

#[test]
fn room_that_the_disk_lacks_and_other_operations_are_refused() {
    let fixture = Fixture::new();
    let file = opened(&fixture, "f", b"text");
    for flags in [FallocateFlags::empty(), KEEP, FallocateFlags::ZERO_RANGE] {
        assert_eq!(fallocate(&file, flags, 0, 1 << 50), Err(Errno::NOSPC), "{flags:?}");
    }
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(fallocate(&file, flags, 0, 4096), Err(Errno::OPNOTSUPP), "{flags:?}");
    }
    assert_eq!(fixture.read("f"), b"text");
    let read = File::open(fixture.path("f")).unwrap();
    assert_eq!(fallocate(&read, KEEP, 0, 10), Err(Errno::BADF));
}
