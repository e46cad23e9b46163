//! Pages that the kernel caches of a tensor and of its container while both are written.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::{Mounted, Place, Random, container_of, scale, wait_until};

const ELEMENTS: usize = 75_000;
const BYTES: usize = 4 * ELEMENTS;

struct Fixture {
    tensor: PathBuf,
    container: PathBuf,
    /// Where the tensor begins in the container.
    at: u64,
    mounted: Mounted,
    _place: Place,
}

fn fixture() -> Fixture {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    let collection = mounted.path("acme/pages");
    fs::create_dir_all(&collection).unwrap();
    let bytes = container_of(&mut Random(1), &[("w", ELEMENTS)]);
    let container = collection.join("x.safetensors");
    fs::write(&container, &bytes).unwrap();
    let at = (bytes.len() - BYTES) as u64;
    Fixture { tensor: collection.join(".tensors/w"), container, at, mounted, _place: place }
}

/// Opened for writing too, because the kernel reads files that are open for reading only by passthrough.
fn open(path: &PathBuf) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Pages that the kernel requests while a whole file is read.
fn asked(fixture: &Fixture, file: &fs::File) -> u64 {
    let count = || fixture.mounted.stats()["read_bytes"].as_u64().unwrap();
    let (first, before) = (count(), count());
    file.read_exact_at(&mut vec![0; BYTES], 0).unwrap();
    // A read of the statistics counts too. Its length may change by less than a page.
    (count() - before).saturating_sub(before - first) / 4096
}

#[test]
fn the_kernel_keeps_the_pages_of_a_written_tensor() {
    let fixture = fixture();
    let file = open(&fixture.tensor);
    assert!(asked(&fixture, &file) >= BYTES as u64 / 4096);
    assert_eq!(asked(&fixture, &file), 0);
    let writer = open(&fixture.tensor);
    writer.write_all_at(&[7; 100], 5000).unwrap();
    drop(writer);
    assert_eq!(asked(&fixture, &file), 0, "what was written is in them");
    let mut written = [0; 100];
    fs::File::open(&fixture.container).unwrap().read_exact_at(&mut written, fixture.at + 5000).unwrap();
    assert_eq!(written, [7; 100]);
}

#[test]
fn pages_dropped_during_a_write_are_read_again_after_the_close() {
    let fixture = fixture();
    let (file, writer) = (open(&fixture.tensor), open(&fixture.tensor));
    writer.write_all_at(&[7; 100], 5000).unwrap();
    let other = open(&fixture.container);
    other.write_all_at(&[8; 100], fixture.at + 9000).unwrap();
    drop(other);
    assert!(asked(&fixture, &file) > 0, "of the container's write the kernel knows nothing");
    // A periodic sync may run now.
    wait_until("pages that are kept", || asked(&fixture, &file) == 0);
    // The kernel may have read a page before a write to it, and cache the old bytes.
    writer.write_all_at(&[9; 100], 5000).unwrap();
    drop(writer);
    assert!(asked(&fixture, &file) > 0);
}

#[test]
fn written_bytes_are_read_back_at_once_under_concurrency() {
    let fixture = fixture();
    let is_over = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(3) * scale();
    std::thread::scope(|scope| {
        for path in [&fixture.tensor, &fixture.container] {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    fs::File::open(path).unwrap().read_exact_at(&mut vec![0; BYTES], 0).unwrap();
                }
            });
        }
        let writers = [0, 1].map(|number| {
            let fixture = &fixture;
            scope.spawn(move || {
                let mut random = Random(number + 1);
                while Instant::now() < until {
                    let place = (random.below(BYTES / 1000) * 1000) as u64 + 500 * number;
                    let len = 1 + random.below(400);
                    let bytes = random.bytes(len);
                    let file = open(&fixture.tensor);
                    file.write_all_at(&bytes, place).unwrap();
                    let mut got = vec![0; len];
                    file.read_exact_at(&mut got, place).unwrap();
                    assert_eq!(got, bytes, "at {place}");
                    drop(file);
                    open(&fixture.container).read_exact_at(&mut got, fixture.at + place).unwrap();
                    assert_eq!(got, bytes, "at {place} of the container");
                }
            })
        });
        let ended = writers.map(|writer| writer.join());
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
}
