//! Error numbers, and which kinds of errors have them. No other file names these numbers.

use crate::model::{Error, ErrorKind};

/// The error number of a failed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(i32);

impl Errno {
    /// The number, as programs see it.
    pub fn number(self) -> i32 {
        self.0
    }
}

/// The buffer is too short for an attribute.
pub(in crate::fs) const TOO_SHORT: Errno = Errno(libc::ERANGE);
/// The handle is not open.
pub(in crate::fs) const BAD_HANDLE: Errno = Errno(libc::EBADF);
/// The call has an unknown flag.
pub(in crate::fs) const NO_SUCH_FLAG: Errno = Errno(libc::EINVAL);
/// The offset lies behind the last data, or at or behind the end of the file.
pub(in crate::fs) const BEHIND_END: Errno = Errno(libc::ENXIO);
/// Files have no such operation.
pub(in crate::fs) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
/// The path is a file where a directory is required.
pub(in crate::fs) const NOT_DIRECTORY: Errno = Errno(libc::ENOTDIR);

/// Makes the kernel look the name up again and open the result.
pub(in crate::fs) const LOOK_AGAIN: Errno = Errno(libc::ESTALE);

/// The request is of a kind that is not served. The kernel remembers this for many kinds, and does without.
pub(in crate::fs) const NOT_SERVED: Errno = Errno(libc::ENOSYS);
/// The bytes of the request make no sense.
pub(in crate::fs) const MALFORMED: Errno = Errno(libc::EINVAL);
/// The request asks for more bytes than a reply can have.
pub(in crate::fs) const TOO_LONG: Errno = Errno(libc::EINVAL);
/// A bug: the request was not answered.
pub(in crate::fs) const NOT_ANSWERED: Errno = Errno(libc::EIO);

/// The daemon that died had begun the request, and may have done it.
pub(in crate::fs) const PERHAPS_DONE: Errno = Errno(libc::EIO);

/// Whether passing a file to the kernel failed for a reason that all files of the store share: no
/// privilege, no support, or too many stacked file systems.
pub(in crate::fs) fn is_never_possible(error: &std::io::Error) -> bool {
    let never =
        [libc::EPERM, libc::EACCES, libc::EOPNOTSUPP, libc::ENOSYS, libc::ENOTTY, libc::ELOOP, libc::EINVAL];
    error.raw_os_error().is_some_and(|number| never.contains(&number))
}

/// The error number for programs.
pub(in crate::fs) fn errno(error: &Error) -> Errno {
    let number = match error.kind() {
        ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Unsupported => libc::EIO,
        ErrorKind::NotSupported => libc::EOPNOTSUPP,
        ErrorKind::Invalid | ErrorKind::Unreadable => libc::EINVAL,
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::Gone => libc::ESTALE,
        ErrorKind::Exists => libc::EEXIST,
        ErrorKind::IsDirectory => libc::EISDIR,
        ErrorKind::NotDirectory => libc::ENOTDIR,
        ErrorKind::NotEmpty => libc::ENOTEMPTY,
        ErrorKind::NameTooLong => libc::ENAMETOOLONG,
        ErrorKind::OtherDevice => libc::EXDEV,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Denied => libc::EPERM,
        ErrorKind::Forbidden => libc::EACCES,
        ErrorKind::Absent => libc::ENODATA,
        ErrorKind::ReadOnly => libc::EROFS,
        ErrorKind::Full => libc::ENOSPC,
        ErrorKind::TooLarge => libc::EFBIG,
        ErrorKind::Quota => libc::EDQUOT,
        ErrorKind::Interrupted => libc::EINTR,
    };
    Errno(number)
}
