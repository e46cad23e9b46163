//! Repositories of a hub with the interface of Hugging Face, at one commit.
//!
//! | request | answer |
//! |---|---|
//! | `GET /api/KIND/ID/revision/REVISION?expand=sha&expand=lastModified` | JSON: `sha`, the commit of the revision; `lastModified` |
//! | `GET /api/KIND/ID/tree/COMMIT/PATH?recursive=true&limit=1000` | JSON: a list of `type`, `path`, `size`, `oid`, `lfs` (`oid` is a SHA-256, `size`); the header `Link` has the next page |
//! | `GET [/datasets, /spaces]/ID/resolve/COMMIT/PATH` | the bytes, or a redirect to where they are |
//!
//! A listing asks for the commit of the revision and lists that, so it never mixes two. The key of a file for the client has
//! the commit, which does not change, so an open file keeps its bytes when a branch moves.
//!
//! The hub redirects large files to signed addresses of another host, which must not get the token.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::DateTime;
use reqwest::Url;
use reqwest::header::HeaderValue;
use serde_json::Value;

use crate::model::{Error, OwnedCollectionName, Result};
use crate::remote::client::credentials::Variables;
use crate::remote::client::failure::Failure;
use crate::remote::client::version::Version;
use crate::remote::client::{Client, Deadlines, runtime};
use crate::remote::source::agent::{Agent, Answer, Ask, secret};
use crate::remote::source::web::{self, Addresses, FILES_MAX, Files, Found, LastListing, Page, Want};
use crate::remote::source::{Source, SourceLevel, SourceObject};

const ENDPOINT: &str = "https://huggingface.co";
const REVISION: &str = "main";
/// The longest file of a token.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// A repository, or a directory of one.
pub(super) struct Hub {
    repository: Arc<Repository>,
    client: Client,
    revision: String,
    /// The directory that the source shows; empty for all.
    directory: String,
    last: LastListing,
}

/// The files of a repository, by commit and path.
struct Repository {
    agent: Agent,
    /// The address of the hub.
    endpoint: Url,
    /// `models`, `datasets` or `spaces`.
    kind: &'static str,
    /// The owner and the name; some old models have no owner.
    id: String,
    token: Option<HeaderValue>,
    /// Where files were found, by their keys.
    addresses: Addresses,
}

impl fmt::Debug for Repository {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.kind, self.id)
    }
}

/// The parts of a URL `hf://[datasets/ | spaces/]OWNER/NAME[@REVISION][/DIRECTORY]`.
#[derive(PartialEq, Eq, Debug)]
struct Place {
    kind: &'static str,
    id: String,
    revision: String,
    directory: String,
}

impl Place {
    fn parse(rest: &str) -> Option<Place> {
        let kinds = [("models/", "models"), ("datasets/", "datasets"), ("spaces/", "spaces")];
        let found = kinds.iter().find_map(|(prefix, kind)| Some((*kind, rest.strip_prefix(prefix)?)));
        let (kind, rest) = found.unwrap_or(("models", rest));
        let rest = rest.trim_end_matches('/');
        // A name has no `@`, and a revision may have slashes: those of pull requests are known, others are escaped.
        let (id, behind) = match rest.split_once('@') {
            Some((id, behind)) => (id.to_owned(), Some(behind)),
            None => (rest.splitn(3, '/').take(2).collect::<Vec<_>>().join("/"), None),
        };
        let (revision, directory) = match behind {
            Some(behind) => {
                let slashes =
                    if behind.starts_with("refs/pr/") || behind.starts_with("refs/convert/") { 3 } else { 1 };
                let mut parts = behind.splitn(slashes + 1, '/');
                let revision: Vec<_> = parts.by_ref().take(slashes).collect();
                (revision.join("/").replace("%2F", "/").replace("%2f", "/"), parts.next().unwrap_or_default())
            }
            None => (REVISION.to_owned(), rest.strip_prefix(&id)?.trim_start_matches('/')),
        };
        let is_word = |word: &str| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            (1..=96).contains(&word.len()) && word.bytes().all(is_letter) && !word.starts_with('.')
        };
        let is_valid = id.split('/').count() <= 2 && id.split('/').all(is_word) && !revision.is_empty();
        let directory = directory.to_owned();
        is_valid.then_some(Place { kind, id, revision, directory })
    }
}

/// Whether a revision is a commit.
fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The token of the environment, or of the file where `hf auth login` keeps it.
fn token(variables: &Variables) -> Result<Option<HeaderValue>> {
    let of_file = || {
        let under = |name: &str, below: &str| Some(PathBuf::from(variables.get(name)?).join(below));
        let path = variables.get("HF_TOKEN_PATH").map(PathBuf::from);
        let path = path.or_else(|| under("HF_HOME", "token"));
        let path = path.or_else(|| under("XDG_CACHE_HOME", "huggingface/token"));
        let path = path.or_else(|| under("HOME", ".cache/huggingface/token"))?;
        web::text_of(&path, TOKEN_BYTES_MAX)
    };
    let text = variables.get("HF_TOKEN").map(str::to_owned).or_else(of_file).unwrap_or_default();
    match text.trim() {
        "" => Ok(None),
        token => secret("Bearer", token).map(Some).ok_or_else(|| {
            Error::invalid("the token of HF_TOKEN, or of its file, has letters that no token has")
        }),
    }
}

impl Hub {
    pub(super) fn open(url: &str, deadlines: Deadlines) -> Result<Hub> {
        let Place { kind, id, revision, directory } =
            Place::parse(web::checked(url, "hf")?).ok_or_else(|| {
                let text = format!(
                    "{url:?} is no repository of a hub; write hf://OWNER/MODEL, hf://OWNER/MODEL@REVISION or \
                     hf://datasets/OWNER/NAME"
                );
                Error::invalid(text)
            })?;
        let variables = Variables::of_process();
        let endpoint = variables.get("HF_ENDPOINT").unwrap_or(ENDPOINT);
        let parsed =
            Url::parse(endpoint).ok().filter(|endpoint| matches!(endpoint.scheme(), "https" | "http"));
        let endpoint = parsed
            .ok_or_else(|| Error::invalid(format!("HF_ENDPOINT is {endpoint:?}, which is no URL of HTTP")))?;
        let repository = Arc::new(Repository {
            agent: Agent::new(&variables)?,
            endpoint,
            kind,
            id,
            token: token(&variables)?,
            addresses: Addresses::default(),
        });
        let client = web::client_of(repository.clone(), url, deadlines);
        Ok(Hub { repository, client, revision, directory, last: LastListing::default() })
    }

    fn listed(&self, below: &str, recursive: bool) -> Result<SourceLevel> {
        let list = async {
            let (commit, modified) = self.commit().await?;
            let directory = [&*self.directory, below].into_iter().filter(|part| !part.is_empty());
            let directory = directory.collect::<Vec<_>>().join("/");
            let name = format!("{commit} {recursive} {directory}");
            if let Some(level) = self.last.get(&name) {
                return Ok(level);
            }
            let level = self.tree(&commit, &directory, recursive, modified).await?;
            self.last.keep(name, &level);
            Ok(level)
        };
        runtime::wait(list)?.map_err(|failure| self.client.error("listing", below, &failure))
    }

    /// The commit of the revision, and its time in seconds since 1970, 0 if unknown.
    async fn commit(&self) -> std::result::Result<(String, i64), Failure> {
        if is_commit(&self.revision) {
            return Ok((self.revision.clone(), 0));
        }
        let mut url = self.repository.api(["revision", &*self.revision]);
        url.query_pairs_mut().append_pair("expand", "sha").append_pair("expand", "lastModified");
        let answer = self.page(url).await?.json()?;
        let commit = answer.get("sha").and_then(Value::as_str).filter(|commit| is_commit(commit));
        let commit =
            commit.ok_or_else(|| Failure::Refused("the hub does not say which commit it is".to_owned()))?;
        let modified = answer.get("lastModified").and_then(Value::as_str);
        let modified = modified.and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        Ok((commit.to_owned(), modified.map_or(0, |date| date.timestamp())))
    }

    async fn page(&self, url: Url) -> std::result::Result<Page, Failure> {
        let repository = &self.repository;
        let ask = || Ask::get(url.clone()).with_secret(repository.token.clone());
        self.client.asked(|| web::page(&repository.agent, ask(), |answer| repository.failure(answer))).await
    }

    /// The files and directories of a directory at a commit.
    async fn tree(
        &self,
        commit: &str,
        directory: &str,
        recursive: bool,
        modified: i64,
    ) -> std::result::Result<SourceLevel, Failure> {
        let parts = directory.split('/').filter(|part| !part.is_empty());
        let mut url = self.repository.api(["tree", commit].into_iter().chain(parts));
        url.query_pairs_mut()
            .append_pair("recursive", if recursive { "true" } else { "false" })
            .append_pair("limit", "1000");
        let (mut directories, mut objects, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        loop {
            let page = self.page(url.clone()).await?;
            let before = seen.len();
            for entry in page.json()?.as_array().into_iter().flatten() {
                let Some(path) = entry.get("path").and_then(Value::as_str) else { continue };
                let Some(key) = below(path, &self.directory) else { continue };
                if !seen.insert(path.to_owned()) {
                    continue;
                }
                match entry.get("type").and_then(Value::as_str) {
                    Some("file") => {
                        objects.push(object_of(entry, commit, path, key, modified)?);
                    }
                    Some("directory") if !recursive => {
                        directories.extend(path.rsplit('/').next().map(str::to_owned));
                    }
                    _ => {}
                }
            }
            if seen.len() > FILES_MAX {
                return Err(Failure::Refused(format!("it has more than {FILES_MAX} files")));
            }
            let Some(next) = page.link.as_deref().and_then(next_of) else { break };
            if seen.len() == before {
                let text = "the hub lists the same files again and again: its listing never ends";
                return Err(Failure::Refused(text.to_owned()));
            }
            let next = page.url.join(next).ok().filter(|next| {
                // The token goes to the hub alone.
                next.origin() == self.repository.endpoint.origin() && *next != url
            });
            url = next
                .ok_or_else(|| Failure::Refused("the next page of the hub's list is elsewhere".to_owned()))?;
        }
        Ok(SourceLevel { directories, objects })
    }
}

/// The path of a file below a directory of the repository.
fn below<'a>(path: &'a str, directory: &str) -> Option<&'a str> {
    if directory.is_empty() { Some(path) } else { path.strip_prefix(directory)?.strip_prefix('/') }
}

/// A file of a list.
fn object_of(
    entry: &Value,
    commit: &str,
    path: &str,
    key: &str,
    modified: i64,
) -> std::result::Result<SourceObject, Failure> {
    let wrong = || Failure::Refused(format!("the hub lists {path:?} without its size or its digest"));
    let stored = entry.get("lfs").filter(|lfs| lfs.is_object());
    let bytes = stored.unwrap_or(entry).get("size").and_then(Value::as_u64).ok_or_else(wrong)?;
    let oid = stored.unwrap_or(entry).get("oid").and_then(Value::as_str).ok_or_else(wrong)?;
    let (version, sha256) = match (stored, Version::of_sha256(oid)) {
        (Some(_), Some(Version::Sha256(digest))) => (Version::Sha256(digest), Some(digest)),
        (Some(_), _) => return Err(wrong()),
        (None, _) => (Version::ETag(oid.to_owned()), None),
    };
    let (key, at) = (key.to_owned(), format!("{commit}/{path}"));
    Ok(SourceObject { key, at, bytes, version, modified, sha256 })
}

/// The address of the next page in a header `Link`.
fn next_of(link: &str) -> Option<&str> {
    link.split(',').find_map(|part| {
        let (address, relation) = part.trim().strip_prefix('<')?.split_once('>')?;
        relation.contains("rel=\"next\"").then_some(address)
    })
}

impl Source for Hub {
    fn place(&self) -> &str {
        self.client.place()
    }

    fn client(&self) -> &Client {
        &self.client
    }

    fn collection(&self) -> Option<OwnedCollectionName> {
        // Models without an owner are old ones of the hub itself.
        let (owner, name) = self.repository.id.split_once('/').unwrap_or(("models", &self.repository.id));
        Some(OwnedCollectionName::new(owner, name))
    }

    fn level(&self, below: &str) -> Result<SourceLevel> {
        self.listed(below, false)
    }

    fn list(&self, below: &str) -> Result<Vec<SourceObject>> {
        Ok(self.listed(below, true)?.objects)
    }
}

impl Repository {
    /// An address of the interface.
    fn api<'a>(&'a self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        web::below(&self.endpoint, ["api", self.kind].into_iter().chain(self.id.split('/')).chain(parts))
    }

    /// The address of a file by its key, which begins with the commit.
    fn address(&self, at: &str) -> Url {
        let (commit, path) = at.split_once('/').unwrap_or((at, ""));
        let kind = (self.kind != "models").then_some(self.kind);
        let parts =
            kind.into_iter().chain(self.id.split('/')).chain(["resolve", commit]).chain(path.split('/'));
        web::below(&self.endpoint, parts)
    }

    /// The failure that an answer of the hub means.
    fn failure(&self, answer: &Answer) -> Failure {
        let (hub, id) = (self.endpoint.host_str().unwrap_or_default(), &self.id);
        let status = answer.status.as_u16();
        let has_token = self.token.is_some();
        match (status, answer.header("x-error-code").unwrap_or_default()) {
            (404, "RevisionNotFound") => {
                Failure::NoBucket(format!("{id} has no such revision; check what stands behind the @"))
            }
            (404, "RepoNotFound") => {
                Failure::NoBucket(format!("{hub} has no {} {id}; check the name", self.kind))
            }
            (403, "GatedRepo") => Failure::NoCredentials(format!(
                "{id} is gated: ask for access at {}, then set HF_TOKEN to a token of that account",
                web::below(&self.endpoint, id.split('/'))
            )),
            _ => match answer.failure(|| {
                if has_token {
                    format!("the token of HF_TOKEN, or of its file, may not read {id}: check token and name")
                } else {
                    format!("{id} is private or gated, or there is no such name: set HF_TOKEN, or run hf auth login")
                }
            }) {
                Failure::Later(text, pause) if !has_token => {
                    Failure::Later(format!("{text}; with a token (HF_TOKEN) the hub allows more"), pause)
                }
                failure => failure,
            },
        }
    }
}

#[async_trait]
impl Files for Repository {
    async fn get(&self, at: &str, want: Want) -> std::result::Result<Found, Failure> {
        let ask =
            |url| if want.head { Ask::head(url) } else { Ask::get(url) }.with_range(want.range.as_ref());
        let kept = self.addresses.answer(&self.agent, at, &ask).await?;
        let answer = match kept {
            Some(answer) => answer,
            None => self.agent.send(ask(self.address(at)).with_secret(self.token.clone())).await?,
        };
        if !answer.status.is_success() {
            return Err(self.failure(&answer));
        }
        self.addresses.keep(at, &self.endpoint, &answer);
        // A commit does not change, so its file has the version that is asked for. The length is compared by the caller.
        Ok(Found { part: answer.part(want.range.as_ref())?, e_tag: want.e_tag, modified: None })
    }
}

#[cfg(test)]
mod tests {
    use super::{Place, below, next_of};

    #[test]
    fn a_url_names_a_repository_a_revision_and_a_directory() {
        let place = |kind, id: &str, revision: &str, directory: &str| {
            let [id, revision, directory] = [id, revision, directory].map(str::to_owned);
            Some(Place { kind, id, revision, directory })
        };
        for (text, wanted) in [
            ("org/model", place("models", "org/model", "main", "")),
            ("org/model/", place("models", "org/model", "main", "")),
            ("gpt2", place("models", "gpt2", "main", "")),
            ("gpt2@v1", place("models", "gpt2", "v1", "")),
            ("org/model@v1/sub/x", place("models", "org/model", "v1", "sub/x")),
            ("org/model/sub", place("models", "org/model", "main", "sub")),
            ("org/model@refs/pr/3/sub", place("models", "org/model", "refs/pr/3", "sub")),
            ("org/model@feature%2Fx", place("models", "org/model", "feature/x", "")),
            ("datasets/org/data@v1", place("datasets", "org/data", "v1", "")),
            ("", None),
            ("org/", place("models", "org", "main", "")),
            ("org/mo del", None),
            ("org/model@", None),
            ("../model", None),
            ("a/b/c@v", None),
        ] {
            assert_eq!(Place::parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn the_next_page_is_the_link_with_that_relation() {
        assert_eq!(next_of("<https://hub/x?cursor=a>; rel=\"next\""), Some("https://hub/x?cursor=a"));
        assert_eq!(next_of("<https://hub/p>; rel=\"prev\", </n>; rel=\"next\""), Some("/n"));
        for none in ["", "<https://hub/p>; rel=\"prev\"", "rel=\"next\"", "<x"] {
            assert_eq!(next_of(none), None, "{none}");
        }
        assert_eq!((below("a/b", "a"), below("ab", "a"), below("a", "")), (Some("b"), None, Some("a")));
    }
}
