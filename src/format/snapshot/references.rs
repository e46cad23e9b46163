//! Pieces that are ranges of objects which somebody else put there: buckets, hubs and registries that are read in place.
//!
//! They stand at the end of the body of a manifest with flag 2:
//!
//! | field | layout |
//! |---|---|
//! | source | text: its URL |
//! | are_read | u8: 1 if the name of each piece is the BLAKE3 of its bytes, 0 if it is that of its place |
//! | objects | list of (key text, bytes u64, kind of its version u8, version text) |
//! | pieces | list of (piece u32, object u32, offset u64), ascending by piece |
//!
//! Kinds of versions: 0 the ETag, 1 the id of a version, 2 the time of the last change in seconds since 1970, in
//! decimal digits, 3 none: the key stands for the same bytes for ever, 4 the SHA-256 of the bytes in hexadecimal digits.
//!
//! The BLAKE3 of a place is that of `tierfs piece of `, the URL, the key, the version as above and in front of each of
//! these its length u32, then the bytes of the object, the offset and the length of the piece, u64 each. The key is empty
//! if the version is the SHA-256: wherever in the source the object lies, its bytes are the same.

use crate::format::cursor::{Reader, Writer};
use crate::format::values::{read_list, read_string, write_text};
use crate::model::{Error, Result, hex};

/// Least bytes of an object: two lengths, a number, a kind.
const OBJECT_BYTES: usize = 17;
/// Bytes of a piece.
const PIECE_BYTES: usize = 16;

/// The mark by which versions of an object differ.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Version {
    /// The ETag, as the server gives it.
    ETag(String),
    /// The id of a version, for servers that keep earlier ones.
    Id(String),
    /// The time of the last change, in seconds since 1970, where there is no ETag.
    Modified(i64),
    /// The key stands for the same bytes for ever, as that of a commit or a digest does.
    Fixed,
    /// The SHA-256 of the bytes, as the source says it. The key stands for them for ever.
    Sha256([u8; 32]),
}

/// The pieces of a manifest that lie elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct References {
    /// The URL of the source.
    pub source: String,
    /// Whether the name of each piece is the BLAKE3 of its bytes, and not that of its place.
    pub are_read: bool,
    /// The objects that they are ranges of.
    pub objects: Vec<ReferredObject>,
    /// The pieces, ascending.
    pub pieces: Vec<ReferredPiece>,
}

/// An object of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReferredObject {
    /// Its key for the client of the source.
    pub key: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its version.
    pub version: Version,
}

/// A piece that is a range of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReferredPiece {
    /// Its index in the manifest.
    pub piece: u32,
    /// The index of the object.
    pub object: u32,
    /// Where it begins in the object.
    pub offset: u64,
}

impl Version {
    /// The version that the hexadecimal digits of a SHA-256 stand for.
    pub fn of_sha256(digits: &str) -> Option<Version> {
        // A BLAKE3 has the same form.
        blake3::Hash::from_hex(digits).ok().map(|digest| Version::Sha256(*digest.as_bytes()))
    }

    /// Its kind and its text, as a log and a manifest have them.
    pub(in crate::format) fn parts(&self) -> (u8, String) {
        match self {
            Version::ETag(e_tag) => (0, e_tag.clone()),
            Version::Id(id) => (1, id.clone()),
            Version::Modified(at) => (2, at.to_string()),
            Version::Fixed => (3, String::new()),
            Version::Sha256(digest) => (4, hex(digest)),
        }
    }

    /// The version of these.
    pub(in crate::format) fn of_parts(kind: u8, text: String) -> Result<Version> {
        let wrong = |_| Error::corrupt(format!("the time {text:?} of an object"));
        match kind {
            0 => Ok(Version::ETag(text)),
            1 => Ok(Version::Id(text)),
            2 => text.parse().map(Version::Modified).map_err(wrong),
            3 if text.is_empty() => Ok(Version::Fixed),
            3 => Err(Error::corrupt("a version of an object that has none")),
            4 => Version::of_sha256(&text).ok_or_else(|| Error::corrupt("a version that is no SHA-256")),
            _ => Err(Error::unsupported(format!("version {kind} of an object; a newer tierfs may know it"))),
        }
    }
}

impl References {
    /// The name of a piece that nobody has read: the BLAKE3 of its place.
    pub fn name_of(&self, object: &ReferredObject, offset: u64, len: u64) -> [u8; 32] {
        let (kind, version) = object.version.parts();
        let mut text = Writer::new();
        let key = match object.version {
            Version::Sha256(_) => "",
            _ => &*object.key,
        };
        for part in [self.source.as_bytes(), key.as_bytes(), &[kind], version.as_bytes()] {
            write_text(&mut text, part);
        }
        text.u64(object.bytes).u64(offset).u64(len);
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"tierfs piece of ").update(text.as_slice());
        *hasher.finalize().as_bytes()
    }

    /// The object and the place in it of the piece at an index.
    pub fn place_of(&self, piece: u32) -> Option<(&ReferredObject, u64)> {
        let found = self.pieces.binary_search_by_key(&piece, |referred| referred.piece).ok()?;
        let found = self.pieces.get(found)?;
        Some((self.objects.get(found.object as usize)?, found.offset))
    }

    pub(super) fn write(&self, out: &mut Writer) {
        write_text(out, self.source.as_bytes());
        out.u8(u8::from(self.are_read)).u32(self.objects.len() as u32);
        for object in &self.objects {
            let (kind, version) = object.version.parts();
            write_text(out, object.key.as_bytes());
            out.u64(object.bytes).u8(kind);
            write_text(out, version.as_bytes());
        }
        out.u32(self.pieces.len() as u32);
        for ReferredPiece { piece, object, offset } in &self.pieces {
            out.u32(*piece).u32(*object).u64(*offset);
        }
    }

    pub(super) fn read(body: &mut Reader<'_>) -> Result<References> {
        let source = read_string(body)?;
        let are_read = match body.u8()? {
            0 => false,
            1 => true,
            byte => return Err(Error::corrupt(format!("byte {byte} where 0 or 1 is expected"))),
        };
        let objects = read_list(body, usize::MAX, OBJECT_BYTES, |body| {
            let (key, bytes, kind) = (read_string(body)?, body.u64()?, body.u8()?);
            Ok(ReferredObject { key, bytes, version: Version::of_parts(kind, read_string(body)?)? })
        })?;
        let pieces = read_list(body, usize::MAX, PIECE_BYTES, |body| {
            Ok(ReferredPiece { piece: body.u32()?, object: body.u32()?, offset: body.u64()? })
        })?;
        Ok(References { source, are_read, objects, pieces })
    }
}
