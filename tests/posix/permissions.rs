//! Owners, modes and times, and the permissions of other users.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::Path;

use support::{Fixture, as_user, set_mode, utimens};

const NOBODY: u32 = 65534;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn modes_owners_and_times_are_kept() {
    let mut fixture = Fixture::new();
    for name in ["f", "d"] {
        let path = fixture.path(name);
        if name == "f" {
            fs::write(&path, b"x").unwrap()
        } else {
            fs::create_dir(&path).unwrap()
        }
        set_mode(&path, 0o1751);
        chown(&path, Some(1234), Some(4321)).unwrap();
        utimens(&path, (5, 6), (1_000_000_000, 123_456_789)).unwrap();
    }
    fs::write(fixture.path("old"), b"x").unwrap();
    utimens(&fixture.path("old"), (-5, 0), (-7, 250)).unwrap();
    utimens(&fixture.path("old"), (9, 0), (0, libc::UTIME_OMIT)).unwrap();
    for _ in 0..2 {
        for name in ["f", "d"] {
            let seen = fs::metadata(fixture.path(name)).unwrap();
            assert_eq!((seen.mode() & 0o7777, seen.uid(), seen.gid()), (0o1751, 1234, 4321), "{name}");
            assert_eq!((seen.mtime(), seen.mtime_nsec()), (1_000_000_000, 123_456_789), "{name}");
        }
        let old = fs::metadata(fixture.path("old")).unwrap();
        assert_eq!((old.mtime(), old.mtime_nsec()), (-7, 250));
        fixture.remount();
    }
    fixture.check();
}

#[test]
fn writes_change_the_times_and_reads_do_not() {
    let fixture = Fixture::new();
    let path = fixture.path("f");
    fs::write(&path, b"x").unwrap();
    utimens(&path, (5, 0), (5, 0)).unwrap();
    let before = fs::metadata(&path).unwrap();
    fs::read(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mtime(), 5);
    set_mode(&path, 0o600);
    let changed = fs::metadata(&path).unwrap();
    assert_eq!(changed.mtime(), 5);
    assert!((changed.ctime(), changed.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"y", 0).unwrap();
    assert!(fs::metadata(&path).unwrap().mtime() > 1_000_000_000);
    utimens(&fixture.path(""), (5, 0), (5, 0)).unwrap();
    fs::write(fixture.path("g"), b"").unwrap();
    assert!(fs::metadata(fixture.path("")).unwrap().mtime() > 1_000_000_000);
    fixture.check();
}

#[test]
fn modes_restrict_other_users() {
    let fixture = Fixture::new();
    let path = |name: &str| name.to_owned();
    fs::write(fixture.path("mine"), b"secret").unwrap();
    set_mode(&fixture.path("mine"), 0o600);
    fs::write(fixture.path("shown"), b"shown").unwrap();
    set_mode(&fixture.path("shown"), 0o644);
    fs::create_dir(fixture.path("open")).unwrap();
    set_mode(&fixture.path("open"), 0o1777);
    fs::write(fixture.path("open/roots"), b"x").unwrap();
    let nobody = |line: &str| as_user(NOBODY, NOBODY, &fixture.path(""), line);

    nobody(&format!("cat {}", path("mine"))).failed(1, &["Permission denied"]);
    assert_eq!(nobody(&format!("cat {}", path("shown"))).ok(), "shown");
    nobody(&format!("echo x >> {}", path("shown"))).failed(2, &["Permission denied"]);
    nobody(&format!("echo x > {}", path("new"))).failed(2, &["Permission denied"]);
    nobody(&format!("chmod 777 {}", path("shown"))).failed(1, &["not permitted"]);
    nobody(&format!("rm -f {}", path("shown"))).failed(1, &["Permission denied"]);
    // The sticky bit: every user may create files, and remove only their own.
    nobody(&format!("umask 027; echo his > {}", path("open/his"))).ok();
    nobody(&format!("rm -f {}", path("open/roots"))).failed(1, &["not permitted"]);
    let his = fs::metadata(fixture.path("open/his")).unwrap();
    assert_eq!((his.uid(), his.gid(), his.mode() & 0o7777), (NOBODY, NOBODY, 0o640));
    nobody(&format!("mv {0}/his {0}/moved && rm {0}/moved", path("open"))).ok();
    fixture.check();
}

#[test]
fn a_write_by_another_user_clears_the_set_id_bits() {
    let fixture = Fixture::new();
    for line in ["echo x >> FILE", "truncate -s 1 FILE", "echo x > FILE"] {
        let path = fixture.path("program");
        fs::write(&path, b"#!/bin/sh\n").unwrap();
        set_mode(&path, 0o6777);
        assert_eq!(mode(&path), 0o6777);
        as_user(NOBODY, NOBODY, &fixture.path(""), &line.replace("FILE", "program")).ok();
        assert_eq!(mode(&path), 0o777, "{line}");
        fs::remove_file(&path).unwrap();
    }
    let path = fixture.path("given");
    fs::write(&path, b"x").unwrap();
    set_mode(&path, 0o6755);
    chown(&path, Some(NOBODY), None).unwrap();
    assert_eq!(mode(&path), 0o755);
    fixture.check();
}

#[test]
fn a_directory_with_set_group_id_passes_its_group_on() {
    let fixture = Fixture::new();
    let shared = fixture.path("shared");
    fs::create_dir(&shared).unwrap();
    chown(&shared, None, Some(4321)).unwrap();
    set_mode(&shared, 0o2775);
    fs::write(shared.join("f"), b"x").unwrap();
    fs::create_dir(shared.join("d")).unwrap();
    assert_eq!(fs::metadata(shared.join("f")).unwrap().gid(), 4321);
    let below = fs::metadata(shared.join("d")).unwrap();
    assert_eq!((below.gid(), below.mode() & 0o2000), (4321, 0o2000));
    fixture.check();
}

#[test]
fn stat_shows_the_same_after_the_close_of_a_file_and_later() {
    let fixture = Fixture::new();
    for name in ["plain", "m.npy"] {
        let path = fixture.path(name);
        let mut bytes = support::npy_file(&[1; 400_000]);
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        // The kernel may cache attributes from now on.
        assert!(file.metadata().unwrap().blocks() > 700);
        drop(file);
        let closed = fs::metadata(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        bytes[399_000] ^= 1;
        file.write_all_at(&bytes[399_000..], 399_000).unwrap();
        assert!(file.metadata().unwrap().blocks() > 700);
        support::names(&fixture.path(""));
        drop(file);
        let written = fs::metadata(&path).unwrap();
        // Setting an attribute makes the kernel ask again.
        chown(&path, Some(written.uid()), None).unwrap();
        let asked = fs::metadata(&path).unwrap().blocks();
        assert_eq!((closed.blocks(), written.blocks()), (asked, asked), "{name}");
    }
    fixture.check();
}
