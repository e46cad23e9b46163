//! A file that consists of pieces: their states, the data, and the map on disk.
//!
//! Invariants:
//! 1. The map says that a piece is here only once its bytes are durable, and that it is remote before they go.
//!    The map of a cache says before that whether a piece has arrived, for the other processes that use it.
//! 2. A piece is here, in memory, only once its bytes were compared with its name and written.
//! 3. One claim a piece: who holds it fetches, evicts or takes over the piece, and all others wait for the end.
//! 4. Bytes that a reader or the kernel may have open are replaced only by bytes that were compared.

mod claim;
mod states;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex};
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::format::snapshot::manifest::{FileExtent, Piece};
use crate::format::snapshot::piece_map::{DIGEST_BYTES, Digest, MapPlaces, PieceMap, PieceState};
use crate::store::disk::change::Change;
use crate::store::disk::{Advice, Disk, File, remove_if_present};
use crate::store::pieces::layout::Layout;
use crate::store::pieces::map_of;

pub use claim::Claim;

/// Pieces with more extents than this are gathered in memory and then written.
const EXTENTS_MAX: usize = 64;
/// Bytes that a check reads at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// A file, its pieces and its map. `E` is the error of those who fetch.
pub struct PieceFile<E> {
    layout: Arc<Layout>,
    /// The file, to write pieces into it. `None` of one that keeps nothing.
    data: Option<Arc<dyn File>>,
    /// The map on disk. It can be written if the file can.
    map: Option<Arc<dyn File>>,
    /// Held while states in the map are changed, or read, together with those in memory.
    changing: Mutex<()>,
    places: MapPlaces,
    /// Whether the map has digests: other processes may read and write the same file.
    is_shared: bool,
    table: Mutex<Table<E>>,
    /// A claim has ended.
    released: Condvar,
    /// Held while arriving bytes are written: the kernel lets one writer into a file, and others would spin.
    turn: Mutex<()>,
    /// It has lost its names: nothing is saved any more.
    is_removed: AtomicBool,
    /// A sync has failed, so some bytes may be lost.
    has_lost: AtomicBool,
}

struct Table<E> {
    states: Vec<PieceState>,
    /// How many pieces are remote.
    remote: usize,
    /// For each piece that is here, the BLAKE3 of its bytes; `None` of a file that cannot be checked alone.
    digests: Option<Vec<Digest>>,
    claims: HashMap<u32, Arc<Claimed<E>>>,
    /// Pieces whose state the map lacks.
    unsaved: BTreeSet<u32>,
    /// Pieces that were here and had wrong bytes.
    suspects: BTreeSet<u32>,
    /// Another layout takes its place: nothing is claimed any more.
    is_retired: bool,
}

/// The end of a claim, for those who wait: `None` if the piece has to be looked at again.
type Claimed<E> = OnceLock<Option<Result<Got, Arc<E>>>>;

/// Where the bytes of a piece are.
#[derive(Clone)]
pub enum Got {
    /// In the file.
    Here,
    /// In memory, since the file did not take them.
    Unkept(Arc<Vec<u8>>),
}

/// The findings of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Bytes of the pieces that were compared.
    pub bytes: u64,
    /// Pieces that are right.
    pub right: u64,
    /// Pieces that differ from their digests, or cannot be read.
    pub wrong: Vec<u32>,
}

impl<E> Table<E> {
    fn state(&self, piece: u32) -> Option<PieceState> {
        self.states.get(piece as usize).copied()
    }

    fn set(&mut self, piece: u32, state: PieceState) {
        if let Some(now) = self.states.get_mut(piece as usize) {
            let is_remote = |state: PieceState| usize::from(state == PieceState::Remote);
            self.remote = self.remote + is_remote(state) - is_remote(*now);
            *now = state;
        }
    }

    /// Notes that a piece is here, and the digest of its bytes.
    fn arrive(&mut self, piece: u32, digest: Option<Digest>, is_durable: bool) {
        self.set(piece, PieceState::Here);
        self.suspects.remove(&piece);
        if !is_durable {
            self.unsaved.insert(piece);
        }
        let slot = self.digests.as_mut().and_then(|digests| digests.get_mut(piece as usize));
        if let (Some(slot), Some(digest)) = (slot, digest) {
            *slot = digest;
        }
    }
}

impl<E> PieceFile<E> {
    /// The file of a layout whose pieces have these states. With digests it can be checked without the remote.
    pub fn new(
        layout: Arc<Layout>,
        states: Vec<PieceState>,
        digests: Option<Vec<Digest>>,
        data: Option<Arc<dyn File>>,
        map: Option<Arc<dyn File>>,
    ) -> PieceFile<E> {
        let is_shared = digests.is_some();
        let places = MapPlaces::of(layout.piece_count() as usize, layout.extents().len(), is_shared);
        let table = Table {
            remote: states.iter().filter(|state| **state == PieceState::Remote).count(),
            states,
            digests,
            claims: HashMap::new(),
            unsaved: BTreeSet::new(),
            suspects: BTreeSet::new(),
            is_retired: false,
        };
        if let Some(data) = data.as_ref().filter(|_| table.remote > 0)
            && let Err(error) = data.advise(Advice::ReadAsAsked, 0, layout.bytes())
        {
            log::debug!("the kernel reads ahead in a file that is not whole: {error}");
        }
        PieceFile {
            layout,
            data,
            map,
            changing: Mutex::new(()),
            places,
            is_shared,
            table: Mutex::new(table),
            released: Condvar::new(),
            turn: Mutex::new(()),
            is_removed: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
        }
    }

    /// The file of a map.
    pub fn of(map: PieceMap, data: Option<Arc<dyn File>>, file: Option<Arc<dyn File>>) -> PieceFile<E> {
        let PieceMap { pieces, extents, states, check } = map;
        let (bytes, digests) = check.map(|check| (check.bytes, check.digests)).unzip();
        let layout = Arc::new(Layout::new(bytes.unwrap_or(0), pieces, extents));
        PieceFile::new(layout, states, digests, data, file)
    }

    /// Its pieces.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The state of a piece. Bytes of no piece are its own.
    pub fn state(&self, piece: u32) -> PieceState {
        self.table.lock().state(piece).unwrap_or(PieceState::Own)
    }

    /// Whether the file has a piece.
    pub fn has(&self, piece: u32) -> bool {
        self.state(piece) != PieceState::Remote
    }

    /// Whether the file has all bytes of its pieces.
    pub fn is_whole(&self) -> bool {
        self.table.lock().remote == 0
    }

    /// Whether the file lacks bytes of a range.
    pub fn lacks(&self, range: &Range<u64>) -> bool {
        !self.missing(range.start, range.end.saturating_sub(range.start)).is_empty()
    }

    /// The pieces that are in the remote only, of those with bytes in a range of the file, ascending.
    pub fn missing(&self, offset: u64, len: u64) -> Vec<u32> {
        let mut found = self.layout.pieces_in(offset, len);
        if !found.is_empty() {
            let table = self.table.lock();
            found.retain(|piece| table.state(*piece) == Some(PieceState::Remote));
        }
        found
    }

    /// The first extent behind `offset` whose bytes are in the remote only.
    pub fn next_missing(&self, offset: u64) -> Option<&FileExtent> {
        let table = self.table.lock();
        let is_remote = |extent: &&FileExtent| table.state(extent.piece) == Some(PieceState::Remote);
        self.layout.extents_behind(offset).iter().find(is_remote)
    }

    /// The piece that consists of exactly these ranges of the file, if the remote has it.
    pub fn piece_of(&self, ranges: &[Range<u64>]) -> Option<Piece> {
        let piece = self.layout.piece_of(ranges)?;
        self.layout.piece(piece).copied().filter(|_| self.state(piece) != PieceState::Own)
    }

    /// The bytes of the pieces that are here, without those in `extents`, which ascend.
    pub fn rest_of_here(&self, extents: &[FileExtent]) -> Vec<Range<u64>> {
        let mut rest = Vec::new();
        let extents_here =
            self.layout.extents().iter().filter(|extent| self.state(extent.piece) == PieceState::Here);
        for extent in extents_here {
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
        let table = self.table.lock();
        self.layout.to_map(table.states.clone(), table.digests.clone())
    }

    /// Claims a piece that only the remote has, unless somebody works on it.
    pub fn begin(self: &Arc<Self>, piece: u32) -> Option<Claim<E>> {
        let mut table = self.table.lock();
        let is_free = table.state(piece) == Some(PieceState::Remote) && !table.claims.contains_key(&piece);
        (is_free && !table.is_retired).then(|| self.claimed(&mut table, piece))
    }

    /// Whether the remote alone has a piece, and nobody works on it.
    pub fn is_wanted(&self, piece: u32) -> bool {
        let table = self.table.lock();
        table.state(piece) == Some(PieceState::Remote) && !table.claims.contains_key(&piece)
    }

    /// Waits until the thread that has claimed a piece is done with it. `None` if no thread has, or if the caller has to
    /// look at the state of the piece again.
    pub fn wait(&self, piece: u32) -> Option<Result<Got, Arc<E>>> {
        let mut table = self.table.lock();
        let claimed = table.claims.get(&piece)?.clone();
        loop {
            match claimed.get() {
                Some(ended) => return ended.clone(),
                None => self.released.wait(&mut table),
            }
        }
    }

    /// Waits until nobody works on a piece, and keeps others from it. `None` if another layout takes the
    /// place of this one.
    pub fn claim(self: &Arc<Self>, piece: u32) -> Option<Claim<E>> {
        let mut table = self.table.lock();
        while !table.is_retired {
            if !table.claims.contains_key(&piece) {
                return Some(self.claimed(&mut table, piece));
            }
            self.released.wait(&mut table);
        }
        None
    }

    fn claimed(self: &Arc<Self>, table: &mut Table<E>, piece: u32) -> Claim<E> {
        let claimed = Arc::new(Claimed::new());
        table.claims.insert(piece, claimed.clone());
        Claim { file: self.clone(), piece, claimed, ended: None }
    }

    /// Waits until nobody works on any piece. From then on, nobody can.
    pub fn retire(&self) {
        let mut table = self.table.lock();
        table.is_retired = true;
        while !table.claims.is_empty() {
            self.released.wait(&mut table);
        }
    }

    /// Takes that back.
    pub fn go_on(&self) {
        self.table.lock().is_retired = false;
        self.released.notify_all();
    }

    /// Whether another layout has taken its place, or is about to.
    pub fn is_retired(&self) -> bool {
        self.table.lock().is_retired
    }

    /// Notes that a piece is in the remote only. The map must say so before its bytes go.
    pub fn left(&self, piece: u32) {
        let mut table = self.table.lock();
        table.set(piece, PieceState::Remote);
        table.unsaved.remove(&piece);
    }

    /// Removes the file and its map. Those who have it open read on, and nothing is saved any more.
    pub fn remove(&self, disk: &dyn Disk, path: &str) -> io::Result<()> {
        let _changing = self.changing.lock();
        self.is_removed.store(true, Ordering::Release);
        remove(disk, path)
    }

    /// Whether it was removed.
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Writes the bytes of a piece to their places, as far as the file reaches.
    fn put(&self, data: &dyn File, piece: u32, bytes: &[u8]) -> io::Result<()> {
        let end = data.len()?;
        for extent in self.layout.extents_of(piece) {
            let from = extent.piece_offset as usize;
            let len = u64::from(extent.len).min(end.saturating_sub(extent.offset)) as usize;
            let part = bytes.get(from..from.saturating_add(len)).ok_or(io::ErrorKind::InvalidData)?;
            if !part.is_empty() {
                data.write_at(part, extent.offset)?;
                data.advise(Advice::WillSync, extent.offset, part.len() as u64)?;
            }
        }
        Ok(())
    }

    /// The bytes that the same piece stands for, compared with those of the map. `None` if the file lacks some of them,
    /// or has others.
    pub fn read_like(&self, wanted: &Piece) -> Option<Vec<u8>> {
        let piece = self.layout.piece_like(wanted)?;
        let wanted = {
            let table = self.table.lock();
            let digests = table.digests.as_ref().filter(|_| table.state(piece) == Some(PieceState::Here))?;
            *digests.get(piece as usize)?
        };
        let mut bytes = vec![0; self.layout.piece(piece)?.raw as usize];
        let mut extents = self.layout.extents_of(piece).to_vec();
        extents.sort_unstable_by_key(|extent| extent.piece_offset);
        let mut end = 0;
        for extent in extents {
            // The same bytes may stand in two places.
            if extent.piece_offset > end {
                return None;
            }
            let from = extent.piece_offset as usize;
            let part = bytes.get_mut(from..from + extent.len as usize)?;
            self.data.as_ref()?.read_exact_at(part, extent.offset).ok()?;
            end = end.max(extent.piece_offset + extent.len);
        }
        (end as usize == bytes.len() && self.layout.digest(piece, &bytes) == wanted).then_some(bytes)
    }

    /// Whether the bytes of a piece that is here are those of its digest.
    pub fn is_right(&self, piece: u32) -> io::Result<bool> {
        let wanted = {
            let table = self.table.lock();
            table.digests.as_ref().and_then(|digests| digests.get(piece as usize)).copied()
        };
        match (&self.data, wanted) {
            (Some(data), Some(wanted)) => Ok(digest_of(&**data, self.layout.extents_of(piece))? == wanted),
            _ => Ok(false),
        }
    }

    /// Compares the pieces that are here with their digests. Nobody else may use the file.
    pub fn check(&self) -> Checked {
        let (Some(data), table) = (&self.data, self.table.lock()) else { return Checked::default() };
        let digests = table.digests.iter().flatten();
        let here = (0..).zip(table.states.iter().zip(digests));
        let here: Vec<(u32, Digest)> = here
            .filter(|(_, (state, _))| **state == PieceState::Here)
            .map(|(piece, (_, digest))| (piece, *digest))
            .collect();
        drop(table);
        let layout = &self.layout;
        let compared: Vec<(u32, u64, bool)> = here
            .into_par_iter()
            .map(|(piece, wanted)| {
                let extents = layout.extents_of(piece);
                let bytes = extents.iter().map(|extent| u64::from(extent.len)).sum();
                (piece, bytes, digest_of(&**data, extents).is_ok_and(|found| found == wanted))
            })
            .collect();
        let wrong: Vec<u32> =
            compared.iter().filter(|(.., is_right)| !is_right).map(|(piece, ..)| *piece).collect();
        Checked {
            bytes: compared.iter().map(|(_, bytes, _)| bytes).sum(),
            right: (compared.len() - wrong.len()) as u64,
            wrong,
        }
    }

    /// Gives the space of pieces back that are remote, durably or not.
    pub fn punch(&self, pieces: &[u32]) -> io::Result<()> {
        let Some(data) = &self.data else { return Ok(()) };
        let mut extents = pieces.iter().flat_map(|piece| self.layout.extents_of(*piece));
        extents.try_for_each(|extent| data.punch(Change::Evict, extent.offset, extent.len.into()))
    }
}

/// The BLAKE3 of the bytes in these extents.
fn digest_of(file: &dyn File, extents: &[FileExtent]) -> io::Result<Digest> {
    let (mut hasher, mut buffer) = (blake3::Hasher::new(), vec![0; BUFFER_BYTES]);
    for extent in extents {
        let mut at = extent.offset;
        while at < extent.end() {
            let len = (extent.end() - at).min(BUFFER_BYTES as u64);
            let part = buffer.get_mut(..len as usize).unwrap_or_default();
            file.read_exact_at(part, at)?;
            hasher.update(part);
            at += len;
        }
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Removes a file and its map.
pub fn remove(disk: &dyn Disk, path: &str) -> io::Result<()> {
    remove_if_present(disk, &map_of(path))?;
    remove_if_present(disk, path)
}

/// Digests of pieces that are not here.
pub fn no_digests(layout: &Layout) -> Vec<Digest> {
    vec![[0; DIGEST_BYTES]; layout.piece_count() as usize]
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use proptest::prelude::*;

    use super::*;
    use crate::format::snapshot::keys::PieceName;
    use crate::format::snapshot::manifest::PieceEncoding;
    use crate::store::disk::Open;
    use crate::store::disk::forward::ForwardFile;
    use crate::store::disk::memory::{MemoryDisk, unnamed_file};
    use crate::store::disk::write_new;
    use crate::store::pieces::read_map;

    const PIECES: u32 = 5;
    const LEN: u32 = 100;

    /// The bytes of a piece.
    fn bytes(piece: u32) -> Vec<u8> {
        (0..LEN).map(|at| (piece * 31 + at) as u8 | 1).collect()
    }

    /// Pieces of 100 bytes, one behind the other.
    fn layout() -> Arc<Layout> {
        let described = |piece: u32| {
            let name = PieceName { digest: *blake3::hash(&bytes(piece)).as_bytes(), generation: 0 };
            Piece { name, stored: LEN, raw: LEN, encoding: PieceEncoding::Raw }
        };
        let extent =
            |piece: u32| FileExtent { offset: (piece * LEN).into(), piece, piece_offset: 0, len: LEN };
        let (pieces, extents) = ((0..PIECES).map(described).collect(), (0..PIECES).map(extent).collect());
        Arc::new(Layout::new((PIECES * LEN).into(), pieces, extents))
    }

    fn empty(data: Arc<dyn File>, map: Option<Arc<dyn File>>) -> Arc<PieceFile<String>> {
        let layout = layout();
        data.set_len(layout.bytes()).unwrap();
        let (states, digests) = (vec![PieceState::Remote; PIECES as usize], no_digests(&layout));
        Arc::new(PieceFile::new(layout, states, Some(digests), Some(data), map))
    }

    /// A file that counts how often it was advised to read as asked.
    struct Advised(Arc<dyn File>, Arc<AtomicUsize>);

    impl ForwardFile for Advised {
        fn inner(&self) -> &dyn File {
            &*self.0
        }

        fn advise(&self, advice: Advice, _offset: u64, _len: u64) -> io::Result<()> {
            self.1.fetch_add(usize::from(advice == Advice::ReadAsAsked), Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn a_file_is_read_ahead_only_if_it_is_whole() {
        for (lacking, advised) in [(0, 0), (1, 1), (PIECES as usize, 1)] {
            let count = Arc::new(AtomicUsize::new(0));
            let data: Arc<dyn File> = Arc::new(Advised(unnamed_file(), count.clone()));
            let mut states = vec![PieceState::Here; PIECES as usize];
            states[..lacking].fill(PieceState::Remote);
            let _file = PieceFile::<String>::new(layout(), states, None, Some(data), None);
            assert_eq!(count.load(Ordering::Relaxed), advised, "{lacking} pieces are not here");
        }
    }

    /// The map of a file without pieces.
    fn new_map(disk: &MemoryDisk) -> Arc<dyn File> {
        let (states, digests) = (vec![PieceState::Remote; PIECES as usize], no_digests(&layout()));
        write_new(disk, "file.map", &layout().to_map(states, Some(digests)).to_bytes()).unwrap()
    }

    fn fetch(file: &Arc<PieceFile<String>>, piece: u32) {
        let Some(claim) = file.begin(piece) else { return };
        if claim.may_arrive() {
            let mut arrival = claim.arrival().unwrap();
            let whole = bytes(piece);
            whole.chunks(7).for_each(|chunk| arrival.take(chunk).unwrap());
            let digest = arrival.finish().unwrap();
            assert_eq!(digest, claim.piece().unwrap().name.digest);
            claim.arrived(Some(digest)).unwrap();
        } else {
            claim.keep(&bytes(piece)).unwrap();
        }
        assert!(claim.end(Ok(Got::Here)).is_ok());
    }

    /// A file that loses unsynced bytes in a power cut.
    struct Losing {
        file: Arc<dyn File>,
        durable: Mutex<Vec<u8>>,
        fails: AtomicBool,
    }

    impl Losing {
        fn new() -> Arc<Losing> {
            let (file, durable) = (unnamed_file(), vec![0; (PIECES * LEN) as usize]);
            Arc::new(Losing { file, durable: Mutex::new(durable), fails: AtomicBool::new(false) })
        }
    }

    impl ForwardFile for Losing {
        fn inner(&self) -> &dyn File {
            &*self.file
        }

        fn sync_data(&self) -> io::Result<()> {
            if self.fails.swap(false, Ordering::Relaxed) {
                // Pages that could not be written are gone, and the next sync succeeds.
                self.file.write_at(&self.durable.lock(), 0)?;
                return Err(io::Error::other("the disk"));
            }
            self.file.read_exact_at(&mut self.durable.lock(), 0)
        }
    }

    proptest! {
        #[test]
        fn a_map_never_has_a_piece_whose_bytes_a_power_cut_takes(
            steps in prop::collection::vec((0_u8..6, 0..PIECES), 1..60),
        ) {
            let (disk, data) = (MemoryDisk::new(), Losing::new());
            let map = new_map(&disk);
            let file = empty(data.clone(), Some(map));
            for (step, piece) in steps {
                match step {
                    0 | 1 => fetch(&file, piece),
                    2 => file.save().unwrap(),
                    3 => drop(file.forget(&[piece])),
                    // The bytes of an evicted piece go once its state is durable.
                    4 if file.state(piece) == PieceState::Here => {
                        file.left(piece);
                        file.record(&[piece], PieceState::Remote).unwrap();
                        file.punch(&[piece]).unwrap();
                        data.file.write_at(&[0; LEN as usize], (piece * LEN).into()).unwrap();
                    }
                    _ => {
                        data.fails.store(true, Ordering::Relaxed);
                        let before = file.unsaved();
                        prop_assert_eq!(file.save().is_err(), before > 0);
                        data.fails.store(false, Ordering::Relaxed);
                    }
                }
                let Ok(saved) = disk.open("file.map", Open::Read) else { continue };
                let saved = read_map(&*saved).unwrap();
                let durable = data.durable.lock().clone();
                for piece in (0..PIECES).filter(|piece| saved.states[*piece as usize] == PieceState::Here) {
                    let at = (piece * LEN) as usize;
                    prop_assert!(durable[at..at + LEN as usize] == bytes(piece), "piece {}", piece);
                    let digests = &saved.check.as_ref().unwrap().digests;
                    prop_assert_eq!(digests[piece as usize], *blake3::hash(&bytes(piece)).as_bytes());
                }
            }
            let here = (0..PIECES).filter(|piece| file.has(*piece)).count();
            prop_assert_eq!(file.is_whole(), here == PIECES as usize);
            file.save().unwrap();
            if let Ok(saved) = disk.open("file.map", Open::Read) {
                prop_assert_eq!(read_map(&*saved).unwrap().states, file.to_map().states);
            }
        }
    }

    #[test]
    fn one_claim_brings_a_piece_and_all_who_wait_get_its_end() {
        let file = empty(unnamed_file(), None);
        for (piece, is_kept) in [(0, true), (1, false)] {
            let claim = file.begin(piece).unwrap();
            assert!(file.begin(piece).is_none());
            std::thread::scope(|scope| {
                let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| file.wait(piece))).collect();
                // They wait for this claim: it is taken off only after its end is known.
                std::thread::yield_now();
                let got = if is_kept {
                    Ok(Got::Unkept(Arc::new(bytes(piece))))
                } else {
                    Err(Arc::new("no".to_owned()))
                };
                drop(claim.end(got));
                for waited in waiting {
                    // One that came too late looks again.
                    match waited.join().unwrap() {
                        Some(Ok(Got::Unkept(found))) => assert!(is_kept && *found == bytes(piece)),
                        Some(Err(text)) => assert!(!is_kept && *text == "no"),
                        Some(Ok(Got::Here)) => panic!("it is not here"),
                        None => {}
                    }
                }
            });
            assert!(!file.has(piece) && file.begin(piece).is_some());
        }
    }

    #[test]
    fn a_check_finds_other_bytes_which_are_then_fetched_before_they_are_written() {
        let data = unnamed_file();
        let file = empty(data.clone(), None);
        (0..PIECES).for_each(|piece| fetch(&file, piece));
        assert!(file.is_whole() && file.check().wrong.is_empty());
        data.write_at(&[0], 250).unwrap();
        let found = file.check();
        assert_eq!((found.bytes, found.right, found.wrong.as_slice()), (500, 4, [2].as_slice()));
        assert_eq!((file.forget(&found.wrong), file.forget(&found.wrong)), (vec![2], vec![]));
        assert!(!file.is_whole() && !file.begin(2).unwrap().may_arrive());
        fetch(&file, 2);
        assert!(file.is_whole() && file.check().wrong.is_empty());
        assert!(file.claim(2).unwrap().may_arrive());
    }

    #[test]
    fn a_removed_file_saves_nothing_under_its_name() {
        let disk = MemoryDisk::new();
        let file = empty(disk.open("file", Open::Create).unwrap(), Some(new_map(&disk)));
        fetch(&file, 1);
        file.save().unwrap();
        file.remove(&disk, "file").unwrap();
        fetch(&file, 2);
        file.save().unwrap();
        assert!(disk.list("").unwrap().is_empty() && file.is_removed());
    }
}
