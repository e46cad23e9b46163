//! A canonical collection that is a clone: the pieces that the remote has already, and the files here once the
//! remote has all.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::format::snapshot::manifest::{FileExtent, FileKind, Manifest, ManifestFile, Piece};
use crate::format::snapshot::piece_map::PieceMap;
use crate::model::{Error, Result};
use crate::store::clones::{CloneSource, SharedFile};
use crate::store::disk::File;
use crate::store::disk::change::Change;
use crate::store::object::factors::FACTOR_FILE;
use crate::store::object::links::DELTA_FILE;
use crate::store::push_file::{NotedPush, PushPlace, note_push, pushes};
use crate::store::snapshot::canonical::{Canonical, log_of};
use crate::store::snapshot::payloads::{CanonicalFile, Payload, Source};
use crate::store::space::slots::SLOT_ALIGN;

impl Canonical {
    /// The snapshot that the collection is a clone of, if it is one.
    pub fn clone_source(&self) -> Result<Option<CloneSource>> {
        let files = &self.still().files;
        let found = files.clones().map(|clones| clones.source_of(files.path()));
        Ok(found.transpose().map_err(|error| Error::io(files.path(), error))?.flatten())
    }

    /// Notes that the clone is one of this snapshot, durably.
    pub fn set_clone_source(&self, source: &CloneSource) -> Result<()> {
        let files = &self.still().files;
        let clones = files.clones().filter(|clones| clones.keeps());
        let noted = clones.map(|clones| clones.set_source_of(files.path(), source));
        noted.transpose().map(drop).map_err(|error| Error::io(files.path(), error))
    }

    /// The numbers of the pushes of this collection to a place.
    pub fn pushes(&self, place: PushPlace<'_>) -> Result<Vec<u128>> {
        let files = &self.still().files;
        let found = pushes(&**files.disk(), files.path(), place);
        found.map_err(|error| Error::io(files.path(), error))
    }

    /// Notes a push of this collection, durably.
    pub fn note_push(&self, place: PushPlace<'_>, push: &NotedPush) -> Result<()> {
        let files = &self.still().files;
        let noted = note_push(&**files.disk(), files.path(), place, push);
        noted.map_err(|error| Error::io(files.path(), error))
    }

    /// BLAKE3 of the log as it is for the own store, by which pushes and versions of a state are found.
    pub fn state_digest(&self) -> Result<[u8; 32]> {
        Ok(*blake3::hash(&log_of(self.state(), self.still().identity.store())?).as_bytes())
    }

    /// The piece of the remote with the bytes of these stretches of a file, known without reading them.
    pub fn piece_in_clone(&self, file: &CanonicalFile, stretches: &[Range<u64>]) -> Option<Piece> {
        let clone = self.cloned_file(file).ok()??;
        clone.piece_of(&self.local_ranges(file, stretches)?)
    }

    /// Notes in the files of the clone that the remote has all bytes of this manifest, which this collection
    /// was pushed as. They can be evicted from then on.
    pub fn adopt(&self, manifest: &Manifest) -> Result<()> {
        if !self.still().files.clones().is_some_and(|clones| clones.keeps()) {
            return Ok(());
        }
        let live = self.live();
        if live.has_removed_in_use()? {
            log::info!("{}: a removed file is in use; the next push makes the rest evictable", live.path());
            return Ok(());
        }
        // Reads that began before may use payloads where they were.
        live.gate.wait();
        let described = manifest.files_of(None).unwrap_or_default();
        for file in self.files() {
            let is_it = |(_, found): &&(usize, &ManifestFile)| is_of(found, file);
            let Some((_, described)) = described.iter().find(is_it) else { continue };
            let (Ok(local), Ok(Some(clone))) = (self.local_file(file), self.cloned_file(file)) else {
                continue;
            };
            if let Some(map) = self.local_map(file, manifest, &described.extents) {
                let alone = match file.kind {
                    FileKind::Data => live.files.shown.alone(Change::Adopt, file.number, local),
                    _ => None,
                };
                let is_rest_unused = file.kind != FileKind::Data || alone.is_some();
                let adopted = clone.adopt(map, is_rest_unused);
                adopted.map_err(|error| Error::io(format!("{} of a clone", self.still().path()), error))?;
            }
        }
        Ok(())
    }

    /// The pieces of a canonical file at their places in the file of the clone. `None` if two of them claim the
    /// same bytes.
    fn local_map(
        &self,
        file: &CanonicalFile,
        manifest: &Manifest,
        extents: &[FileExtent],
    ) -> Option<PieceMap> {
        let (mut map, mut places, mut elsewhere) = (PieceMap::default(), HashMap::new(), HashSet::new());
        for extent in extents {
            let stretch = extent.offset..extent.end();
            let Some(ranges) = self.local_ranges(file, std::slice::from_ref(&stretch)) else {
                elsewhere.insert(extent.piece);
                continue;
            };
            let next = map.pieces.len() as u32;
            let piece = *places.entry(extent.piece).or_insert(next);
            if piece == next {
                map.pieces.push(*manifest.pieces.get(extent.piece as usize)?);
            }
            let mut piece_offset = extent.piece_offset;
            for range in ranges {
                let len = u32::try_from(range.end - range.start).ok()?;
                map.extents.push(FileExtent { offset: range.start, piece, piece_offset, len });
                piece_offset = piece_offset.checked_add(len)?;
            }
        }
        // Some bytes of these lie in files outside the store.
        let left: HashSet<u32> = elsewhere.iter().filter_map(|piece| places.get(piece).copied()).collect();
        map.extents.retain(|extent| !left.contains(&extent.piece));
        map.extents.sort_by_key(|extent| extent.offset);
        let overlaps = |pair: &[FileExtent]| matches!(pair, [one, next] if next.offset < one.end());
        (!map.extents.windows(2).any(overlaps)).then_some(map)
    }

    /// The file of the collection with the payloads of a canonical file.
    fn local_file(&self, file: &CanonicalFile) -> Result<Arc<dyn File>> {
        let files = &self.still().files;
        match payload_number(file)? {
            Some(number) => files.payload_file(number),
            None => files.data_file(file.number, None),
        }
    }

    /// The same with its pieces, if the collection is a clone.
    fn cloned_file(&self, file: &CanonicalFile) -> Result<Option<Arc<SharedFile>>> {
        let files = &self.still().files;
        let found = match payload_number(file)? {
            Some(number) => files.cloned_payload_file(number),
            None => files.cloned_data_file(file.number),
        };
        found.map_err(|error| Error::io(files.path(), error))
    }

    /// The places of stretches of a canonical file in the file of the collection, with the ends of slots;
    /// `None` if some of them lie elsewhere.
    fn local_ranges(&self, file: &CanonicalFile, stretches: &[Range<u64>]) -> Option<Vec<Range<u64>>> {
        let end = |source: &Source| match file.kind {
            FileKind::Data => source.offset.saturating_add(source.len),
            _ => source.offset.saturating_add(source.len).next_multiple_of(SLOT_ALIGN),
        };
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for stretch in stretches {
            let mut place = file.sources.partition_point(|source| end(source) <= stretch.start);
            let mut at = stretch.start;
            while at < stretch.end {
                let source = file.sources.get(place).filter(|source| source.offset <= at)?;
                let until = end(source).min(stretch.end);
                let local = self.local_offset(file, source)?;
                let (from, to) = (local + (at - source.offset), local + (until - source.offset));
                match ranges.last_mut() {
                    Some(last) if last.end == from => last.end = to,
                    _ => ranges.push(from..to),
                }
                at = until;
                place += 1;
            }
        }
        Some(ranges)
    }

    /// The offset of a payload in the file of the collection; `None` if it lies elsewhere.
    fn local_offset(&self, file: &CanonicalFile, source: &Source) -> Option<u64> {
        let object = self.object(source.object)?;
        let (offset, len) = match source.payload {
            Payload::Block(index) => {
                let stored = object.blocks.read().get(index, object.logged_layout())?.stored;
                let is_there = match file.kind {
                    FileKind::Data => {
                        stored.in_data
                            && object.origin.is_none()
                            && object.extent().is_some_and(|extent| extent.file == file.number)
                    }
                    _ => stored.has_slot() && u64::from(stored.tier.byte()) == file.number,
                };
                is_there.then_some((stored.offset, u64::from(stored.len)))?
            }
            Payload::Delta { block, place } => {
                let known = object.blocks.read().get(block, object.logged_layout())?;
                let links = object.deltas(block, known.epoch)?;
                let link = links.get(usize::from(place))?;
                (link.offset, u64::from(link.len))
            }
            // Only the remote has the payloads of variants.
            Payload::Recoded { .. } => return None,
            Payload::Factor => {
                let link = object.factor()?;
                (link.offset, link.len)
            }
        };
        (len == source.len).then_some(offset)
    }
}

/// The number of the file of payloads that a canonical file describes; `None` for a data file.
fn payload_number(file: &CanonicalFile) -> Result<Option<u8>> {
    Ok(match file.kind {
        FileKind::Data => None,
        FileKind::Delta => Some(DELTA_FILE),
        FileKind::Factor => Some(FACTOR_FILE),
        FileKind::Tier | FileKind::Log => {
            Some(u8::try_from(file.number).map_err(|_| Error::invalid("a tier"))?)
        }
    })
}

fn is_of(found: &ManifestFile, file: &CanonicalFile) -> bool {
    (found.kind, found.number) == (file.kind, file.number)
}
