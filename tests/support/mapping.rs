//! Mappings of files, and memory for O_DIRECT.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::checked;

/// A mapping of a whole file, for reading.
pub struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

// SAFETY: the mapping is only read, and unmapped after its last use.
unsafe impl Sync for Mapping {}
// SAFETY: as above.
unsafe impl Send for Mapping {}

impl Mapping {
    pub fn of(path: &Path, flags: i32) -> Mapping {
        let file = fs::File::open(path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice; the descriptor is open.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}: {}", path.display(), std::io::Error::last_os_error());
        Mapping { at, len }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped in `of` with this length, until drop, and never written to.
        unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this length, and not used after this.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// Memory aligned as O_DIRECT requires.
pub struct Aligned(Vec<u8>);

impl Aligned {
    const STEP: usize = 4096;

    pub fn new(bytes: usize) -> Aligned {
        Aligned(vec![0; bytes.next_multiple_of(Self::STEP) + Self::STEP])
    }

    /// `bytes` bytes that begin at a page boundary.
    pub fn pages(&mut self, bytes: usize) -> &mut [u8] {
        let skip = self.0.as_ptr().align_offset(Self::STEP);
        &mut self.0[skip..skip + bytes]
    }
}

/// A mapping of the first `len` bytes of a file, for reading and writing.
pub struct WritableMapping {
    at: *mut libc::c_void,
    len: usize,
}

impl WritableMapping {
    pub fn of(file: &fs::File, len: usize, flags: i32) -> WritableMapping {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the descriptor is open.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        WritableMapping { at, len }
    }

    /// A mapping of a whole file.
    pub fn whole(file: &fs::File, flags: i32) -> WritableMapping {
        WritableMapping::of(file, file.metadata().unwrap().len() as usize, flags)
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped in `of` with this length, until drop; borrowed from the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast::<u8>(), self.len) }
    }

    /// Writes at an offset. Another process may change the file meanwhile, so no slice is made.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: inside the mapping, which lives until drop; this process has no other reference to it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.cast::<u8>().add(at), bytes.len()) };
    }

    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping lives until drop.
        checked(unsafe { libc::msync(self.at, self.len, libc::MS_SYNC) }.into()).map(|_| ())
    }
}

impl Drop for WritableMapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this length, and not used after this.
        unsafe { libc::munmap(self.at, self.len) };
    }
}
