//! The pieces of a file of a clone in memory, and which of them somebody works on.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::format::snapshot::manifest::{FileExtent, Piece};
use crate::format::snapshot::piece_map::{PieceMap, PieceState};
use crate::store::disk::File;

/// The pieces of a file, their states, and the map on disk.
#[derive(Default)]
pub(super) struct Layout {
    pieces: Vec<Piece>,
    extents: Vec<FileExtent>,
    /// The extents of each piece, in the order of the piece.
    of_piece: Vec<Vec<FileExtent>>,
    states_at: u64,
    states: Mutex<States>,
    /// A piece was released.
    released: Condvar,
    /// The map. Held while a state in it is changed together with that in memory.
    map: Mutex<Option<Arc<dyn File>>>,
}

#[derive(Default)]
struct States {
    states: Vec<PieceState>,
    /// Pieces that a thread fetches, evicts or takes over.
    claimed: HashSet<u32>,
    /// Pieces that are here, while the map says that they are remote.
    unsaved: Vec<u32>,
    /// Another layout takes its place: nothing is claimed any more.
    is_retired: bool,
}

impl Layout {
    /// The layout of a map. `file` has the bytes of the map, and can be written if the store is.
    pub fn new(map: PieceMap, file: Option<Arc<dyn File>>) -> Layout {
        let mut of_piece: Vec<Vec<FileExtent>> = vec![Vec::new(); map.pieces.len()];
        for extent in &map.extents {
            if let Some(extents) = of_piece.get_mut(extent.piece as usize) {
                extents.push(*extent);
            }
        }
        of_piece.iter_mut().for_each(|extents| extents.sort_by_key(|extent| extent.piece_offset));
        let states_at = map.states_at();
        let PieceMap { pieces, extents, states } = map;
        let states = Mutex::new(States { states, ..States::default() });
        Layout {
            pieces,
            extents,
            of_piece,
            states_at,
            states,
            released: Condvar::new(),
            map: Mutex::new(file),
        }
    }

    /// A piece.
    pub fn piece(&self, piece: u32) -> Option<&Piece> {
        self.pieces.get(piece as usize)
    }

    /// The places of its bytes, in the order of the piece.
    pub fn extents_of(&self, piece: u32) -> &[FileExtent] {
        self.of_piece.get(piece as usize).map_or(&[], Vec::as_slice)
    }

    /// The extents in a range of the file, in order.
    pub fn extents_in(&self, offset: u64, len: u64) -> &[FileExtent] {
        let end = offset.saturating_add(len);
        let first = self.extents.partition_point(|extent| extent.end() <= offset);
        let last = self.extents.partition_point(|extent| extent.offset < end);
        self.extents.get(first..last.max(first)).unwrap_or_default()
    }

    /// The pieces with bytes in a range of the file, ascending.
    pub fn pieces_in(&self, offset: u64, len: u64) -> Vec<u32> {
        let mut found: Vec<u32> = self.extents_in(offset, len).iter().map(|extent| extent.piece).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The pieces that are in the remote only, of those with bytes in a range of the file.
    pub fn missing(&self, offset: u64, len: u64) -> Vec<u32> {
        let extents = self.extents_in(offset, len);
        if extents.is_empty() {
            return Vec::new();
        }
        let states = self.states.lock();
        let is_remote = |piece: &u32| states.states.get(*piece as usize) == Some(&PieceState::Remote);
        let mut found: Vec<u32> = extents.iter().map(|extent| extent.piece).filter(is_remote).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The first extent behind `offset` whose bytes are in the remote only.
    pub fn next_missing(&self, offset: u64) -> Option<&FileExtent> {
        let first = self.extents.partition_point(|extent| extent.end() <= offset);
        let states = self.states.lock();
        let is_remote =
            |extent: &&FileExtent| states.states.get(extent.piece as usize) == Some(&PieceState::Remote);
        self.extents.iter().skip(first).find(is_remote)
    }

    /// Whether the file has all bytes of its pieces.
    #[cfg(feature = "mount")]
    pub fn is_whole(&self) -> bool {
        !self.states.lock().states.contains(&PieceState::Remote)
    }

    /// The state of a piece.
    pub fn state(&self, piece: u32) -> PieceState {
        self.states.lock().states.get(piece as usize).copied().unwrap_or(PieceState::Own)
    }

    /// Waits until nobody works on a piece, and keeps others from it. `None` if another layout takes the
    /// place of this one.
    pub fn claim(self: &Arc<Layout>, piece: u32) -> Option<Claim> {
        let mut states = self.states.lock();
        loop {
            if states.is_retired {
                return None;
            }
            if states.claimed.insert(piece) {
                return Some(Claim { layout: self.clone(), piece });
            }
            self.released.wait(&mut states);
        }
    }

    /// Whether somebody works on a piece.
    pub fn is_claimed(&self, piece: u32) -> bool {
        self.states.lock().claimed.contains(&piece)
    }

    /// Waits until nobody works on any piece. From then on, nobody can.
    pub fn retire(&self) {
        let mut states = self.states.lock();
        states.is_retired = true;
        while !states.claimed.is_empty() {
            self.released.wait(&mut states);
        }
    }

    /// Takes that back.
    pub fn go_on(&self) {
        self.states.lock().is_retired = false;
        self.released.notify_all();
    }

    /// Notes that the file has the bytes of a piece. Returns the number of pieces that the map lacks.
    pub fn arrived(&self, piece: u32) -> usize {
        let mut states = self.states.lock();
        if let Some(state) = states.states.get_mut(piece as usize) {
            *state = PieceState::Here;
            states.unsaved.push(piece);
        }
        states.unsaved.len()
    }

    /// Notes that a piece is in the remote only. The map must say so before its bytes go.
    pub fn left(&self, piece: u32) {
        let mut states = self.states.lock();
        if let Some(state) = states.states.get_mut(piece as usize) {
            *state = PieceState::Remote;
        }
        states.unsaved.retain(|unsaved| *unsaved != piece);
    }

    /// Makes the states of these pieces in the map durable, and then those in memory.
    pub fn record(&self, pieces: &[u32], state: PieceState) -> io::Result<()> {
        let map = self.map.lock();
        if let Some(map) = &*map {
            for piece in pieces {
                map.write_at(&[state.byte()], self.states_at.saturating_add(u64::from(*piece)))?;
            }
            map.sync_data()?;
        }
        let mut states = self.states.lock();
        for piece in pieces {
            if let Some(now) = states.states.get_mut(*piece as usize) {
                *now = state;
            }
            states.unsaved.retain(|unsaved| unsaved != piece);
        }
        Ok(())
    }

    /// Makes the bytes that have arrived in `data` durable, and says so in the map.
    pub fn save(&self, data: &Arc<dyn File>) -> io::Result<()> {
        let unsaved = std::mem::take(&mut self.states.lock().unsaved);
        if unsaved.is_empty() {
            return Ok(());
        }
        let saved = data.sync_data().and_then(|()| {
            let map = self.map.lock();
            let Some(map) = &*map else { return Ok(()) };
            for piece in unsaved.iter().filter(|piece| self.state(**piece) == PieceState::Here) {
                map.write_at(&[PieceState::Here.byte()], self.states_at.saturating_add(u64::from(*piece)))?;
            }
            Ok(())
        });
        if saved.is_err() {
            self.states.lock().unsaved.extend(unsaved);
        }
        saved
    }

    /// Writes the bytes of a piece to their places in `data`, as far as the file reaches.
    pub fn put(&self, data: &Arc<dyn File>, piece: u32, bytes: &[u8]) -> io::Result<()> {
        let end = data.len()?;
        for extent in self.extents_of(piece) {
            let from = extent.piece_offset as usize;
            let len = u64::from(extent.len).min(end.saturating_sub(extent.offset)) as usize;
            let part = bytes.get(from..from.saturating_add(len)).ok_or(io::ErrorKind::InvalidData)?;
            if !part.is_empty() {
                data.write_at(part, extent.offset)?;
                data.begin_sync(extent.offset, part.len() as u64)?;
            }
        }
        Ok(())
    }

    /// Copies those bytes of a piece that stand in a range of the file.
    pub fn copy(&self, piece: u32, bytes: &[u8], buffer: &mut [u8], offset: u64) {
        let end = offset.saturating_add(buffer.len() as u64);
        for extent in self.extents_of(piece) {
            let (from, until) = (extent.offset.max(offset), extent.end().min(end));
            if from >= until {
                continue;
            }
            let in_piece = u64::from(extent.piece_offset) + (from - extent.offset);
            let source = bytes.get(in_piece as usize..(in_piece + (until - from)) as usize);
            let target = buffer.get_mut((from - offset) as usize..(until - offset) as usize);
            if let (Some(source), Some(target)) = (source, target) {
                target.copy_from_slice(source);
            }
        }
    }

    /// The piece that consists of exactly these ranges of the file, if the remote has it.
    pub fn piece_of(&self, ranges: &[Range<u64>]) -> Option<Piece> {
        let begin = ranges.first()?.start;
        let at = self.extents.partition_point(|extent| extent.end() <= begin);
        let first = self.extents.get(at)?;
        let piece = *self.piece(first.piece)?;
        // The same piece may stand in several places.
        let (mut joined, mut bytes): (Vec<Range<u64>>, u32) = (Vec::new(), 0);
        for extent in self.extents.get(at..)? {
            if extent.piece != first.piece || extent.piece_offset != bytes || bytes >= piece.raw {
                break;
            }
            bytes = bytes.saturating_add(extent.len);
            match joined.last_mut() {
                Some(last) if last.end == extent.offset => last.end = extent.end(),
                _ => joined.push(extent.offset..extent.end()),
            }
        }
        let is_it = joined == ranges && bytes == piece.raw;
        (is_it && self.state(first.piece) != PieceState::Own).then_some(piece)
    }

    /// These pieces and those beside them in the file, ascending.
    pub fn with_neighbours(&self, pieces: &[u32]) -> Vec<u32> {
        let mut found = pieces.to_vec();
        for extent in pieces.iter().flat_map(|piece| self.extents_of(*piece)) {
            let at = self.extents.partition_point(|other| other.end() <= extent.offset);
            let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
            found.extend(beside.filter_map(|at| self.extents.get(at)).map(|beside| beside.piece));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether the file lacks bytes of a range.
    pub fn lacks(&self, range: &Range<u64>) -> bool {
        !self.missing(range.start, range.end.saturating_sub(range.start)).is_empty()
    }

    /// Whether these pieces have all bytes of a range.
    pub fn is_of(&self, range: &Range<u64>, pieces: &[u32]) -> bool {
        let mut at = range.start;
        for extent in self.extents_in(range.start, range.end.saturating_sub(range.start)) {
            if extent.offset > at || pieces.binary_search(&extent.piece).is_err() {
                return false;
            }
            at = extent.end();
        }
        at >= range.end
    }

    /// The bytes of the pieces that are here, without those in `extents`, which are ascending.
    pub fn rest_of_here(&self, extents: &[FileExtent]) -> Vec<Range<u64>> {
        let mut rest = Vec::new();
        for extent in self.extents.iter().filter(|extent| self.state(extent.piece) == PieceState::Here) {
            let mut at = extent.offset;
            let first = extents.partition_point(|other| other.end() <= extent.offset);
            for other in extents.iter().skip(first).take_while(|other| other.offset < extent.end()) {
                if other.offset > at {
                    rest.push(at..other.offset);
                }
                at = at.max(other.end());
            }
            if at < extent.end() {
                rest.push(at..extent.end());
            }
        }
        rest
    }

    /// Its map as it is in memory.
    pub fn to_map(&self) -> PieceMap {
        let states = self.states.lock().states.clone();
        PieceMap { pieces: self.pieces.clone(), extents: self.extents.clone(), states }
    }
}

/// A piece that this thread works on.
pub(super) struct Claim {
    layout: Arc<Layout>,
    piece: u32,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.layout.states.lock().claimed.remove(&self.piece);
        self.layout.released.notify_all();
    }
}
