//! Stores the pieces that a remote lacks.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::format::snapshot::keys::{self, PieceName};
use crate::format::snapshot::manifest::{
    FileExtent, FileKind, Manifest, ManifestFile, Piece, PieceEncoding, Variant,
};
use crate::format::snapshot::pieces::Stretches;
use crate::model::{Error, ErrorKind, Progress, Result};
use crate::remote::client::Put;
use crate::remote::place::remote::Remote;
use crate::remote::push::contents::{Contents, Origin, Outgoing, part};
use crate::remote::push::differences::{DifferenceOf, FilePart, Previous, keep};
use crate::remote::push::parameters::Parameters;
use crate::remote::read::pieces::packed;
use crate::store::{Canonical, Choice};

/// Sends the pieces of a push.
pub(super) struct Sender<'a> {
    pub(super) remote: &'a Remote,
    pub(super) canonical: &'a Canonical,
    pub(super) parameters: &'a Parameters,
    /// Pieces that may be named without looking.
    pub(super) known: KnownPieces,
    /// The newest snapshot, from which pieces may be differences.
    pub(super) previous: Option<Previous>,
    /// Pieces that a plan may remove: they must not be named.
    pub(super) doomed: HashSet<PieceName>,
    /// The generation of pieces that must be stored again.
    pub(super) generation: u32,
    /// The tensors of each variant, in the order of the request.
    pub(super) choices: Vec<Choice>,
}

/// Pieces that the remote has, by the digest of their stored bytes, and differences also by that of their raw bytes.
pub(super) type KnownPieces = HashMap<[u8; 32], Stored>;

/// A piece that the remote has, and how it is a difference, if it is one.
pub(super) type Stored = (Piece, Option<Arc<DifferenceOf>>);

/// A piece to be made: stretches of a file.
struct Job<'a> {
    /// The place of the file among those that are stored together.
    file: usize,
    source: Origin<'a>,
    stretches: &'a Stretches,
}

/// Pieces and bytes that were sent.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) pieces: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    /// Whether the remote had a piece that no known snapshot names.
    were_found: AtomicBool,
}

impl Sender<'_> {
    /// Stores the pieces that the remote lacks. `base` is the newest snapshot, if it has this state.
    pub(super) fn send(
        &self,
        newest: Option<&Manifest>,
        base: Option<&Manifest>,
        progress: &dyn Progress,
    ) -> Result<(Contents, Sent)> {
        let before = newest.map_or(0, |newest| newest.number);
        let (mut contents, sent) = (Contents { before, ..Contents::default() }, Sent::default());
        let may_stay = |base: &&Manifest| {
            let mut files = base.files_of(None).into_iter().flatten();
            files.all(|(_, file)| self.may_name(base, file))
        };
        if let Some(base) = base.filter(may_stay) {
            contents.take_base(base);
        } else {
            let own = self.canonical.files().iter().map(|file| Outgoing::file(file, Origin::Own(file)));
            let own: Vec<Outgoing> =
                std::iter::once(Outgoing::log(self.canonical.log())).chain(own).collect();
            self.add(&own, &mut contents, &sent, progress)?;
        }
        let newest = newest.filter(|earlier| contents.is_base_of(earlier));
        for choice in &self.choices {
            match newest.and_then(|earlier| Some((earlier, self.published(earlier, choice)?))) {
                Some((earlier, variant)) => contents.take_variant(earlier, variant),
                None => self.add_variant(choice, &mut contents, &sent, progress)?,
            }
        }
        Ok((contents, sent))
    }

    /// Whether no plan may remove a piece of a file of an earlier snapshot.
    fn may_name(&self, earlier: &Manifest, file: &ManifestFile) -> bool {
        let may_stay = |piece: u32| {
            let piece = earlier.pieces.get(piece as usize);
            piece.is_some_and(|piece| !self.doomed.contains(&piece.name))
        };
        file.extents.iter().all(|extent| {
            let difference = earlier.difference(extent.piece);
            may_stay(extent.piece) && difference.is_none_or(|difference| difference.bases().all(may_stay))
        })
    }

    /// The variant of an earlier snapshot with the same files that a choice would make again, if no plan may
    /// remove its pieces.
    fn published<'m>(&self, earlier: &'m Manifest, choice: &Choice) -> Option<&'m Variant> {
        let is_it = |variant: &&Variant| (&variant.name, variant.recipe) == (&choice.name(), choice.recipe());
        let variant = earlier.variants.iter().find(is_it)?;
        let indexes = std::iter::once(&variant.log).chain(&variant.files);
        let mut files = indexes.filter_map(|index| earlier.files.get(*index as usize));
        files.all(|file| self.may_name(earlier, file)).then_some(variant)
    }

    /// Encodes a variant and stores its pieces.
    fn add_variant(
        &self,
        choice: &Choice,
        contents: &mut Contents,
        sent: &Sent,
        progress: &dyn Progress,
    ) -> Result<()> {
        let (name, recipe, first) = (choice.name(), choice.recipe(), contents.files.len() as u32);
        contents.expected += self.canonical.bytes_of(choice);
        progress.expect(contents.expected);
        let made = self.canonical.variant(choice.clone(), self.remote.id(), progress)?;
        let files = made.files().iter().map(|file| Outgoing::file(file, Origin::OfVariant(&made, file)));
        let own = self.canonical.files().iter().zip(contents.files.iter().skip(1));
        let data = own.filter(|(file, _)| file.kind == FileKind::Data);
        let data = data.filter_map(|(file, stored)| Outgoing::narrowed(file, stored, &made));
        let files: Vec<Outgoing> =
            std::iter::once(Outgoing::log(made.log())).chain(files).chain(data).collect();
        self.add(&files, contents, sent, progress)?;
        contents.add_variant(name, recipe, first);
        Ok(())
    }

    /// Stores files and adds them to the contents of the manifest.
    fn add(
        &self,
        files: &[Outgoing],
        contents: &mut Contents,
        sent: &Sent,
        progress: &dyn Progress,
    ) -> Result<()> {
        let jobs: Vec<Job> = (0..)
            .zip(files)
            .flat_map(|(place, file)| {
                file.pieces.iter().map(move |stretches| Job { file: place, source: file.source, stretches })
            })
            .collect();
        let bytes = jobs.iter().flat_map(|job| job.stretches).map(|part| part.end - part.start);
        contents.expected += bytes.sum::<u64>();
        progress.expect(contents.expected);
        let stored = self.store(&jobs, sent, progress)?;
        let mut described: Vec<ManifestFile> = files
            .iter()
            .map(|file| ManifestFile {
                kind: file.kind,
                number: file.number,
                bytes: file.bytes,
                mtime: file.mtime,
                extents: file.shared.clone(),
            })
            .collect();
        for (job, (piece, difference)) in jobs.iter().zip(stored) {
            let index = contents.index_of(piece, difference.as_deref());
            if let Some(file) = described.get_mut(job.file) {
                file.extents.extend(FileExtent::of_piece(index, job.stretches));
            }
        }
        described.iter_mut().for_each(|file| file.extents.sort_unstable_by_key(|extent| extent.offset));
        contents.files.append(&mut described);
        Ok(())
    }

    /// Stores the pieces of jobs that the remote does not have.
    fn store(&self, jobs: &[Job], sent: &Sent, progress: &dyn Progress) -> Result<Vec<Stored>> {
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let done: Mutex<Vec<Option<Stored>>> = Mutex::new(vec![None; jobs.len()]);
        let error: Mutex<Option<Error>> = Mutex::new(None);
        let work = || {
            let mut bytes = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(at) else { return };
                let stored = if progress.is_cancelled() {
                    Err(Error::new(
                        ErrorKind::Interrupted,
                        "the push was cancelled; the next push does not send the finished pieces again",
                    ))
                } else {
                    self.store_one(job, &mut bytes, sent)
                };
                match stored {
                    Ok(stored) => {
                        progress.advance(u64::from(stored.0.raw));
                        if let Some(place) = done.lock().get_mut(at) {
                            *place = Some(stored);
                        }
                    }
                    Err(wrong) => {
                        failed.store(true, Ordering::Relaxed);
                        error.lock().get_or_insert(wrong);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.parameters.jobs.clamp(1, jobs.len().max(1)) {
                scope.spawn(work);
            }
        });
        if let Some(error) = error.into_inner() {
            return Err(error);
        }
        let pieces: Vec<Stored> = done.into_inner().into_iter().flatten().collect();
        if pieces.len() != jobs.len() {
            return Err(Error::corrupt("a bug in tierfs: pieces were not stored"));
        }
        Ok(pieces)
    }

    fn store_one(&self, job: &Job, bytes: &mut Vec<u8>, sent: &Sent) -> Result<Stored> {
        if let Origin::Own(file) = job.source
            && let Some(piece) = self.canonical.piece_in_clone(file, job.stretches)
            && let Some(known) = self.known(&piece)
        {
            // A clone has not changed it, and need not have its bytes.
            return Ok(known);
        }
        match job.source {
            Origin::Log(log) => {
                bytes.clear();
                job.stretches.iter().for_each(|range| bytes.extend_from_slice(part(log, range)));
            }
            Origin::Own(file) => self.canonical.read(file, job.stretches, bytes)?,
            Origin::OfVariant(variant, file) => {
                self.canonical.read_variant(variant, file, job.stretches, bytes)?;
            }
        }
        let is_log = matches!(job.source, Origin::Log(_));
        let (piece, stored) = packed(std::mem::take(bytes), is_log);
        if let Some(known) = self.known(&piece).filter(|(_, difference)| !is_log || difference.is_none()) {
            return Ok(known);
        }
        if let Origin::Own(file) = job.source
            && let Some(previous) = &self.previous
            && let Some((difference, of)) = previous.difference(
                self.remote,
                self.canonical,
                FilePart { file, stretches: job.stretches, digest: piece.name.digest },
                &stored,
                &self.doomed,
            )?
        {
            let is_new_enough = previous.is_new_enough(&of);
            let name = PieceName { digest: *blake3::hash(&difference).as_bytes(), generation: 0 };
            let encoding = PieceEncoding::Difference;
            let piece = Piece { name, stored: difference.len() as u32, raw: piece.raw, encoding };
            let of = Some(Arc::new(of));
            if let Some((known, _)) = self.known(&piece) {
                return Ok((known, of));
            }
            if is_new_enough {
                return Ok((self.put(piece, difference, sent)?, of));
            }
        }
        if matches!(job.source, Origin::Own(_)) {
            keep(self.parameters.keyframes.cache.as_ref(), &piece, &stored);
        }
        Ok((self.put(piece, stored, sent)?, None))
    }

    /// The piece that the remote has with the bytes of this one.
    fn known(&self, piece: &Piece) -> Option<Stored> {
        let (known, difference) = self.known.get(&piece.name.digest)?;
        if known.name.digest != piece.name.digest {
            // A difference that stands for the bytes of the piece.
            let is_it = piece.encoding == PieceEncoding::Raw && known.raw == piece.raw;
            return is_it.then(|| (*known, difference.clone()));
        }
        let is_difference = piece.encoding == PieceEncoding::Difference;
        let difference = difference.clone().filter(|_| is_difference);
        (difference.is_some() == is_difference).then_some((Piece { name: known.name, ..*piece }, difference))
    }

    /// Stores a piece, unless the remote has it. Returns it with the name that it has there.
    fn put(&self, mut piece: Piece, stored: Vec<u8>, sent: &Sent) -> Result<Piece> {
        if self.doomed.contains(&piece.name) {
            piece.name.generation = self.generation;
        }
        let (len, key, client) = (stored.len(), keys::piece(&piece.name), self.remote.client());
        // A push that failed may have stored many: asking costs less than sending them again.
        if sent.were_found.load(Ordering::Relaxed) && client.exists(&key)? {
            return Ok(piece);
        }
        match client.create(&key, Bytes::from(stored))? {
            Put::Created => {
                sent.pieces.fetch_add(1, Ordering::Relaxed);
                sent.bytes.fetch_add(len, Ordering::Relaxed);
            }
            Put::Exists => sent.were_found.store(true, Ordering::Relaxed),
        }
        Ok(piece)
    }
}
