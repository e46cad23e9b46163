//! Ways to read and to compare.

use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A mapping of a whole file to read.
pub struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

// SAFETY: the mapping is only read, and unmapped when nobody has it any more.
unsafe impl Sync for Mapping {}
// SAFETY: as above.
unsafe impl Send for Mapping {}

impl Mapping {
    pub fn of(path: &Path, flags: i32) -> Mapping {
        use std::os::fd::AsRawFd;
        let file = fs::File::open(path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice; the descriptor is open.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}: {}", path.display(), std::io::Error::last_os_error());
        Mapping { at, len }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped in `of` for so many bytes, until drop, and written by nobody.
        unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this length, and not used after this.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Memory as O_DIRECT needs it.
pub struct Aligned(Vec<u8>);

impl Aligned {
    const STEP: usize = 4096;

    pub fn new(bytes: usize) -> Aligned {
        Aligned(vec![0; bytes.next_multiple_of(Self::STEP) + Self::STEP])
    }

    /// So many bytes from a page boundary on.
    pub fn pages(&mut self, bytes: usize) -> &mut [u8] {
        let skip = self.0.as_ptr().align_offset(Self::STEP);
        &mut self.0[skip..skip + bytes]
    }
}

/// Opens past the page cache.
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

/// What a program printed.
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
