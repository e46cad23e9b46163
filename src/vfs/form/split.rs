//! The model of one rank of tensor parallelism: `.as/tp/R-of-N`. Each file is there under its own name. The tensors of
//! safetensors files are those parts that the rank has (`format/files/tensor_parallel/mod.rs`), and an index lists the
//! tensors that are left. All else is unchanged.
//!
//! `rank_models.rs` says which safetensors files and which configuration are a model. A number of ranks exists where at
//! least one model of the collection can be split so, for all of its ranks; the files of the others have `why`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::safetensors::{Entry, Other, entry, write_entries};
use crate::format::files::shard_index;
use crate::format::files::tensor_parallel::{Rank, Share};
use crate::format::log::catalog::{Content, TensorEntry};
use crate::model::{Dtype, Error, ErrorKind, Result, Shape};
use crate::store::{Collection, Node, Object, StridedElements};
use crate::vfs::form::kind::{Form, Shows};
use crate::vfs::form::names::Item;
use crate::vfs::form::pieces::{ALIGNMENT, Piece, tensor};
use crate::vfs::form::rank_models::{ConfigFile, RankModel, RankModels, refused};
use crate::vfs::form::recipe::{Part, Shown, Source};
use crate::vfs::form::safetensors::{check_all_found, header, unchanged};
use crate::vfs::form::weights;

/// The most ranks that a listing shows.
const LISTED_RANKS_MAX: u16 = 16;
/// Larger numbers of ranks of which `why` tells too.
const USUAL_RANKS: [u16; 4] = [24, 32, 64, 128];
/// Longest list of the sizes of a weight, in bytes.
const SIZES_BYTES_MAX: u64 = 64;
/// Splits the tensors of a model.
struct Splitter {
    collection: Arc<Collection>,
    model: Arc<RankModel>,
}

/// The parts of a tensor in a rank, and its shape there.
struct SplitTensor {
    parts: Vec<Part>,
    shape: Shape,
}

impl Splitter {
    /// That of the model of a container, or of a tensor of one.
    fn of(collection: &Arc<Collection>, node: &Node) -> Result<Splitter> {
        let container = node.file().and_then(|file| file.container).unwrap_or(node.entry.id);
        let gone = || Error::new(ErrorKind::Gone, "the container is gone");
        let model = RankModels::of(collection).of_container(container).cloned().ok_or_else(gone)?;
        Ok(Splitter { collection: collection.clone(), model })
    }

    /// The parts of a tensor in a rank. `None` for one that it does not have.
    fn tensor(&self, rank: Rank, whole: Source, tensor: &TensorEntry) -> Result<Option<SplitTensor>> {
        let TensorEntry { name, shape, dtype, .. } = tensor;
        match self.model.share(rank, name, shape)? {
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
                // At most the size of the dimension: the ranges are parts of it that share no index.
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
        let mut bytes = weights::description_bytes(&self.collection, &whole.objects, SIZES_BYTES_MAX)?;
        let value = bytes.chunks_exact_mut(each).nth(place).ok_or_else(other)?;
        let size = value.iter().rev().fold(0, |size, byte| size << 8 | u64::from(*byte));
        let size = self.model.size_in(rank, &tensor.name, size)?;
        value.iter_mut().zip(size.to_le_bytes()).for_each(|(to, from)| *to = from);
        Ok(bytes)
    }

    /// Fails where a rank does not have all of a tensor of a type that is not known.
    fn check_other(&self, rank: Rank, other: &Other) -> Result<()> {
        let shape = Shape::new(&other.dimensions).unwrap_or_default();
        if self.model.share(rank, &other.name, &shape)? == Share::Whole {
            return Ok(());
        }
        Err(refused(format!("{}: elements of type {} are not split", other.name, other.type_name)))
    }
}

/// The shape of a tensor of a model in a rank. `None` for one that it does not have.
fn shape_in(model: &RankModel, rank: Rank, name: &str, shape: &Shape) -> Result<Option<Shape>> {
    match model.share(rank, name, shape)? {
        Share::Absent => Ok(None),
        Share::Whole | Share::Sizes { .. } => Ok(Some(shape.clone())),
        Share::Slice { dimension, ranges } => {
            // At most the size of the dimension: the ranges are parts of it that share no index.
            let size = ranges.iter().map(|range| range.end - range.start).sum();
            with_size(shape, dimension, size).map(Some)
        }
    }
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
        // The product of all sizes but zeros is less than 2^63 (`Shape::new`), and so is that of some of them.
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
        let splitter = Splitter::of(collection, node)?;
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
            Ok(index.unwrap_or_else(|| pieces.iter().map(Piece::plain).collect()))
        }
        _ => Ok(pieces.iter().map(Piece::plain).collect()),
    }
}

/// A tensor of a file in a rank.
enum Named<'a> {
    Tensor(&'a TensorEntry, Shape),
    Other(&'a Other),
}

/// A safetensors file in a rank: its metadata, and the tensors that the rank has, in the same order.
fn container(collection: &Arc<Collection>, node: &Node, pieces: &[Piece], rank: Rank) -> Result<Vec<Part>> {
    let splitter = Splitter::of(collection, node)?;
    let header = header(collection, pieces)?;
    let (empty, others): (Vec<&Other>, Vec<&Other>) =
        header.others.iter().partition(|other| other.begin == other.end);
    let mut others: HashMap<u64, &Other> = others.into_iter().map(|other| (other.begin, other)).collect();
    let (mut named, mut parts) = (Vec::new(), Vec::new());
    let mut at = 0;
    for piece in pieces {
        let begin = at;
        at += piece.bytes();
        if let Some((_, tensor)) = &piece.tensor {
            let whole = piece.source(tensor, Shown::Plain)?;
            if let Some(found) = splitter.tensor(rank, whole, tensor)? {
                named.push(Named::Tensor(tensor, found.shape));
                parts.extend(found.parts);
            }
        } else if let Some(other) = others.remove(&begin).filter(|other| other.end == at) {
            splitter.check_other(rank, other)?;
            named.push(Named::Other(other));
            parts.push(piece.plain());
        }
    }
    check_all_found(&others)?;
    // Tensors of unknown types without bytes stay too.
    named.extend(empty.into_iter().map(Named::Other));
    let entries = named.iter().map(|named| match named {
        Named::Tensor(tensor, shape) => entry(&tensor.name, tensor.dtype, shape),
        Named::Other(other) => Ok(unchanged(other)),
    });
    let entries: Vec<Entry<'_>> = entries.collect::<Result<_>>()?;
    let head = write_entries(&entries, &header.metadata, ALIGNMENT)?;
    Ok([Part::Literal(head)].into_iter().chain(parts).collect())
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
    let json = weights::description_bytes(collection, objects, shard_index::BYTES_MAX)?;
    let Ok(files) = shard_index::parse(&json, &mut Budget::default()) else { return Ok(None) };
    let models = RankModels::of(collection);
    let model_of = |file: &str| {
        let state = collection.state();
        models.of_container(state.directory(directory)?.get(file.as_bytes())?)
    };
    // Other models in the directory may have tensors of the same names.
    let of_file =
        |(file, tensors): (&String, &Vec<String>)| model_of(file).map(|model| (model, tensors.clone()));
    let of_tensors = files.iter().filter_map(of_file);
    let of_tensors: HashMap<String, &Arc<RankModel>> = of_tensors
        .flat_map(|(model, tensors)| tensors.into_iter().map(move |tensor| (tensor, model)))
        .collect();
    let (mut bytes, mut failed) = (0_u64, None);
    let shown = shard_index::renamed(&json, |name| {
        let known = of_tensors.get(name).and_then(|model| Some((model, model.tensors.get(name)?)));
        let Some((model, tensor)) = known else { return Some(name.to_owned()) };
        match shape_in(model, rank, name, &tensor.shape) {
            Ok(Some(shape)) => {
                let own = tensor.dtype.bytes_of(shape.elements());
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
    let share = Splitter::of(collection, node)
        .and_then(|splitter| splitter.model.share(rank, &tensor.name, &tensor.shape));
    !matches!(share, Ok(Share::Absent))
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
    let splitter = Splitter::of(collection, node).ok()?;
    let shape = shape_in(&splitter.model, rank, &tensor.name, &tensor.shape).ok()??;
    Some(TensorEntry { shape, ..tensor.clone() })
}

/// The rank with a name, if a model of the collection can be split so.
pub(super) fn rank_named(collection: &Arc<Collection>, name: &[u8]) -> Result<Option<Rank>> {
    let Some(rank) = Rank::from_name(name) else { return Ok(None) };
    Ok(RankModels::of(collection).are_split(rank.ranks)?.then_some(rank))
}

/// The ranks that a listing shows: all of each number up to [`LISTED_RANKS_MAX`] that a model can be split in.
pub(super) fn ranks(collection: &Arc<Collection>) -> Result<Vec<Rank>> {
    let models = RankModels::of(collection);
    let mut found = Vec::new();
    for ranks in 2..=LISTED_RANKS_MAX {
        if models.are_split(ranks)? {
            found.extend((0..ranks).map(|rank| Rank { rank, ranks }));
        }
    }
    Ok(found)
}

/// Why numbers of ranks are missing in the directory of ranks, or why a file has no bytes in a rank.
pub fn why_not_split(collection: &Arc<Collection>, form: Form, item: &Item) -> Option<String> {
    match form.shows() {
        Shows::Values if form == Form::Ranks => {
            let models = RankModels::of(collection);
            let is_split = |ranks: u16| models.are_split(ranks).unwrap_or_default();
            let missing = (2..=LISTED_RANKS_MAX).chain(USUAL_RANKS).filter(|ranks| !is_split(*ranks));
            let why = |ranks| models.why_not(ranks).map(|why| format!("{ranks} ranks: {why}"));
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
            if tensors.is_empty() {
                return None;
            }
            let share = |splitter: Splitter| {
                let share = |tensor: &TensorEntry| splitter.model.share(rank, &tensor.name, &tensor.shape);
                tensors.iter().try_for_each(|tensor| share(tensor).map(drop))
            };
            let done = Splitter::of(collection, &node).and_then(share);
            done.err().map(|error| error.to_string())
        }
        _ => None,
    }
}

/// The objects of the configuration that the files of a container's directory depend on in a rank.
pub fn config_objects(collection: &Arc<Collection>, node: &Node) -> Vec<Arc<Object>> {
    let state = collection.state();
    let container = node.file().and_then(|file| file.container).unwrap_or(node.entry.id);
    let directory = state.links(container).first().map(|(directory, _)| *directory);
    directory.and_then(|directory| ConfigFile::of(&state, directory)).map_or(Vec::new(), |file| file.objects)
}
