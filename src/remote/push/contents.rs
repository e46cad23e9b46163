//! The pieces and files of a manifest that is being put together.

use std::collections::HashMap;
use std::ops::Range;

use crate::format::snapshot::difference::BaseStretch;
use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::manifest::{
    FileExtent, FileKind, Manifest, ManifestFile, Piece, PieceDifference, Variant,
};
use crate::format::snapshot::pieces::{Stretches, pieces};
use crate::remote::push::differences::DifferenceOf;
use crate::remote::read::pieces::packed;
use crate::store::{CanonicalFile, CanonicalVariant};

/// A file to be stored.
pub(super) struct Outgoing<'a> {
    pub(super) kind: FileKind,
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) mtime: i64,
    pub(super) pieces: Vec<Stretches>,
    pub(super) source: Origin<'a>,
    /// Extents that are there already.
    pub(super) shared: Vec<FileExtent>,
}

/// Where the bytes of a file come from.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    /// A log, which is compressed.
    Log(&'a [u8]),
    /// A file of the collection.
    Own(&'a CanonicalFile),
    /// A file of a variant.
    OfVariant(&'a CanonicalVariant, &'a CanonicalFile),
}

impl<'a> Outgoing<'a> {
    pub(super) fn log(log: &'a [u8]) -> Outgoing<'a> {
        let bytes = log.len() as u64;
        let whole: Stretches = std::iter::once(0..bytes).collect();
        let (pieces, source) = (pieces(&[whole]), Origin::Log(log));
        Outgoing { kind: FileKind::Log, number: 0, bytes, mtime: 0, pieces, source, shared: Vec::new() }
    }

    pub(super) fn file(file: &'a CanonicalFile, source: Origin<'a>) -> Outgoing<'a> {
        let CanonicalFile { kind, number, bytes, mtime, .. } = *file;
        Outgoing { kind, number, bytes, mtime, pieces: file.pieces(), source, shared: Vec::new() }
    }

    /// A data file of a variant that has the file `stored` of the collection in other pieces.
    pub(super) fn narrowed(
        file: &'a CanonicalFile,
        stored: &ManifestFile,
        variant: &CanonicalVariant,
    ) -> Option<Outgoing<'a>> {
        let narrowed = variant.narrowed(file)?;
        let shared = stored.extents_in(&narrowed.shared);
        Some(Outgoing { pieces: narrowed.own, shared, ..Outgoing::file(file, Origin::Own(file)) })
    }
}

/// The files of a manifest that is being put together.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) pieces: Vec<Piece>,
    /// By name, the places of `pieces`.
    pub(super) indexes: HashMap<PieceName, u32>,
    /// The differences among the pieces.
    pub(super) differences: Vec<PieceDifference>,
    /// The collection's own files, then those of variants.
    pub(super) files: Vec<ManifestFile>,
    pub(super) variants: Vec<Variant>,
    /// Bytes that the push processes, as far as that is known.
    pub(super) expected: u64,
    /// The number of the snapshot before, 0 for none.
    pub(super) before: u64,
}

impl Contents {
    /// The index of a piece, which is added with its bases if it is not there.
    pub(super) fn index_of(&mut self, piece: Piece, difference: Option<&DifferenceOf>) -> u32 {
        if let Some(index) = self.indexes.get(&piece.name) {
            return *index;
        }
        let index = self.pieces.len() as u32;
        self.pieces.push(piece);
        self.indexes.insert(piece.name, index);
        if let Some(DifferenceOf { digest, since, bases, stretches }) = difference {
            let bases: Vec<u32> = bases.iter().map(|base| self.index_of(*base, None)).collect();
            let placed = |stretch: &BaseStretch| {
                let base = stretch.base.and_then(|(base, at)| Some((*bases.get(base as usize)?, at)));
                BaseStretch { base, ..*stretch }
            };
            let stretches = stretches.iter().map(placed).collect();
            // A snapshot of another collection may have a higher number.
            let since = (*since).min(self.before);
            self.differences.push(PieceDifference { piece: index, digest: *digest, since, stretches });
        }
        index
    }

    /// Whether the collection's own files are those of an earlier snapshot.
    pub(super) fn is_base_of(&self, earlier: &Manifest) -> bool {
        let names =
            |pieces: &[Piece]| -> Vec<[u8; 32]> { pieces.iter().map(|piece| piece.name.digest).collect() };
        let (files, pieces) = (self.files.len(), self.pieces.len());
        earlier.files.get(..files) == Some(&self.files)
            && earlier.pieces.get(..pieces).is_some_and(|pieces| names(pieces) == names(&self.pieces))
    }

    /// Adds the collection's own files of an earlier snapshot.
    pub(super) fn take_base(&mut self, earlier: &Manifest) {
        earlier.files_of(None).into_iter().flatten().for_each(|(_, file)| self.take_file(earlier, file));
    }

    /// Adds a variant of an earlier snapshot.
    pub(super) fn take_variant(&mut self, earlier: &Manifest, variant: &Variant) {
        let first = self.files.len() as u32;
        let files = std::iter::once(&variant.log).chain(&variant.files);
        let files = files.filter_map(|index| earlier.files.get(*index as usize));
        files.for_each(|file| self.take_file(earlier, file));
        self.add_variant(variant.name.clone(), variant.recipe, first);
    }

    fn take_file(&mut self, earlier: &Manifest, file: &ManifestFile) {
        let extents = file.extents.iter().filter_map(|extent| {
            let difference = DifferenceOf::of(earlier, extent.piece);
            let piece = self.index_of(*earlier.pieces.get(extent.piece as usize)?, difference.as_ref());
            Some(FileExtent { piece, ..*extent })
        });
        let extents = extents.collect();
        self.files.push(ManifestFile { extents, ..file.clone() });
    }

    /// The files from `first` on are those of a variant.
    pub(super) fn add_variant(&mut self, name: String, recipe: [u8; 32], first: u32) {
        let files = (first + 1..self.files.len() as u32).collect();
        self.variants.push(Variant { name, log: first, files, recipe });
    }
}

/// Whether a snapshot has the state of this canonical log.
pub(super) fn has_log(manifest: &Manifest, log: &[u8]) -> bool {
    let Some(file) = manifest.files.first().filter(|file| file.bytes == log.len() as u64) else {
        return false;
    };
    let pieces = Outgoing::log(log).pieces;
    let extents: Vec<Vec<FileExtent>> = pieces
        .iter()
        .zip(&file.extents)
        .map(|(stretches, extent)| FileExtent::of_piece(extent.piece, stretches))
        .collect();
    let is_its = |(extent, stretches): (&FileExtent, &Stretches)| {
        let known = manifest.pieces.get(extent.piece as usize);
        let bytes = stretches.iter().flat_map(|range| part(log, range)).copied().collect();
        known.is_some_and(|known| known.name.digest == packed(bytes, true).0.name.digest)
    };
    // A piece of a log is one stretch.
    file.kind == FileKind::Log
        && file.extents == extents.concat()
        && file.extents.iter().zip(&pieces).all(is_its)
}

pub(super) fn part<'a>(bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
}
