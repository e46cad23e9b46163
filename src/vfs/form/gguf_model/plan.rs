//! Plans the recipe of the GGUF file of a model.

use std::sync::Arc;

use crate::format::files::hub::{ElementType, Source as LaidOut, TensorLayout};
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result};
use crate::store::{Collection, Node};
use crate::vfs::form::gguf_model::directory::directory_of;
use crate::vfs::form::gguf_model::headers::{Header, Made, check_floats, header};
use crate::vfs::form::gguf_model::tensor::{Elements, ModelTensor};
use crate::vfs::form::recipe::{Part, Recipe, Shown, source};
use crate::vfs::form::weights::Model;

/// The recipe of the file that shows the model whose anchor a node is.
///
/// # Errors
/// `NotFound` for a node that is not an anchor, the errors of [`header`], `Gone` for a tensor that is no longer there.
pub fn recipe(collection: &Arc<Collection>, node: &Node, element_type: ElementType) -> Result<Recipe> {
    let directory = directory_of(&collection.state(), node.entry.id);
    let directory = directory.ok_or_else(|| Error::new(ErrorKind::NotFound, "no model"))?;
    let (header, inputs) = header(collection, directory, element_type)?;
    check_floats(&header)?;
    let mut parts = Vec::with_capacity(2 * header.layout.tensors.len() + 1);
    parts.push(Part::Literal(header.layout.header.clone()));
    let model = Model::in_directory(collection, directory);
    for tensor in &header.layout.tensors {
        parts.push(match &tensor.source {
            LaidOut::Literal(bytes) => Part::Literal(bytes.clone()),
            LaidOut::Tensor(place) => {
                Part::ModelTensor(model_tensor(collection, &model, &header, tensor, *place)?)
            }
        });
        parts.push(Part::Zeros(tensor.padding));
    }
    Ok(Recipe { collection: collection.clone(), created_at: node.entry.created_at, parts, inputs })
}

fn model_tensor(
    collection: &Collection,
    model: &Model,
    header: &Header,
    layout: &TensorLayout,
    place: usize,
) -> Result<ModelTensor> {
    let made = header.sources.get(place).ok_or_else(|| Error::invalid("a tensor without its source"))?;
    let (elements, from) = match made {
        Made::Tensor(id, dtype) => (stored(collection, *id)?, *dtype),
        Made::Weight(weight) => (Elements::Weight(model.shown((**weight).clone(), Dtype::F32)?), Dtype::F32),
    };
    Ok(ModelTensor { elements, from, layout: layout.clone() })
}

/// The elements of a tensor as they are stored.
fn stored(collection: &Collection, id: EntryId) -> Result<Elements> {
    let gone = || Error::new(ErrorKind::Gone, "a tensor of the model is gone");
    let state = collection.state();
    let file = state.node(id).and_then(|node| node.file()).ok_or_else(gone)?;
    let tensor = file.tensor.as_ref().ok_or_else(gone)?;
    let objects = file.objects.iter().map(|id| state.object(*id).cloned());
    let objects = objects.collect::<Option<Vec<_>>>().ok_or_else(gone)?;
    Ok(Elements::Stored(source(objects, tensor, Shown::Plain)?))
}
