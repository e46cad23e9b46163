//! The pieces of a snapshot that are ranges of objects which somebody else put there.
//!
//! Their names may be those of places: then nobody knows the bytes before they arrive. A read is held to the version of
//! the object, and the cache compares what it keeps with the digest of its first arrival.

use std::collections::HashMap;
use std::ops::Range;

use parking_lot::Mutex;

use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::manifest::{Manifest, Piece};
use crate::format::snapshot::references::{ReferredObject, ReferredPiece};
use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::failure::Failure;
use crate::remote::client::version::Pin;
use crate::remote::client::{Client, Wanted};
use crate::remote::place::remote::Remote;
use crate::remote::source::open_within;

/// The URLs of directories of this machine begin with this.
const LOCAL: &str = "file://";

/// The sources that snapshots of a remote refer to.
#[derive(Default)]
pub(in crate::remote) struct Elsewhere {
    /// By URL.
    clients: Mutex<HashMap<String, Client>>,
    replaced: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Elsewhere {
    /// The same, which calls this once an object turns out to be replaced or removed.
    pub fn calling(self, replaced: impl Fn() + Send + Sync + 'static) -> Elsewhere {
        Elsewhere { replaced: Some(Box::new(replaced)), ..self }
    }

    /// The clients of the sources, but for the remote itself.
    pub fn clients(&self) -> Vec<Client> {
        self.clients.lock().values().cloned().collect()
    }

    /// Where the pieces of a snapshot lie that are no objects of the remote. `Forbidden` if the remote must not lead there.
    pub fn referred(
        &self,
        manifest: &Manifest,
        remote: &Remote,
        must_be_signed: bool,
    ) -> Result<Option<Referred>> {
        let Some(references) = &manifest.references else { return Ok(None) };
        let (url, place) = (&references.source, remote.place());
        let refuse = |why: &str| {
            let (path, number) = (&manifest.collection.name, manifest.number);
            Err(Error::new(
                ErrorKind::Forbidden,
                format!("snapshot {number} of {path} refers to {url}: {why}"),
            ))
        };
        if must_be_signed && !references.are_read {
            return refuse(
                "a signature covers no bytes that nobody has read; publish it with tierfs index --checksum",
            );
        }
        if url == place {
            return Ok(Referred::of(manifest, remote.client()));
        }
        if url.starts_with(LOCAL) && !place.starts_with(LOCAL) {
            return refuse("a remote elsewhere must not lead to files of this machine");
        }
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(url) {
            return Ok(Referred::of(manifest, client));
        }
        let client = open_within(url, remote.client().deadlines())?.client().clone();
        clients.insert(url.clone(), client.clone());
        Ok(Referred::of(manifest, &client))
    }

    /// The error of a read of such a piece.
    pub fn failed(&self, referred: &Referred, piece: &Piece, failure: &Failure) -> Error {
        let (client, key) = (referred.client(), referred.key(piece));
        if matches!(failure, Failure::NotFound | Failure::Replaced)
            && let Some(replaced) = &self.replaced
        {
            replaced();
        }
        match failure {
            Failure::NotFound => {
                let text = format!("{}/{key} was removed since it was listed", client.place());
                Error::new(ErrorKind::Gone, text)
            }
            Failure::WrongBytes | Failure::WrongLength(_) => {
                Error::new(ErrorKind::Io, client.error("reading", key, failure).to_string())
            }
            failure => client.error("reading", key, failure),
        }
    }
}

/// Where the pieces of a snapshot lie.
pub(in crate::remote) struct Referred {
    client: Client,
    are_read: bool,
    objects: Vec<ReferredObject>,
    /// The object, by its index, and the place in it.
    places: HashMap<PieceName, (usize, u64)>,
}

impl Referred {
    /// The references of a manifest; `None` if it has none. The client is that of their source.
    pub fn of(manifest: &Manifest, client: &Client) -> Option<Referred> {
        let references = manifest.references.as_ref()?;
        let place = |referred: &ReferredPiece| {
            let piece = manifest.pieces.get(referred.piece as usize)?;
            Some((piece.name, (referred.object as usize, referred.offset)))
        };
        Some(Referred {
            client: client.clone(),
            are_read: references.are_read,
            objects: references.objects.clone(),
            places: references.pieces.iter().filter_map(place).collect(),
        })
    }

    /// The client of the source.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the names of pieces are digests of their bytes.
    pub fn are_read(&self) -> bool {
        self.are_read
    }

    /// Whether a piece lies there.
    pub fn has(&self, piece: &Piece) -> bool {
        self.places.contains_key(&piece.name)
    }

    /// The key of the object with a piece; empty for others.
    pub fn key(&self, piece: &Piece) -> &str {
        let object = self.places.get(&piece.name).and_then(|(object, _)| self.objects.get(*object));
        object.map_or("", |object| &object.key)
    }

    /// The key of the object with a piece, and a range of the piece in it, held to its version.
    pub fn asked(&self, piece: &Piece, range: Range<u64>) -> Option<(String, Wanted)> {
        let (object, offset) = self.places.get(&piece.name)?;
        let object = self.objects.get(*object)?;
        let range = offset.saturating_add(range.start)..offset.saturating_add(range.end);
        let pin = Pin { version: object.version.clone(), bytes: object.bytes };
        Some((object.key.clone(), Wanted::range(range).of(&pin)))
    }
}
