//! Mappings whose descriptors are closed, read without a signal where their pages are gone.

use std::fs::File;
use std::path::Path;

use support::Mapping;

/// Pages are compared one by one: each shows one of the versions since the mapping was made.
const PAGE_BYTES: usize = 4096;

/// A mapping of a file.
pub struct Held {
    mapping: Mapping,
    /// The file in the model.
    pub file: usize,
    /// Its contents since the mapping was made.
    pub versions: Vec<Vec<u8>>,
    /// The mount that it was made in has ended.
    pub is_orphan: bool,
}

impl Held {
    pub fn of(path: &Path, flags: i32, file: usize, now: &[u8]) -> Held {
        Held { mapping: Mapping::of(path, flags), file, versions: vec![now.to_vec()], is_orphan: false }
    }

    /// The places of pages that show none of the versions. Pages that cannot be read any more are not a mistake: the file
    /// was cut, or the daemon has ended.
    pub fn wrong_pages(&self) -> Vec<usize> {
        let len = self.mapping.bytes().len();
        let mut wrong = Vec::new();
        let mut page = [0; PAGE_BYTES];
        for at in (0..len).step_by(PAGE_BYTES) {
            let count = (len - at).min(PAGE_BYTES);
            if !self.copy(at, &mut page[..count]) {
                continue;
            }
            let shows = |version: &Vec<u8>| {
                let known = version.get(at..).unwrap_or_default();
                let known = &known[..known.len().min(count)];
                page[..known.len()] == *known && page[known.len()..count].iter().all(|byte| *byte == 0)
            };
            if !self.versions.iter().any(shows) {
                wrong.push(at);
            }
        }
        wrong
    }

    /// Copies bytes of the mapping, by the kernel, which answers EFAULT where a load would raise SIGBUS.
    fn copy(&self, at: usize, out: &mut [u8]) -> bool {
        let from = self.mapping.bytes().as_ptr().wrapping_add(at).cast_mut().cast();
        let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
        let remote = libc::iovec { iov_base: from, iov_len: out.len() };
        // SAFETY: the local range is `out`; the remote one is only read, by the kernel, which checks it.
        let copied = unsafe { libc::process_vm_readv(std::process::id() as i32, &local, 1, &remote, 1, 0) };
        copied == out.len() as isize
    }
}

/// Closes a file, which flushes what was written.
pub fn close(file: File) -> std::io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor is owned, and given up here.
    support::checked(unsafe { libc::close(file.into_raw_fd()) }.into()).map(|_| ())
}
