//! Joins files of a collection: makes a file of the objects that others have, without a copy of a byte.
//!
//! The objects stay those of the sources too (`store/state/object_files.rs`). If the joined bytes are a container, its
//! tensors are views of them, because the objects cannot be cut anew: other files have them.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::files::View;
use crate::format::log::catalog::{Content, Entry, FileEntry, ObjectEntry};
use crate::ingest::bytes::options::Origin;
use crate::ingest::find::target::Target;
use crate::ingest::publish::commit::tensor_entry;
use crate::ingest::publish::names::Names;
use crate::ingest::recognize::block_size::Blocking;
use crate::ingest::recognize::content::{plain, recognize_at};
use crate::ingest::recognize::parts::{Part, PartTensor, Recognized, WholeTensor};
use crate::model::{
    Dtype, EntryId, Error, ErrorKind, ObjectId, Owner, PERMISSIONS, Result, SeedId, Shape, TensorId,
};
use crate::store::disk::File;
use crate::store::{Collection, JOINED, Object, State, Touched, Use, now_nanoseconds};

/// Most objects of a joined file.
const OBJECTS_MAX: usize = 1 << 16;

/// A file to make of others.
pub struct Join<'a> {
    pub target: Target,
    /// The files, in the order of their bytes.
    pub sources: &'a [EntryId],
    /// The tensor that they are, unless the name and the bytes make them a container.
    pub whole: Option<WholeTensor>,
    /// Its owner where the sources have several.
    pub owner: Owner,
}

/// A file that was joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The directory that has its name.
    pub directory: EntryId,
    pub bytes: u64,
    /// Number of its tensors.
    pub tensors: u64,
    /// Why it is a plain file although its name promises a container, or an empty text.
    pub why: String,
}

/// The sources, as a state has them.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Sources {
    files: Vec<Source>,
    objects: Vec<ObjectId>,
    /// The permissions that all of them give.
    mode: u32,
    owner: Owner,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Source {
    path: String,
    bytes: u64,
    /// Its type and shape, if it is a tensor of other elements than bytes.
    tensor: Option<(Dtype, Shape)>,
    objects: Vec<ObjectId>,
}

/// The content of the joined file.
struct Shown {
    content: Content,
    /// The tensor that the whole file is.
    whole: Option<PartTensor>,
    /// The tensors of a container.
    views: Vec<(PartTensor, View)>,
    why: String,
    shards: Option<String>,
}

/// Makes a file of the objects of others. `bytes` are those of the sources in a row. The caller lets nobody write to a
/// source. Durable when it returns.
pub fn join(collection: &Arc<Collection>, join: &Join<'_>, bytes: &Arc<dyn File>) -> Result<Joined> {
    let sources = Sources::of(&collection.state(), join)?;
    let path = join.target.path();
    let shown = Shown::of(collection, join, &sources, bytes)?;
    let tensors = (shown.views.len() + usize::from(shown.whole.is_some())) as u64;
    let _counted = collection.meter().reserve(Use { files: 1 + tensors, ..Use::default() })?;
    let objects: Vec<Arc<Object>> = {
        let state = collection.state();
        sources.objects.iter().filter_map(|id| state.object(*id).cloned()).collect()
    };
    // Held because blocks are encoded as elements of the object's type.
    let _held: Vec<_> = objects.iter().map(|object| object.hold()).collect();
    let retyped = match &shown.whole {
        Some(tensor) => sources.retyped(&objects, tensor.dtype)?,
        None => Vec::new(),
    };
    let directory = join.target.directory_path();
    let identity = TensorId::below(collection.tenant(), collection.name(), &directory);
    let directory = collection.commit(Touched::default(), |batch, state| {
        if Sources::of(state, join)? != sources {
            return Err(Error::new(ErrorKind::Busy, "its sources were changed meanwhile; try again"));
        }
        let now = now_nanoseconds();
        let origin =
            Origin { mode: sources.mode, owner: sources.owner, atime: now, mtime: now, sha256: None };
        retyped.into_iter().for_each(|object| batch.entry(Entry::Object(object)));
        let mut ids = sources.objects.clone();
        for (tensor, _) in &shown.views {
            let (of, creation) = (identity(&tensor.name, TensorId(0)), batch.next_sequence());
            let id = ObjectId::of(of, SeedId(0), creation);
            let block_bytes = Blocking::default().block_bytes(tensor.dtype, 0);
            batch.entry(Entry::Object(ObjectEntry {
                id,
                tensor: of,
                seed: SeedId(0),
                creation,
                dtype: tensor.dtype,
                bytes: 0,
                block_bytes,
                extent: None,
                parent: None,
            }));
            ids.push(id);
        }
        let parts: Vec<ObjectId> = ids.iter().skip(sources.objects.len()).copied().collect();
        let mut names = Names::new(batch, state, &origin);
        let parent = names.directories(&join.target.directories)?;
        let name = join.target.name.clone();
        if names.find(parent, &name).is_some() {
            return Err(Error::new(ErrorKind::Exists, format!("{path} exists; choose another name")));
        }
        let node = names.number();
        let tensor = shown.whole.as_ref().map(|tensor| tensor_entry(tensor, TensorId(0)));
        names.file(
            node,
            FileEntry { tensor, why: shown.why.as_str().into(), ..FileEntry::new(shown.content, ids) },
        );
        for ((tensor, view), object) in shown.views.iter().zip(parts) {
            let part = names.number();
            let entry = FileEntry {
                tensor: Some(tensor_entry(tensor, TensorId(0))),
                container: Some(node),
                view: Some(Arc::new(view.clone())),
                ..FileEntry::new(Content::Part, [object])
            };
            names.file(part, entry);
        }
        names.shards(node, shown.shards.clone());
        let counts = join.sources.iter().zip(&sources.files);
        let numbers: Vec<String> =
            counts.map(|(id, source)| format!("{}:{}", id.0, source.objects.len())).collect();
        let setting = Entry::Setting { node, key: JOINED.to_owned(), value: Some(numbers.join(",")) };
        names.entries(std::iter::once(setting));
        names.name(parent, &name, node);
        names.finish();
        Ok(parent)
    })?;
    let bytes = sources.bytes();
    Ok(Joined { directory, bytes, tensors, why: shown.why })
}

impl Sources {
    /// The sources of a join. Fails with `Invalid` for a source that cannot be joined.
    fn of(state: &State, join: &Join<'_>) -> Result<Sources> {
        let mut sources =
            Sources { files: Vec::new(), objects: Vec::new(), mode: PERMISSIONS, owner: join.owner };
        let (mut seen, mut bytes, mut is_of_several) = (HashSet::new(), 0_u64, false);
        for (place, id) in join.sources.iter().enumerate() {
            let node =
                state.node(*id).ok_or_else(|| Error::new(ErrorKind::Gone, "one of its sources is gone"))?;
            let path = String::from_utf8_lossy(&state.path(*id)).into_owned();
            let invalid = |why: &str| Error::invalid(format!("{path} {why}"));
            let file = node.file().ok_or_else(|| invalid("is not a file"))?;
            match file.content {
                Content::Plain | Content::Tensor => {}
                Content::Part => return Err(invalid("belongs to a container; copy it first")),
                _ => return Err(invalid("is a container; only plain files and tensors can be joined")),
            }
            if node.bytes == 0 {
                return Err(invalid("is empty"));
            }
            let is_other = |object: &ObjectId| seen.insert(*object);
            if !file.objects.iter().all(is_other) {
                return Err(invalid("has bytes that another source has too"));
            }
            bytes = bytes.saturating_add(node.bytes);
            sources.objects.extend(file.objects.iter().copied());
            if sources.objects.len() > OBJECTS_MAX || bytes > i64::MAX as u64 {
                let text = format!("the sources have more than {OBJECTS_MAX} pieces, or than 2^63 - 1 bytes");
                return Err(Error::invalid(text));
            }
            sources.mode &= node.entry.mode;
            match node.entry.owner() {
                owner if place == 0 => sources.owner = owner,
                owner if owner != sources.owner => is_of_several = true,
                _ => {}
            }
            let tensor = file.tensor.as_ref().filter(|tensor| tensor.dtype != Dtype::U8);
            let tensor = tensor.map(|tensor| (tensor.dtype, tensor.shape.clone()));
            let objects = file.objects.iter().copied().collect();
            sources.files.push(Source { path, bytes: node.bytes, tensor, objects });
        }
        if sources.files.is_empty() {
            return Err(Error::invalid("name the files to join"));
        }
        if is_of_several {
            // The group may be that of one source only.
            let group = (sources.mode & 0o7) << 3;
            sources.mode &= !0o70 | group;
            sources.owner = join.owner;
        }
        Ok(sources)
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The tensor that tensors of one type are in a row: of their shape behind the first dimension, if they have one.
    fn tensor(&self) -> Option<WholeTensor> {
        let mut tensors = Vec::with_capacity(self.files.len());
        for file in &self.files {
            tensors.push(file.tensor.as_ref()?);
        }
        let (dtype, first) = *tensors.first()?;
        if tensors.iter().any(|(other, _)| other != dtype) {
            return None;
        }
        let row = first.dimensions().get(1..)?;
        let rows = tensors.iter().map(|(_, shape)| {
            let (rows, rest) = shape.dimensions().split_first()?;
            (rest == row).then_some(*rows)
        });
        let rows = rows.sum::<Option<u64>>();
        let shape = rows.and_then(|rows| Shape::new(&[&[rows], row].concat()));
        Some(WholeTensor { dtype: *dtype, shape })
    }

    /// The entries of objects that get the type of the tensor. Fails with `Invalid` if an element would lie across two
    /// sources, or values were rounded as another type.
    fn retyped(&self, objects: &[Arc<Object>], dtype: Dtype) -> Result<Vec<ObjectEntry>> {
        let mut objects = objects.iter();
        let mut retyped = Vec::new();
        for Source { path, bytes, tensor, objects: own } in &self.files {
            if let Some((other, _)) = tensor.as_ref().filter(|(other, _)| *other != dtype) {
                return Err(Error::invalid(format!("{path} is a tensor of {other}, not of {dtype}")));
            }
            if dtype.bytes_of(dtype.elements_in(*bytes)) != Some(*bytes) {
                let text = format!("{path} has {bytes} bytes, which are not whole elements of {dtype}");
                return Err(Error::invalid(format!("{text}; an element must not lie across two files")));
            }
            for object in objects.by_ref().take(own.len()) {
                if !object.can_be_of(dtype) {
                    let text = "is stored in pieces that do not hold whole elements, or was encoded as";
                    return Err(Error::invalid(format!("{path} {text} another type than {dtype}")));
                }
                if object.dtype() != dtype {
                    retyped.push(ObjectEntry { dtype, ..object.entry_now() });
                }
            }
        }
        Ok(retyped)
    }
}

impl Shown {
    fn of(
        collection: &Arc<Collection>,
        join: &Join<'_>,
        sources: &Sources,
        bytes: &Arc<dyn File>,
    ) -> Result<Shown> {
        let (name, path) = (&join.target.name, join.target.path());
        let (recognized, mut why) = match recognize_at(collection, path.as_bytes(), bytes, name) {
            Ok(recognized) => {
                let note = recognized.note.clone();
                (recognized, note)
            }
            Err(error) if matches!(error.kind(), ErrorKind::Io | ErrorKind::Absent) => return Err(error),
            Err(error) => (plain(bytes)?, format!("kept as a plain file: {error}")),
        };
        if recognized.content != Content::Plain {
            match views(&recognized) {
                Some(views) => {
                    let (content, shards) = (recognized.content, recognized.shards);
                    return Ok(Shown { content, whole: None, views, why, shards });
                }
                None => {
                    why = "kept as a plain file: its tensors cannot be shown without a copy; copy it, or import the \
                           sources with --shard-of"
                        .to_owned();
                }
            }
        }
        let whole = join.whole.clone().or_else(|| sources.tensor().filter(|_| why.is_empty()));
        let shards = recognized.shards.clone();
        let whole = match whole {
            Some(whole) => {
                let tensor = plain(bytes)?.into_tensor(name, &whole)?;
                tensor.parts.into_iter().find_map(|part| part.tensor)
            }
            None => None,
        };
        let content = if whole.is_some() { Content::Tensor } else { Content::Plain };
        Ok(Shown { content, whole, views: Vec::new(), why, shards })
    }
}

/// The tensors of a container as views of its bytes. `None` if that is not possible.
fn views(recognized: &Recognized) -> Option<Vec<(PartTensor, View)>> {
    let is_shown = match recognized.content {
        // Tensors of types that the program does not know have no names. The header is the first part.
        Content::Safetensors => recognized.parts.iter().skip(1).all(|part| part.tensor.is_some()),
        Content::Npy | Content::Gguf | Content::Torch | Content::Npz => true,
        _ => false,
    };
    if !is_shown || recognized.records.is_some() || !recognized.data_files.is_empty() {
        return None;
    }
    let view = |Part { begin, end, tensor }: &Part| -> Option<Option<(PartTensor, View)>> {
        let Some(tensor) = tensor else { return Some(None) };
        if tensor.dtype.block().0 != 1 {
            return None;
        }
        let view = match &tensor.view {
            Some(view) => view.as_ref().clone(),
            None => {
                let view = View::contiguous(*begin, &tensor.shape);
                view.range(tensor.dtype, &tensor.shape).filter(|range| *range == (*begin..*end))?;
                view
            }
        };
        Some(Some((PartTensor { view: None, ..tensor.clone() }, view)))
    };
    let found: Option<Vec<_>> = recognized.parts.iter().map(view).collect();
    found.map(|found| found.into_iter().flatten().collect())
}
