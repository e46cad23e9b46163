//! Copies and holes on a full disk: what they answer is there, and sources stay.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use rustix::io::Errno;

use crate::full_store::{Small, write};
use support::{Random, assert_same};

#[test]
fn copies_and_holes_on_a_full_disk_keep_what_they_answer() {
    let mut small = Small::new();
    let mut random = Random(51);
    let source = random.bytes(6 << 20);
    write(&small.fixture.path("source"), &source).unwrap();
    // Fills what is left.
    let mut kept = Vec::new();
    for number in 0..200 {
        let bytes = random.bytes(200_000);
        let path = small.fixture.path(&format!("filler{number}"));
        if write(&path, &bytes).is_err() {
            fs::remove_file(&path).unwrap();
            break;
        }
        kept.push((format!("filler{number}"), bytes));
    }
    assert!(kept.len() > 10, "{}", kept.len());
    let from = File::open(small.fixture.path("source")).unwrap();
    let to = |name: &str| {
        let path = small.fixture.path(name);
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
    };
    // Shared blocks need no room for payloads; a copy that shares none stops where the disk is full.
    let mut copies = Vec::new();
    for (name, at, place) in [("shared", 0, 0), ("moved", 5, 0), ("gap", 0, 100_001)] {
        let Ok(file) = to(name) else { continue };
        let (mut read, mut written) = (at, place);
        let answered = loop {
            match copy_file_range(&from, Some(&mut read), &file, Some(&mut written), 1 << 20) {
                Ok(0) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        assert!(matches!(answered, Ok(()) | Err(Errno::NOSPC)), "{name}: {answered:?}");
        if file.sync_all().is_ok() {
            let begin = at as usize;
            let bytes = [&vec![0; place as usize][..], &source[begin..read as usize]].concat();
            copies.push((name.to_owned(), bytes));
        } else {
            drop(file);
            fs::remove_file(small.fixture.path(name)).unwrap();
        }
    }
    println!("copies: {:?}", copies.iter().map(|(name, bytes)| (name, bytes.len())).collect::<Vec<_>>());
    assert!(
        copies.iter().any(|(name, bytes)| name == "shared" && bytes.len() == source.len()),
        "a copy that shares"
    );
    drop(from);
    // The record of a hole may find no room; a removal makes some.
    let (removed, _) = kept.pop().unwrap();
    let (name, bytes) = kept.last_mut().unwrap();
    let file = OpenOptions::new().write(true).open(small.fixture.path(name)).unwrap();
    let punch = || fallocate(&file, FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, 8_192, 150_000);
    let first = punch();
    assert!(matches!(first, Ok(()) | Err(Errno::NOSPC)), "{first:?}");
    fs::remove_file(small.fixture.path(&removed)).unwrap();
    punch().unwrap();
    file.sync_all().unwrap();
    bytes[8_192..158_192].fill(0);
    drop(file);
    for _ in 0..2 {
        assert_same(&small.fixture.read("source"), &source, "the source");
        for (name, bytes) in copies.iter().chain(&kept) {
            assert_same(&small.fixture.read(name), bytes, name);
        }
        small.fixture.remount();
    }
    // The copy goes on without its source.
    fs::remove_file(small.fixture.path("source")).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(small.fixture.path("shared")).unwrap();
    file.write_all_at(b"its own", 1 << 20).unwrap();
    file.sync_all().unwrap();
    let mut wanted = source;
    wanted[1 << 20..(1 << 20) + 7].copy_from_slice(b"its own");
    drop(file);
    small.fixture.crash();
    assert_same(&small.fixture.read("shared"), &wanted, "the copy of a source that is gone");
    small.fixture.unmount();
}
