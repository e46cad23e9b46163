//! Cache of values computed from all bytes of a file, valid until the file changes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::object::Object;

/// Attempts to compute a value of a file that changes meanwhile.
const TRIES: u32 = 3;
/// Maximum number of files in a collection's cache. A full cache is emptied.
const FILES_MAX: usize = 4096;

/// Version of a file when a value was computed: a hash of its objects, their sizes, and the number of
/// changes of each.
type Version = blake3::Hash;

/// Values by file, with the version each belongs to. No other lock is taken while it is locked.
pub(in crate::store) struct Memo<V>(Mutex<HashMap<EntryId, (Version, V)>>);

impl<V> Default for Memo<V> {
    fn default() -> Memo<V> {
        Memo(Mutex::default())
    }
}

/// SHA-256 and BLAKE3 of all bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sums {
    /// SHA-256.
    pub sha256: [u8; 32],
    /// BLAKE3.
    pub blake3: [u8; 32],
}

/// Cached values of the files of a collection.
#[derive(Default)]
pub(in crate::store) struct DigestCache {
    /// The data hashes of embedding batches.
    pub batch_hashes: Memo<u64>,
    /// Digests.
    pub sums: Memo<Sums>,
}

fn version(parts: &[Arc<Object>]) -> Version {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&part.entry.id.0.to_le_bytes());
        hasher.update(&part.layout().bytes.to_le_bytes());
        hasher.update(&part.changes().to_le_bytes());
    }
    hasher.finalize()
}

fn is_dirty(parts: &[Arc<Object>]) -> bool {
    parts.iter().any(|part| part.is_dirty())
}

/// The result of `compute` for one version of these parts. `Busy` while they are being written.
pub fn of_one_version<V>(parts: &[Arc<Object>], mut compute: impl FnMut() -> Result<V>) -> Result<V> {
    for _ in 0..TRIES {
        // Writes that no batch describes have no version.
        if is_dirty(parts) {
            break;
        }
        let before = version(parts);
        let value = compute();
        if !is_dirty(parts) && version(parts) == before {
            return value;
        }
    }
    Err(Error::new(ErrorKind::Busy, "it is being written to; ask again when that is closed or synced"))
}

impl<V: Copy> Memo<V> {
    /// The result of `compute` for a file with these parts. It runs once a version.
    /// `are_untouched` tells whether their outside files are as they were.
    pub fn cached(
        &self,
        node: EntryId,
        parts: &[Arc<Object>],
        are_untouched: impl Fn() -> bool,
        compute: impl FnOnce() -> Result<V>,
    ) -> Result<V> {
        let before = version(parts);
        // Writes that no batch describes have no version, nor does an outside file that was modified.
        let has_version = || !is_dirty(parts) && are_untouched();
        let had_version = has_version();
        let known = self.0.lock().get(&node).filter(|(known, _)| *known == before).map(|(_, value)| *value);
        if let Some(known) = known.filter(|_| had_version) {
            return Ok(known);
        }
        let value = compute()?;
        // The value may be from before a write was rounded.
        if had_version && has_version() && version(parts) == before {
            let mut memo = self.0.lock();
            if memo.len() >= FILES_MAX {
                memo.clear();
            }
            memo.insert(node, (before, value));
        }
        Ok(value)
    }
}
