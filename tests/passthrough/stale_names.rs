//! Names that are given to other files continuously while programs open them.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use support::{goes_on, scale};

/// The least number of opens.
const OPENS: u64 = 20_000;

/// Opens a name for reading or writing until it is told to stop. The number of opens, and of those that failed with
/// ESTALE.
fn open_all_the_time(path: &Path, writes: bool, ends: &AtomicBool, opens: &AtomicU64, stale: &AtomicU64) {
    while !ends.load(Ordering::Relaxed) {
        opens.fetch_add(1, Ordering::Relaxed);
        match OpenOptions::new().read(true).write(writes).open(path) {
            Err(error) if error.kind() == ErrorKind::StaleNetworkFileHandle => {
                stale.fetch_add(1, Ordering::Relaxed);
            }
            opened => {
                let mut bytes = Vec::new();
                opened.unwrap().read_to_end(&mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture of versions");
            }
        }
    }
}

fn storm(bytes: usize, is_read_first: bool) {
    let fixture = Fixture::new(&[]);
    let (path, new) = (fixture.path("replaced"), fixture.path("new"));
    fs::write(&path, vec![1; bytes]).unwrap();
    let (opens, stale, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let until = Instant::now() + Duration::from_secs(5) * scale();
    std::thread::scope(|scope| {
        for writes in [false, false, false, true] {
            let (path, ends, opens, stale) = (&path, &ends, &opens, &stale);
            scope.spawn(move || open_all_the_time(path, writes, ends, opens, stale));
        }
        for version in (1..=u8::MAX).cycle() {
            fs::write(&new, vec![version; bytes]).unwrap();
            if is_read_first {
                fs::read(&new).unwrap();
            }
            fs::rename(&new, &path).unwrap();
            if !goes_on(until, opens.load(Ordering::Relaxed), OPENS) {
                ends.store(true, Ordering::Relaxed);
                break;
            }
        }
    });
    let (opens, stale) = (opens.into_inner(), stale.into_inner());
    assert_eq!(stale, 0, "of {opens} opens");
}

#[test]
fn no_open_fails_with_estale_while_its_name_moves_between_small_files() {
    storm(100, false);
}

#[test]
fn no_open_fails_with_estale_while_its_name_moves_between_passthrough_files() {
    storm(40_000, true);
}

#[test]
fn no_open_fails_with_estale_while_its_name_moves_between_files_that_an_open_verifies() {
    storm(1100 << 10, true);
}
