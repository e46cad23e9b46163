//! Extended attributes of programs, as Linux file systems keep them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use support::{Mounted, Place, Random, get, npy_file, run, set, shell};

fn put(path: &Path, name: &str, value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
    setxattr(path, name, value, flags)
}

/// The names that a listing shows, without those of tierfs, with their values.
fn shown(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut list = vec![0; 70_000];
    let len = listxattr(path, &mut list[..]).unwrap();
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut found = BTreeMap::new();
    for name in names.map(|name| String::from_utf8_lossy(name).into_owned()) {
        if !name.starts_with("user.tierfs.") {
            let mut value = vec![0; 70_000];
            let len = getxattr(path, name.as_str(), &mut value[..]).unwrap();
            value.truncate(len);
            assert_eq!(found.insert(name, value), None);
        }
    }
    found
}

fn pairs<const N: usize>(of: [(&str, &[u8]); N]) -> BTreeMap<String, Vec<u8>> {
    of.into_iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
}

const ANY: XattrFlags = XattrFlags::empty();

fn mounted_with_files() -> (Place, Mounted) {
    let place = Place::new();
    let array = place.write("w.npy", npy_file(&Random(3).floats(5000)));
    place.import("t/c", &[&array], &[]);
    let mounted = place.mount(&["--allow-other"]);
    fs::create_dir(mounted.path("t/c/folder")).unwrap();
    fs::write(mounted.path("t/c/folder/notes"), b"text").unwrap();
    (place, mounted)
}

#[test]
fn files_directories_and_tensors_keep_the_attributes_of_programs() {
    let (place, mounted) = mounted_with_files();
    let bytes: Vec<u8> = (0..=255).collect();
    let paths = ["t/c", "t/c/folder", "t/c/folder/notes", "t/c/w.npy", "t/c/.tensors/w"];
    for path in paths.map(|path| mounted.path(path)) {
        assert_eq!(getxattr(&path, "user.colour", &mut [0; 9][..]), Err(Errno::NODATA));
        let before = fs::metadata(&path).unwrap();
        put(&path, "user.colour", b"purple", ANY).unwrap();
        put(&path, "user.bytes", &bytes, ANY).unwrap();
        put(&path, "user.empty", b"", ANY).unwrap();
        put(&path, "user.\u{fc}ber \u{1f9ca}", b"\xff\0\n", ANY).unwrap();
        put(&path, "user.gone", b"1", ANY).unwrap();
        removexattr(&path, "user.gone").unwrap();
        assert_eq!(removexattr(&path, "user.gone"), Err(Errno::NODATA));
        let after = fs::metadata(&path).unwrap();
        assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
        assert!((before.ctime(), before.ctime_nsec()) < (after.ctime(), after.ctime_nsec()));
    }
    let wanted = pairs([
        ("user.colour", b"purple"),
        ("user.bytes", &bytes),
        ("user.empty", b""),
        ("user.\u{fc}ber \u{1f9ca}", b"\xff\0\n"),
    ]);
    let check = |mounted: &Mounted| {
        for path in paths {
            assert_eq!(shown(&mounted.path(path)), wanted, "{path}");
        }
    };
    check(&mounted);
    fs::hard_link(mounted.path("t/c/folder/notes"), mounted.path("t/c/linked")).unwrap();
    fs::rename(mounted.path("t/c/folder"), mounted.path("t/c/folder2")).unwrap();
    assert_eq!(shown(&mounted.path("t/c/linked")), wanted);
    assert_eq!(shown(&mounted.path("t/c/folder2/notes")), wanted);
    fs::rename(mounted.path("t/c/folder2"), mounted.path("t/c/folder")).unwrap();
    // The attributes of tierfs are those that they were, and theirs do not appear as others'.
    set(&mounted.path("t/c/w.npy"), "lossy", "allow").unwrap();
    assert_eq!(get(&mounted.path("t/c/w.npy"), "lossy"), "allow");
    check(&mounted);
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    check(&mounted);
    fs::write(mounted.path(".ctl/sync"), "1").unwrap();
    fs::write(mounted.path("t/c/.ctl/compact"), "start").unwrap();
    check(&mounted);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    run(["compact".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&["--read-only"]);
    check(&mounted);
    let path = mounted.path("t/c/folder");
    assert_eq!(put(&path, "user.colour", b"red", ANY), Err(Errno::ROFS));
    assert_eq!(removexattr(&path, "user.colour"), Err(Errno::ROFS));
}

#[test]
fn flags_and_bounds_are_those_of_linux() {
    let (_place, mounted) = mounted_with_files();
    let path = mounted.path("t/c/folder/notes");
    assert_eq!(put(&path, "user.a", b"1", XattrFlags::REPLACE), Err(Errno::NODATA));
    put(&path, "user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(put(&path, "user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    put(&path, "user.a", b"three", XattrFlags::REPLACE).unwrap();
    assert_eq!(getxattr_query(&path, "user.a"), Ok(5));
    assert_eq!(getxattr(&path, "user.a", &mut [0; 4][..]), Err(Errno::RANGE));
    assert_eq!(listxattr(&path, &mut [0; 3][..]), Err(Errno::RANGE));
    assert_eq!(put(&path, &format!("user.{}", "n".repeat(251)), b"", ANY), Err(Errno::RANGE));
    assert_eq!(put(&path, "user.large", &vec![0; 65_537], ANY), Err(Errno::TOOBIG));
    // With its name it has more than 64 KiB.
    assert_eq!(put(&path, "user.large", &vec![7; 65_536], ANY), Err(Errno::NOSPC));
    put(&path, "user.large", &vec![7; 60_000], ANY).unwrap();
    assert_eq!(put(&path, "user.more", &vec![7; 6000], ANY), Err(Errno::NOSPC));
    put(&path, "user.large", &vec![7; 61_000], ANY).unwrap();
    assert_eq!(shown(&path), pairs([("user.a", b"three"), ("user.large", &[7; 61_000])]));
    removexattr(&path, "user.large").unwrap();
    for number in 1..64 {
        put(&path, &format!("user.n{number}"), b"", ANY).unwrap();
    }
    assert_eq!(put(&path, "user.n64", b"", ANY), Err(Errno::NOSPC));
    put(&path, "user.n63", b"again", ANY).unwrap();
    removexattr(&path, "user.n1").unwrap();
    put(&path, "user.n64", b"", ANY).unwrap();
    assert_eq!(shown(&path).len(), 64);
    for name in ["security.x", "trusted.x", "system.x"] {
        assert_eq!(put(&path, name, b"1", ANY), Err(Errno::OPNOTSUPP), "{name}");
    }
    for place in ["", "t", ".ctl", "t/c/.as"] {
        let error = put(&mounted.path(place), "user.a", b"1", ANY).unwrap_err();
        assert!([Errno::OPNOTSUPP, Errno::PERM, Errno::ROFS].contains(&error), "{place}: {error}");
    }
    symlink("notes", mounted.path("t/c/folder/link")).unwrap();
    let link = mounted.path("t/c/folder/link");
    assert_eq!(rustix::fs::lsetxattr(&link, "user.a", b"1", ANY), Err(Errno::PERM));
}

/// A directory whose file system has attributes of programs.
fn plain_directory() -> Option<tempfile::TempDir> {
    let place = tempfile::tempdir().unwrap();
    put(place.path(), "user.try", b"1", ANY).is_ok().then_some(place)
}

#[test]
fn copying_programs_carry_attributes_in_and_out() {
    let (_place, mounted) = mounted_with_files();
    let collection = mounted.path("t/c");
    let notes = collection.join("folder/notes");
    put(&notes, "user.colour", b"purple", ANY).unwrap();
    put(&collection.join("folder"), "user.colour", b"green", ANY).unwrap();
    put(&collection.join("w.npy"), "user.model", b"w", ANY).unwrap();
    shell(&collection, "cp -a folder copied; cp -a w.npy w2.npy; rsync -aX folder/ synced/");
    shell(&collection, "tar --xattrs -cf all.tar folder; mkdir out; tar --xattrs -xf all.tar -C out");
    for copy in ["copied", "synced", "out/folder"] {
        let path = collection.join(copy);
        assert_eq!(shown(&path), pairs([("user.colour", b"green")]), "{copy}");
        assert_eq!(shown(&path.join("notes")), pairs([("user.colour", b"purple")]), "{copy}");
    }
    assert_eq!(shown(&collection.join("w2.npy")), pairs([("user.model", b"w")]));
    let Some(plain) = plain_directory() else { return };
    let out = plain.path().join("out");
    shell(&collection, &format!("cp -a folder {}", out.display()));
    assert_eq!(shown(&out.join("notes")), pairs([("user.colour", b"purple")]));
    shell(&collection, &format!("cp -a {} back", out.display()));
    assert_eq!(shown(&collection.join("back/notes")), pairs([("user.colour", b"purple")]));
}

#[test]
fn users_set_attributes_of_files_that_they_may_write() {
    let (_place, mounted) = mounted_with_files();
    let notes = mounted.path("t/c/folder/notes");
    std::os::unix::fs::chown(&notes, Some(4321), Some(4321)).unwrap();
    let as_user = |script: &str| {
        let done = std::process::Command::new("setpriv")
            .args(["--reuid=4321", "--regid=4321", "--clear-groups", "sh", "-c", script])
            .current_dir(mounted.path("t/c/folder"))
            .stderr(std::process::Stdio::null())
            .status();
        done.unwrap().success()
    };
    assert!(as_user("setfattr -n user.own -v 1 notes"));
    assert!(!as_user("setfattr -n user.own -v 1 ."));
    fs::set_permissions(&notes, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    assert!(!as_user("setfattr -n user.own -v 2 notes"));
    assert!(as_user("getfattr -n user.own notes >/dev/null"));
    assert_eq!(shown(&notes), pairs([("user.own", b"1")]));
    fs::remove_file(&notes).unwrap();
    fs::write(&notes, b"new").unwrap();
    assert_eq!(shown(&notes), BTreeMap::new());
}

#[cfg(feature = "remote")]
#[test]
fn snapshots_and_clones_have_the_attributes_of_programs() {
    let (place, mounted) = mounted_with_files();
    put(&mounted.path("t/c/folder/notes"), "user.colour", b"\xff purple", ANY).unwrap();
    put(&mounted.path("t/c/.tensors/w"), "user.model", b"w", ANY).unwrap();
    mounted.unmount();
    let remote = place.path("remote");
    fs::create_dir(&remote).unwrap();
    let url = format!("file://{}", remote.display());
    let store = place.store();
    run(["push".as_ref(), store.as_os_str(), "t/c".as_ref(), url.as_ref(), "--create".as_ref()]).ok();
    run(["clone".as_ref(), url.as_ref(), "t/c=t/k".as_ref(), place.store().as_os_str()]).ok();
    let check = |mounted: &Mounted, collection: &str| {
        let path = mounted.path(collection);
        assert_eq!(
            shown(&path.join("folder/notes")),
            pairs([("user.colour", b"\xff purple")]),
            "{collection}"
        );
        assert_eq!(shown(&path.join(".tensors/w")), pairs([("user.model", b"w")]), "{collection}");
    };
    let mounted = place.mount(&[]);
    check(&mounted, "t/c");
    check(&mounted, "t/k");
    put(&mounted.path("t/k/folder/notes"), "user.colour", b"red", ANY).unwrap();
    check(&mounted, "t/c");
    let read = place.mount_store_by(&mut support::tierfs(), url.into(), "read", &[]);
    check(&read, "t/c");
    assert_eq!(put(&read.path("t/c/folder/notes"), "user.colour", b"red", ANY), Err(Errno::ROFS));
}
