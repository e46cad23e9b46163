//! Plans the recipe of a file in a form.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::engine::would_move;
use crate::format::budget::Budget;
use crate::format::files::cgeb::Runs;
use crate::format::files::safetensors::Role as WeightRole;
use crate::format::files::{npy, safetensors, shard_index};
use crate::format::log::catalog::{Content, TensorEntry};
use crate::model::{Aim, Dtype, EntryId, Error, ErrorKind, MoveTo, Result, Shape};
use crate::store::Collection;
use crate::store::Object;
use crate::store::{Assembly, Node, Places, ROOT, State, TENSORS_NAME, Walk};
use crate::store::{OpenObject, Settings, Store, Verify};
use crate::stream::{Segment, Stream};
use crate::vfs::form::checkpoint::{Role, safetensors_name};
use crate::vfs::form::experts;
use crate::vfs::form::gguf;
use crate::vfs::form::gguf_model;
use crate::vfs::form::kind::{Form, Shows};
use crate::vfs::form::names::{Item, wrapped_dtype};
use crate::vfs::form::pieces::{ALIGNMENT, Piece, of_views, tensor, viewed};
use crate::vfs::form::recipe::{Part, Recipe, Shown, Source, View, source};
use crate::vfs::form::safetensors::cast as cast_safetensors;
use crate::vfs::form::split;
use crate::vfs::form::sums;
use crate::vfs::form::weights::{self, Model};

/// The recipe of a file in a form. Fails with `IsDirectory` for an item that is not a file, with `NotFound` for one that
/// the form does not show. `published` is the collection as after the move that the form shows, if somebody
/// has published it: then nothing is computed.
pub fn plan(
    collection: &Arc<Collection>,
    published: Option<&Arc<Collection>>,
    settings: &Settings,
    form: Form,
    item: &Item,
) -> Result<Recipe> {
    if let (Item::Node(node), Shows::Model(element_type)) = (item, form.shows()) {
        return gguf_model::recipe(collection, node, element_type);
    }
    let own = collection;
    let collection = published.unwrap_or(own);
    let parts: Vec<Part> = match (item, form.shows()) {
        (Item::Whole, Shows::Digests) => vec![Part::Sums(sums::files(&collection.state())?)],
        (Item::Whole, _) => all_tensors(&collection.state())?,
        (Item::Index(node), _) => match batch_of(collection, node) {
            Some((batch, runs)) => vec![Part::BatchIndex { runs, node: batch.entry.id }],
            None => {
                let (source, rows, dimension) = matrix(&pieces(collection, node)?.1)?;
                vec![Part::Index { source, rows, dimension }]
            }
        },
        (Item::Node(_), Shows::Values) => return Err(Error::new(ErrorKind::IsDirectory, "not a file")),
        (Item::Node(node), shows) => {
            // Look the file up again: the item may be older.
            let (node, own) = pieces(collection, node)?;
            let file = node.file().ok_or_else(|| Error::new(ErrorKind::IsDirectory, "not a file"))?;
            let of_batch = batch_of(collection, &node).filter(|_| form == Form::Cgeb);
            let records = of_batch.as_ref().map(|(_, runs)| runs.clone()).or_else(|| file.records.clone());
            let pieces = match &of_batch {
                Some((batch, _)) => pieces(collection, batch)?.1,
                None => own,
            };
            let parts = match shows {
                Shows::Wrapped(_) if of_batch.is_some() => pieces.iter().map(Piece::plain).collect(),
                Shows::Wrapped(_) if form == Form::Safetensors && file.tensor.is_none() => {
                    let role = Role::of(&collection.state(), &node);
                    as_safetensors(collection, &node, role, pieces)?
                }
                Shows::Wrapped(_) => wrapped(form, &pieces)?,
                Shows::Cast(to) => cast(collection, &node, pieces, to)?,
                Shows::Split(rank) => split::parts(collection, &node, pieces, rank)?,
                Shows::Part => vec![expert(form, &pieces)?],
                Shows::Merged => return Err(Error::new(ErrorKind::NotFound, "a base without an adapter")),
                _ if published.is_some() => match file.view {
                    Some(_) => vec![Part::Source(tensor(&pieces)?.0)],
                    None => pieces.iter().map(Piece::plain).collect(),
                },
                _ => moved(collection, settings, pieces, form)?,
            };
            stitched(records, parts)
        }
    };
    let created_at =
        item.node().map_or_else(|| collection.state().created_at(), |node| node.entry.created_at);
    let inputs = match (item.node(), form.shows()) {
        (Some(node), Shows::Cast(_)) => containers_beside(&collection.state(), node, &parts),
        _ => Vec::new(),
    };
    Ok(Recipe { collection: collection.clone(), created_at, parts, inputs })
}

/// The containers, beside that of a node, that have tensors of the weights of a file.
fn containers_beside(state: &State, node: &Node, parts: &[Part]) -> Vec<Arc<Node>> {
    let own = node.file().and_then(|file| file.container).unwrap_or(node.entry.id);
    let weights = parts.iter().filter_map(|part| match part {
        Part::Weight(shown) => Some(shown),
        _ => None,
    });
    let objects = weights.flat_map(|shown| &shown.sources).flat_map(|(_, source)| &source.objects);
    let container = |object: &Arc<Object>| {
        let container = state.node(state.part_of(object.entry.id)?)?.file()?.container?;
        (container != own).then(|| Some((container, state.node(container)?.clone())))?
    };
    objects.filter_map(container).collect::<BTreeMap<_, _>>().into_values().collect()
}

/// The collection as after the move that a form shows, if it is one of a remote that has this variant.
pub fn published(store: &Store, collection: &Arc<Collection>, form: Form) -> Result<Option<Arc<Collection>>> {
    match form.shows() {
        Shows::Moved(tier) => store.variant(collection, tier.name()),
        _ => Ok(None),
    }
}

/// Assembles the parts of an embedding batch to the batch file. Without records, returns the parts unchanged.
pub(super) fn stitched(records: Option<Arc<Runs>>, parts: Vec<Part>) -> Vec<Part> {
    let Some(runs) = records else { return parts };
    let source = |part| match part {
        Part::Source(source) => Some(source),
        _ => None,
    };
    vec![Part::Batch { runs, parts: parts.into_iter().filter_map(source).collect() }]
}

/// The embedding batch to which a node's vectors belong, with its records.
fn batch_of(collection: &Collection, node: &Node) -> Option<(Arc<Node>, Arc<Runs>)> {
    let state = collection.state();
    let vectors = state.node(node.entry.id)?.file()?;
    let batch = state.node(vectors.container?)?;
    let file = batch.file()?;
    let runs = file.records.clone()?;
    (file.objects.first() == vectors.objects.first()).then(|| (batch.clone(), runs))
}

/// The current node of a file, and its objects in order. The objects of a sharded tensor are not joined.
pub(super) fn pieces(collection: &Collection, node: &Node) -> Result<(Arc<Node>, Vec<Piece>)> {
    let state = collection.state();
    let node = state.node(node.entry.id).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
    let file = node.file().ok_or_else(|| Error::new(ErrorKind::IsDirectory, "not a file"))?;
    let name = state.tensor_name(node).unwrap_or_default();
    let own = file.tensor.as_ref().map(|tensor| (node.entry.id, TensorEntry { name, ..tensor.clone() }));
    let view = match file.view.as_ref().map(|_| state.parts_of(file)).transpose()? {
        Some((objects, Some(Assembly::View(elements)))) => Some((objects, elements)),
        _ => None,
    };
    let piece = |id| {
        let object = state.object(id).cloned();
        let object = object.ok_or_else(|| Error::corrupt("an object is missing; run tierfs fsck"))?;
        let tensor = own.clone().or_else(|| {
            let part = state.node(state.part_of(id)?)?;
            Some((part.entry.id, part.file()?.tensor.clone()?))
        });
        let is_part_of_weight = tensor.as_ref().is_some_and(|(id, _)| state.is_part_of_weight(*id));
        Ok(Piece { object, tensor, view: view.clone(), is_part_of_weight })
    };
    let pieces = match of_views(&state, file)? {
        Some(pieces) => pieces,
        None => file.objects.iter().copied().map(piece).collect::<Result<_>>()?,
    };
    Ok((node.clone(), pieces))
}

/// One expert of a tensor.
fn expert(form: Form, pieces: &[Piece]) -> Result<Part> {
    let (source, tensor) = tensor(pieces)?;
    match form {
        Form::Expert(index) => experts::part(index, source, &tensor),
        _ => Err(Error::new(ErrorKind::NotFound, "not an expert")),
    }
}

fn wrapped(form: Form, pieces: &[Piece]) -> Result<Vec<Part>> {
    let (source, TensorEntry { name, shape, .. }) = tensor(pieces)?;
    let (source, dtype) = decoded(source)?;
    let header = match form {
        Form::Npy => npy::write_header(dtype, &shape, ALIGNMENT as usize)?,
        Form::Safetensors => safetensors::write_header([(&*name, dtype, &shape)], &[], ALIGNMENT)?,
        _ => {
            let (source, rows, dimension) = matrix(pieces)?;
            return Ok(vec![Part::Rows { source, rows, dimension }]);
        }
    };
    Ok(vec![Part::Literal(header), Part::Source(source)])
}

/// A tensor in a file of a format of its own, and the type of its elements there.
fn decoded(source: Source) -> Result<(Source, Dtype)> {
    let none = || Error::new(ErrorKind::NotFound, format!("{} blocks are not decoded", source.dtype));
    let dtype = wrapped_dtype(source.dtype).ok_or_else(none)?;
    let shown = if dtype == source.dtype { source.shown } else { Shown::Cast(dtype) };
    Ok((Source { shown, ..source }, dtype))
}

/// A matrix of floats cast to f32, the number of its rows, and the length of a row.
fn matrix(pieces: &[Piece]) -> Result<(Source, u64, u32)> {
    let (source, tensor) = tensor(pieces)?;
    let none = || Error::new(ErrorKind::NotFound, "not a matrix of floats");
    let [rows, dimension] = tensor.shape.dimensions() else { return Err(none()) };
    let dimension = u32::try_from(*dimension).map_err(|_| none())?;
    Ok((Source { shown: Shown::Cast(Dtype::F32), ..source }, *rows, dimension))
}

/// A file of a collection with checkpoints that is not a tensor, as the form `safetensors` shows it.
fn as_safetensors(
    collection: &Arc<Collection>,
    node: &Node,
    role: Role,
    pieces: Vec<Piece>,
) -> Result<Vec<Part>> {
    match role {
        Role::Checkpoint => {
            let state = collection.state();
            let file = node.file().ok_or_else(|| Error::new(ErrorKind::IsDirectory, "not a file"))?;
            let mut found = Found::default();
            for part in state.parts(file) {
                let tensor = part.file().and_then(|part| part.tensor.as_ref());
                if let Some(tensor) = tensor {
                    found.add(&state, part, found.free_name(&tensor.name))?;
                }
            }
            found.into_parts(true)
        }
        Role::Index => {
            let bytes: u64 = pieces.iter().map(Piece::bytes).sum();
            let parts = || pieces.iter().map(Piece::plain).collect();
            if bytes > shard_index::BYTES_MAX {
                return Ok(parts());
            }
            let open = |piece: &Piece| {
                OpenObject::open(collection, &piece.object, Verify::First).map(Segment::Object)
            };
            let stream = Stream::new(pieces.iter().map(open).collect::<Result<_>>()?)?;
            let mut json = vec![0; stream.bytes() as usize];
            stream.read_exact(0, &mut json)?;
            // A file that is not an index is shown as it is.
            let Ok((files, total_size)) = shard_index::parse_with_size(&json, &mut Budget::default()) else {
                return Ok(parts());
            };
            let renamed = |file: String| safetensors_name(&file).unwrap_or(file);
            let mut shown: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for (file, tensors) in files {
                shown.entry(renamed(file)).or_default().extend(tensors);
            }
            Ok(vec![Part::Literal(shard_index::write(&shown, total_size)?)])
        }
        Role::Other => Ok(pieces.iter().map(Piece::plain).collect()),
        Role::Hidden => Err(Error::new(ErrorKind::NotFound, "not a tensor")),
    }
}

/// Tensors of a safetensors file: the name, the shape, the bytes, and the type in which they are shown.
#[derive(Default)]
struct Found<'a> {
    tensors: Vec<(String, Shape, Source, Dtype)>,
    /// The objects of containers with views, by container.
    places: HashMap<EntryId, Places<'a>>,
}

impl<'a> Found<'a> {
    /// The name of a tensor, or one with a number if the format has another use for it.
    fn free_name(&self, name: &str) -> String {
        let is_free = |name: &String| {
            safetensors::is_name(name) && self.tensors.iter().all(|(other, ..)| other != name)
        };
        if safetensors::is_name(name) {
            return name.to_owned();
        }
        (2..).map(|number| format!("{name}.{number}")).find(is_free).unwrap_or_default()
    }

    /// Adds a tensor, quantized types of ggml decoded. Leaves one out that is not decoded.
    fn add(&mut self, state: &'a State, node: &Node, name: String) -> Result<()> {
        let Some(file) = node.file() else { return Ok(()) };
        let tensor = file.tensor.as_ref().filter(|tensor| wrapped_dtype(tensor.dtype).is_some());
        let Some(tensor) = tensor else { return Ok(()) };
        let source = match file.view.as_ref().zip(file.container) {
            Some((view, container)) => {
                let places = match self.places.entry(container) {
                    Slot::Occupied(known) => known.into_mut(),
                    Slot::Vacant(slot) => {
                        let of = state.node(container).and_then(|node| node.file());
                        let of = of.ok_or_else(|| Error::corrupt("a view without its container"))?;
                        slot.insert(Places::of(state, of))
                    }
                };
                let (objects, elements) = places.under(view, tensor)?;
                viewed(objects, elements, tensor)?
            }
            None => {
                let objects: Option<Vec<_>> =
                    file.objects.iter().map(|id| state.object(*id).cloned()).collect();
                let objects =
                    objects.ok_or_else(|| Error::corrupt("an object is missing; run tierfs fsck"))?;
                source(objects, tensor, Shown::Plain)?
            }
        };
        let (source, dtype) = decoded(source)?;
        self.tensors.push((name, tensor.shape.clone(), source, dtype));
        Ok(())
    }

    /// The file. Its tensors are sorted by element size, largest first, as the format's own library sorts them, then by
    /// name. `is_torch` tells loaders that they come from PyTorch, which some of them ask for.
    fn into_parts(self, is_torch: bool) -> Result<Vec<Part>> {
        let mut found = self.tensors;
        found.sort_by(|(one, .., first), (other, .., second)| {
            second.bytes().cmp(&first.bytes()).then_with(|| one.cmp(other))
        });
        let metadata = is_torch.then(|| ("format".to_owned(), "pt".to_owned()));
        let header = safetensors::write_header(
            found.iter().map(|(name, shape, _, dtype)| (name.as_str(), *dtype, shape)),
            metadata.as_slice(),
            ALIGNMENT,
        )?;
        let sources = found.into_iter().map(|(_, _, source, _)| Part::Source(source));
        Ok([Part::Literal(header)].into_iter().chain(sources).collect())
    }
}

/// Every named tensor of a collection, ggml's quantized types decoded; those that are not decoded are left out.
fn all_tensors(state: &State) -> Result<Vec<Part>> {
    let mut tensors = Vec::new();
    let mut seen = HashSet::new();
    state.walk(ROOT, &mut |visited| {
        if let Some(file) = visited.node.file() {
            let parts = state.parts(file).filter(|_| file.content.is_container());
            let named = parts.chain([visited.node]).filter(|node| seen.insert(node.entry.id));
            tensors.extend(named.cloned());
        }
        Walk::Enter
    });
    let mut found = Found::default();
    let mut names = HashSet::new();
    // Below `.tensors` the path of a tensor has its container, if another container has its name.
    let is_taken = |path: &[u8], own: &str| {
        let mut below = path.split(|byte| *byte == b'/').skip_while(|name| *name != TENSORS_NAME.as_bytes());
        below.next().is_some() && below.collect::<Vec<_>>().join(&b'/') != own.as_bytes()
    };
    let paths = tensors.iter().map(|node| (state.path(node.entry.id), node));
    let mut tensors: Vec<_> = paths
        .map(|(path, node)| (state.own_path(node).map(|own| is_taken(&path, &own)), path, node))
        .collect();
    tensors.sort_by_key(|(is_taken, _, node)| (*is_taken, node.entry.id));
    for (_, path, node) in tensors {
        let is_shown = node.file().and_then(|file| file.tensor.as_ref());
        let is_shown = is_shown.is_some_and(|tensor| wrapped_dtype(tensor.dtype).is_some());
        let Some(own) = state.own_path(node).filter(|_| is_shown) else { continue };
        let path = String::from_utf8_lossy(&path).into_owned();
        // The path of one may be the name of another.
        let others = (2..).map(|number| format!("{path}.{number}"));
        let mut candidates = [own, path.clone()].into_iter().chain(others);
        let free = candidates.find(|name| safetensors::is_name(name) && names.insert(name.clone()));
        found.add(state, node, free.unwrap_or_default())?;
    }
    found.into_parts(state.has_checkpoints())
}

fn moved(
    collection: &Arc<Collection>,
    settings: &Settings,
    pieces: Vec<Piece>,
    form: Form,
) -> Result<Vec<Part>> {
    let Shows::Moved(tier) = form.shows() else { return Ok(Vec::new()) };
    let to = MoveTo { aim: Aim::Tier(tier), all: false };
    let part = |piece: Piece| {
        if let (Some((objects, elements)), Some((_, tensor))) = (piece.view.clone(), &piece.tensor) {
            let move_of = |object: &Arc<Object>| {
                let node = collection.state().part_of(object.entry.id)?;
                Some((tier, would_move(collection, node, to, settings)?))
            };
            let view = View { elements, moves: objects.iter().map(move_of).collect() };
            let source = source(objects, tensor, Shown::Plain)?;
            return Ok(Part::Source(Source { view: Some(view), ..source }));
        }
        let node = piece.tensor.as_ref().map(|(node, _)| *node);
        let moved = node.and_then(|node| would_move(collection, node, to, settings));
        Ok(match (piece.plain(), moved) {
            (Part::Source(source), Some(encoder)) => {
                Part::Source(Source { shown: Shown::Moved(tier, encoder), ..source })
            }
            (part, _) => part,
        })
    };
    pieces.into_iter().map(part).collect()
}

fn cast(collection: &Arc<Collection>, node: &Node, pieces: Vec<Piece>, to: Dtype) -> Result<Vec<Part>> {
    let file = node.file().ok_or_else(|| Error::new(ErrorKind::IsDirectory, "not a file"))?;
    if let Some(own) = &file.tensor {
        let (source, tensor) = tensor(&pieces)?;
        let mut shown = pieces.first().map_or(Shown::Plain, |piece| piece.cast(tensor.dtype, to).1);
        if weights::is_of_safetensors(collection, node) {
            let model = Model::of(collection, node);
            match model.role(&own.name) {
                WeightRole::Weight(weight) => return Ok(vec![Part::Weight(model.shown(*weight, to)?)]),
                WeightRole::Hidden => return Err(Error::new(ErrorKind::NotFound, "it is part of a weight")),
                WeightRole::Stored => shown = Shown::Plain,
                WeightRole::Plain => {}
            }
        }
        return Ok(vec![Part::Source(Source { shown, ..source })]);
    }
    match file.content {
        Content::Gguf => return gguf::cast(collection, &pieces, to),
        Content::Safetensors => return cast_safetensors(collection, node, &pieces, to),
        Content::Plain => {
            let objects: Vec<_> = pieces.iter().map(|piece| piece.object.clone()).collect();
            if let Some(text) = weights::description(collection, node, &objects, to)? {
                return Ok(vec![Part::Literal(text)]);
            }
        }
        _ => {}
    }
    let mut tensors = pieces.iter().filter_map(|piece| Some((piece.tensor.as_ref()?, piece)));
    match tensors.next().filter(|_| file.content == Content::Npy) {
        Some(((_, tensor), piece)) => {
            let (dtype, shown) = piece.cast(tensor.dtype, to);
            let header = npy::write_header(dtype, &tensor.shape, ALIGNMENT as usize)?;
            Ok(vec![Part::Literal(header), Part::Source(piece.source(tensor, shown)?)])
        }
        None => Ok(pieces.iter().map(Piece::plain).collect()),
    }
}
