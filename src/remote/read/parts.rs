//! Parts of pieces, for readers that read here and there: a piece of 8 MiB for each of their 4 KiB would be a thousand times
//! the bytes.
//!
//! Of a source that nobody has read there are no checksums: a part, as the piece, is held to the version of the object, and
//! may be given out again. Of others, nobody compares a part with the name of its piece. The store compares each block with its CRC32C when it reads the block
//! for the first time, and whole; afterwards it may read a part of the block and trust it. So a byte is given out as a part
//! only once: a later read of it gets the bytes that were compared, from memory, or the piece, which is compared with its
//! name. A piece that was read whole is never read in parts.
//!
//! A reader has come upon a run when some of the last reads touch each other and are longer than the kernel reads ahead for a
//! single page. From then on all of the file is read in pieces, and so is a piece of which half was given out. The
//! beginning of a file is read for its header or for all of it, so its first piece is never read in parts.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::format::snapshot::manifest::Piece;
use crate::store::pieces::layout::Layout;

/// A part of bytes that nobody has read has a multiple of this: a reader probably wants others of them next. Another part has
/// whole blocks.
const UNREAD_BYTES: u64 = 32 << 10;
/// A longer read wants the piece.
const PART_BYTES_MAX: u64 = 256 << 10;
/// Reads that touch each other and have more bytes are a run. A read of 4 KiB may want two blocks.
const RUN_BYTES: u64 = 256 << 10;
/// The last places where a file was read, any of which may become a run: several threads read ahead for one reader.
const LAST_MAX: usize = 6;
/// Bytes of parts that are kept in memory, of all files.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// Makes numbers of files differ.
static FILES: AtomicU64 = AtomicU64::new(0);

/// The parts of a file that were given out.
pub(in crate::remote) struct Parts {
    /// The number of the file: a block that was checked is so by the bytes that this file gave.
    id: u64,
    /// Whether there are no checksums of its blocks.
    is_unread: bool,
    /// Pieces that are not read in parts any more.
    whole: Box<[AtomicBool]>,
    has_run: AtomicBool,
    /// Whether somebody has read any of the file.
    is_read: AtomicBool,
    reads: Mutex<Reads>,
    ended: Condvar,
}

#[derive(Default)]
struct Reads {
    /// By the place of the piece.
    given: HashMap<u32, Given>,
    /// The last reads. Those that touched are one range.
    last: VecDeque<Range<u64>>,
}

/// Parts of a piece that were given out.
#[derive(Default)]
struct Given {
    /// Ranges of the file, ascending, that do not touch.
    ranges: Vec<Range<u64>>,
    /// Their bytes; those that were given out again count again.
    bytes: u64,
    /// Those on their way.
    coming: Vec<Range<u64>>,
}

/// How a read gets its bytes.
pub(in crate::remote) enum PartOf<'a> {
    /// By the piece.
    Piece,
    /// By a request for the range before the piece: nobody has read any of the file.
    First,
    /// They are in memory.
    Kept(Vec<u8>),
    /// By a request for the range of the piece.
    Request(Coming<'a>),
}

/// A part on its way. Others who want its bytes wait until it is dropped.
pub(in crate::remote) struct Coming<'a> {
    parts: &'a Parts,
    place: u32,
    range: Range<u64>,
}

impl Parts {
    pub fn new(pieces: u32) -> Parts {
        let whole = (0..pieces).map(|place| AtomicBool::new(place == 0)).collect();
        let id = FILES.fetch_add(1, Ordering::Relaxed);
        Parts {
            id,
            is_unread: false,
            whole,
            has_run: AtomicBool::new(false),
            is_read: AtomicBool::new(false),
            reads: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// The same of a file without checksums of its blocks.
    pub fn unread(pieces: u32) -> Parts {
        Parts { is_unread: true, ..Parts::new(pieces) }
    }

    /// Notes that a piece is read, or was.
    pub fn note_whole(&self, place: u32) {
        self.is_read.store(true, Ordering::Relaxed);
        if let Some(whole) = self.whole.get(place as usize)
            && !whole.swap(true, Ordering::Relaxed)
        {
            self.reads.lock().given.remove(&place);
        }
    }

    /// Notes a read that wants pieces.
    pub fn note_read(&self, range: &Range<u64>) {
        if !self.has_run.load(Ordering::Relaxed) && self.reads.lock().note(range) > RUN_BYTES {
            self.has_run.store(true, Ordering::Relaxed);
        }
    }

    /// The part to ask for of a file with this layout where a range is wanted that lies in one piece.
    pub fn around(&self, range: &Range<u64>, layout: &Layout) -> Range<u64> {
        let extent = layout.extents_behind(range.start).first();
        let Some(extent) = extent.filter(|_| self.is_unread) else { return range.clone() };
        let from = range.start / UNREAD_BYTES * UNREAD_BYTES;
        let end = range.end.checked_next_multiple_of(UNREAD_BYTES).unwrap_or(range.end);
        from.max(extent.offset)..end.min(extent.end())
    }

    /// How to read a range of the file, which lies in the piece at a place.
    pub fn begin(&self, place: u32, piece: &Piece, range: Range<u64>, kept: &PartBuffer) -> PartOf<'_> {
        let is_whole = || {
            let whole = self.whole.get(place as usize);
            self.has_run.load(Ordering::Relaxed) || whole.is_none_or(|whole| whole.load(Ordering::Relaxed))
        };
        let len = range.end.saturating_sub(range.start);
        let otherwise = match self.is_read.swap(true, Ordering::Relaxed) {
            true => PartOf::Piece,
            false => PartOf::First,
        };
        let mut reads = self.reads.lock();
        let is_run = reads.note(&range) > RUN_BYTES || len > PART_BYTES_MAX;
        if is_run {
            self.has_run.store(true, Ordering::Relaxed);
        }
        loop {
            if is_whole() {
                return otherwise;
            }
            let coming = reads.given.get(&place).map_or(&[][..], |given| &given.coming);
            if !coming.iter().any(|other| overlap(other, &range)) {
                break;
            }
            self.ended.wait(&mut reads);
        }
        if let Some(bytes) = kept.get(self.id, &range) {
            return PartOf::Kept(bytes);
        }
        let of_piece = reads.given.entry(place).or_default();
        let is_part = (self.is_unread || of_piece.with(&range).is_some())
            && of_piece.bytes.saturating_add(len) <= u64::from(piece.raw) / 2;
        if !is_part {
            drop(reads);
            self.note_whole(place);
            return otherwise;
        }
        of_piece.give(&range);
        of_piece.coming.push(range.clone());
        PartOf::Request(Coming { parts: self, place, range })
    }
}

impl Coming<'_> {
    /// Keeps the bytes for others who want some of them.
    pub fn keep(&self, kept: &PartBuffer, bytes: Vec<u8>) {
        kept.keep(self.parts.id, self.range.start, bytes);
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if let Some(given) = self.parts.reads.lock().given.get_mut(&self.place)
            && let Some(at) = given.coming.iter().position(|other| *other == self.range)
        {
            given.coming.swap_remove(at);
        }
        self.parts.ended.notify_all();
    }
}

impl Reads {
    /// Notes a read. Returns the bytes of the run that it makes with the last ones.
    fn note(&mut self, range: &Range<u64>) -> u64 {
        let mut run = range.clone();
        // A joined range may touch one that the range before did not.
        while let Some(at) =
            self.last.iter().position(|other| other.start <= run.end && run.start <= other.end)
            && let Some(other) = self.last.remove(at)
        {
            run = run.start.min(other.start)..run.end.max(other.end);
        }
        self.last.push_back(run.clone());
        if self.last.len() > LAST_MAX {
            self.last.pop_front();
        }
        run.end.saturating_sub(run.start)
    }
}

impl Given {
    /// The range joined with those that touch it; `None` if some of it was given before.
    fn with(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if self.ranges.iter().any(|other| overlap(other, range)) {
            return None;
        }
        let touching =
            self.ranges.iter().filter(|other| other.end == range.start || other.start == range.end);
        Some(
            touching.fold(range.clone(), |joined, other| {
                joined.start.min(other.start)..joined.end.max(other.end)
            }),
        )
    }

    fn give(&mut self, range: &Range<u64>) {
        self.bytes = self.bytes.saturating_add(range.end.saturating_sub(range.start));
        let Some(joined) = self.with(range) else { return };
        self.ranges.retain(|other| other.end < joined.start || other.start > joined.end);
        let at = self.ranges.partition_point(|other| other.start < joined.start);
        self.ranges.insert(at, joined);
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A part in memory: the number of its file, its beginning there, its bytes.
type KeptPart = (u64, u64, Vec<u8>);

/// The parts that were read last.
#[derive(Default)]
pub(in crate::remote) struct PartBuffer {
    parts: Mutex<VecDeque<KeptPart>>,
}

impl PartBuffer {
    /// A range of a file, if one part has it.
    fn get(&self, file: u64, range: &Range<u64>) -> Option<Vec<u8>> {
        self.parts.lock().iter().filter(|(of, ..)| *of == file).find_map(|(_, from, bytes)| {
            let first = usize::try_from(range.start.checked_sub(*from)?).ok()?;
            let len = usize::try_from(range.end - range.start).ok()?;
            bytes.get(first..first.checked_add(len)?).map(<[u8]>::to_vec)
        })
    }

    /// Keeps a part, and forgets those that were read longest ago.
    fn keep(&self, file: u64, from: u64, bytes: Vec<u8>) {
        let mut parts = self.parts.lock();
        parts.push_back((file, from, bytes));
        let mut sum: usize = parts.iter().map(|(.., bytes)| bytes.len()).sum();
        while sum > KEPT_BYTES_MAX
            && let Some((.., bytes)) = parts.pop_front()
        {
            sum -= bytes.len();
        }
    }

    /// Forgets all parts.
    pub fn clear(&self) {
        *self.parts.lock() = VecDeque::new();
    }

    /// Forgets the parts of a file, some of which are wrong.
    pub fn forget(&self, parts: &Parts) {
        self.parts.lock().retain(|(file, ..)| *file != parts.id);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::snapshot::keys::PieceName;
    use crate::format::snapshot::manifest::PieceEncoding;

    const KIB: u64 = 1 << 10;

    fn piece() -> Piece {
        let name = PieceName { digest: [7; 32], generation: 0 };
        Piece { name, stored: 8 << 20, raw: 8 << 20, encoding: PieceEncoding::Raw }
    }

    /// Reads as a file does whose second piece is `piece`. Returns the bytes that a request was made for.
    fn read(parts: &Parts, kept: &PartBuffer, range: Range<u64>) -> Option<u64> {
        match parts.begin(1, &piece(), range.clone(), kept) {
            PartOf::Piece | PartOf::First => None,
            PartOf::Kept(bytes) => {
                assert!(bytes.iter().zip(range).all(|(byte, at)| *byte == at as u8));
                Some(0)
            }
            PartOf::Request(coming) => {
                coming.keep(kept, range.clone().map(|at| at as u8).collect());
                drop(coming);
                Some(range.end - range.start)
            }
        }
    }

    #[test]
    fn reads_here_and_there_get_parts_and_a_run_gets_the_piece() {
        let (parts, kept) = (Parts::new(2), PartBuffer::default());
        let at = |block: u64| 64 * block * KIB..64 * (block + 1) * KIB;
        for block in [3, 50, 49, 90, 60, 62, 61, 63, 70, 80, 72, 82, 74, 84, 64] {
            assert_eq!(read(&parts, &kept, at(block)), Some(64 * KIB), "{block}");
        }
        assert_eq!(read(&parts, &kept, 64 * 3 * KIB + 5..64 * 3 * KIB + 99), Some(0), "it is in memory");
        // Not quite in order, as several threads read.
        for block in [10, 12, 11, 13] {
            assert_eq!(read(&parts, &kept, at(block)), Some(64 * KIB), "{block}");
        }
        assert_eq!(read(&parts, &kept, at(14)), None, "a run");
        assert_eq!(read(&parts, &kept, at(7)), None, "a run was seen");
    }

    #[test]
    fn a_byte_is_given_out_as_a_part_once() {
        let (parts, kept) = (Parts::new(2), PartBuffer::default());
        assert_eq!(read(&parts, &kept, 0..64 * KIB), Some(64 * KIB));
        kept.forget(&parts);
        assert_eq!(read(&parts, &kept, KIB..2 * KIB), None);
        let parts = Parts::new(2);
        parts.note_whole(1);
        assert_eq!(read(&parts, &kept, 0..KIB), None);
    }

    #[test]
    fn short_reads_one_after_another_are_a_run_however_short() {
        let (parts, kept) = (Parts::unread(2), PartBuffer::default());
        let unit = |number: u64| 32 * number * KIB..32 * (number + 1) * KIB;
        for number in 0..8 {
            assert_eq!(read(&parts, &kept, unit(number)), Some(32 * KIB), "{number}");
            (0..9).for_each(|_| assert_eq!(read(&parts, &kept, unit(number)), Some(0), "{number}"));
        }
        assert_eq!(read(&parts, &kept, unit(8)), None, "a run");
    }

    #[test]
    fn bytes_without_checksums_are_given_out_again_but_no_more_than_half_of_the_piece() {
        let (parts, kept) = (Parts::unread(2), PartBuffer::default());
        for _ in 0..(4 << 20) / (64 * KIB) {
            assert_eq!(read(&parts, &kept, 0..64 * KIB), Some(64 * KIB));
            kept.forget(&parts);
        }
        assert_eq!(read(&parts, &kept, 0..64 * KIB), None);
    }

    #[test]
    fn memory_is_bounded_and_long_reads_want_the_piece() {
        let kept = PartBuffer::default();
        (0..40).for_each(|number| kept.keep(number, 0, vec![0; 1 << 20]));
        assert_eq!(kept.parts.lock().len(), 32);
        assert_eq!(read(&Parts::new(2), &kept, 0..PART_BYTES_MAX + 1), None);
    }

    #[test]
    fn those_who_want_the_same_bytes_wait_for_them() {
        let (parts, kept) = (Parts::new(2), PartBuffer::default());
        let PartOf::Request(coming) = parts.begin(1, &piece(), 0..KIB, &kept) else { panic!("it is a part") };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| read(&parts, &kept, 0..KIB));
            std::thread::yield_now();
            coming.keep(&kept, (0..KIB).map(|at| at as u8).collect());
            drop(coming);
            assert_eq!(second.join().unwrap(), Some(0));
        });
    }

    proptest! {
        #[test]
        fn no_byte_is_requested_twice_and_at_most_half_of_a_piece(
            reads in prop::collection::vec((0..8_u64 << 20, 1..128 * KIB), 1..200),
        ) {
            let (parts, kept) = (Parts::new(2), PartBuffer::default());
            let mut seen: Vec<Range<u64>> = Vec::new();
            for (at, len) in reads {
                let range = at..(at + len).min(8 << 20);
                match parts.begin(1, &piece(), range.clone(), &kept) {
                    PartOf::Piece | PartOf::First => break,
                    PartOf::Kept(_) => prop_assert!(false, "nothing was kept"),
                    PartOf::Request(_) => {
                        prop_assert!(!seen.iter().any(|other| overlap(other, &range)));
                        seen.push(range);
                    }
                }
            }
            prop_assert!(seen.iter().map(|range| range.end - range.start).sum::<u64>() <= 4 << 20);
        }
    }
}
