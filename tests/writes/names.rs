//! Names: what can be made where, renamed, linked, listed and removed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::calls::{Ends, World, errno, mkfifo, mknod, rename_with};
use crate::support::names;

#[test]
fn directories_move_and_are_replaced_only_when_empty() {
    let mut world = World::new();
    let at = |name: &str| world.path(name);
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
    world.remount();
    assert_eq!(fs::read(world.path("b/f")).unwrap(), b"deep");
    world.check();
}

#[test]
fn rename_keeps_what_is_there_when_asked_to() {
    let world = World::new();
    let (one, other) = (world.path("one"), world.path("other"));
    fs::write(&one, b"1").unwrap();
    fs::write(&other, b"2").unwrap();
    assert_eq!(errno(rename_with(&one, &other, libc::RENAME_NOREPLACE)), libc::EEXIST);
    assert_eq!(errno(rename_with(&one, &other, libc::RENAME_EXCHANGE)), libc::EINVAL);
    assert_eq!((fs::read(&one).unwrap(), fs::read(&other).unwrap()), (b"1".to_vec(), b"2".to_vec()));
    rename_with(&one, &world.path("third"), libc::RENAME_NOREPLACE).unwrap();
    assert_eq!(names(&world.path("")), ["other", "third"]);
    fs::rename(&other, &other).unwrap();
    world.check();
}

#[test]
fn hard_links_are_one_file() {
    let mut world = World::new();
    let (one, other) = (world.path("one"), world.path("d/other"));
    fs::create_dir(world.path("d")).unwrap();
    fs::write(&one, b"first").unwrap();
    fs::hard_link(&one, &other).unwrap();
    assert_eq!(errno(fs::hard_link(&one, &other)), libc::EEXIST);
    assert_eq!(errno(fs::hard_link(world.path("d"), world.path("e"))), libc::EPERM);
    let seen = [&one, &other].map(|path| fs::metadata(path).unwrap());
    assert_eq!(seen[0].ino(), seen[1].ino());
    assert_eq!((seen[0].nlink(), seen[1].nlink()), (2, 2));
    fs::write(&other, b"second").unwrap();
    assert_eq!(fs::read(&one).unwrap(), b"second");
    // Two names of one file: nothing is done.
    fs::rename(&one, &other).unwrap();
    assert!(one.exists() && other.exists());
    fs::remove_file(&one).unwrap();
    assert_eq!(fs::metadata(&other).unwrap().nlink(), 1);
    fs::hard_link(&other, &one).unwrap();
    world.remount();
    assert_eq!(fs::metadata(world.path("one")).unwrap().nlink(), 2);
    fs::remove_file(world.path("d/other")).unwrap();
    assert_eq!(fs::read(world.path("one")).unwrap(), b"second");
    world.check();
}

#[test]
fn symbolic_links_lead_anywhere() {
    let mut world = World::new();
    fs::write(world.path("f"), b"target").unwrap();
    let long = "x/".repeat(2047) + "y";
    let absolute = world.path("f");
    let targets = [("beside", "f"), ("nowhere", "gone/away"), ("long", &long)];
    for (name, target) in targets {
        symlink(target, world.path(name)).unwrap();
    }
    symlink(&absolute, world.path("absolute")).unwrap();
    assert_eq!(errno(symlink("f", world.path("beside"))), libc::EEXIST);
    assert_eq!(long.len(), 4095);
    for _ in 0..2 {
        for (name, target) in targets {
            assert_eq!(fs::read_link(world.path(name)).unwrap(), Path::new(target));
            assert_eq!(fs::symlink_metadata(world.path(name)).unwrap().len(), target.len() as u64);
        }
        assert_eq!(fs::read(world.path("beside")).unwrap(), b"target");
        assert_eq!(fs::read(world.path("absolute")).unwrap(), b"target");
        assert_eq!(errno(fs::read(world.path("nowhere"))), libc::ENOENT);
        world.remount();
    }
    fs::remove_file(world.path("beside")).unwrap();
    assert!(world.path("f").exists());
    world.check();
}

#[test]
fn tenants_and_collections_are_directories_without_files_beside_them() {
    let mut world = World::new();
    let root = |world: &World, name: &str| world.mounted().path(name);
    fs::create_dir(root(&world, "tenant")).unwrap();
    assert_eq!(errno(fs::create_dir(root(&world, "tenant"))), libc::EEXIST);
    fs::create_dir(root(&world, "tenant/one")).unwrap();
    assert_eq!(errno(fs::create_dir(root(&world, "tenant/one"))), libc::EEXIST);
    for place in ["file", "tenant/file"] {
        assert_eq!(errno(fs::write(root(&world, place), b"x")), libc::EPERM, "{place}");
        assert_eq!(errno(symlink("x", root(&world, place))), libc::EPERM, "{place}");
        assert_eq!(errno(mkfifo(&root(&world, place))), libc::EPERM, "{place}");
    }
    fs::write(root(&world, "tenant/one/f"), b"kept").unwrap();
    assert_eq!(errno(fs::remove_dir(root(&world, "tenant"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_dir(root(&world, "tenant/one"))), libc::ENOTEMPTY);
    // Between collections a file is copied, not renamed.
    let (from, to) = (root(&world, "tenant/one/f"), world.path("f"));
    assert_eq!(errno(fs::rename(&from, &to)), libc::EXDEV);
    assert_eq!(errno(fs::hard_link(&from, &to)), libc::EXDEV);
    world.remount();
    assert_eq!(fs::read(root(&world, "tenant/one/f")).unwrap(), b"kept");
    fs::remove_file(root(&world, "tenant/one/f")).unwrap();
    fs::remove_dir(root(&world, "tenant/one")).unwrap();
    assert_eq!(names(&root(&world, "tenant")), [""; 0]);
    fs::remove_dir(root(&world, "tenant")).unwrap();
    assert_eq!(names(&root(&world, "")), ["t"]);
    world.check();
}

#[test]
fn a_collection_made_after_another_went_is_not_that_one() {
    let world = World::new();
    let one = world.mounted().path("t/one");
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
    world.check();
}

#[test]
fn names_are_any_bytes_up_to_255() {
    let mut world = World::new();
    let longest = "n".repeat(255);
    let too_long = "n".repeat(256);
    let odd = OsStr::from_bytes(b"\xff\xfe not text\n");
    fs::write(world.path(&longest), b"long").unwrap();
    fs::write(world.path("").join(odd), b"odd").unwrap();
    let path = world.path(&too_long);
    assert_eq!(errno(fs::write(&path, b"x")), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::metadata(&path)), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::create_dir(&path)), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::rename(world.path(&longest), &path)), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::hard_link(world.path(&longest), &path)), libc::ENAMETOOLONG);
    assert_eq!(errno(symlink("x", &path)), libc::ENAMETOOLONG);
    world.remount();
    assert_eq!(fs::read(world.path(&longest)).unwrap(), b"long");
    assert_eq!(fs::read(world.path("").join(odd)).unwrap(), b"odd");
    assert_eq!(fs::read_dir(world.path("")).unwrap().count(), 2);
    world.check();
}

#[test]
fn devices_fifos_and_sockets_are_refused() {
    let world = World::new();
    assert_eq!(errno(mkfifo(&world.path("fifo"))), libc::EPERM);
    for kind in [libc::S_IFCHR, libc::S_IFBLK, libc::S_IFSOCK] {
        assert_eq!(errno(mknod(&world.path("node"), kind | 0o600)), libc::EPERM);
    }
    mknod(&world.path("plain"), libc::S_IFREG | 0o600).unwrap();
    assert_eq!(names(&world.path("")), ["plain"]);
    world.check();
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
fn names_that_stay_are_listed_once_while_others_come_and_go() {
    let world = World::new();
    let of_files = world.path("");
    let of_collections = world.mounted().path("t");
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
        let _ends = Ends(&ended);
        for _ in 0..20 {
            for (path, stays) in [(&of_files, 700), (&of_collections, 60)] {
                let seen = counted(path);
                let kept: Vec<_> = seen.iter().filter(|(name, _)| name.starts_with("stays-")).collect();
                assert_eq!(kept.len(), stays, "of {}", path.display());
                assert!(kept.iter().all(|(_, count)| **count == 1), "a name twice in {}", path.display());
            }
        }
    });
    world.check();
}
