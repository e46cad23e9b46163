//! Reading, listing and comparing files.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Opens a file to read past the page cache.
pub fn open_direct(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

/// Reads until `out` is full or the file ends, in one call: a mount never reads short.
pub fn read_at(file: &fs::File, out: &mut [u8], at: u64) -> usize {
    file.read_at(out, at).unwrap()
}

/// The paths of all files below a folder, relative to it, sorted.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    fn walk(root: &Path, at: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, found);
            } else {
                found.push(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    walk(folder, folder, &mut found);
    found.sort();
    found
}

/// Says where two byte strings differ first, instead of printing them.
#[track_caller]
pub fn assert_same(got: &[u8], wanted: &[u8], what: &str) {
    if got != wanted {
        let at = got.iter().zip(wanted).position(|(one, other)| one != other);
        panic!("{what}: {} bytes, {} wanted, first difference at {at:?}", got.len(), wanted.len());
    }
}

/// Output of a program, which must be UTF-8.
pub fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

/// The names in a directory, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
