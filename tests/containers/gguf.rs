//! GGUF files that the Python package `gguf` wrote and reads from mounts.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use tierfs::format::files::gguf::{code_of_type, type_of_code};
use tierfs::model::Dtype;

use support::{Fixture, Place, assert_same, python};

/// A file of all element types and all types of metadata.
fn made(place: &Place) -> PathBuf {
    let path = place.path("all.gguf");
    python("gguf_files.py", ["make".as_ref(), path.as_os_str()]);
    path
}

/// The file, its tensors and the reader's view of both are those of the source.
fn compare(source: &std::path::Path, folder: PathBuf) {
    assert_same(&fs::read(folder.join("all.gguf")).unwrap(), &fs::read(source).unwrap(), "the container");
    python("gguf_files.py", ["read".as_ref(), source.as_os_str(), folder.as_os_str()]);
}

#[test]
fn the_table_of_element_types_equals_that_of_the_gguf_package() {
    let types: Vec<(u32, String, u64, u64)> =
        serde_json::from_str(&python("gguf_files.py", ["types"])).unwrap();
    assert!(types.len() > 30);
    for (code, name, elements, bytes) in types {
        let known = type_of_code(code).unwrap();
        assert_eq!((known.name(), known.block().0), (&*name.to_lowercase(), elements));
        // The package counts two scales of four bytes; `ggml` has two of two.
        let bytes = if name == "Q8_1" { bytes - 4 } else { bytes };
        assert_eq!(known.block().1, bytes, "{name}");
    }
    assert!(Dtype::ALL.iter().all(|dtype| dtype.is_ggml() <= code_of_type(*dtype).is_some()));
}

#[test]
fn a_file_that_was_copied_in_shows_its_tensors_and_survives_a_kill() {
    let mut fixture = Fixture::new();
    let source = made(&fixture.place);
    fs::copy(&source, fixture.path("all.gguf")).unwrap();
    compare(&source, fixture.path(""));
    fixture.crash();
    compare(&source, fixture.path(""));
    assert_eq!(fixture.data_files(), 1);
    fs::create_dir(fixture.path("later")).unwrap();
    fs::rename(fixture.path("all.gguf"), fixture.path("later/x.incomplete")).unwrap();
    assert_eq!(fs::read_dir(fixture.path("later")).unwrap().count(), 1);
    fs::rename(fixture.path("later/x.incomplete"), fixture.path("later/all.gguf")).unwrap();
    compare(&source, fixture.path("later"));
    fixture.remount();
    compare(&source, fixture.path("later"));
}

#[test]
fn an_import_in_place_shows_the_same_as_a_copying_import() {
    for options in [&[][..], &["--in-place"]] {
        let place = Place::new();
        let source = made(&place);
        place.import("demo/m", &[&source], options);
        let mounted = place.mount(&[]);
        compare(&source, mounted.path("demo/m"));
        mounted.unmount();
    }
}

#[test]
fn a_write_to_a_tensor_changes_its_container_and_a_write_to_the_header_makes_it_plain() {
    let mut fixture = Fixture::new();
    let source = made(&fixture.place);
    let mut bytes = fs::read(&source).unwrap();
    fs::copy(&source, fixture.path("all.gguf")).unwrap();
    let name = "blk.0.Q4_K.weight";
    let before = fixture.read(name);
    let at = bytes.windows(before.len()).position(|window| window == before).unwrap();
    let open = |name: &str| fs::OpenOptions::new().write(true).open(fixture.path(name)).unwrap();
    open(name).write_all_at(b"changed", 100).unwrap();
    bytes[at + 100..at + 107].copy_from_slice(b"changed");
    open("all.gguf").write_all_at(b"too", at as u64 + 2).unwrap();
    bytes[at + 2..at + 5].copy_from_slice(b"too");
    assert_same(&fixture.read("all.gguf"), &bytes, "the container");
    assert_same(&fixture.read(name), &bytes[at..at + before.len()], name);
    // Changes the number of tensors, then restores it.
    open("all.gguf").write_all_at(&[255], 15).unwrap();
    assert!(!fixture.path(name).exists());
    assert!(fixture.attribute("all.gguf", "why").contains("gguf header"));
    open("all.gguf").write_all_at(&[0], 15).unwrap();
    assert_same(&fixture.read(name), &bytes[at..at + before.len()], name);
    fixture.remount();
    assert_same(&fixture.read("all.gguf"), &bytes, "the container");
}

#[test]
fn a_truncated_file_or_one_of_another_version_stays_plain_and_is_not_imported() {
    let mut fixture = Fixture::new();
    let source = made(&fixture.place);
    let bytes = fs::read(&source).unwrap();
    let mut old = bytes.clone();
    old[4] = 1;
    let mut large_endian = bytes.clone();
    large_endian[4..8].copy_from_slice(&[0, 0, 0, 3]);
    for (name, bytes, why) in [
        ("cut.gguf", &bytes[..bytes.len() - 100_000], "past the end"),
        ("short.gguf", &bytes[..20], "past the file's end"),
        ("old.gguf", &old, "version 1"),
        ("large.gguf", &large_endian, "big-endian"),
    ] {
        let path = fixture.place.write(name, bytes);
        fs::copy(&path, fixture.path(name)).unwrap();
        assert_same(&fixture.read(name), bytes, name);
        assert!(fixture.attribute(name, "why").contains(why), "{}", fixture.attribute(name, "why"));
        fixture.place.try_import("demo/other", &[&path], &["--strict"]).failed(1, &[why]);
    }
    assert!(!fixture.path("token_embd.weight").exists());
    fixture.remount();
}

#[test]
fn float_tensors_of_a_gguf_file_change_tiers_and_quantized_ones_stay_exact() {
    let fixture = Fixture::new();
    let source = made(&fixture.place);
    fs::copy(&source, fixture.path("all.gguf")).unwrap();
    let set = |name: &str, key: &str, value: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(fixture.path(name), format!("user.tierfs.{key}"), value.as_bytes(), flags)
    };
    set("all.gguf", "lossy", "allow").unwrap();
    let blocks = fixture.read("blk.0.Q4_0.weight");
    let exact = fixture.read("token_embd.weight");
    set("all.gguf", "tier", "q8:all").unwrap();
    assert_eq!(fixture.attribute("token_embd.weight", "tier"), "q8");
    assert_ne!(fixture.read("token_embd.weight"), exact);
    assert_eq!(fixture.attribute("blk.0.Q4_0.weight", "tier"), "exact");
    assert_same(&fixture.read("blk.0.Q4_0.weight"), &blocks, "blocks");
    assert!(set("blk.0.Q4_0.weight", "tier", "q8").is_err());
    assert_eq!(fixture.read("all.gguf").len(), fs::read(&source).unwrap().len());
}
