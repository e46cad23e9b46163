//! Publishes a collection as a snapshot.
//!
//! Only the last step, the creation of the manifest, changes what readers see. Before it there are pieces
//! that nobody names. A push that is repeated finds them and does not store them again.
//!
//! A snapshot with the log of this state has its payloads: objects have random numbers, and blocks have epochs
//! and checksums. So a push of a state that was pushed reads no payload.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::format::snapshot::keys::{self, PieceName};
use crate::format::snapshot::manifest::{
    Described, FileExtent, FileKind, Manifest, ManifestFile, Needed, Owner, ParentSnapshot, Piece,
    PieceEncoding, Variant,
};
use crate::format::snapshot::pieces::{Stretches, pieces};
use crate::format::zstandard;
use crate::model::{Error, ErrorKind, Progress, Result, human};
use crate::remote::client::Put;
use crate::remote::from_clone::PushedClone;
use crate::remote::garbage::{Plan, plans};
use crate::remote::place::Remote;
use crate::store::{Canonical, CanonicalFile, CanonicalVariant, Choice, Collection, Frozen, Recode};

/// Pieces that are sent at the same time, unless a request says otherwise.
pub const JOBS: usize = 8;

/// How long a push waits for a moment in which no file is being cut, and how often it looks.
const BUSY_MAX: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// A request to publish a collection.
#[derive(Clone)]
pub struct Request {
    /// The tenant in the remote.
    pub tenant: String,
    /// The collection in the remote.
    pub collection: String,
    /// The owner of the tenant.
    pub tenant_owner: Owner,
    /// A message for those who list snapshots.
    pub message: String,
    /// Pieces sent at the same time.
    pub jobs: usize,
    /// A random number that tells this push from others.
    pub push: u128,
    /// The present time, in nanoseconds since 1970.
    pub created_at: u64,
    /// Whether nobody else pushes: then the remote need not support conditional PUT.
    pub is_single_writer: bool,
    /// Other collections of the remote whose pieces are named again instead of being sent.
    pub dedup_with: Vec<(String, String)>,
    /// The variants to publish beside the collection. No two have the same name.
    pub variants: Vec<Arc<dyn Recode>>,
}

/// The outcome of a push.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pushed {
    /// The number of the snapshot.
    pub number: u64,
    /// Whether there was nothing to publish: the newest snapshot has this state.
    pub is_unchanged: bool,
    /// Pieces of the snapshot.
    pub pieces: usize,
    /// Bytes of the snapshot's pieces, as stored.
    pub bytes: u64,
    /// Pieces that were sent.
    pub pieces_sent: usize,
    /// Bytes that were sent.
    pub bytes_sent: u64,
}

impl Pushed {
    /// The outcome of a push that sent nothing.
    fn of(manifest: &Manifest) -> Pushed {
        Pushed {
            number: manifest.number,
            pieces: manifest.pieces.len(),
            bytes: manifest.pieces.iter().map(|piece| u64::from(piece.stored)).sum(),
            ..Pushed::default()
        }
    }

    /// The outcome for programs. `named` is the tenant and the name in the remote.
    pub fn to_json(&self, (tenant, name): &(String, String)) -> Value {
        json!({
            "collection": format!("{tenant}/{name}"),
            "snapshot": self.number,
            "unchanged": self.is_unchanged,
            "pieces": self.pieces,
            "bytes": self.bytes,
            "pieces_sent": self.pieces_sent,
            "bytes_sent": self.bytes_sent,
        })
    }

    /// The outcome for people.
    pub fn text(&self, (tenant, name): &(String, String)) -> String {
        let what = if self.is_unchanged { "nothing new, still" } else { "pushed" };
        format!(
            "{what} snapshot {} of {tenant}/{name}: {} in {} pieces, {} sent in {}",
            self.number,
            human(self.bytes),
            self.pieces,
            human(self.bytes_sent),
            self.pieces_sent,
        )
    }
}

/// A file to be stored.
struct Outgoing<'a> {
    kind: FileKind,
    number: u64,
    bytes: u64,
    mtime: i64,
    pieces: Vec<Stretches>,
    source: Origin<'a>,
    /// Extents that are there already.
    shared: Vec<FileExtent>,
}

/// Where the bytes of a file come from.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// A log, which is compressed.
    Log(&'a [u8]),
    /// A file of the collection.
    Own(&'a CanonicalFile),
    /// A file of a variant.
    OfVariant(&'a CanonicalVariant, &'a CanonicalFile),
}

impl<'a> Outgoing<'a> {
    fn log(log: &'a [u8]) -> Outgoing<'a> {
        let bytes = log.len() as u64;
        let whole: Stretches = std::iter::once(0..bytes).collect();
        let (pieces, source) = (pieces(&[whole]), Origin::Log(log));
        Outgoing { kind: FileKind::Log, number: 0, bytes, mtime: 0, pieces, source, shared: Vec::new() }
    }

    fn file(file: &'a CanonicalFile, source: Origin<'a>) -> Outgoing<'a> {
        let CanonicalFile { kind, number, bytes, mtime, .. } = *file;
        Outgoing { kind, number, bytes, mtime, pieces: file.pieces(), source, shared: Vec::new() }
    }

    /// A data file of a variant that has the file `stored` of the collection in other pieces.
    fn narrowed(
        file: &'a CanonicalFile,
        stored: &ManifestFile,
        variant: &CanonicalVariant,
    ) -> Option<Outgoing<'a>> {
        let narrowed = variant.narrowed(file)?;
        let shared = stored.extents_in(&narrowed.shared);
        Some(Outgoing { pieces: narrowed.own, shared, ..Outgoing::file(file, Origin::Own(file)) })
    }
}

/// A piece to be made: stretches of a file.
struct Job<'a> {
    /// The place of the file among those that are stored together.
    file: usize,
    source: Origin<'a>,
    stretches: &'a Stretches,
}

/// The files of a manifest that is being put together.
#[derive(Default)]
struct Contents {
    pieces: Vec<Piece>,
    /// By name, the places of `pieces`.
    indexes: HashMap<PieceName, u32>,
    /// The collection's own files, then those of variants.
    files: Vec<ManifestFile>,
    variants: Vec<Variant>,
    /// Bytes that the push processes, as far as that is known.
    expected: u64,
}

impl Contents {
    fn index_of(&mut self, piece: Piece) -> u32 {
        *self.indexes.entry(piece.name).or_insert_with(|| {
            self.pieces.push(piece);
            self.pieces.len() as u32 - 1
        })
    }

    /// Whether the collection's own files are those of an earlier snapshot.
    fn is_base_of(&self, earlier: &Manifest) -> bool {
        let names =
            |pieces: &[Piece]| -> Vec<[u8; 32]> { pieces.iter().map(|piece| piece.name.digest).collect() };
        let (files, pieces) = (self.files.len(), self.pieces.len());
        earlier.files.get(..files) == Some(&self.files)
            && earlier.pieces.get(..pieces).is_some_and(|pieces| names(pieces) == names(&self.pieces))
    }

    /// Adds the collection's own files of an earlier snapshot.
    fn take_base(&mut self, earlier: &Manifest) {
        earlier.files_of(None).into_iter().flatten().for_each(|(_, file)| self.take_file(earlier, file));
    }

    /// Adds a variant of an earlier snapshot.
    fn take_variant(&mut self, earlier: &Manifest, variant: &Variant) {
        let first = self.files.len() as u32;
        let files = std::iter::once(&variant.log).chain(&variant.files);
        let files = files.filter_map(|index| earlier.files.get(*index as usize));
        files.for_each(|file| self.take_file(earlier, file));
        self.add_variant(variant.name.clone(), variant.recipe, first);
    }

    fn take_file(&mut self, earlier: &Manifest, file: &ManifestFile) {
        let extents = file.extents.iter().filter_map(|extent| {
            let piece = self.index_of(*earlier.pieces.get(extent.piece as usize)?);
            Some(FileExtent { piece, ..*extent })
        });
        let extents = extents.collect();
        self.files.push(ManifestFile { extents, ..file.clone() });
    }

    /// The files from `first` on are those of a variant.
    fn add_variant(&mut self, name: String, recipe: [u8; 32], first: u32) {
        let files = (first + 1..self.files.len() as u32).collect();
        self.variants.push(Variant { name, log: first, files, recipe });
    }
}

struct Work<'a> {
    remote: &'a Remote,
    canonical: &'a Canonical,
    request: &'a Request,
    /// Pieces that may be named without looking, by digest.
    known: HashMap<[u8; 32], PieceName>,
    /// Pieces that a plan may remove: they must not be named.
    doomed: HashSet<PieceName>,
    /// The generation of pieces that must be stored again.
    generation: u32,
    /// The tensors of each variant, in the order of the request.
    choices: Vec<Choice>,
    elapsed: &'a Elapsed<'a>,
}

/// The time since a push began.
pub type Elapsed<'a> = dyn Fn() -> Duration + Sync + 'a;

/// When a push began. A machine that slept stops one of these clocks, and somebody may set the other.
#[derive(Clone, Copy)]
struct Begun {
    steady: Instant,
    wall: SystemTime,
}

impl Begun {
    fn now() -> Begun {
        Begun { steady: Instant::now(), wall: SystemTime::now() }
    }

    /// The time since then, the longer one if the clocks disagree.
    fn elapsed(&self) -> Duration {
        self.steady.elapsed().max(self.wall.elapsed().unwrap_or_default())
    }
}

/// Publishes a collection.
pub fn push(
    remote: &Remote,
    collection: &Arc<Collection>,
    request: &Request,
    progress: &dyn Progress,
) -> Result<Pushed> {
    let begun = Begun::now();
    push_within(remote, collection, request, progress, &|| begun.elapsed())
}

/// The same, with a clock of the caller.
pub fn push_within(
    remote: &Remote,
    collection: &Arc<Collection>,
    request: &Request,
    progress: &dyn Progress,
    elapsed: &Elapsed,
) -> Result<Pushed> {
    let (newest, hint) = remote.newest_manifest(&request.tenant, &request.collection)?;
    let frozen = frozen(collection)?;
    let canonical = frozen.canonical(remote.id())?;
    let named = (request.tenant.as_str(), request.collection.as_str());
    let mut clone = PushedClone::of(remote, &canonical, named, newest.as_ref())?;
    let needs = needed(remote, request, &canonical)?;
    let choices: Vec<Choice> = request.variants.iter().map(|recode| canonical.choose(recode)).collect();
    let described = described(request, &canonical);
    // The newest snapshot, if it has this state.
    let base = newest.as_ref().filter(|found| has_log(&found.manifest, canonical.log()));
    let ended = |manifest: &Manifest, clone: Option<PushedClone>| {
        // The hint may be missing since a push was killed.
        if hint != Some(manifest.number) {
            set_head(remote, request, manifest.number);
        }
        if let Some(clone) = clone {
            clone.end(&canonical, manifest);
        }
    };
    if let Some(found) = base.filter(|found| is_published(&found.manifest, &described, &needs, &choices)) {
        ended(&found.manifest, clone);
        return Ok(Pushed { is_unchanged: true, ..Pushed::of(&found.manifest) });
    }
    if !request.is_single_writer {
        remote.check_conditions()?;
    }
    let plans = plans(remote)?;
    let doomed: HashSet<PieceName> = plans.iter().flat_map(Plan::candidates).collect();
    let generation = plans.iter().map(Plan::generation).max().unwrap_or(0).saturating_add(1);
    let mut known = HashMap::new();
    for other in &request.dedup_with {
        if let (Some(found), _) = remote.newest_manifest(&other.0, &other.1)? {
            note_pieces(&mut known, &found.manifest, &doomed);
        }
    }
    if let Some(found) = &newest {
        note_pieces(&mut known, &found.manifest, &doomed);
    }
    if let Some(found) = clone.as_ref().and_then(|clone| clone.base.as_ref()) {
        note_pieces(&mut known, &found.manifest, &doomed);
    }
    let work = Work { remote, canonical: &canonical, request, known, doomed, generation, choices, elapsed };
    let base = base.map(|found| &*found.manifest);
    let (files, sent) = work.files(newest.as_ref().map(|found| &*found.manifest), base, progress)?;
    let parent = newest.map(|found| ParentSnapshot { number: found.manifest.number, digest: found.digest });
    let manifest = work.manifest(parent, described, needs, files);
    if let Some(clone) = &mut clone {
        clone.begin(&canonical, request.push)?;
    }
    work.publish(&manifest)?;
    ended(&manifest, clone);
    let (pieces_sent, bytes_sent) = (sent.pieces.into_inner(), sent.bytes.into_inner() as u64);
    Ok(Pushed { pieces_sent, bytes_sent, ..Pushed::of(&manifest) })
}

/// Freezes a collection. While a file is being cut, that takes a moment.
fn frozen(collection: &Arc<Collection>) -> Result<Frozen> {
    let begun = Instant::now();
    loop {
        match Frozen::of(collection) {
            Err(error) if error.kind() == ErrorKind::Busy && begun.elapsed() < BUSY_MAX => {
                std::thread::sleep(BUSY_PAUSE);
            }
            frozen => return frozen,
        }
    }
}

fn note_pieces(known: &mut HashMap<[u8; 32], PieceName>, manifest: &Manifest, doomed: &HashSet<PieceName>) {
    let names = manifest.pieces.iter().map(|piece| piece.name).filter(|name| !doomed.contains(name));
    known.extend(names.map(|name| (name.digest, name)));
}

/// The snapshots of parents that blocks of the collection depend on.
fn needed(remote: &Remote, request: &Request, canonical: &Canonical) -> Result<Vec<Needed>> {
    let mut needs = Vec::new();
    for (tenant, collection) in canonical.needs() {
        let Some(number) = remote.newest(tenant, collection)? else {
            let text = format!(
                "{}/{} has blocks that are differences from {tenant}/{collection}, which {} does not have; push that first",
                request.tenant,
                request.collection,
                remote.place()
            );
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        needs.push(Needed { tenant: tenant.clone(), collection: collection.clone(), number });
    }
    Ok(needs)
}

/// The description of the collection in a manifest.
fn described(request: &Request, canonical: &Canonical) -> Described {
    Described {
        tenant: request.tenant.clone(),
        name: request.collection.clone(),
        tenant_owner: request.tenant_owner,
        owner: canonical.owner(),
        created_at: canonical.created_at(),
    }
}

/// Whether a snapshot has the state of this canonical log.
fn has_log(manifest: &Manifest, log: &[u8]) -> bool {
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

/// Whether a snapshot with the same state has the same description, and the same variants.
fn is_published(manifest: &Manifest, described: &Described, needs: &[Needed], choices: &[Choice]) -> bool {
    let place = |need: &Needed| (need.tenant.clone(), need.collection.clone());
    let recipe = |variant: &Variant| (variant.name.clone(), variant.recipe);
    manifest.collection == *described
        && manifest.needs.iter().map(place).eq(needs.iter().map(place))
        && manifest.variants.iter().map(recipe).eq(choices.iter().map(|it| (it.name(), it.recipe())))
}

/// Notes the newest number. Readers find the snapshot without.
fn set_head(remote: &Remote, request: &Request, number: u64) {
    let key = keys::head(&request.tenant, &request.collection);
    if let Err(error) = remote.client().put(&key, Bytes::from(format!("{number:016x}"))) {
        log::warn!("the hint of the newest snapshot was not written: {error}");
    }
}

/// Pieces and bytes that were sent.
#[derive(Default)]
struct Sent {
    pieces: AtomicUsize,
    bytes: AtomicUsize,
    /// Whether the remote had a piece that no known snapshot names.
    were_found: AtomicBool,
}

impl Work<'_> {
    /// Stores the pieces that the remote lacks. `base` is the newest snapshot, if it has this state.
    fn files(
        &self,
        newest: Option<&Manifest>,
        base: Option<&Manifest>,
        progress: &dyn Progress,
    ) -> Result<(Contents, Sent)> {
        let (mut contents, sent) = (Contents::default(), Sent::default());
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

    /// The manifest of a snapshot with these files.
    fn manifest(
        &self,
        parent: Option<ParentSnapshot>,
        collection: Described,
        needs: Vec<Needed>,
        contents: Contents,
    ) -> Manifest {
        let Contents { pieces, files, variants, .. } = contents;
        Manifest {
            remote: self.remote.id(),
            number: parent.map_or(1, |parent| parent.number.saturating_add(1)),
            parent,
            push: self.request.push,
            created_at: self.request.created_at,
            collection,
            message: self.request.message.clone(),
            tool: concat!("tierfs ", env!("CARGO_PKG_VERSION")).to_owned(),
            needs,
            pieces,
            files,
            variants,
        }
    }

    /// Whether no plan may remove a piece of a file of an earlier snapshot.
    fn may_name(&self, earlier: &Manifest, file: &ManifestFile) -> bool {
        file.extents.iter().all(|extent| {
            let piece = earlier.pieces.get(extent.piece as usize);
            piece.is_some_and(|piece| !self.doomed.contains(&piece.name))
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
        for (job, piece) in jobs.iter().zip(stored) {
            let index = contents.index_of(piece);
            if let Some(file) = described.get_mut(job.file) {
                file.extents.extend(FileExtent::of_piece(index, job.stretches));
            }
        }
        described.iter_mut().for_each(|file| file.extents.sort_unstable_by_key(|extent| extent.offset));
        contents.files.append(&mut described);
        Ok(())
    }

    /// Stores the pieces of jobs that the remote does not have.
    fn store(&self, jobs: &[Job], sent: &Sent, progress: &dyn Progress) -> Result<Vec<Piece>> {
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let done: Mutex<Vec<Option<Piece>>> = Mutex::new(vec![None; jobs.len()]);
        let error: Mutex<Option<Error>> = Mutex::new(None);
        let work = || {
            let mut bytes = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(at) else { return };
                let stored = if progress.is_cancelled() {
                    Err(Error::new(
                        ErrorKind::Interrupted,
                        "the push was cancelled; what was sent is found again",
                    ))
                } else {
                    self.store_one(job, &mut bytes, sent)
                };
                match stored {
                    Ok(piece) => {
                        progress.advance(u64::from(piece.raw));
                        if let Some(place) = done.lock().get_mut(at) {
                            *place = Some(piece);
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
            for _ in 0..self.request.jobs.clamp(1, jobs.len().max(1)) {
                scope.spawn(work);
            }
        });
        if let Some(error) = error.into_inner() {
            return Err(error);
        }
        let pieces: Vec<Piece> = done.into_inner().into_iter().flatten().collect();
        if pieces.len() != jobs.len() {
            return Err(Error::corrupt("a bug in tierfs: pieces were not stored"));
        }
        Ok(pieces)
    }

    fn store_one(&self, job: &Job, bytes: &mut Vec<u8>, sent: &Sent) -> Result<Piece> {
        if let Origin::Own(file) = job.source
            && let Some(piece) = self.canonical.piece_in_clone(file, job.stretches)
            && let Some(name) = self.known.get(&piece.name.digest)
        {
            // A clone has not changed it, and need not have its bytes.
            return Ok(Piece { name: *name, ..piece });
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
        let (mut piece, stored) = packed(std::mem::take(bytes), matches!(job.source, Origin::Log(_)));
        if let Some(name) = self.known.get(&piece.name.digest) {
            piece.name = *name;
            return Ok(piece);
        }
        if self.doomed.contains(&piece.name) {
            piece.name.generation = self.generation;
        }
        let (len, key, client) = (stored.len(), keys::piece(&piece.name), self.remote.client());
        // A push that failed may have stored many: asking costs less than sending them again.
        if sent.were_found.load(Ordering::Relaxed) && client.get_range(&key, 0..1)?.is_some() {
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

    /// Creates the manifest: the snapshot exists from then on.
    fn publish(&self, manifest: &Manifest) -> Result<()> {
        let grace = self.remote.grace();
        if (self.elapsed)() >= grace / 2 {
            let hours = grace.as_secs() / 7200;
            let text = format!(
                "the push took more than {hours} hours, and its pieces may be collected; push again: what was sent is found again"
            );
            return Err(Error::new(ErrorKind::Gone, text));
        }
        let (tenant, collection) = (&self.request.tenant, &self.request.collection);
        let key = keys::snapshot(tenant, collection, manifest.number);
        if self.remote.client().create(&key, Bytes::from(manifest.to_bytes()?))? == Put::Created {
            return Ok(());
        }
        // A first try may have created it although its answer was lost.
        match self.remote.manifest(tenant, collection, manifest.number)? {
            Some(found) if found.manifest.push == self.request.push => Ok(()),
            _ => {
                let text = format!(
                    "{}: somebody else has pushed snapshot {} of {tenant}/{collection} meanwhile; look at it, then push again or under another name",
                    self.remote.place(),
                    manifest.number
                );
                Err(Error::new(ErrorKind::Exists, text))
            }
        }
    }
}

/// A piece that stands for these bytes, and its stored bytes.
fn packed(raw: Vec<u8>, is_log: bool) -> (Piece, Vec<u8>) {
    let len = raw.len();
    let frame = is_log.then(|| zstandard::encode(&raw)).filter(|frame| frame.len() < len);
    let encoding = if frame.is_some() { PieceEncoding::Zstandard } else { PieceEncoding::Raw };
    let stored = frame.unwrap_or(raw);
    let name = PieceName { digest: *blake3::hash(&stored).as_bytes(), generation: 0 };
    (Piece { name, stored: stored.len() as u32, raw: len as u32, encoding }, stored)
}

fn part<'a>(bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    bytes.get(range.start as usize..range.end as usize).unwrap_or_default()
}
