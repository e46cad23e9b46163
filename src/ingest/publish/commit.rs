//! Commits an imported file: objects, nodes and names go to the log, the names in the last batch.

use std::sync::Arc;

use crate::format::files::cgeb::Runs;
use crate::format::log::catalog::{
    Content, Digests, Entry, FileEntry, Measured, NodeEntry, OutsideFile, TensorEntry,
};
use crate::ingest::bytes::options::Origin;
use crate::ingest::bytes::parents::Parents;
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::store_parts::{StoredObject, StoredParts};
use crate::ingest::find::provenance::Provenance;
use crate::ingest::find::target::Target;
use crate::ingest::publish::drafts::{Draft, add_draft, is_small, objects};
use crate::ingest::publish::names::Names;
use crate::ingest::recognize::parts::{PartTensor, Recognized, WholeTensor};
use crate::model::{EntryId, Error, ErrorKind, NameIn, ObjectId, Result, SeedId, Shape, TensorId, Tier};
use crate::store::ARRIVED;
use crate::store::Batch;
use crate::store::Collection;
use crate::store::Node;
use crate::store::State;
use crate::store::{Parts, Touched};

/// Attributes of a new file beside its bytes.
pub(in crate::ingest) struct Attributes<'a> {
    /// The places of the lineage parents of its tensors.
    pub parents: Option<&'a Parents>,
    /// The note for its attribute `why`.
    pub why: String,
    /// The source, with which a later import compares.
    pub provenance: Option<Provenance>,
}

/// Commits a new file, which may replace another. Returns how many tensors got names, and how many
/// have a lineage parent.
pub(in crate::ingest) fn publish(
    mut uncommitted: Uncommitted<'_>,
    collection: &Arc<Collection>,
    target: &Target,
    origin: &Origin,
    recognized: Recognized,
    mut stored_parts: StoredParts,
    Attributes { parents, why, provenance }: Attributes<'_>,
) -> Result<(u64, u64)> {
    let directory = target.directory_path();
    let path = target.path();
    let touched = std::mem::take(&mut stored_parts.touched);
    let digests = std::mem::take(&mut stored_parts.digests);
    let mut file = Arrived::new(collection, parents, &directory, &path, recognized, &stored_parts, digests)?;
    file.commit_objects(&mut uncommitted, collection)?;
    let children = file.parents.iter().filter(|parent| **parent != TensorId(0)).count() as u64;
    let named = collection.commit(touched, |batch, state| {
        let mut names = Names::new(batch, state, origin);
        let parent = names.directories(&target.directories)?;
        let file_name = target.name.clone();
        let settings = names.kept_settings(parent, &file_name);
        names.replace(parent, &file_name)?;
        let node = names.number();
        let named = file.name(&mut names, node, why);
        names.data_files(parent, node, &file.data_files);
        names.shards(node, file.shards.take());
        names.entries(provenance.iter().map(|provenance| provenance.entry(node)));
        names.keep_settings(node, settings);
        names.name(parent, &file_name, node);
        names.finish();
        Ok(named)
    })?;
    uncommitted.named();
    Ok((named, children))
}

/// A rename of a file, in the batch that replaces its bytes.
pub struct Rename<'a> {
    /// The new directory and name.
    pub to: NameIn<'a>,
    /// Adds it to the batch. The name may take the number.
    pub add: &'a mut dyn FnMut(&mut Batch, &State, EntryId) -> Result<()>,
}

/// A file whose bytes are replaced.
pub struct Replaced<'a> {
    /// The file.
    pub node: EntryId,
    /// The entry of one that the log does not have, because it has no name yet.
    pub new: Option<&'a NodeEntry>,
    /// Its new name, if it gets one.
    pub rename: Option<Rename<'a>>,
    /// Whether programs have written all of it, so that the settings for what arrives apply.
    pub is_arrival: bool,
}

/// Replaces the bytes of an existing file, and its tensors. Fails with `Gone`
/// where the file has no name any more. `why` is the reason that the file then states. Returns the new parts of
/// the file.
pub(in crate::ingest) fn publish_over(
    mut uncommitted: Uncommitted<'_>,
    collection: &Arc<Collection>,
    Replaced { node, new, rename, is_arrival }: Replaced<'_>,
    mtime: i64,
    recognized: Recognized,
    mut stored_parts: StoredParts,
    why: String,
) -> Result<Parts> {
    let path = match &rename {
        Some(Rename { to, .. }) => collection.state().path_of_name(to.directory, to.name),
        None => collection.state().path(node),
    };
    let path = String::from_utf8_lossy(&path).into_owned();
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned();
    let touched = std::mem::take(&mut stored_parts.touched);
    let digests = std::mem::take(&mut stored_parts.digests);
    let mut file = Arrived::new(collection, None, &directory, &path, recognized, &stored_parts, digests)?;
    if !is_small(&file.drafts) {
        file.commit_objects(&mut uncommitted, collection)?;
    }
    let new = new.map(|entry| Node { entry: entry.clone(), bytes: 0 });
    let fill = |batch: &mut Batch, state: &State| {
        let gone = || Error::new(ErrorKind::Gone, format!("{path} is gone"));
        let known = state.node(node).map(AsRef::as_ref);
        let before = known.or(new.as_ref()).ok_or_else(gone)?;
        // The new objects may lie in the places of the old ones.
        let mut objects = before.file().into_iter().flat_map(|file| &file.objects);
        objects.try_for_each(|object| state.check_unshared(*object, Some(node)))?;
        let directory = match &rename {
            Some(Rename { to, .. }) => to.directory,
            None => state.links(node).first().ok_or_else(gone)?.0,
        };
        let is_renamed = rename.is_some();
        if let Some(Rename { add, .. }) = rename {
            add(batch, state, EntryId(state.last_entry() + 1))?;
        }
        let entry = &before.entry;
        let origin =
            Origin { mode: entry.mode, owner: entry.owner(), atime: entry.atime, mtime, sha256: None };
        file.add_objects(batch);
        let mut names = Names::new(batch, state, &origin);
        if is_renamed {
            // The new name has it.
            names.number();
        }
        names.empty(before);
        file.name(&mut names, node, why);
        names.data_files(directory, node, &file.data_files);
        names.shards(node, file.shards.take());
        names.finish();
        if is_arrival && state.setting(node, ARRIVED).is_none() {
            batch.entry(Entry::Setting { node, key: ARRIVED.to_owned(), value: Some(String::new()) });
        }
        if is_renamed {
            batch.was_recognized_again(node);
        }
        Ok(())
    };
    let parts = collection.record_then(touched, fill, |state, ()| collection.parts_in(state, node))?;
    uncommitted.named();
    parts
}

/// A file whose objects come to the log before its name, or with it where there is one small one.
struct Arrived<'a> {
    directory: String,
    content: Content,
    tensors: Vec<Option<PartTensor>>,
    objects: Vec<ObjectId>,
    /// The objects that are not in the log yet.
    drafts: Vec<Draft<'a>>,
    errors: Vec<Option<Measured>>,
    /// The lowest tier of the encoded blocks of each object, if it has any.
    tiers: Vec<Option<Tier>>,
    digests: Digests,
    /// The parents of the tensors; zero where there is none.
    parents: Vec<TensorId>,
    /// Where the records of an embedding batch lie.
    records: Option<Arc<Runs>>,
    /// The paths of the files with further tensors.
    data_files: Vec<String>,
    /// The containers that an index names.
    shards: Option<String>,
}

impl<'a> Arrived<'a> {
    fn new(
        collection: &Arc<Collection>,
        parents: Option<&Parents>,
        directory: &str,
        path: &str,
        recognized: Recognized,
        stored_parts: &'a StoredParts,
        digests: Digests,
    ) -> Result<Arrived<'a>> {
        let mut arrived = Arrived {
            directory: directory.to_owned(),
            content: recognized.content,
            tensors: recognized.parts.into_iter().map(|part| part.tensor).collect(),
            objects: Vec::new(),
            drafts: Vec::new(),
            errors: stored_parts.objects.iter().map(|object| object.error).collect(),
            tiers: stored_parts.objects.iter().map(StoredObject::lowest_tier).collect(),
            digests,
            parents: Vec::new(),
            records: recognized.records,
            data_files: recognized.data_files,
            shards: recognized.shards,
        };
        let (tenant, name) = (collection.tenant(), collection.name());
        let id = TensorId::below(tenant, name, directory);
        let of_rest = TensorId::of(tenant, name, path, TensorId(0));
        let mut drafts: Vec<Draft<'_>> = Vec::with_capacity(stored_parts.objects.len());
        let mut found = Vec::with_capacity(stored_parts.objects.len());
        for (object, tensor) in stored_parts.objects.iter().zip(&arrived.tensors) {
            let shape =
                tensor.as_ref().map_or_else(|| plain_shape(object.bytes), |tensor| tensor.shape.clone());
            let mut lineage = (TensorId(0), None);
            let own = tensor.as_ref().filter(|tensor| tensor.view.is_none());
            if let (Some(tensor), Some(parents)) = (own, parents) {
                let name = arrived.full(&tensor.name);
                let parent = parents.of(collection, &name, tensor.dtype, &tensor.shape, &[object.bytes])?;
                lineage =
                    parent.map_or(lineage, |parent| (parent.id, parents.of_shard(collection, parent, 0)));
            }
            let (parent_id, parent) = lineage;
            let identity = tensor.as_ref().map_or(of_rest, |tensor| id(&tensor.name, parent_id));
            drafts.push(Draft { object, tensor: identity, seed: SeedId(0), shape, parent });
            found.push(parent_id);
        }
        record_outside(collection, &stored_parts.outside)?;
        arrived.parents = found;
        arrived.drafts = drafts;
        Ok(arrived)
    }

    /// Commits the objects. Damage to the batch with the name then loses none of them.
    fn commit_objects(&mut self, uncommitted: &mut Uncommitted<'_>, collection: &Collection) -> Result<()> {
        self.objects = objects(uncommitted, collection, &std::mem::take(&mut self.drafts))?;
        Ok(())
    }

    /// Adds the objects to the batch with the name, if they are not in the log yet.
    fn add_objects(&mut self, batch: &mut Batch) {
        for draft in &self.drafts {
            self.objects.push(add_draft(batch, draft));
        }
    }

    fn full(&self, name: &str) -> String {
        if self.directory.is_empty() { name.to_owned() } else { format!("{}/{name}", self.directory) }
    }

    /// Writes the entries of the file `node` and of its tensors. Returns how many these are.
    fn name(&self, names: &mut Names<'_>, node: EntryId, why: String) -> u64 {
        let file = FileEntry {
            digests: self.digests.clone(),
            why: why.into(),
            records: self.records.clone(),
            ..FileEntry::new(self.content, self.objects.as_slice())
        };
        let is_tensor = self.content == Content::Tensor;
        match self.tensors.first() {
            Some(Some(tensor)) if is_tensor => {
                let lineage = self.parents.first().copied().unwrap_or(TensorId(0));
                let error = self.errors.first().copied().flatten().map(Box::new);
                names.file(node, FileEntry { tensor: Some(tensor_entry(tensor, lineage)), error, ..file });
            }
            _ => names.file(node, file),
        }
        let tiers = self.tiers.iter().copied().flatten();
        if let Some(lowest) = tiers.reduce(|lowest, tier| if lowest.finer_than(tier) { tier } else { lowest })
        {
            names.allow_loss(node, lowest);
        }
        if is_tensor {
            return 1;
        }
        let mut named = 0;
        let objects = self.tensors.iter().zip(&self.objects).zip(&self.errors).zip(&self.tiers);
        for ((((tensor, object), error), tier), lineage) in objects.zip(&self.parents) {
            let Some(tensor) = tensor else { continue };
            let part = names.number();
            names.file(part, Self::part_entry(tensor, *lineage, *object, node, *error));
            if let Some(tier) = tier {
                names.allow_loss(part, *tier);
            }
            named += 1;
        }
        named
    }

    fn part_entry(
        tensor: &PartTensor,
        parent: TensorId,
        object: ObjectId,
        container: EntryId,
        error: Option<Measured>,
    ) -> FileEntry {
        FileEntry {
            tensor: Some(tensor_entry(tensor, parent)),
            container: Some(container),
            error: error.map(Box::new),
            view: tensor.view.clone(),
            ..FileEntry::new(Content::Part, [object])
        }
    }
}

/// Records the files outside the store that objects lie in.
fn record_outside(collection: &Collection, files: &[OutsideFile]) -> Result<()> {
    if files.iter().any(|file| file.object().is_some()) {
        collection.note_far()?;
    }
    collection.record(Touched::default(), |batch, _| {
        files.iter().for_each(|file| batch.entry(Entry::Outside(file.clone())));
        Ok(())
    })
}

pub(in crate::ingest) fn tensor_entry(tensor: &PartTensor, parent: TensorId) -> TensorEntry {
    let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
    TensorEntry { name: tensor.own_name.as_str().into(), dtype, shape, parent }
}

/// Commits a tensor made of pieces, in the order given. Whether it has a lineage parent.
pub(in crate::ingest) fn publish_shards(
    mut uncommitted: Uncommitted<'_>,
    collection: &Arc<Collection>,
    target: &Target,
    origin: &Origin,
    whole: &WholeTensor,
    shards: Vec<StoredParts>,
    parents: Option<&Parents>,
) -> Result<bool> {
    let path = target.path();
    let lens: Vec<u64> = shards.iter().flat_map(|shard| &shard.objects).map(|object| object.bytes).collect();
    let (dtype, whole) = (whole.dtype, whole.shape_of(lens.iter().sum())?);
    let mut found = None;
    if let Some(parents) = parents {
        let parent = parents.of(collection, &path, dtype, &whole, &lens)?;
        found = parent.map(|parent| (parents, parent));
    }
    let lineage = found.map_or(TensorId(0), |(_, parent)| parent.id);
    let tensor = TensorId::of(collection.tenant(), collection.name(), &path, lineage);
    let mut drafts = Vec::new();
    let mut touched = Touched::default();
    let mut shards = shards;
    for shard in &mut shards {
        touched.merge(std::mem::take(&mut shard.touched));
        record_outside(collection, &shard.outside)?;
    }
    for (place, object) in shards.iter().flat_map(|shard| &shard.objects).enumerate() {
        let shape = Shape::new(&[object.dtype.elements_in(object.bytes)]).unwrap_or_default();
        let of_shard = found.and_then(|(parents, parent)| parents.of_shard(collection, parent, place));
        drafts.push(Draft { object, tensor, seed: SeedId(place as u128 + 1), shape, parent: of_shard });
    }
    let kept = objects(&mut uncommitted, collection, &drafts)?;
    collection.commit(touched, |batch, state| {
        let mut names = Names::new(batch, state, origin);
        let parent = names.directories(&target.directories)?;
        let file_name = target.name.clone();
        let settings = names.kept_settings(parent, &file_name);
        names.replace(parent, &file_name)?;
        let node = names.number();
        let name = String::from_utf8_lossy(&target.name).into();
        let tensor = TensorEntry { name, dtype, shape: whole, parent: lineage };
        let file = FileEntry { tensor: Some(tensor), ..FileEntry::new(Content::Tensor, kept.as_slice()) };
        names.file(node, file);
        names.keep_settings(node, settings);
        names.name(parent, &file_name, node);
        names.finish();
        Ok(())
    })?;
    uncommitted.named();
    Ok(found.is_some())
}

fn plain_shape(bytes: u64) -> Shape {
    Shape::new(&[bytes]).unwrap_or_default()
}
