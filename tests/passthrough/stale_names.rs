//! Names that are given to other files continuously while programs open them.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::fixture::Fixture;
use support::{Random, SetOnDrop, container_of, goes_on, scale, try_get};

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

/// A container whose elements are all the same number.
fn model(number: u8) -> Vec<u8> {
    let mut bytes = container_of(&mut Random(1), &[("v", 3), ("w", ELEMENTS)]);
    let start = bytes.len() - (ELEMENTS + 3) * 4;
    bytes[start..].fill(number);
    bytes
}

const ELEMENTS: usize = 3000;

/// Reads a file whole, by its path or by its name in an open directory, and checks its last elements.
fn read_model(mut file: fs::File) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let elements = &bytes[bytes.len() - ELEMENTS * 4..];
    assert!(elements.iter().all(|byte| *byte == elements[0]), "a mixture of versions");
    Ok(())
}

/// A container, a link and an empty directory are replaced all the time, the first through a name that is not that of a
/// container and through one that is. A form that is decoded at its open may still be ESTALE.
#[test]
fn no_name_is_missing_while_its_target_is_replaced_without_decoded_copies() {
    let fixture = Fixture::new(&[]);
    let at = |name: &str| fixture.path(name);
    fs::write(at("m.safetensors"), model(1)).unwrap();
    symlink("0", at("link")).unwrap();
    fs::create_dir(at("dir")).unwrap();
    let tensors = fs::File::open(at(".tensors")).unwrap();
    let by_path = |name: &'static str| read_model(fs::File::open(at(name))?);
    let by_directory = || {
        let file = rustix::fs::openat(&tensors, "w", OFlags::RDONLY, Mode::empty())?;
        read_model(file.into())
    };
    let attribute = |name: &str| try_get(&at(name), "dtype").map(drop).map_err(std::io::Error::from);
    let readers: [(&str, &(dyn Fn() -> std::io::Result<()> + Sync)); 8] = [
        ("tensor", &|| by_path(".tensors/w")),
        ("tensor in an open directory", &by_directory),
        ("container", &|| by_path("m.safetensors")),
        ("form of the container", &|| by_path(".as/q8/m.safetensors")),
        ("form of the tensor", &|| by_path(".as/npy/w.npy")),
        ("attribute", &|| attribute(".tensors/w").and_then(|()| attribute(".tensors/v"))),
        ("link", &|| fs::read_link(at("link")).map(drop)),
        ("directory", &|| fs::read_dir(at("dir"))?.try_for_each(|entry| entry.map(drop))),
    ];
    let (reads, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let failures = Mutex::new(BTreeMap::new());
    let until = Instant::now() + Duration::from_secs(5) * scale();
    std::thread::scope(|scope| {
        for (what, read) in readers {
            let (reads, ends, failures) = (&reads, &ends, &failures);
            scope.spawn(move || {
                let _ends = SetOnDrop(ends);
                while !ends.load(Ordering::Relaxed) {
                    reads.fetch_add(1, Ordering::Relaxed);
                    if let Err(error) = read() {
                        *failures.lock().unwrap().entry(format!("{what}: {error}")).or_insert(0) += 1;
                    }
                }
            });
        }
        let _ends = SetOnDrop(&ends);
        let mut number = 1_u32;
        while goes_on(until, reads.load(Ordering::Relaxed), OPENS) && !ends.load(Ordering::Relaxed) {
            number += 1;
            let new = at(["new", "new.safetensors", "new.npz"][number as usize % 3]);
            fs::write(&new, model((number % 250) as u8)).unwrap();
            fs::rename(&new, at("m.safetensors")).unwrap();
            symlink(number.to_string(), at("new-link")).unwrap();
            fs::rename(at("new-link"), at("link")).unwrap();
            fs::create_dir(at("new-dir")).unwrap();
            fs::rename(at("new-dir"), at("dir")).unwrap();
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "of {} reads: {failures:?}", reads.into_inner());
}
