//! Plans a file of a base with an adapter.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::format::log::catalog::Content;
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result, Shape, TensorNames};
use crate::store::{Collection, ROOT, State, TENSORS_NAME, Walk};
use crate::stream::Tiles;
use crate::vfs::form::adapters::adapter::{Adapter, Change, LowRankProduct, Weight, not_merged};
use crate::vfs::form::adapters::merged_tensor::{MergedFactor, MergedProduct, MergedTensor};
use crate::vfs::form::names::Item;
use crate::vfs::form::pieces::{Piece, plain, tensor};
use crate::vfs::form::plan::{pieces, stitched};
use crate::vfs::form::recipe::{Part, Recipe, Source};

/// Largest rank that is merged. The numbers of a row are held in memory.
const RANK_MAX: u64 = 8192;

/// How the names of the adapter's tensors differ from those of the base. Libraries add or leave out the name of the inner
/// model in the same way.
enum Names {
    Same,
    /// The base has this component before.
    Longer(String),
    /// The base lacks this component.
    Shorter(String),
}

impl Names {
    /// The names of a model with these tensors, in a directory.
    fn of(adapter: &Adapter, state: &State, directory: Option<EntryId>, own: &[&str]) -> Names {
        let changes = &adapter.changes;
        let is_there = |name: &str| directory.is_some_and(|id| find(state, id, name).is_some());
        let first = changes.keys().min().map_or("", |name| name);
        if own.iter().any(|name| changes.contains_key(*name)) || is_there(first) {
            return Names::Same;
        }
        let longer = own.iter().filter_map(|name| name.split_once('.'));
        if let Some((before, _)) = longer.into_iter().find(|(_, rest)| changes.contains_key(*rest)) {
            return Names::Longer(before.to_owned());
        }
        let rests: HashMap<&str, &str> = changes
            .keys()
            .filter_map(|name| name.split_once('.'))
            .map(|(before, rest)| (rest, before))
            .collect();
        let shorter = own.iter().find_map(|name| rests.get(name));
        shorter.map_or(Names::Same, |before| Names::Shorter((*before).to_owned()))
    }

    /// The name in the adapter of a tensor of the base.
    fn in_adapter(&self, name: &str) -> Option<String> {
        match self {
            Names::Same => Some(name.to_owned()),
            Names::Longer(before) => Some(name.strip_prefix(before)?.strip_prefix('.')?.to_owned()),
            Names::Shorter(before) => Some(format!("{before}.{name}")),
        }
    }

    /// The name in the base of a tensor of the adapter.
    fn in_base(&self, name: &str) -> String {
        match self {
            Names::Same => name.to_owned(),
            Names::Longer(before) => format!("{before}.{name}"),
            Names::Shorter(before) => {
                let rest = name.strip_prefix(before.as_str()).and_then(|rest| rest.strip_prefix('.'));
                rest.unwrap_or(name).to_owned()
            }
        }
    }
}

/// A tensor of a container in a directory, by name.
fn find(state: &State, directory: EntryId, name: &str) -> Option<EntryId> {
    let mut at = state.find_any(directory, TENSORS_NAME.as_bytes())?;
    for part in &TensorNames::new([name]).ok()?.path(name) {
        at = state.find_any(at, part.as_bytes())?;
    }
    let tensor = state.node(at)?.file()?.tensor.as_ref()?;
    (*tensor.name == *name).then_some(at)
}

/// The recipe of a file of a base with an adapter, which may have been refused. Then the files without tensors are shown.
pub fn plan(collection: &Arc<Collection>, adapter: Result<Arc<Adapter>>, item: &Item) -> Result<Recipe> {
    let Item::Node(node) = item else { return Err(Error::new(ErrorKind::NotFound, "there is no such file")) };
    let opened = adapter.as_ref().ok().cloned();
    let (changed, parts) = parts(collection, adapter, node.entry.id)?;
    let is_container = node.file().is_some_and(|file| file.tensor.is_none() && file.content.is_container());
    // Another model of the collection stays as it is, but one without the adapter would be taken for the sum.
    if let Some(adapter) = opened.filter(|_| changed == 0 && is_container) {
        fits(collection, &adapter)?;
    }
    Ok(Recipe {
        collection: collection.clone(),
        created_at: node.entry.created_at,
        parts,
        inputs: Vec::new(),
    })
}

/// Whether an adapter changes some tensors of a collection, and every one that it names is there.
pub fn fits(collection: &Arc<Collection>, adapter: &Arc<Adapter>) -> Result<()> {
    let mut containers = HashSet::new();
    collection.state().walk(ROOT, &mut |visited| {
        if visited.node.file().is_some_and(|file| file.content == Content::Safetensors) {
            containers.insert(visited.node.entry.id);
        }
        Walk::Enter
    });
    let mut first = Err(not_merged(format!(
        "{}: no safetensors file has the tensor {:?} or another one that the adapter names, so it",
        collection.path(),
        adapter.changes.keys().min().map_or("", |name| name)
    )));
    for container in containers {
        match parts(collection, Ok(adapter.clone()), container) {
            Ok((0, _)) => {}
            Ok(_) => return Ok(()),
            Err(error) => first = Err(error),
        }
    }
    first
}

/// The number of tensors that change, and the parts of a file.
fn parts(
    collection: &Arc<Collection>,
    adapter: Result<Arc<Adapter>>,
    node: EntryId,
) -> Result<(usize, Vec<Part>)> {
    let gone = || Error::new(ErrorKind::Gone, "the file is gone");
    let node = collection.state().node(node).cloned().ok_or_else(gone)?;
    let (node, pieces) = pieces(collection, &node)?;
    let file = node.file().ok_or_else(|| Error::new(ErrorKind::IsDirectory, "not a file"))?;
    let stored = |pieces: Vec<Piece>| -> Result<Vec<Part>> {
        if file.view.is_some() {
            return Ok(vec![Part::Source(tensor(&pieces)?.0)]);
        }
        let parts = pieces.into_iter().map(|piece| plain(piece.object));
        Ok(stitched(file.records.clone(), parts.collect()))
    };
    let (container, content) = {
        let state = collection.state();
        let container = file.container.unwrap_or(node.entry.id);
        (container, state.node(container).and_then(|node| node.file()).map(|file| file.content))
    };
    let is_container = content.is_some_and(Content::is_container);
    if !is_container {
        return Ok((0, stored(pieces)?));
    }
    let adapter = adapter?;
    let own: Vec<&str> = match &file.tensor {
        Some(own) => vec![&*own.name],
        None => pieces.iter().filter_map(|piece| Some(&*piece.tensor.as_ref()?.1.name)).collect(),
    };
    let names = {
        let state = collection.state();
        let directory = state.links(container).first().map(|(directory, _)| *directory);
        let names = Names::of(&adapter, &state, directory, &own);
        let changed =
            |name: &&&str| names.in_adapter(name).is_some_and(|name| adapter.changes.contains_key(&name));
        if !own.iter().any(|name| changed(&name)) && content != Some(Content::Gguf) {
            drop(state);
            return Ok((0, stored(pieces)?));
        }
        if content != Some(Content::Safetensors) {
            return Err(not_merged("a container that is not a safetensors file"));
        }
        // A file shows what its own tensors become; a container of a model that the adapter does not fit, nothing.
        let has: HashSet<&str> = own.iter().copied().collect();
        let lacks = |name: &&String| {
            let name = names.in_base(name);
            !has.contains(name.as_str()) && directory.and_then(|id| find(&state, id, &name)).is_none()
        };
        if file.tensor.is_none()
            && let Some(name) = adapter.changes.keys().filter(lacks).min()
        {
            return Err(not_merged(format!("the base has no tensor {:?}; the adapter", names.in_base(name))));
        }
        names
    };
    let change_of = |name: &str| adapter.changes.get(&names.in_adapter(name)?);
    let tiles = Arc::new(Tiles::default());
    if let Some(own) = &file.tensor {
        let is_part_of_weight = pieces.first().is_some_and(|piece| piece.is_part_of_weight);
        let (base, _) = tensor(&pieces)?;
        let Some(change) = change_of(&own.name) else { return Ok((0, stored(pieces)?)) };
        let tensor = Named { name: &own.name, shape: &own.shape, is_part_of_weight };
        let merged = merged(&adapter, tensor, base, change, Place { tiles: &tiles, number: 0 })?;
        return Ok((1, vec![Part::Merged(Box::new(merged))]));
    }
    let (mut count, mut found) = (0, Vec::with_capacity(pieces.len()));
    for piece in pieces {
        let change = piece.tensor.as_ref().and_then(|(_, tensor)| Some((tensor, change_of(&tensor.name)?)));
        let Some((tensor, change)) = change else {
            found.push(plain(piece.object));
            continue;
        };
        let base = match plain(piece.object.clone()) {
            Part::Source(source) => Source { dtype: tensor.dtype, ..source },
            _ => return Err(Error::invalid("a tensor without a source")),
        };
        let named =
            Named { name: &tensor.name, shape: &tensor.shape, is_part_of_weight: piece.is_part_of_weight };
        let place = Place { tiles: &tiles, number: count };
        found.push(Part::Merged(Box::new(merged(&adapter, named, base, change, place)?)));
        count += 1;
    }
    Ok((count, found))
}

/// A tensor of the base.
struct Named<'a> {
    name: &'a str,
    shape: &'a Shape,
    is_part_of_weight: bool,
}

/// The place of a tensor's tiles.
struct Place<'a> {
    tiles: &'a Arc<Tiles>,
    number: usize,
}

/// Whether elements can be added to.
fn is_number(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}

fn merged(
    adapter: &Adapter,
    Named { name, shape, is_part_of_weight }: Named<'_>,
    base: Source,
    change: &Change,
    Place { tiles, number }: Place<'_>,
) -> Result<MergedTensor> {
    let to = base.dtype;
    if is_part_of_weight {
        return Err(not_merged(format!("{name}: codes of a quantized weight; an adapter of it")));
    }
    if change.product.is_some() && !is_number(to) {
        return Err(not_merged(format!("{name}: a product with elements of type {to}")));
    }
    let (base, is_base_of_adapter) = match &change.whole {
        None => (base, false),
        Some(whole) if whole.tensor.shape != *shape => {
            return Err(not_merged(format!(
                "{name}: a tensor of another shape, as after a change of the vocabulary,"
            )));
        }
        Some(whole) if whole.tensor.dtype != to && !(is_number(whole.tensor.dtype) && is_number(to)) => {
            return Err(not_merged(format!("{name}: {} in the place of {to}", whole.tensor.dtype)));
        }
        Some(whole) => (adapter.source_of(whole)?, true),
    };
    let product = match &change.product {
        None => None,
        Some(product) => {
            let no = || not_merged(format!("{name}: a product of another shape, rank or type"));
            Some(product_of(adapter, product, shape)?.ok_or_else(no)?)
        }
    };
    Ok(MergedTensor {
        adapter: adapter.collection()?,
        adapter_created_at: adapter.created_at(),
        base,
        is_base_of_adapter,
        to,
        product,
        tiles: tiles.clone(),
        number,
    })
}

/// The product of a tensor of a shape. `None` where the matrices do not fit.
fn product_of(adapter: &Adapter, product: &LowRankProduct, shape: &Shape) -> Result<Option<MergedProduct>> {
    let LowRankProduct { a, b, is_embedding, scale } = product;
    let factor = |weight: &Weight, is_by_rank| -> Result<MergedFactor> {
        Ok(MergedFactor { source: Some(adapter.source_of(weight)?), is_by_rank })
    };
    let scale = *scale;
    if !is_number(a.tensor.dtype) || b.as_ref().is_some_and(|b| !is_number(b.tensor.dtype)) {
        return Ok(None);
    }
    let Some(b) = b else {
        if a.tensor.shape != *shape {
            return Ok(None);
        }
        let left = MergedFactor { source: None, is_by_rank: false };
        let (right, columns) = (factor(a, true)?, shape.elements());
        return Ok(Some(MergedProduct { left, right, rows: 1, columns, rank: 1, scale }));
    };
    let Some(sizes) = Sizes::of(&a.tensor.shape, &b.tensor.shape) else { return Ok(None) };
    let Sizes { rank, inner, columns, outer } = sizes;
    let dimensions = shape.dimensions();
    let is_straight = !is_embedding && dimensions.split_first() == Some((&outer, inner));
    let is_crossed =
        matches!((dimensions, inner), ([rows, columns], [inner]) if rows == inner && *columns == outer);
    if is_straight && !(is_crossed && adapter.is_transposed) {
        let (left, right) = (factor(b, false)?, factor(a, true)?);
        return Ok(Some(MergedProduct { left, right, rows: outer, columns, rank, scale }));
    }
    if !is_crossed {
        return Ok(None);
    }
    let (left, right) = (factor(a, true)?, factor(b, false)?);
    Ok(Some(MergedProduct { left, right, rows: columns, columns: outer, rank, scale }))
}

/// The sizes of two matrices, of which those of a convolution have further dimensions.
struct Sizes<'a> {
    rank: u64,
    /// The dimensions of a row of `A`.
    inner: &'a [u64],
    /// Their product.
    columns: u64,
    /// Rows of `B`.
    outer: u64,
}

impl Sizes<'_> {
    /// `None` for matrices that have no product.
    fn of<'a>(a: &'a Shape, b: &Shape) -> Option<Sizes<'a>> {
        let (rank, inner) = a.dimensions().split_first()?;
        let (outer, rest) = b.dimensions().split_first()?;
        let (own_rank, ones) = rest.split_first()?;
        if own_rank != rank || *rank > RANK_MAX || ones.iter().any(|size| *size != 1) {
            return None;
        }
        let columns = inner.iter().try_fold(1_u64, |product, size| product.checked_mul(*size))?;
        Some(Sizes { rank: *rank, inner, columns, outer: *outer })
    }
}
