//! Many readers, and many open files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use support::{
    Fixture, Mapping, Random, SetOnDrop, assert_same, container_of, goes_on, npy_file, scale, wait_until,
};

const READERS: usize = 64;

/// The bytes of a version: its number repeated as f32, so that a tensor can hold them.
fn version(number: u32, elements: usize) -> Vec<u8> {
    (0..elements).flat_map(|_| (number as f32).to_le_bytes()).collect()
}

/// The version number of `bytes`, if they are one version.
fn whole_version(bytes: &[u8], what: &str) -> f32 {
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
    let other = values.iter().position(|value| *value != values[0]);
    assert_eq!(other, None, "{what}: a mixture of versions at element {other:?} of {}", values.len());
    values[0]
}

/// The name, the offset of its elements, and its number of bytes: a plain file, an array, a container of two tensors,
/// and these tensors.
const SEEN: [(&str, usize, usize); 5] = [
    ("plain", 0, 40_000),
    ("array.npy", 128, 40_000),
    ("m.safetensors", 0, 0),
    ("one", 0, 4000),
    ("two", 0, 80_000),
];

fn container(number: u32) -> Vec<u8> {
    let mut bytes = container_of(&mut Random(1), &[("one", 1000), ("two", 20_000)]);
    let data = version(number, 21_000);
    let start = bytes.len() - data.len();
    bytes[start..].copy_from_slice(&data);
    bytes
}

#[test]
fn sixty_four_readers_see_whole_versions_of_replaced_files_containers_and_tensors() {
    let fixture = Fixture::new();
    let replace = |name: &str, number: u32, bytes: &[u8]| {
        let new = fixture.path(&format!("new-{name}-{}", number % 4));
        fs::write(&new, bytes).unwrap();
        fs::rename(&new, fixture.path(name)).unwrap();
    };
    let all = |number: u32| {
        replace("plain", number, &version(number, 10_000));
        replace("array.npy", number, &npy_file(&version(number, 10_000)));
        replace("m.safetensors", number, &container(number));
    };
    all(1);
    let (ended, reads) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; SEEN.len()]);
    let until = Instant::now() + Duration::from_secs(8) * scale();
    let header = container(0).len() - 84_000;
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (fixture, ended, reads) = (&fixture, &ended, &reads);
            scope.spawn(move || {
                let _ends = SetOnDrop(ended);
                let mut turn = reader;
                while !ended.load(Ordering::Relaxed)
                    || reads.iter().any(|reads| reads.load(Ordering::Relaxed) < 11)
                {
                    turn += 1;
                    let (name, start, bytes) = SEEN[turn % SEEN.len()];
                    let (start, bytes) = if bytes == 0 { (header, 84_000) } else { (start, bytes) };
                    let file =
                        File::open(fixture.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
                    let mut found = vec![0; start + bytes + 1];
                    let count = file.read_at(&mut found, 0).unwrap();
                    assert_eq!(count, start + bytes, "{name}");
                    let number = whole_version(&found[start..count], name);
                    // Open descriptors keep that version.
                    file.read_exact_at(&mut found[..bytes], start as u64).unwrap();
                    assert_eq!(
                        whole_version(&found[..bytes], name),
                        number,
                        "{name}: another version of an open file"
                    );
                    reads[turn % SEEN.len()].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _ends = SetOnDrop(&ended);
        let mut number = 1;
        while goes_on(until, u64::from(number), 11) && !ended.load(Ordering::Relaxed) {
            number += 1;
            all(number);
        }
    });
    fixture.check();
}

const OPEN_FILES: usize = 10_000;

#[test]
fn ten_thousand_open_files_read_correctly() {
    // The daemon begins with the limit that most systems have.
    let most = getrlimit(Resource::Nofile);
    let hard = most.maximum.map_or(1 << 20, |hard| hard.max(OPEN_FILES as u64 + 1000));
    setrlimit(Resource::Nofile, Rlimit { current: Some(1024), maximum: Some(hard) }).unwrap();
    let fixture = Fixture::new();
    setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: Some(hard) }).unwrap();
    // One in five has a data file of its own, more than that limit allows; the others share a tier file.
    let bytes = |number: usize| {
        let count = if number.is_multiple_of(5) { 20_000 } else { 50 };
        let mut bytes = vec![(number % 251) as u8; count];
        bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
        bytes
    };
    for number in 0..OPEN_FILES {
        fs::write(fixture.path(&format!("f{number}")), bytes(number)).unwrap();
    }
    let files: Vec<File> =
        (0..OPEN_FILES).map(|number| File::open(fixture.path(&format!("f{number}"))).unwrap()).collect();
    let daemon = fixture.mounted().daemon().unwrap();
    let descriptors = || fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count();
    let while_open = descriptors();
    assert!(
        while_open <= OPEN_FILES / 5 + 100,
        "{while_open} descriptors of the daemon for {OPEN_FILES} open files"
    );
    // They are unlinked: they exist while they are open.
    for number in (0..OPEN_FILES).step_by(7) {
        fs::remove_file(fixture.path(&format!("f{number}"))).unwrap();
    }
    for (number, file) in files.iter().enumerate().rev() {
        let wanted = bytes(number);
        let mut found = vec![0; wanted.len() + 1];
        let count = file.read_at(&mut found, 0).unwrap();
        assert_same(&found[..count], &wanted, &format!("file {number}"));
    }
    drop(files);
    wait_until("the daemon to let go of what was open", || descriptors() < 200);
    assert_eq!(Mapping::of(&fixture.path("f1"), libc::MAP_SHARED).bytes(), bytes(1));
    fixture.check();
}
