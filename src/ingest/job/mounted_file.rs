//! Recognizes files that were written through a mount, in place.

use std::sync::Arc;

use crate::format::files::{npy, shard_index};
use crate::format::log::catalog::{Content, Digests, FileEntry};
use crate::ingest::bytes::cut::{Cutting, Written};
use crate::ingest::bytes::options::Options;
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::room;
use crate::ingest::bytes::store_parts::{How, StoredParts, store_parts};
use crate::ingest::job::arrival::{Arrival, Beside, Shaped};
use crate::ingest::publish::commit;
use crate::ingest::publish::commit::{Rename, Replaced};
use crate::ingest::recognize::archives;
use crate::ingest::recognize::content::{plain, recognize_at};
use crate::ingest::recognize::parts::{Part, PartTensor, Recognized};
use crate::model::{Error, ErrorKind, NameIn, ObjectId, Result, Silent};
use crate::store::Collection;
use crate::store::GATHERED_BYTES_MAX;
use crate::store::disk::File;
use crate::store::{Parts, State};

/// From this size on, a file is only taken apart if the disk seems to have room for what that needs:
/// its bytes are not read in vain.
const ASKS_FROM_BYTES: u64 = 64 << 20;

/// The bytes of a written file.
pub enum Bytes<'a> {
    /// Of a file that is cut where it lies.
    Written(Written<'a>),
    /// Other bytes, which are copied.
    Other(&'a Arc<dyn File>),
}

impl<'a> Bytes<'a> {
    fn source(&self) -> &'a Arc<dyn File> {
        match self {
            Bytes::Written(written) => written.file,
            Bytes::Other(source) => source,
        }
    }
}

/// Replaces the bytes of a file, called `name`, and its tensors. A file whose content does not fit its name is kept as a plain file, with the error as reason. `digests`
/// are those known so far. Returns the new parts of the file.
pub fn arrive(
    collection: &Arc<Collection>,
    replaced: Replaced<'_>,
    name: &[u8],
    bytes: Bytes<'_>,
    digests: Digests,
    mtime: i64,
) -> Result<Parts> {
    let node = replaced.node;
    let source = bytes.source();
    // Content that takes reading the whole file is recognized at the close.
    let is_arrival = replaced.is_arrival && !is_scanned(name);
    let name = if is_scanned(name) { b"" } else { name };
    let path = collection.state().path(node);
    let found = recognize_at(collection, &path, source, name);
    // A file that its name takes for a container is no tensor as a whole.
    let replaced = Replaced { is_arrival: is_arrival && found.is_ok(), ..replaced };
    let (recognized, why) = match found {
        Ok(recognized) => {
            let note = recognized.note.clone();
            (recognized, note)
        }
        Err(_) if source.len().is_ok_and(|bytes| bytes == 0) => (plain(source)?, String::new()),
        Err(error) => (plain(source)?, format!("kept as a plain file: {error}")),
    };
    arrive_as(collection, replaced, recognized, bytes, digests, mtime, why)
}

/// Replaces the bytes of a file, which are recognized already, and its tensors. Where the tensors would exceed a quota, the file is kept as a plain file, with that reason.
/// Returns the new parts of the file.
pub fn arrive_as(
    collection: &Arc<Collection>,
    replaced: Replaced<'_>,
    recognized: Recognized,
    bytes: Bytes<'_>,
    digests: Digests,
    mtime: i64,
    why: String,
) -> Result<Parts> {
    let (name, arrival) = arrival_of(collection, &replaced);
    let before = collection.state().node(replaced.node).cloned().filter(|_| !arrival.is_plain());
    let file = before.as_ref().and_then(|node| node.file());
    let shaped = arrival.apply(collection, Shaped { recognized, why }, &name, file);
    arrive_shaped(collection, replaced, &arrival, shaped, bytes, digests, mtime)
}

/// As [`arrive_as`], of a file that the settings of `arrival` were applied to.
pub fn arrive_shaped(
    collection: &Arc<Collection>,
    replaced: Replaced<'_>,
    arrival: &Arrival,
    Shaped { recognized, why }: Shaped,
    bytes: Bytes<'_>,
    digests: Digests,
    mtime: i64,
) -> Result<Parts> {
    let source = bytes.source();
    let replaced = Replaced { is_arrival: !arrival.is_plain(), ..replaced };
    let (recognized, why, _held) = match room::reserve_tensors(collection, replaced.node, &recognized) {
        Ok(held) => (recognized, why, Some(held)),
        Err(error) if error.kind() == ErrorKind::Quota => {
            (plain(source)?, format!("kept as a plain file: {error}"), None)
        }
        Err(error) => return Err(error),
    };
    let beside = if arrival.is_plain() { Beside::default() } else { Beside::of(&recognized) };
    let tier_of = |tensor: &PartTensor| arrival.tier_in(collection, beside, tensor);
    let is_moved =
        recognized.parts.iter().filter_map(|part| part.tensor.as_ref()).any(|it| tier_of(it).is_some());
    let options = Options { encoder: arrival.encoder(), blocking: arrival.blocking(), ..Options::default() };
    let store = |uncommitted: &mut Uncommitted<'_>| {
        store_parts(uncommitted, collection, source, &recognized, &tier_of, How::plain(&options), &Silent)
    };
    let mut uncommitted = Uncommitted::new(collection);
    if is_moved && recognized.records.is_none() {
        match store(&mut uncommitted) {
            Ok(mut stored_parts) => {
                // Bytes that are rounded now cannot be digested later.
                if stored_parts.objects.iter().all(|object| object.lowest_tier().is_none()) {
                    stored_parts.digests = digests;
                }
                return commit::publish_over(
                    uncommitted,
                    collection,
                    replaced,
                    mtime,
                    recognized,
                    stored_parts,
                    why,
                );
            }
            // Without room for the other blocks beside these, the file stays verbatim.
            Err(error) if error.kind() == ErrorKind::Full => uncommitted = Uncommitted::new(collection),
            Err(error) => return Err(error),
        }
    }
    let is_cut = recognized.bytes > GATHERED_BYTES_MAX && recognized.records.is_none();
    let cut = match &bytes {
        Bytes::Written(written) if is_cut => Some(Cutting::new(written, &recognized, options.blocking)),
        _ => None,
    };
    let mut is_in_place = false;
    let stored_parts = match cut {
        Some(cut) if is_preferred(collection, &cut, recognized.bytes)? => {
            is_in_place = true;
            StoredParts { digests, ..cut.store(collection)? }
        }
        _ => {
            let mut stored_parts = store(&mut uncommitted)?;
            // There are many small files, so their digests are taken on demand. Those of a batch show
            // whether it still reads as it was imported.
            if recognized.records.is_none() {
                stored_parts.digests = digests;
            }
            stored_parts
        }
    };
    let parts =
        commit::publish_over(uncommitted, collection, replaced, mtime, recognized, stored_parts, why)?;
    if is_in_place {
        collection.free_left(&parts.0);
    }
    Ok(parts)
}

/// How a file arrives, and under which name. One that programs still write is exact, whatever is set for what arrives.
fn arrival_of(collection: &Collection, replaced: &Replaced<'_>) -> (Vec<u8>, Arrival) {
    let Replaced { node, rename, is_arrival, .. } = replaced;
    let (directory, name) = match rename {
        Some(Rename { to, .. }) => (to.directory, to.name.to_vec()),
        None => {
            let first = collection.state().links(*node).first().cloned();
            first.map_or((*node, Vec::new()), |(directory, name)| (directory, name.to_vec()))
        }
    };
    let arrival = if *is_arrival {
        Arrival::at(collection, *node, NameIn { directory, name: &name })
    } else {
        Arrival::by_default(collection, *node, directory)
    };
    (name, arrival)
}

/// Whether to cut a file where it lies. One that lies mostly elsewhere is copied to a data file of its own, where
/// there is room. `Full` if there seems to be no room for either.
fn is_preferred(collection: &Collection, cut: &Cutting<'_>, bytes: u64) -> Result<bool> {
    let is_scattered = cut.copied() > bytes / 2;
    if bytes < ASKS_FROM_BYTES && !is_scattered {
        return Ok(true);
    }
    let free = collection.free_bytes()?;
    if is_scattered && free > bytes + bytes / 8 {
        return Ok(false);
    }
    // The log takes a checksum of each block.
    let needed = cut.copied() + bytes / 2048;
    if bytes >= ASKS_FROM_BYTES && free < needed {
        let text =
            format!("storing its tensors separately needs {needed} bytes of disk, and {free} are free");
        return Err(Error::new(ErrorKind::Full, text));
    }
    Ok(true)
}

/// Whether a file consists of the recognized parts already, so that its tensors can stay.
pub fn is_recorded(state: &State, file: &FileEntry, recognized: &Recognized) -> bool {
    let is_alike = (file.content, &file.records) == (recognized.content, &recognized.records);
    let is_same = |(id, part): (&ObjectId, &Part)| {
        let file = state.part_of(*id).and_then(|node| state.node(node)?.file());
        let known = file.and_then(|file| Some((file.tensor.as_ref()?, &file.view)));
        let is_tensor = match (known, &part.tensor) {
            (Some((known, view)), Some(tensor)) => {
                let is_array = matches!(recognized.content, Content::Npy | Content::Npz);
                let is_declared =
                    || npy::as_pairs(tensor.dtype, known.dtype, &tensor.shape).as_ref() == Some(&known.shape);
                (&*known.name, view) == (tensor.own_name.as_str(), &tensor.view)
                    && ((known.dtype, &known.shape) == (tensor.dtype, &tensor.shape)
                        || is_array && is_declared())
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
