//! Recognizes files that were written through a mount, in place.

use std::sync::Arc;

use crate::format::checksum;
use crate::format::files::shard_index;
use crate::format::log::catalog::{Digests, Extent, FileEntry};
use crate::ingest::archives;
use crate::ingest::blocking::Blocking;
use crate::ingest::parts::{Part, PartTensor, Recognized};
use crate::ingest::recognize::{plain, recognize_at};
use crate::ingest::store_parts::{How, StoredBlocks, StoredObject, StoredParts, TakenPart, store_parts};
use crate::ingest::uncommitted::Uncommitted;
use crate::ingest::{Options, Rename, publish, room};
use crate::model::{Dtype, EntryId, Error, ErrorKind, ObjectId, Result, Silent};
use crate::store::Collection;
use crate::store::GATHERED_BYTES_MAX;
use crate::store::disk::File;
use crate::store::{Object, PACK};
use crate::store::{Parts, State, Touched};

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// The bytes of a written file.
pub enum Bytes<'a> {
    /// The bytes of a data file of the collection, which is not copied.
    DataFile {
        /// Its number.
        number: u64,
        /// Its content.
        file: &'a Arc<dyn File>,
        /// The draft that the bytes were written as, if any; its known checksums are reused. Nobody
        /// writes to it meanwhile.
        draft: Option<Arc<Object>>,
    },
    /// Other bytes, which are copied.
    Other(&'a Arc<dyn File>),
}

/// Replaces the bytes of the file `node`, called `name`, and its tensors. A file whose content does not fit its name is kept as a plain file, with the error as reason. `digests`
/// are those known so far. Returns the new parts of the file.
pub fn arrive(
    collection: &Arc<Collection>,
    (node, name): (EntryId, &[u8]),
    bytes: Bytes<'_>,
    digests: Digests,
    mtime: i64,
) -> Result<Parts> {
    let (Bytes::DataFile { file: source, .. } | Bytes::Other(source)) = &bytes;
    // Content that takes reading the whole file is recognized at the close.
    let name = if is_scanned(name) { b"" } else { name };
    let path = collection.state().path(node);
    let (recognized, why) = match recognize_at((collection, &path), source, name) {
        Ok(recognized) => {
            let note = recognized.note.clone();
            (recognized, note)
        }
        Err(_) if source.len().is_ok_and(|bytes| bytes == 0) => (plain(source)?, String::new()),
        Err(error) => (plain(source)?, format!("kept as a plain file: {error}")),
    };
    arrive_as(collection, (node, None), recognized, (bytes, digests), mtime, why)
}

/// Replaces the bytes of the file `node`, which are recognized already, and its tensors; with `rename`, under its new
/// name. Where the tensors would exceed a quota, the file is kept as a plain file, with that reason.
/// Returns the new parts of the file.
pub fn arrive_as(
    collection: &Arc<Collection>,
    (node, rename): (EntryId, Option<Rename<'_>>),
    recognized: Recognized,
    (bytes, digests): (Bytes<'_>, Digests),
    mtime: i64,
    why: String,
) -> Result<Parts> {
    let (Bytes::DataFile { file: source, .. } | Bytes::Other(source)) = &bytes;
    let (recognized, why, _held) = match room::reserve_tensors(collection, node, &recognized) {
        Ok(held) => (recognized, why, Some(held)),
        Err(error) if error.kind() == ErrorKind::Quota => {
            (plain(source)?, format!("kept as a plain file: {error}"), None)
        }
        Err(error) => return Err(error),
    };
    let packs = {
        let state = collection.state();
        let above = rename.as_ref().filter(|_| state.setting(node, PACK).is_none());
        collection.packs(&state, above.map_or(node, |rename| rename.to.0))
    };
    let tier_of = |tensor: &PartTensor| tensor.packed_tier(Blocking::default()).filter(|_| packs);
    let is_packed =
        recognized.parts.iter().filter_map(|part| part.tensor.as_ref()).any(|it| tier_of(it).is_some());
    let mut uncommitted = Uncommitted::new(collection);
    if is_packed && recognized.records.is_none() {
        let options = Options::default();
        let how = How::plain(&options);
        match store_parts(&mut uncommitted, collection, source, &recognized, &tier_of, how, &Silent) {
            Ok(stored_parts) => {
                let stored_parts = StoredParts { digests, ..stored_parts };
                return publish::publish_over(
                    uncommitted,
                    collection,
                    (node, rename),
                    mtime,
                    recognized,
                    stored_parts,
                    why,
                );
            }
            // Without room for the packed blocks beside the others, the file stays verbatim.
            Err(error) if error.kind() == ErrorKind::Full => uncommitted = Uncommitted::new(collection),
            Err(error) => return Err(error),
        }
    }
    let stored_parts = match &bytes {
        Bytes::DataFile { number, file, draft }
            if recognized.bytes > GATHERED_BYTES_MAX && recognized.records.is_none() =>
        {
            StoredParts {
                digests,
                ..cut_in_place(collection, (*number, file), draft.as_deref(), &recognized)?
            }
        }
        _ => {
            let options = Options::default();
            let how = How::plain(&options);
            let mut stored_parts =
                store_parts(&mut uncommitted, collection, source, &recognized, &tier_of, how, &Silent)?;
            // There are many small files, so their digests are taken on demand. Those of a batch show
            // whether it still reads as it was imported.
            if recognized.records.is_none() {
                stored_parts.digests = digests;
            }
            stored_parts
        }
    };
    publish::publish_over(uncommitted, collection, (node, rename), mtime, recognized, stored_parts, why)
}

/// Whether a file consists of the recognized parts already, so that its tensors can stay.
pub fn is_recorded(state: &State, file: &FileEntry, recognized: &Recognized) -> bool {
    let is_alike = (file.content, &file.records) == (recognized.content, &recognized.records);
    let is_same = |(id, part): (&ObjectId, &Part)| {
        let known = state.part_of(*id).and_then(|node| state.node(node)?.file()?.tensor.as_ref());
        let is_tensor = match (known, &part.tensor) {
            (Some(known), Some(tensor)) => {
                (&*known.name, known.dtype, &known.shape)
                    == (tensor.own_name.as_str(), tensor.dtype, &tensor.shape)
            }
            (known, tensor) => known.is_none() && tensor.is_none(),
        };
        is_tensor && state.object(*id).is_some_and(|object| object.bytes() == part.end - part.begin)
    };
    is_alike
        && file.objects.len() == recognized.parts.len()
        && file.objects.iter().zip(&recognized.parts).all(is_same)
}

/// Whether a file of this name could be recognized as more than a plain file.
pub fn may_be_recognized(name: &[u8]) -> bool {
    has_suffix(name, b".safetensors")
        || has_suffix(name, b".npy")
        || has_suffix(name, b".gguf")
        || archives::has_suffix(name)
        || shard_index::is_name(name)
        || is_scanned(name)
}

/// Whether recognition reads all bytes of a file of this name. It then waits until the writer has
/// closed the file.
pub fn is_scanned(name: &[u8]) -> bool {
    has_suffix(name, b".cgeb")
}

fn has_suffix(name: &[u8], suffix: &[u8]) -> bool {
    name.ends_with(suffix) && name.len() > suffix.len()
}

/// Makes the parts objects of the data file that holds the bytes already. Blocks that agree with
/// blocks of `draft` take their checksums from it; the others are read back.
fn cut_in_place(
    collection: &Collection,
    (number, file): (u64, &Arc<dyn File>),
    draft: Option<&Object>,
    recognized: &Recognized,
) -> Result<StoredParts> {
    let mut touched = Touched::default();
    let data = collection.data_file(number)?;
    touched.file(&data);
    let mut chunk = Vec::new();
    let mut objects = Vec::with_capacity(recognized.parts.len());
    for part in &recognized.parts {
        let dtype = part.tensor.as_ref().map_or(Dtype::U8, |tensor| tensor.dtype);
        let bytes = part.end - part.begin;
        let block_bytes = Blocking::default().block_bytes(dtype, bytes);
        let step = CHUNK_BYTES / block_bytes as usize * block_bytes as usize;
        let mut parts = Vec::new();
        let known = |at: u64| {
            let len = part.end.saturating_sub(at).min(u64::from(block_bytes));
            Some((len, draft?.known_checksum(at, len as usize)?))
        };
        let mut at = part.begin;
        while at < part.end {
            if let Some((len, checksum)) = known(at) {
                add_checksum(&mut parts, checksum);
                at += len;
                continue;
            }
            // Holes are zeros that nobody wrote, so they are neither read nor compared, however long.
            let found = next_data(&data, at)?;
            let hole = match found.filter(|found| *found < part.end) {
                Some(found) => (found.max(at) - at) / u64::from(block_bytes) * u64::from(block_bytes),
                None => part.end - at,
            };
            add_hole(&mut parts, hole.div_ceil(u64::from(block_bytes)));
            at += hole;
            let end = at + (part.end - at).min(step as u64);
            let next = (at..end).step_by(block_bytes as usize).find(|at| known(*at).is_some());
            let len = (next.unwrap_or(end) - at) as usize;
            chunk.resize(len, 0);
            file.read_exact_at(&mut chunk, at).map_err(|error| Error::io("reading it back", error))?;
            for block in chunk.chunks(block_bytes as usize) {
                let end = at + block.len() as u64;
                let is_hole = block.iter().all(|byte| *byte == 0)
                    && next_data(&data, at)?.is_none_or(|found| found >= end);
                if is_hole {
                    add_hole(&mut parts, 1)
                } else {
                    add_checksum(&mut parts, checksum::of(block))
                }
                at = end;
            }
        }
        objects.push(StoredObject {
            dtype,
            bytes,
            block_bytes,
            extent: Some(Extent { file: number, offset: part.begin }),
            blocks: StoredBlocks::Parts(parts),
            error: None,
        });
    }
    let digests = Digests::NotTaken;
    Ok(StoredParts { bytes: recognized.bytes, objects, digests, touched, outside: None, is_shared: false })
}

fn next_data(file: &Arc<dyn File>, at: u64) -> Result<Option<u64>> {
    file.next_data(at).map_err(|error| Error::io("asking for its holes", error))
}

fn add_checksum(parts: &mut Vec<TakenPart>, checksum: u32) {
    match parts.last_mut() {
        Some(TakenPart::Run(before)) => before.push(checksum),
        _ => parts.push(TakenPart::Run(vec![checksum])),
    }
}

fn add_hole(parts: &mut Vec<TakenPart>, blocks: u64) {
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    match parts.last_mut() {
        _ if blocks == 0 => {}
        Some(TakenPart::Hole(before)) => *before = before.saturating_add(blocks),
        _ => parts.push(TakenPart::Hole(blocks)),
    }
}
