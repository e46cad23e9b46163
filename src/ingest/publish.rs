//! Names for what was taken in: objects, nodes and names go to the log, the names in
//! the last batch.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::catalog::{Content, Digests, Entry, FileEntry, Measured, ObjectEntry, TensorEntry};
use crate::format::record::{Described, Record, Stored};
use crate::ingest::Origin;
use crate::ingest::names::Names;
use crate::ingest::recognize::{PartTensor, Recognized};
use crate::ingest::take::{Taken, TakenBlocks, TakenObject};
use crate::ingest::unnamed::Unnamed;
use crate::model::{
    EntryId, Error, ErrorKind, ObjectId, Result, SeedId, Shape, TensorId, Tier, escape_component,
    escape_tensor_path,
};
use crate::store::Collection;
use crate::store::collection::{Touched, now_seconds};
use crate::store::log::Batch;

/// A batch takes at most about this many slots, so that replaying it takes little
/// memory. Names always stand in one batch.
const BATCH_SLOTS_MAX: u64 = 32 << 10;

/// Where a file goes in its collection.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The directories above it, outermost first.
    pub directories: Vec<Vec<u8>>,
    /// Its name.
    pub name: Vec<u8>,
}

impl Target {
    /// The path below the collection, as text.
    pub fn path(&self) -> String {
        let mut parts: Vec<&[u8]> = self.directories.iter().map(Vec::as_slice).collect();
        parts.push(&self.name);
        String::from_utf8_lossy(&parts.join(&b'/')).into_owned()
    }

    fn directory_path(&self) -> String {
        let parts: Vec<&[u8]> = self.directories.iter().map(Vec::as_slice).collect();
        String::from_utf8_lossy(&parts.join(&b'/')).into_owned()
    }
}

/// Names a new file, whose place may be another's so far; the number of tensors that have
/// names now.
pub(super) fn publish(
    mut unnamed: Unnamed<'_>,
    collection: &Arc<Collection>,
    target: &Target,
    origin: &Origin,
    recognized: Recognized,
    mut taken: Taken,
) -> Result<u64> {
    let directory = target.directory_path();
    let file = Arrived::new(&mut unnamed, collection, &directory, &target.path(), recognized, &mut taken)?;
    let named = collection.commit(std::mem::take(&mut taken.touched), |batch, state| {
        let mut names = Names::new(batch, state, origin);
        let parent = names.directories(&target.directories)?;
        let file_name = file_name(&target.name, file.identity(&target.path()));
        names.replace(parent, &file_name)?;
        let node = names.number();
        let named = file.name(&mut names, parent, node, String::new())?;
        names.name(parent, &file_name, node);
        names.finish();
        Ok(named)
    })?;
    unnamed.named();
    Ok(named)
}

/// Gives a file that is there other bytes, and its tensors their names. `Gone` where the
/// file has no name any more. `why` is what the file says of it.
pub(super) fn publish_over(
    mut unnamed: Unnamed<'_>,
    collection: &Arc<Collection>,
    node: EntryId,
    mtime: i64,
    recognized: Recognized,
    mut taken: Taken,
    why: String,
) -> Result<()> {
    let path = String::from_utf8_lossy(&collection.state().path(node)).into_owned();
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
    let file = Arrived::new(&mut unnamed, collection, &directory, &path, recognized, &mut taken)?;
    collection.record(std::mem::take(&mut taken.touched), |batch, state| {
        let gone = || Error::new(ErrorKind::Gone, format!("{path} is gone"));
        let before = state.node(node).ok_or_else(gone)?;
        let (parent, _) = state.links(node).first().ok_or_else(gone)?;
        let entry = &before.entry;
        let owner = (entry.uid, entry.gid);
        let origin = Origin { mode: entry.mode, owner, mtime, sha256: None };
        let mut names = Names::new(batch, state, &origin);
        names.empty(before);
        file.name(&mut names, *parent, node, why)?;
        names.finish();
        Ok(())
    })?;
    unnamed.named();
    Ok(())
}

/// A file whose objects are in the log, and its name not yet.
struct Arrived<'a> {
    collection: &'a Arc<Collection>,
    directory: String,
    content: Content,
    tensors: Vec<Option<PartTensor>>,
    objects: Vec<ObjectId>,
    errors: Vec<Option<Measured>>,
    digests: Option<Digests>,
}

impl<'a> Arrived<'a> {
    fn new(
        unnamed: &mut Unnamed<'_>,
        collection: &'a Arc<Collection>,
        directory: &str,
        path: &str,
        recognized: Recognized,
        taken: &mut Taken,
    ) -> Result<Arrived<'a>> {
        let mut arrived = Arrived {
            collection,
            directory: directory.to_owned(),
            content: recognized.content,
            tensors: recognized.parts.into_iter().map(|part| part.tensor).collect(),
            objects: Vec::new(),
            errors: taken.objects.iter().map(|object| object.error).collect(),
            digests: taken.digests,
        };
        let drafts: Vec<Draft<'_>> = taken
            .objects
            .iter()
            .zip(&arrived.tensors)
            .map(|(object, tensor)| {
                let name =
                    tensor.as_ref().map_or_else(|| path.to_owned(), |tensor| arrived.full(&tensor.name));
                let shape = tensor.as_ref().map_or_else(|| plain_shape(object.bytes), |tensor| tensor.shape);
                Draft { object, tensor: arrived.identity(&name), seed: SeedId(0), shape }
            })
            .collect();
        if let Some(outside) = taken.outside.clone() {
            collection.record(Touched::default(), |batch, _| {
                batch.entry(Entry::Outside(outside));
                Ok(())
            })?;
        }
        arrived.objects = objects(unnamed, collection, &drafts)?;
        Ok(arrived)
    }

    fn identity(&self, name: &str) -> TensorId {
        TensorId::of(self.collection.tenant(), self.collection.name(), name, TensorId(0))
    }

    fn full(&self, name: &str) -> String {
        if self.directory.is_empty() { name.to_owned() } else { format!("{}/{name}", self.directory) }
    }

    /// Says what the file `node` is, and names its tensors beside it; how many.
    fn name(&self, names: &mut Names<'_>, parent: EntryId, node: EntryId, why: String) -> Result<u64> {
        let mut file = FileEntry {
            content: self.content,
            objects: self.objects.clone(),
            tensor: None,
            container: None,
            digests: self.digests,
            error: None,
            why,
        };
        names.file(node, file.clone());
        if self.errors.iter().any(Option::is_some) {
            names.allow_loss(node);
        }
        let files: HashSet<&str> = self.tensors.iter().flatten().map(|tensor| tensor.name.as_str()).collect();
        let (mut named, mut hidden) = (0, Vec::new());
        for ((tensor, object), error) in self.tensors.iter().zip(&self.objects).zip(&self.errors) {
            let Some(tensor) = tensor else { continue };
            let id = self.identity(&self.full(&tensor.name));
            let path = escape_tensor_path(&tensor.name, id, |prefix| files.contains(prefix));
            let part = names.number();
            if names.part(parent, &path, part)? {
                named += 1;
            } else {
                hidden.push(tensor.name.as_str());
            }
            names.file(part, part_entry(tensor, *object, node, *error));
            if error.is_some() {
                names.allow_loss(part);
            }
        }
        if self.content.is_container() && !hidden.is_empty() {
            file.why = format!(
                "these tensors can be reached inside this file only, their names are taken by others: {}",
                hidden.join(", ")
            );
            names.file(node, file);
        }
        Ok(named)
    }
}

fn part_entry(
    tensor: &PartTensor,
    object: ObjectId,
    container: EntryId,
    error: Option<Measured>,
) -> FileEntry {
    FileEntry {
        content: Content::Part,
        objects: vec![object],
        tensor: Some(TensorEntry {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape,
            parent: TensorId(0),
        }),
        container: Some(container),
        digests: None,
        error,
        why: String::new(),
    }
}

/// Commits a tensor made of several files: its shards stand in the order given.
pub(super) fn publish_shards(
    mut unnamed: Unnamed<'_>,
    collection: &Arc<Collection>,
    target: &Target,
    origin: &Origin,
    shards: Vec<Taken>,
) -> Result<()> {
    let path = target.path();
    let tensor = TensorId::of(collection.tenant(), collection.name(), &path, TensorId(0));
    let mut drafts = Vec::new();
    let mut touched = Touched::default();
    let mut shards = shards;
    for shard in &mut shards {
        touched.merge(std::mem::take(&mut shard.touched));
    }
    for (place, object) in shards.iter().flat_map(|shard| &shard.objects).enumerate() {
        let shape = plain_shape(object.bytes);
        drafts.push(Draft { object, tensor, seed: SeedId(place as u128 + 1), shape });
    }
    let bytes: u64 = drafts.iter().map(|draft| draft.object.bytes).sum();
    let kept = objects(&mut unnamed, collection, &drafts)?;
    collection.commit(touched, |batch, state| {
        let mut names = Names::new(batch, state, origin);
        let parent = names.directories(&target.directories)?;
        let file_name = file_name(&target.name, tensor);
        names.replace(parent, &file_name)?;
        let node = names.number();
        names.file(
            node,
            FileEntry {
                content: Content::Tensor,
                objects: kept.clone(),
                tensor: Some(TensorEntry {
                    name: String::from_utf8_lossy(&target.name).into_owned(),
                    dtype: crate::model::Dtype::U8,
                    shape: plain_shape(bytes),
                    parent: TensorId(0),
                }),
                container: None,
                digests: None,
                error: None,
                why: String::new(),
            },
        );
        names.name(parent, &file_name, node);
        names.finish();
        Ok(())
    })?;
    unnamed.named();
    Ok(())
}

struct Draft<'a> {
    object: &'a TakenObject,
    tensor: TensorId,
    seed: SeedId,
    shape: Shape,
}

fn plain_shape(bytes: u64) -> Shape {
    Shape::new(&[bytes]).unwrap_or_default()
}

/// Objects and their blocks, in batches of bounded size, without names.
fn objects(
    unnamed: &mut Unnamed<'_>,
    collection: &Collection,
    drafts: &[Draft<'_>],
) -> Result<Vec<ObjectId>> {
    let mut kept: Vec<ObjectId> = Vec::with_capacity(drafts.len());
    let mut place = 0;
    let mut block = 0;
    while place < drafts.len() {
        collection.record(Touched::default(), |batch, _| {
            while let Some(draft) = drafts.get(place).filter(|_| batch.slots() < BATCH_SLOTS_MAX) {
                let id = match kept.get(place) {
                    Some(id) => *id,
                    None => {
                        let id = add_object(batch, draft);
                        kept.push(id);
                        unnamed.object(id);
                        id
                    }
                };
                match add_blocks(batch, id, draft, block) {
                    Some(next) => block = next,
                    None => (place, block) = (place + 1, 0),
                }
            }
            Ok(())
        })?;
    }
    Ok(kept)
}

fn add_object(batch: &mut Batch, draft: &Draft<'_>) -> ObjectId {
    let creation = batch.next_sequence();
    let id = ObjectId::of(draft.tensor, draft.seed, creation);
    batch.entry(Entry::Object(ObjectEntry {
        id,
        tensor: draft.tensor,
        seed: draft.seed,
        creation,
        dtype: draft.object.dtype,
        bytes: draft.object.bytes,
        block_bytes: draft.object.block_bytes,
        home: draft.object.home,
    }));
    id
}

/// Adds the blocks from `first` on until the batch is full; the block to go on with, or
/// `None` when all are there.
fn add_blocks(batch: &mut Batch, id: ObjectId, draft: &Draft<'_>, first: usize) -> Option<usize> {
    let described = Described { dtype: draft.object.dtype, shape: draft.shape, parent: None, reconstruct: 0 };
    let created_at = now_seconds();
    match &draft.object.blocks {
        TakenBlocks::Run(checksums) if checksums.is_empty() => None,
        TakenBlocks::Run(checksums) => {
            let offset = draft.object.home.map_or(0, |home| home.offset);
            batch.run(checksums, |len, checksum| Record::CreateRun {
                object: id,
                block: 0,
                described,
                stored: Stored { tier: Tier::Exact, scale: 0.0, checksum, offset, len, in_data: true },
                created_at,
            });
            None
        }
        TakenBlocks::Each(blocks) => {
            for (index, stored) in blocks.iter().enumerate().skip(first) {
                if batch.slots() >= BATCH_SLOTS_MAX {
                    return Some(index);
                }
                let (described, stored) = (described.clone(), *stored);
                batch.record(Record::Create {
                    object: id,
                    block: index as u32,
                    described,
                    stored,
                    created_at,
                });
            }
            None
        }
    }
}

/// A file's own name as it is shown: one that cannot stand is escaped.
fn file_name(name: &[u8], id: TensorId) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(name) => escape_component(name, id).into_bytes(),
        Err(_) => name.to_vec(),
    }
}
