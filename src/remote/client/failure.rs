//! Failures of requests, by what is to be done about them.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};

/// A failed request. It passes through `object_store` as the cause of an error, where it was recognized as such.
#[derive(Debug)]
pub enum Failure {
    /// There is no object with the key.
    NotFound,
    /// There is no such bucket.
    NoBucket(String),
    /// An object that must not exist exists.
    Exists,
    /// The object was replaced since it was listed.
    Replaced,
    /// The object ends before the range that is wanted.
    PastEnd,
    /// The credentials are wrong, or do not permit it.
    Denied(String),
    /// There are no credentials, or they have expired. The text says what to do.
    NoCredentials(String),
    /// It would fail again.
    Refused(String),
    /// The server, or its client, does not know this kind of request.
    Unsupported(String),
    /// The object has this many bytes, which is not what it should have.
    WrongLength(u64),
    /// The bytes are not those that the key names.
    WrongBytes,
    /// The bytes could not be stored here.
    Local(std::io::Error),
    /// It may succeed later.
    Transient(String),
    /// The directory that has the objects is missing now.
    Away(String),
    /// The server has too much to do.
    Overload(String),
    /// The server does not answer in time.
    Silent(String),
    /// The server wants to be left alone for this time.
    Later(String, Duration),
}

/// The answer of an HTTP server that is not a success. Only the code of its body and a region are kept, since the
/// rest may quote the signature and the key of the request.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub status: u16,
    /// The code in the body, such as `SlowDown`.
    pub code: String,
    /// The region of the bucket, if the answer names one.
    pub region: Option<String>,
}

const FORBIDDEN: [u16; 2] = [401, 403];
/// Answers that ask for fewer requests.
const OVERLOADED: [u16; 2] = [429, 503];
/// Further answers that may change by themselves: timeouts, conflicts of concurrent requests.
const TEMPORARY: [u16; 5] = [408, 409, 425, 500, 502];
/// Answers that send the client elsewhere, and the one to a signature for another region.
const ELSEWHERE: [u16; 5] = [301, 302, 307, 308, 400];
const NOT_IMPLEMENTED: u16 = 501;
const NO_SUCH_RANGE: u16 = 416;
/// Codes for a bucket that does not exist, of S3 and Google, and of Azure.
const NO_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];
/// Codes for a session token that is no longer valid.
const EXPIRED: [&str; 4] = ["ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"];

impl fmt::Display for Answer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the server answered {} {}", self.status, self.code)
    }
}

impl std::error::Error for Answer {}

impl std::error::Error for Failure {}

impl Clone for Failure {
    fn clone(&self) -> Failure {
        match self {
            Failure::NotFound => Failure::NotFound,
            Failure::NoBucket(text) => Failure::NoBucket(text.clone()),
            Failure::Exists => Failure::Exists,
            Failure::Replaced => Failure::Replaced,
            Failure::PastEnd => Failure::PastEnd,
            Failure::Denied(text) => Failure::Denied(text.clone()),
            Failure::NoCredentials(text) => Failure::NoCredentials(text.clone()),
            Failure::Refused(text) => Failure::Refused(text.clone()),
            Failure::Unsupported(text) => Failure::Unsupported(text.clone()),
            Failure::WrongLength(len) => Failure::WrongLength(*len),
            Failure::WrongBytes => Failure::WrongBytes,
            Failure::Local(error) => Failure::Local(std::io::Error::new(error.kind(), error.to_string())),
            Failure::Transient(text) => Failure::Transient(text.clone()),
            Failure::Away(text) => Failure::Away(text.clone()),
            Failure::Overload(text) => Failure::Overload(text.clone()),
            Failure::Silent(text) => Failure::Silent(text.clone()),
            Failure::Later(text, pause) => Failure::Later(text.clone(), *pause),
        }
    }
}

impl Answer {
    /// Whether the answer says that there is no such bucket.
    pub(super) fn is_about_bucket(&self) -> bool {
        NO_BUCKET.contains(&self.code.as_str())
    }

    fn failure(&self) -> Failure {
        let text = self.to_string().trim_end().to_owned();
        if self.is_about_bucket() {
            return Failure::no_bucket();
        }
        if EXPIRED.contains(&self.code.as_str()) {
            let advice = "the session token has expired: get new credentials and mount again, or use a profile or \
                          a role, whose credentials are renewed";
            return Failure::NoCredentials(format!("{text}: {advice}"));
        }
        match (self.status, &self.region) {
            (status, Some(region)) if ELSEWHERE.contains(&status) => {
                let advice = format!("the bucket is in the region {region}: set AWS_REGION={region}");
                Failure::Refused(format!("{text}: {advice}"))
            }
            (301 | 302 | 307 | 308, None) => {
                let advice = "the bucket has another address: check AWS_REGION and AWS_ENDPOINT";
                Failure::Refused(format!("{text}: {advice}"))
            }
            (status, _) => Failure::of_status(status, text),
        }
    }
}

impl Failure {
    /// An answer with this status, which is neither a success nor one that the caller knows.
    pub(in crate::remote) fn of_status(status: u16, text: String) -> Failure {
        match status {
            status if FORBIDDEN.contains(&status) => Failure::Denied(text),
            status if OVERLOADED.contains(&status) => Failure::Overload(text),
            NOT_IMPLEMENTED => Failure::Unsupported(text),
            NO_SUCH_RANGE => Failure::PastEnd,
            status if TEMPORARY.contains(&status) || status > 503 => Failure::Transient(text),
            _ => Failure::Refused(text),
        }
    }

    /// There is no such bucket.
    pub(super) fn no_bucket() -> Failure {
        let text = "there is no such bucket; create it, or check its name, AWS_REGION and AWS_ENDPOINT";
        Failure::NoBucket(text.to_owned())
    }

    /// A bug in this program or in a crate ended a request.
    pub(super) fn panicked(payload: &(dyn Any + Send)) -> Failure {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default();
        // The line of the panic is in the log; its other lines may quote a request.
        let first = text.lines().next().unwrap_or_default();
        Failure::Refused(format!("a bug in tierfs: the request panicked: {first}"))
    }

    /// A request that was made without `object_store`.
    pub(in crate::remote) fn of_request(error: reqwest::Error) -> Failure {
        // A URL may be signed.
        let source = Box::new(error.without_url());
        Error::Generic { store: "HTTP", source }.into()
    }

    /// The server does not answer in time.
    pub(super) fn slow(text: &str) -> Failure {
        Failure::Silent(text.to_owned())
    }

    /// Whether the request may succeed later.
    pub fn is_transient(&self) -> bool {
        let is_overload = matches!(self, Failure::Overload(_) | Failure::Later(..));
        is_overload || matches!(self, Failure::Transient(_) | Failure::Silent(_) | Failure::Away(_))
    }

    /// Whether fewer requests should be made at a time.
    pub fn is_overload(&self) -> bool {
        matches!(self, Failure::Overload(_) | Failure::Silent(_) | Failure::Later(..))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let mut may_change = false;
        // Others hold errors of connections.
        let is_of_disk =
            matches!(&error, Error::Generic { store: "directory" | "LocalFileSystem" | "file", .. });
        for cause in causes(&error) {
            if let Some(answer) = cause.downcast_ref::<Answer>() {
                return answer.failure();
            }
            if let Some(failure) = cause.downcast_ref::<Failure>() {
                return failure.clone();
            }
            if let Some(failure) = cause.downcast_ref::<rustls::Error>().and_then(of_tls) {
                return failure;
            }
            if cause.downcast_ref::<reqwest::Error>().is_some_and(|error| error.is_builder()) {
                let text = format!("{}; check AWS_ENDPOINT and AWS_PROXY_URL", innermost(&error));
                return Failure::Refused(text);
            }
            if let Some(failure) =
                cause.downcast_ref::<std::io::Error>().filter(|_| is_of_disk).and_then(of_disk)
            {
                return failure;
            }
            may_change |= cause.is::<std::io::Error>() || cause.is::<HttpError>();
            may_change |= cause.is::<reqwest::Error>();
        }
        match &error {
            Error::NotFound { .. } => Failure::NotFound,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => Failure::Exists,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                Failure::Denied("the server refused the credentials".to_owned())
            }
            Error::NotSupported { .. } | Error::NotImplemented { .. } => {
                Failure::Unsupported(innermost(&error))
            }
            Error::JoinError { .. } => Failure::Transient(innermost(&error)),
            // A connection or a disk fails; anything else is an answer that makes no sense.
            Error::Generic { .. } if may_change => Failure::Transient(innermost(&error)),
            _ => Failure::Refused(innermost(&error)),
        }
    }
}

/// Whether a service that answers has failed this time: it is overloaded or broken, or has closed the connection.
pub(super) fn is_passing(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| {
        let answer = cause.downcast_ref::<Answer>();
        let is_cut = |error: &HttpError| error.kind() == HttpErrorKind::Interrupted;
        answer.is_some_and(|answer| answer.failure().is_transient())
            || cause.downcast_ref::<HttpError>().is_some_and(is_cut)
    })
}

/// The failure of a connection whose other end is not, or does not look like, the server that is wanted.
fn of_tls(error: &rustls::Error) -> Option<Failure> {
    use rustls::Error as Tls;
    let advice = match error {
        Tls::InvalidCertificate(_) | Tls::NoCertificatesPresented | Tls::General(_) => {
            "for an authority of your own, name the file with its certificate in AWS_CA_BUNDLE"
        }
        Tls::InvalidMessage(_) => {
            "the server does not speak TLS there: check the URL or AWS_ENDPOINT; for plain HTTP write http:// and set \
             AWS_ALLOW_HTTP=true"
        }
        Tls::PeerIncompatible(_) => "the server has no version of TLS that this program knows",
        // Connections also end in the middle of a handshake.
        _ => return None,
    };
    Some(Failure::Refused(format!("{error}; {advice}")))
}

/// The failure of a file that stays: the disk is full, may not be written to, or has no such name.
fn of_disk(error: &std::io::Error) -> Option<Failure> {
    use std::io::ErrorKind;
    // Others hold an error of a connection.
    error.raw_os_error()?;
    match error.kind() {
        ErrorKind::PermissionDenied => Some(Failure::Denied(error.to_string())),
        ErrorKind::ReadOnlyFilesystem
        | ErrorKind::StorageFull
        | ErrorKind::QuotaExceeded
        | ErrorKind::FileTooLarge
        | ErrorKind::InvalidFilename
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory => Some(Failure::Refused(error.to_string())),
        _ => None,
    }
}

/// An error and its causes. An I/O error may hold another error, which is not its source.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |cause| {
        let held = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        held.map(|held| held as &(dyn std::error::Error + 'static)).or_else(|| cause.source())
    })
}

/// The text of the first cause. Outer ones quote requests.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NotFound => out.write_str("the object does not exist"),
            Failure::Exists => out.write_str("the object exists already"),
            Failure::Replaced => out.write_str("the object was replaced since it was listed"),
            Failure::PastEnd => out.write_str("the object has become shorter (416)"),
            Failure::NoBucket(text)
            | Failure::Denied(text)
            | Failure::NoCredentials(text)
            | Failure::Refused(text)
            | Failure::Unsupported(text)
            | Failure::Transient(text)
            | Failure::Away(text)
            | Failure::Overload(text)
            | Failure::Silent(text)
            | Failure::Later(text, _) => out.write_str(text),
            Failure::WrongLength(len) => write!(out, "the object has {len} bytes, which is wrong"),
            Failure::WrongBytes => out.write_str("its bytes do not match the digest in its name"),
            Failure::Local(error) => write!(out, "{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Failure};

    fn failure(status: u16, code: &str, region: Option<&str>) -> Failure {
        Answer { status, code: code.to_owned(), region: region.map(str::to_owned) }.failure()
    }

    #[test]
    fn answers_that_may_change_are_repeated_and_others_are_not() {
        // S3 answers 409 while another request creates the object, which may still fail.
        for status in [408, 409, 425, 429, 500, 502, 503, 504] {
            assert!(failure(status, "", None).is_transient(), "{status}");
        }
        for status in [400, 405] {
            assert!(matches!(failure(status, "", None), Failure::Refused(_)), "{status}");
        }
        assert!(matches!(failure(416, "InvalidRange", None), Failure::PastEnd));
        assert!([401, 403].iter().all(|status| matches!(failure(*status, "", None), Failure::Denied(_))));
        assert!(matches!(failure(501, "NotImplemented", None), Failure::Unsupported(_)));
    }

    #[test]
    fn answers_about_the_bucket_its_region_and_tokens_say_what_to_do() {
        assert!(matches!(failure(404, "NoSuchBucket", None), Failure::NoBucket(_)));
        let Failure::NoCredentials(text) = failure(400, "ExpiredToken", None) else { panic!("a wrong kind") };
        assert!(text.contains("has expired"), "{text}");
        for (status, code) in [(301, "PermanentRedirect"), (400, "AuthorizationHeaderMalformed"), (307, "")] {
            let text = failure(status, code, Some("eu-west-1")).to_string();
            assert!(text.contains("AWS_REGION=eu-west-1"), "{text}");
        }
        assert!(failure(301, "PermanentRedirect", None).to_string().contains("AWS_ENDPOINT"));
        // A region is no reason for another answer.
        assert!(failure(503, "SlowDown", Some("eu-west-1")).is_overload());
    }
}
