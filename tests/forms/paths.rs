//! The places of forms, and the operations that fail there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use support::{Place, Random, imported, names, npy_file, set, shell, text};

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn forms_open_by_name_and_are_not_listed_beside_files() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let collection = mounted.path("demo/model");
    assert!(!names(&collection).contains(&".as".to_owned()));
    let found = text(&shell(&collection, "find . -name '*as*' | sort").stdout);
    assert!(!found.contains(".as"), "{found}");
    let forms = collection.join(".as");
    let wanted = [
        "bf16",
        "cgeb",
        "experts",
        "f16",
        "f32",
        "gguf",
        "gguf-q4_0",
        "gguf-q8_0",
        "merged",
        "npy",
        "q3",
        "q5",
        "q7",
        "q8",
        "safetensors",
        "sha256",
        "tp",
    ];
    assert_eq!(names(&forms), wanted);
    assert_eq!(names(&forms.join("npy")), ["a.npy", "deep", "norm.npy", "nothing.npy", "sub", "x.npy"]);
    assert_eq!(names(&forms.join("npy/deep/er")), ["b.npy"]);
    assert_eq!(names(&forms.join("sha256")), ["SHA256SUMS"]);
    assert!(names(&forms.join("safetensors")).contains(&"_all.safetensors".to_owned()));
    assert_eq!(names(&forms.join("f16")), names(&collection));
    for none in [".as/npy/a", ".as/npy/config.json", ".as/q4", ".as/f16/.as", "sub/.as", ".as/sha256/a"] {
        assert_eq!(errno(fs::metadata(collection.join(none))), Some(libc::ENOENT), "{none}");
    }
    assert_eq!(errno(fs::metadata(mounted.path("demo/.as"))), Some(libc::ENOENT));
    assert_eq!(errno(fs::metadata(forms.join("npy/a.npy/b"))), Some(libc::ENOTDIR));
    // A walk can enter and leave every directory of a form, and each file has one inode number.
    let walked =
        text(&shell(&forms, "find . -printf '%i %y %p\\n'; cd npy/deep/er/../../../f16 && pwd -P").stdout);
    assert!(walked.trim_end().ends_with(".as/f16"), "{walked}");
    let mut numbers: Vec<&str> = walked.lines().filter_map(|line| line.split(' ').next()).collect();
    numbers.pop();
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}

#[test]
fn forms_are_read_only_and_as_private_as_their_files() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let collection = mounted.path("demo/model");
    let forms = collection.join(".as");
    let config = fs::metadata(forms.join("f16/config.json")).unwrap();
    assert_eq!(config.permissions().mode() & 0o777, 0o440);
    let mtime = |path| fs::metadata(path).unwrap().mtime();
    assert_eq!(mtime(forms.join("npy/a.npy")), mtime(collection.join("a")));
    assert!(fs::metadata(forms.join("npy/a.npy")).unwrap().blocks() > 0);
    let write = |path| fs::OpenOptions::new().write(true).open(path);
    assert_eq!(errno(write(forms.join("npy/a.npy"))), Some(libc::EROFS));
    assert_eq!(errno(write(forms.join("npy/other.npy"))), Some(libc::ENOENT));
    let refused = [
        errno(fs::write(forms.join("npy/other.npy"), b"x")),
        errno(fs::create_dir(forms.join("q4"))),
        errno(fs::create_dir(forms.join("npy/directory"))),
        errno(fs::remove_file(forms.join("npy/a.npy"))),
        errno(fs::rename(forms.join("npy/a.npy"), forms.join("npy/b.npy"))),
        errno(fs::rename(forms.join("npy/a.npy"), collection.join("b.npy"))),
        errno(fs::rename(collection.join("config.json"), forms.join("npy/b.npy"))),
        errno(fs::hard_link(forms.join("npy/a.npy"), collection.join("b.npy"))),
        errno(fs::set_permissions(forms.join("npy/a.npy"), fs::Permissions::from_mode(0o777))),
        errno(fs::remove_dir(&forms)),
        errno(fs::rename(collection.join("sub"), &forms)),
    ];
    for (at, errno) in refused.into_iter().enumerate() {
        let is_refusal = matches!(errno, Some(libc::EPERM | libc::EROFS | libc::ENOTEMPTY | libc::EXDEV));
        assert!(is_refusal, "case {at}: {errno:?}");
    }
    assert_eq!(set(&forms.join("npy/a.npy"), "dtype", "f32"), Err(rustix::io::Errno::NODATA));
}

#[test]
fn symbolic_links_lead_to_the_same_place_in_a_form() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c/v1")).unwrap();
    fs::write(mounted.path("t/c/v1/x.npy"), npy_file(&Random(1).floats(100))).unwrap();
    std::os::unix::fs::symlink("v1", mounted.path("t/c/latest")).unwrap();
    let forms = mounted.path("t/c/.as");
    assert_eq!(fs::read_link(forms.join("f16/latest")).unwrap().to_str(), Some("v1"));
    let cast = fs::read(forms.join("f16/latest/x")).unwrap();
    assert_eq!(cast.len(), 200);
    assert_eq!(names(&forms.join("npy")), ["v1"]);
}

#[test]
fn a_listing_of_a_form_continues_where_it_was_while_names_change() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    let array = npy_file(&Random(1).floats(16));
    for at in 0..700 {
        fs::write(mounted.path(format!("t/c/x{at}.npy")), &array).unwrap();
    }
    let forms = mounted.path("t/c/.as");
    let mut listing = fs::read_dir(forms.join("npy")).unwrap();
    let mut seen: Vec<String> = Vec::new();
    for entry in listing.by_ref().take(300) {
        seen.push(entry.unwrap().file_name().into_string().unwrap());
    }
    for at in 700..900 {
        fs::write(mounted.path(format!("t/c/x{at}.npy")), &array).unwrap();
    }
    seen.extend(listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
    for at in 0..700 {
        assert_eq!(seen.iter().filter(|name| **name == format!("x{at}.npy")).count(), 1, "x{at}");
    }
    assert_eq!((names(&forms.join("f16")).len(), names(&forms.join("f16/.tensors")).len()), (900, 900));
}
