//! The HTTP client of a bucket. It reports answers that are not successes by their status, with the code and the region that
//! they name, and finds out whether a server answers ranges, and whether a metadata service is there to give credentials.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    Certificate, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

use crate::remote::client::failure::{Answer, Failure};
use crate::remote::client::resolver::Resolver;

/// Makes clients that report the status of failures.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// Authorities that are trusted beside those of the system.
    pub authorities: Vec<Certificate>,
}

struct Service {
    client: HttpClient,
    /// Whether any request was answered.
    has_answered: AtomicBool,
    /// When a metadata service was asked for the first time.
    asked: OnceLock<Instant>,
}

/// A metadata service that cannot be reached for this long is not there. In a new pod it may refuse connections for a moment.
const UNREACHED: Duration = Duration::from_millis(1500);

/// Headers of requests to the metadata services of Google and Microsoft, which give credentials where nothing else does, and
/// the places where these were looked for before.
const METADATA: [(&str, &str); 2] = [
    (
        "metadata-flavor",
        "GOOGLE_SERVICE_ACCOUNT, GOOGLE_SERVICE_ACCOUNT_KEY and GOOGLE_APPLICATION_CREDENTIALS are not set, and the \
         metadata service of Google does not answer; for a public bucket set GOOGLE_SKIP_SIGNATURE=true",
    ),
    (
        "metadata",
        "AZURE_STORAGE_ACCOUNT_KEY and AZURE_STORAGE_SAS_TOKEN are not set, and the metadata service of Azure does not \
         answer; for a public container set AZURE_SKIP_SIGNATURE=true",
    ),
];

impl fmt::Debug for Service {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Service")
    }
}

impl HttpConnector for Observed {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let options = options.clone().with_dns_resolver(Arc::new(Resolver::default()));
        let options = self.authorities.iter().cloned().fold(options, ClientOptions::with_root_certificate);
        let client = ReqwestConnector::default().connect(&options)?;
        Ok(HttpClient::new(Service { client, has_answered: AtomicBool::new(false), asked: OnceLock::new() }))
    }
}

/// Answers that the callers of this client tell apart themselves: not modified, failed condition.
const KNOWN: [u16; 2] = [304, 412];
/// No object, which the callers know, or no bucket.
const NOT_FOUND: u16 = 404;
/// S3 answers so while another request changes the object, and wants the request to be repeated.
const CONFLICT: u16 = 409;
/// The code of a conflict by which Azure says that an object exists.
const EXISTS: &str = "BlobAlreadyExists";
/// The header of an answer that names the region of the bucket.
const REGION: &str = "x-amz-bucket-region";
/// The most bytes of a code or of a region that are shown.
const WORD_BYTES_MAX: usize = 60;

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let wanted = request.headers().get("range").and_then(|range| range.to_str().ok()).map(str::to_owned);
        let metadata = METADATA.iter().find(|(header, _)| request.headers().contains_key(*header));
        let asked = metadata.map(|_| *self.asked.get_or_init(Instant::now));
        let is_missing = || {
            asked.is_some_and(|asked| asked.elapsed() >= UNREACHED)
                && !self.has_answered.load(Ordering::Relaxed)
        };
        let answer = match (self.client.execute(request).await, metadata) {
            (Err(_), Some((_, looked))) if is_missing() => {
                let none = Failure::NoCredentials(format!("no credentials were found: {looked}"));
                return Err(HttpError::new(HttpErrorKind::Unknown, none));
            }
            (answer, _) => answer?,
        };
        self.has_answered.store(true, Ordering::Relaxed);
        let status = answer.status();
        if status.is_success() {
            return match wanted {
                Some(range) if status.as_u16() == 200 => partial(answer, &range),
                _ => Ok(answer),
            };
        }
        if KNOWN.contains(&status.as_u16()) {
            return Ok(answer);
        }
        let (parts, body) = answer.into_parts();
        let body = body.bytes().await.unwrap_or_default();
        let region = parts.headers.get(REGION).and_then(|region| region.to_str().ok()).map(word);
        let answer = Answer {
            status: status.as_u16(),
            code: element(&body, "Code").unwrap_or_default(),
            region: region.or_else(|| element(&body, "Region")).filter(|region| !region.is_empty()),
        };
        let is_known = answer.status == NOT_FOUND && !answer.is_about_bucket();
        if is_known || (answer.status == CONFLICT && answer.code == EXISTS) {
            return Ok(HttpResponse::from_parts(parts, body.into()));
        }
        Err(HttpError::new(HttpErrorKind::Unknown, answer))
    }
}

/// The answer 200 to a request for a range. Some servers send the right part with it, and say so.
fn partial(answer: HttpResponse, range: &str) -> Result<HttpResponse, HttpError> {
    let (mut parts, body) = answer.into_parts();
    let sent = parts.headers.get("content-range").and_then(|sent| sent.to_str().ok());
    let sent = sent.and_then(|sent| sent.trim().strip_prefix("bytes ")?.split_once('/'));
    let is_right = sent.zip(range.strip_prefix("bytes=")).is_some_and(|((sent, _), wanted)| sent == wanted);
    match "206".parse() {
        Ok(partial) if is_right => parts.status = partial,
        _ => {
            let text = "the server answers a range with the whole object (status 200), so parts cannot be read; \
                        use a server or gateway with range requests";
            let refused = Failure::Refused(text.to_owned());
            return Err(HttpError::new(HttpErrorKind::Unknown, refused));
        }
    }
    Ok(HttpResponse::from_parts(parts, body))
}

/// The text of the first element of this name: letters, digits and hyphens only.
fn element(body: &[u8], name: &str) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once('<').map(|(text, _)| word(text))
}

/// The part of a server's word that is shown.
fn word(text: &str) -> String {
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-';
    text.chars().filter(is_plain).take(WORD_BYTES_MAX).collect()
}
