//! ONNX models with external data, in files of the package onnx (`tests/golden/models.py`): the data files have the
//! tensors that onnx loads, in whatever order the files arrive.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use support::protobuf::{field, varint};
use support::{Fixture, Place, assert_same, get, repository, set};

/// The model with its data file, and one whose data file is copied in place.
const PAIRS: [[&str; 2]; 2] = [["beside.onnx", "beside.weights"], ["counts.onnx", "counts.onnx.data"]];

fn golden(name: &str) -> PathBuf {
    repository("tests/golden/models").join(name)
}

fn copy(fixture: &Fixture, name: &str) {
    fs::copy(golden(name), fixture.path(name)).unwrap();
}

fn counts(size: u16) -> Vec<u8> {
    (0..size).flat_map(|count| f32::from(count).to_le_bytes()).collect()
}

/// Compares the files in a directory, and the tensors of the data files with those that onnx loads.
fn compare(folder: &Path) {
    for name in PAIRS.as_flattened() {
        assert_same(&fs::read(folder.join(name)).unwrap(), &fs::read(golden(name)).unwrap(), name);
    }
    let mut all: serde_json::Value =
        serde_json::from_slice(&fs::read(golden("models.json")).unwrap()).unwrap();
    let loaded: Vec<[String; 4]> = serde_json::from_value(all["beside.onnx"].take()).unwrap();
    assert_eq!(loaded.len(), 3);
    for [name, dtype, shape, hex] in loaded {
        let path = folder.join(".tensors/beside.weights").join(&name);
        let found: String = fs::read(&path).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hex, "{name}");
        assert_eq!((get(&path, "dtype"), get(&path, "shape")), (dtype, shape), "{name}");
    }
    for size in [3000, 2500] {
        let name = format!("counts.{size}");
        let tensor = folder.join(".tensors").join(&name);
        assert_same(&fs::read(&tensor).unwrap(), &counts(size), &name);
        assert_eq!(get(&tensor, "shape"), size.to_string());
    }
}

#[test]
fn a_copied_model_and_its_data_file_show_the_tensors_in_either_order() {
    for is_model_first in [true, false] {
        let mut fixture = Fixture::new();
        for [model, data] in PAIRS {
            let order = if is_model_first { [model, data] } else { [data, model] };
            order.into_iter().for_each(|name| copy(&fixture, name));
        }
        compare(&fixture.path(""));
        fixture.crash();
        compare(&fixture.path(""));
        // A copy of both below has them too.
        fs::create_dir(fixture.path("copy")).unwrap();
        PAIRS.as_flattened().iter().for_each(|name| {
            fs::copy(golden(name), fixture.path("copy").join(name)).unwrap();
        });
        compare(&fixture.path("copy"));
    }
}

#[test]
fn an_imported_model_and_its_data_file_show_the_tensors_in_either_order() {
    for options in [&[][..], &["--in-place"], &["--block-bytes", "4096"]] {
        for order in [[0, 1], [1, 0]] {
            let place = Place::new();
            for pair in PAIRS {
                order.into_iter().for_each(|at| place.import("demo/m", &[&golden(pair[at])], options));
            }
            let mounted = place.mount(&[]);
            compare(&mounted.path("demo/m"));
            mounted.unmount();
        }
    }
    // Into a mounted store.
    let place = Place::new();
    place.import("demo/m", &[&golden("beside.weights"), &golden("counts.onnx.data")], &[]);
    let mounted = place.mount(&[]);
    assert_same(&fs::read(mounted.path("demo/m/beside.weights")).unwrap()[..4], &golden_start(), "its bytes");
    place.import("demo/m", &[&golden("beside.onnx"), &golden("counts.onnx")], &[]);
    compare(&mounted.path("demo/m"));
}

fn golden_start() -> [u8; 4] {
    *fs::read(golden("beside.weights")).unwrap().first_chunk().unwrap()
}

#[test]
fn an_import_in_a_tier_encodes_the_tensors_of_a_data_file_that_sorts_before_its_model() {
    let place = Place::new();
    let folder = place.path("source");
    fs::create_dir_all(folder.join("a")).unwrap();
    fs::copy(golden("counts.onnx.data"), folder.join("a/weights")).unwrap();
    fs::write(folder.join("z.onnx"), of_place("counts", &[3000], "a/weights", 0)).unwrap();
    place.import("demo/m", &[&folder], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("demo/m/a/.tensors/weights/counts");
    assert_eq!(get(&tensor, "tier"), "q8");
    assert_eq!(get(&tensor, "shape"), "3000");
}

#[test]
fn tensors_of_a_data_file_move_between_tiers() {
    let fixture = Fixture::new();
    PAIRS.as_flattened().iter().for_each(|name| copy(&fixture, name));
    let name = "counts.onnx.data";
    let before = fixture.read(name);
    set(&fixture.path(name), "lossy", "allow").unwrap();
    set(&fixture.path("counts.3000"), "tier", "q8").unwrap();
    assert_eq!(fixture.attribute("counts.3000", "tier"), "q8");
    let (after, rounded) = (fixture.read(name), fixture.read("counts.3000"));
    assert_ne!(rounded, counts(3000));
    assert_same(&after, &[&rounded[..], &before[12000..]].concat(), "the data file");
    let file = fs::OpenOptions::new().write(true).open(fixture.path("counts.3000")).unwrap();
    file.write_all_at(&counts(3000), 0).unwrap();
    drop(file);
    assert_same(&fixture.read(name), &before, "written again");
}

fn initializer(name: &str, shape: &[u64], location: &str, offset: u64) -> Vec<u8> {
    let pair =
        |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let sizes: Vec<u8> = shape.iter().flat_map(|size| [vec![8], varint(*size)].concat()).collect();
    let parts = [
        sizes,
        vec![16, 1],
        field(8, name.as_bytes()),
        pair("location", location),
        pair("offset", &offset.to_string()),
        vec![112, 1],
    ];
    field(5, &parts.concat())
}

/// A model with one initializer of f32 in another file.
fn of_place(name: &str, shape: &[u64], location: &str, offset: u64) -> Vec<u8> {
    field(7, &initializer(name, shape, location, offset))
}

#[test]
fn tensors_follow_a_data_file_and_its_model_when_they_are_renamed_or_written_again() {
    let fixture = Fixture::new();
    let shown = |path: &str| fs::read(fixture.path(path)).ok();
    let tensors = || shown(".tensors/w.bin/x");
    fs::write(fixture.path("w.bin"), counts(20)).unwrap();
    assert_eq!(tensors(), None);
    fs::write(fixture.path("m.onnx"), of_place("x", &[2, 4], "w.bin", 16)).unwrap();
    assert_same(&tensors().unwrap(), &counts(20)[16..48], "the tensor");
    fs::rename(fixture.path("w.bin"), fixture.path("v.bin")).unwrap();
    assert_eq!((tensors(), shown(".tensors/v.bin/x")), (None, None));
    assert_same(&fixture.read("v.bin"), &counts(20), "under another name");
    fs::rename(fixture.path("v.bin"), fixture.path("w.bin")).unwrap();
    assert_same(&tensors().unwrap(), &counts(20)[16..48], "under its name again");
    // The model gives it other tensors.
    fs::write(fixture.path("m.onnx"), of_place("y", &[3], "w.bin", 0)).unwrap();
    assert_eq!(tensors(), None);
    assert_same(&shown(".tensors/w.bin/y").unwrap(), &counts(3), "the other tensor");
    // A shorter file has it no more.
    fs::write(fixture.path("w.bin"), [1; 11]).unwrap();
    assert_eq!(shown(".tensors/w.bin/y"), None);
    fs::write(fixture.path("w.bin"), [1; 12]).unwrap();
    assert_eq!(shown(".tensors/w.bin/y").unwrap(), [1; 12]);
    // A model that arrives by a rename, in a directory with its name.
    fs::create_dir(fixture.path("d")).unwrap();
    fs::write(fixture.path("d/w.bin"), counts(9)).unwrap();
    fs::rename(fixture.path("m.onnx"), fixture.path("d/m.onnx")).unwrap();
    assert_same(&shown("d/.tensors/w.bin/y").unwrap(), &counts(3), "below");
    fs::rename(fixture.path("d"), fixture.path("e")).unwrap();
    fs::write(fixture.path("e/w.bin"), counts(4)).unwrap();
    assert_same(&shown("e/.tensors/w.bin/y").unwrap(), &counts(3), "in a renamed directory");
}

#[test]
fn a_location_that_leads_out_of_the_directory_of_the_model_is_refused() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("in")).unwrap();
    for name in ["secret", "in/secret", "in/plain"] {
        fs::write(fixture.path(name), counts(4)).unwrap();
    }
    symlink("../secret", fixture.path("in/link")).unwrap();
    symlink("..", fixture.path("in/up")).unwrap();
    for location in ["../secret", "/secret", "x/../../secret", "up/secret", "link", "..", "", "in//secret"] {
        fs::write(fixture.path("in/m.onnx"), of_place("w", &[4], location, 0)).unwrap();
        assert!(!fixture.path(".tensors/secret").exists(), "{location:?}");
        assert!(!fixture.path("in/.tensors/link").exists(), "{location:?}");
        assert!(!fixture.path("in/.tensors/secret").exists(), "{location:?}");
        assert_same(&fixture.read("secret"), &counts(4), location);
    }
    assert!(fixture.attribute("in/m.onnx", "why").contains("not a path below the directory of the model"));
    fs::write(fixture.path("in/m.onnx"), of_place("w", &[4], "./secret", 0)).unwrap();
    assert_same(&fixture.read("in/.tensors/secret/w"), &counts(4), "beside the model");
}

#[test]
fn tensors_of_a_data_file_that_overlap_or_go_past_its_end_are_left_out() {
    let fixture = Fixture::new();
    let graph = [
        initializer("a", &[4], "w", 0),
        initializer("same", &[2, 2], "w", 0),
        initializer("over", &[4], "w", 12),
        initializer("far", &[4], "w", 1 << 40),
        initializer("b", &[2], "w", 16),
        initializer("none", &[0], "w", 8),
    ];
    fs::write(fixture.path("m.onnx"), field(7, &graph.concat())).unwrap();
    fs::write(fixture.path("w"), counts(8)).unwrap();
    assert_same(&fixture.read(".tensors/w/a"), &counts(4), "the first");
    assert_same(&fixture.read(".tensors/w/b"), &counts(8)[16..24], "the next");
    assert_same(&fixture.read(".tensors/w/none"), b"", "the empty one");
    for name in ["same", "over", "far"] {
        assert!(!fixture.path(".tensors/w").join(name).exists(), "{name}");
    }
    let why = fixture.attribute("w", "why");
    for words in ["over: it overlaps another", "far: it goes past the end", "same: it shares the bytes of a"]
    {
        assert!(why.contains(words), "{why}");
    }
}
