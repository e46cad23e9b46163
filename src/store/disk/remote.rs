//! Disks that show a remote: its errors, and counts of its traffic.

use std::fmt;
use std::io;

use crate::model::OwnedCollectionName;

/// Counts of a remote that is shown, since it was opened.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// Bytes in the cache.
    pub cached_bytes: u64,
    /// Reads that found their bytes in the cache.
    pub cache_hits: u64,
    /// Reads that waited for the remote.
    pub cache_misses: u64,
    /// Requests that are not answered yet.
    pub in_flight: u64,
    /// Bytes that these asked for.
    pub in_flight_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes received a second, in the last seconds.
    pub bytes_per_second: u64,
    /// Requests sent.
    pub requests: u64,
    /// Repetitions after a failure.
    pub retries: u64,
    /// Second requests beside a slow first one.
    pub hedges: u64,
    /// Requests that were given up.
    pub failures: u64,
    /// The parts of collections, of a bounded number of them.
    pub collections: Vec<CollectionTraffic>,
}

/// Counts of one collection of a remote: requests for pieces and parts of them, without repetitions.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct CollectionTraffic {
    /// The collection; `None` for all that have no counts of their own.
    pub collection: Option<OwnedCollectionName>,
    /// The number of the snapshot that is shown; 0 where none is.
    pub snapshot: u64,
    /// When that was pushed, in nanoseconds since 1970.
    pub created_at: u64,
    /// Reads that found their bytes in the cache.
    pub cache_hits: u64,
    /// Reads that waited for the remote.
    pub cache_misses: u64,
    /// Requests.
    pub requests: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Requests that were given up.
    pub failures: u64,
}

/// The error of a remote. The local disk is sound, and the text says what to do.
#[derive(Debug)]
pub struct RemoteError(String);

impl RemoteError {
    /// An error with this text.
    pub fn of(kind: io::ErrorKind, text: impl Into<String>) -> io::Error {
        io::Error::new(kind, RemoteError(text.into()))
    }

    /// The same error once more, for another who waited.
    pub fn again(error: &io::Error) -> io::Error {
        let text = error.to_string();
        if RemoteError::is(error) {
            RemoteError::of(error.kind(), text)
        } else {
            io::Error::new(error.kind(), text)
        }
    }

    /// Whether an error is that of a remote.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<RemoteError>())
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for RemoteError {}
