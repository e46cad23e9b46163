//! Bytes of an open file that the kernel has read and caches. The page cache of the data files then
//! need not hold them a second time.

use std::ops::Range;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::model::Result;
use crate::vfs::open::file::OpenFile;

/// Pages are dropped a stretch at a time: when this many bytes of an aligned stretch were read.
const STRETCH_BYTES: u64 = 4 << 20;
/// Shorter requests count as random reads, except at the end of the file. Shorter files do not count.
const REQUEST_BYTES_MIN: u64 = 16 << 10;
/// A folio of the page cache may have up to this many bytes and is dropped only as a whole. One that
/// extends past the start of a stretch stays when the stretch before it is dropped.
const PAGE_BYTES_MAX: u64 = 2 << 20;
/// Stretches that are tracked at a time. The kernel reads ahead in a few places at most.
const STRETCHES: usize = 16;

/// Tracks which stretches of a file the kernel has read in part.
#[derive(Default)]
pub(super) struct PageCache(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    /// Number of each stretch, and how many of its bytes were read.
    stretches: [(u64, u64); STRETCHES],
    /// The slot for the next new stretch.
    next: usize,
}

impl PageCache {
    /// Notes that the kernel has read `range` of a file of `bytes` bytes. Returns the ranges that may be
    /// dropped. Two ranges are enough: a request crosses one end of a stretch at most, or covers more
    /// than one stretch.
    pub fn add(&self, range: Range<u64>, bytes: u64) -> [Option<Range<u64>>; 2] {
        let end = range.end.min(bytes);
        let mut whole = [None, None];
        let is_short = end.saturating_sub(range.start) < REQUEST_BYTES_MIN && end < bytes;
        if range.start >= end || is_short || bytes < REQUEST_BYTES_MIN {
            return whole;
        }
        let mut noted = self.0.lock();
        let stretches = [range.start / STRETCH_BYTES, (end - 1) / STRETCH_BYTES];
        let count = if stretches[0] == stretches[1] { 1 } else { 2 };
        for (number, whole) in stretches.into_iter().zip(&mut whole).take(count) {
            let start = number * STRETCH_BYTES;
            let stretch = start..start.saturating_add(STRETCH_BYTES).min(bytes);
            let cached_bytes = stretch.end.min(end) - stretch.start.max(range.start);
            if noted.is_whole(number, cached_bytes, stretch.end - stretch.start) {
                *whole = Some(stretch.start.saturating_sub(PAGE_BYTES_MAX)..stretch.end);
            }
        }
        whole
    }
}

impl Noted {
    /// Counts bytes of a stretch. Whether all of it was read; the stretch is no longer tracked then.
    fn is_whole(&mut self, number: u64, cached_bytes: u64, len: u64) -> bool {
        let known = self.stretches.iter_mut().find(|(of, bytes)| *of == number && *bytes > 0);
        let before = known.as_ref().map_or(0, |(_, bytes)| *bytes);
        let is_whole = before + cached_bytes >= len;
        let now = if is_whole { 0 } else { before + cached_bytes };
        match known {
            Some(known) => known.1 = now,
            None if is_whole => {}
            None => {
                let next = self.next;
                if let Some(place) = self.stretches.get_mut(next) {
                    *place = (number, now);
                }
                self.next = (next + 1) % STRETCHES;
            }
        }
        is_whole
    }
}

impl OpenFile {
    /// Notes that the kernel has read `range` and caches it. Drops the pages of the data files, a
    /// stretch at a time.
    pub fn cached_by_kernel(&self, range: Range<u64>) {
        let layout = self.layout.read();
        for stretch in self.page_cache.add(range, layout.bytes()).into_iter().flatten() {
            let pieces = layout.pieces(stretch);
            let pieces = pieces.filter_map(|piece| Some((layout.objects.get(piece.segment)?, piece.range)));
            self.collection.drop_cached_data(pieces);
        }
    }

    /// Notes that the kernel may have pages of it, which it has read or that a program has written. A program may map them.
    pub fn note_pages(&self) {
        if !self.flags.may_have_pages.load(Ordering::Relaxed) {
            self.flags.may_have_pages.store(true, Ordering::Release);
        }
    }

    /// The offset of the next hole from `offset` on, or of the next byte that is not in one, as `Layout::next` says. A
    /// program may have stored into a mapped page of a hole, which the kernel has not written back yet; it can map only
    /// pages that were read or written. So a file that is written to has no hole once the kernel may have pages of it.
    pub fn next(&self, offset: u64, is_hole: bool) -> Result<Option<u64>> {
        let layout = self.layout.read();
        layout.check()?;
        if self.may_be_written() && self.flags.may_have_pages.load(Ordering::Acquire) {
            let found = if is_hole { layout.bytes() } else { offset };
            return Ok((offset < layout.bytes()).then_some(found));
        }
        Ok(layout.next(offset, is_hole))
    }

    /// Notes that the kernel invalidates the pages of this file after a write by another name.
    pub fn note_forgotten(&self) {
        self.flags.forgotten.store(true, Ordering::Release);
    }

    /// Whether the kernel may cache bytes from before a write of its own. It may have read
    /// invalidated pages again while the write was on its way.
    pub fn may_be_stale(&self) -> bool {
        self.flags.forgotten.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE_BYTES_MAX, PageCache, STRETCH_BYTES};

    const MIB: u64 = 1 << 20;

    fn cached_bytes(
        cached_bytes: &PageCache,
        requests: impl IntoIterator<Item = (u64, u64)>,
        bytes: u64,
    ) -> Vec<(u64, u64)> {
        let ranges = requests.into_iter().flat_map(|(at, len)| cached_bytes.add(at..at + len, bytes));
        ranges.flatten().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn a_fully_read_file_is_dropped_from_the_cache_in_any_order_of_reads() {
        let bytes = 10 * MIB + 5;
        let requests = [1, 0, 3, 2, 4, 6, 5, 7, 8, 9].map(|at| (at * MIB, MIB));
        // The last request is short, and the stretch that it ends is not whole without it.
        let two = [(0, 4 * MIB), (4 * MIB - PAGE_BYTES_MAX, 8 * MIB)];
        assert_eq!(cached_bytes(&PageCache::default(), requests, bytes), two);
        let ranges = cached_bytes(&PageCache::default(), requests.into_iter().chain([(10 * MIB, 5)]), bytes);
        assert_eq!(ranges, [two[0], two[1], (8 * MIB - PAGE_BYTES_MAX, bytes)]);
        let odd = (0..40).map(|at| (at * 300_000, 300_000.min(bytes - (at * 300_000).min(bytes))));
        let ranges = cached_bytes(&PageCache::default(), odd, bytes);
        assert_eq!(ranges.len(), 3);
        assert_eq!((ranges[0].0, ranges[2].1), (0, bytes));
        assert!(ranges.windows(2).all(|two| two[1].0 < two[0].1));
    }

    #[test]
    fn random_reads_drop_nothing_from_the_cache() {
        let bytes = 1 << 40;
        let small = (0..4096).map(|at| (at * 4096, 4096));
        assert!(cached_bytes(&PageCache::default(), small, bytes).is_empty());
        let scattered = (0..100).map(|at| (at * STRETCH_BYTES, MIB));
        let again = (0..100).map(|at| (at * STRETCH_BYTES, MIB));
        assert!(cached_bytes(&PageCache::default(), scattered.chain(again), bytes).is_empty());
    }

    #[test]
    fn requests_past_the_end_and_of_no_bytes_are_ignored() {
        let none = [(0, 0), (MIB, 50), (u64::MAX - 9, 9)];
        assert!(cached_bytes(&PageCache::default(), none, MIB).is_empty());
        assert_eq!(cached_bytes(&PageCache::default(), [(0, 2 * MIB)], MIB), [(0, MIB)]);
    }

    #[test]
    fn small_files_are_not_tracked() {
        assert!(cached_bytes(&PageCache::default(), [(0, 4096)], 4096).is_empty());
    }
}
