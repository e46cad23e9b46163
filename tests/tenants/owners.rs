//! Owners of tenants and collections, and the permissions of other users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use support::{Place, as_user, put, refused};

const ALICE: u32 = 65_534;
const BOB: u32 = 65_533;

fn owner_of(path: &std::path::Path) -> (u32, u32, u32) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
}

#[test]
fn the_owner_of_a_tenant_creates_collections_and_modes_restrict_others() {
    let place = Place::new();
    let mounted = place.mount(&["--create", "--allow-other"]);
    let root = mounted.mountpoint.clone();
    fs::create_dir(mounted.path("a")).unwrap();
    fs::create_dir(mounted.path("b")).unwrap();
    assert_eq!(owner_of(&mounted.path("a")), (0, 0, 0o755));
    as_user(ALICE, ALICE, &root, "mkdir c").failed(1, &["Permission denied"]);
    as_user(ALICE, ALICE, &root, "mkdir a/c").failed(1, &["Permission denied"]);
    chown(mounted.path("a"), Some(ALICE), Some(ALICE)).unwrap();
    chown(mounted.path("b"), Some(BOB), Some(BOB)).unwrap();
    as_user(ALICE, ALICE, &root, "mkdir a/c && echo x > a/c/f && rmdir b").failed(1, &["Permission denied"]);
    assert_eq!(owner_of(&mounted.path("a/c")), (ALICE, ALICE, 0o755));
    for (line, is_allowed) in [
        ("cat a/c/f", true),
        ("mkdir a/d", false),
        ("echo y > a/c/g", false),
        ("rmdir a/c", false),
        ("chmod 777 a", false),
        ("chown 65533 a", false),
        ("chmod 777 a/c", false),
        ("cat a/.ctl/status", true),
        ("cat a/.ctl/quota", false),
        ("echo files=1 > a/.ctl/quota", false),
        ("echo files=1 > a/c/.ctl/quota", false),
        ("mkdir b/c", true),
        ("cat .ctl/jobs", true),
        ("cat .ctl/events", false),
        ("echo c > a/.ctl/remove", false),
        ("mv a/c b/c2", false),
        ("mv a z", false),
    ] {
        let code = as_user(BOB, BOB, &root, line).code;
        assert_eq!(code == Some(0), is_allowed, "{line}");
    }
    // The mode that the owner sets applies to other users.
    as_user(ALICE, ALICE, &root, "chmod 2770 a && cat a/.ctl/quota && chgrp 65533 a")
        .failed(1, &["permitted"]);
    assert_eq!(owner_of(&mounted.path("a")), (ALICE, ALICE, 0o2770));
    as_user(BOB, BOB, &root, "ls a").failed(2, &["Permission denied"]);
    as_user(BOB, BOB, &root, "cat a/.ctl/status").failed(1, &["Permission denied"]);
    chown(mounted.path("a"), None, Some(BOB)).unwrap();
    fs::set_permissions(mounted.path("a"), fs::Permissions::from_mode(0o2770)).unwrap();
    as_user(BOB, BOB, &root, "mkdir a/d && echo z > a/d/f && chmod 700 a/d").ok();
    assert_eq!(owner_of(&mounted.path("a/d")), (BOB, BOB, 0o2700));
    as_user(ALICE, ALICE, &root, "rmdir a/d").failed(1, &["not empty"]);
    as_user(ALICE, ALICE, &root, "cat a/d/f").failed(1, &["Permission denied"]);
    refused(fs::rename(mounted.path("a"), mounted.path("b")), libc::EEXIST);
    refused(fs::rename(mounted.path("a/c"), mounted.path(".ctl/c")), libc::EPERM);
    fs::rename(mounted.path("a/c"), mounted.path("a/z")).unwrap();
    as_user(ALICE, ALICE, &root, "mv a/z a/c").ok();
    let wanted: Vec<_> = ["a", "b", "a/c", "a/d", "b/c", "a/.ctl", "b/.ctl", "a/.ctl/quota"]
        .map(|path| (path, owner_of(&mounted.path(path))))
        .into();
    assert_eq!(wanted[5].1, (ALICE, BOB, 0o555));
    assert_eq!(wanted[7].1, (ALICE, BOB, 0o600));
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&["--allow-other"]);
    for (path, owner) in wanted {
        assert_eq!(owner_of(&mounted.path(path)), owner, "{path}");
    }
    put(&mounted.path(".ctl/sync"), "1").unwrap();
    as_user(BOB, BOB, &mounted.mountpoint, "rmdir b/c").ok();
    fs::remove_dir(mounted.path("b")).unwrap();
    assert!(!mounted.path("b").exists() && !place.store().join("b").exists());
    fs::create_dir(mounted.path("b")).unwrap();
    assert_eq!(owner_of(&mounted.path("b")), (0, 0, 0o755), "nothing is left of the one that was removed");
}

#[test]
fn a_user_who_may_write_a_directory_cannot_set_attributes_of_all_below_it() {
    let place = Place::new();
    let mounted = place.mount(&["--create", "--allow-other"]);
    let root = mounted.mountpoint.clone();
    let (all, mine) = (mounted.path("a/c/all"), mounted.path("a/c/all/mine"));
    fs::create_dir_all(&mine).unwrap();
    fs::write(mine.join("kept"), [7; 4096]).unwrap();
    let set = |path: &std::path::Path, key: &str, value: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, format!("user.tierfs.{key}"), value.as_bytes(), flags).unwrap();
    };
    set(&mine.join("kept"), "dtype", "f32");
    fs::set_permissions(&mine, fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(&all, fs::Permissions::from_mode(0o777)).unwrap();
    for (key, value) in
        [("lossy", "allow"), ("evict", "discard"), ("policy", "cache:0"), ("tier", "q3:all"), ("pin", "1")]
    {
        let line = format!("setfattr -n user.tierfs.{key} -v '{value}' a/c/all");
        as_user(ALICE, ALICE, &root, &line).failed(1, &["not permitted"]);
    }
    // The mode of a file decides who may write it, and its directory's owner who may remove it.
    as_user(ALICE, ALICE, &root, "echo x > a/c/all/f && setfattr -n user.tierfs.lossy -v allow a/c/all/f")
        .ok();
    as_user(ALICE, ALICE, &root, "mkdir a/c/all/own && setfattr -n user.tierfs.lossy -v allow a/c/all/own")
        .ok();
    set(&all, "lossy", "allow");
    assert_eq!(fs::read(mine.join("kept")).unwrap(), [7; 4096]);
}

#[test]
fn a_tenant_of_an_older_store_belongs_to_the_mount_owner_and_a_damaged_file_closes_it() {
    let place = Place::new();
    let mounted = place.mount(&["--create", "--allow-other"]);
    fs::create_dir_all(mounted.path("old/c")).unwrap();
    fs::create_dir_all(mounted.path("bad/c")).unwrap();
    fs::create_dir_all(mounted.path("huge/c")).unwrap();
    chown(mounted.path("bad"), Some(ALICE), None).unwrap();
    mounted.unmount();
    fs::remove_file(place.store().join("old/.tenant.toml")).unwrap();
    fs::write(place.store().join("bad/.tenant.toml"), "owner = 65534\nmode = \"0777\"\n").unwrap();
    fs::write(place.store().join("huge/.tenant.toml"), vec![b'#'; 1 << 20]).unwrap();
    let mounted = place.mount(&["--allow-other"]);
    assert_eq!(owner_of(&mounted.path("old")), (0, 0, 0o755));
    for tenant in ["bad", "huge"] {
        assert_eq!(owner_of(&mounted.path(tenant)), (0, 0, 0o700));
        let line = format!("ls {tenant}");
        as_user(ALICE, ALICE, &mounted.mountpoint, &line).failed(2, &["Permission denied"]);
        assert!(
            mounted.log().contains(&format!("{tenant}: only the user who runs the mount")),
            "{}",
            mounted.log()
        );
        // The user who runs the mount repairs it.
        chown(mounted.path(tenant), Some(ALICE), Some(ALICE)).unwrap();
        as_user(ALICE, ALICE, &mounted.mountpoint, &format!("mkdir {tenant}/d")).ok();
    }
    let mode = fs::Permissions::from_mode(0o750);
    fs::set_permissions(mounted.path("old"), mode.clone()).unwrap();
    mounted.unmount();
    let mounted = place.mount(&["--read-only", "--allow-other"]);
    assert_eq!(owner_of(&mounted.path("old")), (0, 0, 0o750));
    assert_eq!(owner_of(&mounted.path("bad")), (ALICE, ALICE, 0o700));
    refused(fs::set_permissions(mounted.path("old"), mode), libc::EROFS);
}
