//! Counts and times of requests by kind, since the mount began. Counting takes no lock and never waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of bounded buckets. The first bound is 1 µs, each next one is four times as large. One more
/// bucket has no bound.
const BOUNDS: usize = 12;
const FIRST_BOUND_NANOSECONDS: u64 = 1_000;

macro_rules! operations {
    ($($kind:ident $name:literal,)*) => {
        /// A kind of request of the kernel.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Operation {
            $(#[doc = concat!("`", $name, "`.")] $kind,)*
        }

        impl Operation {
            pub const ALL: &[Operation] = &[$(Operation::$kind,)*];

            /// The kernel's name of the operation.
            pub fn name(self) -> &'static str {
                match self {
                    $(Operation::$kind => $name,)*
                }
            }
        }
    };
}

operations! {
    Lookup "lookup",
    Forget "forget",
    Getattr "getattr",
    Setattr "setattr",
    Readlink "readlink",
    Mknod "mknod",
    Mkdir "mkdir",
    Unlink "unlink",
    Rmdir "rmdir",
    Symlink "symlink",
    Rename "rename",
    Link "link",
    Create "create",
    Open "open",
    Read "read",
    Write "write",
    Flush "flush",
    Fsync "fsync",
    Release "release",
    Opendir "opendir",
    Readdir "readdir",
    Readdirplus "readdirplus",
    Fsyncdir "fsyncdir",
    Statfs "statfs",
    Getxattr "getxattr",
    Setxattr "setxattr",
    Listxattr "listxattr",
    Removexattr "removexattr",
    Poll "poll",
    CopyFileRange "copy_file_range",
    Lseek "lseek",
}

/// A histogram of the durations of requests.
#[derive(Default)]
pub struct Times {
    /// Number of requests in each bucket: at most its bound, and more than the bound before.
    buckets: [AtomicU64; BOUNDS + 1],
    nanoseconds: AtomicU64,
}

/// A snapshot of [`Times`].
#[derive(Debug)]
pub struct Snapshot {
    /// Upper bounds in seconds with cumulative counts. The last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    /// The sum of the durations in seconds.
    pub seconds: f64,
}

impl Times {
    pub fn add(&self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // The logarithm to base 4 of the microseconds, rounded up.
        let microseconds = nanoseconds.div_ceil(FIRST_BOUND_NANOSECONDS).max(1);
        let place = (u64::BITS - (microseconds - 1).leading_zeros()).div_ceil(2) as usize;
        if let Some(bucket) = self.buckets.get(place.min(BOUNDS)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    pub fn snapshot(&self) -> Snapshot {
        let mut count = 0;
        let mut bound = FIRST_BOUND_NANOSECONDS as f64 / 1e9;
        let mut buckets = Vec::with_capacity(BOUNDS + 1);
        for (place, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            buckets.push((if place < BOUNDS { bound } else { f64::INFINITY }, count));
            bound *= 4.0;
        }
        Snapshot { buckets, count, seconds: self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9 }
    }
}

/// Counters since the mount began.
pub struct Counters {
    operations: Vec<Times>,
    /// Opens of files that the kernel reads where they are stored, without the daemon.
    pub passthrough_opens: AtomicU64,
    /// Opens of files that the kernel reads from a decoded copy.
    pub decoded_hits: AtomicU64,
    /// Opens of files that could have a decoded copy and had none.
    pub decoded_misses: AtomicU64,
    /// Bytes of memory that decoded copies take now.
    pub decoded_bytes: AtomicU64,
    /// The most that they may take.
    pub decoded_budget_bytes: AtomicU64,
    /// Bytes of answered reads.
    pub read_bytes: AtomicU64,
    /// Bytes of answered writes.
    pub written_bytes: AtomicU64,
    /// Requests that ended with an error of the store.
    pub errors: AtomicU64,
    /// Requests that failed because stored bytes are corrupt; `errors` includes them.
    pub corrupt: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            operations: Operation::ALL.iter().map(|_| Times::default()).collect(),
            passthrough_opens: AtomicU64::new(0),
            decoded_hits: AtomicU64::new(0),
            decoded_misses: AtomicU64::new(0),
            decoded_bytes: AtomicU64::new(0),
            decoded_budget_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
        }
    }
}

impl Counters {
    /// Counts a request. `took` is the time until it was answered or handed to a thread that answers it.
    pub fn done(&self, operation: Operation, took: Duration) {
        if let Some(times) = self.operations.get(operation as usize) {
            times.add(took);
        }
    }

    /// Each kind of request with its times.
    pub fn operations(&self) -> impl Iterator<Item = (Operation, &Times)> {
        Operation::ALL.iter().copied().zip(&self.operations)
    }

    /// Number of requests of the given kinds.
    pub fn count(&self, of: &[Operation]) -> u64 {
        self.operations()
            .filter(|(operation, _)| of.contains(operation))
            .map(|(_, times)| times.count())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Counters, Operation, Times};

    #[test]
    fn a_time_counts_in_the_first_bucket_that_bounds_it() {
        for nanoseconds in
            [0, 1, 999, 1_000, 1_001, 4_000, 4_001, 16_000, 999_999, 4_194_304_000, 4_194_304_001, u64::MAX]
        {
            let times = Times::default();
            times.add(Duration::from_nanos(nanoseconds));
            let mut bound = 1_000_u128;
            let snapshot = times.snapshot();
            for (place, (seconds, count)) in snapshot.buckets.iter().enumerate() {
                let is_last = place + 1 == snapshot.buckets.len();
                assert_eq!(
                    *count,
                    u64::from(is_last || u128::from(nanoseconds) <= bound),
                    "{nanoseconds} {seconds}"
                );
                assert!(is_last == seconds.is_infinite());
                bound *= 4;
            }
            assert_eq!((snapshot.count, times.count()), (1, 1));
        }
    }

    #[test]
    fn requests_are_counted_by_their_kind() {
        let counters = Counters::default();
        for (place, operation) in Operation::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, place);
            (0..=place).for_each(|_| counters.done(*operation, Duration::from_micros(3)));
        }
        for (place, (operation, times)) in counters.operations().enumerate() {
            assert_eq!((operation as usize, times.count()), (place, place as u64 + 1));
        }
        assert_eq!(counters.count(&[Operation::Lookup, Operation::Getattr]), 1 + 3);
    }
}
