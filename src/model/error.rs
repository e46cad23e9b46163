//! What can go wrong, by kind. A message says what, where, and what to do next.

use std::io;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error. Programs decide by it, never by the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The operating system refused; the source error says how.
    Io,
    /// Stored bytes are not what was stored.
    Corrupt,
    /// Valid, but of a version or a feature that this program does not know.
    Unsupported,
    /// Not something that this file system does.
    NotSupported,
    /// A value that makes no sense where it was given.
    Invalid,
    /// Nothing of that name.
    NotFound,
    /// It was there, and is not any more.
    Gone,
    /// The name is taken.
    Exists,
    /// A directory where none can stand.
    IsDirectory,
    /// Something else where a directory must stand.
    NotDirectory,
    /// A directory that has something in it.
    NotEmpty,
    /// A name with too many bytes.
    NameTooLong,
    /// Two places that one change cannot span.
    OtherDevice,
    /// The store, or a part of it, is in use by another.
    Busy,
    /// Not allowed, for example where precision would be lost.
    Denied,
    /// The data is not there and cannot be made again.
    Absent,
    /// The store, or a part of it, takes no writes.
    ReadOnly,
    /// No space is left in the store.
    Full,
    /// A file would be larger than a file can be.
    TooLarge,
    /// A tenant's or collection's allowance is used up.
    Quota,
    /// It stopped because it was told to.
    Interrupted,
}

/// The text of an error has at most this many bytes: it may quote what somebody else wrote.
const TEXT_BYTES_MAX: usize = 4000;

/// The beginning of a text, in whole characters.
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}

fn shortened(text: String) -> String {
    if text.len() <= TEXT_BYTES_MAX { text } else { format!("{}...", beginning(&text, TEXT_BYTES_MAX)) }
}

/// An error: its kind, and a text for people.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Error {
    kind: ErrorKind,
    text: String,
    #[source]
    source: Option<io::Error>,
}

impl Error {
    /// An error of `kind` with a text that says what, where, and what to do next.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: shortened(text.into()), source: None }
    }

    /// Stored bytes are not what was stored.
    pub fn corrupt(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Corrupt, text)
    }

    /// A value that makes no sense where it was given.
    pub fn invalid(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, text)
    }

    /// Valid, but not known to this version.
    pub fn unsupported(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, text)
    }

    /// The operating system refused; `doing` says what, and to which file.
    pub fn io(doing: impl std::fmt::Display, source: io::Error) -> Error {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            io::ErrorKind::StorageFull => ErrorKind::Full,
            io::ErrorKind::FileTooLarge => ErrorKind::TooLarge,
            io::ErrorKind::QuotaExceeded => ErrorKind::Quota,
            io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        };
        Error { kind, text: shortened(format!("{doing}: {source}")), source: Some(source) }
    }

    /// The kind that programs decide by.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error, its text after `place`: a file, a record, a tensor.
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
    fn the_text_of_an_error_is_cut_between_two_characters() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        let io = Error::io(&long, io::Error::from(io::ErrorKind::NotFound));
        for error in [Error::invalid(long.clone()), Error::invalid("x").at(&long), io] {
            let text = error.to_string();
            assert!(text.len() <= TEXT_BYTES_MAX + 3 && text.ends_with("é..."), "{} bytes", text.len());
        }
        assert_eq!((beginning("éé", 3), beginning("éé", 4), beginning("éé", 0)), ("é", "éé", ""));
    }

    #[test]
    fn a_file_that_the_disk_below_cannot_hold_is_too_large_and_no_error_of_the_disk() {
        let error = Error::io("writing", io::Error::from(io::ErrorKind::FileTooLarge));
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}
