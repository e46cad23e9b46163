//! Lineage parents of imported tensors.

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::log::catalog::Parent;
use crate::model::{CollectionName, Dtype, Error, ErrorKind, ObjectId, Result, Shape, TensorId};
use crate::store::Collection;
use crate::store::{Node, State};

/// The places of the parents of imported tensors.
#[derive(Clone, Debug)]
pub struct Parents {
    tenant: String,
    collection: String,
    tensors: Arc<HashMap<String, ParentTensor>>,
    /// The one tensor that is the parent of all, if named.
    named: Option<String>,
}

/// A tensor that can be a parent.
#[derive(Debug)]
pub(in crate::ingest) struct ParentTensor {
    /// The id that an imported tensor records as its parent.
    pub id: TensorId,
    dtype: Dtype,
    shape: Shape,
    /// The object and size of each shard.
    shards: Vec<(ObjectId, u64)>,
}

impl Parents {
    /// The tensors of a collection, each as the parent of the imported tensor of its name; with
    /// `named` the tensor at that path is the parent of all. Fails with `NotFound` where it does not
    /// exist.
    pub fn new(collection: &Collection, named: Option<&str>) -> Result<Parents> {
        let state = collection.state();
        let mut tensors = HashMap::new();
        for node in state.nodes() {
            if let Some((path, tensor)) = tensor_of(collection, &state, node) {
                tensors.insert(path, tensor);
            }
        }
        let missing = named.filter(|path| !tensors.contains_key(*path));
        if let Some(path) = missing {
            let text = format!(
                "{} does not have the tensor {path}, which was named as the lineage parent",
                collection.path()
            );
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        Ok(Parents {
            tenant: collection.tenant().to_owned(),
            collection: collection.name().to_owned(),
            tensors: Arc::new(tensors),
            named: named.map(str::to_owned),
        })
    }

    /// The parent of a tensor, by its path below its collection, dtype, shape and sizes of shards.
    /// Fails with `Invalid` where a named parent does not match.
    pub(in crate::ingest) fn of(
        &self,
        collection: &Collection,
        path: &str,
        dtype: Dtype,
        shape: &Shape,
        shards: &[u64],
    ) -> Result<Option<&ParentTensor>> {
        let wanted = self.named.as_deref().unwrap_or(path);
        let Some(found) = self.tensors.get(wanted) else { return Ok(None) };
        let is_itself = (collection.tenant(), collection.name(), path)
            == (self.tenant.as_str(), self.collection.as_str(), wanted);
        if is_itself {
            return Err(Error::invalid(format!("{path} cannot be its own lineage parent; name another")));
        }
        let agrees = found.dtype == dtype
            && found.shape == *shape
            && found.shards.iter().map(|(_, bytes)| bytes).eq(shards);
        match (agrees, &self.named) {
            (true, _) => Ok(Some(found)),
            (false, None) => Ok(None),
            (false, Some(_)) => Err(Error::invalid(format!(
                "{path} is {dtype} {shape} in {} shards, its parent {wanted} {} {} in {}: both must be alike",
                shards.len(),
                found.dtype,
                found.shape,
                found.shards.len()
            ))),
        }
    }

    /// The parent of a shard in the collection `own`.
    pub(in crate::ingest) fn of_shard(
        &self,
        own: &Collection,
        tensor: &ParentTensor,
        place: usize,
    ) -> Option<Parent> {
        let (object, _) = tensor.shards.get(place)?;
        let collection = CollectionName::new(&self.tenant, &self.collection);
        let collection = (own.place() != collection).then(|| collection.owned());
        Some(Parent { object: *object, collection })
    }
}

/// A tensor with its own path below the collection: its name after the path of its directory.
fn tensor_of(collection: &Collection, state: &State, node: &Node) -> Option<(String, ParentTensor)> {
    let file = node.file()?;
    let tensor = file.tensor.as_ref()?;
    let path = state.own_path(node)?;
    let id = TensorId::of(collection.tenant(), collection.name(), &path, tensor.parent);
    let shard = |id: &ObjectId| Some((*id, state.object(*id)?.logged_layout().bytes));
    let shards = file.objects.iter().map(shard).collect::<Option<Vec<_>>>()?;
    Some((path, ParentTensor { id, dtype: tensor.dtype, shape: tensor.shape.clone(), shards }))
}
