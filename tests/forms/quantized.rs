//! Casts of files of quantized weights: a cast changes neither codes nor scales.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use support::{Fixture, Place, assert_same, get, python, set, try_get};

const FORMS: [(&str, &str); 3] = [("f32", "F32"), ("f16", "F16"), ("bf16", "BF16")];

fn made(place: &Place) -> PathBuf {
    let folder = place.path("layouts");
    python("weight_layouts.py", [OsStr::new("make"), folder.as_os_str()]);
    folder
}

fn compare(folder: &Path, collection: &Path) {
    for (form, dtype) in FORMS {
        let shown = collection.join(".as").join(form);
        let arguments = [OsStr::new("cast"), folder.as_os_str(), shown.as_os_str(), OsStr::new(dtype)];
        python("weight_layouts.py", arguments);
    }
}

#[test]
fn codes_and_scales_are_shown_as_they_are_stored_and_all_else_is_cast() {
    for options in [&[][..], &["--in-place"], &["--block-bytes", "4096"]] {
        let place = Place::new();
        let folder = made(&place);
        place.import("t/c", &[&folder], options);
        let mounted = place.mount(&["--read-only"]);
        compare(&folder, &mounted.path("t/c"));
        for name in ["marlin", "aqlm", "scales-of-other-files"] {
            let cast = mounted.path("t/c/.as/bf16").join(format!("{name}.safetensors"));
            let why = get(&cast, "why");
            assert!(why.contains("as they are stored"), "{name}: {why}");
        }
        for path in
            ["numbers.safetensors", "fp8-without-scales.safetensors", ".tensors/gptq.safetensors/l.bias"]
        {
            let cast = mounted.path("t/c/.as/f16").join(path);
            assert!(try_get(&cast, "why").is_err(), "{path}: {:?}", try_get(&cast, "why"));
        }
        let moved = mounted.path("t/c/.as/q8/gptq.safetensors");
        assert!(try_get(&moved, "why").is_err());
        mounted.unmount();
    }
}

#[test]
fn casts_of_quantized_files_follow_copies_writes_and_remounts() {
    let mut fixture = Fixture::new();
    let folder = made(&fixture.place);
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, fixture.path(path.file_name().unwrap().to_str().unwrap())).unwrap();
    }
    compare(&folder, &fixture.path(""));
    fixture.remount();
    compare(&folder, &fixture.path(""));
    // The file of numbers takes the place of one with codes, and the reverse.
    let [codes, numbers] = ["gptq.safetensors", "numbers.safetensors"].map(|name| folder.join(name));
    let cast = fixture.path(".as/f16/gptq.safetensors");
    let open = fs::File::open(&cast).unwrap();
    fs::copy(&numbers, fixture.path("gptq.safetensors")).unwrap();
    let wanted = fs::read(fixture.path(".as/f16/numbers.safetensors")).unwrap();
    assert_same(&fs::read(&cast).unwrap(), &wanted, "numbers in the place of codes");
    assert!(try_get(&cast, "why").is_err());
    drop(open);
    fs::copy(&codes, fixture.path("gptq.safetensors")).unwrap();
    compare(&folder, &fixture.path(""));
    // A move takes no part of a file with codes, and packing changes no byte of a cast.
    set(&fixture.path(""), "tier", "packed:all").unwrap();
    compare(&folder, &fixture.path(""));
}
