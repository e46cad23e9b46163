//! The failure of a call: a status code of gRPC and a text for people.

use std::fmt::{self, Display, Formatter};

use crate::model::{Error, ErrorKind};

/// A status code of gRPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::csi) enum Code {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

impl Code {
    /// The code by which an orchestrator decides what to do about an error.
    fn of(kind: ErrorKind) -> Code {
        match kind {
            // A store that another process uses is free later.
            ErrorKind::Io | ErrorKind::Busy => Code::Unavailable,
            ErrorKind::Corrupt => Code::Internal,
            ErrorKind::Invalid
            | ErrorKind::IsDirectory
            | ErrorKind::NotDirectory
            | ErrorKind::NameTooLong
            | ErrorKind::OtherDevice => Code::InvalidArgument,
            ErrorKind::NotFound | ErrorKind::Gone | ErrorKind::Absent => Code::NotFound,
            ErrorKind::Exists => Code::AlreadyExists,
            // A remote that asks for credentials, and one that refuses them: the client has one kind for both.
            ErrorKind::Denied | ErrorKind::Forbidden => Code::PermissionDenied,
            ErrorKind::Full | ErrorKind::Quota => Code::ResourceExhausted,
            ErrorKind::TooLarge => Code::OutOfRange,
            ErrorKind::Interrupted => Code::Aborted,
            ErrorKind::Unsupported
            | ErrorKind::NotSupported
            | ErrorKind::Unreadable
            | ErrorKind::NotEmpty
            | ErrorKind::ReadOnly => Code::FailedPrecondition,
        }
    }
}

/// Why a call failed. The text goes to the orchestrator, which shows it to users: it has no secrets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::csi) struct Failure {
    pub code: Code,
    pub text: String,
}

/// The outcome of a call, or of a part of it.
pub(in crate::csi) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(code: Code, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub fn invalid(text: impl Into<String>) -> Failure {
        Failure::new(Code::InvalidArgument, text)
    }

    pub fn exists(text: impl Into<String>) -> Failure {
        Failure::new(Code::AlreadyExists, text)
    }

    /// A call did not end in the time that its caller gives it.
    pub fn late(doing: impl Display) -> Failure {
        Failure::new(Code::DeadlineExceeded, format!("{doing}: not done in time"))
    }
}

impl Display for Failure {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}: {}", self.code, self.text)
    }
}

/// An error of the files of this process, which no argument of a call can mend.
pub(in crate::csi) fn internal(error: Error) -> Failure {
    Failure::new(Code::Internal, error.to_string())
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(Code::of(error.kind()), error.to_string())
    }
}
