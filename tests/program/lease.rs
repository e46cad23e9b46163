//! Leases on files, which hold up jobs.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

const F_SETSIG: i32 = 10;

/// A lease on a file: an opener waits until the lease is released, so a job that needs the file cannot end earlier.
pub struct Lease(File);

impl Lease {
    pub fn on(path: &Path) -> Lease {
        let file = File::options().read(true).write(true).open(path).unwrap();
        // SAFETY: both calls take numbers only. An open raises a signal that is ignored by default.
        let taken = unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
        };
        assert_eq!(taken, 0, "a lease on {}: {}", path.display(), std::io::Error::last_os_error());
        Lease(file)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: the call takes numbers only.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}
