//! Pairs embedding batches with their indexes, and gives their current contents.

use std::ops::Range;
use std::sync::Arc;

use crate::format::files::cgeb::{Runs, leading_hash};
use crate::format::files::cgei;
use crate::model::{EntryId, Error, Result};
use crate::store::{Assembly, Collection, Object, OpenObject, State, Verify};
use crate::stream::{Computed, Segment, Stream};

/// Position of the hash in an index.
pub const HASH: Range<u64> = 16..24;
/// Bytes of a batch to hash at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Suffix of a batch file.
const BATCH_SUFFIX: &[u8] = b".cgeb";
/// Suffix of an index file.
const INDEX_SUFFIX: &[u8] = b".cgei";

/// The batch with the same directory and stem as an index.
pub fn batch_beside(state: &State, index: EntryId) -> Option<EntryId> {
    let batch = beside(state, index, INDEX_SUFFIX, BATCH_SUFFIX)?;
    state.node(batch)?.file()?.records.as_ref().map(|_| batch)
}

/// The file that has the name of a batch's index. `None` if `batch` is not an embedding batch.
pub fn index_beside(state: &State, batch: EntryId) -> Option<EntryId> {
    state.node(batch)?.file()?.records.as_ref()?;
    beside(state, batch, BATCH_SUFFIX, INDEX_SUFFIX)
}

fn beside(state: &State, node: EntryId, own: &[u8], other: &[u8]) -> Option<EntryId> {
    state.links(node).iter().find_map(|(parent, name)| {
        let stem = name.strip_suffix(own).filter(|stem| !stem.is_empty())?;
        state.directory(*parent)?.get(&[stem, other].concat())
    })
}

/// Whether a file is the index of a batch that may not read as it was imported.
pub fn may_show_other_hash(collection: &Collection, index: EntryId) -> bool {
    let Some(batch) = batch_beside(&collection.state(), index) else { return false };
    let parts = collection.objects_of(batch).ok();
    parts.is_none_or(|parts| hash_as_imported(collection, batch, &parts).is_none())
}

/// The first 8 bytes of the BLAKE3 of a file as imported. `None` if the file was written to since.
fn recorded_hash(collection: &Collection, node: EntryId) -> Option<u64> {
    let state = collection.state();
    let blake3 = state.node(node)?.file()?.digests.blake3()?;
    blake3.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// The same, if a batch with these parts still reads as it was imported, as far as the metadata shows: all
/// of it is at its original place.
fn hash_as_imported(collection: &Collection, node: EntryId, parts: &[Arc<Object>]) -> Option<u64> {
    let is_original = |part: &Arc<Object>| {
        let layout = part.layout();
        let lies = |offset| part.blocks.read().lie_at(offset, layout);
        !part.is_dirty() && (layout.bytes == 0 || part.extent().is_some_and(|extent| lies(extent.offset)))
    };
    recorded_hash(collection, node).filter(|_| parts.iter().all(is_original))
}

/// The parts of a batch, and the layout of its records.
type BatchParts = (Vec<Arc<Object>>, Arc<Runs>);

/// The parts of an embedding batch; `None` for any other file.
fn batch_parts(collection: &Collection, node: EntryId) -> Result<Option<BatchParts>> {
    let (objects, assembly) = collection.parts_of(node)?;
    Ok(assembly.as_ref().and_then(Assembly::records).map(|runs| (objects, runs.clone())))
}

/// The current contents of an imported embedding batch; `None` for any other file.
pub fn batch_stream(collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Option<Stream>> {
    let parts = batch_parts(collection, node)?;
    parts.map(|parts| stream_of(collection, parts, verify)).transpose()
}

/// The current index of an imported embedding batch; `None` for any other file. Reads the whole batch to
/// hash it, once after each change.
pub fn batch_index(collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Option<Stream>> {
    let Some((_, runs)) = batch_parts(collection, node)? else { return Ok(None) };
    let Some(data_hash) = batch_hash(collection, node, verify)? else { return Ok(None) };
    let head = cgei::head(runs.records(), data_hash);
    let segments = vec![Segment::literal(head), Segment::Computed(Arc::new(Offsets(runs)))];
    Stream::new(segments).map(Some)
}

/// The current data hash of an imported embedding batch, for its index; `None` for any other file. Reads
/// the whole batch once after each change.
pub fn batch_hash(collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Option<u64>> {
    let Some((objects, runs)) = batch_parts(collection, node)? else { return Ok(None) };
    if let Some(hash) = hash_as_imported(collection, node, &objects) {
        return Ok(Some(hash));
    }
    let parts = objects.clone();
    let compute = || {
        let stream = stream_of(collection, (objects, runs), verify)?;
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < stream.bytes() {
            let len = stream.read(at, &mut chunk)?;
            hasher.update(&chunk[..len]);
            at += len as u64;
        }
        Ok(leading_hash(&hasher))
    };
    collection.batch_hash(node, &parts, compute).map(Some)
}

fn stream_of(collection: &Arc<Collection>, (objects, runs): BatchParts, verify: Verify) -> Result<Stream> {
    let objects = objects.iter().map(|object| OpenObject::open(collection, object, verify));
    Stream::of_file(objects.collect::<Result<_>>()?, Some(&Assembly::Batch(runs)))
}

/// The offsets of the records of a batch, in the format of an index.
struct Offsets(Arc<Runs>);

impl Computed for Offsets {
    fn bytes(&self) -> u64 {
        8 * self.0.records()
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        let mut at = range.start;
        let mut rest = out;
        while !rest.is_empty() {
            let offset = self.0.offset(at / 8);
            let offset = offset.ok_or_else(|| Error::invalid("a range past the end of an index"))?;
            let bytes = offset.to_be_bytes();
            let part = &bytes[(at % 8) as usize..];
            let len = part.len().min(rest.len());
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            here.copy_from_slice(&part[..here.len()]);
            at += here.len() as u64;
            rest = after;
        }
        Ok(())
    }
}

/// The hash that an index shows instead of the stored one: that of the current contents of its batch.
/// `None` if the file is not the index of a batch in the same directory, or if the batch is unchanged
/// since its import. `stored` is the stored contents of the index.
pub fn shown_hash(
    collection: &Arc<Collection>,
    index: EntryId,
    stored: &Stream,
    verify: Verify,
) -> Result<Option<u64>> {
    let batch = batch_beside(&collection.state(), index);
    let Some(batch) = batch.filter(|_| stored.bytes() >= cgei::HEAD_BYTES) else { return Ok(None) };
    let mut head = [0; cgei::HEAD_BYTES as usize];
    stored.read_exact(0, &mut head)?;
    let Ok((count, _)) = cgei::parse_head(&head, stored.bytes()) else { return Ok(None) };
    if batch_parts(collection, batch)?.is_none_or(|(_, runs)| runs.records() != count) {
        return Ok(None);
    }
    let hash = batch_hash(collection, batch, verify)?;
    Ok(hash.filter(|hash| recorded_hash(collection, batch) != Some(*hash)))
}

/// Writes a hash into bytes that were read from an index at `offset`.
pub fn put_hash(hash: u64, offset: u64, out: &mut [u8]) {
    for (place, byte) in HASH.zip(hash.to_be_bytes()) {
        if let Some(shown) = place.checked_sub(offset).and_then(|place| out.get_mut(place as usize)) {
            *shown = byte;
        }
    }
}
