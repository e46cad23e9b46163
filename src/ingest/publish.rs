//! Names for what was taken in: objects, nodes and names go to the log, the names in
//! the last batch.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::catalog::{Content, Entry, FileEntry, ObjectEntry, TensorEntry};
use crate::format::record::{Described, Record, Stored};
use crate::ingest::Origin;
use crate::ingest::names::Names;
use crate::ingest::recognize::{PartTensor, Recognized};
use crate::ingest::take::{Taken, TakenBlocks, TakenObject};
use crate::ingest::unnamed::Unnamed;
use crate::model::{ObjectId, Result, SeedId, Shape, TensorId, Tier, escape_component, escape_tensor_path};
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

/// Commits everything; the number of tensors that have names now.
pub(super) fn publish(
    mut unnamed: Unnamed<'_>,
    collection: &Arc<Collection>,
    target: &Target,
    origin: &Origin,
    recognized: Recognized,
    mut taken: Taken,
) -> Result<u64> {
    let identity = |name: &str| TensorId::of(collection.tenant(), collection.name(), name, TensorId(0));
    let directory = target.directory_path();
    let full =
        |name: &str| if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") };
    let tensors: Vec<Option<PartTensor>> = recognized.parts.into_iter().map(|part| part.tensor).collect();
    let mut drafts = Vec::with_capacity(taken.objects.len());
    for (object, tensor) in taken.objects.iter().zip(&tensors) {
        let name = tensor.as_ref().map_or_else(|| target.path(), |tensor| full(&tensor.name));
        drafts.push(Draft {
            object,
            tensor: identity(&name),
            seed: SeedId(0),
            shape: tensor.as_ref().map_or_else(|| plain_shape(object.bytes), |tensor| tensor.shape),
        });
    }
    let kept = objects(&mut unnamed, collection, &drafts)?;
    drop(drafts);
    let touched = std::mem::take(&mut taken.touched);
    let mut named = 0;
    collection.commit(touched, |batch, state| {
        let mut names = Names::new(batch, state, origin);
        let parent = names.directories(&target.directories)?;
        let file_name = file_name(&target.name, identity(&target.path()));
        names.replace(parent, &file_name)?;
        let container = names.number();
        let is_container = recognized.content.is_container();
        let lossy = taken.objects.iter().any(|object| object.error.is_some());
        let mut hidden = Vec::new();
        let mut parts = Vec::new();
        let files: HashSet<&str> = tensors.iter().flatten().map(|tensor| tensor.name.as_str()).collect();
        for ((object, kept), tensor) in taken.objects.iter().zip(&kept).zip(&tensors) {
            let Some(tensor) = tensor else { continue };
            let path = escape_tensor_path(&tensor.name, identity(&full(&tensor.name)), |prefix| {
                files.contains(prefix)
            });
            parts.push((object, kept, tensor, path));
        }
        let file = FileEntry {
            content: recognized.content,
            objects: kept.clone(),
            tensor: None,
            container: None,
            digests: Some(taken.digests),
            error: None,
            why: String::new(),
        };
        names.file(container, file.clone());
        names.name(parent, &file_name, container);
        if lossy {
            names.allow_loss(container);
        }
        for (object, kept, tensor, path) in parts {
            let node = names.number();
            if names.part(parent, &path, node)? {
                named += 1;
            } else {
                hidden.push(tensor.name.as_str());
            }
            names.file(
                node,
                FileEntry {
                    content: Content::Part,
                    objects: vec![*kept],
                    tensor: Some(TensorEntry {
                        name: tensor.name.clone(),
                        dtype: tensor.dtype,
                        shape: tensor.shape,
                        parent: TensorId(0),
                    }),
                    container: Some(container),
                    digests: None,
                    error: object.error,
                    why: String::new(),
                },
            );
            if object.error.is_some() {
                names.allow_loss(node);
            }
        }
        if is_container && !hidden.is_empty() {
            let why = format!(
                "these tensors can be reached inside this file only, their names are taken by others: {}",
                hidden.join(", ")
            );
            names.file(container, FileEntry { why, ..file });
        }
        names.finish();
        Ok(())
    })?;
    unnamed.named();
    Ok(named)
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
        collection.commit(Touched::default(), |batch, _| {
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
