//! Names that disappear: containers and their tensors as tools see them that remove, move and list directories.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use support::{
    Fixture, Random, assert_same, container_of, names, npy_file, python_line, run, script, set, tensors_of,
};

const TENSORS: [(&str, usize); 4] = [("a", 3000), ("deep/er/b", 501), ("deep/c", 9), ("z", 7)];

/// A directory with containers among other files, and the same directory on the disk.
fn placed(fixture: &Fixture, folder: &str) {
    let here = fixture.place.path(folder);
    fs::create_dir_all(here.join("sub")).unwrap();
    for (seed, name) in [(1, "model.safetensors"), (2, "sub/d.safetensors")] {
        fs::write(here.join(name), container_of(&mut Random(seed), &TENSORS)).unwrap();
    }
    fs::write(here.join("sub/x.npy"), npy_file(&Random(3).floats(1000))).unwrap();
    fs::write(here.join("config.json"), b"{}").unwrap();
    script(&fixture.path(""), &format!("cp -r {} .", here.display())).ok();
    assert_eq!(names(&fixture.path(folder)), ["config.json", "model.safetensors", "sub"]);
    assert_eq!(names(&fixture.path(folder).join(".tensors")), ["a", "deep", "z"]);
}

#[test]
fn tools_that_remove_listed_names_find_every_name() {
    let mut fixture = Fixture::new();
    for remove in [
        "rm -r m",
        "find m -delete",
        "find m -depth -type f -exec rm {} + && find m -depth -type d -exec rmdir {} +",
    ] {
        placed(&fixture, "m");
        script(&fixture.path(""), remove).ok();
        assert!(names(&fixture.path("")).is_empty(), "{remove}");
    }
    placed(&fixture, "m");
    python_line("import shutil, sys; shutil.rmtree(sys.argv[1])", [fixture.path("m")]);
    fixture.crash();
    assert!(names(&fixture.path("")).is_empty());
    fixture.remount();
}

#[test]
fn directories_with_containers_are_moved_whole_to_another_collection() {
    let fixture = Fixture::new();
    placed(&fixture, "m");
    let (demo, source) = (fixture.mounted().path("demo"), fixture.place.path("m"));
    fs::create_dir(demo.join("other")).unwrap();
    script(&demo, &format!("mv m/m other/moved && diff -r {} other/moved", source.display())).ok();
    assert!(names(&demo.join("m")).is_empty());
    let tensor = demo.join("other/moved/.tensors/deep/er/b");
    assert_eq!(fs::metadata(tensor).unwrap().len(), 501 * 4);
    script(&demo, "rm -r other/moved && rmdir other").ok();
    fixture.check();
}

#[test]
fn directories_of_tensors_are_there_for_those_who_make_something_in_them() {
    let mut fixture = Fixture::new();
    let bytes = container_of(&mut Random(4), &TENSORS);
    let place = |fixture: &Fixture| fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    let check = |fixture: &Fixture| {
        for (tensor, data) in tensors_of(&bytes) {
            for place in ["", ".tensors/"] {
                assert_same(&fixture.read(&format!("{place}{tensor}")), &data, &tensor);
            }
        }
    };
    // A directory that existed before.
    fs::create_dir(fixture.path("deep")).unwrap();
    place(&fixture);
    check(&fixture);
    assert!(names(&fixture.path("deep")).is_empty());
    assert_eq!(names(&fixture.path(".tensors/deep")), ["c", "er"]);
    fs::remove_dir(fixture.path("deep")).unwrap();
    set(&fixture.path(""), "plain", "on").unwrap();
    check(&fixture);
    assert_eq!(names(&fixture.path("")), ["m.safetensors"]);
    assert_eq!(names(&fixture.path("deep")), ["c", "er"]);
    // A directory in which a file is created.
    fs::write(fixture.path("deep/er/mine"), b"mine").unwrap();
    for _ in 0..2 {
        check(&fixture);
        assert_eq!(names(&fixture.path("")), ["deep", "m.safetensors"]);
        assert_eq!(names(&fixture.path("deep")), ["er"]);
        assert_eq!(names(&fixture.path("deep/er")), ["mine"]);
        fixture.crash();
    }
    fs::rename(fixture.path("m.safetensors"), fixture.path("m.bin")).unwrap();
    assert!(!fixture.path("deep/er/b").exists() && !fixture.path("a").exists());
    assert!(names(&fixture.path(".tensors")).is_empty());
    assert_eq!(fs::read(fixture.path("deep/er/mine")).unwrap(), b"mine");
    fs::rename(fixture.path("m.bin"), fixture.path("m.safetensors")).unwrap();
    fs::rename(fixture.path("deep"), fixture.path("mine")).unwrap();
    fixture.crash();
    check(&fixture);
    script(&fixture.path(""), "rm -r mine").ok();
    fs::create_dir(fixture.path("sub")).unwrap();
    fs::rename(fixture.path("m.safetensors"), fixture.path("sub/m.safetensors")).unwrap();
    assert_eq!(names(&fixture.path("")), ["sub"]);
    assert_eq!(names(&fixture.path("sub/.tensors")), ["a", "deep", "z"]);
    // The name in the kernel's cache is out of date, so a file can be created under it.
    fs::create_dir(fixture.path("deep")).unwrap();
    fs::write(fixture.path("sub/m.safetensors"), b"no container").unwrap();
    assert!(names(&fixture.path("sub/.tensors")).is_empty());
    fixture.remount();
    assert_eq!(names(&fixture.path("")), ["deep", "sub"]);
}

#[test]
fn a_container_has_its_tensors_in_every_directory_in_which_it_has_a_name() {
    let mut fixture = Fixture::new();
    let bytes = container_of(&mut Random(5), &TENSORS);
    for folder in ["one", "two", "three"] {
        fs::create_dir(fixture.path(folder)).unwrap();
    }
    let check = |fixture: &Fixture, folders: &[&str], others: &[&str]| {
        for folder in folders {
            for (tensor, data) in tensors_of(&bytes) {
                assert_same(&fixture.read(&format!("{folder}/{tensor}")), &data, &tensor);
                assert_same(&fixture.read(&format!("{folder}/.tensors/{tensor}")), &data, &tensor);
            }
        }
        for other in others {
            assert!(!fixture.path(&format!("{other}/a")).exists(), "{other}");
            assert!(names(&fixture.path(&format!("{other}/.tensors"))).is_empty(), "{other}");
        }
    };
    fs::write(fixture.path("one/m.safetensors"), &bytes).unwrap();
    fs::hard_link(fixture.path("one/m.safetensors"), fixture.path("two/m.safetensors")).unwrap();
    check(&fixture, &["one", "two"], &["three"]);
    fs::remove_file(fixture.path("one/m.safetensors")).unwrap();
    check(&fixture, &["two"], &["one"]);
    // Replaced by another file.
    fs::hard_link(fixture.path("two/m.safetensors"), fixture.path("three/n.safetensors")).unwrap();
    fs::write(fixture.path("two/new"), b"{}").unwrap();
    fs::rename(fixture.path("two/new"), fixture.path("two/m.safetensors")).unwrap();
    check(&fixture, &["three"], &["one", "two"]);
    fixture.crash();
    check(&fixture, &["three"], &["one", "two"]);
    fs::hard_link(fixture.path("three/n.safetensors"), fixture.path("one/m.safetensors")).unwrap();
    fs::rename(fixture.path("three/n.safetensors"), fixture.path("three/o.safetensors")).unwrap();
    check(&fixture, &["one", "three"], &["two"]);
    // Its first name determines its content type.
    fs::hard_link(fixture.path("three/o.safetensors"), fixture.path("two/m.bin")).unwrap();
    fs::remove_file(fixture.path("one/m.safetensors")).unwrap();
    check(&fixture, &["two", "three"], &["one"]);
    fs::remove_file(fixture.path("three/o.safetensors")).unwrap();
    check(&fixture, &[], &["one", "two", "three"]);
    assert_same(&fixture.read("two/m.bin"), &bytes, "the file");
    fixture.remount();
    assert_eq!(names(&fixture.path("two")), ["m.bin", "m.safetensors"]);
}

#[test]
fn a_tensor_has_the_name_of_a_directory_that_went_with_the_tensors_before() {
    let mut fixture = Fixture::new();
    let before = container_of(&mut Random(16), &[("d/e/a", 9), ("d/b", 9), ("c", 9)]);
    let after = container_of(&mut Random(17), &[("d", 500), ("c", 9)]);
    let new = fixture.place.write("from/m.safetensors", &after);
    for is_imported in [true, false] {
        fs::write(fixture.path("m.safetensors"), &before).unwrap();
        assert_eq!(names(&fixture.path(".tensors/d")), ["b", "e"]);
        assert_eq!(names(&fixture.path(".tensors")), ["c", "d"]);
        if is_imported {
            run(["import".as_ref(), fixture.place.store().as_os_str(), "demo/m".as_ref(), new.as_os_str()])
                .ok();
        } else {
            // It was not truncated to zero before.
            let file = fs::OpenOptions::new().write(true).open(fixture.path("m.safetensors")).unwrap();
            file.write_all_at(&after, 0).unwrap();
            file.set_len(after.len() as u64).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(names(&fixture.path("")), ["m.safetensors"]);
            assert_eq!(names(&fixture.path(".tensors")), ["c", "d"]);
            for (tensor, data) in tensors_of(&after) {
                assert_same(&fixture.read(&tensor), &data, &tensor);
            }
            fixture.remount();
        }
    }
}

#[test]
fn a_container_whose_first_name_an_import_takes_keeps_its_tensors_beside_the_next() {
    let mut fixture = Fixture::new();
    let bytes = container_of(&mut Random(12), &TENSORS);
    let new = fixture.place.path("from");
    fs::create_dir_all(new.join("one")).unwrap();
    fs::write(new.join("one/m.safetensors"), container_of(&mut Random(13), &[("n", 77)])).unwrap();
    for (round, is_mounted) in [true, false].into_iter().enumerate() {
        let other = format!("other{round}");
        fs::create_dir(fixture.path(&other)).unwrap();
        fs::create_dir_all(fixture.path("one")).unwrap();
        fs::write(fixture.path("one/m.safetensors"), &bytes).unwrap();
        fs::hard_link(fixture.path("one/m.safetensors"), fixture.path(&other).join("m.safetensors")).unwrap();
        assert_eq!(names(&fixture.path("one/.tensors")), ["a", "deep", "z"]);
        if !is_mounted {
            fixture.unmount();
        }
        run(["import".as_ref(), fixture.place.store().as_os_str(), "demo/m".as_ref(), new.as_os_str()]).ok();
        if !is_mounted {
            fixture.mount();
        }
        for _ in 0..2 {
            assert_eq!(names(&fixture.path("one/.tensors")), ["n"]);
            for (tensor, data) in tensors_of(&bytes) {
                assert_same(&fixture.read(&format!("{other}/{tensor}")), &data, &tensor);
            }
            fixture.remount();
        }
    }
}

/// Counts each name in a listing; `meanwhile` runs after the listing has begun.
fn listed(folder: &Path, meanwhile: impl FnOnce()) -> HashMap<Vec<u8>, usize> {
    use std::os::unix::ffi::OsStringExt;
    let mut meanwhile = Some(meanwhile);
    let mut found = HashMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        *found.entry(entry.unwrap().file_name().into_vec()).or_default() += 1;
        if let Some(meanwhile) = meanwhile.take() {
            meanwhile();
        }
    }
    found
}

#[test]
fn a_running_listing_shows_a_name_once_when_another_file_takes_it() {
    let mut fixture = Fixture::new();
    // More names than the kernel asks for at a time.
    let tensors: Vec<String> = (0..2000).map(|number| format!("{number:04}{}", "x".repeat(96))).collect();
    let tensors: Vec<(&str, usize)> = tensors.iter().map(|name| (name.as_str(), 1)).collect();
    tensors.iter().for_each(|(name, _)| fs::write(fixture.path("").join(name), b"").unwrap());
    fs::write(fixture.path("0.json"), b"old").unwrap();
    fs::write(fixture.path("m.safetensors"), container_of(&mut Random(6), &tensors)).unwrap();
    let found = listed(&fixture.path(""), || {
        fs::write(fixture.path("1.json"), b"new").unwrap();
        fs::rename(fixture.path("1.json"), fixture.path("0.json")).unwrap();
    });
    assert_eq!(found.len(), 2002);
    assert_eq!(found.iter().find(|(_, times)| **times != 1), None);
    assert_eq!(fs::read(fixture.path("0.json")).unwrap(), b"new");
    fixture.remount();
    assert_eq!(names(&fixture.path("")).len(), 2002);
    assert_eq!(fs::read(fixture.path("0.json")).unwrap(), b"new");
    // A container that is replaced during the listing: a name appears at most twice, for the old and the new tensor.
    let found = listed(&fixture.path(".tensors"), || {
        fs::write(fixture.path("m.safetensors"), container_of(&mut Random(7), &tensors)).unwrap();
    });
    assert_eq!(found.len(), 2000);
    assert!(found.values().all(|times| *times <= 2));
    assert_eq!(names(&fixture.path(".tensors")).len(), 2000);
}

#[test]
fn a_container_keeps_all_bits_of_its_mode_and_its_tensors_have_its_permissions_and_owner() {
    let mut fixture = Fixture::new();
    let source = fixture.place.path("from");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("tool"), b"#!/bin/sh\n").unwrap();
    fs::write(source.join("m.safetensors"), container_of(&mut Random(8), &TENSORS)).unwrap();
    for (name, mode) in [("tool", 0o6755), ("m.safetensors", 0o5640)] {
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    script(&fixture.path(""), &format!("cp -a {}/. .", source.display())).ok();
    let mode = |fixture: &Fixture, name: &str| fs::metadata(fixture.path(name)).unwrap().mode() & 0o7777;
    for _ in 0..2 {
        assert_eq!(["tool", "m.safetensors", "a"].map(|name| mode(&fixture, name)), [0o6755, 0o5640, 0o640]);
        fixture.remount();
    }
    script(
        &fixture.path(""),
        "chmod 600 m.safetensors; chmod 604 .tensors/deep/c; chown 1234:4321 m.safetensors",
    )
    .ok();
    for _ in 0..2 {
        assert_eq!(["m.safetensors", "a", "deep/c"].map(|name| mode(&fixture, name)), [0o600, 0o600, 0o604]);
        for name in ["m.safetensors", "a", "deep/er/b"] {
            let found = fs::metadata(fixture.path(name)).unwrap();
            assert_eq!((found.uid(), found.gid()), (1234, 4321), "{name}");
        }
        fixture.remount();
    }
}

#[test]
fn tensors_show_new_attributes_of_their_container_at_once() {
    let fixture = Fixture::new();
    fs::write(fixture.path("m.safetensors"), container_of(&mut Random(14), &TENSORS)).unwrap();
    for round in 0..1000_u32 {
        let mode = [0o644, 0o600][round as usize % 2];
        fs::metadata(fixture.path("a")).unwrap();
        fs::set_permissions(fixture.path("m.safetensors"), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(fixture.path("a")).unwrap().mode() & 0o7777, mode, "round {round}");
    }
}

#[test]
fn mode_bits_that_a_container_loses_leave_the_mode_of_its_tensors() {
    let mut fixture = Fixture::new();
    let bytes = container_of(&mut Random(15), &TENSORS);
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    let set = |fixture: &Fixture, name: &str, mode| {
        fs::set_permissions(fixture.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&fixture, "m.safetensors", 0o6755);
    set(&fixture, "a", 0o600);
    set(&fixture, "z", 0o6711);
    let mode = |fixture: &Fixture, name: &str| fs::metadata(fixture.path(name)).unwrap().mode() & 0o7777;
    let file = fs::OpenOptions::new().write(true).open(fixture.path("m.safetensors")).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    drop(file);
    for _ in 0..2 {
        assert_eq!(["m.safetensors", "a", "z"].map(|name| mode(&fixture, name)), [0o755, 0o600, 0o711]);
        fixture.remount();
    }
    // Replacing a container with another user's file gives that user no further rights.
    set(&fixture, "z", 0o6711);
    std::os::unix::fs::chown(fixture.path("m.safetensors"), Some(1234), None).unwrap();
    for _ in 0..2 {
        assert_eq!(["m.safetensors", "a", "z"].map(|name| mode(&fixture, name)), [0o755, 0o600, 0o711]);
        assert_eq!(fs::metadata(fixture.path("z")).unwrap().uid(), 1234);
        fixture.remount();
    }
}

#[test]
fn a_container_renamed_to_the_suffix_of_another_format_becomes_plain_and_loses_its_tensors() {
    let mut fixture = Fixture::new();
    let (array, bytes) = (npy_file(&Random(9).floats(9000)), container_of(&mut Random(10), &TENSORS));
    fs::create_dir(fixture.path("sub")).unwrap();
    for _ in 0..2 {
        fs::write(fixture.path("x.npy"), &array).unwrap();
        fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
        fs::rename(fixture.path("x.npy"), fixture.path("sub/x.safetensors")).unwrap();
        fs::rename(fixture.path("m.safetensors"), fixture.path("m.gguf")).unwrap();
        assert_eq!(names(&fixture.path("")), ["m.gguf", "sub"]);
        assert_eq!(names(&fixture.path("sub")), ["x.safetensors"]);
        let why = "getfattr --only-values -n user.tierfs.why sub/x.safetensors";
        let why = script(&fixture.path(""), why).ok();
        assert!(why.contains("plain file"), "{why}");
        fixture.crash();
        assert_same(&fixture.read("m.gguf"), &bytes, "m.gguf");
        assert_same(&fixture.read("sub/x.safetensors"), &array, "x.safetensors");
        fs::rename(fixture.path("sub/x.safetensors"), fixture.path("x.npy")).unwrap();
        assert_same(&fixture.read("x"), &array[array.len() - 36_000..], "x");
        fs::rename(fixture.path("m.gguf"), fixture.path("m.safetensors")).unwrap();
        for (tensor, data) in tensors_of(&bytes) {
            assert_same(&fixture.read(&tensor), &data, &tensor);
        }
    }
    fixture.remount();
}
