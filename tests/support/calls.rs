//! System calls that the standard library has no names for, and their errors.

use std::ffi::CString;
use std::fs;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The error number of a call that must fail.
#[track_caller]
pub fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Checks that a call failed with this error number.
#[track_caller]
pub fn refused<T>(result: Result<T>, number: i32) {
    match result {
        Ok(_) => panic!("the call succeeded"),
        Err(error) => assert_eq!(
            error.raw_os_error(),
            Some(number),
            "{error}, not {}",
            Error::from_raw_os_error(number)
        ),
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// The value that a C function returned, or the error if that is negative.
pub fn checked(result: i64) -> Result<i64> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// Calls `truncate`, which opens no file.
pub fn truncate(path: &Path, bytes: i64) -> Result<()> {
    let path = c_path(path);
    // SAFETY: a string that ends with zero and lives during the call.
    checked(unsafe { libc::truncate(path.as_ptr(), bytes) }.into()).map(|_| ())
}

/// Calls `chmod`.
#[track_caller]
pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

pub fn rename_with(from: &Path, to: &Path, flags: u32) -> Result<()> {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: both are strings that end with zero and live during the call.
    let result =
        unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
    checked(result.into()).map(|_| ())
}

pub fn mkfifo(path: &Path) -> Result<()> {
    let path = c_path(path);
    // SAFETY: a string that ends with zero and lives during the call.
    checked(unsafe { libc::mkfifo(path.as_ptr(), 0o644) }.into()).map(|_| ())
}

pub fn mknod(path: &Path, mode: u32) -> Result<()> {
    let path = c_path(path);
    // SAFETY: a string that ends with zero and lives during the call.
    checked(unsafe { libc::mknod(path.as_ptr(), mode, 0) }.into()).map(|_| ())
}

/// Sets the times of access and of writing, in seconds and nanoseconds.
pub fn utimens(path: &Path, atime: (i64, i64), mtime: (i64, i64)) -> Result<()> {
    let time = |(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec };
    let times = [time(atime), time(mtime)];
    let path = c_path(path);
    // SAFETY: the string ends with zero; both times live during the call.
    let result =
        unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    checked(result.into()).map(|_| ())
}

pub fn fallocate(file: &fs::File, mode: i32, offset: i64, bytes: i64) -> Result<()> {
    // SAFETY: the descriptor is open; no memory is touched.
    checked(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) }.into()).map(|_| ())
}

pub fn copy_file_range(from: &fs::File, to: &fs::File, bytes: usize) -> Result<i64> {
    let none = std::ptr::null_mut();
    // SAFETY: both descriptors are open; no offsets are given.
    checked(unsafe { libc::copy_file_range(from.as_raw_fd(), none, to.as_raw_fd(), none, bytes, 0) } as i64)
}

pub fn sendfile(from: &fs::File, to: &fs::File, bytes: usize) -> Result<i64> {
    // SAFETY: both descriptors are open; no offset is given.
    checked(unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), std::ptr::null_mut(), bytes) } as i64)
}

/// Takes or tries a lock of a whole file.
pub fn flock(file: &fs::File, how: i32) -> Result<()> {
    // SAFETY: the descriptor is open.
    checked(unsafe { libc::flock(file.as_raw_fd(), how) }.into()).map(|_| ())
}

/// Tries a write lock on a range, owned by the open file.
pub fn lock_range(file: &fs::File, start: i64, len: i64) -> Result<()> {
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
