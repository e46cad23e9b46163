//! Names of tensors in `.tensors`, and entries that have such names.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use support::{
    Fixture, Place, Random, assert_same, container_of, get, header_of, names, npy_file, safetensors_file,
    script, set, tensors_of, try_get,
};

#[track_caller]
fn refused<T>(done: io::Result<T>, errno: i32) {
    assert_eq!(done.err().and_then(|error| error.raw_os_error()), Some(errno));
}

/// A directory with a container and another file.
fn placed(fixture: &Fixture) -> Vec<u8> {
    let bytes =
        container_of(&mut Random(1), &[("w", 20_000), ("blk/0/q", 501), ("blk/0/k", 9), ("blk/1/q", 7)]);
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    fs::write(fixture.path("config.json"), b"{}").unwrap();
    bytes
}

#[test]
fn tensors_are_in_an_unlisted_directory_in_which_nothing_is_made_or_removed() {
    let mut fixture = Fixture::new();
    let bytes = placed(&fixture);
    for _ in 0..2 {
        assert_eq!(names(&fixture.path("")), ["config.json", "m.safetensors"]);
        assert_eq!(names(&fixture.path(".tensors")), ["blk", "w"]);
        assert_eq!(names(&fixture.path(".tensors/blk")), ["0", "1"]);
        assert_eq!(names(&fixture.path(".tensors/m.safetensors/blk/0")), ["k", "q"]);
        for (tensor, data) in tensors_of(&bytes) {
            for place in ["", ".tensors/", ".tensors/m.safetensors/", ".as/f32/.tensors/", ".as/f32/"] {
                assert_same(&fixture.read(&format!("{place}{tensor}")), &data, &format!("{place}{tensor}"));
            }
            let number = fs::metadata(fixture.path(&tensor)).unwrap().ino();
            assert_eq!(fs::metadata(fixture.path(".tensors").join(&tensor)).unwrap().ino(), number);
            assert!(fixture.path(".as/npy").join(format!("{tensor}.npy")).is_file());
            assert!(fixture.read(&format!(".ctl/verify/.tensors/{tensor}")).ends_with(b"ok\n"));
        }
        fixture.remount();
    }
    let at = |name: &str| fixture.path(".tensors").join(name);
    refused(fs::write(at("new"), b"x"), libc::EPERM);
    refused(fs::create_dir(at("blk/new")), libc::EPERM);
    refused(symlink("w", at("link")), libc::EPERM);
    refused(fs::hard_link(fixture.path("config.json"), at("link")), libc::EPERM);
    refused(fs::hard_link(at("w"), fixture.path("link")), libc::EPERM);
    refused(fs::rename(fixture.path("config.json"), at("link")), libc::EPERM);
    refused(fs::rename(at("w"), fixture.path("w2")), libc::EPERM);
    refused(fs::rename(at("blk"), fixture.path("blk2")), libc::EPERM);
    refused(fs::remove_file(at("w")), libc::EPERM);
    refused(fs::remove_dir(at("blk")), libc::EPERM);
    refused(fs::remove_dir(fixture.path(".tensors")), libc::EPERM);
    refused(fs::create_dir(fixture.path(".tensors")), libc::EEXIST);
    refused(fs::rename(fixture.path("config.json"), fixture.path(".tensors")), libc::EISDIR);
    refused(fs::set_permissions(at(""), std::os::unix::fs::PermissionsExt::from_mode(0o700)), libc::EPERM);
    assert!(set(&at(""), "lossy", "allow").is_err() && set(&at("blk"), "tier", "q8").is_err());
    // Attributes and bytes of a tensor can be set there too.
    set(&at("w"), "lossy", "allow").unwrap();
    set(&at("w"), "tier", "q8").unwrap();
    assert_eq!(get(&fixture.path("w"), "tier"), "q8");
    set(&at("blk/0/q"), "pin", "1").unwrap();
    script(&fixture.path(""), "chmod 640 .tensors/w && touch -d @5 .tensors/w").ok();
    let found = fs::metadata(fixture.path("w")).unwrap();
    assert_eq!((found.mode() & 0o777, found.mtime(), found.nlink()), (0o640, 5, 1));
    fixture.check();
}

#[test]
fn an_entry_has_the_name_of_a_tensor_that_stays_in_the_directory_of_tensors() {
    let mut fixture = Fixture::new();
    let bytes = placed(&fixture);
    let at = |name: &str| fixture.path("").join(name);
    // The kernel has looked the names up.
    for (tensor, _) in tensors_of(&bytes) {
        refused(fs::metadata(at(&tensor)), libc::ENOENT);
    }
    fs::rename(at("config.json"), at("w")).unwrap();
    fs::create_dir_all(at("blk/0")).unwrap();
    fs::write(at("blk/0/new"), b"new").unwrap();
    fs::write(at("blk/0/q"), b"x").unwrap();
    for _ in 0..2 {
        assert_eq!(fixture.read("w"), b"{}");
        assert_eq!(fixture.read("blk/0/q"), b"x");
        assert_eq!(names(&fixture.path("")), ["blk", "m.safetensors", "w"]);
        assert_eq!(names(&fixture.path("blk")), ["0"]);
        assert_eq!(names(&fixture.path("blk/0")), ["new", "q"]);
        for (tensor, data) in tensors_of(&bytes) {
            assert_same(&fixture.read(&format!(".tensors/{tensor}")), &data, &tensor);
        }
        fixture.remount();
    }
    script(&fixture.path(""), "rm -r blk && mv w config.json").ok();
    assert_eq!(names(&fixture.path("")), ["config.json", "m.safetensors"]);
    for (tensor, data) in tensors_of(&bytes) {
        assert_same(&fixture.read(&format!(".tensors/{tensor}")), &data, &tensor);
    }
    fixture.check();
}

#[test]
fn names_follow_a_container_that_is_renamed_linked_and_removed_at_once() {
    let mut fixture = Fixture::new();
    let array = Random(2).floats(900);
    let check = |fixture: &Fixture, there: &[&str], gone: &[&str]| {
        for name in there {
            assert_same(&fixture.read(name), &array, name);
            assert_eq!(get(&fixture.path(name), "dtype"), "f32");
        }
        for name in gone {
            assert!(!fixture.path(name).exists(), "{name}");
        }
    };
    fs::create_dir(fixture.path("sub")).unwrap();
    fs::write(fixture.path("x.npy"), npy_file(&array)).unwrap();
    check(&fixture, &["x", ".tensors/x"], &["y"]);
    let (number, id) = (fs::metadata(fixture.path("x")).unwrap().ino(), fixture.attribute("x", "id"));
    fs::rename(fixture.path("x.npy"), fixture.path("y.npy")).unwrap();
    check(&fixture, &["y", ".tensors/y", ".tensors/y.npy/y"], &["x", ".tensors/x", ".tensors/x.npy"]);
    assert_eq!(fs::metadata(fixture.path("y")).unwrap().ino(), number);
    assert_ne!(fixture.attribute("y", "id"), id);
    fs::rename(fixture.path("y.npy"), fixture.path("sub/x.npy")).unwrap();
    check(&fixture, &["sub/x", "sub/.tensors/x"], &["y", "x", ".tensors/y"]);
    fs::hard_link(fixture.path("sub/x.npy"), fixture.path("sub/z.npy")).unwrap();
    fs::hard_link(fixture.path("sub/x.npy"), fixture.path("x.npy")).unwrap();
    for _ in 0..2 {
        check(&fixture, &["sub/x", "sub/z", "x"], &["z"]);
        assert_eq!(names(&fixture.path("sub/.tensors")).len(), 2, "one a name of the file");
        fixture.crash();
    }
    assert_eq!(fixture.attribute("x", "id"), fixture.attribute("sub/x", "id"));
    fs::remove_file(fixture.path("sub/x.npy")).unwrap();
    check(&fixture, &["sub/z", "x"], &["sub/x", "sub/.tensors/x"]);
    fs::rename(fixture.path("sub"), fixture.path("other")).unwrap();
    check(&fixture, &["other/z", "other/.tensors/z", "x"], &["sub/z"]);
    script(&fixture.path(""), "rm -r other x.npy").ok();
    check(&fixture, &[], &["x", ".tensors/x", "other/z"]);
    fixture.check();
}

#[test]
fn an_older_container_renamed_over_a_newer_one_keeps_its_tensors() {
    let mut fixture = Fixture::new();
    let old = container_of(&mut Random(1), &[("w", 20_000), ("only/old", 501)]);
    let new = container_of(&mut Random(2), &[("w", 300), ("only/new", 7)]);
    fs::write(fixture.path("old.safetensors"), &old).unwrap();
    fs::write(fixture.path("new.safetensors"), &new).unwrap();
    fs::rename(fixture.path("old.safetensors"), fixture.path("new.safetensors")).unwrap();
    for _ in 0..2 {
        assert_eq!(names(&fixture.path(".tensors")), ["only", "w"]);
        assert_eq!(names(&fixture.path(".tensors/only")), ["old"]);
        for (tensor, data) in tensors_of(&old) {
            for place in ["", ".tensors/", ".tensors/new.safetensors/"] {
                assert_same(&fixture.read(&format!("{place}{tensor}")), &data, &format!("{place}{tensor}"));
            }
        }
        refused(fs::metadata(fixture.path("only/new")), libc::ENOENT);
        fixture.remount();
    }
}

#[test]
fn of_two_containers_with_a_name_the_one_without_a_variant_has_it() {
    let mut fixture = Fixture::new();
    let (half, full) =
        (container_of(&mut Random(3), &[("w", 90), ("h", 5)]), container_of(&mut Random(4), &[("w", 70)]));
    let first = |fixture: &Fixture, bytes: &[u8]| {
        let data = tensors_of(bytes).into_iter().find(|(name, _)| name == "w").unwrap().1;
        assert_same(&fixture.read("w"), &data, "w");
        assert_same(&fixture.read(".tensors/w"), &data, ".tensors/w");
    };
    fs::write(fixture.path("model.fp16.safetensors"), &half).unwrap();
    first(&fixture, &half);
    assert!(try_get(&fixture.path("model.fp16.safetensors"), "why").is_err());
    fs::write(fixture.path("model.safetensors"), &full).unwrap();
    for _ in 0..2 {
        first(&fixture, &full);
        assert_eq!(names(&fixture.path(".tensors")), ["h", "model.fp16.safetensors", "w"]);
        assert_eq!(names(&fixture.path(".tensors/model.fp16.safetensors")), ["h", "w"]);
        assert_eq!(names(&fixture.path(".tensors/model.safetensors")), ["w"]);
        let data = tensors_of(&half).into_iter().find(|(name, _)| name == "w").unwrap().1;
        assert_same(&fixture.read(".tensors/model.fp16.safetensors/w"), &data, "that of the variant");
        let why = fixture.attribute("model.fp16.safetensors", "why");
        assert!(why.contains(".tensors/model.fp16.safetensors") && why.ends_with(": w"), "{why}");
        assert!(try_get(&fixture.path("model.safetensors"), "why").is_err());
        fixture.remount();
    }
    fs::rename(fixture.path("model.safetensors"), fixture.path("a.safetensors")).unwrap();
    first(&fixture, &full);
    fs::rename(fixture.path("a.safetensors"), fixture.path("z.bf16.safetensors")).unwrap();
    first(&fixture, &half);
    fs::remove_file(fixture.path("model.fp16.safetensors")).unwrap();
    first(&fixture, &full);
    assert_eq!(names(&fixture.path(".tensors")), ["w"]);
    fixture.check();
}

#[test]
fn a_container_with_very_many_taken_names_lists_the_first_only() {
    let fixture = Fixture::new();
    let called: Vec<String> = (0..3000).map(|number| format!("{number:0100}")).collect();
    let tensors: Vec<(&str, usize)> = called.iter().map(|name| (name.as_str(), 1)).collect();
    for (seed, name) in [(7, "1.safetensors"), (8, "2.safetensors")] {
        fs::write(fixture.path(name), container_of(&mut Random(seed), &tensors)).unwrap();
    }
    let why = fixture.attribute("2.safetensors", "why");
    assert!(why.len() < 5000 && why.ends_with("and 2980 more"), "{why}");
    assert_eq!(names(&fixture.path(".tensors/2.safetensors")).len(), 3000);
    assert_eq!(names(&fixture.path(".tensors")).len(), 3001);
    fixture.check();
}

#[test]
fn names_of_containers_come_before_names_of_tensors() {
    let fixture = Fixture::new();
    let bytes = container_of(&mut Random(5), &[("n.safetensors", 50), ("n.safetensors/w", 60), ("x", 7)]);
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    assert_eq!(names(&fixture.path(".tensors")), ["n.safetensors", "n.safetensors%2Fw", "x"]);
    assert!(fixture.path("n.safetensors").is_file());
    fs::create_dir(fixture.path("other")).unwrap();
    fs::write(fixture.path("other/n.safetensors"), container_of(&mut Random(6), &[("y", 8)])).unwrap();
    fs::rename(fixture.path("other/n.safetensors"), fixture.path("").join("n.safetensors")).unwrap();
    assert_eq!(names(&fixture.path(".tensors/n.safetensors")), ["y"]);
    assert_eq!(names(&fixture.path(".tensors/m.safetensors")).len(), 3);
    assert_eq!(fs::metadata(fixture.path(".tensors/m.safetensors/n.safetensors")).unwrap().len(), 200);
    assert!(fixture.attribute("m.safetensors", "why").ends_with(": n.safetensors"));
    fixture.check();
}

#[test]
fn thousands_of_arrays_come_and_are_found_without_looking_at_each_other() {
    let fixture = Fixture::new();
    let started = std::time::Instant::now();
    let make =
        "import numpy, sys\nfor n in range(3000): numpy.save(f'{sys.argv[1]}/{n}.npy', numpy.full(3, n))";
    support::python_line(make, [fixture.path("")]);
    assert_eq!(names(&fixture.path(".tensors")).len(), 3000);
    assert_eq!(fs::metadata(fixture.path("2999")).unwrap().len(), 24);
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    check_listing(&fixture.path(".tensors"));
    fixture.check();
}

#[test]
fn the_command_lists_tensors_of_a_directory_and_of_a_container() {
    let mut fixture = Fixture::new();
    placed(&fixture);
    let (store, at) = (fixture.place.store(), fixture.path(""));
    let listed = |arguments: &[&std::ffi::OsStr]| {
        let listed = support::run(["ls".as_ref()].into_iter().chain(arguments.iter().copied())).json();
        let rows = listed.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned());
        rows.collect::<Vec<_>>()
    };
    let (json, tensors, container) = ("--json".as_ref(), "--tensors".as_ref(), at.join("m.safetensors"));
    assert_eq!(listed(&[at.as_os_str(), json]), ["config.json", "m.safetensors"]);
    assert_eq!(listed(&[at.as_os_str(), tensors, json]), ["blk", "w"]);
    assert_eq!(listed(&[container.as_os_str(), tensors, json]), ["blk", "w"]);
    fixture.unmount();
    let below = |path: &str| listed(&[store.as_os_str(), path.as_ref(), tensors, json]);
    assert_eq!(below("demo/m"), ["blk", "w"]);
    assert_eq!(below("demo/m/m.safetensors"), ["blk", "w"]);
}

/// A directory lists each name once, with any buffer size.
fn check_listing(folder: &Path) {
    let mut seen = std::collections::HashSet::new();
    assert!(fs::read_dir(folder).unwrap().all(|entry| seen.insert(entry.unwrap().file_name())));
}

/// A shard in which `w` and `a` have these values in all their elements.
fn shard(w: f32, a: Option<f32>) -> Vec<u8> {
    let tensors: &[(&str, usize)] = if a.is_some() { &[("a", 4), ("w", 4)] } else { &[("w", 4)] };
    let values = a.into_iter().chain([w]).flat_map(|value| value.to_le_bytes().repeat(4));
    safetensors_file(&header_of(tensors), &values.collect::<Vec<u8>>())
}

const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// An index by which `w` and `a` are in these shards.
fn index(w: usize, a: usize) -> String {
    let text = serde_json::json!({ "metadata": {}, "weight_map": { "w": SHARDS[w], "a": SHARDS[a] } });
    text.to_string()
}

#[track_caller]
fn assert_shown(fixture: &Fixture, w: f32, a: f32) {
    for (name, value) in [("w", w), ("a", a)] {
        let wanted = value.to_le_bytes().repeat(4);
        assert_same(&fixture.read(&format!(".tensors/{name}")), &wanted, name);
        let whole = fixture.read(".as/safetensors/_all.safetensors");
        let found = tensors_of(&whole).into_iter().find(|(found, _)| found == name).unwrap();
        assert_same(&found.1, &wanted, "in the whole collection");
    }
}

#[test]
fn the_index_of_a_sharded_model_says_which_shard_has_a_tensor_in_whatever_order_they_come() {
    const INDEX: &str = "model.safetensors.index.json";
    let files =
        [(SHARDS[0], shard(1.0, Some(3.0))), (SHARDS[1], shard(2.0, Some(4.0))), (INDEX, index(1, 0).into())];
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let mut fixture = Fixture::new();
        for (name, bytes) in order.map(|at| &files[at]) {
            fs::write(fixture.path(name), bytes).unwrap();
        }
        assert_shown(&fixture, 2.0, 3.0);
        fixture.remount();
        assert_shown(&fixture, 2.0, 3.0);
        fixture.check();
    }
    let mut fixture = Fixture::new();
    for (name, bytes) in &files {
        fs::write(fixture.path(name), bytes).unwrap();
    }
    // Written over without a truncation, renamed away and back, removed, and as a temporary file.
    let path = fixture.path(INDEX);
    std::os::unix::fs::FileExt::write_all_at(
        &fs::OpenOptions::new().write(true).open(&path).unwrap(),
        index(0, 1).as_bytes(),
        0,
    )
    .unwrap();
    assert_shown(&fixture, 1.0, 4.0);
    fixture.remount();
    assert_shown(&fixture, 1.0, 4.0);
    let other = fixture.path("old.json");
    fs::rename(&path, &other).unwrap();
    assert_shown(&fixture, 1.0, 3.0);
    fixture.remount();
    assert_shown(&fixture, 1.0, 3.0);
    fs::rename(&other, &path).unwrap();
    assert_shown(&fixture, 1.0, 4.0);
    fs::write(&path, index(1, 0)).unwrap();
    assert_shown(&fixture, 2.0, 3.0);
    // A container that no index names comes after those that one names.
    fs::write(fixture.path("a.safetensors"), shard(7.0, Some(8.0))).unwrap();
    assert_shown(&fixture, 2.0, 3.0);
    fs::rename(fixture.path(SHARDS[1]), fixture.path("z.safetensors")).unwrap();
    assert_shown(&fixture, 7.0, 3.0);
    fs::rename(fixture.path("z.safetensors"), fixture.path(SHARDS[1])).unwrap();
    assert_shown(&fixture, 2.0, 3.0);
    fs::remove_file(&path).unwrap();
    assert_shown(&fixture, 7.0, 8.0);
    fs::write(&path, "{\"weight_map\": {\"w\"").unwrap();
    assert!(get(&path, "why").contains("the names of tensors do not follow it"));
    assert_shown(&fixture, 7.0, 8.0);
    let temporary = fixture.path(".index.Ab12");
    fs::write(&temporary, index(1, 1)).unwrap();
    fs::rename(&temporary, &path).unwrap();
    assert_shown(&fixture, 2.0, 4.0);
    fs::File::options().write(true).truncate(true).open(&path).unwrap();
    assert_shown(&fixture, 7.0, 8.0);
    fs::write(&path, index(1, 1)).unwrap();
    fixture.crash();
    assert_shown(&fixture, 2.0, 4.0);
    fixture.check();
}

#[test]
fn an_imported_index_says_which_shard_has_a_tensor_and_names_missing_shards() {
    let place = Place::new();
    place.write(&format!("m/{}", SHARDS[0]), shard(1.0, Some(3.0)));
    place.write(&format!("m/{}", SHARDS[1]), shard(2.0, Some(4.0)));
    place.write("m/model.safetensors.index.json", index(1, 0));
    let source = place.path("m");
    let imported = place.try_import("demo/m", &[&source], &[]);
    assert!(!imported.err.contains("shards"), "{imported:?}");
    fs::remove_file(source.join(SHARDS[1])).unwrap();
    let missing = place.try_import("demo/part", &[&source], &[]);
    let note = format!("model.safetensors.index.json: it names shards that are missing: {}", SHARDS[1]);
    assert!(missing.err.contains(&note), "{missing:?}");
    let mut fixture = Fixture::unmounted(place);
    fixture.mount();
    assert_shown_in(&fixture);
    fixture.remount();
    assert_shown_in(&fixture);
    fixture.check();
}

fn assert_shown_in(fixture: &Fixture) {
    for (name, value) in [("w", 2.0_f32), ("a", 3.0)] {
        assert_same(&fixture.read(&format!(".tensors/{name}")), &value.to_le_bytes().repeat(4), name);
    }
}
