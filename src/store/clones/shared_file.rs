//! A file of a clone, which all open descriptors of it share: a [`PieceFile`] that another takes the place of when the
//! clone is pushed.
//!
//! Invariants:
//! 1. A piece is *own*, durably, before a byte of it is written that the remote does not have. It is fetched
//!    before: other bytes of it may be described.
//! 2. Nobody reads the bytes of a piece while they go.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::format::snapshot::manifest::Piece;
use crate::format::snapshot::piece_map::{PieceMap, PieceState};
use crate::store::clones::fetch::Fetcher;
use crate::store::disk::change::Change;
use crate::store::disk::remote::RemoteError;
use crate::store::disk::{Disk, File, Open, read_only, replace_file};
use crate::store::pieces::file::{Claim, Got, PieceFile};
use crate::store::pieces::map_of;
use crate::store::pieces::read_ahead::ReadAhead;

/// The map is saved once this many pieces have arrived.
const UNSAVED_MAX: usize = 8;
/// Pieces that are evicted together.
const EVICTED_TOGETHER: usize = 64;
/// Pieces that are fetched ahead of a reader that goes through a file in order. It asks for a piece that is missing, so
/// it skips those that were fetched ahead.
const AHEAD: u32 = 4;
/// Pieces that are fetched ahead at a time, of all files.
const AHEAD_MAX: usize = 16;

/// Space goes back to the disk in pages of this size.
const PAGE_BYTES: u64 = 4096;

static AHEAD_NOW: AtomicUsize = AtomicUsize::new(0);

/// The pieces of a file of a clone.
pub(super) type Pieces = PieceFile<io::Error>;

/// A file of a clone.
pub struct SharedFile {
    path: String,
    fetcher: Arc<Fetcher>,
    /// The file, to write pieces into it. `None` in a store that is only read, which keeps nothing.
    data: Option<Arc<dyn File>>,
    /// To replace the map.
    disk: Option<Arc<dyn Disk>>,
    pieces: RwLock<Arc<Pieces>>,
    /// Held shared while the file is read, alone while pieces become remote.
    reading: RwLock<()>,
    /// Held while another layout takes the place of the present one.
    adopting: Mutex<()>,
    ahead: ReadAhead,
}

impl SharedFile {
    /// The file of a map, if it has one. `kept` has the file and its disk in a store that is written to.
    pub(super) fn new(
        path: &str,
        fetcher: &Arc<Fetcher>,
        kept: Option<(Arc<dyn File>, Arc<dyn Disk>)>,
        map: Option<(PieceMap, Arc<dyn File>)>,
    ) -> SharedFile {
        let (data, disk) = kept.unzip();
        let (map, file) = map.unzip();
        let pieces = Pieces::of(map.unwrap_or_default(), data.clone(), file);
        SharedFile {
            path: path.to_owned(),
            fetcher: fetcher.clone(),
            data,
            disk,
            pieces: RwLock::new(Arc::new(pieces)),
            reading: RwLock::new(()),
            adopting: Mutex::new(()),
            ahead: ReadAhead::new(AHEAD, AHEAD, AHEAD + 1),
        }
    }

    /// Its path in the store when it was opened.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Its pieces.
    pub(super) fn pieces(&self) -> Arc<Pieces> {
        self.pieces.read().clone()
    }

    /// Whether it keeps what it fetches.
    pub(super) fn keeps(&self) -> bool {
        self.data.is_some()
    }

    /// Keeps bytes from going while the result lives: for reads, and for writes behind the end.
    pub(super) fn reading(&self) -> impl Drop + '_ {
        self.reading.read()
    }

    /// Claims a piece. `None`, after a wait, if the file has another layout by then.
    fn claim(&self, pieces: &Arc<Pieces>, piece: u32) -> Option<Claim<io::Error>> {
        let claim = pieces.claim(piece);
        if claim.is_none() {
            drop(self.adopting.lock());
        }
        claim
    }

    fn bytes_of(&self, piece: &Piece) -> io::Result<Arc<Vec<u8>>> {
        let bytes = self.fetcher.fetch(piece)?;
        if bytes.len() == piece.raw as usize {
            Ok(bytes)
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, "a piece has another length than its name says"))
        }
    }

    /// Fetches a claimed piece into the file, if the file takes it.
    fn fetch_claimed(&self, claim: Claim<io::Error>) -> Result<Got, Arc<io::Error>> {
        let pieces = claim.file().clone();
        let got = claim.piece().map_or(Ok(Got::Here), |piece| {
            let bytes = self.bytes_of(piece)?;
            if !self.keeps() {
                self.fetcher.unkept(piece, &bytes);
                return Ok(Got::Unkept(bytes));
            }
            if let Err(error) = claim.keep(&bytes) {
                self.fetcher.tell(&format!(
                    "fetched bytes cannot be written to {} ({error}); they are used and not kept",
                    self.path
                ));
                self.fetcher.unkept(piece, &bytes);
                return Ok(Got::Unkept(bytes));
            }
            Ok(Got::Here)
        });
        let got = claim.end(got.map_err(Arc::new));
        if pieces.unsaved() >= UNSAVED_MAX {
            self.save_or_tell();
        }
        got
    }

    /// Makes sure that the file has a piece. Returns its bytes if the file does not take them.
    fn fetch(&self, pieces: &Arc<Pieces>, piece: u32) -> io::Result<Got> {
        while !pieces.has(piece) {
            let ended = match pieces.begin(piece) {
                Some(claim) => Some(self.fetch_claimed(claim)),
                None => pieces.wait(piece),
            };
            if let Some(ended) = ended {
                return ended.map_err(|error| RemoteError::again(&error));
            }
            if pieces.is_retired() {
                drop(self.adopting.lock());
                break;
            }
        }
        Ok(Got::Here)
    }

    /// Makes sure that the file has the pieces of a range, as far as it takes them.
    pub(super) fn bring(self: &Arc<Self>, offset: u64, len: u64) -> io::Result<()> {
        let pieces = self.pieces();
        for piece in pieces.missing(offset, len) {
            self.fetch_for_reader(&pieces, piece)?;
        }
        Ok(())
    }

    /// [`fetch`](Self::fetch), and the pieces behind it if the reader goes through the file in order.
    pub(super) fn fetch_for_reader(self: &Arc<Self>, pieces: &Arc<Pieces>, piece: u32) -> io::Result<Got> {
        let ahead = self.ahead.after(piece);
        if self.keeps() {
            ahead.for_each(|next| self.fetch_ahead(pieces, next));
        }
        self.fetch(pieces, piece)
    }

    /// Fetches a piece on a thread of its own. A reader that waits for the piece gets the error, if there is one.
    fn fetch_ahead(self: &Arc<Self>, pieces: &Arc<Pieces>, piece: u32) {
        let Some(claim) = pieces.begin(piece) else { return };
        if AHEAD_NOW.fetch_add(1, Ordering::Relaxed) >= AHEAD_MAX {
            AHEAD_NOW.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let file = self.clone();
        let work = move || {
            if let Err(error) = file.fetch_claimed(claim) {
                log::debug!("{}: fetching ahead: {error}", file.path);
            }
            AHEAD_NOW.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = std::thread::Builder::new().name("ahead".to_owned()).spawn(work) {
            AHEAD_NOW.fetch_sub(1, Ordering::Relaxed);
            log::debug!("{}: read-ahead has stopped: {error}", self.path);
        }
    }

    /// Makes the pieces of a range own, because it is about to be written. Fetches those that are not here.
    pub(super) fn own(&self, offset: u64, len: u64) -> io::Result<()> {
        'again: loop {
            let pieces = self.pieces();
            for piece in pieces.layout().pieces_in(offset, len) {
                if pieces.state(piece) == PieceState::Own {
                    continue;
                }
                let Some(claim) = self.claim(&pieces, piece) else { continue 'again };
                let Some(data) = &self.data else { return Err(read_only()) };
                match (pieces.state(piece), claim.piece()) {
                    (PieceState::Own, _) | (_, None) => continue,
                    (PieceState::Remote, Some(found)) => claim.keep(&self.bytes_of(found)?)?,
                    (PieceState::Here, _) => {}
                }
                data.sync_data()?;
                pieces.record(&[piece], PieceState::Own)?;
            }
            return Ok(());
        }
    }

    /// Whether a range can be read without the remote.
    pub fn is_here(&self, offset: u64, len: u64) -> bool {
        self.pieces().missing(offset, len).is_empty()
    }

    /// The piece that consists of exactly these ranges, if the remote has it.
    pub fn piece_of(&self, ranges: &[Range<u64>]) -> Option<Piece> {
        self.pieces().piece_of(ranges)
    }

    /// Its pieces and their states.
    pub fn map(&self) -> PieceMap {
        self.pieces().to_map()
    }

    /// Gives back the space of pieces of a range that the remote has too. Returns the bytes of these pieces.
    pub fn evict(&self, offset: u64, len: u64) -> io::Result<u64> {
        let Some(data) = &self.data else { return Err(read_only()) };
        let (file, mut evicted) = (self.pieces(), 0);
        let layout = file.layout();
        for pieces in layout.pieces_in(offset, len).chunks(EVICTED_TOGETHER) {
            // Those beside them have bytes in the same pages.
            let mut claimed = layout.with_neighbours(pieces);
            let mut claims = Vec::new();
            for piece in &claimed {
                let Some(claim) = self.claim(&file, *piece) else { return Ok(evicted) };
                claims.push(claim);
            }
            let here = |piece: &&u32| file.state(**piece) == PieceState::Here;
            let gone: Vec<u32> = pieces.iter().filter(here).copied().collect();
            if gone.is_empty() {
                continue;
            }
            {
                let _alone = self.reading.write();
                gone.iter().for_each(|piece| file.left(*piece));
            }
            file.record(&gone, PieceState::Remote)?;
            claimed.retain(|piece| file.state(*piece) == PieceState::Remote);
            // Nobody writes other bytes of their pages meanwhile.
            let _alone = self.reading.write();
            let end = data.len()?;
            let is_free =
                |range: Range<u64>| layout.is_of(&range, &claimed) || is_zeros(data, &range).unwrap_or(false);
            for piece in &gone {
                for extent in layout.extents_of(*piece) {
                    let pages = pages_of(extent.offset..extent.end(), end, &is_free);
                    data.punch(Change::Evict, pages.start, pages.end - pages.start)?;
                }
                evicted += layout.piece(*piece).map_or(0, |piece| u64::from(piece.raw));
            }
        }
        Ok(evicted)
    }

    /// Fetches the pieces of a range that are here again, over what the file has. Returns whether there are any.
    pub fn refetch(&self, offset: u64, len: u64) -> io::Result<bool> {
        let (pieces, mut is_any) = (self.pieces(), false);
        if !self.keeps() {
            return Ok(false);
        }
        for piece in pieces.layout().pieces_in(offset, len) {
            let Some(claim) = self.claim(&pieces, piece) else { return Ok(true) };
            let Some(found) = claim.piece().filter(|_| pieces.state(piece) == PieceState::Here) else {
                continue;
            };
            claim.replace(&self.bytes_of(found)?)?;
            is_any = true;
        }
        Ok(is_any)
    }

    /// The bytes that the remote has for a range, also where the file has others. `None` if it lacks some.
    pub fn in_remote(&self, offset: u64, len: u32) -> io::Result<Option<Vec<u8>>> {
        let pieces = self.pieces();
        let layout = pieces.layout();
        if !layout.covers(&(offset..offset.saturating_add(u64::from(len)))) {
            return Ok(None);
        }
        let mut out = vec![0; len as usize];
        for piece in layout.pieces_in(offset, u64::from(len)) {
            let Some(found) = layout.piece(piece) else { return Ok(None) };
            layout.copy(piece, &self.bytes_of(found)?, &mut out, offset);
        }
        Ok(Some(out))
    }

    /// Gives the file these pieces, all bytes of which the remote has. Those that the file lacks become
    /// remote, the others are here. The caller keeps their bytes from being written.
    pub fn adopt(&self, map: PieceMap, is_rest_unused: bool) -> io::Result<()> {
        let (Some(data), Some(disk)) = (&self.data, &self.disk) else { return Err(read_only()) };
        let _adopting = self.adopting.lock();
        let before = self.pieces();
        before.retire();
        let adopted = before.save().and_then(|()| {
            let mut map = map;
            map.states = vec![PieceState::Here; map.pieces.len()];
            for extent in &map.extents {
                if before.lacks(&Range { start: extent.offset, end: extent.end() })
                    && let Some(state) = map.states.get_mut(extent.piece as usize)
                {
                    *state = PieceState::Remote;
                }
            }
            data.sync_data()?;
            let path = map_of(&self.path);
            replace_file(&**disk, &format!("{path}.new"), &path, &map.to_bytes())?;
            let file = disk.open(&path, Open::Write)?;
            if is_rest_unused {
                // Nobody writes there before there is the new layout.
                for rest in before.rest_of_here(&map.extents) {
                    data.punch(Change::Adopt, rest.start, rest.end - rest.start)?;
                }
            }
            *self.pieces.write() = Arc::new(Pieces::of(map, Some(data.clone()), Some(file)));
            Ok(())
        });
        if adopted.is_err() {
            before.go_on();
        }
        adopted
    }

    /// Makes what has arrived durable, and says so in the map.
    pub fn save(&self) -> io::Result<()> {
        self.pieces().save()
    }

    /// The same; a failure costs only requests.
    pub fn save_or_tell(&self) {
        if let Err(error) = self.save() {
            log::warn!("{}: pieces of it will be fetched again: {error}", self.path);
        }
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        self.save_or_tell();
    }
}

/// A range with the rest of its first and last page, where that is free. `end` is that of the file.
fn pages_of(range: Range<u64>, end: u64, is_free: &dyn Fn(Range<u64>) -> bool) -> Range<u64> {
    let (before, after) = (range.start / PAGE_BYTES * PAGE_BYTES, range.end.next_multiple_of(PAGE_BYTES));
    let from = if is_free(before..range.start) { before } else { range.start };
    let until = if is_free(range.end..after.min(end)) { after } else { range.end };
    from..until
}

/// Whether a range within a page has only zeros, or nothing.
fn is_zeros(file: &Arc<dyn File>, range: &Range<u64>) -> io::Result<bool> {
    let mut bytes = vec![0; range.end.saturating_sub(range.start).min(PAGE_BYTES) as usize];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}
