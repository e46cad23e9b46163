//! Prefetched files are read without the daemon from the first open on.

use std::fs;
use std::io::ErrorKind;

use crate::fixture::{Fixture, WHOLE};
use support::{assert_same, names};

/// Writes names to the control file and waits for the job.
fn prefetch(fixture: &Fixture, text: &str) -> String {
    assert!(fixture.mounted.job("demo/model/.ctl/prefetch", text).contains(" done in "));
    fs::read_to_string(fixture.path(".ctl/prefetch")).unwrap()
}

#[test]
fn a_prefetched_file_uses_passthrough_from_its_first_open() {
    let fixture = Fixture::new(&[]);
    let path = fixture.path(".ctl/prefetch");
    assert_eq!(fs::read_to_string(&path).unwrap(), "demo/model: not since it was opened\n");
    assert!(!names(&fixture.mounted.path("demo/model")).contains(&".ctl".to_owned()));
    let (opens, _) = fixture.by_kernel(|| fs::File::open(fixture.path("x.npy")).unwrap());
    assert_eq!(opens, 0, "nothing was checked yet");
    let found = prefetch(&fixture, "model.safetensors\nx.npy sub\n");
    assert!(found.contains(" blocks checked, 0 corrupt, 0 healed"), "{found}");
    for name in WHOLE {
        let read = fixture.read_by_kernel(&fixture.path(name));
        assert_same(&read, &fixture.source(name), name);
    }
}

#[test]
fn prefetch_takes_names_with_spaces_and_the_whole_collection() {
    let fixture = Fixture::new(&[]);
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(fixture.path("two words.txt"), &bytes).unwrap();
    prefetch(&fixture, "two words.txt");
    assert_same(&fixture.read_by_kernel(&fixture.path("two words.txt")), &bytes, "two words");
    prefetch(&fixture, ".");
    for name in WHOLE {
        assert_same(&fixture.read_by_kernel(&fixture.path(name)), &fixture.source(name), name);
    }
}

#[test]
fn prefetch_refuses_invalid_names_and_does_nothing() {
    let fixture = Fixture::new(&[]);
    let path = fixture.path(".ctl/prefetch");
    for wrong in ["x.npy none", "", " \n", ".ctl/status", "..", "../model/x.npy", "x.npy/x"] {
        let written = fs::write(&path, wrong);
        if wrong.is_empty() {
            // The write is empty: the truncation alone does nothing.
            written.unwrap();
        } else {
            assert_eq!(written.err().map(|error| error.kind()), Some(ErrorKind::InvalidInput), "{wrong:?}");
        }
    }
    assert_eq!(fs::read_to_string(fixture.mounted.path(".ctl/jobs")).unwrap(), "");
    assert_eq!(fs::read_to_string(&path).unwrap(), "demo/model: not since it was opened\n");
}

#[test]
fn prefetch_counts_a_damaged_block_and_keeps_its_file_from_passthrough() {
    let fixture = Fixture::new(&[]);
    let (path, bytes) =
        fixture.data().into_iter().find(|(_, bytes)| *bytes == fixture.source("x.npy")).unwrap();
    let mut damaged = bytes;
    damaged[5000] ^= 1;
    fs::write(path, damaged).unwrap();
    let found = prefetch(&fixture, "x.npy");
    assert!(found.contains(" 1 corrupt, 0 healed"), "{found}");
    let (opens, file) = fixture.by_kernel(|| fs::File::open(fixture.path("x.npy")));
    assert_eq!((opens, file.is_ok()), (0, true));
}
