//! The pattern of the reads of an open file, as far as they reach the daemon.

use std::ops::Range;

use parking_lot::Mutex;

/// A file counts as read whole once so many bytes of it were read in order, or all of a shorter one. The
/// kernel reads ahead: it asked for 19 MiB when `file` 5.44 read the first 7 MiB of a file.
const IN_ORDER_BYTES: u64 = 32 << 20;
/// Requests that follow each other at no more than this distance are in order. Several threads answer them.
const DISTANCE_MAX: u64 = 4 << 20;

/// The reads of one open file.
#[derive(Default)]
pub(in crate::fs) struct ReadPattern(Mutex<Run>);

#[derive(Default)]
struct Run {
    /// The range that they span.
    range: Range<u64>,
    bytes: u64,
    is_whole: bool,
}

/// The conclusion from the reads of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fs) enum Verdict {
    /// The daemon was not asked.
    Unknown,
    /// The program read parts of it.
    Parts,
    /// The program reads it whole.
    Whole,
}

impl ReadPattern {
    /// Notes a read of a file of `file_bytes` bytes.
    pub fn add(&self, read: Range<u64>, file_bytes: impl FnOnce() -> u64) {
        if read.is_empty() {
            return;
        }
        let mut run = self.0.lock();
        let is_near = read.start <= run.range.end.saturating_add(DISTANCE_MAX)
            && run.range.start <= read.end.saturating_add(DISTANCE_MAX);
        if run.bytes == 0 || !is_near {
            (run.range, run.bytes) = (read.clone(), read.end - read.start);
        } else {
            // The kernel keeps what it has read, and asks for no byte twice.
            run.bytes = run.bytes.saturating_add(read.end - read.start);
            run.range = run.range.start.min(read.start)..run.range.end.max(read.end);
        }
        if !run.is_whole {
            run.is_whole = run.bytes >= IN_ORDER_BYTES || run.bytes >= file_bytes();
        }
    }

    /// The conclusion from the reads so far.
    pub fn verdict(&self) -> Verdict {
        let run = self.0.lock();
        match (run.is_whole, run.bytes) {
            (true, _) => Verdict::Whole,
            (false, 0) => Verdict::Unknown,
            _ => Verdict::Parts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ReadPattern, Verdict};

    const MIB: u64 = 1 << 20;

    fn verdict(reads: impl IntoIterator<Item = (u64, u64)>, file_bytes: u64) -> Verdict {
        let pattern = ReadPattern::default();
        reads.into_iter().for_each(|(at, len)| pattern.add(at..at + len, || file_bytes));
        pattern.verdict()
    }

    #[test]
    fn reads_in_order_are_of_the_whole_file() {
        let reads = (0..8).flat_map(|at| [2, 0, 1, 3].map(|next| ((4 * at + next) * MIB, MIB)));
        assert_eq!(verdict(reads.clone(), 1 << 30), Verdict::Whole);
        assert_eq!(verdict(reads.take(31), 1 << 30), Verdict::Parts);
        assert_eq!(verdict([(0, MIB), (MIB, 5)], MIB + 5), Verdict::Whole);
    }

    #[test]
    fn heads_and_random_reads_are_of_parts() {
        assert_eq!(verdict([], MIB), Verdict::Unknown);
        assert_eq!(verdict([(0, 0)], MIB), Verdict::Unknown);
        assert_eq!(verdict([(0, 4096)], MIB), Verdict::Parts);
        let random = (0..10_000).map(|at| (at * 7919 % 1000 * 16 * MIB, 4096));
        assert_eq!(verdict(random, 16_000 * MIB), Verdict::Parts);
    }
}
