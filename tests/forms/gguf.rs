//! GGUF files in casts, as the Python package `gguf` reads them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use support::{Mapping, Place, Random, assert_same, python, set};

fn made(place: &Place) -> PathBuf {
    let path = place.path("all.gguf");
    python("gguf_files.py", ["make".as_ref(), path.as_os_str()]);
    path
}

/// The casts of a collection equal those of its files.
fn compare(source: &std::path::Path, collection: PathBuf) {
    python("gguf_files.py", ["cast".as_ref(), source.as_os_str(), collection.as_os_str()]);
}

#[test]
fn a_gguf_file_is_cast_with_its_header_and_keeps_metadata_and_blocks() {
    for options in [&[][..], &["--in-place"], &["--block-bytes", "4096"]] {
        let place = Place::new();
        let source = made(&place);
        place.import("t/c", &[&source], options);
        let mounted = place.mount(&["--read-only"]);
        let cast = mounted.path("t/c/.as/f16/all.gguf");
        let size = fs::metadata(&cast).unwrap().len();
        compare(&source, mounted.path("t/c"));
        let whole = fs::read(&cast).unwrap();
        assert_eq!(whole.len() as u64, size);
        assert_same(Mapping::of(&cast, libc::MAP_SHARED).bytes(), &whole, "mapped");
        let open = fs::File::open(&cast).unwrap();
        let mut random = Random(11);
        for _ in 0..50 {
            let at = random.below(whole.len());
            let mut found = vec![0; random.below(whole.len() - at) + 1];
            open.read_exact_at(&mut found, at as u64).unwrap();
            assert_same(&found, &whole[at..at + found.len()], "a range");
        }
        drop(open);
        mounted.unmount();
    }
}

#[test]
fn a_cast_gguf_file_follows_writes_and_names_that_are_taken_and_absent_tensors() {
    let place = Place::new();
    let source = made(&place);
    let mounted = place.mount(&["--create"]);
    let collection = mounted.path("t/c");
    fs::create_dir_all(&collection).unwrap();
    let (container, copy) = (collection.join("all.gguf"), place.path("copy/all.gguf"));
    fs::create_dir(place.path("copy")).unwrap();
    fs::copy(&source, &container).unwrap();
    compare(&source, collection.clone());
    let tensor = collection.join(".tensors/token_embd.weight");
    let bytes = Random(12).floats(500);
    fs::OpenOptions::new().write(true).open(&tensor).unwrap().write_all_at(&bytes, 4000).unwrap();
    fs::copy(&container, &copy).unwrap();
    compare(&copy, collection.clone());
    // Another file takes the name of a tensor, and the container still has the tensor.
    let cast = collection.join(".as/f16/all.gguf");
    let wanted = fs::read(&cast).unwrap();
    fs::write(collection.join("other"), b"other").unwrap();
    fs::rename(collection.join("other"), collection.join("plain.F32.weight")).unwrap();
    assert_same(&fs::read(&cast).unwrap(), &wanted, "without a name");
    // Its size is known without reading it.
    set(&tensor, "lossy", "allow").unwrap();
    set(&tensor, "evict", "discard").unwrap();
    assert_eq!(fs::metadata(&cast).unwrap().len(), wanted.len() as u64);
    assert_eq!(fs::read(&cast).map_err(|error| error.raw_os_error()), Err(Some(libc::ENODATA)));
}
