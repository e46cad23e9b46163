//! Owners, modes and times: what is kept, and what other users may do.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::calls::{World, utimens};
use crate::support::{Answer, answer};

const NOBODY: u32 = 65534;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Runs a shell line as a user of a group, in a directory: others may not come through the folders above.
fn as_user(directory: &Path, user: u32, group: u32, line: &str) -> Answer {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]);
    answer(command.args(["timeout", "20", "sh", "-c", line]).current_dir(directory))
}

#[test]
fn modes_owners_and_times_are_kept() {
    let mut world = World::new();
    for name in ["f", "d"] {
        let path = world.path(name);
        if name == "f" {
            fs::write(&path, b"x").unwrap()
        } else {
            fs::create_dir(&path).unwrap()
        }
        set_mode(&path, 0o1751);
        chown(&path, Some(1234), Some(4321)).unwrap();
        utimens(&path, (5, 6), (1_000_000_000, 123_456_789)).unwrap();
    }
    fs::write(world.path("old"), b"x").unwrap();
    utimens(&world.path("old"), (-5, 0), (-7, 250)).unwrap();
    utimens(&world.path("old"), (9, 0), (0, libc::UTIME_OMIT)).unwrap();
    for _ in 0..2 {
        for name in ["f", "d"] {
            let seen = fs::metadata(world.path(name)).unwrap();
            assert_eq!((seen.mode() & 0o7777, seen.uid(), seen.gid()), (0o1751, 1234, 4321), "{name}");
            assert_eq!((seen.mtime(), seen.mtime_nsec()), (1_000_000_000, 123_456_789), "{name}");
        }
        let old = fs::metadata(world.path("old")).unwrap();
        assert_eq!((old.mtime(), old.mtime_nsec()), (-7, 250));
        world.remount();
    }
    world.check();
}

#[test]
fn writing_moves_the_times_and_reading_does_not() {
    let world = World::new();
    let path = world.path("f");
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
    utimens(&world.path(""), (5, 0), (5, 0)).unwrap();
    fs::write(world.path("g"), b"").unwrap();
    assert!(fs::metadata(world.path("")).unwrap().mtime() > 1_000_000_000);
    world.check();
}

#[test]
fn others_may_do_what_modes_say() {
    let world = World::new();
    let path = |name: &str| name.to_owned();
    fs::write(world.path("mine"), b"secret").unwrap();
    set_mode(&world.path("mine"), 0o600);
    fs::write(world.path("shown"), b"shown").unwrap();
    set_mode(&world.path("shown"), 0o644);
    fs::create_dir(world.path("open")).unwrap();
    set_mode(&world.path("open"), 0o1777);
    fs::write(world.path("open/roots"), b"x").unwrap();
    let nobody = |line: &str| as_user(&world.path(""), NOBODY, NOBODY, line);

    nobody(&format!("cat {}", path("mine"))).failed(1, &["Permission denied"]);
    assert_eq!(nobody(&format!("cat {}", path("shown"))).ok(), "shown");
    nobody(&format!("echo x >> {}", path("shown"))).failed(2, &["Permission denied"]);
    nobody(&format!("echo x > {}", path("new"))).failed(2, &["Permission denied"]);
    nobody(&format!("chmod 777 {}", path("shown"))).failed(1, &["not permitted"]);
    nobody(&format!("rm -f {}", path("shown"))).failed(1, &["Permission denied"]);
    // The sticky bit: everybody may make files, and remove his own.
    nobody(&format!("umask 027; echo his > {}", path("open/his"))).ok();
    nobody(&format!("rm -f {}", path("open/roots"))).failed(1, &["not permitted"]);
    let his = fs::metadata(world.path("open/his")).unwrap();
    assert_eq!((his.uid(), his.gid(), his.mode() & 0o7777), (NOBODY, NOBODY, 0o640));
    nobody(&format!("mv {0}/his {0}/moved && rm {0}/moved", path("open"))).ok();
    world.check();
}

#[test]
fn bits_that_lend_rights_go_when_somebody_else_writes() {
    let world = World::new();
    for line in ["echo x >> FILE", "truncate -s 1 FILE", "echo x > FILE"] {
        let path = world.path("program");
        fs::write(&path, b"#!/bin/sh\n").unwrap();
        set_mode(&path, 0o6777);
        assert_eq!(mode(&path), 0o6777);
        as_user(&world.path(""), NOBODY, NOBODY, &line.replace("FILE", "program")).ok();
        assert_eq!(mode(&path), 0o777, "{line}");
        fs::remove_file(&path).unwrap();
    }
    let path = world.path("given");
    fs::write(&path, b"x").unwrap();
    set_mode(&path, 0o6755);
    chown(&path, Some(NOBODY), None).unwrap();
    assert_eq!(mode(&path), 0o755);
    world.check();
}

#[test]
fn a_directory_of_a_group_hands_the_group_on() {
    let world = World::new();
    let shared = world.path("shared");
    fs::create_dir(&shared).unwrap();
    chown(&shared, None, Some(4321)).unwrap();
    set_mode(&shared, 0o2775);
    fs::write(shared.join("f"), b"x").unwrap();
    fs::create_dir(shared.join("d")).unwrap();
    assert_eq!(fs::metadata(shared.join("f")).unwrap().gid(), 4321);
    let below = fs::metadata(shared.join("d")).unwrap();
    assert_eq!((below.gid(), below.mode() & 0o2000), (4321, 0o2000));
    world.check();
}

#[test]
fn what_stat_shows_once_a_file_is_closed_it_shows_later_too() {
    let world = World::new();
    for name in ["plain", "m.npy"] {
        let path = world.path(name);
        let mut bytes = crate::support::npy_file(&[1; 400_000]);
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        // The kernel may keep what it is told now.
        assert!(file.metadata().unwrap().blocks() > 700);
        drop(file);
        let closed = fs::metadata(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        bytes[399_000] ^= 1;
        file.write_all_at(&bytes[399_000..], 399_000).unwrap();
        assert!(file.metadata().unwrap().blocks() > 700);
        crate::support::names(&world.path(""));
        drop(file);
        let written = fs::metadata(&path).unwrap();
        // What is set has the kernel ask again.
        chown(&path, Some(written.uid()), None).unwrap();
        let asked = fs::metadata(&path).unwrap().blocks();
        assert_eq!((closed.blocks(), written.blocks()), (asked, asked), "{name}");
    }
    world.check();
}
