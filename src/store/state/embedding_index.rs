//! Embedding batches and their indexes: finds the one that belongs to the other, and the hash of a
//! batch's present content.

use std::sync::Arc;

use crate::format::files::cgeb::Runs;
use crate::model::{EntryId, Result};
use crate::store::collection::Collection;
use crate::store::object::Object;
use crate::store::state::State;

/// Suffix of a batch file.
const BATCH_SUFFIX: &[u8] = b".cgeb";
/// Suffix of an index file.
const INDEX_SUFFIX: &[u8] = b".cgei";

impl State {
    /// The batch with the same directory and stem as an index.
    pub fn batch_beside(&self, index: EntryId) -> Option<EntryId> {
        let batch = self.beside(index, INDEX_SUFFIX, BATCH_SUFFIX)?;
        self.node(batch)?.file()?.records.as_ref().map(|_| batch)
    }

    /// The file that has the name of a batch's index. `None` if `batch` is not an embedding batch.
    pub fn index_beside(&self, batch: EntryId) -> Option<EntryId> {
        self.node(batch)?.file()?.records.as_ref()?;
        self.beside(batch, BATCH_SUFFIX, INDEX_SUFFIX)
    }

    fn beside(&self, node: EntryId, own: &[u8], other: &[u8]) -> Option<EntryId> {
        self.links(node).iter().find_map(|(parent, name)| {
            let stem = name.strip_suffix(own).filter(|stem| !stem.is_empty())?;
            self.directory(*parent)?.get(&[stem, other].concat())
        })
    }
}

impl Collection {
    /// Whether a batch with these parts still reads as it was imported, as far as the metadata tells:
    /// all of it is at its original place.
    pub fn is_where_it_came(&self, node: EntryId, parts: &[Arc<Object>]) -> bool {
        self.first_hash(node).is_some() && parts.iter().all(|part| part.is_where_it_came())
    }

    /// The first 8 bytes of the BLAKE3 of a file as imported. `None` if the file was written to since.
    pub fn first_hash(&self, node: EntryId) -> Option<u64> {
        let state = self.state();
        let blake3 = state.node(node)?.file()?.digests.blake3()?;
        blake3.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
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
}

impl Object {
    fn is_where_it_came(&self) -> bool {
        let layout = self.layout();
        let lies = |offset| self.blocks.read().lie_at(offset, layout);
        !self.is_dirty() && (layout.bytes == 0 || self.extent().is_some_and(|extent| lies(extent.offset)))
    }
}

/// The parts of a batch, and the layout of its records.
pub type BatchParts = (Vec<Arc<Object>>, Arc<Runs>);

impl Collection {
    /// The parts of an embedding batch; `None` for any other file.
    pub fn batch_parts(&self, node: EntryId) -> Result<Option<BatchParts>> {
        let (objects, records) = self.parts_of(node)?;
        Ok(records.map(|records| (objects, records)))
    }
}
