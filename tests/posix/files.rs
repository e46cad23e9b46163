//! The bytes of files: open, write, truncate, map and copy.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use support::{
    Fixture, Random, WritableMapping, assert_same, copy_file_range, errno, fallocate, flock, lock_range,
    sendfile,
};

fn both(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn files_are_created_truncated_at_open_and_appended_to() {
    let fixture = Fixture::new();
    let path = fixture.path("f");
    let only_new = || OpenOptions::new().write(true).create_new(true).open(&path);
    only_new().unwrap().write_all(b"first").unwrap();
    assert_eq!(errno(only_new()), libc::EEXIST);
    assert_eq!(fs::read(&path).unwrap(), b"first");

    fs::write(&path, b"2nd").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"2nd");

    let append = || OpenOptions::new().append(true).open(&path).unwrap();
    let (mut one, mut other) = (append(), append());
    for turn in 0..10 {
        write!(one, "a{turn}").unwrap();
        write!(other, "b{turn}").unwrap();
    }
    drop((one, other));
    let wanted: String = (0..10).map(|turn| format!("a{turn}b{turn}")).collect();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("2nd{wanted}"));
    fixture.check();
}

#[test]
fn truncating_and_growing_leaves_zeros() {
    let mut fixture = Fixture::new();
    let path = fixture.path("f");
    let bytes = Random(1).bytes(3_000_000);
    fs::write(&path, &bytes).unwrap();
    let mut wanted = bytes;
    let file = both(&path);
    // Near pages, blocks and the end, and to zero.
    for to in [2_999_999, 3_000_001, 2_097_152, 2_097_153, 5000, 4_000_000, 4096, 4095, 9000, 0, 1, 100_000] {
        file.set_len(to).unwrap();
        wanted.resize(to as usize, 0);
        assert_eq!(file.metadata().unwrap().len(), to);
        assert_same(&fs::read(&path).unwrap(), &wanted, &format!("cut to {to}"));
        file.write_all_at(b"mark", to / 2).unwrap();
        let at = (to / 2) as usize;
        wanted.resize(wanted.len().max(at + 4), 0);
        wanted[at..at + 4].copy_from_slice(b"mark");
        assert_same(&fs::read(&path).unwrap(), &wanted, &format!("marked after {to}"));
    }
    drop(file);
    fixture.remount();
    assert_same(&fs::read(fixture.path("f")).unwrap(), &wanted, "after a remount");
    fixture.check();
}

#[test]
fn holes_read_as_zeros_and_the_end_is_the_end() {
    let mut fixture = Fixture::new();
    let path = fixture.path("f");
    let file = both(&path);
    file.write_all_at(b"far", 5_000_000).unwrap();
    file.write_all_at(b"near", 70_000).unwrap();
    let mut wanted = vec![0; 5_000_003];
    wanted[70_000..70_004].copy_from_slice(b"near");
    wanted[5_000_000..].copy_from_slice(b"far");
    assert_same(&fs::read(&path).unwrap(), &wanted, "before the close");
    let mut past = [1; 10];
    assert_eq!(file.read_at(&mut past, 5_000_003).unwrap(), 0);
    assert_eq!(file.read_at(&mut past, 5_000_001).unwrap(), 2);
    assert!([libc::EFBIG, libc::ENOSPC].contains(&errno(file.set_len(i64::MAX as u64))));
    drop(file);
    fixture.remount();
    assert_same(&fs::read(fixture.path("f")).unwrap(), &wanted, "after a remount");
    fixture.check();
}

#[test]
fn an_unlinked_file_stays_usable() {
    let mut fixture = Fixture::new();
    let path = fixture.path("f");
    let mut file = both(&path);
    file.write_all(b"before").unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(errno(fs::metadata(&path)), libc::ENOENT);
    file.write_all(b" and after").unwrap();
    file.sync_all().unwrap();
    let seen = file.metadata().unwrap();
    assert_eq!((seen.nlink(), seen.len(), seen.mode() & 0o7777), (0, 16, 0o640));
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before and after");
    file.set_len(3).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);

    // The name is free, and a new file of that name is another file.
    fs::write(&path, b"new").unwrap();
    assert_ne!(fs::metadata(&path).unwrap().ino(), seen.ino());
    file.write_all_at(b"old", 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    drop(file);
    fixture.remount();
    assert_eq!(fs::read(fixture.path("f")).unwrap(), b"new");
    fixture.check();
}

#[test]
fn a_reader_keeps_the_file_that_a_rename_replaces() {
    let fixture = Fixture::new();
    let (old, new) = (fixture.path("f"), fixture.path("g"));
    let bytes = Random(2).bytes(300_000);
    fs::write(&old, &bytes).unwrap();
    fs::write(&new, b"replacement").unwrap();
    let reader = File::open(&old).unwrap();
    let mut first = vec![0; 1000];
    reader.read_exact_at(&mut first, 0).unwrap();
    fs::rename(&new, &old).unwrap();
    assert_eq!(fs::read(&old).unwrap(), b"replacement");
    assert_eq!(errno(fs::metadata(&new)), libc::ENOENT);
    let mut rest = vec![0; bytes.len()];
    reader.read_exact_at(&mut rest, 0).unwrap();
    assert_same(&rest, &bytes, "the file that was replaced");
    assert_eq!(reader.metadata().unwrap().nlink(), 0);
    drop(reader);
    fixture.check();
}

#[test]
fn writes_to_a_mapping_reach_other_readers() {
    let mut fixture = Fixture::new();
    let path = fixture.path("f");
    fs::write(&path, vec![1; 20_000]).unwrap();
    let file = both(&path);
    let mut map = WritableMapping::of(&file, 20_000, libc::MAP_SHARED);
    map.write(4090, b"across pages");
    map.sync().unwrap();
    let mut wanted = vec![1; 20_000];
    wanted[4090..4102].copy_from_slice(b"across pages");
    assert_same(&fs::read(&path).unwrap(), &wanted, "after msync");
    // A write and a mapping show the same bytes at once.
    file.write_all_at(b"written", 9000).unwrap();
    map.write(9100, b"mapped");
    wanted[9000..9007].copy_from_slice(b"written");
    wanted[9100..9106].copy_from_slice(b"mapped");
    assert_same(&fs::read(&path).unwrap(), &wanted, "while both are open");
    // The last store into the mapping follows the close of the descriptor.
    drop(file);
    map.write(19_990, b"the end");
    wanted[19_990..19_997].copy_from_slice(b"the end");
    drop(map);
    assert_same(&fs::read(&path).unwrap(), &wanted, "after munmap");
    fixture.remount();
    assert_same(&fs::read(fixture.path("f")).unwrap(), &wanted, "after a remount");
    fixture.check();
}

#[test]
fn locks_exclude_other_lockers() {
    let fixture = Fixture::new();
    let path = fixture.path("f");
    let (one, other) = (both(&path), both(&path));
    flock(&one, libc::LOCK_EX | libc::LOCK_NB).unwrap();
    assert_eq!(errno(flock(&other, libc::LOCK_EX | libc::LOCK_NB)), libc::EWOULDBLOCK);
    flock(&one, libc::LOCK_UN).unwrap();
    flock(&other, libc::LOCK_EX | libc::LOCK_NB).unwrap();
    lock_range(&one, 0, 100).unwrap();
    assert_eq!(errno(lock_range(&other, 50, 10)), libc::EAGAIN);
    lock_range(&other, 100, 10).unwrap();
    drop(one);
    lock_range(&other, 50, 10).unwrap();
}

#[test]
fn copies_inside_the_kernel_succeed_or_are_refused() {
    let fixture = Fixture::new();
    let bytes = Random(3).bytes(200_000);
    fs::write(fixture.path("from"), &bytes).unwrap();
    for (name, copy) in
        [("range", copy_file_range as fn(&File, &File, usize) -> std::io::Result<i64>), ("send", sendfile)]
    {
        let (from, to) = (File::open(fixture.path("from")).unwrap(), both(&fixture.path(name)));
        let mut done = 0;
        while done < bytes.len() {
            let more = copy(&from, &to, bytes.len() - done).unwrap();
            assert!(more > 0);
            done += more as usize;
        }
        drop(to);
        assert_same(&fs::read(fixture.path(name)).unwrap(), &bytes, name);
    }
    let file = both(&fixture.path("from"));
    assert_eq!(errno(fallocate(&file, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
    assert_same(&fs::read(fixture.path("from")).unwrap(), &bytes, "refused");
    drop(file);
    fixture.check();
}
