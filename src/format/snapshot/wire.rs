//! The body of a manifest.
//!
//! A text or a list is its length u32 and its bytes or items. A varint has seven bits a byte, the lowest
//! first; the highest bit of a byte says that another follows. A signed number n is the varint of 2n if it
//! is not negative, else of -2n - 1.
//!
//! | field | layout |
//! |---|---|
//! | collection | tenant text, name text, owner of the tenant, owner of the collection, created_at u64 (s) |
//! | an owner | user u32, group u32, permission bits u32 |
//! | message, tool | text, text |
//! | needs | list of (tenant text, collection text, number u64) |
//! | pieces | list of (name 32 bytes, generation u32, stored bytes u32, raw bytes u32, encoding u8) |
//! | differences | list of (piece u32, BLAKE3 of its raw bytes 32, since u64, list of stretches as in `difference.rs`, with indexes of pieces) |
//! | files | list of (kind u8, number u64, bytes u64, mtime i64, extents) |
//! | extents | list of varints: offset minus the end of the extent before; signed: piece minus that before; signed: offset in the piece minus where that before ended, or minus 0 in another piece; bytes |
//! | variants | list of (name text, log u32, other own files: list of u32, recipe 32 bytes) |
//! | references | with flag 2, as [`References`] has them |

use crate::format::cursor::{Reader, Writer};
use crate::format::snapshot::difference::{STRETCH_BYTES, read_stretch, write_stretch};
use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::manifest::{
    Described, EXTENTS_MAX, FileExtent, FileKind, Manifest, ManifestFile, Needed, OwnerAndMode, PIECES_MAX,
    Piece, PieceDifference, PieceEncoding, VARIANTS_MAX, Variant,
};
use crate::format::snapshot::references::References;
use crate::format::values::{read_count, read_list, read_string, write_text};
use crate::model::{Error, Result};

/// Least bytes of a need: two lengths and a number.
const NEED_BYTES: usize = 16;
/// Bytes of a piece.
pub(super) const PIECE_BYTES: usize = 45;
/// Least bytes of a difference: a piece, a digest, a number, a length.
const DIFFERENCE_BYTES: usize = 48;
/// Least bytes of a file.
const FILE_BYTES: usize = 29;
/// Least bytes of an extent.
const EXTENT_BYTES: usize = 4;
/// Least bytes of a variant: three lengths or numbers, and a digest.
const VARIANT_BYTES: usize = 44;

/// The body of a manifest, not compressed.
pub(super) fn write_body(manifest: &Manifest) -> Vec<u8> {
    let mut out = Writer::with_capacity(1024 + manifest.pieces.len() * PIECE_BYTES);
    let collection = &manifest.collection;
    write_text(&mut out, collection.tenant.as_bytes());
    write_text(&mut out, collection.name.as_bytes());
    for owner in [collection.tenant_owner, collection.owner] {
        out.u32(owner.uid).u32(owner.gid).u32(owner.mode);
    }
    out.u64(collection.created_at);
    write_text(&mut out, manifest.message.as_bytes());
    write_text(&mut out, manifest.tool.as_bytes());
    out.u32(manifest.needs.len() as u32);
    for need in &manifest.needs {
        write_text(&mut out, need.tenant.as_bytes());
        write_text(&mut out, need.collection.as_bytes());
        out.u64(need.number);
    }
    out.u32(manifest.pieces.len() as u32);
    manifest.pieces.iter().for_each(|piece| write_piece(&mut out, piece));
    out.u32(manifest.differences.len() as u32);
    for difference in &manifest.differences {
        out.u32(difference.piece).bytes(&difference.digest).u64(difference.since);
        out.u32(difference.stretches.len() as u32);
        difference.stretches.iter().for_each(|stretch| write_stretch(&mut out, stretch));
    }
    out.u32(manifest.files.len() as u32);
    for file in &manifest.files {
        out.u8(file.kind.byte()).u64(file.number).u64(file.bytes).u64(file.mtime as u64);
        out.u32(file.extents.len() as u32);
        let mut expected = Expected::default();
        for extent in &file.extents {
            varint(&mut out, extent.offset.wrapping_sub(expected.offset));
            varint(&mut out, zigzag(i64::from(extent.piece) - expected.piece));
            varint(&mut out, zigzag(i64::from(extent.piece_offset) - expected.piece_offset(extent.piece)));
            varint(&mut out, u64::from(extent.len));
            expected = Expected::after(extent);
        }
    }
    out.u32(manifest.variants.len() as u32);
    for variant in &manifest.variants {
        write_text(&mut out, variant.name.as_bytes());
        out.u32(variant.log).u32(variant.files.len() as u32);
        variant.files.iter().for_each(|file| {
            out.u32(*file);
        });
        out.bytes(&variant.recipe);
    }
    if let Some(references) = &manifest.references {
        references.write(&mut out);
    }
    out.into_bytes()
}

/// Reads a body into a manifest that has the fields of the head.
pub(super) fn read_body(bytes: &[u8], head: Manifest, refers: bool) -> Result<Manifest> {
    let mut body = Reader::new(bytes);
    let (tenant, name) = (read_string(&mut body)?, read_string(&mut body)?);
    let (tenant_owner, owner) = (read_owner(&mut body)?, read_owner(&mut body)?);
    let collection = Described { tenant, name, tenant_owner, owner, created_at: body.u64()? };
    let (message, tool) = (read_string(&mut body)?, read_string(&mut body)?);
    let any = usize::MAX;
    let needs = read_list(&mut body, any, NEED_BYTES, |body| {
        let (tenant, collection) = (read_string(body)?, read_string(body)?);
        Ok(Needed { tenant, collection, number: body.u64()? })
    })?;
    let pieces = read_list(&mut body, PIECES_MAX, PIECE_BYTES, read_piece)?;
    let differences = read_list(&mut body, PIECES_MAX, DIFFERENCE_BYTES, |body| {
        let (piece, digest, since) = (body.u32()?, body.array()?, body.u64()?);
        let stretches = read_list(body, usize::MAX, STRETCH_BYTES, read_stretch)?;
        Ok(PieceDifference { piece, digest, since, stretches })
    })?;
    let mut left = EXTENTS_MAX;
    let mut files = Vec::new();
    for _ in 0..read_count(&mut body, any, FILE_BYTES)? {
        let file = read_file(&mut body, left)?;
        left -= file.extents.len();
        files.push(file);
    }
    let variants = read_list(&mut body, VARIANTS_MAX, VARIANT_BYTES, |body| {
        let (name, log) = (read_string(body)?, body.u32()?);
        let files = read_list(body, any, 4, Reader::u32)?;
        Ok(Variant { name, log, files, recipe: body.array()? })
    })?;
    let references = if refers { Some(Box::new(References::read(&mut body)?)) } else { None };
    if body.remaining() > 0 {
        return Err(Error::corrupt(format!("{} bytes follow the body", body.remaining())));
    }
    Ok(Manifest {
        collection,
        message,
        tool,
        needs,
        pieces,
        differences,
        files,
        variants,
        references,
        ..head
    })
}

/// Adds a piece, as manifests and maps of files have it.
pub(super) fn write_piece(out: &mut Writer, piece: &Piece) {
    out.bytes(&piece.name.digest).u32(piece.name.generation);
    out.u32(piece.stored).u32(piece.raw).u8(piece.encoding.byte());
}

/// Reads a piece.
pub(super) fn read_piece(reader: &mut Reader<'_>) -> Result<Piece> {
    let name = PieceName { digest: reader.array()?, generation: reader.u32()? };
    let (stored, raw) = (reader.u32()?, reader.u32()?);
    Ok(Piece { name, stored, raw, encoding: PieceEncoding::from_byte(reader.u8()?)? })
}

fn read_owner(body: &mut Reader<'_>) -> Result<OwnerAndMode> {
    Ok(OwnerAndMode { uid: body.u32()?, gid: body.u32()?, mode: body.u32()? })
}

fn read_file(body: &mut Reader<'_>, extents_max: usize) -> Result<ManifestFile> {
    let kind = FileKind::from_byte(body.u8()?)?;
    let (number, bytes, mtime) = (body.u64()?, body.u64()?, body.u64()? as i64);
    let count = read_count(body, extents_max, EXTENT_BYTES)?;
    let mut extents = Vec::with_capacity(count);
    let mut expected = Expected::default();
    for _ in 0..count {
        let wrong = || Error::corrupt("an extent outside of all files");
        let offset = expected.offset.checked_add(read_varint(body)?).ok_or_else(wrong)?;
        let piece = expected.piece.checked_add(unzigzag(read_varint(body)?));
        let piece = piece.and_then(|piece| u32::try_from(piece).ok()).ok_or_else(wrong)?;
        let piece_offset = expected.piece_offset(piece).checked_add(unzigzag(read_varint(body)?));
        let piece_offset = piece_offset.and_then(|at| u32::try_from(at).ok()).ok_or_else(wrong)?;
        let len = u32::try_from(read_varint(body)?).map_err(|_| wrong())?;
        let extent = FileExtent { offset, piece, piece_offset, len };
        expected = Expected::after(&extent);
        extents.push(extent);
    }
    Ok(ManifestFile { kind, number, bytes, mtime, extents })
}

/// Where the next extent begins if nothing lies between.
#[derive(Default)]
struct Expected {
    offset: u64,
    piece: i64,
    end_in_piece: i64,
}

impl Expected {
    fn after(extent: &FileExtent) -> Expected {
        let end_in_piece = i64::from(extent.piece_offset) + i64::from(extent.len);
        Expected { offset: extent.end(), piece: i64::from(extent.piece), end_in_piece }
    }

    fn piece_offset(&self, piece: u32) -> i64 {
        if i64::from(piece) == self.piece { self.end_in_piece } else { 0 }
    }
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

fn varint(out: &mut Writer, mut number: u64) {
    while number > 0x7f {
        out.u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.u8(number as u8);
}

fn read_varint(body: &mut Reader<'_>) -> Result<u64> {
    let mut number = 0;
    for place in 0..10 {
        let byte = body.u8()?;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if place == 9 && bits > 1 {
            break;
        }
        number |= bits << (7 * place);
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Error::corrupt("a number of more than 64 bits"))
}
