//! Plans a file of a base with an adapter.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::log::catalog::Content;
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result, Shape};
use crate::store::{Collection, ROOT, Walk};
use crate::stream::OwnTiles;
use crate::vfs::form::adapters::adapter::{Change, LowRankProduct, OpenAdapter, Weight, not_merged};
use crate::vfs::form::adapters::base_model::BaseModel;
use crate::vfs::form::adapters::matrix_sizes::Sizes;
use crate::vfs::form::adapters::merged_tensor::{MergedFactor, MergedProduct, MergedTensor};
use crate::vfs::form::names::Item;
use crate::vfs::form::pieces::{Piece, tensor};
use crate::vfs::form::plan::{pieces, stitched};
use crate::vfs::form::recipe::{Part, Recipe, Source};

/// The recipe of a file of a base with an adapter, which may have been refused. Then the files without tensors are shown.
pub fn plan(collection: &Arc<Collection>, adapter: Result<OpenAdapter>, item: &Item) -> Result<Recipe> {
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
pub fn fits(collection: &Arc<Collection>, adapter: &OpenAdapter) -> Result<()> {
    let fits = adapter.adapter.fits.of(collection, || compared(collection, adapter));
    adapter.adapter.count_memory();
    fits
}

fn compared(collection: &Arc<Collection>, adapter: &OpenAdapter) -> Result<()> {
    let (mut seen, mut containers) = (HashSet::new(), Vec::new());
    collection.state().walk(ROOT, &mut |visited| {
        let node = visited.node;
        let is_container = node.file().is_some_and(|file| file.content == Content::Safetensors);
        if is_container && seen.insert(node.entry.id) {
            containers.push(node.entry.id);
        }
        Walk::Enter
    });
    let mut first = None;
    for container in containers {
        match parts(collection, Ok(adapter.clone()), container) {
            Ok((0, _)) => {}
            Ok(_) => return Ok(()),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.unwrap_or_else(|| {
        not_merged(format!(
            "{}: no safetensors file has the tensor {:?} or another one that the adapter names, so it",
            collection.path(),
            adapter.adapter.changes.keys().min().map_or("", |name| name)
        ))
    }))
}

/// The number of tensors that change, and the parts of a file.
fn parts(
    collection: &Arc<Collection>,
    adapter: Result<OpenAdapter>,
    node: EntryId,
) -> Result<(usize, Vec<Part>)> {
    let gone = || Error::new(ErrorKind::Gone, "the file is gone");
    let (node, container, content) = {
        let state = collection.state();
        let node = state.node(node).cloned().ok_or_else(gone)?;
        let container = node.file().and_then(|file| file.container).unwrap_or(node.entry.id);
        let content = state.node(container).and_then(|node| node.file()).map(|file| file.content);
        (node, container, content)
    };
    // The refusal of an adapter is known, and the pieces of a large container are not made for it.
    let adapter = content.is_some_and(Content::is_container).then_some(adapter).transpose()?;
    let (node, pieces) = pieces(collection, &node)?;
    let file = node.file().ok_or_else(|| Error::new(ErrorKind::IsDirectory, "not a file"))?;
    let stored = |pieces: Vec<Piece>| -> Result<Vec<Part>> {
        if file.view.is_some() {
            return Ok(vec![Part::Source(tensor(&pieces)?.0)]);
        }
        let parts = pieces.iter().map(Piece::plain);
        Ok(stitched(file.records.clone(), parts.collect()))
    };
    let Some(adapter) = adapter else { return Ok((0, stored(pieces)?)) };
    let own: Vec<&str> = match &file.tensor {
        Some(own) => vec![&*own.name],
        None => pieces.iter().filter_map(|piece| Some(&*piece.tensor.as_ref()?.1.name)).collect(),
    };
    let model = {
        let directory = collection.state().links(container).first().map(|(directory, _)| *directory);
        let model = BaseModel::of(&adapter.adapter, collection, directory)?;
        if !own.iter().any(|name| model.is_changed(name)) && content != Some(Content::Gguf) {
            return Ok((0, stored(pieces)?));
        }
        if content != Some(Content::Safetensors) {
            return Err(not_merged("a container that is not a safetensors file"));
        }
        // A file shows what its own tensors become; a container of a model that the adapter does not fit, nothing.
        if file.tensor.is_none() {
            model.check_complete()?;
        }
        model
    };
    let names = model.names()?;
    let change_of = |name: &str| adapter.adapter.changes.get(&names.in_adapter(name)?);
    let tiles = adapter.tiles();
    if let Some(own) = &file.tensor {
        let is_part_of_weight = pieces.first().is_some_and(|piece| piece.is_part_of_weight);
        let (base, _) = tensor(&pieces)?;
        let Some(change) = change_of(&own.name) else { return Ok((0, stored(pieces)?)) };
        let tensor = Named { name: &own.name, shape: &own.shape, is_part_of_weight };
        let merged = merged(&adapter, tensor, base, change, Place { tiles: &tiles, model: &model })?;
        return Ok((1, vec![Part::Merged(Box::new(merged))]));
    }
    let (mut count, mut found) = (0, Vec::with_capacity(pieces.len()));
    for piece in pieces {
        let change = piece.tensor.as_ref().and_then(|(_, tensor)| Some((tensor, change_of(&tensor.name)?)));
        let Some((tensor, change)) = change else {
            found.push(piece.plain());
            continue;
        };
        let base = match piece.plain() {
            Part::Source(source) => Source { dtype: tensor.dtype, ..source },
            _ => return Err(Error::invalid("a tensor without a source")),
        };
        let named =
            Named { name: &tensor.name, shape: &tensor.shape, is_part_of_weight: piece.is_part_of_weight };
        let place = Place { tiles: &tiles, model: &model };
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

/// The tiles of the adapter, and the model that a tensor belongs to.
struct Place<'a> {
    tiles: &'a Arc<OwnTiles>,
    model: &'a BaseModel,
}

/// The tensor that a product is added to.
struct Target<'a> {
    name: &'a str,
    shape: &'a Shape,
    model: &'a BaseModel,
}

/// Whether elements can be added to.
fn is_number(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}

fn merged(
    adapter: &OpenAdapter,
    Named { name, shape, is_part_of_weight }: Named<'_>,
    base: Source,
    change: &Change,
    Place { tiles, model }: Place<'_>,
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
            Some(product_of(adapter, product, Target { name, shape, model })?.ok_or_else(no)?)
        }
    };
    Ok(MergedTensor {
        adapter: adapter.collection.clone(),
        adapter_created_at: adapter.created_at(),
        base,
        is_base_of_adapter,
        to,
        product,
        tiles: tiles.clone(),
    })
}

/// The product of a tensor of a shape. `None` where the matrices do not fit.
fn product_of(
    adapter: &OpenAdapter,
    product: &LowRankProduct,
    Target { name, shape, model }: Target<'_>,
) -> Result<Option<MergedProduct>> {
    let LowRankProduct { a, b, is_embedding, scale } = product;
    let factor = |weight: &Weight, is_by_rank| -> Result<MergedFactor> {
        Ok(MergedFactor { node: weight.node, source: Some(adapter.source_of(weight)?), is_by_rank })
    };
    let scale = *scale;
    if !is_number(a.tensor.dtype) || b.as_ref().is_some_and(|b| !is_number(b.tensor.dtype)) {
        return Ok(None);
    }
    let Some(b) = b else {
        if a.tensor.shape != *shape {
            return Ok(None);
        }
        let left = MergedFactor { node: a.node, source: None, is_by_rank: false };
        let (right, columns) = (factor(a, true)?, shape.elements());
        return Ok(Some(MergedProduct { left, right, rows: 1, columns, rank: 1, scale }));
    };
    let Some(sizes) = Sizes::of(&a.tensor.shape, &b.tensor.shape) else { return Ok(None) };
    let Sizes { rank, inner, columns, outer } = sizes;
    let dimensions = shape.dimensions();
    let is_straight = !is_embedding && dimensions.split_first() == Some((&outer, inner));
    let is_crossed =
        matches!((dimensions, inner), ([rows, columns], [inner]) if rows == inner && *columns == outer);
    let is_transposed = is_straight && is_crossed && model.is_square_transposed(name)?;
    if is_straight && !is_transposed {
        let (left, right) = (factor(b, false)?, factor(a, true)?);
        return Ok(Some(MergedProduct { left, right, rows: outer, columns, rank, scale }));
    }
    if !is_crossed {
        return Ok(None);
    }
    let (left, right) = (factor(a, true)?, factor(b, false)?);
    Ok(Some(MergedProduct { left, right, rows: columns, columns: outer, rank, scale }))
}
