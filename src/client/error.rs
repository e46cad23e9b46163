//! Errors: a kind for programs, a path and a text for people.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file does not exist.
    NotFound,
    /// The file is not a tensor: it is a container, a directory or another file.
    NotATensor,
    /// The path is not on a mount of tierfs.
    NotMounted,
    /// The file has no such attribute.
    NoAttribute,
    /// An attribute, a header or an argument is invalid.
    Invalid,
    /// An element type or a layout that this crate does not read.
    Unsupported,
    /// The elements have another type than the requested one.
    WrongType,
    /// The buffer has another number of elements than the tensor.
    WrongLength,
    /// The mapped elements do not begin at a multiple of the alignment of their type.
    Unaligned,
    /// The file is another one than when the tensor was opened: open it again.
    Changed,
    /// Bytes were given up, and cannot be made again (`ENODATA`).
    Absent,
    /// Stored bytes are corrupt or unreadable (`EIO`).
    Corrupt,
    /// The daemon refused a request.
    Refused,
    /// The memory for the elements is not there.
    OutOfMemory,
    /// Any other error of the system.
    Io,
}

/// An error without its path.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub kind: ErrorKind,
    pub text: String,
}

impl Wrong {
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Wrong {
        Wrong { kind, text: text.into() }
    }

    pub fn at(self, path: &Path) -> Error {
        Error::new(self.kind, path, self.text)
    }
}

/// An error, with the path that it is about. The text of an error of the mount ends with that of `user.tierfs.why`.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: PathBuf,
    text: String,
    number: Option<i32>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, path: &Path, text: impl Into<String>) -> Error {
        Error { kind, path: path.to_owned(), text: text.into(), number: None }
    }

    /// An error of the system, with the reason that the mount gives, if it gives one.
    pub(crate) fn of_system(path: &Path, error: &io::Error, why: Option<String>) -> Error {
        let text = match why {
            Some(why) => format!("{error}: {why}"),
            None => error.to_string(),
        };
        let number = error.raw_os_error();
        Error { kind: kind_of(error), path: path.to_owned(), text, number }
    }

    /// A request that the daemon refused.
    pub(crate) fn refused(path: &Path, error: &io::Error, why: Option<String>) -> Error {
        let kind = match kind_of(error) {
            ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Refused,
        };
        Error { kind, ..Error::of_system(path, error, why) }
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The error number of the system, if it is an error of the system.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.number
    }
}

/// Reads fail with `ENODATA` and `EIO` for absent and for corrupt bytes.
fn kind_of(error: &io::Error) -> ErrorKind {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR) => ErrorKind::NotFound,
        Some(Errno::NODATA) => ErrorKind::Absent,
        Some(Errno::IO) => ErrorKind::Corrupt,
        Some(Errno::STALE) => ErrorKind::Changed,
        _ if error.kind() == io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ if error.kind() == io::ErrorKind::OutOfMemory => ErrorKind::OutOfMemory,
        _ => ErrorKind::Io,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.path.display(), self.text)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.number {
            Some(number) => io::Error::from_raw_os_error(number).kind(),
            None => match error.kind {
                ErrorKind::NotFound => io::ErrorKind::NotFound,
                ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
                ErrorKind::Changed => io::ErrorKind::StaleNetworkFileHandle,
                ErrorKind::Unsupported | ErrorKind::NotMounted => io::ErrorKind::Unsupported,
                _ => io::ErrorKind::InvalidData,
            },
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use rustix::io::Errno;

    use super::{Error, ErrorKind};

    #[test]
    fn an_error_of_the_system_keeps_its_number_and_has_the_reason_of_the_mount() {
        let of = |number: rustix::io::Errno, why: Option<&str>| {
            let error = io::Error::from_raw_os_error(number.raw_os_error());
            Error::of_system(Path::new("m/w"), &error, why.map(str::to_owned))
        };
        let corrupt = of(Errno::IO, Some("a block is corrupt"));
        assert_eq!(
            (corrupt.kind(), corrupt.to_string()),
            (ErrorKind::Corrupt, "m/w: Input/output error (os error 5): a block is corrupt".into())
        );
        assert_eq!(corrupt.raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert_eq!(of(Errno::NODATA, None).kind(), ErrorKind::Absent);
        assert_eq!(of(Errno::NOTDIR, None).kind(), ErrorKind::NotFound);
        let denied = of(Errno::ACCESS, None);
        assert_eq!(denied.kind(), ErrorKind::Io);
        assert_eq!(io::Error::from(denied).kind(), io::ErrorKind::PermissionDenied);
    }
}
