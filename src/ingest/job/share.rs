//! Lets files that were written through a mount share the data file of another with the same bytes.

use std::sync::Arc;

use crate::format::log::catalog::{Content, Extent, FileEntry, NodeEntry, NodeType};
use crate::format::log::record::Record;
use crate::ingest::bytes::cut::{Cutting, Written};
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::store_parts::StoredParts;
use crate::ingest::job::mounted_file::{Bytes, arrive_as, is_recorded};
use crate::ingest::publish::commit::Replaced;
use crate::ingest::publish::drafts::{Draft, add_draft};
use crate::ingest::recognize::block_size::Blocking;
use crate::ingest::recognize::content::{plain, recognize};
use crate::model::{EntryId, Error, ErrorKind, Progress, Result, Shape};
use crate::store::disk::File;
use crate::store::{Batch, Collection, GATHERED_BYTES_MAX, Object, Parts, Place, State, Stretch};

/// Bytes that are compared at a time.
const CHUNK_BYTES: usize = 4 << 20;
/// A file of more stretches of bytes and holes does not come to share: one batch has a record of each.
const STRETCHES_MAX: usize = 8192;

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

/// Another name of a data file with the same bytes as a file has. Dropping it removes the name.
pub struct Same<'a> {
    uncommitted: Uncommitted<'a>,
    number: u64,
    file: Arc<dyn File>,
    bytes: u64,
}

impl Same<'_> {
    /// Compares a file of `bytes` bytes, whose data file `number` has exactly these, with older data files. `None` without
    /// one of the same bytes: the file is then one that later files are compared with. No lock is needed, but the
    /// result holds only as long as the file stays as it was. The name and the bytes are durable: those of the file
    /// may be, and the system may write a batch to the disk at once.
    pub fn find<'a>(
        collection: &'a Arc<Collection>,
        number: u64,
        bytes: u64,
        progress: &dyn Progress,
    ) -> Result<Option<Same<'a>>> {
        let own = collection.data_file(number)?;
        let attributes = own.attributes();
        let attributes =
            attributes.map_err(|error| Error::io("asking for the names of a data file", error))?;
        if bytes <= GATHERED_BYTES_MAX || attributes.links > 1 || collection.state().outside(number).is_some()
        {
            return Ok(None);
        }
        for alike in collection.alike(&*own, bytes, Some(number), progress)? {
            let mut uncommitted = Uncommitted::new(collection);
            let Some((number, file)) = uncommitted.link_data_file(&alike, bytes)? else { continue };
            if has_same_bytes(&own, &file, bytes, progress)? {
                collection.sync_file(&file)?;
                return Ok(Some(Same { uncommitted, number, file, bytes }));
            }
        }
        collection.offer_data_file(number, bytes);
        Ok(None)
    }

    /// Moves a file there whose tensors nobody has seen yet. Returns the new parts of the file; `None` if it stays,
    /// because its content is recognized differently by now.
    pub fn share_new(
        self,
        collection: &Arc<Collection>,
        MountedFile { node, name, entry, mtime }: MountedFile<'_>,
    ) -> Result<Option<Parts>> {
        let Same { uncommitted, number, file, bytes } = self;
        let name = if entry.content == Content::Plain { b"" } else { name };
        let recognized = if name.is_empty() { plain(&file) } else { recognize(&file, name) }?;
        if !is_recorded(&collection.state(), entry, &recognized) {
            return Ok(None);
        }
        let stretches = stretches_of(number, &file, bytes)?;
        let came_in = Bytes::Written(Written { file: &file, stretches, objects: Vec::new() });
        let replaced = Replaced { node, new: None, rename: None, is_arrival: false };
        let (digests, why) = (entry.digests.clone(), entry.why.to_string());
        let parts = arrive_as(collection, replaced, recognized, came_in, digests, mtime, why)?;
        uncommitted.named();
        collection.offer_data_file(number, bytes);
        Ok(Some(parts))
    }

    /// Moves a plain file there that consists of one object. Nothing that a program sees changes: not the times of the
    /// file either. Returns the new parts of the file; `None` if it stays, because it has too many holes. Fails with `Gone`
    /// where it has another object by now.
    pub fn share_plain(
        self,
        collection: &Arc<Collection>,
        node: EntryId,
        object: &Arc<Object>,
    ) -> Result<Option<Parts>> {
        let Same { uncommitted, number, file, bytes } = self;
        let recognized = plain(&file)?;
        let stretches = stretches_of(number, &file, bytes)?;
        if stretches.len() > STRETCHES_MAX {
            return Ok(None);
        }
        let written = Written { file: &file, stretches, objects: vec![object.clone()] };
        let blocking = Blocking::Bytes(object.entry.block_bytes);
        let StoredParts { objects, touched, .. } =
            Cutting::new(&written, &recognized, blocking).store(collection)?;
        let [stored] = objects.as_slice() else { return Ok(None) };
        let draft = Draft {
            object: stored,
            tensor: object.entry.tensor,
            seed: object.entry.seed,
            shape: Shape::new(&[bytes]).unwrap_or_default(),
            parent: None,
        };
        let fill = |batch: &mut Batch, state: &State| {
            let gone = || Error::new(ErrorKind::Gone, "it has other bytes by now");
            let before = &state.node(node).ok_or_else(gone)?.entry;
            let NodeType::File(entry) = &before.node_type else { return Err(gone()) };
            if entry.content != Content::Plain || *entry.objects != [object.entry.id] {
                return Err(gone());
            }
            state.check_unshared(object.entry.id, Some(node))?;
            // In a batch of its own the object would count in quotas beside the other.
            let added = add_draft(batch, &draft);
            let entry = FileEntry { objects: [added].as_slice().into(), ..(**entry).clone() };
            batch.node(NodeEntry { node_type: NodeType::File(Box::new(entry)), ..before.clone() });
            batch.record(Record::Delete { object: object.entry.id });
            Ok(())
        };
        let parts = collection.record_then(touched, fill, |state, ()| collection.parts_in(state, node))?;
        uncommitted.named();
        collection.offer_data_file(number, bytes);
        parts.map(Some)
    }
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
fn has_same_bytes(
    own: &Arc<dyn File>,
    other: &Arc<dyn File>,
    bytes: u64,
    progress: &dyn Progress,
) -> Result<bool> {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes {
        progress.check()?;
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
