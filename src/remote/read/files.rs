//! The files of a snapshot, read through the cache or through memory.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::future::join_all;

use crate::format::snapshot::manifest::{FileKind, Manifest, Piece};
use crate::format::snapshot::piece_map::PieceState;
use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::Client;
use crate::remote::client::failure::Failure;
use crate::remote::client::runtime;
use crate::remote::client::window::Class;
use crate::remote::place::remote::Remote;
use crate::remote::place::signatures::Trust;
use crate::remote::read::cache::Cache;
use crate::remote::read::cache::blob::{Blob, DiskNews, Fetching};
use crate::remote::read::cache::object_cache::Kind;
use crate::remote::read::cache::turns::Turn;
use crate::remote::read::counts::Counts;
use crate::remote::read::failure_reports::{FailureReports, Tell};
use crate::remote::read::mirrors::Mirrors;
use crate::remote::read::parts::{PartBuffer, PartOf, Parts};
use crate::remote::read::piece_buffer::{Awaited, PieceBuffer};
use crate::remote::read::pieces::{Bases, failed, fetched, spawn_ahead, stored, to_io, unpacked};
use crate::remote::read::references::{Elsewhere, Referred};
use crate::remote::read::whole_digest::WholeDigest;
use crate::store::pieces::file::{Got, PieceFile};
use crate::store::pieces::layout::Layout;
use crate::store::pieces::read_ahead::ReadAhead;
use crate::store::{SnapshotFiles, Traffic};

/// The first number of pieces fetched ahead of a reader.
const AHEAD_FIRST: u32 = 2;
/// The most pieces fetched ahead of a reader.
const AHEAD_MAX: u32 = 32;
/// The same where no cache keeps them: memory has them until they are read.
const AHEAD_UNKEPT_MAX: usize = 4;
/// A reader that skips at most this many pieces, or comes back by one, reads in order: several threads
/// answer its requests.
const SKIPPED_MAX: u32 = 2;
/// The first read of a file asks for this much alone, before its whole piece.
const FIRST_BYTES: u64 = 1 << 20;
/// Pieces of a log that are fetched at a time.
const LOG_PIECES: usize = 8;

/// The remote and the cache, which the files of all snapshots of a mount share.
pub struct Source {
    remote: Remote,
    mirrors: Mirrors,
    cache: Option<Cache>,
    reads_ahead: bool,
    piece_buffer: PieceBuffer,
    part_buffer: PartBuffer,
    told: FailureReports,
    /// Keys that must have signed a snapshot.
    trust: Option<Trust>,
    /// Whether the mount began without the remote, which has not answered since.
    away: AtomicBool,
    elsewhere: Elsewhere,
    counts: Counts,
}

impl Source {
    /// The files of a remote. Without a cache, nothing is fetched ahead.
    pub fn new(remote: Remote, cache: Option<Cache>, tell: Tell) -> Source {
        let (reads_ahead, mirrors) = (cache.is_some(), Mirrors::of(remote.client()));
        if let Some(cache) = &cache {
            // A source says nothing of itself, and is shown only while it can be listed.
            if !remote.said().is_empty() {
                cache.know(remote.place(), &remote.said());
            }
        }
        Source {
            remote,
            mirrors,
            cache,
            reads_ahead,
            piece_buffer: PieceBuffer::default(),
            part_buffer: PartBuffer::default(),
            told: FailureReports::new(tell),
            trust: None,
            away: AtomicBool::new(false),
            elsewhere: Elsewhere::default(),
            counts: Counts::default(),
        }
    }

    /// The same, but pieces are fetched ahead of readers into memory too.
    pub fn reading_ahead(self) -> Source {
        Source { reads_ahead: true, ..self }
    }

    /// The same, but pieces are fetched when they are read, and not before.
    pub fn on_demand(self) -> Source {
        Source { reads_ahead: false, ..self }
    }

    /// The same, but these mirrors are asked for pieces first.
    pub fn with_mirrors(self, mirrors: Vec<Client>) -> Source {
        Source { mirrors: self.mirrors.with_mirrors(mirrors), ..self }
    }

    /// The same, but only snapshots that one of these keys has signed are read.
    pub fn trusting(self, trust: Option<Trust>) -> Source {
        Source { trust, ..self }
    }

    /// The same of a remote that is away: until it answers, snapshots are those that were shown before.
    pub fn while_away(self) -> Source {
        Source { away: AtomicBool::new(true), ..self }
    }

    pub(in crate::remote) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    /// The same, which calls this once an object that a snapshot refers to turns out to be replaced or removed.
    pub fn calling(self, replaced: impl Fn() + Send + Sync + 'static) -> Source {
        Source { elsewhere: self.elsewhere.calling(replaced), ..self }
    }

    /// The keys that must have signed a snapshot.
    pub(in crate::remote) fn trust(&self) -> Option<&Trust> {
        self.trust.as_ref()
    }

    /// The remote.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// The cache, if there is one.
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// Tells users, but not the same again and again.
    pub fn tell(&self, path: &str, text: &str) {
        self.told.text(path, text);
    }

    /// Counts of the traffic with the remote and its mirrors.
    pub fn traffic(&self) -> Traffic {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let collections = self.counts.shown();
        let mut traffic = Traffic {
            cached_bytes: self.cache.as_ref().map_or(0, Cache::stored),
            cache_hits: collections.iter().map(|of| of.cache_hits).sum(),
            cache_misses: collections.iter().map(|of| of.cache_misses).sum(),
            collections,
            ..Traffic::default()
        };
        for client in self.mirrors.clients().chain(&self.elsewhere.clients()) {
            let (counts, (in_flight, bytes)) = (client.counts(), client.window().in_flight());
            traffic.in_flight += in_flight as u64;
            traffic.in_flight_bytes += bytes;
            traffic.received_bytes += count(&counts.received);
            traffic.bytes_per_second += counts.rate.now();
            traffic.requests += count(&counts.requests);
            traffic.retries += count(&counts.retries);
            traffic.hedges += count(&counts.hedges);
            traffic.failures += count(&counts.failures);
        }
        traffic
    }

    /// Drops bytes that are kept in memory for readers.
    pub(in crate::remote) fn drop_buffers(&self) {
        self.piece_buffer.clear();
        self.part_buffer.clear();
    }

    /// The remote has answered a request.
    pub(in crate::remote) fn answered(&self) {
        self.away.store(false, Ordering::Relaxed);
        self.told.answered(self.remote.place());
    }

    /// A snapshot is the one that is shown of its collection.
    pub(in crate::remote) fn shows(&self, manifest: &Manifest) {
        self.counts.show(manifest);
    }

    /// The disk of the cache did not take bytes.
    pub(in crate::remote) fn disk_failed(&self, error: &io::Error) {
        if let Some(cache) = &self.cache {
            cache.distrust();
            let text = format!(
                "the disk of the cache {} fails ({error}); for a while, bytes are read and not kept",
                cache.directory().display()
            );
            self.tell("", &text);
        }
    }
}

impl Source {
    /// Notes how the disk of the cache takes a piece. Returns whether it gets more of it.
    fn disk_told(&self, news: &DiskNews<'_>) -> bool {
        match news {
            DiskNews::Failed(error) => self.disk_failed(error),
            DiskNews::Left(name, bytes) => self.piece_buffer.keep(*name, bytes),
            DiskNews::Wrote(written) => {
                if let Some(text) = self.cache.as_ref().and_then(|cache| cache.wrote(*written)) {
                    self.tell("", &text);
                }
            }
        }
        self.cache.as_ref().is_some_and(|cache| !cache.is_bypassed())
    }
}

/// The pieces that this mount has in memory and in its cache.
impl Bases for Source {
    fn get(&self, piece: &Piece) -> Option<Arc<Vec<u8>>> {
        let kept = || self.cache.as_ref().and_then(|cache| cache.base(piece)).map(Arc::new);
        self.piece_buffer.get(&piece.name).or_else(kept)
    }

    fn copy(&self, piece: &Piece) -> Option<Vec<u8>> {
        self.cache.as_ref().and_then(|cache| cache.copy_of(piece))
    }

    fn keep(&self, piece: &Piece, stored: &[u8], bytes: &Arc<Vec<u8>>) {
        let kept = self.cache.as_ref().map(|cache| cache.keep(Kind::Base, &piece.name.digest, stored));
        match kept {
            None => self.piece_buffer.keep(piece.name, bytes),
            Some(Ok(())) => {}
            Some(Err(error)) => self.disk_failed(&error),
        }
    }
}

impl FileLayout {
    /// The claims of pieces that no cache keeps.
    fn uncached(&self) -> &Arc<PieceFile<Failure>> {
        self.uncached.get_or_init(|| {
            let states = vec![PieceState::Remote; self.layout.piece_count() as usize];
            Arc::new(PieceFile::new(self.layout.clone(), states, None, None, None))
        })
    }
}

/// The files of a snapshot.
pub struct Files {
    source: Arc<Source>,
    manifest: Arc<Manifest>,
    /// Where its pieces are.
    mirrors: Mirrors,
    /// Its log, where no piece has that.
    log: Option<Vec<u8>>,
    /// Whether bytes are read only of pieces that were compared with their names.
    in_whole_pieces: bool,
    /// By their index in the manifest, once they were used.
    layouts: Vec<OnceLock<FileLayout>>,
}

/// A file that was used.
struct FileLayout {
    layout: Arc<Layout>,
    /// Logs are read whole, and kept as they are stored.
    is_log: bool,
    /// The digest of the whole file, if a source says it.
    whole: Option<Arc<WholeDigest>>,
    ahead: ReadAhead,
    parts: Parts,
    /// Those who fetch its pieces where no cache keeps them.
    uncached: OnceLock<Arc<PieceFile<Failure>>>,
}

impl Files {
    /// The files of a snapshot. `Forbidden` if pieces lie where this remote must not lead.
    pub fn new(source: &Arc<Source>, manifest: &Arc<Manifest>) -> Result<Files> {
        let layouts = manifest.files.iter().map(|_| OnceLock::new()).collect();
        let in_whole_pieces = source.trust.is_some();
        let referred = source.elsewhere.referred(manifest, &source.remote, in_whole_pieces)?;
        let mirrors = source.mirrors.of_snapshot(referred, source.counts.of(manifest));
        Ok(Files {
            source: source.clone(),
            manifest: manifest.clone(),
            mirrors,
            log: None,
            in_whole_pieces,
            layouts,
        })
    }

    /// The same of a snapshot that the user has named by its digest: all bytes are those that the digest says.
    pub(in crate::remote) fn in_whole_pieces(self) -> Files {
        Files { in_whole_pieces: true, ..self }
    }

    /// The same, with a log that no piece has.
    pub(in crate::remote) fn with_log(self, log: Vec<u8>) -> Files {
        Files { log: Some(log), ..self }
    }

    fn file(&self, file: usize) -> io::Result<&FileLayout> {
        let (slot, described) =
            self.layouts.get(file).zip(self.manifest.files.get(file)).ok_or(io::ErrorKind::NotFound)?;
        Ok(slot.get_or_init(|| {
            let layout = Arc::new(Layout::of(&self.manifest, described));
            let parts = if self.is_unread() { Parts::unread } else { Parts::new };
            FileLayout {
                is_log: described.kind == FileKind::Log,
                whole: WholeDigest::of(&self.manifest, described),
                ahead: ReadAhead::new(AHEAD_FIRST, AHEAD_MAX, SKIPPED_MAX),
                parts: parts(layout.piece_count()),
                uncached: OnceLock::new(),
                layout,
            }
        }))
    }

    /// The cached file; `None` of a log, and where there is no cache, or its disk fails.
    fn cached(&self, file: &FileLayout) -> Option<Arc<Blob>> {
        let cache = self.source.cache.as_ref().filter(|_| !file.is_log)?;
        cache.file(&file.layout).map_err(|error| self.source.disk_failed(&error)).ok()
    }

    /// Compares a file with the digest of the whole once all of its pieces are in the cache, on a thread of its own. Fails if it
    /// was compared and differs.
    fn compare_whole(&self, file: &FileLayout, blob: &Arc<Blob>) -> io::Result<()> {
        let Some(whole) = &file.whole else { return Ok(()) };
        whole.check()?;
        if !whole.is_due(blob) {
            return Ok(());
        }
        let (whole, blob, source, path) = (whole.clone(), blob.clone(), self.source.clone(), self.path());
        let object = self.manifest.references.as_ref().map_or_else(String::new, |all| all.source.clone());
        std::thread::spawn(move || match whole.compare(&blob) {
            Ok(true) => {}
            Ok(false) => {
                let text = format!(
                    "a file of {object} does not have the SHA-256 that the source says; it is not read"
                );
                source.tell(&path, &text);
            }
            Err(error) => log::warn!("{path}: a whole file could not be compared: {error}"),
        });
        Ok(())
    }

    /// Reads past the cached file.
    fn read_in_memory_only(&self, file: &FileLayout, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let layout = &file.layout;
        let places = layout.pieces_in(offset, buffer.len() as u64);
        let end = offset.saturating_add(buffer.len() as u64);
        if let [place] = places.as_slice()
            && !file.is_log
            && let Some(bytes) = self.bytes_alone(file, None, *place, offset..end)?
            && bytes.len() == buffer.len()
        {
            buffer.copy_from_slice(&bytes);
            return Ok(());
        }
        buffer.fill(0);
        file.parts.note_read(&(offset..end));
        for place in places {
            let bytes = if file.is_log { self.of_log(layout, place)? } else { self.in_memory(file, place)? };
            layout.copy(place, &bytes, buffer, offset);
        }
        Ok(())
    }

    /// A piece of a log. Others that will be wanted are fetched with it.
    fn of_log(&self, layout: &Layout, place: u32) -> io::Result<Arc<Vec<u8>>> {
        let (source, wanted) = (&self.source, layout.piece(place).ok_or(io::ErrorKind::NotFound)?);
        if let Some(bytes) = source.piece_buffer.get(&wanted.name) {
            return Ok(bytes);
        }
        let len = u64::from(wanted.stored);
        let kept = source.cache.as_ref().and_then(|cache| cache.kept(Kind::Log, &wanted.name.digest, len));
        if let Some(stored) = kept {
            let raw = unpacked(wanted, stored).map_err(|failure| self.failed(wanted, &failure))?;
            let bytes = Arc::new(raw);
            source.piece_buffer.keep(wanted.name, &bytes);
            return Ok(bytes);
        }
        source.piece_buffer.failed(&wanted.name)?;
        let is_here = |piece: &Piece| {
            source.piece_buffer.has(&piece.name)
                || source.cache.as_ref().is_some_and(|cache| cache.keeps(Kind::Log, &piece.name.digest))
        };
        // A log is read in order.
        let others = (place + 1..layout.piece_count()).chain(0..place);
        let others = others.filter_map(|other| layout.piece(other)).filter(|piece| !is_here(piece));
        let asked: Vec<&Piece> = std::iter::once(wanted).chain(others.take(LOG_PIECES - 1)).collect();
        let fetching = asked.iter().map(|piece| self.log_piece(piece));
        let found = runtime::wait(join_all(fetching)).map_err(to_io)?;
        let mut answer = Err(io::ErrorKind::NotFound.into());
        for (place, (piece, bytes)) in asked.into_iter().zip(found).enumerate() {
            if let Ok(bytes) = &bytes {
                source.piece_buffer.keep(piece.name, bytes);
            }
            // A reader of another of them tries again and gets its error.
            if place == 0 {
                answer = bytes.map_err(|failure| self.failed(piece, &failure));
            }
        }
        answer
    }

    /// The bytes of a piece of a log, which the cache keeps as they are stored.
    async fn log_piece(&self, piece: &Piece) -> Result<Arc<Vec<u8>>, Failure> {
        let Some(cache) = &self.source.cache else {
            return unpacked(piece, stored(&self.mirrors, piece, Class::Demand).await?).map(Arc::new);
        };
        // Another process may fetch it. The turn ends once the cache has it.
        let (kind, digest, len) = (Kind::Log, &piece.name.digest, u64::from(piece.stored));
        let _turn = cache.turn(kind, digest).await;
        let bytes = match cache.kept(kind, digest, len) {
            Some(bytes) => bytes,
            None => {
                let bytes = stored(&self.mirrors, piece, Class::Demand).await?;
                if let Err(error) = cache.keep(kind, digest, &bytes) {
                    self.source.disk_failed(&error);
                }
                bytes
            }
        };
        unpacked(piece, bytes).map(Arc::new)
    }

    /// Whether its pieces are compared with nothing but the digests of their arrival.
    fn is_unread(&self) -> bool {
        self.manifest.references.as_ref().is_some_and(|references| !references.are_read)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.manifest.collection.tenant, self.manifest.collection.name)
    }

    /// A piece where there is no cache, and pieces ahead of the reader. Those who want the same one make one request.
    fn in_memory(&self, file: &FileLayout, place: u32) -> io::Result<Arc<Vec<u8>>> {
        file.parts.note_whole(place);
        let (pieces, buffer) = (file.uncached(), &self.source.piece_buffer);
        let piece = file.layout.piece(place).ok_or(io::ErrorKind::NotFound)?;
        if self.source.reads_ahead {
            let count = file.layout.piece_count();
            let ahead = file.ahead.after(place).take(AHEAD_UNKEPT_MAX);
            ahead.take_while(|next| *next < count).for_each(|next| self.fetch_uncached(pieces, next));
        }
        loop {
            if let Some(bytes) = buffer.get(&piece.name) {
                return Ok(bytes);
            }
            buffer.failed(&piece.name)?;
            if let Some(claim) = pieces.begin(place) {
                let fetched = fetched(&self.mirrors, &*self.source, piece, Class::Demand);
                let bytes = runtime::wait(fetched).map_err(to_io)?.map(Arc::new);
                if let Ok(bytes) = &bytes {
                    self.answered(piece);
                    buffer.keep(piece.name, bytes);
                }
                let got = claim.end(bytes.map(Got::Unkept).map_err(Arc::new));
                if let Got::Unkept(bytes) = got.map_err(|failure| self.failed(piece, &failure))? {
                    return Ok(bytes);
                }
            } else if let Some(got) = pieces.wait(place)
                && let Got::Unkept(bytes) = got.map_err(|failure| self.failed(piece, &failure))?
            {
                return Ok(bytes);
            }
        }
    }

    /// Fetches a piece that no cache keeps before it is wanted.
    fn fetch_uncached(&self, pieces: &Arc<PieceFile<Failure>>, place: u32) {
        let Some(piece) = pieces.layout().piece(place).copied() else { return };
        if self.source.piece_buffer.has(&piece.name) {
            return;
        }
        let Some(claim) = pieces.begin(place).filter(|_| self.source.piece_buffer.expect(piece.raw)) else {
            return;
        };
        let (source, mirrors) = (self.source.clone(), self.mirrors.clone());
        spawn_ahead(async move {
            let bytes = fetched(&mirrors, &*source, &piece, Class::Ahead).await.map(Arc::new);
            if let Ok(bytes) = &bytes {
                source.piece_buffer.keep_ahead(piece.name, bytes);
            }
            source.piece_buffer.came(piece.raw);
            // A reader that wants the piece tries again and gets the error.
            drop(claim.end(bytes.map(Got::Unkept).map_err(Arc::new)));
        });
    }

    /// Makes sure that a piece is there.
    fn get(&self, blob: &Arc<Blob>, place: u32) -> io::Result<Got> {
        let piece = blob.layout().piece(place).ok_or(io::ErrorKind::NotFound)?;
        loop {
            if blob.has(place) {
                let compared = if self.mirrors.is_unread(piece) { blob.compared(place) } else { Ok(true) };
                match compared {
                    Ok(true) => return Ok(Got::Here),
                    Ok(false) => {}
                    Err(error) => self.source.disk_failed(&error),
                }
                continue;
            }
            if let Some(bytes) = self.source.piece_buffer.get(&piece.name) {
                return Ok(Got::Unkept(bytes));
            }
            self.source.piece_buffer.failed(&piece.name)?;
            if let Some(mut fetching) = blob.begin(place) {
                self.make_room(&mut fetching);
                let told = |news: DiskNews<'_>| self.source.disk_told(&news);
                let fetching = fetching.run(&self.mirrors, &*self.source, Class::Demand, &told);
                let got = runtime::wait(fetching).map_err(to_io)?;
                let got = got.map_err(|failure| self.failed(piece, &failure))?;
                self.answered(piece);
                return Ok(got);
            }
            if let Some(got) = blob.pieces().wait(place) {
                return got.map_err(|failure| self.failed(piece, &failure));
            }
        }
    }

    /// Makes room in the cache. Returns whether there is room.
    fn make_room(&self, fetching: &mut Fetching) -> bool {
        let Some(cache) = &self.source.cache else { return false };
        let has_room = cache.make_room(fetching.blob(), fetching.bytes());
        if has_room {
            fetching.has_room();
        } else if !cache.is_bypassed() {
            let directory = cache.directory().display();
            let text = format!("the cache {directory} is full; further bytes are read and not kept");
            self.source.tell("", &text);
        }
        has_room
    }

    /// The error of a read. A piece that is gone means that the snapshot was collected, or that the remote
    /// has lost data.
    fn failed(&self, piece: &Piece, failure: &Failure) -> io::Error {
        let (path, number) = (self.path(), self.manifest.number);
        let referred = self.mirrors.referred(piece);
        let client = referred.map_or(self.source.remote.client(), Referred::client);
        let error = match failure {
            failure if let Some(referred) = referred => {
                self.source.elsewhere.failed(referred, piece, failure)
            }
            Failure::NotFound => {
                let collection = &self.manifest.collection;
                match self.source.remote.has(&collection.tenant, &collection.name, number) {
                    Ok(false) => {
                        let text = format!("snapshot {number} was collected as garbage; mount again");
                        Error::new(ErrorKind::Gone, text)
                    }
                    Ok(true) => {
                        let text =
                            format!("{} has lost {:?} of snapshot {number}", client.place(), piece.name);
                        Error::new(ErrorKind::Io, text)
                    }
                    Err(error) => error,
                }
            }
            // Stored anew, it would be read from the remote again, which has the same bytes.
            Failure::WrongBytes | Failure::WrongLength(_) => {
                Error::new(ErrorKind::Io, failed(client, piece, failure).to_string())
            }
            failure => failed(client, piece, failure),
        };
        self.source.told.failure(client.place(), &path, failure, &error.to_string());
        let error = to_io(error.at(path));
        if failure.is_transient() || matches!(failure, Failure::WrongBytes | Failure::WrongLength(_)) {
            self.source.piece_buffer.fail(piece.name, &error);
        }
        error
    }

    /// The remote has answered a request for a piece, or the source where it lies.
    fn answered(&self, piece: &Piece) {
        match self.mirrors.referred(piece) {
            Some(referred) => self.source.told.answered(referred.client().place()),
            None => self.source.answered(),
        }
    }

    /// Fetches the pieces behind the one that is read, if the reader goes through the file in order.
    fn read_ahead(&self, file: &FileLayout, blob: &Arc<Blob>, place: u32) {
        if !self.source.reads_ahead {
            return;
        }
        let is_kept = self.source.cache.as_ref().is_some_and(Cache::has_room);
        let count = blob.layout().piece_count();
        let most = if is_kept { usize::MAX } else { AHEAD_UNKEPT_MAX };
        for next in file.ahead.after(place).take(most).take_while(|next| *next < count) {
            self.fetch_in_background(blob, next, None);
        }
    }

    /// Fetches a piece before it is wanted, perhaps by the turn that the caller has.
    fn fetch_in_background(&self, blob: &Arc<Blob>, place: u32, turn: Option<Turn>) {
        let Some(piece) = blob.layout().piece(place).copied() else { return };
        if self.source.piece_buffer.has(&piece.name) {
            return;
        }
        let Some(mut fetching) = blob.begin(place).map(|fetching| fetching.with_turn(turn)) else { return };
        // Without room, memory has it until it is read.
        let is_kept = self.make_room(&mut fetching);
        let awaited = Awaited::new(piece.raw);
        if !is_kept && !awaited.has_place(&self.source.piece_buffer) {
            return;
        }
        let (source, mirrors) = (self.source.clone(), self.mirrors.clone());
        spawn_ahead(async move {
            let told = |news: DiskNews<'_>| match news {
                DiskNews::Left(name, bytes) => {
                    source.piece_buffer.keep_ahead(name, bytes);
                    false
                }
                // Without a place in memory it goes on to a slow disk.
                news => source.disk_told(&news) || !awaited.has_place(&source.piece_buffer),
            };
            // A reader that wants the piece tries again and gets the error.
            drop(fetching.run(&mirrors, &*source, Class::Ahead, &told).await);
            awaited.came(&source.piece_buffer);
        });
    }

    /// The bytes of a short read that a request for them alone gives: the first ones of a file that nobody has read yet,
    /// or some here and there. They are not compared with the piece's name; their blocks have checksums.
    fn bytes_alone(
        &self,
        file: &FileLayout,
        blob: Option<&Arc<Blob>>,
        place: u32,
        range: Range<u64>,
    ) -> io::Result<Option<Vec<u8>>> {
        let pieces = blob.map_or_else(|| file.uncached(), |blob| blob.pieces());
        let len = range.end.saturating_sub(range.start);
        let Some((piece, inside)) = file.layout.verbatim(range.start, len) else { return Ok(None) };
        // A checksum of a block is no proof of who wrote it. A piece that is on its way is soon here.
        if self.in_whole_pieces
            || !self.source.reads_ahead
            || u64::from(piece.stored) <= 2 * FIRST_BYTES
            || len > FIRST_BYTES
            || !pieces.is_wanted(place)
            || blob.is_some_and(|blob| blob.has(place) || blob.is_coming(place))
            || self.source.piece_buffer.has(&piece.name)
        {
            return Ok(None);
        }
        self.source.piece_buffer.failed(&piece.name)?;
        let part = file.parts.around(&range, &file.layout);
        let asked = file.layout.verbatim(part.start, part.end - part.start);
        let wanted = |bytes: &[u8]| {
            let skipped = (range.start - part.start) as usize;
            bytes.get(skipped..skipped + len as usize).map(<[u8]>::to_vec)
        };
        match file.parts.begin(place, piece, part.clone(), &self.source.part_buffer) {
            PartOf::Kept(bytes) => Ok(wanted(&bytes)),
            PartOf::Request(coming) => {
                // Perhaps it has failed for another while this one waited.
                self.source.piece_buffer.failed(&piece.name)?;
                let Some((_, inside)) = asked else { return Ok(None) };
                let Some(bytes) = self.requested(piece, inside)? else { return Ok(None) };
                let found = wanted(&bytes);
                coming.keep(&self.source.part_buffer, bytes);
                Ok(found)
            }
            PartOf::First => {
                file.ahead.begin(place);
                // Other processes would ask for the same part. Readers of this one do not wait for it.
                let is_shared = self.source.cache.as_ref().is_some_and(Cache::is_shared);
                let turn = blob.filter(|_| is_shared).map(|blob| blob.take_turn(place));
                if matches!(turn, Some(None)) {
                    return Ok(None);
                }
                let bytes = self.requested(piece, inside)?;
                match blob {
                    Some(blob) if bytes.is_some() => {
                        self.fetch_in_background(blob, place, turn.flatten());
                    }
                    None if bytes.is_some() => self.fetch_uncached(pieces, place),
                    _ => {}
                }
                Ok(bytes)
            }
            PartOf::Piece => Ok(None),
        }
    }

    /// A range of a piece, by a request of its own.
    fn requested(&self, piece: &Piece, range: Range<u64>) -> io::Result<Option<Vec<u8>>> {
        let at = self.mirrors.first_place(piece);
        let ((key, wanted), mut bytes) = (at.asked_part(piece, range), Vec::new());
        let fetched = self.mirrors.fetch(at, &key, wanted, Class::Demand, |chunk| {
            bytes.extend_from_slice(&chunk);
            Ok(())
        });
        match runtime::wait(fetched).map_err(to_io)? {
            Ok(()) => {
                self.answered(piece);
                Ok(Some(bytes))
            }
            // A second request would take as long.
            Err(failure) if failure.is_transient() => Err(self.failed(piece, &failure)),
            Err(_) => Ok(None),
        }
    }
}

impl SnapshotFiles for Files {
    fn read_at(&self, index: usize, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let file = self.file(index)?;
        if let Some(log) = self.log.as_ref().filter(|_| file.is_log) {
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let part =
                log.get(from..from.saturating_add(buffer.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(part);
            return Ok(());
        }
        let Some(blob) = self.cached(file) else {
            return self.read_in_memory_only(file, buffer, offset);
        };
        self.compare_whole(file, &blob)?;
        let places = file.layout.pieces_in(offset, buffer.len() as u64);
        let end = offset.saturating_add(buffer.len() as u64);
        if let [place] = places.as_slice()
            && let Some(bytes) = self.bytes_alone(file, Some(&blob), *place, offset..end)?
            && bytes.len() == buffer.len()
        {
            buffer.copy_from_slice(&bytes);
            self.mirrors.counted().was_read(false);
            return Ok(());
        }
        let mut kept = Vec::new();
        file.parts.note_read(&(offset..end));
        self.mirrors.counted().was_read(places.iter().all(|place| blob.has(*place)));
        for place in places {
            file.parts.note_whole(place);
            self.read_ahead(file, &blob, place);
            if let Got::Unkept(bytes) = self.get(&blob, place)? {
                kept.push((place, bytes));
            }
        }
        if let Err(error) = blob.read_at(buffer, offset) {
            self.source.disk_failed(&error);
            return self.read_in_memory_only(file, buffer, offset);
        }
        for (place, bytes) in kept {
            file.layout.copy(place, &bytes, buffer, offset);
        }
        self.compare_whole(file, &blob)
    }

    fn read_in_memory(&self, index: usize, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.file(index)?;
        let Some(blob) = self.cached(file) else { return Ok(0) };
        if self.is_unread() && blob.lacks_comparison(file.layout.pieces_in(offset, buffer.len() as u64)) {
            return Ok(0);
        }
        self.compare_whole(file, &blob)?;
        // A read that may wait goes past a cache that fails.
        let read = blob.read_in_memory(buffer, offset).unwrap_or(0);
        if read > 0 {
            let places = file.layout.pieces_in(offset, read as u64);
            places.into_iter().for_each(|place| file.parts.note_whole(place));
            self.mirrors.counted().was_read(true);
        }
        Ok(read)
    }

    fn descriptor(&self, index: usize) -> io::Result<Option<std::os::fd::OwnedFd>> {
        let file = self.file(index)?;
        // The kernel has no other place to read from than its descriptor.
        if self.source.cache.as_ref().is_some_and(Cache::is_distrusted) {
            return Ok(None);
        }
        let is_compared =
            |blob: &Arc<Blob>| !self.is_unread() || !blob.lacks_comparison(0..file.layout.piece_count());
        let Some(blob) = self.cached(file).filter(is_compared) else { return Ok(None) };
        self.compare_whole(file, &blob)?;
        if file.whole.as_ref().is_some_and(|whole| !whole.is_right()) {
            return Ok(None);
        }
        blob.descriptor()
    }

    fn refetch(&self, index: usize, offset: u64, len: u64) -> io::Result<bool> {
        let file = self.file(index)?;
        let places = file.layout.pieces_in(offset, len);
        places.iter().for_each(|place| file.parts.note_whole(*place));
        self.source.part_buffer.forget(&file.parts);
        let Some(blob) = self.cached(file) else {
            // Pieces in memory were compared with their names, and parts were not.
            return Ok(self.source.reads_ahead && !places.is_empty());
        };
        blob.drop_pieces(&places);
        Ok(!places.is_empty())
    }
}
