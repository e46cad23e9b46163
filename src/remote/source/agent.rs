//! HTTP requests whose redirects, statuses and headers the caller sees. A body that is kept in memory has a limit.

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use chrono::DateTime;
use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use object_store::client::DnsResolver;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Method, StatusCode, Url};

use crate::model::{Error, Result};
use crate::remote::client::credentials::Variables;
use crate::remote::client::failure::Failure;
use crate::remote::client::resolver::Resolver;
use crate::remote::source::web::Found;

/// The most redirects of a request.
const REDIRECTS_MAX: usize = 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest silence in an answer; the requests have deadlines of their own.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// The refusal of a server that cannot send parts.
pub const NO_RANGES: &str = "the server answers a range with the whole file (status 200), so parts cannot be read; use a \
                         server with ranges, or https+whole:// (http+whole://), which downloads whole files to read them";

/// The client of all requests to one source.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    http: reqwest::Client,
    /// Whether secrets may be sent by plain HTTP to other machines.
    allows_http: bool,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub url: Url,
    method: Method,
    headers: HeaderMap,
    /// The value of `Authorization`. Only the origin of `url` gets it.
    secret: Option<HeaderValue>,
    /// The body of a POST.
    form: Option<String>,
}

/// The head of an answer, and its body.
pub(super) struct Answer {
    /// The place of the answer, behind all redirects.
    pub url: Url,
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: reqwest::Response,
}

/// A file, or a range of one, as it is sent.
pub(super) struct Part {
    /// Bytes of the whole file.
    pub bytes: u64,
    pub body: BoxStream<'static, std::result::Result<Bytes, Failure>>,
}

/// The resolver of buckets.
struct ByResolver(Arc<Resolver>);

impl Resolve for ByResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.0.resolve(name.as_str());
        Box::pin(async move {
            // The port is that of the URL.
            let found = found.await?.into_iter().map(|address| (address, 0).into());
            let addresses: Addrs = Box::new(found);
            Ok(addresses)
        })
    }
}

impl Ask {
    pub fn get(url: Url) -> Ask {
        Ask { url, method: Method::GET, headers: HeaderMap::new(), secret: None, form: None }
    }

    pub fn head(url: Url) -> Ask {
        Ask { method: Method::HEAD, ..Ask::get(url) }
    }

    pub fn post(url: Url, form: String) -> Ask {
        let ask = Ask { method: Method::POST, form: Some(form), ..Ask::get(url) };
        ask.with(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
    }

    /// With a header, if its value can be sent.
    pub fn with(mut self, name: HeaderName, value: &str) -> Ask {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    pub fn with_secret(self, secret: Option<HeaderValue>) -> Ask {
        Ask { secret, ..self }
    }

    /// For these bytes only.
    pub fn with_range(self, range: Option<&Range<u64>>) -> Ask {
        match range {
            Some(range) => {
                let last = range.end.saturating_sub(1);
                self.with(header::RANGE, &format!("bytes={}-{last}", range.start))
            }
            None => self,
        }
    }
}

/// The value of `Authorization`. `None` if it cannot be sent.
pub(super) fn secret(scheme: &str, credentials: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("{scheme} {credentials}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Whether a host is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

impl Agent {
    pub fn new(variables: &Variables) -> Result<Agent> {
        let failed = |error: reqwest::Error| Error::invalid(format!("the HTTP client: {error}"));
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("tierfs/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .dns_resolver(Arc::new(ByResolver(Arc::default())));
        if let Some(path) = variables.get("AWS_CA_BUNDLE") {
            let wrong =
                |reason: String| Error::invalid(format!("the file {path} of AWS_CA_BUNDLE: {reason}"));
            let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
            let found = Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.to_string()))?;
            builder = builder.tls_certs_merge(found);
        }
        Ok(Agent { http: builder.build().map_err(failed)?, allows_http: variables.is_on("AWS_ALLOW_HTTP") })
    }

    /// Sends a request, and follows redirects. Another origin than that of the request does not get its secret. Any status
    /// that is no redirect is an answer.
    pub async fn send(&self, ask: Ask) -> std::result::Result<Answer, Failure> {
        let origin = ask.url.origin();
        let (mut url, mut seen) = (ask.url.clone(), HashSet::new());
        loop {
            let mut request = self.http.request(ask.method.clone(), url.clone()).headers(ask.headers.clone());
            request = request.header(header::ACCEPT_ENCODING, "identity");
            if let Some(secret) = ask.secret.as_ref().filter(|_| url.origin() == origin) {
                self.check_private(&url)?;
                request = request.header(header::AUTHORIZATION, secret.clone());
            }
            if let Some(form) = &ask.form {
                // A form has a token.
                self.check_private(&url)?;
                request = request.body(form.clone());
            }
            let body = request.send().await.map_err(Failure::of_request)?;
            let (status, headers) = (body.status(), body.headers().clone());
            let to = headers.get(header::LOCATION).and_then(|to| to.to_str().ok());
            let Some(to) = to.filter(|_| status.is_redirection() && status != StatusCode::NOT_MODIFIED)
            else {
                return Ok(Answer { url, status, headers, body });
            };
            let next = redirected(&url, to)?;
            if ask.form.is_some() && next.origin() != origin {
                let text = "the server redirects a token to another server";
                return Err(Failure::Refused(text.to_owned()));
            }
            seen.insert(std::mem::replace(&mut url, next));
            if seen.contains(&url) || seen.len() > REDIRECTS_MAX {
                let text = format!("the server redirects without end (status {})", status.as_u16());
                return Err(Failure::Refused(text));
            }
        }
    }

    /// Fails if others could read a secret that is sent there.
    fn check_private(&self, url: &Url) -> std::result::Result<(), Failure> {
        if url.scheme() == "https" || self.allows_http || url.host_str().is_some_and(is_loopback) {
            return Ok(());
        }
        let text = format!(
            "{} is plain HTTP, where others can read the token along: use https://, or set AWS_ALLOW_HTTP=true",
            url.origin().ascii_serialization()
        );
        Err(Failure::Refused(text))
    }
}

/// The address that an answer sends to.
fn redirected(from: &Url, to: &str) -> std::result::Result<Url, Failure> {
    let wrong = |reason: &str| Failure::Refused(format!("the server redirects {reason}"));
    let next = from.join(to).map_err(|_| wrong("to an address that makes no sense"))?;
    match (from.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => Ok(next),
        ("https", "http") => Err(wrong("from HTTPS to plain HTTP, where others can change bytes")),
        _ => Err(wrong("to an address that is not HTTP")),
    }
}

impl Answer {
    /// A header.
    pub fn header(&self, name: impl header::AsHeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The ETag.
    pub fn e_tag(&self) -> Option<String> {
        self.header(header::ETAG).map(str::to_owned)
    }

    /// The time of the last change.
    pub fn modified(&self) -> Option<DateTime<chrono::Utc>> {
        http_date(self.header(header::LAST_MODIFIED)?)
    }

    /// The length of the body, if the answer says it. To a HEAD, that of the file.
    pub fn len(&self) -> Option<u64> {
        self.header(header::CONTENT_LENGTH)?.trim().parse().ok()
    }

    /// The whole body, of at most `bytes_max` bytes.
    pub async fn bytes(mut self, bytes_max: usize) -> std::result::Result<Vec<u8>, Failure> {
        let too_long = || Failure::Refused(format!("the answer has more than {} MiB", bytes_max >> 20));
        let mut bytes = Vec::new();
        if self.len().is_some_and(|len| len > bytes_max as u64) {
            return Err(too_long());
        }
        while let Some(chunk) = self.body.chunk().await.map_err(Failure::of_request)? {
            if bytes.len().saturating_add(chunk.len()) > bytes_max {
                return Err(too_long());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// The body, which shall be this range of a file, or all of it.
    pub fn part(self, wanted: Option<&Range<u64>>) -> std::result::Result<Part, Failure> {
        let refused = |text: &str| Err(Failure::Refused(text.to_owned()));
        if self.header(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return refused("the server compresses the file, so its parts cannot be read");
        }
        let bytes = match (wanted, self.status) {
            (None, _) => match self.len() {
                Some(len) => len,
                None => return refused("the server does not say how long the file is"),
            },
            (Some(wanted), StatusCode::PARTIAL_CONTENT) => {
                let sent = self.header(header::CONTENT_RANGE).and_then(content_range);
                match sent.filter(|(sent, bytes)| is_part(wanted, sent, *bytes)) {
                    Some((_, bytes)) => bytes,
                    None => return refused("the server sends other bytes than the range that was asked for"),
                }
            }
            (Some(_), _) => return refused(NO_RANGES),
        };
        let body = self.body.bytes_stream().map_err(Failure::of_request);
        Ok(Part { bytes, body: Box::pin(body) })
    }

    /// The same, with its version.
    pub fn found(self, wanted: Option<&Range<u64>>) -> std::result::Result<Found, Failure> {
        let (e_tag, modified) = (self.e_tag(), self.modified());
        Ok(Found { part: self.part(wanted)?, e_tag, modified })
    }

    /// The failure that a status means, `advice` being given where access is denied.
    pub fn failure(&self, advice: impl FnOnce() -> String) -> Failure {
        let status = self.status.as_u16();
        let text = format!("the server answered {status}");
        match (status, self.pause_wanted()) {
            (404 | 410, _) => Failure::NotFound,
            (412, _) => Failure::Exists,
            (401 | 403, _) => Failure::NoCredentials(format!("{text}: {}", advice())),
            (429 | 503, Some(pause)) => {
                Failure::Later(format!("{text} and wants a pause of {} s", pause.as_secs()), pause)
            }
            _ => Failure::of_status(status, text),
        }
    }

    /// The pause before the next request that the server wants.
    fn pause_wanted(&self) -> Option<Duration> {
        if let Some(after) = self.header(header::RETRY_AFTER) {
            let after = after.trim();
            return after.parse().map(Duration::from_secs).ok().or_else(|| {
                let until = SystemTime::from(http_date(after)?);
                Some(until.duration_since(SystemTime::now()).unwrap_or_default())
            });
        }
        // The hub says it so: `"resolvers";r=0;t=120`.
        let limit = self.header("ratelimit")?;
        let seconds = limit.split(';').find_map(|part| part.trim().strip_prefix("t="))?;
        seconds.parse().map(Duration::from_secs).ok()
    }
}

/// A date of HTTP.
pub(super) fn http_date(text: &str) -> Option<DateTime<chrono::Utc>> {
    DateTime::parse_from_rfc2822(text.trim()).ok().map(|date| date.to_utc())
}

/// The range that is sent, and the bytes of the whole file.
fn content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, bytes) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    Some((first..last.checked_add(1)?, bytes.trim().parse().ok()?))
}

/// Whether the range that is sent is the one that is wanted, as far as the file reaches.
fn is_part(wanted: &Range<u64>, sent: &Range<u64>, bytes: u64) -> bool {
    sent.start == wanted.start && sent.end == wanted.end.min(bytes) && sent.start < sent.end
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::{content_range, http_date, is_loopback, is_part, redirected};

    #[test]
    fn a_range_is_accepted_only_as_it_was_asked_for() {
        assert_eq!(content_range("bytes 0-9/100"), Some((0..10, 100)));
        for wrong in ["bytes */100", "bytes 0-9/*", "items 0-9/100", "bytes 0-18446744073709551615/1", ""] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
        assert!(is_part(&(0..10), &(0..10), 100) && is_part(&(90..110), &(90..100), 100));
        assert!(!is_part(&(0..10), &(0..9), 100) && !is_part(&(0..10), &(1..11), 100));
        assert!(!is_part(&(100..110), &(100..100), 100));
    }

    #[test]
    fn a_redirect_stays_on_https() {
        let from = Url::parse("https://hub/a/b").unwrap();
        assert_eq!(redirected(&from, "../c").unwrap().as_str(), "https://hub/c");
        assert_eq!(redirected(&from, "https://other/x").unwrap().as_str(), "https://other/x");
        for wrong in ["http://hub/a", "file:///etc/passwd", "https://[", "ftp://x"] {
            assert!(redirected(&from, wrong).is_err(), "{wrong}");
        }
        assert!(redirected(&Url::parse("http://hub/").unwrap(), "http://other/").is_ok());
    }

    #[test]
    fn dates_and_hosts_are_read_as_http_writes_them() {
        let date = http_date("Mon, 23 Nov 2026 01:02:03 GMT").unwrap();
        assert_eq!(date.to_rfc3339(), "2026-11-23T01:02:03+00:00");
        assert!(http_date("yesterday").is_none());
        assert!(is_loopback("127.0.0.9") && is_loopback("localhost") && is_loopback("[::1]"));
        assert!(!is_loopback("127.0.0.1.example.com") && !is_loopback("10.0.0.1"));
    }
}
