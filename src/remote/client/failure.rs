//! Failures of requests, by what is to be done about them.

use std::fmt;

use object_store::Error;

/// A failed request.
#[derive(Debug)]
pub enum Failure {
    /// There is no object with the key.
    NotFound,
    /// An object that must not exist exists.
    Exists,
    /// The credentials are wrong, or do not permit it.
    Denied(String),
    /// It would fail again.
    Refused(String),
    /// The object has this many bytes, which is not what it should have.
    WrongLength(u64),
    /// The bytes are not those that the key names.
    WrongBytes,
    /// The bytes could not be stored here.
    Local(std::io::Error),
    /// It may succeed later.
    Transient(String),
    /// The server has too much to do, or does not answer.
    Overload(String),
}

/// The answer of an HTTP server that is not a success. Only the code of its body is kept, since the rest may
/// quote the signature and the key of the request.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: u16,
    /// The code in the body, such as `SlowDown`.
    pub code: String,
}

const FORBIDDEN: [u16; 2] = [401, 403];
/// Answers that ask for fewer requests.
const OVERLOADED: [u16; 2] = [429, 503];
/// Further answers that may change by themselves: timeouts, conflicts of concurrent requests.
const TEMPORARY: [u16; 5] = [408, 409, 425, 500, 502];

impl fmt::Display for Answer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the server answered {} {}", self.status, self.code)
    }
}

impl std::error::Error for Answer {}

impl Answer {
    fn failure(&self) -> Failure {
        let text = self.to_string().trim_end().to_owned();
        match self.status {
            status if FORBIDDEN.contains(&status) => Failure::Denied(text),
            status if OVERLOADED.contains(&status) => Failure::Overload(text),
            status if TEMPORARY.contains(&status) || status > 503 => Failure::Transient(text),
            _ => Failure::Refused(text),
        }
    }
}

impl Failure {
    /// The server does not answer in time.
    pub(super) fn slow(text: &str) -> Failure {
        Failure::Overload(text.to_owned())
    }

    /// Whether the request may succeed when it is repeated.
    pub fn is_transient(&self) -> bool {
        matches!(self, Failure::Transient(_) | Failure::Overload(_))
    }

    /// Whether fewer requests should be made at a time.
    pub fn is_overload(&self) -> bool {
        matches!(self, Failure::Overload(_))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(cause) = source {
            if let Some(answer) = cause.downcast_ref::<Answer>() {
                return answer.failure();
            }
            source = cause.source();
        }
        match &error {
            Error::NotFound { .. } => Failure::NotFound,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => Failure::Exists,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                Failure::Denied("the server refused the credentials".to_owned())
            }
            Error::Generic { .. } | Error::JoinError { .. } => Failure::Transient(innermost(&error)),
            _ => Failure::Refused(innermost(&error)),
        }
    }
}

/// The text of the first cause. Outer ones quote requests.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NotFound => out.write_str("the object does not exist"),
            Failure::Exists => out.write_str("the object exists already"),
            Failure::Denied(text)
            | Failure::Refused(text)
            | Failure::Transient(text)
            | Failure::Overload(text) => out.write_str(text),
            Failure::WrongLength(len) => write!(out, "the object has {len} bytes, which is wrong"),
            Failure::WrongBytes => out.write_str("its bytes do not match the digest in its name"),
            Failure::Local(error) => write!(out, "{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Failure};

    #[test]
    fn answers_that_may_change_are_repeated_and_others_are_not() {
        let failure = |status| Answer { status, code: String::new() }.failure();
        // S3 answers 409 while another request creates the object, which may still fail.
        for status in [408, 409, 425, 429, 500, 502, 503, 504] {
            assert!(failure(status).is_transient(), "{status}");
        }
        assert!([400, 405, 416, 501].iter().all(|status| matches!(failure(*status), Failure::Refused(_))));
        assert!([401, 403].iter().all(|status| matches!(failure(*status), Failure::Denied(_))));
    }
}
