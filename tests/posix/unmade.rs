//! Tenants and collections that the first name in them makes, where the settings of the store say so.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, chown};

use rustix::fs::{Dir, Mode, OFlags, openat};
use support::{
    Mounted, Place, Random, as_nobody, assert_same, container_of, names, refused, replace, run, shell,
};

/// A mount of a new store with this setting.
fn mounted(place: &Place, mkdir: &str, options: &[&str]) -> Mounted {
    run(["init".as_ref(), place.store().as_os_str()]).ok();
    let settings = place.store().join("tierfs.toml");
    let text = fs::read_to_string(&settings).unwrap();
    assert!(text.contains("mkdir = \"explicit\""));
    fs::write(&settings, text.replace("mkdir = \"explicit\"", &format!("mkdir = \"{mkdir}\""))).unwrap();
    place.mount(&[&["--create"], options].concat())
}

#[test]
fn programs_copy_into_tenants_and_collections_that_nobody_has_made() {
    let place = Place::new();
    let model = container_of(&mut Random(3), &[("a", 50_000), ("b", 70)]);
    place.write("in/model.safetensors", &model);
    place.write("in/deep/er/config.json", b"{}");
    let mounted = mounted(&place, "auto", &[]);
    shell(
        &place.path(""),
        "set -e; cp in/model.safetensors mnt/one/m/; cp in/model.safetensors mnt/one/n/renamed.safetensors
         cp -r in/. mnt/two/m; mkdir -p mnt/three/m/sub; rsync -a in/ mnt/four/m/
         tar -C in -c . | tar -C mnt/five/m -x; echo text >mnt/six/m/text; ln -s text mnt/seven/m/link",
    );
    let (root, numbers) = (&mounted.mountpoint, ["five", "four", "one", "seven", "six", "three", "two"]);
    assert_eq!(names(root), numbers);
    assert_eq!(names(&root.join("one")), ["m", "n"]);
    for copied in ["one/m/model.safetensors", "one/n/renamed.safetensors", "two/m/model.safetensors"] {
        assert_same(&fs::read(root.join(copied)).unwrap(), &model, copied);
    }
    shell(&place.path(""), "set -e; for to in two four five; do diff -r in mnt/$to/m; done");
    assert_eq!(fs::metadata(root.join("one/m/.tensors/a")).unwrap().len(), 4 * 50_000);
    mounted.unmount();
    let again = place.mount(&[]);
    assert_same(&fs::read(again.path("one/m/model.safetensors")).unwrap(), &model, "after a remount");
}

#[test]
fn a_name_alone_makes_nothing() {
    let place = Place::new();
    let mounted = mounted(&place, "auto", &[]);
    let directory = mounted.path("t/c");
    assert!(directory.is_dir() && names(&directory).is_empty() && names(&mounted.path("t")).is_empty());
    refused(fs::read(directory.join("x")), libc::ENOENT);
    refused(File::open(directory.join("deep/x")), libc::ENOENT);
    refused(fs::remove_dir(&directory), libc::ENOENT);
    refused(fs::rename(&directory, mounted.path("t/d")), libc::ENOENT);
    // A leading dot is of programs that look for their own files.
    for hidden in [".git", "t/.git", "t/.ctl/status"] {
        refused(fs::metadata(mounted.path(hidden)), libc::ENOENT);
    }
    assert!(names(&mounted.mountpoint).is_empty());
    assert_eq!(names(&place.store()).into_iter().filter(|name| name == "t").count(), 0);
    // Thousands of them are no burden.
    for number in 0..20_000 {
        assert!(fs::metadata(mounted.path(format!("t/{number}"))).unwrap().is_dir());
    }
    fs::write(mounted.path("t/7/x"), b"x").unwrap();
    assert_eq!(names(&mounted.path("t")), ["7"]);
    // An owner makes it too.
    chown(mounted.path("app"), Some(1000), Some(1000)).unwrap();
    assert_eq!(fs::metadata(mounted.path("app")).unwrap().uid(), 1000);
    assert_eq!(names(&mounted.mountpoint), ["app", "t"]);
    // A collection goes to another tenant, also a new one.
    shell(
        &mounted.mountpoint,
        "set -e; mv -T t/7 t/8; mv t/8 new/; test -f new/8/x; rm -r new t; test -z \"$(ls t)\"",
    );
}

#[test]
fn a_directory_that_was_open_before_goes_on_in_the_collection() {
    let place = Place::new();
    let mounted = mounted(&place, "auto", &["--keep-device"]);
    let open = File::open(mounted.path("t/c")).unwrap();
    let make = |name: &str| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = File::from(openat(open.as_fd(), name, flags, Mode::from_raw_mode(0o644)).unwrap());
        std::io::Write::write_all(&mut &file, name.as_bytes()).unwrap();
    };
    make("first");
    fs::write(mounted.path("t/c/beside"), b"beside").unwrap();
    make("second");
    let listed = |directory: &File| {
        let entries = Dir::read_from(directory).unwrap().map(|entry| entry.unwrap());
        let mut found: Vec<String> =
            entries.map(|entry| entry.file_name().to_str().unwrap().to_owned()).collect();
        found.sort();
        found.split_off(2)
    };
    let all = ["beside", "first", "second"];
    assert_eq!(names(&mounted.path("t/c")), all);
    assert_eq!(listed(&open), all);
    for name in all {
        assert_eq!(fs::read(mounted.path("t/c").join(name)).unwrap(), name.as_bytes());
    }
    // The next daemon does not know the first number, and every name leads to the second.
    replace(&mounted);
    assert_eq!(names(&mounted.path("t/c")), all);
    fs::write(mounted.path("u/d/x"), b"x").unwrap();
    let third = openat(open.as_fd(), "third", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR);
    refused(third.map_err(std::io::Error::from), libc::ESTALE);
}

#[test]
fn nobody_makes_what_mkdir_would_refuse() {
    let place = Place::new();
    let mounted = mounted(&place, "auto", &["--allow-other"]);
    // For mkdir(2) it is there.
    fs::create_dir_all(mounted.path("mine/c")).unwrap();
    refused(fs::create_dir(mounted.path("mine/c")), libc::EEXIST);
    fs::write(mounted.path("mine/c/x"), b"x").unwrap();
    chown(mounted.path("theirs"), Some(65_534), Some(65_534)).unwrap();
    let folder = &mounted.mountpoint;
    as_nobody(folder, "echo x >new/c/x").failed(2, &["Permission denied"]);
    as_nobody(folder, "echo x >mine/d/x").failed(2, &["Permission denied"]);
    as_nobody(folder, "echo x >theirs/c/x && cat theirs/c/x").ok();
    assert_eq!(fs::metadata(mounted.path("theirs/c")).unwrap().uid(), 65_534);
    assert_eq!(
        (names(folder), names(&mounted.path("mine"))),
        (vec!["mine".into(), "theirs".into()], vec!["c".into()])
    );
}

#[test]
fn stores_without_the_setting_and_mounts_that_are_only_read_show_what_exists() {
    for (mkdir, options) in [("explicit", &[][..]), ("auto", &["--read-only"])] {
        let place = Place::new();
        let mounted = mounted(&place, mkdir, options);
        refused(fs::metadata(mounted.path("t")), libc::ENOENT);
        refused(fs::write(mounted.path("t/c/x"), b"x"), libc::ENOENT);
    }
}
