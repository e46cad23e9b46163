//! A cached file: sparse, with each piece at its own offsets.
//!
//! Invariants: (1) A bit of the map on disk is set only once the bytes of its piece are durable. (2) A bit
//! in memory is set only once the BLAKE3 of its piece was compared. (3) One request a piece at a time.
//! (4) Bytes that a reader or the kernel may have open are replaced only by bytes that were compared.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::format::snapshot::cache_map::{Bits, DIGEST_BYTES, Digest, Map, Stretch};
use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::{FileExtent, Manifest, ManifestFile, Piece, PieceEncoding};
use crate::model::hex;
use crate::remote::cache::arriving::Arriving;
use crate::remote::cache::root::{BLOBS, DRAFT, Root, unlinked};
use crate::remote::client::Wanted;
use crate::remote::client::failure::Failure;
use crate::remote::client::window::Class;
use crate::remote::pieces::{TRIES, fetched};
use crate::remote::suppliers::Suppliers;

/// Pieces with more stretches than this are gathered in memory and then written.
const STRETCHES_MAX: usize = 64;

/// A piece of a file, and where its bytes stand in it.
struct Placed {
    piece: Piece,
    extents: Vec<FileExtent>,
}

impl Placed {
    /// Whether the file has the stored bytes of the piece, all of them and in order.
    fn is_verbatim(&self) -> bool {
        let mut next = 0;
        let is_next = |extent: &FileExtent| {
            let is_next = extent.piece_offset == next;
            next = extent.piece_offset.saturating_add(extent.len);
            is_next
        };
        let is_in_order = self.extents.iter().all(is_next);
        is_in_order && next == self.piece.raw && self.piece.encoding == PieceEncoding::Raw
    }

    /// The BLAKE3 of those bytes of the piece that the file has, in the order of the file.
    fn digest(&self, bytes: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for extent in &self.extents {
            let first = extent.piece_offset as usize;
            hasher.update(bytes.get(first..first + extent.len as usize).unwrap_or_default());
        }
        *hasher.finalize().as_bytes()
    }
}

/// Where the bytes of a file come from.
pub struct Layout {
    /// The name of the cached file.
    name: String,
    bytes: u64,
    extents: Vec<FileExtent>,
    /// The place in `pieces` of each extent.
    of_extent: Vec<u32>,
    pieces: Vec<Placed>,
}

impl Layout {
    /// The layout of a file of a manifest.
    pub fn of(manifest: &Manifest, file: &ManifestFile) -> Layout {
        let mut places: HashMap<u32, u32> = HashMap::new();
        let mut layout = Layout {
            name: String::new(),
            bytes: file.bytes,
            extents: file.extents.clone(),
            of_extent: Vec::new(),
            pieces: Vec::new(),
        };
        for extent in &file.extents {
            let next = layout.pieces.len() as u32;
            let place = *places.entry(extent.piece).or_insert(next);
            if place == next
                && let Some(piece) = manifest.pieces.get(extent.piece as usize)
            {
                layout.pieces.push(Placed { piece: *piece, extents: Vec::new() });
            }
            if let Some(placed) = layout.pieces.get_mut(place as usize) {
                placed.extents.push(*extent);
            }
            layout.of_extent.push(place);
        }
        layout.name = layout.named();
        layout
    }

    /// The name of the cached file: files of the same bytes at the same offsets have the same.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn named(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.bytes.to_le_bytes());
        for (extent, place) in self.extents.iter().zip(&self.of_extent) {
            let Some(placed) = self.pieces.get(*place as usize) else { continue };
            hasher.update(&extent.offset.to_le_bytes());
            hasher.update(&extent.len.to_le_bytes());
            hasher.update(&extent.piece_offset.to_le_bytes());
            hasher.update(&placed.piece.name.digest);
            hasher.update(&[placed.piece.encoding.byte()]);
        }
        hex(hasher.finalize().as_bytes().get(..16).unwrap_or_default())
    }

    /// Where its pieces stand, for the map.
    fn stretches(&self) -> impl Iterator<Item = Stretch> {
        let extents = self.extents.iter().zip(&self.of_extent);
        extents.map(|(extent, piece)| Stretch { offset: extent.offset, len: extent.len, piece: *piece })
    }

    /// Whether a map is that of this file.
    fn has_map(&self, map: &Map) -> bool {
        map.bytes == self.bytes
            && map.bits.count() == self.piece_count()
            && self.stretches().eq(map.stretches.iter().copied())
    }

    /// The pieces with bytes in a range of the file, in the order of the file.
    pub fn pieces_in(&self, offset: u64, len: u64) -> Vec<u32> {
        let end = offset.saturating_add(len);
        let first = self.extents.partition_point(|extent| extent.end() <= offset);
        let rest = self.extents.iter().zip(&self.of_extent).skip(first);
        let mut found: Vec<u32> =
            rest.take_while(|(extent, _)| extent.offset < end).map(|(_, place)| *place).collect();
        found.dedup();
        found
    }

    /// The number of pieces.
    pub fn piece_count(&self) -> u32 {
        self.pieces.len() as u32
    }

    /// A piece.
    pub fn piece(&self, place: u32) -> Option<&Piece> {
        self.pieces.get(place as usize).map(|placed| &placed.piece)
    }

    /// Copies those bytes of a piece that stand in a range of the file.
    pub fn copy(&self, place: u32, bytes: &[u8], buffer: &mut [u8], offset: u64) {
        let end = offset.saturating_add(buffer.len() as u64);
        let Some(placed) = self.pieces.get(place as usize) else { return };
        let first = placed.extents.partition_point(|extent| extent.end() <= offset);
        for extent in placed.extents.iter().skip(first).take_while(|extent| extent.offset < end) {
            let (from, until) = (extent.offset.max(offset), extent.end().min(end));
            let in_piece = u64::from(extent.piece_offset) + (from - extent.offset);
            let source = bytes.get(in_piece as usize..(in_piece + (until - from)) as usize);
            let target = buffer.get_mut((from - offset) as usize..(until - offset) as usize);
            if let (Some(source), Some(target)) = (source, target) {
                target.copy_from_slice(source);
            }
        }
    }

    /// The piece and the range in it of a range of the file that lies in one extent of a piece stored as it
    /// is.
    pub fn verbatim(&self, offset: u64, len: u64) -> Option<(&Piece, std::ops::Range<u64>)> {
        let at = self.extents.partition_point(|extent| extent.end() <= offset);
        let extent = self.extents.get(at).filter(|extent| extent.offset <= offset)?;
        let place = *self.of_extent.get(at)?;
        let piece = self.piece(place).filter(|piece| piece.encoding == PieceEncoding::Raw)?;
        let from = u64::from(extent.piece_offset) + (offset - extent.offset);
        (offset.checked_add(len)? <= extent.end()).then(|| (piece, from..from + len))
    }
}

/// A request for a piece that others wait for.
#[derive(Default)]
struct Flight {
    done: Mutex<Option<Landed>>,
    landed: Condvar,
}

/// How a request for a piece ended.
#[derive(Clone)]
enum Landed {
    Cached,
    /// The disk is full: its bytes are in memory.
    Kept(Arc<Vec<u8>>),
    Failed(Arc<Failure>),
    /// Nobody fetches it any more.
    GivenUp,
}

/// Where the bytes of a piece are.
pub enum Got {
    /// In the cached file.
    Cached,
    /// Here, since the cache has no room.
    Kept(Arc<Vec<u8>>),
}

struct State {
    bits: Bits,
    /// For the map: zeros where a piece is not there.
    digests: Vec<Digest>,
    flights: HashMap<u32, Arc<Flight>>,
    /// Pieces that were there and had wrong bytes.
    suspects: HashSet<u32>,
    /// Whether the map on disk lacks bits.
    is_unsaved: bool,
}

/// A cached file.
pub struct Blob {
    layout: Arc<Layout>,
    /// Keeps the path valid.
    _root: Arc<Root>,
    path: PathBuf,
    writer: fs::File,
    reader: fs::File,
    state: Mutex<State>,
    /// Held while a piece is written: the kernel lets one writer into a file, and others would spin.
    writing: Mutex<()>,
    /// Held while its names come and go.
    naming: Mutex<()>,
    /// Bytes of its pieces that are there.
    pub(super) stored: AtomicU64,
    /// Time of the last use, in nanoseconds since 1970.
    pub(super) used: AtomicU64,
    /// It was evicted: nothing is saved any more.
    is_evicted: AtomicBool,
}

/// Makes names of drafts differ.
static DRAFTS: AtomicU64 = AtomicU64::new(0);

impl Blob {
    /// Opens the cached file of a layout, or makes an empty one.
    pub fn open(root: &Arc<Root>, layout: &Arc<Layout>) -> io::Result<Blob> {
        let path = root.path(BLOBS).join(layout.name());
        let open = |options: &mut fs::OpenOptions| options.read(true).write(true).open(&path);
        let found = match open(&mut unlinked()) {
            Ok(file) if file.metadata().is_ok_and(|found| found.is_file() && found.len() == layout.bytes) => {
                let map = read_map(&path).ok().and_then(|map| Map::parse(&map).ok());
                map.filter(|map| layout.has_map(map)).map(|map| (file, map.bits, map.digests))
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => None,
        };
        let (writer, bits, digests) = match found {
            Some(found) => found,
            None => {
                // Not a shortened file: ext4 writes back all of such a file when a reader closes it.
                remove(&path)?;
                let file = open(unlinked().create_new(true))?;
                file.set_len(layout.bytes)?;
                (file, Bits::none(layout.piece_count()), vec![[0; DIGEST_BYTES]; layout.pieces.len()])
            }
        };
        let reader = unlinked().read(true).open(&path)?;
        let stored = (0..).zip(&layout.pieces).filter(|(place, _)| bits.has(*place));
        let stored: u64 = stored.map(|(_, placed)| u64::from(placed.piece.raw)).sum();
        let (flights, suspects) = (HashMap::new(), HashSet::new());
        let state = State { bits, digests, flights, suspects, is_unsaved: false };
        Ok(Blob {
            layout: layout.clone(),
            _root: root.clone(),
            path,
            writer,
            reader,
            state: Mutex::new(state),
            writing: Mutex::new(()),
            naming: Mutex::new(()),
            stored: AtomicU64::new(stored),
            used: AtomicU64::new(0),
            is_evicted: AtomicBool::new(false),
        })
    }

    /// Whether it was removed from the cache.
    pub fn is_gone(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }

    /// Notes a use at this time.
    pub fn touch(&self, now: u64) {
        self.used.store(now, Ordering::Relaxed);
    }

    /// Its layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads what is there: zeros where a piece is not.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.reader.read_exact_at(buffer, offset)
    }

    /// Reads from the page cache, without waiting for the disk or a piece. Returns the number of bytes read.
    pub fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let places = self.layout.pieces_in(offset, buffer.len() as u64);
        if !places.iter().all(|place| self.has(*place)) {
            return Ok(0);
        }
        match preadv2(&self.reader, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => Ok(count),
            // It is not in the page cache, or the file system cannot tell.
            Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// The descriptor of the whole file, once all pieces are there.
    pub fn descriptor(&self) -> io::Result<Option<OwnedFd>> {
        if !self.state.lock().bits.is_full() {
            return Ok(None);
        }
        Ok(Some(self.reader.try_clone()?.into()))
    }

    /// Whether a piece is there.
    pub fn has(&self, place: u32) -> bool {
        self.state.lock().bits.has(place)
    }

    /// Forgets pieces whose bytes are wrong, so that they are fetched again.
    pub fn drop_pieces(&self, places: &[u32]) {
        let mut state = self.state.lock();
        for place in places {
            let Some(piece) = self.layout.piece(*place).filter(|_| state.bits.has(*place)) else { continue };
            state.bits.set(*place, false);
            if let Some(digest) = state.digests.get_mut(*place as usize) {
                *digest = [0; DIGEST_BYTES];
            }
            state.suspects.insert(*place);
            state.is_unsaved = true;
            self.stored.fetch_sub(u64::from(piece.raw), Ordering::Relaxed);
        }
    }

    /// Takes the fetching of a piece, unless it is there or on its way.
    pub(in crate::remote) fn begin(self: &Arc<Blob>, place: u32) -> Option<Fetching> {
        let mut state = self.state.lock();
        if state.bits.has(place) || state.flights.contains_key(&place) {
            return None;
        }
        let flight = Arc::new(Flight::default());
        state.flights.insert(place, flight.clone());
        Some(Fetching { blob: self.clone(), place, flight, landed: None, digest: None, has_room: false })
    }

    /// Waits for a piece that another fetches; `None` if it is there, or nobody fetches it.
    pub(in crate::remote) fn wait(&self, place: u32) -> Option<Result<Got, Arc<Failure>>> {
        let flight = self.state.lock().flights.get(&place).cloned()?;
        let mut done = flight.done.lock();
        while done.is_none() {
            flight.landed.wait(&mut done);
        }
        match done.clone()? {
            Landed::Cached | Landed::GivenUp => None,
            Landed::Kept(bytes) => Some(Ok(Got::Kept(bytes))),
            Landed::Failed(failure) => Some(Err(failure)),
        }
    }

    /// Writes a part of a piece to its places.
    fn write(&self, placed: &Placed, from: u64, bytes: &[u8]) -> io::Result<()> {
        let end = from + bytes.len() as u64;
        for extent in &placed.extents {
            let start = u64::from(extent.piece_offset);
            let (first, last) = (start.max(from), (start + u64::from(extent.len)).min(end));
            if first < last
                && let Some(part) = bytes.get((first - from) as usize..(last - from) as usize)
            {
                self.writer.write_all_at(part, extent.offset + (first - start))?;
            }
        }
        Ok(())
    }

    /// Makes what is there durable and says so on disk.
    pub(super) fn save(&self) -> io::Result<()> {
        let map = {
            let mut state = self.state.lock();
            if !state.is_unsaved || self.is_gone() {
                return Ok(());
            }
            state.is_unsaved = false;
            let (bits, digests) = (state.bits.clone(), state.digests.clone());
            Map { bytes: self.layout.bytes, bits, digests, stretches: self.layout.stretches().collect() }
        };
        if let Err(error) = self.writer.sync_data() {
            // The kernel tells of lost pages once and takes them for written afterwards.
            self.evict()?;
            return Err(error);
        }
        let saved = self.write_map(&map);
        if saved.is_err() {
            self.state.lock().is_unsaved = true;
        }
        saved
    }

    fn write_map(&self, map: &Map) -> io::Result<()> {
        // Another file may have the name by now.
        let naming = || {
            let held = self.naming.lock();
            (!self.is_gone()).then_some(held)
        };
        write_map(&self.path, map, naming)
    }

    /// Whether the map on disk lacks bits.
    pub(super) fn is_unsaved(&self) -> bool {
        self.state.lock().is_unsaved
    }

    /// Removes its names. Those who have it open read on.
    pub(super) fn evict(&self) -> io::Result<()> {
        let _naming = self.naming.lock();
        self.is_evicted.store(true, Ordering::Release);
        remove(&self.path)
    }

    /// Notes the last use on disk.
    fn note_use(&self) -> io::Result<()> {
        let used = UNIX_EPOCH + Duration::from_nanos(self.used.load(Ordering::Relaxed));
        match unlinked().read(true).open(map_of(&self.path)) {
            Ok(map) => map.set_modified(used),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        if let Err(error) = self.save() {
            log::warn!("pieces of the cached {} will be fetched again: {error}", self.layout.name());
        }
        if !self.is_gone()
            && let Err(error) = self.note_use()
        {
            log::debug!("the last use of the cached {} was not noted: {error}", self.layout.name());
        }
    }
}

/// Replaces the map of a cached file, while what `naming` returns is held; not if it returns `None`.
pub(super) fn write_map<T>(path: &Path, map: &Map, naming: impl FnOnce() -> Option<T>) -> io::Result<()> {
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let draft = path.with_extension(format!("{number}.{DRAFT}"));
    let mut options = unlinked();
    let opened = options.write(true).create_new(true).open(&draft);
    let written = opened.and_then(|mut file| file.write_all(&map.to_bytes())).and_then(|()| match naming() {
        Some(_held) => fs::rename(&draft, map_of(path)),
        None => fs::remove_file(&draft),
    });
    if written.is_err()
        && let Err(error) = fs::remove_file(&draft)
        && error.kind() != io::ErrorKind::NotFound
    {
        log::debug!("{}: left behind: {error}", draft.display());
    }
    written
}

/// Removes a cached file and its map.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    for path in [map_of(path), path.to_owned()] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The bytes of the map of a cached file.
pub(super) fn read_map(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    unlinked().read(true).open(map_of(path))?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The map of a cached file.
pub(super) fn map_of(path: &Path) -> PathBuf {
    path.with_extension("map")
}

/// The bytes that a file takes on the disk.
pub(super) fn allocated(metadata: &fs::Metadata) -> u64 {
    metadata.blocks().saturating_mul(512)
}

/// The fetching of a piece. Those who wait are woken however it ends.
pub(in crate::remote) struct Fetching {
    blob: Arc<Blob>,
    place: u32,
    flight: Arc<Flight>,
    landed: Option<Landed>,
    /// The BLAKE3 of the piece's bytes in the file, once they are there.
    digest: Option<Digest>,
    /// Whether the cache counts the piece already.
    has_room: bool,
}

impl Fetching {
    /// The cached file.
    pub fn blob(&self) -> &Arc<Blob> {
        &self.blob
    }

    /// The cache has room for the piece, and has counted its bytes.
    pub fn has_room(&mut self) {
        self.has_room = true;
    }

    /// Bytes of the piece.
    pub fn bytes(&self) -> u64 {
        self.blob.layout.piece(self.place).map_or(0, |piece| u64::from(piece.raw))
    }

    /// Fetches the piece: into the file, if the cache has room for it. `failed` is told why the disk did not
    /// take it.
    pub async fn run(
        mut self,
        suppliers: &Suppliers,
        class: Class,
        failed: &(dyn Fn(&io::Error) + Sync),
    ) -> Result<Got, Arc<Failure>> {
        let blob = self.blob.clone();
        let Some(placed) = blob.layout.pieces.get(self.place as usize) else {
            return Err(Arc::new(Failure::WrongBytes));
        };
        let cached = if self.has_room { Some(self.fetch(suppliers, class, placed).await) } else { None };
        let landed = match cached {
            Some(Ok(digest)) => {
                self.digest = Some(digest);
                Ok(Landed::Cached)
            }
            Some(Err(Failure::Local(error))) => {
                failed(&error);
                fetched(suppliers, &placed.piece, class).await.map(|bytes| Landed::Kept(Arc::new(bytes)))
            }
            Some(Err(failure)) => Err(failure),
            None => fetched(suppliers, &placed.piece, class).await.map(|bytes| Landed::Kept(Arc::new(bytes))),
        };
        let landed = landed.unwrap_or_else(|failure| Landed::Failed(Arc::new(failure)));
        self.landed = Some(landed.clone());
        match landed {
            Landed::Kept(bytes) => Ok(Got::Kept(bytes)),
            Landed::Failed(failure) => Err(failure),
            _ => Ok(Got::Cached),
        }
    }

    /// Fetches the piece into the file. Returns the BLAKE3 of its bytes there.
    async fn fetch(&self, suppliers: &Suppliers, class: Class, placed: &Placed) -> Result<Digest, Failure> {
        let piece = &placed.piece;
        // Somebody may have the bytes open that these replace.
        let is_suspect = self.blob.state.lock().suspects.contains(&self.place);
        if is_suspect || !placed.is_verbatim() || placed.extents.len() > STRETCHES_MAX {
            let bytes = fetched(suppliers, piece, class).await?;
            self.blob.write(placed, 0, &bytes).map_err(Failure::Local)?;
            return Ok(placed.digest(&bytes));
        }
        for place in suppliers.places(TRIES) {
            let mut arriving = Arriving::new((&self.blob.writer, &self.blob.writing), &placed.extents);
            let whole = Wanted { range: Some(0..u64::from(piece.stored)), len_max: u64::from(piece.stored) };
            let key = keys::piece(&piece.name);
            match place.client().fetch(&key, whole, class, |chunk| arriving.take(chunk)).await {
                Err(failure) if place.leads_on(&failure) => continue,
                done => done?,
            }
            if arriving.finish().map_err(Failure::Local)? == piece.name.digest {
                return Ok(piece.name.digest);
            }
            place.was_wrong(piece);
        }
        Err(Failure::WrongBytes)
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        let landed = self.landed.take().unwrap_or(Landed::GivenUp);
        if self.has_room && !matches!(landed, Landed::Cached) {
            self.blob.stored.fetch_sub(self.bytes(), Ordering::Relaxed);
        }
        {
            let mut state = self.blob.state.lock();
            state.flights.remove(&self.place);
            if matches!(landed, Landed::Cached) {
                state.bits.set(self.place, true);
                if let Some(slot) = state.digests.get_mut(self.place as usize) {
                    *slot = self.digest.unwrap_or_default();
                }
                state.suspects.remove(&self.place);
                state.is_unsaved = true;
            }
        }
        *self.flight.done.lock() = Some(landed);
        self.flight.landed.notify_all();
    }
}
