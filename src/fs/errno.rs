//! Maps kinds of errors to error numbers. No other file names these numbers.

use fuser::Errno;

use crate::model::{Error, ErrorKind};

/// Devices, fifos and sockets cannot be created.
pub(super) const NO_DEVICES: Errno = Errno::EPERM;
/// The buffer is too short for an attribute.
pub(super) const TOO_SHORT: Errno = Errno::ERANGE;
/// The handle is not open.
pub(super) const BAD_HANDLE: Errno = Errno::EBADF;
/// The call has an unknown flag.
pub(super) const NO_SUCH_FLAG: Errno = Errno::EINVAL;
/// The path is a file where a directory is required.
pub(super) const NOT_DIRECTORY: Errno = Errno::ENOTDIR;

/// Makes the kernel look the name up again and open the result.
pub(super) const LOOK_AGAIN: Errno = Errno::ESTALE;

/// Whether passing a file to the kernel failed for a reason that all files of the store share: no
/// privilege, no support, or too many stacked file systems.
pub(super) fn is_never_possible(error: &std::io::Error) -> bool {
    let never =
        [libc::EPERM, libc::EACCES, libc::EOPNOTSUPP, libc::ENOSYS, libc::ENOTTY, libc::ELOOP, libc::EINVAL];
    error.raw_os_error().is_some_and(|number| never.contains(&number))
}

/// The error number for programs.
pub(super) fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Unsupported => Errno::EIO,
        ErrorKind::NotSupported => Errno::EOPNOTSUPP,
        ErrorKind::Invalid | ErrorKind::Unreadable => Errno::EINVAL,
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Gone => Errno::ESTALE,
        ErrorKind::Exists => Errno::EEXIST,
        ErrorKind::IsDirectory => Errno::EISDIR,
        ErrorKind::NotDirectory => Errno::ENOTDIR,
        ErrorKind::NotEmpty => Errno::ENOTEMPTY,
        ErrorKind::NameTooLong => Errno::ENAMETOOLONG,
        ErrorKind::OtherDevice => Errno::EXDEV,
        ErrorKind::Busy => Errno::EBUSY,
        ErrorKind::Denied => Errno::EPERM,
        ErrorKind::Forbidden => Errno::EACCES,
        ErrorKind::Absent => Errno::from_i32(libc::ENODATA),
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::Full => Errno::ENOSPC,
        ErrorKind::TooLarge => Errno::EFBIG,
        ErrorKind::Quota => Errno::from_i32(libc::EDQUOT),
        ErrorKind::Interrupted => Errno::EINTR,
    }
}
