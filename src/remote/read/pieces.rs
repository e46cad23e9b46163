//! Pieces, read into memory and compared with their names.

use std::io;

use bytes::Bytes;

use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::{Piece, PieceEncoding};
use crate::format::zstandard;
use crate::model::{Error, ErrorKind};
use crate::remote::client::failure::Failure;
use crate::remote::client::window::Class;
use crate::remote::client::{Client, Wanted, runtime};
use crate::remote::read::mirrors::Mirrors;
use crate::store::RemoteError;

/// A piece with wrong bytes is read this many times.
pub(in crate::remote) const TRIES: usize = 2;

/// The bytes that a piece stands for.
pub fn read(client: &Client, piece: &Piece) -> io::Result<Vec<u8>> {
    runtime::wait(fetched(&Mirrors::of(client), piece, Class::Demand))
        .map_err(to_io)?
        .map_err(|failure| to_io(failed(client, piece, &failure)))
}

/// The bytes that a piece stands for.
pub(in crate::remote) async fn fetched(
    mirrors: &Mirrors,
    piece: &Piece,
    class: Class,
) -> Result<Vec<u8>, Failure> {
    unpacked(piece, stored(mirrors, piece, class).await?)
}

/// The bytes of a piece as they are stored.
pub(in crate::remote) async fn stored(
    mirrors: &Mirrors,
    piece: &Piece,
    class: Class,
) -> Result<Vec<u8>, Failure> {
    for place in mirrors.places(TRIES) {
        let mut stored = Vec::with_capacity(piece.stored as usize);
        let mut hasher = blake3::Hasher::new();
        let whole = Wanted { range: None, len_max: u64::from(piece.stored) };
        let key = keys::piece(&piece.name);
        let done = place.client().fetch(&key, whole, class, |chunk: Bytes| {
            hasher.update(&chunk);
            stored.extend_from_slice(&chunk);
            Ok(())
        });
        match done.await {
            Err(failure) if place.leads_on(&failure) => continue,
            done => done?,
        }
        if *hasher.finalize().as_bytes() == piece.name.digest {
            return Ok(stored);
        }
        place.was_wrong(piece);
    }
    Err(Failure::WrongBytes)
}

/// The bytes that a piece stands for, of those that are stored.
pub(in crate::remote) fn unpacked(piece: &Piece, stored: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let raw = match piece.encoding {
        PieceEncoding::Raw => stored,
        PieceEncoding::Zstandard => {
            zstandard::decode(&stored, piece.raw as usize).map_err(|_| Failure::WrongBytes)?
        }
    };
    if raw.len() == piece.raw as usize { Ok(raw) } else { Err(Failure::WrongLength(raw.len() as u64)) }
}

/// The error of a read.
pub(in crate::remote) fn failed(client: &Client, piece: &Piece, failure: &Failure) -> Error {
    client.error("reading", &keys::piece(&piece.name), failure)
}

/// The same error, for the seam to the operating system.
pub(in crate::remote) fn to_io(error: Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        ErrorKind::Forbidden => io::ErrorKind::PermissionDenied,
        ErrorKind::Gone => io::ErrorKind::StaleNetworkFileHandle,
        ErrorKind::Corrupt => io::ErrorKind::InvalidData,
        ErrorKind::Full => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::Other,
    };
    RemoteError::of(kind, error.to_string())
}
