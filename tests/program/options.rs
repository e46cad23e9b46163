//! Refused mounts, and the advice of the message.

use std::fs;
use std::os::unix::fs::MetadataExt;

use support::{Place, answer, imported, tierfs};

#[test]
fn a_directory_with_files_is_hidden_only_on_request() {
    let (place, _) = imported(&[]);
    let hidden = place.write("mnt/hidden", b"mine");
    let mountpoint = hidden.parent().unwrap();
    let mut mount = tierfs();
    mount.arg("mount").arg(place.store()).arg(mountpoint);
    answer(&mut mount).failed(1, &[mountpoint.to_str().unwrap(), "not empty", "-o nonempty"]);
    assert_eq!(fs::read(&hidden).unwrap(), b"mine");
    let mounted = place.mount(&["-o", "nonempty"]);
    assert!(!hidden.exists() && mounted.path("demo/model").is_dir());
    mounted.unmount();
    assert_eq!(fs::read(&hidden).unwrap(), b"mine");
}

/// User, group and permission bits.
fn owner(path: &std::path::Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

#[test]
fn a_read_only_mount_shows_the_owner_that_it_is_told() {
    let (place, _) = imported(&[]);
    let refused = |options: &[&str]| {
        let mountpoint = place.path("mnt");
        fs::create_dir_all(&mountpoint).unwrap();
        let mut mount = tierfs();
        mount.arg("mount").arg(place.store()).arg(&mountpoint).args(options);
        answer(&mut mount)
    };
    refused(&["--uid", "7"]).failed(1, &["--read-only"]);
    refused(&["-o", "ro,umask=8"]).failed(2, &["umask", "octal"]);
    let plain = place.mount(&["--read-only"]);
    let paths = ["demo", "demo/model", "demo/model/.tensors", "demo/model/model.safetensors", ".ctl/status"];
    let before = paths.map(|path| owner(&plain.path(path)));
    plain.unmount();
    for options in [
        &["--read-only", "--uid", "4001", "--gid", "4002", "--umask", "027"][..],
        &["-o", "ro,uid=4001,gid=4002,umask=0027"],
    ] {
        let mounted = place.mount(options);
        for (path, (uid, gid, mode)) in paths.iter().zip(before) {
            let shown = if path.starts_with(".ctl") { (uid, gid, mode) } else { (4001, 4002, mode & !0o027) };
            assert_eq!(owner(&mounted.path(path)), shown, "{path}");
        }
        // Listings tell the same.
        for entry in fs::read_dir(mounted.path("demo/model")).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().uid(), 4001);
        }
        let config = fs::read_to_string(mounted.path(".ctl/config")).unwrap();
        assert!(config.contains("uid = 4001") && config.contains("umask = \"0027\""), "{config}");
        mounted.unmount();
    }
}

#[test]
fn a_misspelt_option_and_a_missing_store_are_refused_with_what_to_type() {
    let place = Place::new();
    let (nowhere, mountpoint) = (place.path("nowhere"), place.path("mnt"));
    fs::create_dir(&mountpoint).unwrap();
    let mount = |options: &[&str]| answer(tierfs().arg("mount").arg(&nowhere).arg(&mountpoint).args(options));
    mount(&["-o", "ro,allow_othr"])
        .failed(2, &["allow_othr", "did you mean allow_other", "keep_names=on|off"]);
    let init = format!("tierfs init {}", nowhere.display());
    mount(&[]).failed(1, &[&init, "--create"]);
    assert!(!nowhere.exists());
}
