//! Names, modes, owners and refusals.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use support::{Place, as_nobody, imported, names, put, refused, truncate};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn action_files_belong_to_the_owner_and_status_files_to_everybody() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&["--allow-other"]);
    assert_eq!(mode(&mounted.path(".ctl/sync")), 0o600);
    assert_eq!(mode(&mounted.path("demo/.ctl/remove")), 0o600);
    // Each user sees their own jobs.
    assert_eq!(mode(&mounted.path(".ctl/jobs")), 0o666);
    for folder in [".ctl", "demo/.ctl", "demo/model/.ctl"] {
        assert_eq!(mode(&mounted.path(folder)), 0o555);
        assert_eq!(mode(&mounted.path(folder).join("status")), 0o444);
    }
    assert_eq!(names(&mounted.path("demo/.ctl")), ["quota", "remove", "status"]);
    chown(mounted.path("demo/model"), Some(1234), Some(4321)).unwrap();
    let owner = |name: &str| {
        let seen = fs::metadata(mounted.path(name)).unwrap();
        (seen.uid(), seen.gid())
    };
    assert_eq!(owner("demo/model/.ctl/status"), (1234, 4321));
    assert_eq!(owner("demo/.ctl/status"), owner("demo"));
    let folder = &mounted.mountpoint;
    assert!(as_nobody(folder, "cat demo/model/.ctl/status").ok().contains("demo/model"));
    as_nobody(folder, "echo x > .ctl/sync").failed(2, &["Permission denied"]);
    as_nobody(folder, "cat .ctl/sync").failed(1, &["Permission denied"]);
}

#[test]
fn status_files_refuse_writes_and_action_files_refuse_reads() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    for file in [".ctl/status", "demo/.ctl/status", "demo/model/.ctl/verify/a"] {
        let path = mounted.path(file);
        refused(put(&path, "x"), libc::EPERM);
        refused(truncate(&path, 0), libc::EPERM);
        assert!(!fs::read(&path).unwrap().is_empty());
    }
    let sync = mounted.path(".ctl/sync");
    refused(fs::read(&sync), libc::EPERM);
    truncate(&sync, 0).unwrap();
    put(&sync, "now\n").unwrap();
    put(&sync, "").unwrap();
    refused(put(&sync, &"x".repeat(70_000)), libc::EINVAL);
    support::shell(&mounted.mountpoint, "echo 1 > .ctl/sync; echo 1 >> .ctl/sync; : > .ctl/sync");
}

#[test]
fn control_directories_refuse_creation_renames_and_removal() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    for folder in
        [".ctl", "demo/.ctl", "demo/model/.ctl", "demo/model/.ctl/verify", "demo/model/.ctl/verify/deep"]
    {
        let folder = mounted.path(folder);
        let inside = folder.join(if folder.ends_with("verify") { "a" } else { "status" });
        refused(fs::write(folder.join("new"), b"x"), libc::EPERM);
        refused(fs::create_dir(folder.join("new")), libc::EPERM);
        refused(std::os::unix::fs::symlink("a", folder.join("new")), libc::EPERM);
        if inside.exists() {
            refused(fs::remove_file(&inside), libc::EPERM);
            refused(fs::rename(&inside, folder.join("new")), libc::EPERM);
            refused(fs::hard_link(&inside, folder.join("new")), libc::EPERM);
            refused(fs::set_permissions(&inside, PermissionsExt::from_mode(0o777)), libc::EPERM);
        }
        refused(fs::remove_dir(&folder), libc::EPERM);
        refused(fs::metadata(folder.join("new")), libc::ENOENT);
    }
    assert_eq!(fs::read_dir(mounted.path("demo")).unwrap().count(), 1);
}

#[test]
fn control_trees_mirror_the_collection_and_its_modes() {
    let place = Place::new();
    place.write("model/shown", b"for all");
    place.write("model/closed/secret", b"for root");
    let set = |name: &str, mode| {
        fs::set_permissions(place.path(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    set("model/shown", 0o644);
    set("model/closed/secret", 0o600);
    place.import("demo/model", &[&place.path("model")], &[]);
    let mounted = place.mount(&["--allow-other"]);
    fs::set_permissions(mounted.path("demo/model/closed"), PermissionsExt::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink("shown", mounted.path("demo/model/link")).unwrap();
    for tree in ["blocks", "verify"] {
        let tree = mounted.path("demo/model/.ctl").join(tree);
        assert_eq!(names(&tree), ["closed", "shown"]);
        assert_eq!(names(&tree.join("closed")), ["secret"]);
        assert_eq!([mode(&tree), mode(&tree.join("shown"))], [0o555, 0o444]);
        assert_eq!([mode(&tree.join("closed")), mode(&tree.join("closed/secret"))], [0o500, 0o400]);
        assert_eq!(fs::metadata(tree.join("link")).unwrap_err().kind(), ErrorKind::NotFound);
        refused(fs::read_dir(tree.join("shown")), libc::ENOTDIR);
        assert!(fs::read_to_string(tree.join("closed/secret")).is_ok());
    }
    let folder = mounted.path("demo/model/.ctl");
    assert_eq!(as_nobody(&folder, "cat verify/shown").ok(), "ok\n");
    as_nobody(&folder, "ls blocks/closed").failed(2, &["Permission denied"]);
}

#[test]
fn control_files_of_a_read_only_mount_show_but_do_not_act() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&["--read-only"]);
    for file in
        [".ctl/status", "demo/.ctl/status", "demo/model/.ctl/status", "demo/model/.ctl/blocks/deep/er/b"]
    {
        assert!(!fs::read_to_string(mounted.path(file)).unwrap().is_empty(), "{file}");
    }
    refused(put(&mounted.path(".ctl/sync"), "x"), libc::EROFS);
    let opened = fs::OpenOptions::new().write(true).open(mounted.path(".ctl/sync"));
    refused(opened, libc::EROFS);
}

#[test]
fn control_files_of_a_tenant_show_nothing_of_other_tenants() {
    let place = Place::new();
    place.write("mine", b"mine");
    place.write("other", vec![7; 100_000]);
    place.import("acme/first", &[&place.path("mine")], &[]);
    place.import("rival/second", &[&place.path("other")], &[]);
    let mounted = place.mount(&[]);
    let status = fs::read_to_string(mounted.path("acme/.ctl/status")).unwrap();
    assert!(status.contains("acme") && !status.contains("rival") && !status.contains("second"), "{status}");
    let quota = fs::read_to_string(mounted.path("acme/.ctl/quota")).unwrap();
    assert!(quota.contains("files          1\n") && quota.contains("logical bytes  4\n"), "{quota}");
}
