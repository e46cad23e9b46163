//! The current contents of imported embedding batches and their indexes.

use std::ops::Range;
use std::sync::Arc;

use crate::format::files::cgeb::{Runs, leading_hash};
use crate::format::files::cgei;
use crate::model::{EntryId, Error, Result};
use crate::store::BatchParts;
use crate::store::Collection;
use crate::store::{OpenObject, Verify};
use crate::stream::{Computed, Segment, Stream};

/// Position of the hash in an index.
pub const HASH: Range<u64> = 16..24;
/// Bytes of a batch to hash at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The current contents of an imported embedding batch; `None` for any other file.
pub fn batch_stream(collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Option<Stream>> {
    let parts = collection.batch_parts(node)?;
    parts.map(|parts| stream_of(collection, parts, verify)).transpose()
}

/// The current index of an imported embedding batch; `None` for any other file. Reads the whole batch to
/// hash it, once after each change.
pub fn batch_index(collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Option<Stream>> {
    let Some((_, runs)) = collection.batch_parts(node)? else { return Ok(None) };
    let Some(data_hash) = batch_hash(collection, node, verify)? else { return Ok(None) };
    let head = cgei::head(runs.records(), data_hash);
    let segments = vec![Segment::literal(head), Segment::Computed(Arc::new(Offsets(runs)))];
    Stream::new(segments).map(Some)
}

/// The current data hash of an imported embedding batch, for its index; `None` for any other file. Reads
/// the whole batch once after each change.
pub fn batch_hash(collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Option<u64>> {
    let Some((objects, runs)) = collection.batch_parts(node)? else { return Ok(None) };
    if let Some(hash) = collection.first_hash(node).filter(|_| collection.is_where_it_came(node, &objects)) {
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
            hasher.update(chunk.get(..len).unwrap_or_default());
            at += len as u64;
        }
        Ok(leading_hash(&hasher))
    };
    collection.batch_hash(node, &parts, compute).map(Some)
}

fn stream_of(collection: &Arc<Collection>, (objects, runs): BatchParts, verify: Verify) -> Result<Stream> {
    let objects = objects.iter().map(|object| OpenObject::open(collection, object, verify));
    Stream::of_file(objects.collect::<Result<_>>()?, Some(&runs))
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
            let part = bytes.get((at % 8) as usize..).unwrap_or_default();
            let len = part.len().min(rest.len());
            let (here, after) = std::mem::take(&mut rest).split_at_mut(len);
            here.copy_from_slice(part.get(..here.len()).unwrap_or_default());
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
    let batch = collection.state().batch_beside(index);
    let Some(batch) = batch.filter(|_| stored.bytes() >= cgei::HEAD_BYTES) else { return Ok(None) };
    let mut head = [0; cgei::HEAD_BYTES as usize];
    stored.read_exact(0, &mut head)?;
    let Ok((count, _)) = cgei::parse_head(&head, stored.bytes()) else { return Ok(None) };
    if collection.batch_parts(batch)?.is_none_or(|(_, runs)| runs.records() != count) {
        return Ok(None);
    }
    let hash = batch_hash(collection, batch, verify)?;
    Ok(hash.filter(|hash| collection.first_hash(batch) != Some(*hash)))
}

/// Writes a hash into bytes that were read from an index at `offset`.
pub fn put_hash(hash: u64, offset: u64, out: &mut [u8]) {
    for (place, byte) in HASH.zip(hash.to_be_bytes()) {
        if let Some(shown) = place.checked_sub(offset).and_then(|place| out.get_mut(place as usize)) {
            *shown = byte;
        }
    }
}
