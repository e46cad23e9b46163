//! The pieces of a snapshot that are ranges of objects which somebody else put there.
//!
//! Their names may be those of places: then nobody knows the bytes before they arrive. A read is held to the version of
//! the object, and the cache compares what it keeps with the digest of its first arrival.

use std::collections::HashMap;
use std::ops::Range;

use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::manifest::{Manifest, Piece};
use crate::format::snapshot::references::{ReferredObject, ReferredPiece};
use crate::remote::client::version::Pin;
use crate::remote::client::{Client, Wanted};

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
