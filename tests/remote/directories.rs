//! Remotes and sources that are directories: they go away, are full of odd names, and may not be written to.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use support::{Mounted, Place, answer, assert_same, events, tierfs, wait_until};

use crate::mounted::{Remote, pushed};

const CONFIG: &[u8] = b"{\"model_type\": \"small\"}";

/// Moves the directory of a remote away, and leaves an empty one where it was if `leaves_empty`.
fn take_away(remote: &Remote, leaves_empty: bool) {
    fs::rename(remote.place.path("bucket"), remote.place.path("away")).unwrap();
    if leaves_empty {
        fs::create_dir(remote.place.path("bucket")).unwrap();
    }
}

/// Brings it back.
fn bring_back(remote: &Remote, left_empty: bool) {
    if left_empty {
        fs::remove_dir(remote.place.path("bucket")).unwrap();
    }
    fs::rename(remote.place.path("away"), remote.place.path("bucket")).unwrap();
}

fn says_away(mounted: &Mounted) -> bool {
    let is_away = |text: &str| text.contains("is away") && !text.contains("garbage");
    events(mounted, "remote").iter().any(|event| is_away(event["text"].as_str().unwrap()))
}

/// Compares the files that were read with what they were.
fn shows_what_was_read(mounted: &Mounted, large: &[u8]) {
    assert_eq!(support::names(&mounted.path("acme")), ["m"]);
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), CONFIG);
    assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), large, "large");
    let begun = Instant::now();
    let error = fs::read(mounted.path("acme/m/q8.safetensors")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn a_mount_shows_what_it_has_while_the_directory_is_missing_or_empty() {
    for leaves_empty in [false, true] {
        let remote = pushed();
        let large = fs::read(remote.place.path("in/large.safetensors")).unwrap();
        let mounted = remote.mount(&["--follow", "0.2"]);
        assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), CONFIG);
        assert_same(&fs::read(mounted.path("acme/m/large.safetensors")).unwrap(), &large, "large");
        take_away(&remote, leaves_empty);
        // Each listing of names is asked for again.
        wait_until("the mount tells that the remote is away", || {
            assert_eq!(support::names(&mounted.path("acme")), ["m"]);
            says_away(&mounted)
        });
        shows_what_was_read(&mounted, &large);
        mounted.unmount();
        let mounted = remote.mount(&["--timeout", "2"]);
        shows_what_was_read(&mounted, &large);
        bring_back(&remote, leaves_empty);
        wait_until("the rest is read", || fs::read(mounted.path("acme/m/q8.safetensors")).is_ok());
        mounted.unmount();
    }
}

#[test]
fn a_clone_and_an_open_file_say_that_the_directory_is_away() {
    let remote = pushed();
    let clones = Place::new();
    support::run([Path::new("init"), &clones.store()]).ok();
    answer(tierfs().args(["clone", &remote.url, "acme/m"]).arg(clones.store())).ok();
    for leaves_empty in [false, true] {
        let clone = clones.mount(&[]);
        let (url, uncached) = (PathBuf::from(&remote.url), ["--cache", "none"]);
        let mounted = remote.place.mount_store_by(&mut tierfs(), url, "remote", &uncached);
        let open = File::open(mounted.path("acme/m/large.safetensors")).unwrap();
        take_away(&remote, leaves_empty);
        let read = fs::read(clone.path("acme/m/large.safetensors")).map(drop);
        for outcome in [read, open.read_exact_at(&mut [0; 1000], 20 << 20)] {
            assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        assert!(says_away(&clone) && says_away(&mounted), "{:?}", events(&clone, "remote"));
        assert!(!clone.log().contains("garbage") && !mounted.log().contains("garbage"));
        drop(open);
        bring_back(&remote, leaves_empty);
        clone.unmount();
        mounted.unmount();
    }
}

#[test]
fn a_push_does_not_write_into_an_empty_mount_point() {
    let remote = pushed();
    let (store, url) = (remote.place.store(), remote.url.clone());
    take_away(&remote, true);
    answer(tierfs().arg("push").arg(&store).args(["acme/m", &url])).failed(1, &["not a remote"]);
    assert_eq!(fs::read_dir(remote.place.path("bucket")).unwrap().count(), 0);
}

/// A directory with names that are hard to show.
fn odd_names() -> (Place, PathBuf) {
    let place = Place::new();
    for name in ["checkpoint#1", "shard#00002", "a%20b", "sub/x#3", "sub.d/y", "sub/deep/z"] {
        place.write(&format!("in/m/{name}"), name);
    }
    let directory = place.path("in/m");
    symlink("..", directory.join("sub/loop")).unwrap();
    symlink("itself", directory.join("itself")).unwrap();
    let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"not\xff");
    fs::write(directory.join(name), "no text").unwrap();
    (place, directory)
}

#[test]
fn files_with_numbers_in_their_names_are_shown_and_loops_are_left_out() {
    let (place, directory) = odd_names();
    let url = format!("file://{}", directory.display());
    let above = PathBuf::from(format!("file://{}", place.path("in").display()));
    let mounted = place.mount_store_by(&mut tierfs(), above, "source", &["--cache", "none"]);
    support::run([Path::new("init"), &place.store()]).ok();
    let outcome = answer(tierfs().arg("import").arg(place.store()).args(["t/c", &url]));
    outcome.ok();
    let local = place.mount(&[]);
    for name in ["checkpoint#1", "shard#00002", "a%20b", "sub/x#3", "sub.d/y", "sub/deep/z"] {
        assert_eq!(fs::read_to_string(local.path("t/c").join(name)).unwrap(), name);
        assert_eq!(fs::read_to_string(mounted.path("in/m").join(name)).unwrap(), name);
    }
    local.unmount();
    mounted.unmount();
}

#[test]
fn drafts_of_killed_pushes_are_removed_once_they_are_old_and_hide_nothing() {
    let remote = pushed();
    let bucket = remote.place.path("bucket");
    let mut drafts = Vec::new();
    for (directory, days) in [("piece/00", 3), ("piece/00", 0), ("snap/acme/m", 3), ("head/acme", 3)] {
        let path = bucket.join(directory).join(format!("draft{days}#1"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "begun").unwrap();
        let age = Duration::from_secs(days * 24 * 3600);
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
        drafts.push((path, days > 0));
    }
    let gc = |options: &[&str]| answer(tierfs().arg("gc").arg(&remote.url).args(options)).ok();
    gc(&["--dry-run"]);
    assert!(drafts.iter().all(|(path, _)| path.exists()));
    gc(&[]);
    for (path, is_old) in drafts {
        assert_eq!(path.exists(), !is_old, "{}", path.display());
    }
    let mounted = remote.mount(&[]);
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), CONFIG);
    mounted.unmount();
}

#[test]
fn a_disk_that_refuses_for_good_is_not_tried_again() {
    let remote = pushed();
    let pieces = remote.place.path("bucket/piece");
    fs::remove_dir_all(&pieces).unwrap();
    fs::write(&pieces, "no directory").unwrap();
    remote.place.write("in/sub/more.json", "more");
    remote.place.import("acme/m", &[&remote.place.path("in/sub/more.json")], &[]);
    let begun = Instant::now();
    let push = answer(tierfs().arg("push").arg(remote.place.store()).args(["acme/m", &remote.url]));
    push.failed(1, &["Not a directory"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn a_directory_is_not_mounted_below_itself() {
    let place = Place::new();
    place.write("in/m/file", "text");
    fs::create_dir_all(place.path("in/mnt")).unwrap();
    symlink(place.path("in"), place.path("link")).unwrap();
    for (directory, at) in [("in", "in/mnt"), ("link", "in/mnt"), ("in/m", "in")] {
        let url = format!("file://{}", place.path(directory).display());
        let mount =
            answer(tierfs().args(["mount", "--cache", "none", "-o", "nonempty", &url]).arg(place.path(at)));
        mount.failed(1, &["cannot be mounted on itself"]);
    }
}
