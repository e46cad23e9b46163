//! Artifacts of a registry, by the interface of the distribution specification: ModelPack, KitOps, and others whose layers are
//! files or archives.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v2/NAME/manifests/TAG` or `.../DIGEST` | JSON: `layers`, each with `mediaType`, `digest`, `size`, `annotations` |
//! | `GET /v2/NAME/blobs/DIGEST` | the bytes, or a redirect to where they are |
//!
//! The key of a file for the client is the digest of its blob, with its place in an archive, so an open file keeps its bytes when
//! a tag moves.

mod challenge;
mod docker;
mod layers;
mod place;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use chrono::DateTime;
use futures_util::StreamExt;
use reqwest::header::{ACCEPT, WWW_AUTHENTICATE};
use reqwest::{StatusCode, Url};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;

use crate::model::{Error, OwnedCollectionName, Result};
use crate::remote::client::credentials::Variables;
use crate::remote::client::failure::Failure;
use crate::remote::client::{Client, Deadlines, runtime};
use crate::remote::source::agent::{Agent, Answer, Ask, Part, is_loopback};
use crate::remote::source::registry::challenge::{Challenge, Token};
use crate::remote::source::registry::layers::{Layer, Manifest};
use crate::remote::source::registry::place::{At, Digest, Reference};
use crate::remote::source::web::{self, Addresses, Files, Found, LastListing, Page, Want};
use crate::remote::source::{Source, SourceLevel, SourceObject, level_of};

/// Manifests that are understood.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json";
/// The annotation with the time of an artifact.
const CREATED: &str = "org.opencontainers.image.created";

/// An artifact.
pub(super) struct Artifact {
    client: Client,
    repository: Arc<Repository>,
    reference: Reference,
    last: LastListing,
}

/// The blobs of a repository.
struct Repository {
    agent: Agent,
    variables: Variables,
    /// The address of the registry.
    url: Url,
    name: String,
    /// Access, once it was given.
    token: Mutex<Option<Token>>,
    /// Where blobs were found, by their digests.
    addresses: Addresses,
}

impl fmt::Debug for Repository {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", self.url, self.name)
    }
}

impl Artifact {
    /// The artifact at a URL. The scheme `oci+http` asks for plain HTTP, which `oci` uses on this machine only.
    pub(super) fn open(url: &str, scheme: &str, deadlines: Deadlines) -> Result<Artifact> {
        let wrong = || {
            Error::invalid(format!(
                "{url:?} is no artifact of a registry; write oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:..."
            ))
        };
        let reference = Reference::parse(web::checked(url, scheme)?).ok_or_else(wrong)?;
        let parse =
            |scheme: &str| Url::parse(&format!("{scheme}://{}/", reference.host)).map_err(|_| wrong());
        let secure = parse("https")?;
        let is_plain = scheme == "oci+http" || secure.host_str().is_some_and(is_loopback);
        let variables = Variables::of_process();
        let repository = Arc::new(Repository {
            agent: Agent::new(&variables)?,
            variables,
            url: if is_plain { parse("http")? } else { secure },
            name: reference.name.clone(),
            token: Mutex::default(),
            addresses: Addresses::default(),
        });
        let client = web::client_of(repository.clone(), url, deadlines);
        Ok(Artifact { client, repository, reference, last: LastListing::default() })
    }

    /// The digest of the artifact's manifest, its layers, and its time in seconds since 1970, 0 if unknown.
    async fn layers(&self) -> std::result::Result<(Digest, Vec<Layer>, i64), Failure> {
        let (mut digest, mut manifest) =
            self.manifest(&self.reference.wanted(), self.reference.digest.as_ref()).await?;
        if let Manifest::Index { only, len } = Manifest::parse(&manifest)? {
            let only = only.ok_or_else(|| {
                Failure::Refused(format!(
                    "it is a list of {len} manifests; name one of them by its digest: NAME@sha256:..."
                ))
            })?;
            (digest, manifest) = self.manifest(&only.to_string(), Some(&only)).await?;
        }
        let created = manifest.get("annotations").and_then(|all| all.get(CREATED)).and_then(Value::as_str);
        let created = created.and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        match Manifest::parse(&manifest)? {
            Manifest::Layers(layers) => Ok((digest, layers, created.map_or(0, |date| date.timestamp()))),
            Manifest::Index { .. } => Err(Failure::Refused("its manifest is a list of lists".to_owned())),
        }
    }

    /// The manifest of a tag or a digest, which is compared with the digest, or with the one that the registry gives.
    async fn manifest(
        &self,
        wanted: &str,
        digest: Option<&Digest>,
    ) -> std::result::Result<(Digest, Value), Failure> {
        let got = self.client.asked(|| self.repository.manifest(wanted)).await?;
        let found = Digest(Sha256::digest(&got.body).into());
        let said = match digest {
            Some(digest) => Some(digest.clone()),
            None => got.digest.as_deref().and_then(Digest::parse),
        };
        if said.is_some_and(|said| said.0 != found.0) {
            let text = format!(
                "the manifest of {wanted} has the digest {found}, which is not the one that was asked for or said"
            );
            return Err(Failure::Refused(text));
        }
        Ok((found, got.json()?))
    }

    /// All files.
    fn files(&self) -> Result<Vec<SourceObject>> {
        let asked = runtime::wait(self.layers())?;
        let (digest, layers, modified) =
            asked.map_err(|failure| self.client.error("listing", "", &failure))?;
        let name = digest.to_string();
        if let Some(level) = self.last.get(&name) {
            return Ok(level.objects);
        }
        let objects = layers::objects(&self.client, &layers, modified)?;
        let level = SourceLevel { directories: Vec::new(), objects };
        self.last.keep(name, &level);
        Ok(level.objects)
    }
}

impl Source for Artifact {
    fn place(&self) -> &str {
        self.client.place()
    }

    fn client(&self) -> &Client {
        &self.client
    }

    fn collection(&self) -> Option<OwnedCollectionName> {
        let (owner, name) = self.reference.name.rsplit_once('/').unwrap_or(("models", &self.reference.name));
        let owner = owner.rsplit('/').next().unwrap_or(owner);
        Some(OwnedCollectionName::new(owner, name))
    }

    fn level(&self, below: &str) -> Result<SourceLevel> {
        Ok(level_of(self.list(below)?, below))
    }

    fn list(&self, below: &str) -> Result<Vec<SourceObject>> {
        let mut objects = self.files()?;
        objects.retain(|object| {
            below.is_empty() || object.key.strip_prefix(below).is_some_and(|rest| rest.starts_with('/'))
        });
        Ok(objects)
    }
}

impl Repository {
    fn address<'a>(&'a self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        web::below(&self.url, ["v2"].into_iter().chain(self.name.split('/')).chain(parts))
    }

    async fn manifest(&self, wanted: &str) -> std::result::Result<Page, Failure> {
        let ask = Ask::get(self.address(["manifests", wanted])).with(ACCEPT, MANIFESTS);
        let answer = self.allowed(ask).await?;
        web::page_of(answer, |answer| match self.failure(answer) {
            Failure::NotFound => {
                let host = self.url.host_str().unwrap_or_default();
                Failure::NoBucket(format!("{host} has no {} with the tag or digest {wanted}", self.name))
            }
            failure => failure,
        })
        .await
    }

    /// The answer to a request, with the access that the registry wants.
    async fn allowed(&self, ask: Ask) -> std::result::Result<Answer, Failure> {
        let known = self.token.lock().await.clone().filter(|token| token.ends > Instant::now());
        let had_token = known.is_some();
        let answer = self.agent.send(ask.clone().with_secret(known.map(|token| token.secret))).await?;
        if answer.status != StatusCode::UNAUTHORIZED || answer.url.origin() != self.url.origin() {
            return Ok(answer);
        }
        let challenge = answer.headers.get_all(WWW_AUTHENTICATE).iter();
        let challenge = challenge.filter_map(|header| header.to_str().ok()).find_map(Challenge::parse);
        let Some(challenge) = challenge else { return Ok(answer) };
        if had_token {
            log::debug!("{self:?}: the token is refused, and another is asked for");
        }
        match self.access(&challenge).await? {
            Some(token) => self.agent.send(ask.with_secret(Some(token.secret))).await,
            None => Ok(answer),
        }
    }

    /// A new token. Requests that need one at the same time each ask for their own.
    async fn access(&self, challenge: &Challenge) -> std::result::Result<Option<Token>, Failure> {
        let (variables, host) = (self.variables.clone(), self.host());
        // A program may be asked for them.
        let looked = tokio::task::spawn_blocking(move || docker::credentials(&variables, &host)).await;
        let credentials = looked.map_err(|error| Failure::Refused(format!("a bug in tierfs: {error}")))??;
        let scope = format!("repository:{}:pull", self.name);
        let token = challenge.answer(&self.agent, &self.url, &scope, credentials.as_ref()).await?;
        *self.token.lock().await = token.clone();
        Ok(token)
    }

    /// The host, with its port.
    fn host(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        self.url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    fn failure(&self, answer: &Answer) -> Failure {
        answer.failure(|| {
            let file = docker::path(&self.variables).map_or_else(String::new, |path| path.display().to_string());
            format!(
                "{} does not exist there, or needs credentials that may pull it: run docker login {}; they are looked for \
                 in {file}",
                self.name,
                self.host()
            )
        })
    }
}

#[async_trait]
impl Files for Repository {
    async fn get(&self, at: &str, want: Want) -> std::result::Result<Found, Failure> {
        let At { digest, part } = At::parse(at).ok_or(Failure::NotFound)?;
        let (blob, wanted) = (digest.to_string(), within(part.as_ref(), want.range));
        let ask = |url| if want.head { Ask::head(url) } else { Ask::get(url) }.with_range(wanted.as_ref());
        let answer = match self.addresses.answer(&self.agent, &blob, &ask).await? {
            Some(answer) => answer,
            None => self.allowed(ask(self.address(["blobs", &blob]))).await?,
        };
        if !answer.status.is_success() {
            return Err(self.failure(&answer));
        }
        self.addresses.keep(&blob, &self.url, &answer);
        let Part { bytes, body } = answer.part(wanted.as_ref())?;
        let bytes = match part {
            Some(part) if part.end <= bytes => part.end - part.start,
            Some(_) => return Err(Failure::WrongLength(bytes)),
            None => bytes,
        };
        // A digest stands for the same bytes for ever.
        Ok(Found { part: Part { bytes, body: body.boxed() }, e_tag: want.e_tag, modified: None })
    }
}

/// The range of a blob that is a range of a part of it.
fn within(part: Option<&Range<u64>>, range: Option<Range<u64>>) -> Option<Range<u64>> {
    let Some(part) = part else { return range };
    let range = range.unwrap_or(0..part.end - part.start);
    let place = |at: u64| part.start.saturating_add(at).min(part.end);
    Some(place(range.start)..place(range.end))
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn a_range_of_a_part_is_one_of_the_blob() {
        assert_eq!(within(None, Some(1..3)), Some(1..3));
        assert_eq!(within(None, None), None);
        assert_eq!(within(Some(&(10..20)), None), Some(10..20));
        assert_eq!(within(Some(&(10..20)), Some(2..5)), Some(12..15));
        assert_eq!(within(Some(&(10..20)), Some(2..u64::MAX)), Some(12..20));
    }
}
