//! Errors and their kinds. A message says what failed, where, and what to do next.

use std::io;

use crate::model::refusal::{Refusal, reasons};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error. Programs decide by the kind, never by the text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// The operating system reported an error; the source error has the details.
    Io,
    /// Stored bytes differ from the ones that were written.
    Corrupt,
    /// A valid value of a version or feature that this program does not know.
    Unsupported,
    /// An operation that this file system does not support.
    NotSupported,
    Invalid,
    /// A file from outside that is cut off, or that is not of the format that its name promises.
    Unreadable,
    /// Nothing with that name exists.
    NotFound,
    /// It existed and does not any more.
    Gone,
    /// The name is in use.
    Exists,
    /// A directory where none is allowed.
    IsDirectory,
    /// Not a directory where one is required.
    NotDirectory,
    /// A directory that is not empty.
    NotEmpty,
    /// The name is too long.
    NameTooLong,
    /// The change would span two collections.
    OtherDevice,
    /// The store, or a part of it, is in use.
    Busy,
    /// Not allowed, for example because precision would be lost.
    Denied,
    /// The host or the remote does not let this process do it.
    Forbidden,
    /// The data is absent and cannot be rebuilt.
    Absent,
    /// The store, or a part of it, accepts no writes.
    ReadOnly,
    /// No space is left in the store.
    Full,
    /// The file would exceed the largest possible length.
    TooLarge,
    /// A quota of a tenant or a collection is exhausted.
    Quota,
    /// The operation was told to stop.
    Interrupted,
}

impl ErrorKind {
    const ALL: [ErrorKind; 23] = [
        ErrorKind::Io,
        ErrorKind::Corrupt,
        ErrorKind::Unsupported,
        ErrorKind::NotSupported,
        ErrorKind::Invalid,
        ErrorKind::Unreadable,
        ErrorKind::NotFound,
        ErrorKind::Gone,
        ErrorKind::Exists,
        ErrorKind::IsDirectory,
        ErrorKind::NotDirectory,
        ErrorKind::NotEmpty,
        ErrorKind::NameTooLong,
        ErrorKind::OtherDevice,
        ErrorKind::Busy,
        ErrorKind::Denied,
        ErrorKind::Forbidden,
        ErrorKind::Absent,
        ErrorKind::ReadOnly,
        ErrorKind::Full,
        ErrorKind::TooLarge,
        ErrorKind::Quota,
        ErrorKind::Interrupted,
    ];

    /// A word for programs.
    pub fn code(self) -> &'static str {
        match self {
            ErrorKind::Io => "io",
            ErrorKind::Corrupt => "corrupt",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::NotSupported => "not supported",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unreadable => "unreadable",
            ErrorKind::NotFound => "not found",
            ErrorKind::Gone => "gone",
            ErrorKind::Exists => "exists",
            ErrorKind::IsDirectory => "directory",
            ErrorKind::NotDirectory => "not a directory",
            ErrorKind::NotEmpty => "not empty",
            ErrorKind::NameTooLong => "name too long",
            ErrorKind::OtherDevice => "other collection",
            ErrorKind::Busy => "busy",
            ErrorKind::Denied => "denied",
            ErrorKind::Forbidden => "forbidden",
            ErrorKind::Absent => "absent",
            ErrorKind::ReadOnly => "read-only",
            ErrorKind::Full => "no space",
            ErrorKind::TooLarge => "too large",
            ErrorKind::Quota => "quota",
            ErrorKind::Interrupted => "cancelled",
        }
    }

    /// The kind with this word.
    pub fn of_code(code: &str) -> Option<ErrorKind> {
        ErrorKind::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// Maximum bytes of an error's text, which may quote text from outside.
const TEXT_BYTES_MAX: usize = 4000;

/// The beginning of a text, of at most `bytes_max` bytes and whole characters.
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}

fn shortened(text: String) -> String {
    if text.len() <= TEXT_BYTES_MAX { text } else { format!("{}...", beginning(&text, TEXT_BYTES_MAX)) }
}

/// The text of an error of the operating system, without its number.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((plain, _)) => plain.to_owned(),
        None => text,
    }
}

/// An error: its kind, and a text for users.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    kind: ErrorKind,
    text: String,
    #[source]
    source: Option<io::Error>,
    /// The files that a request was refused for, if they are known.
    refusals: Vec<Refusal>,
}

impl Error {
    /// An error of `kind`. `text` says what failed, where, and what to do next.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: shortened(text.into()), source: None, refusals: Vec::new() }
    }

    /// Stored bytes differ from the ones that were written.
    pub fn corrupt(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corrupt, text)
    }

    pub fn invalid(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, text)
    }

    /// A valid value that this version does not know.
    pub fn unsupported(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, text)
    }

    /// An error of the operating system. `doing` says what was done, and to which file.
    pub fn io(doing: impl std::fmt::Display, source: io::Error) -> Error {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            io::ErrorKind::StorageFull => ErrorKind::Full,
            io::ErrorKind::FileTooLarge => ErrorKind::TooLarge,
            io::ErrorKind::QuotaExceeded => ErrorKind::Quota,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            io::ErrorKind::PermissionDenied => ErrorKind::Forbidden,
            io::ErrorKind::StaleNetworkFileHandle => ErrorKind::Gone,
            _ => ErrorKind::Io,
        };
        let text = shortened(format!("{doing}: {}", plain(&source)));
        Error { kind, text, source: Some(source), refusals: Vec::new() }
    }

    /// A request that was refused for some files. The first one decides the kind.
    pub fn refused(refusals: Vec<Refusal>) -> Error {
        let kind = refusals.first().map_or(ErrorKind::Invalid, |first| first.cause.kind());
        let clauses = reasons(&refusals).into_iter().map(|reason| match reason.paths.as_slice() {
            [path] if reason.count == 1 && !path.is_empty() => format!("{path}: {}", reason.text(path)),
            _ => reason.text(""),
        });
        let text = shortened(clauses.collect::<Vec<_>>().join("; "));
        Error { kind, text, source: None, refusals }
    }

    /// The files that a request was refused for, if they are known.
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// The kind that programs decide by.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Prefixes the text with `place`: a file, a record or a tensor.
    pub fn at(mut self, place: impl std::fmt::Display) -> Error {
        self.text = shortened(format!("{place}: {}", self.text));
        self
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{Error, ErrorKind, TEXT_BYTES_MAX, beginning};

    #[test]
    fn the_text_of_an_error_is_truncated_between_two_characters() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        let io = Error::io(&long, io::Error::from(io::ErrorKind::NotFound));
        for error in [Error::invalid(long.clone()), Error::invalid("x").at(&long), io] {
            let text = error.to_string();
            assert!(text.len() <= TEXT_BYTES_MAX + 3 && text.ends_with("é..."), "{} bytes", text.len());
        }
        assert_eq!((beginning("éé", 3), beginning("éé", 4), beginning("éé", 0)), ("é", "éé", ""));
    }

    #[test]
    fn a_file_beyond_the_limit_of_the_disk_is_too_large_and_not_an_io_error() {
        let error = Error::io("writing", io::Error::from(io::ErrorKind::FileTooLarge));
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}
