//! Names: where they can be created, renamed, linked, listed and removed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};

use support::{Fixture, SetOnDrop, errno, mkfifo, mknod, names, npy_file, rename_with};

#[test]
fn directories_move_and_are_replaced_only_when_empty() {
    let mut fixture = Fixture::new();
    let at = |name: &str| fixture.path(name);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/b/f"), b"deep").unwrap();
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/x"), b"x").unwrap();
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("file"), b"file").unwrap();
    assert_eq!(errno(fs::rename(at("a"), at("a/b/c/d"))), libc::EINVAL);
    assert_eq!(errno(fs::rename(at("a"), at("full"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::rename(at("a"), at("file"))), libc::ENOTDIR);
    assert_eq!(errno(fs::rename(at("file"), at("empty"))), libc::EISDIR);
    assert_eq!(errno(fs::rename(at("none"), at("new"))), libc::ENOENT);
    assert_eq!(errno(fs::remove_dir(at("full"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_dir(at("file"))), libc::ENOTDIR);
    assert_eq!(errno(fs::remove_file(at("empty"))), libc::EISDIR);
    fs::rename(at("a"), at("empty")).unwrap();
    fs::rename(at("empty/b"), at("b")).unwrap();
    assert_eq!(names(&at("")), ["b", "empty", "file", "full"]);
    assert_eq!(names(&at("b")), ["c", "f"]);
    assert_eq!(fs::metadata(at("b/..")).unwrap().ino(), fs::metadata(at("")).unwrap().ino());
    fixture.remount();
    assert_eq!(fs::read(fixture.path("b/f")).unwrap(), b"deep");
    fixture.check();
}

#[test]
fn rename_without_replacement_keeps_the_existing_file() {
    let fixture = Fixture::new();
    let (one, other) = (fixture.path("one"), fixture.path("other"));
    fs::write(&one, b"1").unwrap();
    fs::write(&other, b"2").unwrap();
    assert_eq!(errno(rename_with(&one, &other, libc::RENAME_NOREPLACE)), libc::EEXIST);
    assert_eq!(errno(rename_with(&one, &other, libc::RENAME_WHITEOUT)), libc::EINVAL);
    assert_eq!((fs::read(&one).unwrap(), fs::read(&other).unwrap()), (b"1".to_vec(), b"2".to_vec()));
    rename_with(&one, &fixture.path("third"), libc::RENAME_NOREPLACE).unwrap();
    assert_eq!(names(&fixture.path("")), ["other", "third"]);
    fs::rename(&other, &other).unwrap();
    fixture.check();
}

#[test]
fn an_exchange_swaps_files_directories_and_containers_at_once() {
    let mut fixture = Fixture::new();
    let at = |name: &str| fixture.path(name);
    let arrays = [1.5_f32, 2.5].map(|value| npy_file(&vec![value.to_le_bytes(); 3000].concat()));
    fs::create_dir_all(at("blue/deep")).unwrap();
    fs::create_dir(at("green")).unwrap();
    fs::write(at("blue/deep/f"), b"blue").unwrap();
    fs::write(at("green/f"), b"green").unwrap();
    fs::write(at("blue/a.npy"), &arrays[0]).unwrap();
    fs::write(at("green/b.npy"), &arrays[1]).unwrap();
    let swap = |one: &str, other: &str| rename_with(&at(one), &at(other), libc::RENAME_EXCHANGE);
    let open = fs::File::open(at("green/f")).unwrap();
    let numbers = ["blue", "green"].map(|name| fs::metadata(at(name)).unwrap().ino());
    swap("blue", "green").unwrap();
    assert_eq!(["green", "blue"].map(|name| fs::metadata(at(name)).unwrap().ino()), numbers);
    assert_eq!(names(&at("blue")), ["b.npy", "f"]);
    assert_eq!(names(&at("green")), ["a.npy", "deep"]);
    assert_eq!(fs::read(at("green/deep/f")).unwrap(), b"blue");
    assert_eq!(std::io::read_to_string(&open).unwrap(), "green");
    // Files in two directories, one of them with tensors.
    swap("green/a.npy", "blue/b.npy").unwrap();
    assert_eq!(fs::read(at("green/a.npy")).unwrap(), arrays[1]);
    assert_eq!(fs::read(at("green/.tensors/a")).unwrap()[..4], 2.5_f32.to_le_bytes());
    assert_eq!(fs::read(at("blue/.tensors/b")).unwrap()[..4], 1.5_f32.to_le_bytes());
    // A file and a directory.
    swap("blue/f", "green/deep").unwrap();
    assert_eq!(fs::read(at("green/deep")).unwrap(), b"green");
    assert_eq!(names(&at("blue/f")), ["f"]);
    swap("blue/f", "blue/f").unwrap();
    for (one, other, error) in [
        ("blue", "blue/f", libc::EINVAL),
        ("blue/f/f", "blue", libc::EINVAL),
        ("blue", "missing", libc::ENOENT),
        ("missing", "blue", libc::ENOENT),
        ("green/deep", "green/a.npy", libc::EINVAL),
        ("green/.tensors/a", "green/a.npy", libc::EPERM),
    ] {
        assert_eq!(errno(swap(one, other)), error, "{one} {other}");
    }
    drop(open);
    fixture.remount();
    assert_eq!(fs::read(fixture.path("green/a.npy")).unwrap(), arrays[1]);
    assert_eq!(fs::read(fixture.path("green/deep")).unwrap(), b"green");
    fixture.check();
}

#[test]
fn hard_links_are_one_file() {
    let mut fixture = Fixture::new();
    let (one, other) = (fixture.path("one"), fixture.path("d/other"));
    fs::create_dir(fixture.path("d")).unwrap();
    fs::write(&one, b"first").unwrap();
    fs::hard_link(&one, &other).unwrap();
    assert_eq!(errno(fs::hard_link(&one, &other)), libc::EEXIST);
    assert_eq!(errno(fs::hard_link(fixture.path("d"), fixture.path("e"))), libc::EPERM);
    let seen = [&one, &other].map(|path| fs::metadata(path).unwrap());
    assert_eq!(seen[0].ino(), seen[1].ino());
    assert_eq!((seen[0].nlink(), seen[1].nlink()), (2, 2));
    fs::write(&other, b"second").unwrap();
    assert_eq!(fs::read(&one).unwrap(), b"second");
    // Two names of one file: the rename does nothing.
    fs::rename(&one, &other).unwrap();
    assert!(one.exists() && other.exists());
    fs::remove_file(&one).unwrap();
    assert_eq!(fs::metadata(&other).unwrap().nlink(), 1);
    fs::hard_link(&other, &one).unwrap();
    fixture.remount();
    assert_eq!(fs::metadata(fixture.path("one")).unwrap().nlink(), 2);
    fs::remove_file(fixture.path("d/other")).unwrap();
    assert_eq!(fs::read(fixture.path("one")).unwrap(), b"second");
    fixture.check();
}

#[test]
fn symbolic_links_may_have_any_target() {
    let mut fixture = Fixture::new();
    fs::write(fixture.path("f"), b"target").unwrap();
    let long = "x/".repeat(2047) + "y";
    let absolute = fixture.path("f");
    let targets = [("beside", "f"), ("nowhere", "gone/away"), ("long", &long)];
    for (name, target) in targets {
        symlink(target, fixture.path(name)).unwrap();
    }
    symlink(&absolute, fixture.path("absolute")).unwrap();
    assert_eq!(errno(symlink("f", fixture.path("beside"))), libc::EEXIST);
    assert_eq!(long.len(), 4095);
    for _ in 0..2 {
        for (name, target) in targets {
            assert_eq!(fs::read_link(fixture.path(name)).unwrap(), Path::new(target));
            assert_eq!(fs::symlink_metadata(fixture.path(name)).unwrap().len(), target.len() as u64);
        }
        assert_eq!(fs::read(fixture.path("beside")).unwrap(), b"target");
        assert_eq!(fs::read(fixture.path("absolute")).unwrap(), b"target");
        assert_eq!(errno(fs::read(fixture.path("nowhere"))), libc::ENOENT);
        fixture.remount();
    }
    fs::remove_file(fixture.path("beside")).unwrap();
    assert!(fixture.path("f").exists());
    fixture.check();
}

#[test]
fn tenants_and_collections_are_directories_with_no_files_beside_them() {
    let mut fixture = Fixture::new();
    let root = |fixture: &Fixture, name: &str| fixture.mounted().path(name);
    fs::create_dir(root(&fixture, "tenant")).unwrap();
    assert_eq!(errno(fs::create_dir(root(&fixture, "tenant"))), libc::EEXIST);
    fs::create_dir(root(&fixture, "tenant/one")).unwrap();
    assert_eq!(errno(fs::create_dir(root(&fixture, "tenant/one"))), libc::EEXIST);
    for place in ["file", "tenant/file"] {
        assert_eq!(errno(fs::write(root(&fixture, place), b"x")), libc::EPERM, "{place}");
        assert_eq!(errno(symlink("x", root(&fixture, place))), libc::EPERM, "{place}");
        assert_eq!(errno(mkfifo(&root(&fixture, place))), libc::EPERM, "{place}");
    }
    fs::write(root(&fixture, "tenant/one/f"), b"kept").unwrap();
    assert_eq!(errno(fs::remove_dir(root(&fixture, "tenant"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_dir(root(&fixture, "tenant/one"))), libc::ENOTEMPTY);
    // Between collections a file is copied, not renamed.
    let (from, to) = (root(&fixture, "tenant/one/f"), fixture.path("f"));
    assert_eq!(errno(fs::rename(&from, &to)), libc::EXDEV);
    assert_eq!(errno(fs::hard_link(&from, &to)), libc::EXDEV);
    fixture.remount();
    assert_eq!(fs::read(root(&fixture, "tenant/one/f")).unwrap(), b"kept");
    fs::remove_file(root(&fixture, "tenant/one/f")).unwrap();
    fs::remove_dir(root(&fixture, "tenant/one")).unwrap();
    assert_eq!(names(&root(&fixture, "tenant")), [""; 0]);
    fs::remove_dir(root(&fixture, "tenant")).unwrap();
    assert_eq!(names(&root(&fixture, "")), ["demo"]);
    fixture.check();
}

#[test]
fn a_collection_created_after_a_removed_one_is_a_new_one() {
    let fixture = Fixture::new();
    let one = fixture.mounted().path("demo/one");
    fs::create_dir(&one).unwrap();
    fs::write(one.join("f"), b"old bytes").unwrap();
    let old = fs::File::open(one.join("f")).unwrap();
    let (directory, file) = (fs::metadata(&one).unwrap().ino(), old.metadata().unwrap().ino());
    fs::remove_file(one.join("f")).unwrap();
    fs::remove_dir(&one).unwrap();
    fs::create_dir(&one).unwrap();
    fs::write(one.join("f"), b"new").unwrap();
    assert_ne!(fs::metadata(&one).unwrap().ino(), directory);
    assert_ne!(fs::metadata(one.join("f")).unwrap().ino(), file);
    assert_eq!(fs::read(one.join("f")).unwrap(), b"new");
    drop(old);
    fixture.check();
}

#[test]
fn names_are_any_bytes_up_to_255() {
    let mut fixture = Fixture::new();
    let longest = "n".repeat(255);
    let too_long = "n".repeat(256);
    let odd = OsStr::from_bytes(b"\xff\xfe not text\n");
    fs::write(fixture.path(&longest), b"long").unwrap();
    fs::write(fixture.path("").join(odd), b"odd").unwrap();
    let path = fixture.path(&too_long);
    assert_eq!(errno(fs::write(&path, b"x")), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::metadata(&path)), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::create_dir(&path)), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::rename(fixture.path(&longest), &path)), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::hard_link(fixture.path(&longest), &path)), libc::ENAMETOOLONG);
    assert_eq!(errno(symlink("x", &path)), libc::ENAMETOOLONG);
    fixture.remount();
    assert_eq!(fs::read(fixture.path(&longest)).unwrap(), b"long");
    assert_eq!(fs::read(fixture.path("").join(odd)).unwrap(), b"odd");
    assert_eq!(fs::read_dir(fixture.path("")).unwrap().count(), 2);
    fixture.check();
}

#[test]
fn devices_fifos_and_sockets_are_refused() {
    let fixture = Fixture::new();
    assert_eq!(errno(mkfifo(&fixture.path("fifo"))), libc::EPERM);
    for kind in [libc::S_IFCHR, libc::S_IFBLK, libc::S_IFSOCK] {
        assert_eq!(errno(mknod(&fixture.path("node"), kind | 0o600)), libc::EPERM);
    }
    mknod(&fixture.path("plain"), libc::S_IFREG | 0o600).unwrap();
    assert_eq!(names(&fixture.path("")), ["plain"]);
    fixture.check();
}

/// Lists a directory and counts how often each name was seen.
fn counted(path: &Path) -> HashMap<String, u32> {
    let mut seen = HashMap::new();
    for entry in fs::read_dir(path).unwrap() {
        *seen.entry(entry.unwrap().file_name().into_string().unwrap()).or_default() += 1;
    }
    seen
}

#[test]
fn unchanged_names_are_listed_once_while_others_change() {
    let fixture = Fixture::new();
    let of_files = fixture.path("");
    let of_collections = fixture.mounted().path("demo");
    for number in 0..700 {
        fs::write(of_files.join(format!("stays-{number}")), b"").unwrap();
    }
    for number in 0..60 {
        fs::create_dir(of_collections.join(format!("stays-{number:02}-{}", "x".repeat(200)))).unwrap();
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !ended.load(Ordering::Relaxed) {
                turn = (turn + 1) % 40;
                let (file, moved) = (of_files.join(format!("n{turn}")), of_files.join(format!("m{turn}")));
                fs::write(&file, b"x").unwrap();
                fs::rename(&file, &moved).unwrap();
                fs::remove_file(&moved).unwrap();
                let collection = of_collections.join(format!("a{turn}"));
                fs::create_dir(&collection).unwrap();
                fs::remove_dir(&collection).unwrap();
            }
        });
        let _ends = SetOnDrop(&ended);
        for _ in 0..20 {
            for (path, stays) in [(&of_files, 700), (&of_collections, 60)] {
                let seen = counted(path);
                let kept: Vec<_> = seen.iter().filter(|(name, _)| name.starts_with("stays-")).collect();
                assert_eq!(kept.len(), stays, "of {}", path.display());
                assert!(kept.iter().all(|(_, count)| **count == 1), "a name twice in {}", path.display());
            }
        }
    });
    fixture.check();
}

#[test]
fn a_directory_or_link_that_is_removed_or_replaced_stays_what_it_was_for_those_who_have_it() {
    let fixture = Fixture::new();
    let (path, other) = (fixture.path("d"), fixture.path("other"));
    for replaces in [false, true] {
        let remove = |remove: fn(&Path) -> std::io::Result<()>| {
            if replaces { fs::rename(&other, &path) } else { remove(&path) }.unwrap();
        };
        fs::create_dir(&path).unwrap();
        let open = fs::File::open(&path).unwrap();
        let before = open.metadata().unwrap();
        if replaces {
            fs::create_dir(&other).unwrap();
        }
        remove(|path| fs::remove_dir(path));
        let now = open.metadata().unwrap();
        assert!(now.is_dir() && (now.ino(), now.mode()) == (before.ino(), before.mode()), "{replaces}");
        let below = rustix::fs::openat(&open, "x", OFlags::RDONLY, Mode::empty());
        assert_eq!(below.unwrap_err(), rustix::io::Errno::NOENT, "{replaces}");
        if replaces {
            fs::remove_dir(&path).unwrap();
        }
        symlink("before", &path).unwrap();
        let link = rustix::fs::open(&path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap();
        if replaces {
            symlink("after", &other).unwrap();
        }
        remove(|path| fs::remove_file(path));
        let target = rustix::fs::readlinkat(&link, "", Vec::new()).unwrap();
        assert_eq!(target.to_bytes(), b"before", "{replaces}");
        if replaces {
            fs::remove_file(&path).unwrap();
        }
    }
    fixture.check();
}
