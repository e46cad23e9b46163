//! The model of one rank of tensor parallelism: `.as/tp/R-of-N`. Each file is there under its own name. The tensors of
//! safetensors files are those parts that the rank has (`format/files/tensor_parallel/mod.rs`), and an index lists the
//! tensors that are left. All else is unchanged.
//!
//! A model is a directory with its safetensors files and its configuration. A number of ranks exists where at least one
//! model of the collection can be split so; the files of the others have `why`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::safetensors::{Entry, Other, entry, write_entries};
use crate::format::files::shard_index;
use crate::format::files::tensor_parallel::{Config, Model as Split, Rank, Share};
use crate::format::log::catalog::{Content, TensorEntry};
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result, Shape};
use crate::store::{Collection, Node, Object, ROOT, StridedElements, Walk};
use crate::vfs::form::kind::{Form, Shows};
use crate::vfs::form::names::Item;
use crate::vfs::form::pieces::{ALIGNMENT, Piece, plain, tensor};
use crate::vfs::form::recipe::{Part, Shown, Source, source};
use crate::vfs::form::safetensors::{header, unchanged};
use crate::vfs::form::weights::{self, Model};

/// The most ranks that a listing shows.
const LISTED_RANKS_MAX: u16 = 16;
/// Larger numbers of ranks of which `why` tells too.
const USUAL_RANKS: [u16; 4] = [24, 32, 64, 128];
/// Longest list of the sizes of a weight, in bytes.
const SIZES_BYTES_MAX: u64 = 64;
/// The configurations of a model, the first that is there counts.
const CONFIG_NAMES: [&str; 2] = [weights::CONFIG_NAME, weights::PARAMS_NAME];

/// Splits the tensors of a model.
struct Splitter {
    model: Model,
    config: Config,
}

/// The parts of a tensor in a rank, and its shape there.
struct SplitTensor {
    parts: Vec<Part>,
    shape: Shape,
}

impl Splitter {
    fn new(model: Model) -> Splitter {
        let text = CONFIG_NAMES.into_iter().find_map(|name| model.file(name));
        let config = text.map(|text| Config::parse(&text)).unwrap_or_default();
        Splitter { model, config }
    }

    fn share(&self, rank: Rank, name: &str, shape: &Shape) -> Result<Share> {
        let shape_of = |name: &str| self.model.find(name).map(|known| known.tensor.shape);
        let split = Split { config: &self.config, shape: &shape_of };
        split.share(rank, name, shape).map_err(refused)
    }

    /// The parts of a tensor in a rank. `None` for one that it does not have.
    fn tensor(&self, rank: Rank, whole: Source, tensor: &TensorEntry) -> Result<Option<SplitTensor>> {
        let TensorEntry { name, shape, dtype, .. } = tensor;
        match self.share(rank, name, shape)? {
            Share::Absent => Ok(None),
            Share::Whole => Ok(Some(SplitTensor { parts: vec![Part::Source(whole)], shape: shape.clone() })),
            Share::Sizes { place } => {
                let part = Part::Literal(self.sizes(rank, &whole, tensor, place)?);
                Ok(Some(SplitTensor { parts: vec![part], shape: shape.clone() }))
            }
            Share::Slice { dimension, ranges } => {
                let cut = SlicedTensor { name, dtype: *dtype, shape, dimension };
                let slices = ranges.iter().map(|range| cut.elements(range.start, range.end));
                let slices: Vec<StridedElements> = slices.collect::<Result<_>>()?;
                let size = ranges.iter().map(|range| range.end - range.start).sum();
                let shape = with_size(shape, dimension, size)?;
                let slices = slices.into_iter().filter(|slice| slice.bytes() > 0);
                Ok(Some(SplitTensor {
                    parts: slices.map(|slice| Part::slice(whole.clone(), slice)).collect(),
                    shape,
                }))
            }
        }
    }

    /// A list of the sizes of a weight, with the size in a rank in one place.
    fn sizes(&self, rank: Rank, whole: &Source, tensor: &TensorEntry, place: usize) -> Result<Vec<u8>> {
        let other = || refused(format!("{}: not a list of sizes", tensor.name));
        let each = match tensor.dtype {
            Dtype::I32 => 4,
            Dtype::I64 => 8,
            _ => return Err(other()),
        };
        let mut bytes = self.model.bytes(&whole.objects, SIZES_BYTES_MAX)?;
        let value = bytes.chunks_exact_mut(each).nth(place).ok_or_else(other)?;
        let size = value.iter().rev().fold(0, |size, byte| size << 8 | u64::from(*byte));
        let split = Split { config: &self.config, shape: &|_| None };
        let size = split.size_in(rank, &tensor.name, size).map_err(refused)?;
        value.iter_mut().zip(size.to_le_bytes()).for_each(|(to, from)| *to = from);
        Ok(bytes)
    }

    /// The shape of a tensor in a rank. `None` for one that it does not have.
    fn shape(&self, rank: Rank, tensor: &TensorEntry) -> Result<Option<Shape>> {
        match self.share(rank, &tensor.name, &tensor.shape)? {
            Share::Absent => Ok(None),
            Share::Whole | Share::Sizes { .. } => Ok(Some(tensor.shape.clone())),
            Share::Slice { dimension, ranges } => {
                let size = ranges.iter().map(|range| range.end - range.start).sum();
                with_size(&tensor.shape, dimension, size).map(Some)
            }
        }
    }
}

/// The error of a tensor that so many ranks cannot share.
fn refused(text: String) -> Error {
    Error::new(ErrorKind::NotSupported, text)
}

fn with_size(shape: &Shape, dimension: usize, size: u64) -> Result<Shape> {
    let sizes = shape.dimensions().iter().enumerate();
    let sizes: Vec<u64> = sizes.map(|(at, old)| if at == dimension { size } else { *old }).collect();
    Shape::new(&sizes).ok_or_else(|| Error::corrupt("a tensor of more elements than can be counted"))
}

/// A tensor that is cut along a dimension.
struct SlicedTensor<'a> {
    name: &'a str,
    dtype: Dtype,
    shape: &'a Shape,
    dimension: usize,
}

impl SlicedTensor<'_> {
    /// The bytes of the elements with indices of a range.
    fn elements(&self, begin: u64, end: u64) -> Result<StridedElements> {
        let sizes = self.shape.dimensions();
        let before: u64 = sizes.iter().take(self.dimension).product();
        let inner: u64 = sizes.iter().skip(self.dimension + 1).product();
        let size = sizes.get(self.dimension).copied().unwrap_or_default();
        let bytes = |indices: u64| {
            let bytes = indices.checked_mul(inner).and_then(|elements| self.dtype.bytes_of(elements));
            bytes.ok_or_else(|| refused(format!("{}: a part without whole bytes", self.name)))
        };
        let (from, len) = (bytes(begin)?, bytes(end - begin)?);
        Ok(match before {
            1 => StridedElements::range(from, len),
            rows => StridedElements::columns(from, len, rows, bytes(size)?),
        })
    }
}

/// The parts of a file in a rank.
pub(super) fn parts(
    collection: &Arc<Collection>,
    node: &Node,
    pieces: Vec<Piece>,
    rank: Rank,
) -> Result<Vec<Part>> {
    let file = node.file().ok_or_else(|| Error::new(ErrorKind::IsDirectory, "not a file"))?;
    if let Some(own) = &file.tensor {
        let (whole, entry) = tensor(&pieces)?;
        if !weights::is_of_safetensors(collection, node) {
            return Ok(vec![Part::Source(whole)]);
        }
        let splitter = Splitter::new(Model::of(collection, node));
        let entry = TensorEntry { name: own.name.clone(), ..entry };
        let found = splitter.tensor(rank, whole, &entry)?;
        let none = || Error::new(ErrorKind::NotFound, "an expert of another rank");
        return found.map(|found| found.parts).ok_or_else(none);
    }
    match file.content {
        Content::Safetensors => container(collection, node, &pieces, rank),
        Content::Plain => {
            let objects: Vec<_> = pieces.iter().map(|piece| piece.object.clone()).collect();
            let index = index(collection, node, &objects, rank)?.map(|text| vec![Part::Literal(text)]);
            Ok(index.unwrap_or_else(|| pieces.into_iter().map(|piece| plain(piece.object)).collect()))
        }
        _ => Ok(pieces.into_iter().map(|piece| plain(piece.object)).collect()),
    }
}

/// A tensor of a file in a rank.
enum Named<'a> {
    Tensor(&'a TensorEntry, Shape),
    Other(&'a Other),
}

/// A safetensors file in a rank: its metadata, and the tensors that the rank has, in the same order.
fn container(collection: &Arc<Collection>, node: &Node, pieces: &[Piece], rank: Rank) -> Result<Vec<Part>> {
    let splitter = Splitter::new(Model::of(collection, node));
    let header = header(collection, pieces)?;
    let others: BTreeMap<u64, &Other> = header
        .others
        .iter()
        .filter(|other| other.begin < other.end)
        .map(|other| (other.begin, other))
        .collect();
    let (mut named, mut parts) = (Vec::new(), Vec::new());
    let mut at = 0;
    for piece in pieces {
        let begin = at;
        at += piece.object.bytes();
        if let Some((_, tensor)) = &piece.tensor {
            let whole = source(vec![piece.object.clone()], tensor, Shown::Plain)?;
            if let Some(found) = splitter.tensor(rank, whole, tensor)? {
                named.push(Named::Tensor(tensor, found.shape));
                parts.extend(found.parts);
            }
        } else if let Some(other) = others.get(&begin).filter(|other| other.end == at) {
            splitter.check_other(rank, other)?;
            named.push(Named::Other(other));
            parts.push(plain(piece.object.clone()));
        }
    }
    // Tensors of unknown types without bytes stay too.
    let empty = header.others.iter().filter(|other| other.begin == other.end).map(Named::Other);
    named.extend(empty);
    let entries = named.iter().map(|named| match named {
        Named::Tensor(tensor, shape) => entry(&tensor.name, tensor.dtype, shape),
        Named::Other(other) => Ok(unchanged(other)),
    });
    let entries: Vec<Entry<'_>> = entries.collect::<Result<_>>()?;
    let head = write_entries(&entries, &header.metadata, ALIGNMENT)?;
    Ok([Part::Literal(head)].into_iter().chain(parts).collect())
}

impl Splitter {
    /// Fails where a rank does not have all of a tensor of a type that is not known.
    fn check_other(&self, rank: Rank, other: &Other) -> Result<()> {
        let shape = Shape::new(&other.dimensions).unwrap_or_default();
        if self.share(rank, &other.name, &shape)? == Share::Whole {
            return Ok(());
        }
        Err(refused(format!("{}: elements of type {} are not split", other.name, other.type_name)))
    }
}

/// The content of an index of shards in a rank. `None` for another file, which is unchanged.
fn index(
    collection: &Arc<Collection>,
    node: &Node,
    objects: &[Arc<Object>],
    rank: Rank,
) -> Result<Option<Vec<u8>>> {
    let (directory, name) = {
        let state = collection.state();
        let Some((directory, name)) = state.links(node.entry.id).first() else { return Ok(None) };
        (*directory, name.clone())
    };
    let is_of_safetensors = name.windows(12).any(|part| part == b".safetensors");
    let bytes: u64 = objects.iter().map(|object| object.bytes()).sum();
    if !shard_index::is_name(&name) || !is_of_safetensors || bytes > shard_index::BYTES_MAX {
        return Ok(None);
    }
    let splitter = Splitter::new(Model::in_directory(collection, directory));
    let json = splitter.model.bytes(objects, shard_index::BYTES_MAX)?;
    if shard_index::parse(&json, &mut Budget::default()).is_err() {
        return Ok(None);
    }
    let (mut bytes, mut failed) = (0_u64, None);
    let shown = shard_index::renamed(&json, |name| {
        let Some(known) = splitter.model.find(name) else { return Some(name.to_owned()) };
        match splitter.shape(rank, &known.tensor) {
            Ok(Some(shape)) => {
                let own = known.tensor.dtype.bytes_of(shape.elements());
                bytes = bytes.saturating_add(own.unwrap_or_default());
            }
            Ok(None) => return None,
            Err(error) => failed = Some(error),
        }
        Some(name.to_owned())
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(shown.map(|shown| shown.with_total(bytes))),
    }
}

/// Whether a rank has a tensor. A tensor that cannot be split is there: opening it fails.
pub(super) fn is_there(collection: &Arc<Collection>, node: &Node, rank: Rank) -> bool {
    let file = node.file().filter(|file| file.container.is_some());
    let Some(tensor) = file.and_then(|file| file.tensor.as_ref()) else { return true };
    // Only tensors of experts may be missing.
    if !tensor.name.contains("experts") || !weights::is_of_safetensors(collection, node) {
        return true;
    }
    let splitter = Splitter::new(Model::of(collection, node));
    !matches!(splitter.share(rank, &tensor.name, &tensor.shape), Ok(Share::Absent))
}

/// A tensor as a rank has it.
pub(super) fn tensor_in(
    collection: &Arc<Collection>,
    node: &Node,
    tensor: &TensorEntry,
    rank: Rank,
) -> Option<TensorEntry> {
    if !weights::is_of_safetensors(collection, node) {
        return Some(tensor.clone());
    }
    let shape = Splitter::new(Model::of(collection, node)).shape(rank, tensor).ok()??;
    Some(TensorEntry { shape, ..tensor.clone() })
}

/// The tensors of a model, with their shapes.
struct Tensors {
    splitter: Splitter,
    shapes: HashMap<Box<str>, Shape>,
}

impl Tensors {
    /// The part of a tensor that a rank has.
    fn share(&self, rank: Rank, name: &str, shape: &Shape) -> Result<Share, String> {
        let shape_of = |name: &str| self.shapes.get(name).cloned();
        let split = Split { config: &self.splitter.config, shape: &shape_of };
        split.share(rank, name, shape)
    }

    /// Whether any tensor is split, and all can be.
    fn is_split(&self, rank: Rank) -> bool {
        let mut is_split = false;
        for (name, shape) in &self.shapes {
            match self.share(rank, name, shape) {
                Ok(share) => is_split |= share != Share::Whole,
                Err(_) => return false,
            }
        }
        is_split
    }

    /// The reason why so many ranks cannot share the model: that of the first tensor in the order of names.
    fn why_not(&self, ranks: u16) -> Option<String> {
        let names: BTreeMap<&str, &Shape> =
            self.shapes.iter().map(|(name, shape)| (&**name, shape)).collect();
        let rank = Rank { rank: 0, ranks };
        names.into_iter().find_map(|(name, shape)| self.share(rank, name, shape).err())
    }
}

/// The models of a collection.
fn models(collection: &Arc<Collection>) -> Vec<Tensors> {
    let mut found: BTreeMap<EntryId, HashMap<Box<str>, Shape>> = BTreeMap::new();
    let state = collection.state();
    state.walk(ROOT, &mut |visited| {
        if let Some(file) = visited.node.file().filter(|file| file.content == Content::Safetensors) {
            let tensors = state.parts(file).filter_map(|part| part.file()?.tensor.as_ref());
            let shapes = found.entry(visited.directory).or_default();
            shapes.extend(tensors.map(|tensor| (tensor.name.clone(), tensor.shape.clone())));
        }
        Walk::Enter
    });
    drop(state);
    let model = |(directory, shapes)| Tensors {
        splitter: Splitter::new(Model::in_directory(collection, directory)),
        shapes,
    };
    found.into_iter().map(model).collect()
}

/// The rank with a name, if a model of the collection can be split so.
pub(super) fn rank_named(collection: &Arc<Collection>, name: &[u8]) -> Option<Rank> {
    let rank = Rank::from_name(name)?;
    let is_split = |model: &Tensors| model.is_split(rank);
    models(collection).iter().any(is_split).then_some(rank)
}

/// The ranks that a listing shows: all of each number up to [`LISTED_RANKS_MAX`] that a model can be split in.
pub(super) fn ranks(collection: &Arc<Collection>) -> Vec<Rank> {
    let models = models(collection);
    let is_split = |ranks: &u16| {
        let rank = Rank { rank: 0, ranks: *ranks };
        models.iter().any(|model| model.is_split(rank))
    };
    let numbers = (2..=LISTED_RANKS_MAX).filter(is_split);
    numbers.flat_map(|ranks| (0..ranks).map(move |rank| Rank { rank, ranks })).collect()
}

/// Why numbers of ranks are missing in the directory of ranks, or why a file has no bytes in a rank.
pub fn why_not_split(collection: &Arc<Collection>, form: Form, item: &Item) -> Option<String> {
    match form.shows() {
        Shows::Values if form == Form::Ranks => {
            let models = models(collection);
            let is_split = |ranks: u16| models.iter().any(|model| model.is_split(Rank { rank: 0, ranks }));
            let missing = (2..=LISTED_RANKS_MAX).chain(USUAL_RANKS).filter(|ranks| !is_split(*ranks));
            let why = |ranks| {
                let why = models.iter().find_map(|model| model.why_not(ranks));
                why.map(|why| format!("{ranks} ranks: {why}"))
            };
            let lines: Vec<String> = missing.filter_map(why).collect();
            let none =
                "no safetensors file of this collection has tensors that are known to be split".to_owned();
            match lines.is_empty() {
                true if !is_split(2) => Some(none),
                true => None,
                false => Some(lines.join("\n")),
            }
        }
        Shows::Split(rank) => {
            let node = collection.state().node(item.node()?.entry.id)?.clone();
            let file = node.file()?;
            let tensors: Vec<TensorEntry> = {
                let state = collection.state();
                let parts = state.parts(file).filter(|_| file.content == Content::Safetensors);
                let own = file.tensor.as_ref().filter(|_| file.container.is_some());
                parts.filter_map(|part| part.file()?.tensor.as_ref()).chain(own).cloned().collect()
            };
            let splitter = Splitter::new(Model::of(collection, &node));
            let share = |tensor: &TensorEntry| splitter.share(rank, &tensor.name, &tensor.shape).err();
            tensors.iter().find_map(share).map(|error| error.to_string())
        }
        _ => None,
    }
}

/// The objects of the configuration that the files of a container's directory depend on in a rank.
pub fn config_objects(collection: &Arc<Collection>, node: &Node) -> Vec<Arc<Object>> {
    let model = Model::of(collection, node);
    let state = collection.state();
    let directory = model.directory.and_then(|directory| state.directory(directory));
    let files =
        CONFIG_NAMES.into_iter().filter_map(|name| state.node(directory?.get(name.as_bytes())?)?.file());
    files.flat_map(|file| file.objects.iter()).filter_map(|id| state.object(*id).cloned()).collect()
}
