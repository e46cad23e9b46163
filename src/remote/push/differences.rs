//! Pieces as differences from those of the newest snapshot of the collection.
//!
//! A piece is compared with the *keyframe*: the bytes that the newest snapshot has of the same tensors as they are, or
//! those that its own differences are from. So a difference is never from a difference, and a reader needs two pieces
//! at most for the bytes of one. A piece is sent whole, and is a keyframe from then on, if its difference would take
//! more than a share of its bytes, or if the keyframe is older than a number of pushes.
//!
//! The bytes of the keyframe are read from the remote, unless this machine keeps them. Of a large one a sample is read
//! first: a tensor that changed everywhere costs a small request.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::format::log::block_record::SLOT_ALIGN;
use crate::format::snapshot::difference::{BaseStretch, are_allowed};
use crate::format::snapshot::keys::{self, PieceName};
use crate::format::snapshot::manifest::{FileKind, Manifest, Piece, PieceDifference, PieceEncoding};
use crate::model::{Dtype, Result};
use crate::remote::client::runtime;
use crate::remote::client::window::Class;
use crate::remote::place::remote::Remote;
use crate::remote::push::parameters::{self, DifferenceLimits};
use crate::remote::read::cache::Cache;
use crate::remote::read::cache::object_cache::Kind;
use crate::remote::read::mirrors::Mirrors;
use crate::remote::read::piece_buffer::PieceBuffer;
use crate::remote::read::pieces::{Bases, base_of, failed, read_log};
use crate::store::pieces::difference::{changed_bytes, encode};
use crate::store::{Canonical, CanonicalFile, ObjectNames, StoredObjects, StoredPlace};

/// Bytes of a sample, of whole elements of each type.
const SAMPLE_BYTES: u64 = 64 << 10;
/// A keyframe is sampled if it has this many bytes.
const SAMPLED_MIN: u64 = 1 << 20;

/// A piece in more stretches is sent whole: a manifest lists them all.
const STRETCHES_MAX: usize = 2048;

/// How a piece is a difference, beside its stored bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DifferenceOf {
    /// BLAKE3 of the bytes that the piece stands for.
    pub digest: [u8; 32],
    /// The last snapshot that had the bases in the place of the piece.
    pub since: u64,
    /// The pieces that it is a difference from.
    pub bases: Vec<Piece>,
    /// Its stretches, with indexes into `bases`.
    pub stretches: Vec<BaseStretch>,
}

impl DifferenceOf {
    /// How the piece at an index of a manifest is a difference, if it is one.
    pub fn of(manifest: &Manifest, piece: u32) -> Option<DifferenceOf> {
        let PieceDifference { digest, since, stretches, .. } = manifest.difference(piece)?;
        DifferenceOf::resolved(manifest, *digest, *since, stretches)
    }

    /// The same of stretches with indexes of pieces of the manifest.
    fn resolved(
        manifest: &Manifest,
        digest: [u8; 32],
        since: u64,
        stretches: &[BaseStretch],
    ) -> Option<DifferenceOf> {
        let mut found = DifferenceOf { digest, since, bases: Vec::new(), stretches: Vec::new() };
        let mut places: HashMap<u32, u32> = HashMap::new();
        for stretch in stretches {
            let base = match stretch.base {
                None => None,
                Some((base, offset)) => {
                    let next = found.bases.len() as u32;
                    let place = *places.entry(base).or_insert(next);
                    if place == next {
                        found.bases.push(*manifest.pieces.get(base as usize)?);
                    }
                    Some((place, offset))
                }
            };
            found.stretches.push(BaseStretch { base, ..*stretch });
        }
        Some(found)
    }
}

/// Keyframes on this machine.
struct Keyframes {
    recent: PieceBuffer,
    cache: Option<Arc<Cache>>,
}

impl Bases for Keyframes {
    fn get(&self, piece: &Piece) -> Option<Arc<Vec<u8>>> {
        self.recent.get(&piece.name).or_else(|| {
            let bytes = Arc::new(self.cache.as_ref()?.base(piece)?);
            self.recent.keep(piece.name, &bytes);
            Some(bytes)
        })
    }

    fn keep(&self, piece: &Piece, stored: &[u8], bytes: &Arc<Vec<u8>>) {
        self.recent.keep(piece.name, bytes);
        keep(self.cache.as_ref(), piece, stored);
    }
}

/// Keeps a piece that later pushes may take differences from.
pub(super) fn keep(cache: Option<&Arc<Cache>>, piece: &Piece, stored: &[u8]) {
    let kept = cache.map(|cache| cache.keep(Kind::Base, &piece.name.digest, stored));
    if let Some(Err(error)) = kept {
        log::warn!("the cache keeps no keyframes: {error}");
    }
}

/// Stretches of a file that make up a piece.
#[derive(Clone, Copy)]
pub(super) struct FilePart<'a> {
    pub file: &'a CanonicalFile,
    pub stretches: &'a [Range<u64>],
    /// BLAKE3 of its bytes.
    pub digest: [u8; 32],
}

/// The newest snapshot of the collection that is pushed.
pub(super) struct Previous {
    manifest: Arc<Manifest>,
    /// Of each difference of the manifest, the offsets in the piece at which its stretches begin.
    begins: HashMap<u32, Vec<u32>>,
    /// The places of the collection's own files in the manifest.
    files: HashMap<(FileKind, u64), usize>,
    objects: StoredObjects,
    names: ObjectNames,
    /// Keyframes that were read, and those that this machine keeps.
    bases: Keyframes,
    limits: DifferenceLimits,
}

impl Previous {
    /// Reads the log of the newest snapshot. `None` if it cannot be read: then all is sent whole.
    pub fn of(
        remote: &Remote,
        manifest: &Arc<Manifest>,
        canonical: &Canonical,
        parameters::Keyframes { limits, cache }: &parameters::Keyframes<Arc<Cache>>,
    ) -> Option<Previous> {
        if limits.pushes_max == 0 || manifest.is_removal() {
            return None;
        }
        let objects = read_log(remote, manifest).and_then(|log| StoredObjects::of_log(&log, remote.id()));
        let objects =
            objects.inspect_err(|error| log::warn!("all changed pieces are sent whole: {error}")).ok()?;
        let (manifest, names) = (manifest.clone(), canonical.object_names());
        let own = manifest.files_of(None).unwrap_or_default();
        let files = own.into_iter().map(|(index, file)| ((file.kind, file.number), index)).collect();
        let begins = manifest.differences.iter().map(|difference| (difference.piece, begins(difference)));
        Some(Previous {
            begins: begins.collect(),
            manifest,
            files,
            objects,
            names,
            bases: Keyframes { recent: PieceBuffer::default(), cache: cache.clone() },
            limits: *limits,
        })
    }

    /// Whether a keyframe may serve the next snapshot.
    pub fn is_new_enough(&self, difference: &DifferenceOf) -> bool {
        (self.manifest.number.saturating_add(1)).saturating_sub(difference.since) <= self.limits.pushes_max
    }

    /// The stored bytes of a piece with the bytes `raw` as a difference. `None` if there is no keyframe, or if the piece
    /// differs too much from it.
    pub fn difference(
        &self,
        remote: &Remote,
        canonical: &Canonical,
        part: FilePart<'_>,
        raw: &[u8],
        doomed: &HashSet<PieceName>,
    ) -> Result<Option<(Vec<u8>, DifferenceOf)>> {
        let Some(found) = self.keyframe(canonical, part, doomed) else { return Ok(None) };
        let bytes_max = raw.len() * usize::from(self.limits.percent_max) / 100;
        if !self.may_be_near(remote, &found, raw) {
            return Ok(None);
        }
        let mut bases = Vec::with_capacity(found.bases.len());
        for piece in &found.bases {
            let bytes = match self.bases.get(piece) {
                Some(bytes) => bytes,
                None => {
                    let mirrors = Mirrors::of(remote.client());
                    match runtime::wait(base_of(&mirrors, &self.bases, piece, Class::Demand))? {
                        Ok(bytes) => bytes,
                        Err(failure) => {
                            let error = failed(remote.client(), piece, &failure);
                            log::warn!("a piece is sent whole, since its keyframe cannot be read: {error}");
                            return Ok(None);
                        }
                    }
                }
            };
            bases.push((*piece, bytes));
        }
        let bases: Vec<(Piece, &[u8])> =
            bases.iter().map(|(piece, bytes)| (*piece, bytes.as_slice())).collect();
        let stored = encode(raw, part.digest, &found.stretches, &bases, bytes_max)?;
        Ok(stored.map(|stored| (stored, found)))
    }

    /// The keyframe of a piece; `None` if less than half of the piece has one.
    fn keyframe(
        &self,
        canonical: &Canonical,
        part: FilePart<'_>,
        doomed: &HashSet<PieceName>,
    ) -> Option<DifferenceOf> {
        let manifest = &*self.manifest;
        let mut found = Keyframe { manifest, since: manifest.number, stretches: Vec::new(), based: 0 };
        for content in canonical.contents(part.file, part.stretches, &self.names) {
            for range in self.objects.places(&content) {
                match range.place {
                    None => found.add(range.len, content.dtype, None),
                    Some(place) => self.add_range(&mut found, content.dtype, place, range.len, doomed),
                }
            }
        }
        found.finish(part.digest)
    }

    /// Adds the pieces of a range of a file.
    fn add_range(
        &self,
        found: &mut Keyframe<'_>,
        dtype: Dtype,
        place: StoredPlace,
        len: u64,
        doomed: &HashSet<PieceName>,
    ) {
        let range = place.offset..place.offset.saturating_add(len);
        let file = self.files.get(&(place.kind, place.number));
        let file = file.and_then(|index| self.manifest.files.get(*index));
        let extents = file.map(|file| file.extents.as_slice()).unwrap_or_default();
        let first = extents.partition_point(|extent| extent.end() <= range.start);
        let mut at = range.start;
        for extent in extents.iter().skip(first).take_while(|extent| extent.offset < range.end) {
            if extent.offset > at {
                found.add(extent.offset - at, dtype, None);
                at = extent.offset;
            }
            let len = extent.end().min(range.end) - at;
            let offset = extent.piece_offset + (at - extent.offset) as u32;
            at += len;
            self.add_piece(found, dtype, extent.piece, offset..offset + len as u32, doomed);
        }
        if at < range.end {
            found.add(range.end - at, dtype, None);
        }
    }

    /// Adds a range of a piece, or that of its keyframe.
    fn add_piece(
        &self,
        found: &mut Keyframe<'_>,
        dtype: Dtype,
        piece: u32,
        range: Range<u32>,
        doomed: &HashSet<PieceName>,
    ) {
        let described = self.manifest.pieces.get(piece as usize);
        let may_be_named = |piece: u32| {
            self.manifest.pieces.get(piece as usize).is_some_and(|piece| !doomed.contains(&piece.name))
        };
        let len = range.end - range.start;
        match (described.map(|piece| piece.encoding), self.manifest.difference(piece)) {
            (Some(PieceEncoding::Raw | PieceEncoding::Zstandard), _) => {
                found.add(len.into(), dtype, Some((piece, range.start)).filter(|_| may_be_named(piece)));
            }
            (_, Some(PieceDifference { since, stretches, .. })) => {
                found.since = found.since.min(*since);
                let begins = self.begins.get(&piece).map(Vec::as_slice).unwrap_or_default();
                let first = begins.partition_point(|begin| *begin <= range.start).saturating_sub(1);
                let reached = stretches.iter().zip(begins).skip(first);
                for (stretch, &begin) in reached.take_while(|(_, begin)| **begin < range.end) {
                    let end = begin + stretch.len;
                    let (from, until) = (range.start.clamp(begin, end), range.end.clamp(begin, end));
                    if from < until {
                        let base = stretch.base.filter(|(base, _)| may_be_named(*base));
                        let base = base.map(|(base, offset)| (base, offset + (from - begin)));
                        found.add((until - from).into(), dtype, base);
                    }
                }
            }
            _ => found.add(len.into(), dtype, None),
        }
    }

    /// Whether a sample of the keyframe is near enough to the piece, as far as a sample is worth while.
    fn may_be_near(&self, remote: &Remote, found: &DifferenceOf, raw: &[u8]) -> bool {
        let mut at = 0;
        let mut longest: Option<(u64, BaseStretch, Piece)> = None;
        for stretch in &found.stretches {
            let base = stretch.base.and_then(|(base, _)| found.bases.get(base as usize));
            if let Some(base) = base.filter(|base| base.encoding == PieceEncoding::Raw)
                && longest.is_none_or(|(_, longest, _)| stretch.len > longest.len)
            {
                longest = Some((at, *stretch, *base));
            }
            at += u64::from(stretch.len);
        }
        let Some((at, stretch, base)) = longest.filter(|(_, it, _)| u64::from(it.len) >= SAMPLED_MIN) else {
            return true;
        };
        if self.bases.get(&base).is_some() {
            return true;
        }
        let skip = (u64::from(stretch.len) / 2).next_multiple_of(SAMPLE_BYTES) - SAMPLE_BYTES;
        let offset = u64::from(stretch.base.map_or(0, |(_, offset)| offset)) + skip;
        let new = raw.get((at + skip) as usize..(at + skip + SAMPLE_BYTES) as usize).unwrap_or_default();
        let key = keys::piece(&base.name);
        match remote.client().get_range(&key, offset..offset + SAMPLE_BYTES) {
            Ok(Some(old)) if old.len() == new.len() => {
                // A sample may lie where more has changed than elsewhere.
                let most = 2 * new.len() * usize::from(self.limits.percent_max) / 100;
                changed_bytes(stretch.dtype, &old, new).is_ok_and(|bytes| bytes <= most)
            }
            // Reading all of it says why.
            _ => true,
        }
    }
}

/// Where the stretches of a difference begin.
fn begins(difference: &PieceDifference) -> Vec<u32> {
    let mut end = 0;
    let begin = |stretch: &BaseStretch| {
        let begin = end;
        // A manifest was checked: the sum is that of the piece.
        end += stretch.len;
        begin
    };
    difference.stretches.iter().map(begin).collect()
}

/// A keyframe that is being put together, with indexes of pieces of the manifest.
struct Keyframe<'a> {
    manifest: &'a Manifest,
    since: u64,
    stretches: Vec<BaseStretch>,
    /// Bytes that have a base, without those between slots.
    based: u64,
}

impl Keyframe<'_> {
    fn add(&mut self, len: u64, dtype: Dtype, base: Option<(u32, u32)>) {
        self.based += if base.is_some() { len } else { 0 };
        // A piece has less than 16 MiB.
        let len = len as u32;
        let raw = |piece: u32| self.manifest.pieces.get(piece as usize).map_or(0, |piece| piece.raw);
        match self.stretches.last_mut() {
            // The zeros behind a slot, which the keyframe has too if the next slot is in its place.
            Some(BaseStretch { len: before, base: Some((piece, at)), .. })
                if base.is_none() && u64::from(len) < SLOT_ALIGN && *at + *before + len <= raw(*piece) =>
            {
                *before += len;
            }
            Some(last)
                if last.dtype == dtype && last.base.map(|(piece, at)| (piece, at + last.len)) == base =>
            {
                last.len += len;
            }
            _ => self.stretches.push(BaseStretch { len, dtype, base }),
        }
    }

    fn finish(self, digest: [u8; 32]) -> Option<DifferenceOf> {
        let all: u64 = self.stretches.iter().map(|stretch| u64::from(stretch.len)).sum();
        if self.based * 2 < all || self.based == 0 || self.stretches.len() > STRETCHES_MAX {
            return None;
        }
        let found = DifferenceOf::resolved(self.manifest, digest, self.since, &self.stretches)?;
        are_allowed(&found.bases).then_some(found)
    }
}
