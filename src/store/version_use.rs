//! The stored bytes of the versions of a collection, which no log counts.
//!
//! They are counted when somebody asks, not when the collection is opened: that takes a look at each file of each version.
//! The number is that of the last count until a version is made or removed, or a data file goes that a version may have
//! too: from then on the version alone has it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::model::Result;

/// Counts the stored bytes of the versions of a collection; `None` if there are no versions.
pub(in crate::store) type CountVersions = dyn Fn() -> Result<Option<u64>> + Send + Sync;

/// The bytes of the versions of a collection, as far as they are counted.
pub(in crate::store) struct VersionUse {
    count: Box<CountVersions>,
    /// Whether a count found versions, or one was made since.
    has_versions: AtomicBool,
    /// How often what was counted may have changed, and how often it had when the last count began.
    changes: AtomicU64,
    counted: AtomicU64,
    /// Held while they are counted, across I/O.
    counting: Mutex<()>,
    /// Whether the tenant lists this for a count.
    is_listed: AtomicBool,
    /// Whether the collection was removed or has another name.
    is_gone: AtomicBool,
}

impl VersionUse {
    /// The versions of a collection, not counted yet.
    pub fn of(count: Box<CountVersions>) -> VersionUse {
        VersionUse {
            count,
            has_versions: AtomicBool::new(false),
            changes: AtomicU64::new(1),
            counted: AtomicU64::new(0),
            counting: Mutex::default(),
            is_listed: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        }
    }

    /// Notes that the tenant lists this for a count. Returns whether it did before.
    pub fn list(&self) -> bool {
        self.is_listed.swap(true, Ordering::SeqCst)
    }

    /// Notes that the tenant lists it no more.
    pub fn unlist(&self) {
        self.is_listed.store(false, Ordering::SeqCst);
    }

    /// Notes that no version is there under this name any more.
    pub fn end(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
    }

    /// Notes that versions were made, stored otherwise, or removed.
    pub fn versions_changed(&self) {
        self.has_versions.store(true, Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that the present state gave up a data file.
    pub fn data_file_gone(&self) {
        // A count in progress may be before or behind the file.
        if self.has_versions.load(Ordering::SeqCst) || !self.is_counted() {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether the last count is right still.
    pub fn is_counted(&self) -> bool {
        self.counted.load(Ordering::SeqCst) == self.changes.load(Ordering::SeqCst)
    }

    /// Counts the bytes, and calls `take` with their number, unless the last count is right still.
    pub fn count(&self, take: impl Fn(u64)) {
        let _alone = self.counting.lock();
        let changes = self.changes.load(Ordering::SeqCst);
        if self.counted.load(Ordering::SeqCst) == changes {
            return;
        }
        if self.is_gone.load(Ordering::SeqCst) {
            return take(0);
        }
        match (self.count)() {
            Ok(bytes) => {
                if bytes.is_some() {
                    self.has_versions.store(true, Ordering::SeqCst);
                }
                take(bytes.unwrap_or(0));
                // It may have gone since it was looked at.
                if self.is_gone.load(Ordering::SeqCst) {
                    take(0);
                }
            }
            // The next count tries again where something has changed.
            Err(error) => log::warn!("versions are not counted: {error}"),
        }
        self.counted.store(changes, Ordering::SeqCst);
    }
}
