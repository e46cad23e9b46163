//! Files of a web server: a directory with lists of files, or one file.
//!
//! A file is read in ranges, at the version that its ETag or its time says. Lists have no ETags, and those in HTML no exact sizes, so
//! each file is asked for them by HEAD.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use reqwest::{StatusCode, Url, header};
use tokio::sync::OnceCell;

use crate::model::{Error, Result};
use crate::remote::client::credentials::Variables;
use crate::remote::client::failure::Failure;
use crate::remote::client::version::Version;
use crate::remote::client::{Client, Deadlines, runtime};
use crate::remote::source::agent::{Agent, Answer, Ask};
use crate::remote::source::pages::{Entry, entries, is_name};
use crate::remote::source::web::{self, FILES_MAX, Files, Found, Want};
use crate::remote::source::whole::{Wanted, Whole};
use crate::remote::source::{Source, SourceLevel, SourceObject};

/// Files that are asked for their versions at a time.
const AT_ONCE: usize = 16;
/// The most directories below one another: a link of a server may lead to a directory above it.
const DEPTH_MAX: usize = 32;
/// The most directories of a listing.
const DIRECTORIES_MAX: usize = 20_000;

/// A directory or a file of a web server.
pub(super) struct Site {
    client: Client,
    pages: Arc<Pages>,
    /// A file that the last listing left out.
    refused: Mutex<Option<String>>,
}

/// Files by their decoded paths on the server, without the first slash.
#[derive(Debug)]
struct Pages {
    agent: Agent,
    /// The URL of the source, which ends with a slash if it surely is a directory.
    url: Url,
    /// Whether the URL is that of a directory, once it is known.
    is_directory: OnceCell<bool>,
    /// Downloads of files, if the server may have no ranges.
    whole: Option<Whole>,
}

impl Site {
    /// The source at a URL with the scheme `http` or `https`, or one of these with `+whole`: then a server without ranges is
    /// asked for whole files.
    pub(super) fn open(url: &str, scheme: &str, deadlines: Deadlines) -> Result<Site> {
        let wrong = || Error::invalid(format!("{url:?} is no URL of a web server"));
        let (plain, whole) = match scheme.strip_suffix("+whole") {
            Some(plain) => (plain, Some(Whole::default())),
            None => (scheme, None),
        };
        let parsed = Url::parse(&format!("{plain}://{}", web::checked(url, scheme)?)).map_err(|_| wrong())?;
        let agent = Agent::new(&Variables::of_process())?;
        let is_directory = OnceCell::new_with(parsed.path().ends_with('/').then_some(true));
        let pages = Arc::new(Pages { agent, url: parsed, is_directory, whole });
        let server = pages.url.origin().ascii_serialization();
        let client = web::client_of(pages.clone(), url, deadlines).with_keys_at(&server);
        Ok(Site { client, pages, refused: Mutex::default() })
    }

    /// Does what a listing does, and says what failed.
    fn listed<T>(
        &self,
        below: &str,
        list: impl Future<Output = std::result::Result<T, Failure>>,
    ) -> Result<T> {
        runtime::wait(list)?.map_err(|failure| self.client.error("listing", &self.pages.at(below), &failure))
    }

    /// The names directly below a directory of the source.
    async fn names(&self, below: &str) -> std::result::Result<BTreeMap<String, Entry>, Failure> {
        let url = self.pages.directory(below);
        let got = self.client.asked(|| web::page(&self.pages.agent, Ask::get(url.clone()), refusal)).await?;
        entries(&got)
    }

    /// A file that a list names.
    async fn file(&self, key: String) -> std::result::Result<SourceObject, Failure> {
        let at = self.pages.at(&key);
        let url = self.pages.url_of(&at);
        let head = self.client.asked(|| self.pages.head(url.clone())).await?;
        head.object(key, at)
    }

    /// The files that can be read of those that lists name. Fails if the server refuses all.
    async fn files(&self, keys: Vec<String>) -> std::result::Result<Vec<SourceObject>, Failure> {
        let asked = stream::iter(&keys).map(async |key| (key, self.file(key.clone()).await));
        let (mut asked, mut files, mut refused) = (pin!(asked.buffered(AT_ONCE)), Vec::new(), None);
        while let Some((key, file)) = asked.next().await {
            match file {
                Ok(file) => files.push(file),
                // A name may be gone since it was listed, or be a link that leads nowhere.
                Err(Failure::NotFound) => {}
                Err(failure @ (Failure::Refused(_) | Failure::NoCredentials(_) | Failure::Denied(_))) => {
                    log::warn!(
                        "{key:?} is left out: {}",
                        self.client.error("listing", &self.pages.at(key), &failure)
                    );
                    refused.get_or_insert((key.clone(), failure));
                }
                Err(failure) => return Err(failure),
            }
        }
        let (key, failure) = refused.unzip();
        *self.refused.lock() = key;
        failure.filter(|_| files.is_empty()).map_or(Ok(files), Err)
    }

    /// The object of a URL that is one file.
    async fn one(&self) -> std::result::Result<SourceObject, Failure> {
        let at = self.pages.at("");
        let key = at.rsplit('/').next().unwrap_or_default().to_owned();
        let head = self.client.asked(|| self.pages.head(self.pages.url.clone())).await?;
        head.object(key, at)
    }

    async fn is_directory(&self) -> std::result::Result<bool, Failure> {
        let asked = async || {
            let head = self.client.asked(|| self.pages.head(self.pages.url.clone())).await?;
            Ok(head.is_directory)
        };
        self.pages.is_directory.get_or_try_init(asked).await.copied()
    }
}

impl Source for Site {
    fn place(&self) -> &str {
        self.client.place()
    }

    fn client(&self) -> &Client {
        &self.client
    }

    fn has_ranges(&self) -> bool {
        self.pages.whole.is_none()
    }

    fn refused(&self) -> Option<String> {
        self.refused.lock().clone()
    }

    fn level(&self, below: &str) -> Result<SourceLevel> {
        self.listed(below, async {
            if !self.is_directory().await? {
                return Ok(SourceLevel { directories: Vec::new(), objects: vec![self.one().await?] });
            }
            let (directories, files): (Vec<_>, Vec<_>) =
                self.names(below).await?.into_iter().partition(|(_, entry)| entry.is_directory);
            let files = files.into_iter().map(|(name, _)| joined(below, &name)).collect();
            Ok(SourceLevel {
                directories: directories.into_iter().map(|(name, _)| name).collect(),
                objects: self.files(files).await?,
            })
        })
    }

    fn list(&self, below: &str) -> Result<Vec<SourceObject>> {
        self.listed(below, async {
            if !self.is_directory().await? {
                return Ok(vec![self.one().await?]);
            }
            let (mut waiting, mut files, mut directories) = (vec![(below.to_owned(), 0)], Vec::new(), 0);
            // The deepest directory first: one that contains itself is noticed soon.
            while let Some((directory, depth)) = waiting.pop() {
                directories += 1;
                if depth > DEPTH_MAX || directories > DIRECTORIES_MAX {
                    let text =
                        "its directories do not end: one of them may be a link to a directory above it";
                    return Err(Failure::Refused(text.to_owned()));
                }
                for (name, entry) in self.names(&directory).await? {
                    let key = joined(&directory, &name);
                    if entry.is_directory {
                        waiting.push((key, depth + 1));
                    } else {
                        files.push(key);
                    }
                }
                if files.len() + waiting.len() > FILES_MAX {
                    return Err(Failure::Refused(format!("it has more than {FILES_MAX} files")));
                }
            }
            self.files(files).await
        })
    }
}

fn joined(below: &str, name: &str) -> String {
    if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") }
}

/// The answer to a HEAD.
struct Head {
    is_directory: bool,
    bytes: Option<u64>,
    e_tag: Option<String>,
    modified: Option<DateTime<Utc>>,
}

impl Head {
    fn object(self, key: String, at: String) -> std::result::Result<SourceObject, Failure> {
        let refused = |text: &str| Failure::Refused(format!("{key}: the server does not say {text}"));
        let bytes = self.bytes.ok_or_else(|| refused("how long the file is"))?;
        let modified = self.modified.map(|date| date.timestamp());
        let version = match (self.e_tag, modified) {
            (Some(e_tag), _) => Version::ETag(e_tag),
            // Servers whose files have no times say the first second.
            (None, Some(modified)) if modified > 1 => Version::Modified(modified),
            (None, _) => {
                let text =
                    "which version it has (ETag, Last-Modified), so a changed file would not be noticed";
                return Err(refused(text));
            }
        };
        Ok(SourceObject { key, at, bytes, version, modified: modified.unwrap_or(0), sha256: None })
    }
}

/// The failure of an answer.
fn refusal(answer: &Answer) -> Failure {
    answer.failure(|| {
        "tierfs has no credentials for web servers; use a server or a path that needs none".to_owned()
    })
}

impl Pages {
    /// The path on the server of a file below the source.
    fn at(&self, key: &str) -> String {
        let base = percent_decode_str(self.url.path()).decode_utf8_lossy().trim_matches('/').to_owned();
        match (base.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (_, true) => base,
            _ => format!("{base}/{key}"),
        }
    }

    /// The URL of a file.
    fn url_of(&self, at: &str) -> Url {
        let mut root = self.url.clone();
        root.set_path("/");
        web::below(&root, at.split('/'))
    }

    /// The URL of the list of a directory.
    fn directory(&self, below: &str) -> Url {
        let parts = below.split('/').filter(|part| is_name(part));
        web::below(&self.url, parts.chain([""]))
    }

    async fn head(&self, url: Url) -> std::result::Result<Head, Failure> {
        let answer = self.agent.send(Ask::head(url.clone())).await?;
        if !answer.status.is_success() {
            return Err(refusal(&answer));
        }
        let (is_directory, mut bytes) = (answer.url.path().ends_with('/'), answer.len());
        // Some servers say that of each file, since the answer to a HEAD has no bytes.
        if bytes == Some(0) && !is_directory {
            let got = self.agent.send(Ask::get(url)).await?;
            if !got.status.is_success() {
                return Err(refusal(&got));
            }
            bytes = got.len();
        }
        Ok(Head { is_directory, bytes, e_tag: answer.e_tag(), modified: answer.modified() })
    }
}

#[async_trait]
impl Files for Pages {
    async fn get(&self, at: &str, want: Want) -> std::result::Result<Found, Failure> {
        let url = self.url_of(at);
        let kept = self.whole.as_ref().zip(want.range.as_ref());
        let _turn = match kept {
            Some((whole, range)) => {
                let turn = whole.turn.lock().await;
                let wanted = match &want.e_tag {
                    Some(e_tag) => Wanted::ETag(e_tag.clone()),
                    None => {
                        let Head { e_tag, modified, .. } = self.head(url.clone()).await?;
                        Wanted::Present { e_tag, modified }
                    }
                };
                if let Some(found) = whole.found(at, &wanted, range) {
                    return Ok(found);
                }
                Some(turn)
            }
            None => None,
        };
        let ask = if want.head { Ask::head(url) } else { Ask::get(url) };
        let ask = match &want.e_tag {
            Some(e_tag) => ask.with(header::IF_MATCH, e_tag),
            None => ask,
        };
        let answer = self.agent.send(ask.with_range(want.range.as_ref())).await?;
        if !answer.status.is_success() {
            return Err(refusal(&answer));
        }
        // Not all servers know conditions. A download of another version would push out one that is read.
        let is_other = |wanted: &String| {
            answer.e_tag().is_none_or(|found| found.trim_matches('"') != wanted.trim_matches('"'))
        };
        if kept.is_some() && want.e_tag.as_ref().is_some_and(is_other) {
            return Err(Failure::Exists);
        }
        match kept.filter(|_| answer.status == StatusCode::OK) {
            Some((whole, range)) => whole.begin(at, answer, range),
            None => answer.found(want.range.as_ref()),
        }
    }
}
