//! Cache of values computed from the bytes of a file, valid until the file changes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::files::onnx::DataFiles;
use crate::model::{EntryId, Error, ErrorKind, ObjectId, Result};
use crate::store::object::Object;

/// Attempts to compute a value of a file that changes meanwhile.
const TRIES: u32 = 3;
/// Maximum number of files in a collection's cache. A full cache is emptied.
const FILES_MAX: usize = 4096;
/// Maximum number of models in a collection's cache. A full cache is emptied.
const MODELS_MAX: usize = 16;

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
    /// The data files that ONNX models name.
    pub models: Models,
}

/// The mark that tells a recognition of a file from the ones before: the first of its objects, and their number. A file that is
/// recognized again has other objects, and a write within a tensor concerns no header.
type Recognition = (Option<ObjectId>, usize);

/// The data files that ONNX models name, by the model. No other lock is taken while it is locked.
#[derive(Default)]
pub(in crate::store) struct Models(Mutex<HashMap<EntryId, (Recognition, Arc<DataFiles>)>>);

impl Models {
    /// The result of `read` for a model with these objects. It runs once a recognition.
    pub fn cached(
        &self,
        model: EntryId,
        recognition: Recognition,
        read: impl FnOnce() -> Result<DataFiles>,
    ) -> Result<Arc<DataFiles>> {
        let known = |models: &HashMap<EntryId, (Recognition, Arc<DataFiles>)>| {
            models.get(&model).filter(|(known, _)| *known == recognition).map(|(_, files)| files.clone())
        };
        if let Some(files) = known(&self.0.lock()) {
            return Ok(files);
        }
        let files = Arc::new(read()?);
        let mut models = self.0.lock();
        if models.len() >= MODELS_MAX {
            models.clear();
        }
        models.insert(model, (recognition, files.clone()));
        Ok(files)
    }
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

#[cfg(test)]
mod tests {
    use super::Models;
    use crate::format::files::onnx::DataFiles;
    use crate::model::{EntryId, Error, ObjectId};

    #[test]
    fn a_model_is_read_once_a_recognition_and_again_after_an_error() {
        let (models, mut reads) = (Models::default(), 0);
        let mut read = |node: u64, first: u128| {
            let files = models.cached(EntryId(node), (Some(ObjectId(first)), 1), || {
                reads += 1;
                if node == 9 { Err(Error::invalid("damaged")) } else { Ok(DataFiles::new()) }
            });
            (files.is_ok(), reads)
        };
        assert_eq!(
            [read(1, 1), read(1, 1), read(2, 2), read(1, 1)],
            [(true, 1), (true, 1), (true, 2), (true, 2)]
        );
        assert_eq!([read(1, 3), read(1, 3)], [(true, 3), (true, 3)]);
        assert_eq!([read(9, 4), read(9, 4)], [(false, 4), (false, 5)]);
        for node in 10..100 {
            read(node, 1);
        }
        assert!(models.0.lock().len() <= super::MODELS_MAX);
    }
}
