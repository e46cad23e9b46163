//! Lets files that were written through a mount share the data file of another with the same bytes.

use std::sync::Arc;

use crate::format::log::catalog::{Content, Extent, FileEntry};
use crate::ingest::bytes::cut::Written;
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::job::mounted_file::{Bytes, arrive_as, is_recorded};
use crate::ingest::publish::commit::Replaced;
use crate::ingest::recognize::content::{plain, recognize};
use crate::model::{EntryId, Error, Result};
use crate::store::disk::File;
use crate::store::{Collection, GATHERED_BYTES_MAX, Parts, Place, Stretch};

/// Bytes that are compared at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// A file that was written through a mount.
pub struct MountedFile<'a> {
    /// The file.
    pub node: EntryId,
    /// Its name.
    pub name: &'a [u8],
    /// Its content, as the log has it.
    pub entry: &'a FileEntry,
    /// When its bytes changed last, in nanoseconds since 1970.
    pub mtime: i64,
}

/// Moves a new file of `bytes` bytes from its own data file `number`, which has exactly its bytes, to another
/// name of an older data file. Returns its new parts; `None` without such a data file, and the file
/// stays.
pub fn share(
    collection: &Arc<Collection>,
    MountedFile { node, name, entry, mtime }: MountedFile<'_>,
    number: u64,
    bytes: u64,
) -> Result<Option<Parts>> {
    let own = collection.data_file(number)?;
    let attributes = own.attributes();
    let links = attributes.map_err(|error| Error::io("asking for the names of a data file", error))?.links;
    if bytes <= GATHERED_BYTES_MAX || links > 1 || collection.state().outside(number).is_some() {
        return Ok(None);
    }
    for alike in collection.alike(&*own, bytes, Some(number)) {
        let mut uncommitted = Uncommitted::new(collection);
        let Some((shared, file)) = uncommitted.link_data_file(&alike, bytes)? else { continue };
        if !has_same_bytes(&own, &file, bytes)? {
            continue;
        }
        let name = if entry.content == Content::Plain { b"" } else { name };
        let recognized = if name.is_empty() { plain(&file) } else { recognize(&file, name) }?;
        if !is_recorded(&collection.state(), entry, &recognized) {
            return Ok(None);
        }
        let stretches = stretches_of(shared, &file, bytes)?;
        let came_in = Bytes::Written(Written { file: &file, stretches, draft: None });
        let replaced = Replaced { node, rename: None, is_arrival: false };
        let (digests, why) = (entry.digests.clone(), entry.why.to_string());
        let parts = arrive_as(collection, replaced, recognized, came_in, digests, mtime, why)?;
        uncommitted.named();
        collection.offer_data_file(shared, bytes);
        return Ok(Some(parts));
    }
    collection.offer_data_file(number, bytes);
    Ok(None)
}

/// The bytes and the holes of a data file.
fn stretches_of(number: u64, file: &Arc<dyn File>, bytes: u64) -> Result<Vec<Stretch>> {
    let mut stretches = Vec::new();
    let mut at = 0;
    while at < bytes {
        let found = file.next_data(at).map_err(|error| Error::io("asking for its holes", error))?;
        let data = found.unwrap_or(bytes).clamp(at, bytes);
        let end = (data + CHUNK_BYTES as u64).min(bytes);
        Stretch::push(&mut stretches, at..data, Place::Hole(Extent { file: number, offset: at }));
        Stretch::push(&mut stretches, data..end, Place::Data(Extent { file: number, offset: data }));
        at = end;
    }
    Ok(stretches)
}

/// Whether two files have the same first `bytes` bytes. An unreadable file counts as different.
fn has_same_bytes(own: &Arc<dyn File>, other: &Arc<dyn File>, bytes: u64) -> Result<bool> {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(CHUNK_BYTES as u64) as usize;
        one.resize(len, 0);
        two.resize(len, 0);
        own.read_exact_at(&mut one, at).map_err(|error| Error::io("reading it back", error))?;
        if other.read_exact_at(&mut two, at).is_err() || one != two {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
