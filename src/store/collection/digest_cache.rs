//! Cache of values computed from all bytes of a file, valid until the file changes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::collection::Collection;
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
        hasher.update(&part.changes.load(Ordering::Acquire).to_le_bytes());
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
        let digest_cache = compute();
        if !is_dirty(parts) && version(parts) == before {
            return digest_cache;
        }
    }
    Err(Error::new(ErrorKind::Busy, "it is being written to; ask again when that is closed or synced"))
}

impl Collection {
    /// The digests of the present content of a file with these parts. `compute` reads the whole file
    /// and runs once a version.
    pub fn sums(
        &self,
        node: EntryId,
        parts: &[Arc<Object>],
        compute: impl FnOnce() -> Result<Sums>,
    ) -> Result<Sums> {
        self.cached(&self.digest_cache.sums, node, parts, compute)
    }

    /// The hash of a batch's present content. `compute` reads the whole batch and runs once a version.
    pub fn batch_hash(
        &self,
        node: EntryId,
        parts: &[Arc<Object>],
        compute: impl FnOnce() -> Result<u64>,
    ) -> Result<u64> {
        self.cached(&self.digest_cache.batch_hashes, node, parts, compute)
    }

    /// The result of `compute` for a file with these parts. It runs once a version.
    fn cached<V: Copy>(
        &self,
        memo: &Memo<V>,
        node: EntryId,
        parts: &[Arc<Object>],
        compute: impl FnOnce() -> Result<V>,
    ) -> Result<V> {
        let before = version(parts);
        // Writes that no batch describes have no version, nor does an outside file that was modified.
        let has_version = || !is_dirty(parts) && self.are_untouched(parts);
        let had_version = has_version();
        let known = memo.0.lock().get(&node).filter(|(known, _)| *known == before).map(|(_, value)| *value);
        if let Some(known) = known.filter(|_| had_version) {
            return Ok(known);
        }
        let value = compute()?;
        // The value may be from before a write was rounded.
        if had_version && has_version() && version(parts) == before {
            let mut memo = memo.0.lock();
            if memo.len() >= FILES_MAX {
                memo.clear();
            }
            memo.insert(node, (before, value));
        }
        Ok(value)
    }

    /// Whether the outside files of these parts have their recorded modification times.
    fn are_untouched(&self, parts: &[Arc<Object>]) -> bool {
        let extents = parts.iter().filter(|part| part.origin.is_some()).filter_map(|part| part.extent());
        let mut numbers: Vec<u64> = extents.map(|extent| extent.file).collect();
        numbers.dedup();
        let is_untouched =
            |number: &u64| self.data_file(*number).is_ok_and(|file| file.is_untouched().unwrap_or(false));
        numbers.iter().all(is_untouched)
    }
}
