//! The manifest of a snapshot: its files, and the pieces that they consist of.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 4 | magic `TFSN` |
//! | 4 | 2 | version 1 |
//! | 6 | 2 | flags: 1 if it is signed, 2 if it has [references](super::references) |
//! | 8 | 16 | uuid of the remote |
//! | 24 | 8 | number, from 1 |
//! | 32 | 8 | number of the parent, 0 for none |
//! | 40 | 32 | last 32 bytes of the parent, zeros for none |
//! | 72 | 16 | push id |
//! | 88 | 8 | created, nanoseconds since 1970 |
//! | 96 | 8 | bytes of the body |
//! | 104 | .. | body, a Zstandard frame |
//! | .. | 96 | if it is signed, its [signature](super::signature) |
//! | .. | 32 | BLAKE3 of everything before |
//!
//! `wire` has the body.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use crate::format::cursor::{Reader, Writer};
use crate::format::snapshot::difference::{BASES_MAX, BaseStretch, check_stretches};
use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::pieces::PIECE_BYTES_MAX;
use crate::format::snapshot::references::{References, ReferredPiece};
use crate::format::snapshot::signature::{DIGEST_BYTES, SIGNATURE_BYTES, SIGNED};
use crate::format::snapshot::wire::{read_body, write_body};
use crate::format::zstandard::{self, Undecoded};
use crate::model::{Error, Result, StoreId, check_label};

const MAGIC: [u8; 4] = *b"TFSN";
const VERSION: u16 = 1;
/// Bytes before the body.
const HEAD_BYTES: usize = 104;
/// The flag of a manifest with references.
const REFERS: u16 = 2;
/// Largest body, in bytes.
pub const BODY_BYTES_MAX: u64 = 256 << 20;
/// Largest manifest, in bytes.
pub const MANIFEST_BYTES_MAX: u64 = BODY_BYTES_MAX + (1 << 20);
/// Largest number of pieces.
pub const PIECES_MAX: usize = 1 << 24;
/// Largest number of extents of all files.
pub const EXTENTS_MAX: usize = 1 << 23;
/// Largest number of variants. Each shares files with the collection, so what is summed up for all takes their number times
/// the files.
pub const VARIANTS_MAX: usize = 256;

/// A snapshot of a collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Manifest {
    /// The remote that it belongs to.
    pub remote: StoreId,
    /// Its number, from 1.
    pub number: u64,
    /// The snapshot that it was made from.
    pub parent: Option<ParentSnapshot>,
    /// A random number, by which a push knows its own manifest again.
    pub push: u128,
    /// When it was made, in nanoseconds since 1970.
    pub created_at: u64,
    /// The collection.
    pub collection: Described,
    /// The message of the push.
    pub message: String,
    /// The program that made it.
    pub tool: String,
    /// The snapshots of other collections that the collection's blocks depend on.
    pub needs: Vec<Needed>,
    /// The pieces.
    pub pieces: Vec<Piece>,
    /// The differences among them, ascending by piece.
    pub differences: Vec<PieceDifference>,
    /// The files. The first one is the log.
    pub files: Vec<ManifestFile>,
    /// Other forms of the collection.
    pub variants: Vec<Variant>,
    /// The pieces that are no objects of the remote; none of a log, nor of a snapshot with differences or variants.
    pub references: Option<Box<References>>,
}

/// The snapshot before another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParentSnapshot {
    /// Its number.
    pub number: u64,
    /// The digest of its manifest, see [`digest`].
    pub digest: [u8; 32],
}

/// Names a snapshot of a collection, and its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SnapshotName {
    /// Its number.
    pub number: u64,
    /// The digest of its manifest, or of all that a source has listed.
    pub digest: [u8; 32],
    /// Bytes of the manifest; 0 of a listing.
    pub more: u64,
}

/// The names and attributes of a collection and its tenant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// Name of the tenant.
    pub tenant: String,
    /// Name of the collection.
    pub name: String,
    /// Owner of the tenant.
    pub tenant_owner: OwnerAndMode,
    /// Owner of the collection.
    pub owner: OwnerAndMode,
    /// When the collection was created, in seconds since 1970.
    pub created_at: u64,
}

/// An owner and permission bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OwnerAndMode {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

/// A collection that must be in the remote too.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Needed {
    /// Its tenant.
    pub tenant: String,
    /// Its name.
    pub collection: String,
    /// The lowest number of a snapshot of it that serves.
    pub number: u64,
}

/// A piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its name.
    pub name: PieceName,
    /// Stored bytes.
    pub stored: u32,
    /// Bytes that it stands for.
    pub raw: u32,
    /// How it is stored.
    pub encoding: PieceEncoding,
}

/// How a piece is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PieceEncoding {
    /// As it is.
    Raw,
    /// As a Zstandard frame.
    Zstandard,
    /// As its difference from other pieces (`difference.rs`), in a Zstandard frame.
    Difference,
}

/// A piece that is stored as its difference from others, which the manifest lists too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceDifference {
    /// Its index.
    pub piece: u32,
    /// BLAKE3 of the bytes that it stands for, by which a push finds a piece again that has not changed.
    pub digest: [u8; 32],
    /// The number of the last snapshot that had its bases in its place.
    pub since: u64,
    /// Its stretches, with indexes of pieces.
    pub stretches: Vec<BaseStretch>,
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileKind {
    /// `meta.log`.
    Log,
    /// A data file; its number is its name.
    Data,
    /// A tier file; its number is that of its tiers.
    Tier,
    /// `delta.dat`.
    Delta,
    /// `factor.dat`.
    Factor,
}

/// A file of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManifestFile {
    /// Its kind.
    pub kind: FileKind,
    /// Its number among the files of its kind.
    pub number: u64,
    /// Logical bytes. Those that no extent has are zeros.
    pub bytes: u64,
    /// Time of the last change, in nanoseconds since 1970; 0 if unknown.
    pub mtime: i64,
    /// The places of its bytes, ascending.
    pub extents: Vec<FileExtent>,
}

/// A stretch of a file and its place in a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileExtent {
    /// Byte offset in the file.
    pub offset: u64,
    /// Index of the piece.
    pub piece: u32,
    /// Byte offset in the bytes that the piece stands for.
    pub piece_offset: u32,
    /// Bytes.
    pub len: u32,
}

/// Another form of the collection: a log and tier files of its own, and data files with other pieces where
/// it needs only parts. All other files are those of the collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// Index of its log.
    pub log: u32,
    /// Indexes of its other own files.
    pub files: Vec<u32>,
    /// A digest of what determines it beside the collection's own files. A push that would make a variant with the
    /// same digest of the same files takes this one.
    pub recipe: [u8; 32],
}

impl FileExtent {
    /// The extents of a piece that consists of these stretches of a file.
    pub fn of_piece(piece: u32, stretches: &[Range<u64>]) -> Vec<FileExtent> {
        let mut piece_offset = 0;
        let extent = |stretch: &Range<u64>| {
            // A piece has less than 16 MiB.
            let len = stretch.end.saturating_sub(stretch.start) as u32;
            let extent = FileExtent { offset: stretch.start, piece, piece_offset, len };
            piece_offset = piece_offset.saturating_add(len);
            extent
        };
        stretches.iter().map(extent).collect()
    }

    /// One past its last byte in the file.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.len))
    }
}

impl PieceDifference {
    /// The indexes of its bases, each as often as it is used.
    pub fn bases(&self) -> impl Iterator<Item = u32> {
        self.stretches.iter().filter_map(|stretch| stretch.base.map(|(base, _)| base))
    }
}

impl PieceEncoding {
    /// Its number in manifests.
    pub fn byte(self) -> u8 {
        match self {
            PieceEncoding::Raw => 0,
            PieceEncoding::Zstandard => 1,
            PieceEncoding::Difference => 2,
        }
    }

    pub(super) fn from_byte(byte: u8) -> Result<PieceEncoding> {
        match byte {
            0 => Ok(PieceEncoding::Raw),
            1 => Ok(PieceEncoding::Zstandard),
            2 => Ok(PieceEncoding::Difference),
            _ => Err(Error::unsupported(format!("encoding {byte} of a piece; a newer tierfs may know it"))),
        }
    }
}

impl FileKind {
    const ALL: [FileKind; 5] =
        [FileKind::Log, FileKind::Data, FileKind::Tier, FileKind::Delta, FileKind::Factor];

    pub(super) fn byte(self) -> u8 {
        match self {
            FileKind::Log => 0,
            FileKind::Data => 1,
            FileKind::Tier => 2,
            FileKind::Delta => 3,
            FileKind::Factor => 4,
        }
    }

    pub(super) fn from_byte(byte: u8) -> Result<FileKind> {
        let found = FileKind::ALL.into_iter().find(|kind| kind.byte() == byte);
        found.ok_or_else(|| Error::unsupported(format!("a file of kind {byte}; a newer tierfs may know it")))
    }

    /// Whether a file of this kind can have this number.
    fn has_number(self, number: u64) -> bool {
        match self {
            FileKind::Data => (1..u64::MAX).contains(&number),
            FileKind::Tier => number < 4,
            FileKind::Log | FileKind::Delta | FileKind::Factor => number == 0,
        }
    }
}

impl ManifestFile {
    /// The extents that begin in stretches, which ascend.
    pub fn extents_in(&self, stretches: &[Range<u64>]) -> Vec<FileExtent> {
        let is_in = |extent: &&FileExtent| {
            let next = stretches.get(stretches.partition_point(|range| range.end <= extent.offset));
            next.is_some_and(|range| range.start <= extent.offset)
        };
        self.extents.iter().filter(is_in).copied().collect()
    }
}

/// The digest of a manifest: its last 32 bytes, which are the BLAKE3 of all others. Names the manifest in
/// those made from it, and in caches. `None` if the bytes are too few for a manifest.
pub fn digest(bytes: &[u8]) -> Option<[u8; 32]> {
    (bytes.len() > HEAD_BYTES + DIGEST_BYTES).then(|| bytes.last_chunk().copied()).flatten()
}

impl Manifest {
    /// Whether the snapshot says that the collection was removed: it has no files, and refers to nothing.
    pub fn is_removal(&self) -> bool {
        self.files.is_empty()
    }

    /// The most bytes of the manifest of a removal without a message. Few others are as short.
    pub fn removal_bytes_max(tenant: &str, collection: &str) -> u64 {
        const OTHERS: usize = 270;
        (OTHERS + SIGNATURE_BYTES + tenant.len() + collection.len()) as u64
    }

    /// Reads a manifest. `Corrupt`, or `Unsupported` for one of a newer program. Work and memory follow from the bytes of
    /// the body, each of which is looked at once, so they need no budget.
    pub fn parse(bytes: &[u8]) -> Result<Manifest> {
        Manifest::read(bytes).map_err(|error| error.at("manifest"))
    }

    fn read(bytes: &[u8]) -> Result<Manifest> {
        let mut head = Reader::new(bytes);
        if head.array()? != MAGIC {
            return Err(Error::corrupt("it does not begin with TFSN"));
        }
        let (version, flags) = (head.u16()?, head.u16()?);
        if version != VERSION || flags & !(SIGNED | REFERS) != 0 {
            let text = format!("version {version} with flags {flags:#x}, which a newer tierfs may know");
            return Err(Error::unsupported(text));
        }
        let Some((hashed, stored)) = bytes.split_last_chunk::<DIGEST_BYTES>() else {
            return Err(Error::corrupt("it is cut off"));
        };
        if blake3::hash(hashed).as_bytes() != stored {
            return Err(Error::corrupt("its BLAKE3 differs"));
        }
        let (remote, number) = (StoreId(head.u128()?), head.u64()?);
        let parent = ParentSnapshot { number: head.u64()?, digest: head.array()? };
        let parent = (parent != ParentSnapshot { number: 0, digest: [0; 32] }).then_some(parent);
        let (push, created_at, body_bytes) = (head.u128()?, head.u64()?, head.u64()?);
        if body_bytes > BODY_BYTES_MAX {
            return Err(Error::corrupt(format!("a body of {body_bytes} bytes")));
        }
        let signature = if flags & SIGNED != 0 { SIGNATURE_BYTES } else { 0 };
        let end = hashed.len().saturating_sub(signature);
        let frame = hashed.get(HEAD_BYTES..end).unwrap_or_default();
        let body = zstandard::decode(frame, body_bytes as usize).map_err(|undecoded| match undecoded {
            Undecoded::Damaged => Error::corrupt("its body is not a Zstandard frame"),
            Undecoded::TooLong => Error::corrupt("its body is longer than it says"),
        })?;
        if body.len() as u64 != body_bytes {
            return Err(Error::corrupt("its body is shorter than it says"));
        }
        let blank = Manifest {
            remote,
            number,
            parent,
            push,
            created_at,
            collection: Described {
                tenant: String::new(),
                name: String::new(),
                tenant_owner: OwnerAndMode::default(),
                owner: OwnerAndMode::default(),
                created_at: 0,
            },
            message: String::new(),
            tool: String::new(),
            needs: Vec::new(),
            pieces: Vec::new(),
            differences: Vec::new(),
            files: Vec::new(),
            variants: Vec::new(),
            references: None,
        };
        let manifest = read_body(&body, blank, flags & REFERS != 0)?;
        manifest.check().map_err(Error::corrupt)?;
        Ok(manifest)
    }

    /// The bytes of the manifest. `Invalid` if it contradicts itself or passes a limit.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check().map_err(|reason| Error::invalid(format!("a manifest where {reason}")))?;
        let body = write_body(self);
        if body.len() as u64 > BODY_BYTES_MAX {
            let text = format!("a manifest with a body of {} bytes: push fewer files", body.len());
            return Err(Error::invalid(text));
        }
        let frame = zstandard::encode(&body);
        let mut out = Writer::with_capacity(HEAD_BYTES + frame.len() + DIGEST_BYTES);
        let flags = if self.references.is_some() { REFERS } else { 0 };
        out.bytes(&MAGIC).u16(VERSION).u16(flags).u128(self.remote.0).u64(self.number);
        let parent = self.parent.unwrap_or(ParentSnapshot { number: 0, digest: [0; 32] });
        out.u64(parent.number).bytes(&parent.digest).u128(self.push).u64(self.created_at);
        out.u64(body.len() as u64).bytes(&frame);
        let digest = blake3::hash(out.as_slice());
        out.bytes(digest.as_bytes());
        Ok(out.into_bytes())
    }

    /// The files of the collection itself, or of the variant of this name, with their indexes. `None` if
    /// there is no such variant.
    pub fn files_of(&self, variant: Option<&str>) -> Option<Vec<(usize, &ManifestFile)>> {
        let file = |index: &u32| Some((*index as usize, self.files.get(*index as usize)?));
        let of_variants = self.variants.iter().flat_map(|variant| variant.files.iter().chain([&variant.log]));
        let of_variants: HashSet<u32> = of_variants.copied().collect();
        let is_own = |index: usize| !of_variants.contains(&(index as u32));
        let own = self.files.iter().enumerate().filter(|(index, _)| is_own(*index));
        let Some(name) = variant else { return Some(own.collect()) };
        let variant = self.variants.iter().find(|variant| variant.name == name)?;
        let of_variant: Vec<_> =
            std::iter::once(&variant.log).chain(&variant.files).filter_map(file).collect();
        let replaced: HashSet<(FileKind, u64)> =
            of_variant.iter().map(|(_, file)| (file.kind, file.number)).collect();
        let shared = own
            .filter(|(_, file)| file.kind != FileKind::Tier && !replaced.contains(&(file.kind, file.number)));
        Some(of_variant.iter().copied().chain(shared).collect())
    }

    /// Why the manifest contradicts itself or passes a limit.
    fn check(&self) -> std::result::Result<(), String> {
        if self.number == 0
            || self.parent.is_some_and(|parent| parent.number == 0 || parent.number >= self.number)
        {
            return Err("the numbers of the snapshot and its parent are wrong".to_owned());
        }
        let places = [(&self.collection.tenant, &self.collection.name)];
        let needs = self.needs.iter().map(|need| (&need.tenant, &need.collection));
        for (tenant, name) in places.into_iter().chain(needs) {
            let label = [tenant, name].into_iter().find_map(|label| check_label(label).err());
            if let Some(wrong) = label {
                return Err(format!("the collection {tenant:?}/{name:?} {wrong}"));
            }
        }
        if self.pieces.len() > PIECES_MAX {
            return Err(format!("it lists {} pieces", self.pieces.len()));
        }
        for piece in &self.pieces {
            let is_stored = match piece.encoding {
                PieceEncoding::Raw => piece.stored == piece.raw,
                PieceEncoding::Zstandard | PieceEncoding::Difference => piece.stored < piece.raw,
            };
            if !is_stored || piece.stored == 0 || u64::from(piece.raw) >= PIECE_BYTES_MAX {
                return Err(format!("piece {:?} has {} bytes of {}", piece.name, piece.stored, piece.raw));
            }
        }
        self.check_differences()?;
        if self.files.iter().map(|file| file.extents.len()).sum::<usize>() > EXTENTS_MAX {
            return Err("it lists too many extents".to_owned());
        }
        self.files.iter().try_for_each(|file| self.check_file(file))?;
        self.check_references()?;
        self.check_variants()
    }

    fn check_references(&self) -> std::result::Result<(), String> {
        let Some(references) = &self.references else { return Ok(()) };
        if !self.differences.is_empty() || !self.variants.is_empty() {
            return Err("it has references and differences or variants".to_owned());
        }
        let logs = self.files.iter().filter(|file| file.kind == FileKind::Log);
        let mut of_logs = logs.flat_map(|log| &log.extents);
        if of_logs.any(|extent| references.place_of(extent.piece).is_some()) {
            return Err("its log lies elsewhere".to_owned());
        }
        let ascends = references.pieces.is_sorted_by(|one, next| one.piece < next.piece);
        match references.pieces.iter().find(|referred| !self.is_reference(references, referred)) {
            None if ascends => Ok(()),
            wrong => {
                Err(format!("it refers wrongly to piece {}", wrong.map_or(0, |referred| referred.piece)))
            }
        }
    }

    /// Whether a piece can be where a reference says, and has the name of that place unless its bytes were read.
    fn is_reference(&self, references: &References, referred: &ReferredPiece) -> bool {
        let piece = self.pieces.get(referred.piece as usize).filter(|it| it.encoding == PieceEncoding::Raw);
        let Some((piece, object)) = piece.zip(references.objects.get(referred.object as usize)) else {
            return false;
        };
        let (offset, len) = (referred.offset, u64::from(piece.raw));
        offset.checked_add(len).is_some_and(|end| end <= object.bytes)
            && (references.are_read || piece.name.digest == references.name_of(object, offset, len))
    }

    /// Each difference is described once, and is one from whole pieces.
    fn check_differences(&self) -> std::result::Result<(), String> {
        let is_difference = |piece: &Piece| piece.encoding == PieceEncoding::Difference;
        let described = self.differences.iter().map(|difference| difference.piece as usize);
        let stored = self.pieces.iter().enumerate().filter(|(_, piece)| is_difference(piece));
        if !described.eq(stored.map(|(index, _)| index)) {
            return Err("it describes other differences than it lists".to_owned());
        }
        for difference in &self.differences {
            let raw = self.pieces.get(difference.piece as usize).map_or(0, |piece| piece.raw);
            let whole = |base: u32| self.pieces.get(base as usize).filter(|base| !is_difference(base));
            check_stretches(&difference.stretches, raw, |base| whole(base).map(|base| base.raw))?;
            let bases: BTreeSet<u32> = difference.bases().collect();
            if bases.is_empty() || bases.len() > BASES_MAX || difference.since >= self.number {
                return Err(format!("piece {} is a wrong difference", difference.piece));
            }
        }
        Ok(())
    }

    /// How the piece at an index is a difference, if it is one.
    pub fn difference(&self, piece: u32) -> Option<&PieceDifference> {
        let place = self.differences.binary_search_by_key(&piece, |difference| difference.piece).ok()?;
        self.differences.get(place)
    }

    fn check_file(&self, file: &ManifestFile) -> std::result::Result<(), String> {
        let place = format!("file {:?} {}", file.kind, file.number);
        if !file.kind.has_number(file.number) || i64::try_from(file.bytes).is_err() {
            return Err(format!("{place} has {} bytes", file.bytes));
        }
        let mut end = 0;
        for extent in &file.extents {
            let piece = self.pieces.get(extent.piece as usize);
            let reached = extent.piece_offset.checked_add(extent.len);
            let is_in_piece = reached.zip(piece).is_some_and(|(reached, piece)| reached <= piece.raw);
            if extent.len == 0 || extent.offset < end || !is_in_piece || extent.end() > file.bytes {
                return Err(format!("{place} has a wrong extent at byte {}", extent.offset));
            }
            let is_difference = piece.is_some_and(|piece| piece.encoding == PieceEncoding::Difference);
            if file.kind == FileKind::Log && is_difference {
                return Err(format!("{place} has a difference at byte {}", extent.offset));
            }
            if file.kind == FileKind::Log && extent.offset != end {
                return Err(format!("{place} has a gap at byte {end}"));
            }
            end = extent.end();
        }
        if file.kind == FileKind::Log && end != file.bytes {
            return Err(format!("{place} ends at byte {end} of {}", file.bytes));
        }
        Ok(())
    }

    /// The first file is the log, each other log and a second file of a number belong to one variant, and no file
    /// is there twice.
    fn check_variants(&self) -> std::result::Result<(), String> {
        if self.variants.len() > VARIANTS_MAX {
            return Err(format!(
                "it lists {} variants; at most {VARIANTS_MAX} are allowed",
                self.variants.len()
            ));
        }
        if self.is_removal() {
            let is_empty = self.pieces.is_empty() && self.variants.is_empty() && self.needs.is_empty();
            let is_empty = is_empty && self.references.is_none();
            return if is_empty { Ok(()) } else { Err("it has no files, and refers to others".to_owned()) };
        }
        if self.files.first().is_none_or(|file| file.kind != FileKind::Log) {
            return Err("the first file is not a log".to_owned());
        }
        // The variant of each file, from 1; 0 for the collection itself.
        let mut owners = vec![0; self.files.len()];
        let mut names = BTreeSet::new();
        for (place, variant) in (1_usize..).zip(&self.variants) {
            if check_label(&variant.name).is_err() || !names.insert(&variant.name) {
                return Err(format!("a variant has the name {:?}", variant.name));
            }
            let log = std::iter::once((&variant.log, &[FileKind::Log][..]));
            let others = variant.files.iter().map(|index| (index, &[FileKind::Tier, FileKind::Data][..]));
            for (index, kinds) in log.chain(others) {
                let index = *index as usize;
                let is_free = index > 0 && owners.get(index) == Some(&0);
                if !is_free || self.files.get(index).is_none_or(|file| !kinds.contains(&file.kind)) {
                    return Err(format!("variant {:?} has file {index}", variant.name));
                }
                if let Some(owner) = owners.get_mut(index) {
                    *owner = place;
                }
            }
        }
        let mut seen = HashSet::with_capacity(self.files.len());
        let twice = self
            .files
            .iter()
            .zip(owners)
            .find(|(file, owner)| !seen.insert((*owner, file.kind, file.number)));
        match twice {
            Some((file, _)) => Err(format!("it lists file {:?} {} twice", file.kind, file.number)),
            None => Ok(()),
        }
    }
}
