//! Sources: data that nobody pushed, as it lies in buckets, directories, hubs and registries.
//!
//! A source lists objects, and has a [`Client`] that reads them. A read names the version that the listing had
//! (`client/version.rs`), so it gets bytes of that version or one of these failures:
//!
//! | failure | meaning |
//! |---|---|
//! | `Failure::Replaced` | the object has another version by now |
//! | `Failure::NotFound` | it is gone |
//! | `Failure::Denied`, `Failure::NoCredentials`, `Failure::Refused`, `Failure::Unsupported` | the server refuses |
//! | `Failure::Transient`, `Failure::Overload`, `Failure::Silent` | the server could not be reached, or not in time |
//!
//! Names in a listing are the server's, so they may be anything; `index` decides which are shown.
//!
//! To add a kind of source: a scheme in [`open`], a type that implements [`Source`], and an `ObjectStore` for its
//! client if `object_store` has none.

mod agent;
mod bucket;
mod hub;
mod pages;
mod registry;
mod site;
mod web;
mod whole;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::{OwnedCollectionName, Result};
use crate::remote::client::version::{Pin, Version};
use crate::remote::client::{Client, Deadlines, runtime};

pub(in crate::remote) use agent::NO_RANGES;

/// Data that can be listed, and read at any range.
pub trait Source: Send + Sync {
    /// Its URL, for messages.
    fn place(&self) -> &str;

    /// The client that reads its objects, by [`SourceObject::at`].
    fn client(&self) -> &Client;

    /// Whether it may be a remote of tierfs, to which somebody has pushed.
    fn may_be_remote(&self) -> bool {
        false
    }

    /// The collection that it is; `None` of directories each of which may be one.
    fn collection(&self) -> Option<OwnedCollectionName> {
        None
    }

    /// The objects and directories directly below a directory, which is named without slashes at its ends; empty for
    /// the source itself.
    fn level(&self, below: &str) -> Result<SourceLevel>;

    /// All objects below a directory, in any order.
    fn list(&self, below: &str) -> Result<Vec<SourceObject>>;

    /// Whether its server sends parts of files; otherwise files are downloaded whole.
    fn has_ranges(&self) -> bool {
        true
    }

    /// A file that the last listing left out, because the server refuses it.
    fn refused(&self) -> Option<String> {
        None
    }
}

/// An object of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceObject {
    /// Its path below the source.
    pub key: String,
    /// Its key for the client.
    pub at: String,
    /// Bytes.
    pub bytes: u64,
    /// Its version.
    pub version: Version,
    /// Time of the last change, in seconds since 1970; 0 if unknown.
    pub modified: i64,
    /// The SHA-256 of its bytes, if the source says it.
    pub sha256: Option<[u8; 32]>,
}

/// The names directly below a directory of a source.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceLevel {
    /// Names of directories.
    pub directories: Vec<String>,
    /// Objects.
    pub objects: Vec<SourceObject>,
}

impl SourceObject {
    /// The version and the length that a read of it must find.
    pub fn pin(&self) -> Pin {
        Pin { version: self.version.clone(), bytes: self.bytes }
    }
}

/// The source at a URL. Nothing is asked of the server yet.
pub fn open(url: &str) -> Result<Arc<dyn Source>> {
    open_within(url, Deadlines::default())
}

/// Opens the source at a URL as [`open`] does, with these deadlines.
pub fn open_within(url: &str, deadlines: Deadlines) -> Result<Arc<dyn Source>> {
    opened(url, deadlines, Client::open_within)
}

/// The same of what was a remote before: its directory may be away.
pub fn reopen_within(url: &str, deadlines: Deadlines) -> Result<Arc<dyn Source>> {
    opened(url, deadlines, Client::reopen_within)
}

fn opened(
    url: &str,
    deadlines: Deadlines,
    open: impl Fn(&str, Deadlines) -> Result<Client>,
) -> Result<Arc<dyn Source>> {
    let scheme = url.split("://").next().unwrap_or_default();
    runtime::start()?;
    Ok(match scheme {
        "http" | "https" | "http+whole" | "https+whole" => {
            Arc::new(site::Site::open(url, scheme, deadlines)?)
        }
        "hf" => Arc::new(hub::Hub::open(url, deadlines)?),
        "oci" | "oci+http" => Arc::new(registry::Artifact::open(url, scheme, deadlines)?),
        _ => Arc::new(bucket::Bucket::new(open(url, deadlines)?)),
    })
}

/// The objects directly below a directory, and its directories, of all objects below it.
fn level_of(objects: Vec<SourceObject>, below: &str) -> SourceLevel {
    let mut level = SourceLevel::default();
    let mut directories = BTreeSet::new();
    for object in objects {
        let rest = object.key.strip_prefix(below).unwrap_or_default().trim_start_matches('/');
        match rest.split_once('/') {
            Some((directory, _)) => drop(directories.insert(directory.to_owned())),
            None => level.objects.push(object),
        }
    }
    level.directories = directories.into_iter().collect();
    level
}

/// The source of the objects of a client.
pub fn of_client(client: Client) -> Arc<dyn Source> {
    Arc::new(bucket::Bucket::new(client))
}
