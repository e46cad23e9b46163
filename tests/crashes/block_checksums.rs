//! Checksums of written bytes are computed from the requests: the daemon does not read the bytes back, and each
//! checksum fits the stored bytes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tierfs::model::{CollectionName, ErrorKind, Owner};
use tierfs::store::Collection;
use tierfs::store::ROOT;
use tierfs::store::Verify;
use tierfs::store::disk::Disk;
use tierfs::vfs::open::{self, OpenFile, OpenFiles};

use crate::history::{History, STORE};
use crate::power_cut_disk::CutDisk;
use crate::recorder::Recorder;
use support::{Fixture, Random};

/// Plain files of 16 MiB and more have blocks of this length, and new files begin with it.
const BLOCK: usize = 64 << 10;
const LARGE: usize = 16 << 20;

struct Written {
    recorder: Recorder,
    disk: Arc<dyn Disk>,
    open_file: Arc<OpenFile>,
}

impl Written {
    /// A new file.
    fn new(name: &str) -> Written {
        let recorder = Recorder::new(CutDisk::default());
        let disk: Arc<dyn Disk> = Arc::new(recorder.clone());
        disk.create_directory("t").unwrap();
        let collection = Collection::create(
            &disk,
            STORE,
            CollectionName::new("t", "c"),
            1,
            Owner { uid: 0, gid: 0 },
            0o755,
        )
        .unwrap();
        let collection = Arc::new(collection);
        let node = open::create(&collection, ROOT, name.as_bytes(), 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        let open_file = OpenFiles::default().open(&collection, node, Verify::First).unwrap();
        Written { recorder, disk, open_file }
    }

    /// Bytes that are read during the flush.
    fn flush(&self) -> u64 {
        let before = self.recorder.read.load(Ordering::Relaxed);
        self.open_file.flush().unwrap();
        self.recorder.read.load(Ordering::Relaxed) - before
    }

    /// Opens the store anew and reads the file, which compares each block with its checksum.
    fn check(&self, bytes: &[u8], when: &str) {
        let open_file = OpenFiles::default();
        let open_file =
            open_file.open(&History::open(&self.disk), self.open_file.node(), Verify::First).unwrap();
        let mut found = vec![1; bytes.len()];
        let read = open_file.read(0, &mut found);
        assert_eq!(read.unwrap_or_else(|error| panic!("{when}: {error}")), bytes.len(), "{when}");
        assert_eq!(open_file.bytes(), bytes.len() as u64, "{when}");
        assert!(found == bytes, "{when}: it reads otherwise");
    }
}

#[test]
fn sequential_writes_are_not_read_back() {
    for (step, bytes) in [(1 << 20, LARGE + 777), (BLOCK, LARGE), (100_003, LARGE + 1), (4096, LARGE + 4097)]
    {
        let bytes = Random(step as u64).bytes(bytes);
        let written = Written::new("x.bin");
        for (number, part) in bytes.chunks(step).enumerate() {
            written.open_file.write((number * step) as u64, part).unwrap();
        }
        let read = written.flush();
        assert!(read < BLOCK as u64 / 2, "{read} bytes are read after writes of {step}");
        written.check(&bytes, &format!("writes of {step}"));
    }
}

#[test]
fn only_partly_overwritten_blocks_are_read_back() {
    let mut random = Random(7);
    let mut bytes = random.bytes(LARGE + 100);
    let written = Written::new("x");
    written.open_file.write(0, &bytes).unwrap();
    for block in [3, 9, 200] {
        let at = block * BLOCK + 50;
        bytes[at..at + 9].copy_from_slice(b"otherwise");
        written.open_file.write(at as u64, b"otherwise").unwrap();
    }
    // A write over the whole block makes its checksum known again.
    for block in [9, 255] {
        let new = random.bytes(BLOCK);
        bytes[block * BLOCK..][..BLOCK].copy_from_slice(&new);
        written.open_file.write((block * BLOCK) as u64, &new).unwrap();
    }
    let read = written.flush();
    assert!((2 * BLOCK as u64..5 * BLOCK as u64 / 2).contains(&read), "{read} bytes are read");
    written.check(&bytes, "a new file");
    // The same for writes to a file that the log describes.
    let new = random.bytes(5 * BLOCK);
    bytes[20 * BLOCK..25 * BLOCK].copy_from_slice(&new);
    written.open_file.write(20 * BLOCK as u64, &new).unwrap();
    let read = written.flush();
    assert!(read < BLOCK as u64 / 2, "{read} bytes are read of whole blocks");
    written.check(&bytes, "whole blocks written over");
    written.open_file.write(40 * BLOCK as u64, &new).unwrap();
    written.open_file.write(42 * BLOCK as u64 + 1, b"z").unwrap();
    bytes[40 * BLOCK..45 * BLOCK].copy_from_slice(&new);
    bytes[42 * BLOCK + 1] = b'z';
    let read = written.flush();
    assert!((BLOCK as u64..3 * BLOCK as u64 / 2).contains(&read), "{read} bytes are read of one block");
    written.check(&bytes, "and a byte of them");
}

/// An offset, in about half of the cases near the edge of a block.
fn some_place(random: &mut Random, end: usize) -> usize {
    match random.below(3) {
        0 => random.below(end / BLOCK + 1) * BLOCK,
        1 => (random.below(end / BLOCK + 1) * BLOCK + random.below(9)).saturating_sub(4),
        _ => random.below(end),
    }
}

#[test]
fn checksums_match_the_stored_bytes_after_random_writes_truncations_and_failures() {
    let mut random = Random(u64::from(std::process::id()));
    println!("seed {}", std::process::id());
    for round in 0..6 {
        let written = Written::new("x");
        // The ranges of the writes; the rest is a hole or was cut off.
        let area = 8 * BLOCK;
        let begin = if round % 2 == 0 { 0 } else { LARGE };
        let mut bytes = vec![0; LARGE + if round % 3 == 0 { area } else { 0 }];
        written.open_file.truncate(bytes.len() as u64).unwrap();
        for step in 0..120 {
            let at = begin + some_place(&mut random, area);
            match random.below(20) {
                0..=13 => {
                    let len = match random.below(4) {
                        0 => BLOCK,
                        1 => 3 * BLOCK,
                        2 => 1 + random.below(2 * BLOCK),
                        _ => 1 + random.below(5000),
                    };
                    let new = random.bytes(len);
                    written.open_file.write(at as u64, &new).unwrap();
                    bytes.resize(bytes.len().max(at + len), 0);
                    bytes[at..at + len].copy_from_slice(&new);
                }
                14 | 15 => {
                    let to = at.max(LARGE);
                    written.open_file.truncate(to as u64).unwrap();
                    bytes.resize(to, 0);
                }
                16 | 17 => {
                    let at = at.min(bytes.len());
                    let len = (1 + random.below(2 * BLOCK)).min(bytes.len() - at);
                    let new = random.bytes(len);
                    written.recorder.is_full.store(true, Ordering::Relaxed);
                    let failed = written.open_file.write(at as u64, &new);
                    written.recorder.is_full.store(false, Ordering::Relaxed);
                    assert_eq!(failed.is_err(), len > 0);
                    // Any part of it may be there: the size of the file says how much.
                    let got = written.open_file.read(at as u64, &mut bytes[at..at + len]).unwrap();
                    assert_eq!(got, len);
                }
                18 => {
                    written.flush();
                }
                _ => {
                    written.flush();
                    written.check(&bytes, &format!("round {round}, step {step}"));
                }
            }
        }
        written.flush();
        written.check(&bytes, &format!("at the end of round {round}"));
    }
}

#[test]
fn a_truncation_that_does_not_fit_the_log_loses_no_written_bytes() {
    let bytes = Random(9).bytes(LARGE + 3 * BLOCK);
    let written = Written::new("x");
    written.open_file.write(0, &bytes).unwrap();
    written.flush();
    for at in [LARGE + BLOCK + 7, 5 * BLOCK + 1] {
        written.recorder.is_full.store(true, Ordering::Relaxed);
        assert!(written.open_file.truncate(at as u64).is_err());
        written.recorder.is_full.store(false, Ordering::Relaxed);
        let mut found = vec![0; bytes.len()];
        assert_eq!(written.open_file.read(0, &mut found).unwrap(), bytes.len());
        assert!(found == bytes, "a cut at {at} that failed");
    }
    written.flush();
    written.check(&bytes, "after cuts that failed");
}

#[test]
fn a_truncation_of_unlogged_bytes_fails_as_a_whole_and_later_growth_adds_zeros() {
    let mut bytes = Random(10).bytes(LARGE + 3 * BLOCK);
    let written = Written::new("x");
    written.open_file.write(0, &bytes).unwrap();
    for at in [LARGE + BLOCK + 7, 5 * BLOCK + 1, 5 * BLOCK, 0] {
        written.recorder.is_full.store(true, Ordering::Relaxed);
        written.open_file.truncate(at as u64).unwrap_err();
        written.recorder.is_full.store(false, Ordering::Relaxed);
        let mut found = vec![0; bytes.len() + 1];
        assert_eq!(written.open_file.read(0, &mut found).unwrap(), bytes.len());
        assert!(found[..bytes.len()] == bytes, "a cut at {at}");
        if at > 0 {
            written.open_file.truncate(at as u64).unwrap();
            bytes.truncate(at);
            written.check(&bytes, "a cut that is in the log");
        }
    }
    bytes.resize(LARGE, 0);
    written.open_file.truncate(LARGE as u64).unwrap();
    written.check(&bytes, "zeros behind what was cut off");
}

#[test]
fn a_truncation_to_zero_that_finds_the_log_full_keeps_every_byte() {
    for size in [5000, LARGE + 100] {
        let mut bytes = Random(size as u64).bytes(size);
        let written = Written::new("x");
        written.open_file.write(0, &bytes).unwrap();
        written.flush();
        // Once with bytes that are in the log, once with bytes that are not.
        for place in [None, Some(100)] {
            if let Some(at) = place {
                written.open_file.write(at, b"later").unwrap();
                bytes[at as usize..at as usize + 5].copy_from_slice(b"later");
            }
            written.recorder.is_full.store(true, Ordering::Relaxed);
            assert_eq!(written.open_file.truncate(0).unwrap_err().kind(), ErrorKind::Full);
            written.recorder.is_full.store(false, Ordering::Relaxed);
            assert_eq!(written.open_file.bytes(), size as u64);
            written.flush();
            written.check(&bytes, "after a cut to nothing that failed");
        }
        // Nothing of the cut remains: a write behind the end adds only zeros before it.
        written.open_file.truncate(0).unwrap();
        written.open_file.write(12, b"and more").unwrap();
        written.flush();
        written.check(b"\0\0\0\0\0\0\0\0\0\0\0\0and more", "after a cut that was done");
    }
}

#[test]
fn a_block_that_two_threads_write_at_once_has_the_checksum_of_its_stored_bytes() {
    let written = Written::new("x");
    written.open_file.truncate(LARGE as u64).unwrap();
    for round in 0..20 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let open_file = &written.open_file;
                scope.spawn(move || {
                    let mut random = Random(round * 10 + thread);
                    for block in 0..16 {
                        let len = if random.below(3) == 0 { 1 + random.below(BLOCK) } else { BLOCK };
                        open_file.write((block * BLOCK) as u64, &vec![thread as u8 + 1; len]).unwrap();
                    }
                });
            }
        });
        written.flush();
        let mut bytes = vec![0; LARGE];
        assert_eq!(written.open_file.read(0, &mut bytes).unwrap(), LARGE);
        written.check(&bytes, &format!("round {round}"));
    }
}

#[test]
fn a_file_written_through_descriptors_and_a_mapping_verifies_after_a_crash() {
    let mut fixture = Fixture::new();
    let mut random = Random(11);
    let mut bytes = random.bytes(LARGE + 5 * BLOCK + 123);
    let path = fixture.path("large.bin");
    let mut file = File::create(&path).unwrap();
    for part in bytes.chunks(1 << 20) {
        file.write_all(part).unwrap();
    }
    let other = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let len = bytes.len();
    for round in 0..40 {
        let at = some_place(&mut random, LARGE);
        let new = random.bytes([BLOCK, 2 * BLOCK, 77, 4096, 100_001][round % 5]);
        let by = if round % 2 == 0 { &file } else { &other };
        by.write_all_at(&new, at as u64).unwrap();
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
    let script = "import mmap, sys\nwith open(sys.argv[1], 'r+b') as file:\n    mapped = mmap.mmap(file.fileno(), 0)\n    \
                  for at in map(int, sys.argv[2:]):\n        mapped[at:at + 200000] = bytes([at % 256]) * 200000\n    \
                  mapped.flush()\n";
    let places = [5, 3 * BLOCK + 100, LARGE + 7];
    let mut python = std::process::Command::new("python3");
    python.args(["-c", script]).arg(&path).args(places.map(|at| at.to_string()));
    support::answer(&mut python).ok();
    for at in places {
        bytes[at..at + 200_000].fill(at as u8);
    }
    file.set_len(len as u64 - 1000).unwrap();
    file.set_len(len as u64).unwrap();
    bytes[len - 1000..].fill(0);
    file.sync_all().unwrap();
    drop((file, other));
    fixture.crash();
    assert!(fixture.read("large.bin") == bytes, "after a crash");
    fixture.remount();
    assert!(fixture.read("large.bin") == bytes, "after a check of the store");
}
