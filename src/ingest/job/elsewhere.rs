//! Collections of files that lie elsewhere and are not read: the objects of a bucket. Only headers of containers are.
//!
//! Each file becomes a data file with the same bytes at the same offsets, so what the log says of a byte holds for the
//! object. Checksums are not known: the log has those of places, and says so (`UNREAD`).

use std::sync::Arc;

use crate::format::checksum;
use crate::format::log::catalog::{Digests, Entry, Extent};
use crate::ingest::bytes::options::Origin;
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::store_parts::{StoredBlocks, StoredObject, StoredParts};
use crate::ingest::find::target::Target;
use crate::ingest::job::mounted_file::{is_scanned, may_be_recognized};
use crate::ingest::publish::commit::{Attributes, publish};
use crate::ingest::recognize::block_size::Blocking;
use crate::ingest::recognize::content::{plain, recognize_at};
use crate::ingest::recognize::data_files::is_data_file;
use crate::ingest::recognize::parts::{Part, Recognized};
use crate::model::{CollectionName, Dtype, Error, ErrorKind, Owner, Result, StoreId};
use crate::store::disk::elsewhere::ElsewhereDisk;
use crate::store::{
    Access, Collection, DescribedFiles, Elsewhere, Frozen, ROOT, Store, Touched, UNREAD, now_nanoseconds,
};

/// Permission bits of the files and directories.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

/// Describes files that lie elsewhere as the collection `place` of the store `id`, all of `owner`.
pub fn describe(
    place: CollectionName<'_>,
    id: StoreId,
    owner: Owner,
    files: &[Elsewhere],
) -> Result<DescribedFiles> {
    let disk = Arc::new(ElsewhereDisk::default());
    Store::create(&*disk, id)?;
    let store = Store::open(disk.clone(), Access::Write, "")?;
    store.create_tenant(place.tenant, owner, DIRECTORY_MODE)?;
    let collection = store.collection_made(place.tenant, place.name, owner)?;
    collection.record(Touched::default(), |batch, _| {
        batch.entry(Entry::Setting { node: ROOT, key: UNREAD.to_owned(), value: Some(String::new()) });
        Ok(())
    })?;
    let mut data_files = vec![None; files.len()];
    // Models say which tensors their data files have.
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|place| files.get(*place).is_some_and(|file| !is_model(file)));
    for index in order {
        if let (Some(file), Some(number)) = (files.get(index), data_files.get_mut(index)) {
            *number = add(&disk, &collection, owner, file)?;
        }
    }
    Ok(DescribedFiles { canonical: Frozen::of(&collection)?.canonical(id)?, data_files })
}

fn is_model(file: &Elsewhere) -> bool {
    file.path.last().is_some_and(|name| name.ends_with(b".onnx"))
}

/// Adds a file. Returns the number of its data file.
fn add(
    disk: &ElsewhereDisk,
    collection: &Arc<Collection>,
    owner: Owner,
    Elsewhere { path, file, mtime, identity }: &Elsewhere,
) -> Result<Option<u64>> {
    let Some((name, directories)) = path.split_last() else { return Ok(None) };
    let target = Target { directories: directories.to_vec(), name: name.clone() };
    let is_read = may_be_recognized(name) && !is_scanned(name);
    let is_read = is_read || is_data_file(&collection.state(), target.path().as_bytes());
    let recognized = if is_read { Some(recognize_at(collection, target.path().as_bytes(), file, name)) } else { None };
    let (recognized, why) = match recognized {
        None => (plain(file)?, String::new()),
        Some(Ok(recognized)) => {
            let note = recognized.note.clone();
            (recognized, note)
        }
        Some(Err(error)) if is_of_content(&error) => {
            (plain(file)?, format!("shown as a plain file: {error}"))
        }
        // The next try may read it.
        Some(Err(error)) => return Err(error.at(target.path())),
    };
    let mut uncommitted = Uncommitted::new(collection);
    let number = match recognized.bytes {
        0 => None,
        bytes => {
            disk.give(file);
            Some(uncommitted.create_data_file(bytes)?.0)
        }
    };
    let stored = stored(&recognized, number, identity);
    let now = now_nanoseconds();
    let origin = Origin { mode: FILE_MODE, owner, atime: now, mtime: *mtime, sha256: None };
    let attributes = Attributes { parents: None, why, provenance: None };
    publish(uncommitted, collection, &target, &origin, recognized, stored, attributes)?;
    Ok(number)
}

/// Whether the bytes of a file are the reason that it could not be taken apart.
fn is_of_content(error: &Error) -> bool {
    let kinds = [ErrorKind::Invalid, ErrorKind::Unsupported, ErrorKind::Unreadable, ErrorKind::Corrupt];
    kinds.contains(&error.kind())
}

/// The parts of a file where they lie in its data file.
fn stored(recognized: &Recognized, number: Option<u64>, identity: &[u8]) -> StoredParts {
    let object = |part: &Part| {
        let (dtype, bytes) =
            (part.tensor.as_ref().map_or(Dtype::U8, |tensor| tensor.dtype), part.end - part.begin);
        let block_bytes = Blocking::BySize.block_bytes(dtype, bytes);
        let blocks = bytes.div_ceil(u64::from(block_bytes).max(1));
        let offset = |block: u64| part.begin + block * u64::from(block_bytes);
        let checksum = |block| checksum::continued(checksum::of(identity), &u64::to_le_bytes(offset(block)));
        StoredObject {
            dtype,
            bytes,
            block_bytes,
            extent: number.filter(|_| bytes > 0).map(|file| Extent { file, offset: part.begin }),
            blocks: StoredBlocks::Run((0..blocks).map(checksum).collect()),
            error: None,
        }
    };
    StoredParts {
        bytes: recognized.bytes,
        objects: recognized.parts.iter().map(object).collect(),
        digests: Digests::NotTaken,
        touched: Touched::default(),
        outside: Vec::new(),
        is_shared: false,
    }
}
