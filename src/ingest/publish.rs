//! Names for what was taken in: objects, nodes and names go to the log, the names in
//! the last batch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::format::catalog::{Content, Entry, FileEntry, NodeEntry, ObjectEntry, TensorEntry, What};
use crate::format::record::{Described, Record, Stored};
use crate::ingest::Origin;
use crate::ingest::recognize::{PartTensor, Recognized};
use crate::ingest::take::{Taken, TakenBlocks, TakenObject};
use crate::model::{
    EntryId, Error, ErrorKind, ObjectId, Result, SeedId, Shape, TensorId, Tier, escape_component,
    escape_tensor_path,
};
use crate::store::Collection;
use crate::store::collection::{Touched, now_nanoseconds, now_seconds};
use crate::store::log::Batch;
use crate::store::state::{ROOT, State};

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
    let kept = objects(collection, &drafts)?;
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
    Ok(named)
}

/// Commits a tensor made of several files: its shards stand in the order given.
pub(super) fn publish_shards(
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
    let kept = objects(collection, &drafts)?;
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
    })
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
fn objects(collection: &Collection, drafts: &[Draft<'_>]) -> Result<Vec<ObjectId>> {
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

/// Names that go into one batch.
struct Names<'a> {
    batch: &'a mut Batch,
    state: &'a State,
    origin: &'a Origin,
    last_entry: u64,
    /// Names that this batch makes: directory, name, node.
    made: Vec<(EntryId, Vec<u8>, EntryId)>,
    /// The same, to be found by directory and name.
    made_nodes: HashMap<(EntryId, Vec<u8>), EntryId>,
    /// Names that this batch takes away.
    gone: HashSet<(EntryId, Vec<u8>)>,
    /// Directories that this batch makes.
    made_directories: HashSet<EntryId>,
    now: i64,
}

impl<'a> Names<'a> {
    fn new(batch: &'a mut Batch, state: &'a State, origin: &'a Origin) -> Names<'a> {
        Names {
            batch,
            state,
            origin,
            last_entry: state.last_entry(),
            made: Vec::new(),
            made_nodes: HashMap::new(),
            gone: HashSet::new(),
            made_directories: HashSet::new(),
            now: now_nanoseconds(),
        }
    }

    fn number(&mut self) -> EntryId {
        self.last_entry += 1;
        EntryId(self.last_entry)
    }

    fn find(&self, parent: EntryId, name: &[u8]) -> Option<EntryId> {
        let key = (parent, name.to_vec());
        if let Some(node) = self.made_nodes.get(&key) {
            return Some(*node);
        }
        if self.gone.contains(&key) {
            return None;
        }
        self.state.directory(parent)?.get(name)
    }

    fn is_directory(&self, node: EntryId) -> bool {
        self.made_directories.contains(&node)
            || self.state.node(node).is_some_and(|node| node.entry.what == What::Directory)
    }

    /// The directory at a path, made where it is missing.
    fn directories(&mut self, path: &[Vec<u8>]) -> Result<EntryId> {
        let mut at = ROOT;
        for name in path {
            at = self.directory(at, name)?.ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                Error::invalid(format!("{name} is a file, so nothing can stand in it"))
            })?;
        }
        Ok(at)
    }

    /// The directory `name` in another, made if nothing has the name; `None` where
    /// something else has it.
    fn directory(&mut self, parent: EntryId, name: &[u8]) -> Result<Option<EntryId>> {
        if let Some(node) = self.find(parent, name) {
            return Ok(self.is_directory(node).then_some(node));
        }
        let node = self.number();
        self.node(node, 0o755, What::Directory);
        self.made_directories.insert(node);
        self.name(parent, name, node);
        Ok(Some(node))
    }

    /// Names a tensor of a container. `false` where the name is taken.
    fn part(&mut self, parent: EntryId, path: &[String], node: EntryId) -> Result<bool> {
        let Some((name, above)) = path.split_last() else { return Ok(false) };
        let mut at = parent;
        for directory in above {
            match self.directory(at, directory.as_bytes())? {
                Some(found) => at = found,
                None => return Ok(false),
            }
        }
        if self.find(at, name.as_bytes()).is_some() {
            return Ok(false);
        }
        self.name(at, name.as_bytes(), node);
        Ok(true)
    }

    fn name(&mut self, parent: EntryId, name: &[u8], node: EntryId) {
        // Written at the end, after the nodes that names lead to.
        self.made.push((parent, name.to_vec(), node));
        self.made_nodes.insert((parent, name.to_vec()), node);
    }

    fn node(&mut self, id: EntryId, mode: u32, what: What) {
        let (uid, gid) = self.origin.owner;
        self.batch.entry(Entry::Node(NodeEntry {
            id,
            mode,
            uid,
            gid,
            mtime: self.origin.mtime,
            ctime: self.now,
            created_at: now_seconds(),
            what,
        }));
    }

    fn file(&mut self, id: EntryId, file: FileEntry) {
        let mode = self.origin.mode & 0o777;
        self.node(id, mode, What::File(file));
    }

    fn allow_loss(&mut self, node: EntryId) {
        let (key, value) = ("lossy".to_owned(), Some("allow".to_owned()));
        self.batch.entry(Entry::Setting { node, key, value });
    }

    /// Takes away the file that has a name, and the tensors that belong to it. `Exists`
    /// where a directory or a tensor of another file has the name.
    fn replace(&mut self, parent: EntryId, name: &[u8]) -> Result<()> {
        let Some(old) = self.find(parent, name).and_then(|node| self.state.node(node)) else {
            return Ok(());
        };
        let taken = |by: &str| {
            let path = String::from_utf8_lossy(&self.state.path(old.entry.id)).into_owned();
            Error::new(ErrorKind::Exists, format!("{path} is {by}; choose another name, or remove it first"))
        };
        let mut nodes = vec![old.entry.id];
        let mut objects: &[ObjectId] = &[];
        match &old.entry.what {
            What::Directory => return Err(taken("a directory")),
            What::File(file) if file.container.is_some() => {
                return Err(taken("a tensor that belongs to another file"));
            }
            What::Symlink(_) => {}
            What::File(file) => {
                nodes.extend(self.state.parts(file).map(|node| node.entry.id));
                objects = &file.objects;
            }
        }
        if let [first, _, ..] = self.state.links(old.entry.id) {
            // It lives on under its other names; its tensors stand beside the first.
            let parts =
                if *first == (parent, name.into()) { nodes.get(1..).unwrap_or_default() } else { &[] };
            self.remove_name(parent, name);
            for &part in parts {
                self.remove_names(part);
            }
            return Ok(());
        }
        for &node in &nodes {
            self.remove_names(node);
            self.batch.entry(Entry::NodeRemoved(node));
        }
        for object in objects {
            self.batch.record(Record::Delete { object: *object });
        }
        Ok(())
    }

    fn remove_names(&mut self, node: EntryId) {
        let state = self.state;
        for (parent, name) in state.links(node) {
            self.remove_name(*parent, name);
        }
    }

    fn remove_name(&mut self, parent: EntryId, name: &[u8]) {
        self.batch.entry(Entry::NameRemoved { parent, name: name.to_vec() });
        self.gone.insert((parent, name.to_vec()));
    }

    fn finish(self) {
        let Names { batch, made, mut last_entry, .. } = self;
        for (parent, name, node) in made {
            last_entry += 1;
            batch.entry(Entry::Name { parent, entry: EntryId(last_entry), name, node });
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
