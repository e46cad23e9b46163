//! The common parts of sources that are no buckets: requests about files, and the `ObjectStore` by which a [`Client`] reads them.
//!
//! `object_store` has a client for WebDAV, which lists by PROPFIND, and none for hubs and registries. These need redirects that
//! do not get the token, and headers that its clients do not pass on.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use parking_lot::Mutex;
use reqwest::Url;

use crate::model::{Error, Result};
use crate::remote::client::failure::Failure;
use crate::remote::client::{Client, Deadlines};
use crate::remote::source::SourceLevel;
use crate::remote::source::agent::{Agent, Answer, Ask, Part};

/// The most bytes of a page of a listing, or of a manifest.
pub(super) const PAGE_BYTES_MAX: usize = 4 << 20;
/// The most files of a source.
pub(super) const FILES_MAX: usize = 1_000_000;
/// The time for which an address is used again.
const ADDRESS_KEPT: Duration = Duration::from_secs(600);
/// The most addresses that are kept.
const ADDRESSES_MAX: usize = 10_000;
/// Somebody waits for the first answers of a source, so a server that wants a longer pause is an error at once.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// A request for a file.
#[derive(Clone, Debug)]
pub(super) struct Want {
    /// Only these bytes.
    pub range: Option<Range<u64>>,
    /// The ETag of the wanted version, which the server may not know.
    pub e_tag: Option<String>,
    /// Only the head of the answer.
    pub head: bool,
}

/// The answer to a request for a file.
pub(super) struct Found {
    pub part: Part,
    pub e_tag: Option<String>,
    pub modified: Option<DateTime<Utc>>,
}

/// Files, by the keys that the listing of a source has for its client.
#[async_trait]
pub(super) trait Files: fmt::Debug + Send + Sync + 'static {
    async fn get(&self, at: &str, want: Want) -> std::result::Result<Found, Failure>;
}

/// The client of files. `place` is their URL, for messages.
pub(super) fn client_of(files: Arc<dyn Files>, place: &str, deadlines: Deadlines) -> Client {
    Client::over(Arc::new(Objects(files)), "", place, deadlines)
}

/// An answer to a request that is not about a file, whole. `failed` is given an answer that is no success.
pub(super) async fn page(
    agent: &Agent,
    ask: Ask,
    failed: impl FnOnce(&Answer) -> Failure,
) -> std::result::Result<Page, Failure> {
    page_of(agent.send(ask).await?, failed).await
}

/// The same of an answer that is there.
pub(super) async fn page_of(
    answer: Answer,
    failed: impl FnOnce(&Answer) -> Failure,
) -> std::result::Result<Page, Failure> {
    if !answer.status.is_success() {
        return Err(match failed(&answer) {
            Failure::Later(text, pause) if pause > PAUSE_MAX => Failure::Refused(text),
            failure => failure,
        });
    }
    let word = |name: &str| answer.header(name).map(str::to_owned);
    let (url, kind, link, digest) =
        (answer.url.clone(), word("content-type"), word("link"), word("docker-content-digest"));
    let body = answer.bytes(PAGE_BYTES_MAX).await?;
    Ok(Page { url, kind: kind.unwrap_or_default(), link, digest, body })
}

/// A page of a listing, or a manifest.
pub(super) struct Page {
    /// Its address, behind all redirects.
    pub url: Url,
    /// Its content type.
    pub kind: String,
    /// Its header `Link`.
    pub link: Option<String>,
    /// Its header `Docker-Content-Digest`.
    pub digest: Option<String>,
    pub body: Vec<u8>,
}

impl Page {
    /// Its body.
    pub fn json(&self) -> std::result::Result<serde_json::Value, Failure> {
        let wrong = |error| Failure::Refused(format!("the answer of the server is no JSON: {error}"));
        serde_json::from_slice(&self.body).map_err(wrong)
    }
}

/// A URL with further parts of a path. Each part is one name.
pub(super) fn below<'a>(base: &Url, parts: impl IntoIterator<Item = &'a str>) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(parts);
    }
    url
}

/// The part of a source's URL behind the scheme. Credentials must not end up in messages.
pub(super) fn checked<'a>(url: &'a str, scheme: &str) -> Result<&'a str> {
    let rest = url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")).unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    if host.contains('@') && scheme.contains("http") {
        return Err(Error::invalid("credentials are not allowed in a URL"));
    }
    if rest.contains(['?', '#']) {
        return Err(Error::invalid(
            "a URL with a query or a fragment is no source; a query may hold a secret",
        ));
    }
    Ok(rest)
}

/// The text of a small file; `None` if there is none that this process may read.
pub(super) fn text_of(path: &std::path::Path, bytes_max: u64) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(bytes_max).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Addresses of other hosts that a service redirects to. They are signed and hold for an hour or so. They are used for a while,
/// because services limit how often they are asked.
#[derive(Default)]
pub(super) struct Addresses(Mutex<HashMap<String, (Url, Instant)>>);

impl Addresses {
    /// The answer of the address of a file; `None` if none is known, or the known one no longer holds.
    pub async fn answer(
        &self,
        agent: &Agent,
        at: &str,
        ask: impl FnOnce(Url) -> Ask,
    ) -> std::result::Result<Option<Answer>, Failure> {
        let known = self.0.lock().get(at).cloned();
        let Some((address, _)) = known.filter(|(_, since)| since.elapsed() < ADDRESS_KEPT) else {
            return Ok(None);
        };
        let answer = agent.send(ask(address)).await;
        match answer {
            Ok(answer) if !answer.status.is_client_error() => Ok(Some(answer)),
            other => {
                self.0.lock().remove(at);
                other.map(|_| None)
            }
        }
    }

    /// Keeps the address of an answer that came from another place than the service.
    pub fn keep(&self, at: &str, service: &Url, answer: &Answer) {
        if !answer.status.is_success() || answer.url.origin() == service.origin() {
            return;
        }
        let mut addresses = self.0.lock();
        if addresses.len() >= ADDRESSES_MAX {
            addresses.clear();
        }
        addresses.insert(at.to_owned(), (answer.url.clone(), Instant::now()));
    }
}

/// The last listing, by the name of what was listed: a commit or a digest, which stand for the same files for ever.
#[derive(Default)]
pub(super) struct LastListing(Mutex<Option<(String, SourceLevel)>>);

impl LastListing {
    /// The listing of this name, if it was the last one.
    pub fn get(&self, name: &str) -> Option<SourceLevel> {
        let last = self.0.lock();
        last.as_ref().filter(|(last, _)| last == name).map(|(_, level)| level.clone())
    }

    pub fn keep(&self, name: String, level: &SourceLevel) {
        *self.0.lock() = Some((name, level.clone()));
    }
}

/// The files as objects that can be read.
struct Objects(Arc<dyn Files>);

impl fmt::Debug for Objects {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("files of a web service")
    }
}

/// The error by which a failure passes through `object_store`.
fn error_of(failure: Failure, path: &Path) -> object_store::Error {
    let (path, source) = (path.to_string(), Box::new(failure.clone()));
    match failure {
        Failure::NotFound => object_store::Error::NotFound { path, source },
        Failure::Exists => object_store::Error::Precondition { path, source },
        _ => object_store::Error::Generic { store: "web", source },
    }
}

/// Such a source is only read.
fn read_only() -> object_store::Error {
    let text = "it is only read; push to a bucket or a directory, and import from here".to_owned();
    object_store::Error::NotSupported { source: Box::new(Failure::Unsupported(text)) }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let range = match options.range {
            None => None,
            Some(GetRange::Bounded(range)) => Some(range),
            Some(_) => return Err(read_only()),
        };
        let want = Want { range: range.clone(), e_tag: options.if_match, head: options.head };
        let found =
            self.0.get(location.as_ref(), want).await.map_err(|failure| error_of(failure, location))?;
        let Found { part: Part { bytes, body }, e_tag, modified } = found;
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: modified.unwrap_or(DateTime::UNIX_EPOCH),
            size: bytes,
            e_tag,
            version: None,
        };
        let path = location.clone();
        let payload = GetResultPayload::Stream(body.map_err(move |failure| error_of(failure, &path)).boxed());
        let range = range.map_or(0..bytes, |range| range.start..range.end.min(bytes));
        Ok(GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() })
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        stream::once(async { Err(read_only()) }).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> object_store::Result<ListResult> {
        Err(read_only())
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> object_store::Result<PutResult> {
        Err(read_only())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Err(read_only())
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        stream::once(async { Err(read_only()) }).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        Err(read_only())
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::{below, checked};

    #[test]
    fn names_become_single_parts_of_a_path() {
        let base = Url::parse("https://hub/a/").unwrap();
        assert_eq!(below(&base, ["x y", "50%?#"]).as_str(), "https://hub/a/x%20y/50%25%3F%23");
        assert_eq!(below(&base, ["a/b"]).as_str(), "https://hub/a/a%2Fb");
    }

    #[test]
    fn secrets_in_a_url_are_refused() {
        assert_eq!(checked("https://host/a", "https").unwrap(), "host/a");
        assert_eq!(checked("hf://org/model@main", "hf").unwrap(), "org/model@main");
        for wrong in ["https://user:word@host/a", "https://host/a?token=x", "https://host/a#b"] {
            assert!(checked(wrong, "https").is_err(), "{wrong}");
        }
    }
}
