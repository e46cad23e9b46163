//! Calls of the kernel that the standard library has no names for, and a mount that cannot hang a test.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::support::{Mounted, Place, scale, tierfs, tierfs_limited};

/// A test of writes takes no longer, whatever happens.
const DEADLINE: Duration = Duration::from_secs(120);

/// A mounted store with the collection `t/c`, until the deadline: then every call on it fails.
pub struct World {
    mounted: Option<Mounted>,
    place: Place,
    /// How many files the daemon may have open, if that is not what this process may have.
    descriptors: Option<u64>,
    _watch: Watch,
}

impl World {
    pub fn new() -> World {
        World::lasting(DEADLINE)
    }

    /// One with another deadline.
    pub fn lasting(deadline: Duration) -> World {
        World::of(deadline, None)
    }

    /// One whose daemon may have so many files open.
    pub fn limited(descriptors: u64) -> World {
        World::of(DEADLINE, Some(descriptors))
    }

    fn of(deadline: Duration, descriptors: Option<u64>) -> World {
        let place = Place::new();
        let mounted = mount(&place, descriptors, &["--create", "--allow-other"]);
        let watch = Watch::over(&mounted.mountpoint, deadline * scale());
        fs::create_dir_all(mounted.path("t/c")).unwrap();
        World { mounted: Some(mounted), place, descriptors, _watch: watch }
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    /// The collection, or something in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted().path("t/c").join(name)
    }

    /// Unmounts and mounts again.
    pub fn remount(&mut self) {
        self.while_unmounted(|_| ());
    }

    /// Unmounts, does something with the store, and mounts again.
    pub fn while_unmounted(&mut self, work: impl FnOnce(&Path)) {
        self.mounted.take().unwrap().unmount();
        work(&self.place.store());
        self.mount_again();
    }

    /// Kills the daemon, takes the dead mount away and mounts again.
    pub fn crash(&mut self) {
        let mounted = self.mounted.take().unwrap();
        mounted.kill();
        drop(mounted);
        self.mount_again();
    }

    fn mount_again(&mut self) {
        self.mounted = Some(mount(&self.place, self.descriptors, &["--allow-other"]));
    }

    /// Unmounts; what `tierfs fsck` finds must be nothing.
    pub fn check(mut self) {
        self.mounted.take().unwrap().unmount();
        let mut fsck = self.descriptors.map_or_else(tierfs, tierfs_limited);
        crate::support::answer(fsck.arg("fsck").arg(self.place.store())).ok();
    }
}

fn mount(place: &Place, descriptors: Option<u64>, options: &[&str]) -> Mounted {
    place.mount_by(&mut descriptors.map_or_else(tierfs, tierfs_limited), "mnt", options)
}

/// Ends a mount that hangs: what waits for it gets an error, and the test fails.
pub struct Watch {
    _end: Sender<()>,
}

impl Watch {
    pub fn over(mountpoint: &Path, deadline: Duration) -> Watch {
        let (end, ended) = channel::<()>();
        let mountpoint = mountpoint.to_owned();
        std::thread::spawn(move || {
            if ended.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{} HANGS: its calls are ended after {deadline:?}", mountpoint.display());
                let how = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
                if let Err(error) = rustix::mount::unmount(&mountpoint, how) {
                    eprintln!("ending {}: {error}", mountpoint.display());
                }
            }
        });
        Watch { _end: end }
    }
}

/// Says at the end of a scope, of one that panics too, that it has ended.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The error number of a call that must fail.
#[track_caller]
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn checked(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub fn rename_with(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: both are strings that end with zero and live during the call.
    let result =
        unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
    checked(result.into()).map(|_| ())
}

pub fn mkfifo(path: &Path) -> io::Result<()> {
    let path = c_path(path);
    // SAFETY: a string that ends with zero and lives during the call.
    checked(unsafe { libc::mkfifo(path.as_ptr(), 0o644) }.into()).map(|_| ())
}

pub fn mknod(path: &Path, mode: u32) -> io::Result<()> {
    let path = c_path(path);
    // SAFETY: a string that ends with zero and lives during the call.
    checked(unsafe { libc::mknod(path.as_ptr(), mode, 0) }.into()).map(|_| ())
}

/// Sets the times of access and of writing, in seconds and nanoseconds.
pub fn utimens(path: &Path, atime: (i64, i64), mtime: (i64, i64)) -> io::Result<()> {
    let time = |(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec };
    let times = [time(atime), time(mtime)];
    let path = c_path(path);
    // SAFETY: the string ends with zero; both times live during the call.
    let result =
        unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    checked(result.into()).map(|_| ())
}

pub fn fallocate(file: &fs::File, mode: i32, offset: i64, bytes: i64) -> io::Result<()> {
    // SAFETY: the descriptor is open; no memory is touched.
    checked(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) }.into()).map(|_| ())
}

pub fn copy_file_range(from: &fs::File, to: &fs::File, bytes: usize) -> io::Result<i64> {
    let none = std::ptr::null_mut();
    // SAFETY: both descriptors are open; no offsets are given.
    checked(unsafe { libc::copy_file_range(from.as_raw_fd(), none, to.as_raw_fd(), none, bytes, 0) } as i64)
}

pub fn sendfile(from: &fs::File, to: &fs::File, bytes: usize) -> io::Result<i64> {
    // SAFETY: both descriptors are open; no offset is given.
    checked(unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), std::ptr::null_mut(), bytes) } as i64)
}

/// Takes or tries a lock of a whole file.
pub fn flock(file: &fs::File, how: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    checked(unsafe { libc::flock(file.as_raw_fd(), how) }.into()).map(|_| ())
}

/// Tries a write lock on a range, owned by the open file.
pub fn lock_range(file: &fs::File, start: i64, len: i64) -> io::Result<()> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the lock lives during the call.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) }.into()).map(|_| ())
}

/// A shared mapping that is written.
pub struct SharedMap {
    at: *mut libc::c_void,
    len: usize,
}

impl SharedMap {
    pub fn of(file: &fs::File, len: usize) -> SharedMap {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the descriptor is open.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        SharedMap { at, len }
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: inside the mapping, which lives until drop; nobody else in this process uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.cast::<u8>().add(at), bytes.len()) };
    }

    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the mapping lives until drop.
        checked(unsafe { libc::msync(self.at, self.len, libc::MS_SYNC) }.into()).map(|_| ())
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this length, and not used after this.
        unsafe { libc::munmap(self.at, self.len) };
    }
}
