//! What was computed of all bytes of a file, kept in memory until the file changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::collection::Collection;
use crate::store::object::Object;

/// How often something is computed of a file that changes meanwhile.
const TRIES: u32 = 3;
/// Values are kept of so many files of a collection; then it begins anew.
const FILES_MAX: usize = 4096;

/// What a file was when something was computed of it: a hash of its objects, their sizes, and how
/// often each had changed.
type Version = blake3::Hash;

/// Values by file, each with the version that it is of. No other lock is taken with it.
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

/// What was computed of the files of a collection.
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
        hasher.update(&part.changes.load(Ordering::Acquire).to_le_bytes());
    }
    hasher.finalize()
}

fn is_dirty(parts: &[Arc<Object>]) -> bool {
    parts.iter().any(|part| part.is_dirty())
}

/// What `compute` says of one version of these parts. `Busy` where they are being written to.
pub fn of_one_version<V>(parts: &[Arc<Object>], mut compute: impl FnMut() -> Result<V>) -> Result<V> {
    for _ in 0..TRIES {
        // What no batch of the log describes has no version.
        if is_dirty(parts) {
            break;
        }
        let before = version(parts);
        let digest_cache = compute();
        if !is_dirty(parts) && version(parts) == before {
            return digest_cache;
        }
    }
    Err(Error::new(ErrorKind::Busy, "it is being written to; ask again when that is closed or synced"))
}

impl Collection {
    /// The digests of a file of these parts as it reads now; `compute` reads all of it, once a
    /// version.
    pub fn sums(
        &self,
        node: EntryId,
        parts: &[Arc<Object>],
        compute: impl FnOnce() -> Result<Sums>,
    ) -> Result<Sums> {
        self.cached(&self.digest_cache.sums, node, parts, compute)
    }

    /// What `compute` says of a file of these parts: it is asked once a version.
    pub(in crate::store) fn cached<V: Copy>(
        &self,
        memo: &Memo<V>,
        node: EntryId,
        parts: &[Arc<Object>],
        compute: impl FnOnce() -> Result<V>,
    ) -> Result<V> {
        let before = version(parts);
        // What no batch of the log describes has no version, nor a file outside that was touched.
        let has_version = || !is_dirty(parts) && self.are_untouched(parts);
        let had_version = has_version();
        let known = memo.0.lock().get(&node).filter(|(known, _)| *known == before).map(|(_, value)| *value);
        if let Some(known) = known.filter(|_| had_version) {
            return Ok(known);
        }
        let value = compute()?;
        // It may have been read before the log had rounded it.
        if had_version && has_version() && version(parts) == before {
            let mut memo = memo.0.lock();
            if memo.len() >= FILES_MAX {
                memo.clear();
            }
            memo.insert(node, (before, value));
        }
        Ok(value)
    }

    /// Whether the files outside the store that these parts are of have the times that they had.
    fn are_untouched(&self, parts: &[Arc<Object>]) -> bool {
        let extents = parts.iter().filter(|part| part.origin.is_some()).filter_map(|part| part.extent());
        let mut numbers: Vec<u64> = extents.map(|extent| extent.file).collect();
        numbers.dedup();
        let is_untouched =
            |number: &u64| self.data_file(*number).is_ok_and(|file| file.is_untouched().unwrap_or(false));
        numbers.iter().all(is_untouched)
    }
}
