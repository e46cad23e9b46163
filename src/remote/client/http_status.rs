//! The HTTP client of a bucket, which reports answers that are not successes by their status.

use std::fmt;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

use crate::remote::client::failure::Answer;

/// Makes clients that report the status of failures.
#[derive(Debug)]
pub(super) struct Observed;

struct Service(HttpClient);

impl fmt::Debug for Service {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Service")
    }
}

impl HttpConnector for Observed {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(ReqwestConnector::default().connect(options)?)))
    }
}

/// Answers that the callers of this client tell apart themselves: not modified, not found, failed condition.
const KNOWN: [u16; 3] = [304, 404, 412];
/// S3 answers so while another request changes the object, and wants the request to be repeated.
const CONFLICT: u16 = 409;
/// The code of a conflict by which Azure says that an object exists.
const EXISTS: &str = "BlobAlreadyExists";
/// The most bytes of a code that are shown.
const CODE_BYTES_MAX: usize = 60;

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.execute(request).await?;
        let status = answer.status();
        if status.is_success() || KNOWN.contains(&status.as_u16()) {
            return Ok(answer);
        }
        let (parts, body) = answer.into_parts();
        let body = body.bytes().await.unwrap_or_default();
        let answer = Answer { status: status.as_u16(), code: code_of(&body) };
        if answer.status == CONFLICT && answer.code == EXISTS {
            return Ok(HttpResponse::from_parts(parts, body.into()));
        }
        Err(HttpError::new(HttpErrorKind::Unknown, answer))
    }
}

/// The text of the element `Code` of an answer: letters and digits only.
fn code_of(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map_or("", |(code, _)| code);
    code.chars().filter(char::is_ascii_alphanumeric).take(CODE_BYTES_MAX).collect()
}
