//! Kinds of errors as the numbers that programs see. The only place that has them.

use fuser::Errno;

use crate::model::{Error, ErrorKind};

/// No such device, fifo or socket can be made.
pub(super) const NO_DEVICES: Errno = Errno::EPERM;
/// A buffer is too short for an attribute.
pub(super) const TOO_SHORT: Errno = Errno::ERANGE;
/// A handle that was never given out.
pub(super) const BAD_HANDLE: Errno = Errno::EBADF;
/// A flag of a call that is not known.
pub(super) const NO_SUCH_FLAG: Errno = Errno::EINVAL;
/// A file where a directory should be.
pub(super) const NOT_DIRECTORY: Errno = Errno::ENOTDIR;

/// The kernel looks the name up again, and opens what it leads to then.
pub(super) const LOOK_AGAIN: Errno = Errno::ESTALE;

/// Whether giving the kernel a file failed in a way that other files of the store share: no
/// privilege, no support, too many file systems one on the other.
pub(super) fn is_never_possible(error: &std::io::Error) -> bool {
    let never =
        [libc::EPERM, libc::EACCES, libc::EOPNOTSUPP, libc::ENOSYS, libc::ENOTTY, libc::ELOOP, libc::EINVAL];
    error.raw_os_error().is_some_and(|number| never.contains(&number))
}

/// What a program is told.
pub(super) fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Unsupported => Errno::EIO,
        ErrorKind::NotSupported => Errno::EOPNOTSUPP,
        ErrorKind::Invalid => Errno::EINVAL,
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
        ErrorKind::Absent => Errno::from_i32(libc::ENODATA),
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::Full => Errno::ENOSPC,
        ErrorKind::TooLarge => Errno::EFBIG,
        ErrorKind::Quota => Errno::from_i32(libc::EDQUOT),
        ErrorKind::Interrupted => Errno::EINTR,
    }
}
