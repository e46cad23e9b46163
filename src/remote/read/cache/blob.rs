//! A cached file: a piece file that the cache counts and removes as a whole, and the fetching of its pieces.
//!
//! Other processes may have the same file open. A piece is fetched by the holder of its `Turn`; the others look into the
//! map once they need the piece. The holder may be stopped, or its remote may be away: after 5 s in which nobody has
//! written to the file, others fetch the piece into memory. The file is not theirs to write without the turn.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::piece_map::{Digest, PieceState};
use crate::remote::client::failure::Failure;
use crate::remote::client::window::Class;
use crate::remote::read::cache::pace::Written;
use crate::remote::read::cache::root::{BLOBS, Root, unlinked};
use crate::remote::read::cache::turns::{Mode, Turn};
use crate::remote::read::mirrors::Mirrors;
use crate::remote::read::pieces::{Bases, TRIES, fetched};
use crate::store::disk::files::FileDisk;
use crate::store::disk::{Disk, File, Open, write_new};
use crate::store::pieces::arrival::{Arrival, Progress};
use crate::store::pieces::file::{Claim, Got, PieceFile, no_digests, remove};
use crate::store::pieces::layout::Layout;
use crate::store::pieces::{map_of, read_map};

/// A cached file.
pub struct Blob {
    pieces: Arc<PieceFile<Failure>>,
    data: Arc<dyn File>,
    disk: FileDisk,
    /// Keeps the paths valid.
    root: Arc<Root>,
    /// Bytes of its pieces that are there.
    pub(super) stored: AtomicU64,
    /// Time of the last use, in nanoseconds since 1970.
    pub(super) used: AtomicU64,
    /// The last use that other processes know of.
    noted: AtomicU64,
    /// Pieces that this process has not fetched, and that nobody has compared since it opened the file.
    uncompared: Mutex<BTreeSet<u32>>,
    /// How often pieces were dropped.
    drops: AtomicU64,
}

/// The attribute of a file with the SHA-256 that all of its bytes were found to have.
const SHA256: &str = "user.tierfs.sha256";
/// The name of a map that is not complete. A killed process leaves one at most for each file.
const DRAFT: &str = "0.new";

impl Blob {
    /// Opens the cached file of a layout, or makes an empty one.
    pub fn open(root: &Arc<Root>, layout: &Arc<Layout>) -> io::Result<Blob> {
        let (disk, name) = (root.blobs(), layout.name());
        // A file and the map of another would not fit each other.
        let _names = root.names()?;
        let found = match disk.open(name, Open::Write) {
            Ok(data) if data.len()? == layout.bytes() => {
                let map =
                    disk.open(&map_of(name), Open::Write).and_then(|file| Ok((read_map(&*file)?, file)));
                let map = map.ok().filter(|(map, _)| layout.has_map(map));
                map.and_then(|(map, file)| Some((data, map.states, map.check?.digests, file)))
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => None,
        };
        let (data, states, digests, map) = match found {
            Some(found) => found,
            None => {
                // Not a shortened file: ext4 writes back all of such a file when a reader closes it.
                remove(&disk, name)?;
                let data = disk.open(name, Open::Create)?;
                data.set_len(layout.bytes())?;
                let (states, digests) =
                    (vec![PieceState::Remote; layout.piece_count() as usize], no_digests(layout));
                // A full disk or a killed process leaves no part of a map.
                let draft = format!("{name}.{DRAFT}");
                let made = write_new(
                    &disk,
                    &draft,
                    &layout.to_map(states.clone(), Some(digests.clone())).to_bytes(),
                );
                let made = made.and_then(|made| disk.rename(&draft, &map_of(name)).map(|()| made));
                let map = made.inspect_err(|_| drop(disk.remove_file(&draft)))?;
                (data, states, digests, map)
            }
        };
        let here = (0..).zip(&states).filter(|(_, state)| **state == PieceState::Here);
        let here: BTreeSet<u32> = here.map(|(place, _)| place).collect();
        let stored = here.iter().filter_map(|place| layout.piece(*place));
        let stored = stored.map(|piece| u64::from(piece.raw)).sum();
        let is_whole = here.len() == states.len();
        let pieces = PieceFile::new(layout.clone(), states, Some(digests), Some(data.clone()), Some(map));
        let blob = Blob {
            pieces: Arc::new(pieces),
            data,
            disk,
            root: root.clone(),
            stored: AtomicU64::new(stored),
            used: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            uncompared: Mutex::new(here),
            drops: AtomicU64::new(0),
        };
        // Other processes, or killed ones, may have brought pieces that are not durable yet.
        if !is_whole && !blob.look() {
            blob.forget_sha256();
        }
        Ok(blob)
    }

    /// Looks for pieces that other processes have brought. Returns whether all are here.
    pub fn look(&self) -> bool {
        if !self.pieces.is_whole() {
            self.learn(0..self.layout().piece_count());
        }
        self.pieces.is_whole()
    }

    /// Whether a piece is here, which this process or another has brought.
    pub fn has(&self, place: u32) -> bool {
        if !self.pieces.has(place) {
            self.learn(place..place.saturating_add(1));
        }
        self.pieces.has(place)
    }

    fn learn(&self, places: Range<u32>) {
        match self.pieces.look(places) {
            Ok(found) => {
                let bytes = |place: &u32| self.layout().piece(*place).map_or(0, |piece| u64::from(piece.raw));
                self.stored.fetch_add(found.iter().map(bytes).sum(), Ordering::Relaxed);
                self.uncompared.lock().extend(found);
            }
            Err(error) => log::debug!("the map of the cached {} is not read: {error}", self.layout().name()),
        }
    }

    /// Whether all bytes of the file were found to have this SHA-256, by this mount or an earlier one.
    pub fn has_sha256(&self, digest: &[u8; 32]) -> bool {
        let mut found = [0; 32];
        let Ok(Some(data)) = self.data.descriptor() else { return false };
        rustix::fs::fgetxattr(data, SHA256, &mut found).is_ok_and(|len| len == found.len())
            && found == *digest
    }

    /// Notes on disk that all bytes were found to have this SHA-256, unless pieces were dropped since [`drops`](Self::drops)
    /// was asked. A disk without attributes has no notes.
    pub fn note_sha256(&self, digest: &[u8; 32], drops: u64) {
        // A crash must not leave the note without the bytes.
        let is_saved = self.save().is_ok() && self.pieces.is_whole();
        if let Ok(Some(data)) = self.data.descriptor()
            && is_saved
        {
            let noted = rustix::fs::fsetxattr(data, SHA256, digest, rustix::fs::XattrFlags::empty());
            if let Err(error) = noted {
                log::debug!(
                    "the cached {} is compared again by the next mount: {error}",
                    self.layout().name()
                );
            }
        }
        // Another process writes into the map that it drops a piece, and then removes the note.
        let is_dropped = self.pieces.has_suspects().unwrap_or(true);
        if self.drops() != drops || is_dropped {
            self.forget_sha256();
        }
    }

    fn forget_sha256(&self) {
        if let Ok(Some(data)) = self.data.descriptor()
            && let Err(error) = rustix::fs::fremovexattr(data, SHA256)
            && error != rustix::io::Errno::NODATA
        {
            log::debug!("the note of the cached {} stays: {error}", self.layout().name());
        }
    }

    /// How often pieces were dropped.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::SeqCst)
    }

    /// Its pieces.
    pub(in crate::remote) fn pieces(&self) -> &Arc<PieceFile<Failure>> {
        &self.pieces
    }

    /// Its layout.
    pub fn layout(&self) -> &Layout {
        self.pieces.layout()
    }

    /// Whether it was removed from the cache, by this process or another.
    pub fn is_gone(&self) -> bool {
        self.pieces.is_removed() || self.data.attributes().is_ok_and(|found| found.links == 0)
    }

    /// Notes a use at this time.
    pub fn touch(&self, now: u64) {
        self.used.store(now, Ordering::Relaxed);
    }

    /// Reads what is there: zeros where a piece is not.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.data.read_exact_at(buffer, offset)
    }

    /// Reads from the page cache, without waiting for the disk or a piece. Returns the number of bytes read.
    pub fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if !self.pieces.missing(offset, buffer.len() as u64).is_empty() {
            return Ok(0);
        }
        self.data.read_in_memory(buffer, offset)
    }

    /// A descriptor of the whole file, which cannot write, once all pieces are there.
    pub fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        if !self.look() {
            return Ok(None);
        }
        let Some(writer) = self.data.descriptor()? else { return Ok(None) };
        let reader = fs::File::open(format!("/proc/self/fd/{}", writer.as_raw_fd()))?;
        Ok(Some(reader.into()))
    }

    /// Compares a piece with the digest of its arrival, at its first use since the file was opened: for pieces without
    /// other checksums. One that differs is forgotten. Returns whether it is there.
    pub fn compared(&self, place: u32) -> io::Result<bool> {
        if !self.uncompared.lock().contains(&place) {
            return Ok(true);
        }
        let compared = self.pieces.is_right(place);
        if !matches!(compared, Ok(true)) {
            log::warn!("piece {place} of the cached {} is wrong; it is fetched again", self.layout().name());
            self.drop_pieces(&[place]);
        }
        self.uncompared.lock().remove(&place);
        compared
    }

    /// Whether some of these pieces were not compared since the file was opened.
    pub fn lacks_comparison(&self, places: impl IntoIterator<Item = u32>) -> bool {
        let uncompared = self.uncompared.lock();
        !uncompared.is_empty() && places.into_iter().any(|place| uncompared.contains(&place))
    }

    /// Forgets pieces whose bytes are wrong, so that they are fetched again.
    pub fn drop_pieces(&self, places: &[u32]) {
        self.drops.fetch_add(1, Ordering::SeqCst);
        self.forget_sha256();
        for place in self.pieces.forget(places) {
            let bytes = self.layout().piece(place).map_or(0, |piece| u64::from(piece.raw));
            self.stored.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Takes the fetching of a piece, unless it is there or on its way in this process.
    pub(in crate::remote) fn begin(self: &Arc<Blob>, place: u32) -> Option<Fetching> {
        let claim = self.pieces.begin(place)?;
        if self.has(place) {
            return None;
        }
        let counted = Counted { blob: self.clone(), bytes: 0 };
        Some(Fetching { blob: self.clone(), claim, turn: None, counted })
    }

    /// Takes the turn of a piece, unless another holder has it.
    pub(in crate::remote) fn take_turn(&self, place: u32) -> Option<Turn> {
        let turn = self.root.turn_of(&self.layout().piece(place)?.name.digest);
        turn.and_then(|turn| Ok(turn.take(Mode::Alone)?.then_some(turn))).ok()?
    }

    /// Whether another process fetches a piece.
    pub(in crate::remote) fn is_coming(&self, place: u32) -> bool {
        let digest = self.layout().piece(place).map(|piece| piece.name.digest);
        digest.is_some_and(|digest| {
            self.root.turn_of(&digest).and_then(|turn| turn.is_taken()).unwrap_or(false)
        })
    }

    /// Makes what is there durable and says so on disk.
    pub(super) fn save(&self) -> io::Result<()> {
        if self.is_gone() {
            return Ok(());
        }
        let saved = self.pieces.save();
        if self.pieces.has_lost() {
            self.evict()?;
        }
        saved
    }

    /// Whether the map on disk lacks states.
    pub(super) fn is_unsaved(&self) -> bool {
        self.pieces.unsaved() > 0
    }

    /// Removes its names. Those who have it open read on.
    pub(super) fn evict(&self) -> io::Result<()> {
        let _names = self.root.names()?;
        self.pieces.remove(&self.disk, self.layout().name())
    }

    /// Notes the last use on disk.
    pub(super) fn note_use(&self) -> io::Result<()> {
        let used = self.used.load(Ordering::Relaxed);
        if self.noted.swap(used, Ordering::Relaxed) == used || self.is_gone() {
            return Ok(());
        }
        let used = UNIX_EPOCH + Duration::from_nanos(used);
        match unlinked().read(true).open(self.root.path(BLOBS).join(map_of(self.layout().name()))) {
            Ok(map) => map.set_modified(used),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        if let Err(error) = self.save() {
            log::warn!("pieces of the cached {} will be fetched again: {error}", self.layout().name());
        }
        if let Err(error) = self.note_use() {
            log::debug!("the last use of the cached {} was not noted: {error}", self.layout().name());
        }
    }
}

/// The bytes that a file takes on the disk.
pub(super) fn allocated(metadata: &fs::Metadata) -> u64 {
    metadata.blocks().saturating_mul(512)
}

/// Bytes that the cache counts for a piece that is on its way.
struct Counted {
    blob: Arc<Blob>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.blob.stored.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Hears of the disk of a cache. Returns whether it gets more bytes of the piece.
pub(in crate::remote) type DiskWatch<'a> = &'a (dyn Fn(DiskNews<'_>) -> bool + Sync);

/// The answer of the disk of a cache to a piece.
pub(in crate::remote) enum DiskNews<'a> {
    /// It did not take it.
    Failed(&'a io::Error),
    /// It took a part of it in this time.
    Wrote(Written),
    /// It did not get it, and these are its bytes.
    Left(PieceName, &'a Arc<Vec<u8>>),
}

/// The fetching of a piece. Those who wait are woken however it ends.
pub(in crate::remote) struct Fetching {
    blob: Arc<Blob>,
    claim: Claim<Failure>,
    turn: Option<Turn>,
    counted: Counted,
}

impl Fetching {
    /// The cached file.
    pub fn blob(&self) -> &Arc<Blob> {
        &self.blob
    }

    /// The same, by one who has the turn of the piece.
    pub fn with_turn(self, turn: Option<Turn>) -> Fetching {
        Fetching { turn, ..self }
    }

    /// The cache has room for the piece, and has counted its bytes.
    pub fn has_room(&mut self) {
        self.counted.bytes = self.bytes();
    }

    /// Bytes of the piece.
    pub fn bytes(&self) -> u64 {
        self.claim.piece().map_or(0, |piece| u64::from(piece.raw))
    }

    /// Fetches the piece: into the file, if the cache has room for it. A difference is made of `bases`. `told` hears of the
    /// disk.
    pub async fn run(
        mut self,
        mirrors: &Mirrors,
        bases: &dyn Bases,
        class: Class,
        told: DiskWatch<'_>,
    ) -> Result<Got, Arc<Failure>> {
        let turn = match self.turn.take() {
            None if self.counted.bytes > 0 => self.wait_for_turn().await,
            turn => turn.filter(|_| self.counted.bytes > 0),
        };
        if self.blob.has(self.claim.place()) {
            return self.claim.end(Ok(Got::Here));
        }
        let got =
            match if turn.is_some() { Some(self.fetch(mirrors, bases, class, told).await) } else { None } {
                Some(Ok(None)) => {
                    self.counted.bytes = 0;
                    Ok(Got::Here)
                }
                Some(Err(failure)) if !matches!(failure, Failure::Local(_)) => Err(failure),
                not_taken => {
                    if let Some(Err(Failure::Local(error))) = &not_taken {
                        told(DiskNews::Failed(error));
                    }
                    let bytes = match not_taken {
                        Some(Ok(Some(bytes))) => Ok(bytes),
                        _ => self.in_memory(mirrors, bases, class).await,
                    };
                    let bytes = bytes.map(Arc::new);
                    // Before the claim ends: who comes then finds it there.
                    if let (Ok(bytes), Some(piece)) = (&bytes, self.claim.piece()) {
                        told(DiskNews::Left(piece.name, bytes));
                    }
                    bytes.map(Got::Unkept)
                }
            };
        self.claim.end(got.map_err(Arc::new))
    }

    /// Waits for the turn of the piece. `None` if another process has brought the piece, or has the turn and is silent.
    async fn wait_for_turn(&self) -> Option<Turn> {
        let (blob, place) = (&self.blob, self.claim.place());
        let modified = || blob.data.attributes().ok().and_then(|found| found.modified);
        let turn = blob.root.turn_of(&self.claim.piece()?.name.digest);
        match turn {
            Ok(turn) => turn.wait(|| blob.has(place), modified).await,
            Err(error) => {
                log::debug!("the lock of a piece: {error}");
                None
            }
        }
    }

    async fn in_memory(
        &self,
        mirrors: &Mirrors,
        bases: &dyn Bases,
        class: Class,
    ) -> Result<Vec<u8>, Failure> {
        let piece = self.claim.piece().ok_or(Failure::WrongBytes)?;
        fetched(mirrors, bases, piece, class).await
    }

    /// Fetches the piece into the file. Returns its bytes if the file did not get all of them, since its disk lags.
    async fn fetch(
        &self,
        mirrors: &Mirrors,
        bases: &dyn Bases,
        class: Class,
        told: DiskWatch<'_>,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let piece = self.claim.piece().ok_or(Failure::WrongBytes)?;
        if let Some(bytes) = bases.copy(piece) {
            return self.claim.keep(&bytes).map(|()| None).map_err(Failure::Local);
        }
        if !self.claim.may_arrive() {
            let bytes = self.in_memory(mirrors, bases, class).await?;
            return self.claim.keep(&bytes).map(|()| None).map_err(Failure::Local);
        }
        for place in mirrors.places(piece, TRIES) {
            let Some(arrival) = self.claim.arrival::<Bytes>() else { break };
            let (key, wanted) = place.asked_part(piece, 0..u64::from(piece.stored));
            let mut arriving = Arriving::ToFile(ToFile::new(arrival));
            match mirrors.fetch(place, &key, wanted, class, |chunk| arriving.take(chunk, told)).await {
                Err(failure) if place.leads_on(&failure) => continue,
                done => done?,
            }
            let (digest, bytes) = arriving.finish(told).map_err(Failure::Local)?;
            if place.is_right(piece, &digest) {
                if bytes.is_none() {
                    self.claim.arrived(Some(digest)).map_err(Failure::Local)?;
                }
                return Ok(bytes);
            }
            mirrors.was_wrong(place, piece);
        }
        Err(Failure::WrongBytes)
    }
}

/// A piece on its way.
enum Arriving<'a> {
    /// Into the file.
    ToFile(ToFile<'a>),
    /// Into memory, once the disk lags.
    ToMemory(Vec<u8>, blake3::Hasher),
}

/// A piece on its way into the file, and what the disk is known to have taken of it.
struct ToFile<'a> {
    arrival: Arrival<'a, Bytes>,
    noted: Progress,
    when: Instant,
}

impl Arriving<'_> {
    fn take(&mut self, chunk: Bytes, told: DiskWatch<'_>) -> io::Result<()> {
        match self {
            Arriving::ToFile(file) => {
                file.arrival.take(chunk)?;
                if !file.note(told) {
                    self.leave_file()?;
                }
            }
            Arriving::ToMemory(bytes, hasher) => {
                hasher.update(&chunk);
                bytes.extend_from_slice(&chunk);
            }
        }
        Ok(())
    }

    fn leave_file(&mut self) -> io::Result<()> {
        let nothing = Arriving::ToMemory(Vec::new(), blake3::Hasher::new());
        if let Arriving::ToFile(file) = std::mem::replace(self, nothing) {
            let (bytes, hasher) = file.arrival.into_memory()?;
            *self = Arriving::ToMemory(bytes, hasher);
        }
        Ok(())
    }

    /// The BLAKE3 of all bytes, and the bytes if the file did not get them.
    fn finish(self, told: DiskWatch<'_>) -> io::Result<(Digest, Option<Vec<u8>>)> {
        match self {
            Arriving::ToFile(mut file) => {
                let digest = file.arrival.finish()?;
                file.note(told);
                Ok((digest, None))
            }
            Arriving::ToMemory(bytes, hasher) => {
                // The disk gave some of them back.
                let digest = hasher.finalize();
                if blake3::hash(&bytes) != digest {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Ok((*digest.as_bytes(), Some(bytes)))
            }
        }
    }
}

impl<'a> ToFile<'a> {
    fn new(arrival: Arrival<'a, Bytes>) -> ToFile<'a> {
        ToFile { arrival, noted: Progress::default(), when: Instant::now() }
    }

    /// Tells how the disk took the bytes that were written since. Returns whether it gets more.
    fn note(&mut self, told: DiskWatch<'_>) -> bool {
        let progress = self.arrival.progress();
        if progress.written == self.noted.written {
            return true;
        }
        let (bytes, total) = (progress.written - self.noted.written, self.when.elapsed());
        let writing = progress.writing.saturating_sub(self.noted.writing);
        let waiting = progress.waiting.saturating_sub(self.noted.waiting);
        (self.noted, self.when) = (progress, Instant::now());
        told(DiskNews::Wrote(Written { bytes, writing, waiting, total }))
    }
}
