//! Makes an index of listed objects.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::cursor::{Reader, Writer};
use crate::format::log::catalog::SourcePlace;
use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::manifest::{
    BODY_BYTES_MAX, Described, FileExtent, FileKind, Manifest, ManifestFile, Piece, PieceEncoding,
};
use crate::format::snapshot::piece_map::DIGEST_BYTES;
use crate::format::snapshot::pieces::pieces;
use crate::format::snapshot::references::{References, ReferredObject, ReferredPiece};
use crate::format::snapshot::tenant_list::ListedDirectory;
use crate::format::zstandard;
use crate::model::{CollectionName, Error, Result, StoreId};
use crate::remote::index::file::SourceFile;
use crate::remote::index::names::Named;
use crate::remote::place::remote::TOOL;
use crate::remote::read::pieces::packed;
use crate::remote::source::Source;
use crate::store::{Canonical, Describe, DescribedFile, DescribedFiles, Elsewhere, Reads, now_nanoseconds};

const NANOSECONDS: i64 = 1_000_000_000;
/// The number of the way in which objects are described. It grows when equal objects get another log; a test compares inode
/// numbers (`tests/remote/sources.rs`). A release alone leaves it as it is, so that mounts go on under the next program.
const DESCRIPTION: &str = "tierfs index 1";
/// The longest log of an index, in bytes.
const LOG_BYTES_MAX: u64 = 4 << 30;

/// A snapshot whose pieces are ranges of listed objects.
pub(in crate::remote) struct Index {
    /// The number is 1, and the log has its extents.
    pub manifest: Manifest,
    pub log: Vec<u8>,
    /// The pieces of the log as they are stored, with their names.
    pub log_pieces: Vec<(Piece, Vec<u8>)>,
    /// The attributes of the directory that the collection is; `None` for an index from a cache.
    pub directory: Option<ListedDirectory>,
}

/// Makes the index of a collection of the store `id`. `Gone` if an object was replaced since it was listed.
pub(super) fn build(
    source: &dyn Source,
    place: CollectionName<'_>,
    id: StoreId,
    listed: &[Named],
    describe: &Describe,
    reads: Reads,
) -> Result<Index> {
    let files = SourceFile::all(source, listed);
    let url = source.place();
    let elsewhere: Vec<Elsewhere> =
        listed.iter().zip(&files).map(|(named, file)| elsewhere(url, named, file)).collect();
    let described = describe(place, id, &elsewhere, reads);
    files.iter().for_each(|file| file.forget());
    let DescribedFiles { canonical, data_files } = described?;
    let described = (0..).zip(data_files).filter_map(|(index, file)| Some((file?, listed.get(index)?)));
    let data_files = described.map(|(file, named)| (file.number, (file, named))).collect();
    let are_read = reads == Reads::All;
    let references = References { source: url.to_owned(), are_read, ..References::default() };
    let mut parts = Parts { references, ..Parts::default() };
    parts.add_log(canonical.log());
    parts.add_data(&canonical, &data_files)?;
    let Parts { pieces, files, references, log_pieces } = parts;
    let owner = canonical.owner();
    let manifest = Manifest {
        remote: id,
        number: 1,
        parent: None,
        push: 0,
        created_at: u64::try_from(now_nanoseconds()).unwrap_or(0),
        collection: Described {
            tenant: place.tenant.to_owned(),
            name: place.name.to_owned(),
            tenant_owner: owner,
            owner,
            created_at: canonical.created_at(),
        },
        message: String::new(),
        tool: TOOL.to_owned(),
        needs: Vec::new(),
        pieces,
        differences: Vec::new(),
        files,
        variants: Vec::new(),
        references: Some(Box::new(references)),
    };
    let directory = Some(canonical.directory());
    Ok(Index { manifest, log: canonical.log().to_vec(), log_pieces, directory })
}

/// A listed object as a file.
pub(super) fn elsewhere(url: &str, Named { path, object }: &Named, file: &Arc<SourceFile>) -> Elsewhere {
    Elsewhere {
        path: path.clone(),
        file: file.clone(),
        mtime: object.modified.saturating_mul(NANOSECONDS),
        place: SourcePlace {
            source: url.to_owned(),
            key: object.at.clone(),
            version: object.version.clone(),
        },
        sha256: object.sha256,
    }
}

/// The pieces and files of an index that is being made.
#[derive(Default)]
struct Parts {
    pieces: Vec<Piece>,
    files: Vec<ManifestFile>,
    references: References,
    log_pieces: Vec<(Piece, Vec<u8>)>,
}

impl Parts {
    fn add_log(&mut self, log: &[u8]) {
        let whole = std::iter::once(0..log.len() as u64).collect();
        let mut extents = Vec::new();
        for stretches in pieces(&[whole]) {
            let ranges =
                stretches.iter().filter_map(|range| log.get(range.start as usize..range.end as usize));
            let raw: Vec<u8> = ranges.flatten().copied().collect();
            let (piece, stored) = packed(raw, true);
            extents.extend(FileExtent::of_piece(self.pieces.len() as u32, &stretches));
            self.pieces.push(piece);
            self.log_pieces.push((piece, stored));
        }
        let bytes = log.len() as u64;
        self.files.push(ManifestFile { kind: FileKind::Log, number: 0, bytes, mtime: 0, extents });
    }

    /// Adds the data files. `described` has the object of each, by number.
    fn add_data(
        &mut self,
        canonical: &Canonical,
        described: &HashMap<u64, (DescribedFile, &Named)>,
    ) -> Result<()> {
        let wrong = || Error::corrupt("an index has bytes that no object has");
        for file in canonical.files() {
            let found = described.get(&file.number).filter(|_| file.kind == FileKind::Data);
            let (DescribedFile { digests, .. }, Named { object, .. }) = found.ok_or_else(wrong)?;
            let referred = ReferredObject {
                key: object.at.clone(),
                bytes: object.bytes,
                version: object.version.clone(),
            };
            let number = self.references.objects.len() as u32;
            let mut extents = Vec::new();
            for (place, stretches) in file.pieces().into_iter().enumerate() {
                let [range] = stretches.as_slice() else { return Err(wrong()) };
                let (piece, len) = (self.pieces.len() as u32, range.end - range.start);
                let digest = match self.references.are_read {
                    true => *digests.get(place).ok_or_else(wrong)?,
                    false => self.references.name_of(&referred, range.start, len),
                };
                let (name, raw) = (PieceName { digest, generation: 0 }, len as u32);
                self.pieces.push(Piece { name, stored: raw, raw, encoding: PieceEncoding::Raw });
                self.references.pieces.push(ReferredPiece { piece, object: number, offset: range.start });
                extents.extend(FileExtent::of_piece(piece, &stretches));
            }
            self.references.objects.push(referred);
            let (kind, number, bytes, mtime) = (file.kind, file.number, file.bytes, file.mtime);
            self.files.push(ManifestFile { kind, number, bytes, mtime, extents });
        }
        Ok(())
    }
}

/// The name of an index in a cache: a digest of all that it was made of, and of the way.
pub(super) fn name_of(url: &str, place: CollectionName<'_>, owner: &str, listed: &[Named]) -> [u8; 32] {
    let mut text = Writer::new();
    let mut add = |part: &[u8]| {
        text.u32(part.len() as u32).bytes(part);
    };
    [DESCRIPTION, url, place.tenant, place.name, owner].map(str::as_bytes).into_iter().for_each(&mut add);
    for Named { path, object } in listed {
        let version = format!("{:?} {} {}", object.version, object.bytes, object.modified);
        [object.at.as_bytes(), &path.join(&b'/'), version.as_bytes()].into_iter().for_each(&mut add);
    }
    *blake3::hash(text.as_slice()).as_bytes()
}

impl Index {
    /// An index as a cache keeps it: bytes of the manifest u64, bytes of the log u64, the manifest, the log as a
    /// Zstandard frame, the BLAKE3 of its name and all of these, its name.
    pub(super) fn to_bytes(&self, name: &[u8; 32]) -> Result<Vec<u8>> {
        let (manifest, mut out) = (self.manifest.to_bytes()?, Writer::new());
        out.u64(manifest.len() as u64).u64(self.log.len() as u64);
        out.bytes(&manifest).bytes(&zstandard::encode(&self.log));
        let mut hasher = blake3::Hasher::new();
        hasher.update(name).update(out.as_slice());
        out.bytes(hasher.finalize().as_bytes()).bytes(name);
        Ok(out.into_bytes())
    }

    /// Reads what [`to_bytes`](Self::to_bytes) has made, of which the cache has compared the digest.
    pub(super) fn parse(bytes: &[u8]) -> Result<Index> {
        let wrong = || Error::corrupt("an index in the cache is cut off");
        let bytes = bytes.get(..bytes.len().saturating_sub(2 * DIGEST_BYTES)).ok_or_else(wrong)?;
        let mut head = Reader::new(bytes);
        let (manifest_bytes, log_bytes) = (head.u64()?, head.u64()?);
        if manifest_bytes > BODY_BYTES_MAX || log_bytes > LOG_BYTES_MAX {
            return Err(wrong());
        }
        let manifest = Manifest::parse(head.bytes(manifest_bytes as usize)?)?;
        let frame = head.bytes(head.remaining())?;
        let log = zstandard::decode(frame, log_bytes as usize).map_err(|_| wrong())?;
        if log.len() as u64 != log_bytes {
            return Err(wrong());
        }
        Ok(Index { manifest, log, log_pieces: Vec::new(), directory: None })
    }
}
