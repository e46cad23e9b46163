//! `tierfs export --as` writes the files of a form as the mount shows them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::with_many_types;
use support::{Answer, Place, assert_same, files_below, names, repository, run, shell};

const FORMS: [&str; 15] = [
    "npy",
    "safetensors",
    "f32",
    "f16",
    "bf16",
    "q8",
    "q7",
    "q5",
    "q3",
    "cgeb",
    "sha256",
    "gguf",
    "gguf-q8_0",
    "gguf-q4_0",
    "experts",
];

/// A store with files of all element types, and a copy of `.as` of it.
fn stored() -> (Place, PathBuf) {
    let (place, folder) = with_many_types();
    fs::write(folder.join("sub/notes.txt"), "some text").unwrap();
    place.import("t/c", &[&folder], &[]);
    let mounted = place.mount(&["--read-only"]);
    let shown = place.path("shown");
    let line = format!("cp -r --preserve=mode,timestamps .as '{}'", shown.display());
    assert!(shell(&mounted.path("t/c"), &line).status.success());
    mounted.unmount();
    (place, shown)
}

fn export(place: &Place, path: &str, to: &Path, form: &str) -> Answer {
    let (store, to) = (place.store(), to.as_os_str());
    run(["export".as_ref(), "--as".as_ref(), form.as_ref(), store.as_os_str(), path.as_ref(), to])
}

#[track_caller]
fn assert_same_file(got: &Path, wanted: &Path) {
    let what = wanted.display().to_string();
    assert_same(&fs::read(got).unwrap(), &fs::read(wanted).unwrap(), &what);
    let facts = |path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.mode() & 0o777, metadata.mtime(), metadata.mtime_nsec())
    };
    assert_eq!(facts(got), facts(wanted), "{what}");
}

#[test]
fn an_export_of_a_form_equals_the_mounted_form_byte_for_byte() {
    let (place, shown) = stored();
    // The collection has no model that the forms of GGUF show.
    for form in FORMS.into_iter().filter(|form| !form.starts_with("gguf")) {
        let (to, shown) = (place.path("to").join(form), shown.join(form));
        export(&place, "t/c", &to, form).ok();
        let wanted = files_below(&shown);
        assert!(!wanted.is_empty(), "{form}");
        assert_eq!(files_below(&to), wanted, "{form}");
        for name in wanted {
            assert_same_file(&to.join(&name), &shown.join(&name));
        }
    }
}

#[test]
fn an_exported_file_or_directory_is_named_as_in_the_form() {
    let (place, shown) = stored();
    for (path, form, name) in [
        ("model.safetensors", "f16", "model.safetensors"),
        ("matrix.f32", "npy", "matrix.f32.npy"),
        ("matrix.f32.npy", "npy", "matrix.f32.npy"),
        ("sub/array", "npy", "sub/array.npy"),
        ("sub/array.npy", "f32", "sub/array.npy"),
        ("deep/er/f64", "safetensors", "deep/er/f64.safetensors"),
        ("_all.safetensors", "safetensors", "_all.safetensors"),
        ("matrix.bf16", "cgeb", "matrix.bf16.cgeb"),
        ("matrix.bf16.cgei", "cgeb", "matrix.bf16.cgei"),
        ("SHA256SUMS", "sha256", "SHA256SUMS"),
    ] {
        let to = place.path("one");
        fs::create_dir(&to).unwrap();
        export(&place, &format!("t/c/{path}"), &to, form).ok();
        let file = Path::new(name).file_name().unwrap();
        assert_eq!(names(&to), [file.to_str().unwrap()], "{path} as {form}");
        if !name.starts_with("deep") {
            assert_same_file(&to.join(file), &shown.join(form).join(name));
        }
        fs::remove_dir_all(&to).unwrap();
    }
    let to = place.path("new-name");
    export(&place, "/t/c/matrix.f32", &to, "q5").ok();
    let bytes = fs::read(&to).unwrap();
    assert_eq!(bytes.len(), 84 * 833 * 4);
    let to = place.path("below");
    export(&place, "t/c/sub/", &to, "f16").ok();
    assert_eq!(names(&to), ["array.npy", "notes.txt"]);
    assert_same_file(&to.join("array.npy"), &shown.join("f16/sub/array.npy"));
}

#[test]
fn an_export_refuses_paths_outside_the_form_and_lists_the_known_forms() {
    let (place, _) = stored();
    let to = place.path("nothing");
    let unknown = export(&place, "t/c", &to, "f17").failed(2, &FORMS);
    assert!(unknown.contains("f17"), "{unknown}");
    export(&place, "t", &to, "f16").failed(1, &["TENANT/COLLECTION"]);
    for (path, form) in [("t/c/none", "f16"), ("t/c/sub/notes.txt", "npy"), ("t/c/model.safetensors", "cgeb")]
    {
        export(&place, path, &to, form).failed(1, &["form", form]);
    }
    assert!(!to.exists());
    let mounted = place.mount(&[]);
    export(&place, "t/c/model.safetensors", &to, "cgeb").failed(1, &["form", "cgeb"]);
    assert!(!to.exists());
    export(&place, "t/c/sub", &to, "f16").ok();
    assert_eq!(names(&to), ["array.npy", "notes.txt"]);
    mounted.unmount();
}

#[test]
fn a_form_with_a_parameter_needs_its_value() {
    let place = Place::new();
    let golden = repository("tests/golden/merged");
    place.import("t/base", &[&golden.join("base-f32")], &[]);
    place.import("t/lora", &[&golden.join("embedding")], &[]);
    place.import("t/none", &[&place.write("plain/notes.txt", "text")], &[]);
    let to = place.path("to");
    for path in ["t/base", "t/base/config.json"] {
        export(&place, path, &to, "merged")
            .failed(1, &["--as merged needs the form merged/ADAPTER; this collection has merged/lora"]);
        export(&place, path, &to, "tp")
            .failed(1, &["--as tp needs the form tp/R-of-N", "has tp/0-of-2, tp/1-of-2", " more"]);
    }
    for form in ["tp", "merged"] {
        export(&place, "t/none", &to, form).failed(1, &["this collection has none"]);
    }
    assert!(!to.exists());
    export(&place, "t/base", &to, "merged/lora").ok();
    let (store, other) = (place.store(), place.path("other"));
    let more = [store.as_os_str(), "t/base".as_ref(), other.as_os_str()];
    run(["export", "--adapter", "lora"].map(AsRef::as_ref).into_iter().chain(more)).ok();
    assert_eq!(files_below(&to), files_below(&other));
    for name in files_below(&other) {
        assert_same_file(&to.join(&name), &other.join(&name));
    }
}
