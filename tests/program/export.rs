//! `tierfs export` writes only below its destination, also if the collection or the destination has links that lead
//! elsewhere.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use support::{Answer, Place, Random, npy_file, run};

/// A store whose collection `t/c` is made by `fill` through a mount, and a folder with a secret.
fn stored(fill: impl FnOnce(&Path, &Path)) -> (Place, PathBuf) {
    let place = Place::new();
    place.write("outside/secret", "secret");
    let outside = place.path("outside");
    fs::set_permissions(outside.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    fill(&mounted.path("t/c"), &outside);
    mounted.unmount();
    (place, outside)
}

fn export(place: &Place, path: &str, to: &Path, more: &[&str]) -> Answer {
    let mut arguments: Vec<&OsStr> = vec!["export".as_ref()];
    arguments.extend(more.iter().map(OsStr::new));
    let store = place.store();
    arguments.extend([store.as_os_str(), path.as_ref(), to.as_os_str()]);
    run(arguments)
}

/// The secret is unchanged, and no file stands beside it.
#[track_caller]
fn untouched(outside: &Path) {
    let names: Vec<_> = fs::read_dir(outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["secret"]);
    assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
    assert_eq!(fs::metadata(outside.join("secret")).unwrap().mode() & 0o7777, 0o600);
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn links_of_a_collection_are_copied_as_links_and_nothing_is_written_through_them() {
    let (place, outside) = stored(|folder, outside| {
        for name in ["a", "z"] {
            symlink(outside.join("secret"), folder.join(format!("{name}.tierfs-partial"))).unwrap();
            fs::write(folder.join(name), [7; 30_000]).unwrap();
        }
        symlink(outside, folder.join("folder")).unwrap();
        symlink("nowhere", folder.join("dangling")).unwrap();
        fs::write(folder.join("n".repeat(255)), "long").unwrap();
    });
    let to = place.path("to");
    // The second time all names exist already.
    for _ in 0..2 {
        export(&place, "t/c", &to, &[]).ok();
        untouched(&outside);
        let wanted =
            ["a", "a.tierfs-partial", "dangling", "folder", &"n".repeat(255), "z", "z.tierfs-partial"];
        assert_eq!(names(&to), wanted);
        for name in ["a", "z"] {
            assert_eq!(fs::read(to.join(name)).unwrap(), [7; 30_000]);
            let link = to.join(format!("{name}.tierfs-partial"));
            assert_eq!(fs::read_link(link).unwrap(), outside.join("secret"));
        }
        assert_eq!(fs::read_link(to.join("folder")).unwrap(), outside);
        assert_eq!(fs::read_link(to.join("dangling")).unwrap(), Path::new("nowhere"));
    }
    // A link by its own name, onto an existing link.
    let one = place.path("one");
    symlink(outside.join("secret"), &one).unwrap();
    export(&place, "t/c/dangling", &one, &[]).ok();
    assert_eq!(fs::read_link(&one).unwrap(), Path::new("nowhere"));
    untouched(&outside);
}

#[test]
fn links_in_the_destination_are_replaced_or_refused_and_never_followed() {
    let (place, outside) = stored(|folder, _| {
        fs::create_dir_all(folder.join("d/deep")).unwrap();
        fs::write(folder.join("d/deep/secret"), "other").unwrap();
        fs::write(folder.join("f.npy"), npy_file(&Random(1).floats(100))).unwrap();
        fs::set_permissions(folder.join("f.npy"), fs::Permissions::from_mode(0o644)).unwrap();
    });
    for (case, more) in [&[][..], &["--as", "f16"], &["--as", "q8"]].into_iter().enumerate() {
        let to = place.path(format!("to{case}"));
        fs::create_dir(&to).unwrap();
        // In place of a file: the link is replaced, and its target stays.
        symlink(outside.join("secret"), to.join("f.npy")).unwrap();
        symlink(outside.join("new"), to.join("f.npy.tierfs-partial")).unwrap();
        export(&place, "t/c", &to, more).ok();
        untouched(&outside);
        assert!(fs::symlink_metadata(to.join("f.npy")).unwrap().is_file());
        assert_eq!(fs::read_link(to.join("f.npy.tierfs-partial")).unwrap(), outside.join("new"));
        // In place of a directory, at each depth.
        for name in ["d/deep", "d"] {
            fs::remove_dir_all(to.join(name)).unwrap();
            symlink(&outside, to.join(name)).unwrap();
            let error = export(&place, "t/c", &to, more).failed(1, &["symbolic link"]);
            assert!(error.contains(to.join(name).to_str().unwrap()), "{error}");
            untouched(&outside);
            fs::remove_file(to.join(name)).unwrap();
            fs::create_dir(to.join(name)).unwrap();
        }
        export(&place, "t/c", &to, more).ok();
        assert_eq!(fs::read(to.join("d/deep/secret")).unwrap(), b"other");
        // A single file into a directory where a link has its name.
        fs::remove_file(to.join("f.npy")).unwrap();
        symlink(outside.join("secret"), to.join("f.npy")).unwrap();
        export(&place, "t/c/f.npy", &to, more).ok();
        assert!(fs::symlink_metadata(to.join("f.npy")).unwrap().is_file());
        untouched(&outside);
        assert!(names(&to).iter().all(|name| !name.starts_with(".tierfs")), "{:?}", names(&to));
    }
    // The user names the destination itself, so its links are followed.
    symlink(place.path("to0"), place.path("link")).unwrap();
    export(&place, "t/c", &place.path("link"), &[]).ok();
    export(&place, "t/c/f.npy", &place.path("link/new-name"), &[]).ok();
    assert!(place.path("to0/new-name").is_file());
}

#[test]
fn a_mounted_store_is_exported_through_its_mount() {
    let (place, outside) = stored(|folder, outside| {
        fs::create_dir_all(folder.join("d/deep")).unwrap();
        fs::write(folder.join("d/deep/file"), [7; 30_000]).unwrap();
        fs::write(folder.join("f.npy"), npy_file(&Random(1).floats(100_000))).unwrap();
        fs::set_permissions(folder.join("f.npy"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink(outside, folder.join("d/link")).unwrap();
    });
    let cases = [("t/c", &[][..]), ("t/c/d/", &[]), ("t/c", &["--as", "f16"]), ("t/c/f", &["--as", "npy"])];
    for (case, (path, more)) in cases.into_iter().enumerate() {
        export(&place, path, &place.path(format!("one{case}")), more).ok();
    }
    let compare = |store: &Path| {
        for (case, (path, more)) in cases.into_iter().enumerate() {
            let (one, other) = (place.path(format!("one{case}")), place.path(format!("other{case}")));
            let mut arguments: Vec<&OsStr> = vec!["export".as_ref()];
            arguments.extend(more.iter().map(OsStr::new));
            arguments.extend([store.as_os_str(), path.as_ref(), other.as_os_str()]);
            run(arguments).ok();
            let compare = format!("diff -r --no-dereference {} {}", one.display(), other.display());
            support::shell(&place.path(""), &compare);
            support::shell(&place.path(""), &format!("rm -r {}", other.display()));
        }
    };
    let mounted = place.mount(&[]);
    compare(&place.store());
    compare(&mounted.mountpoint);
    let to = place.path("new");
    export(&place, "t/c/f.npy", &to, &[]).ok();
    let found = fs::metadata(&to).unwrap();
    assert_eq!(
        (found.mode() & 0o7777, found.mtime()),
        (0o640, fs::metadata(mounted.path("t/c/f.npy")).unwrap().mtime())
    );
    export(&place, "t/c/d/link", &place.path("link"), &[]).ok();
    assert_eq!(fs::read_link(place.path("link")).unwrap(), outside);
    export(&place, "t/c/d/link/secret", &to, &[]).failed(1, &["link"]);
    export(&place, "t/c/none", &to, &[]).failed(1, &["none"]);
    mounted.unmount();
    let mounted = place.mount(&["--read-only"]);
    compare(&mounted.mountpoint);
    untouched(&outside);
}
