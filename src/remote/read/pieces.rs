//! Pieces, read into memory and compared with their names.
//!
//! A piece that is a difference is made of the bytes of its bases, which a machine may have already: `Bases`.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::format::snapshot::keys::{self, PieceName};
use crate::format::snapshot::manifest::{FileKind, Manifest, ManifestFile, Piece, PieceEncoding};
use crate::format::zstandard;
use crate::model::{Error, ErrorKind};
use crate::remote::client::failure::Failure;
use crate::remote::client::window::Class;
use crate::remote::client::{Client, runtime};
use crate::remote::place::remote::Remote;
use crate::remote::read::mirrors::Mirrors;
use crate::remote::read::piece_buffer::PieceBuffer;
use crate::store::RemoteError;
use crate::store::pieces::difference::Difference;

/// The longest log of a snapshot that is read into memory, in bytes.
const LOG_BYTES_MAX: u64 = 4 << 30;

/// A piece with wrong bytes is read this many times.
pub(in crate::remote) const TRIES: usize = 2;

/// Fetches a piece that nobody waits for yet.
pub(super) fn spawn_ahead(work: impl Future<Output = ()> + Send + 'static) {
    if let Err(error) = runtime::spawn(work) {
        log::warn!("read-ahead has stopped: {error}");
    }
}

/// The pieces that differences are taken from, as far as this machine has them.
pub(in crate::remote) trait Bases: Sync {
    /// The bytes that a piece stands for.
    fn get(&self, piece: &Piece) -> Option<Arc<Vec<u8>>>;
    /// The bytes of any piece, if a file of another snapshot has them that is open now.
    fn copy(&self, _piece: &Piece) -> Option<Vec<u8>> {
        None
    }
    /// Keeps a piece that was fetched: its stored bytes, and those that it stands for.
    fn keep(&self, piece: &Piece, stored: &[u8], bytes: &Arc<Vec<u8>>);
}

/// Bases in memory.
impl Bases for PieceBuffer {
    fn get(&self, piece: &Piece) -> Option<Arc<Vec<u8>>> {
        PieceBuffer::get(self, &piece.name)
    }

    fn keep(&self, piece: &Piece, _stored: &[u8], bytes: &Arc<Vec<u8>>) {
        PieceBuffer::keep(self, piece.name, bytes);
    }
}

/// The bytes that a piece stands for.
pub(in crate::remote) fn read(client: &Client, bases: &dyn Bases, piece: &Piece) -> io::Result<Vec<u8>> {
    runtime::wait(fetched(&Mirrors::of(client), bases, piece, Class::Demand))
        .map_err(to_io)?
        .map_err(|failure| to_io(failed(client, piece, &failure)))
}

/// The bytes that a piece stands for.
pub(in crate::remote) async fn fetched(
    mirrors: &Mirrors,
    bases: &dyn Bases,
    piece: &Piece,
    class: Class,
) -> Result<Vec<u8>, Failure> {
    let stored = stored(mirrors, piece, class).await?;
    if piece.encoding != PieceEncoding::Difference {
        return unpacked(piece, stored);
    }
    let difference = Difference::parse(&stored, piece.raw).map_err(|_| Failure::WrongBytes)?;
    let mut found = Vec::with_capacity(difference.bases().len());
    for base in difference.bases() {
        found.push(match bases.get(base) {
            Some(bytes) => bytes,
            None => base_of(mirrors, bases, base, class).await?,
        });
    }
    let found: Vec<&[u8]> = found.iter().map(|bytes| bytes.as_slice()).collect();
    difference.apply(&found).map_err(|_| Failure::WrongBytes)
}

/// Fetches a piece that differences are taken from, and keeps it.
pub(in crate::remote) async fn base_of(
    mirrors: &Mirrors,
    bases: &dyn Bases,
    base: &Piece,
    class: Class,
) -> Result<Arc<Vec<u8>>, Failure> {
    let stored = stored(mirrors, base, class).await?;
    let packed = (base.encoding != PieceEncoding::Raw).then(|| stored.clone());
    let bytes = Arc::new(unpacked(base, stored)?);
    bases.keep(base, packed.as_ref().unwrap_or(&bytes), &bytes);
    Ok(bytes)
}

/// The bytes of a piece as they are stored.
pub(in crate::remote) async fn stored(
    mirrors: &Mirrors,
    piece: &Piece,
    class: Class,
) -> Result<Vec<u8>, Failure> {
    for place in mirrors.places(piece, TRIES) {
        let mut stored = Vec::with_capacity(piece.stored as usize);
        let mut hasher = blake3::Hasher::new();
        let (key, wanted) = place.asked(piece);
        let done = mirrors.fetch(place, &key, wanted, class, |chunk: Bytes| {
            hasher.update(&chunk);
            stored.extend_from_slice(&chunk);
            Ok(())
        });
        match done.await {
            Err(failure) if place.leads_on(&failure) => continue,
            done => done?,
        }
        if place.is_right(piece, hasher.finalize().as_bytes()) {
            return Ok(stored);
        }
        mirrors.was_wrong(place, piece);
    }
    Err(Failure::WrongBytes)
}

/// The bytes that a piece stands for, of those that are stored. The piece is no difference.
pub(in crate::remote) fn unpacked(piece: &Piece, stored: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let raw = match piece.encoding {
        PieceEncoding::Raw => stored,
        PieceEncoding::Zstandard => {
            zstandard::decode(&stored, piece.raw as usize).map_err(|_| Failure::WrongBytes)?
        }
        PieceEncoding::Difference => return Err(Failure::WrongBytes),
    };
    if raw.len() == piece.raw as usize { Ok(raw) } else { Err(Failure::WrongLength(raw.len() as u64)) }
}

/// A piece that stands for these bytes, and its stored bytes.
pub(in crate::remote) fn packed(raw: Vec<u8>, is_log: bool) -> (Piece, Vec<u8>) {
    let len = raw.len();
    let frame = is_log.then(|| zstandard::encode(&raw)).filter(|frame| frame.len() < len);
    let encoding = if frame.is_some() { PieceEncoding::Zstandard } else { PieceEncoding::Raw };
    let stored = frame.unwrap_or(raw);
    let name = PieceName { digest: *blake3::hash(&stored).as_bytes(), generation: 0 };
    (Piece { name, stored: stored.len() as u32, raw: len as u32, encoding }, stored)
}

/// The log of a snapshot.
pub(in crate::remote) fn read_log(remote: &Remote, manifest: &Manifest) -> Result<Vec<u8>, Error> {
    let is_log = |file: &&ManifestFile| file.kind == FileKind::Log;
    let log = manifest.files.first().filter(is_log).filter(|log| log.bytes <= LOG_BYTES_MAX);
    let wrong = |what: &str| Error::corrupt(format!("{}: the log of the snapshot {what}", remote.place()));
    let log = log.ok_or_else(|| wrong("is missing or too long"))?;
    let stored: u64 = log.extents.iter().map(|extent| u64::from(extent.len)).sum();
    if stored != log.bytes {
        return Err(wrong("does not match its pieces"));
    }
    let mut bytes = Vec::with_capacity(log.bytes as usize);
    for extent in &log.extents {
        let piece = manifest.pieces.get(extent.piece as usize).ok_or_else(|| wrong("lacks a piece"))?;
        let raw = read(remote.client(), &PieceBuffer::default(), piece);
        let raw = raw.map_err(|error| Error::io("reading the log", error))?;
        let from = extent.piece_offset as usize;
        let part = raw.get(from..from.saturating_add(extent.len as usize));
        bytes.extend_from_slice(part.ok_or_else(|| wrong("reaches past a piece"))?);
    }
    Ok(bytes)
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
