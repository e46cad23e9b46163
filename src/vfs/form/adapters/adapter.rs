//! An adapter: a directory with a configuration and a container of tensors.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::format::files::adapter_config::{AdapterConfig, AdapterPart, BYTES_MAX, CONFIG_NAME, part_of};
use crate::format::log::catalog::TensorEntry;
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::{Assembly, Collection, Node, Object, OpenObject, State, Verify};
use crate::stream::{Segment, Stream};
use crate::vfs::form::adapters::adapter_files::AdapterFiles;
use crate::vfs::form::pieces::viewed;
use crate::vfs::form::recipe::{Shown, Source, source};

/// A matrix or a tensor of an adapter.
pub(super) struct Weight {
    node: EntryId,
    pub tensor: TensorEntry,
}

/// How a tensor of the base changes.
#[derive(Default)]
pub(super) struct Change {
    /// The tensor that takes its place.
    pub whole: Option<Weight>,
    /// The product that is added.
    pub product: Option<LowRankProduct>,
}

/// A product, in the terms of `peft`.
pub(super) struct LowRankProduct {
    pub a: Weight,
    /// `None` for what is added to a bias, which `a` has.
    pub b: Option<Weight>,
    /// Whether it changes an embedding.
    pub is_embedding: bool,
    pub scale: f32,
}

/// An adapter in its present state. It keeps neither its collection nor an object.
pub struct Adapter {
    collection: Weak<Collection>,
    files: AdapterFiles,
    /// The nodes of its files.
    nodes: [Arc<Node>; 2],
    /// Whether square weights have a row for each input.
    pub(super) is_transposed: bool,
    /// By the name of a tensor of the base.
    pub(super) changes: HashMap<String, Change>,
}

/// The parts of the tensors of a module.
type Parts = HashMap<AdapterPart, Weight>;

impl Adapter {
    /// Opens the adapter of these files. Fails with `NotSupported` for one that is not a plain sum, with `Invalid` for files that do
    /// not describe one, and with `Gone` for files that are gone.
    pub fn open(collection: &Arc<Collection>, files: AdapterFiles) -> Result<Adapter> {
        let gone = || Error::new(ErrorKind::Gone, "the adapter is gone");
        let (nodes, config_objects) = {
            let state = collection.state();
            let node = |id| state.node(id).cloned().ok_or_else(gone);
            let (config, weights) = (node(files.config)?, node(files.weights)?);
            let objects = state.parts_of(config.file().ok_or_else(gone)?)?.0;
            ([config, weights], objects)
        };
        let json = bytes_of(collection, &config_objects)?;
        let config = AdapterConfig::parse(&json)?;
        let mut changes: HashMap<String, Change> = HashMap::new();
        let mut modules: HashMap<String, Parts> = HashMap::new();
        let [_, container] = &nodes;
        let weights = weights_of(&collection.state(), container);
        if weights.is_empty() {
            return Err(Error::invalid("the container of the adapter has no tensors that can be read"));
        }
        for weight in weights {
            let name = weight.tensor.name.to_string();
            let (module, part) = part_of(&name)?;
            let is_twice = match part {
                AdapterPart::Whole => changes.entry(module).or_default().whole.replace(weight).is_some(),
                _ => modules.entry(module).or_default().insert(part, weight).is_some(),
            };
            if is_twice {
                return Err(not_merged(format!("the adapter has {name:?} twice, of several adapters,")));
            }
        }
        for (module, parts) in modules {
            for (tensor, product) in products(&module, parts, &config)? {
                changes.entry(format!("{module}.{tensor}")).or_default().product = Some(product);
            }
        }
        Ok(Adapter {
            collection: Arc::downgrade(collection),
            files,
            nodes,
            is_transposed: config.is_transposed,
            changes,
        })
    }

    /// Its collection. Fails with `Gone` where it was closed since.
    pub(super) fn collection(&self) -> Result<Arc<Collection>> {
        let closed = || Error::new(ErrorKind::Gone, "the collection of the adapter was closed");
        self.collection.upgrade().ok_or_else(closed)
    }

    /// Whether these are its files in their present state, in this collection.
    pub fn is_current(&self, collection: &Arc<Collection>, files: AdapterFiles) -> bool {
        if self.files != files || !std::ptr::eq(self.collection.as_ptr(), Arc::as_ptr(collection)) {
            return false;
        }
        let state = collection.state();
        let is_same =
            |known: &Arc<Node>| state.node(known.entry.id).is_some_and(|now| Arc::ptr_eq(now, known));
        self.nodes.iter().all(is_same)
    }

    /// The elements of a tensor of its own.
    pub(super) fn source_of(&self, weight: &Weight) -> Result<Source> {
        let gone = || Error::new(ErrorKind::Gone, "a tensor of the adapter is gone");
        let collection = self.collection()?;
        let state = collection.state();
        let (objects, assembly) =
            state.parts_of(state.node(weight.node).and_then(|node| node.file()).ok_or_else(gone)?)?;
        match assembly {
            Some(Assembly::View(elements)) => viewed(objects, elements, &weight.tensor),
            _ => source(objects, &weight.tensor, Shown::Plain),
        }
    }

    /// Creation time of its tensors in Unix seconds.
    pub(super) fn created_at(&self) -> u64 {
        let [_, container] = &self.nodes;
        container.entry.created_at
    }

    /// Whether these are its files, in any state.
    pub fn is_of(&self, files: AdapterFiles) -> bool {
        self.files == files
    }

    /// The objects of its files.
    pub fn objects(&self) -> Result<Vec<Arc<Object>>> {
        let collection = self.collection()?;
        let state = collection.state();
        let mut found = Vec::new();
        for file in self.nodes.iter().filter_map(|node| node.file()) {
            found.extend(state.parts_of(file)?.0);
        }
        Ok(found)
    }
}

/// The products of a module, each with the name of the tensor that it changes.
fn products(
    module: &str,
    mut parts: Parts,
    config: &AdapterConfig,
) -> Result<Vec<(&'static str, LowRankProduct)>> {
    let mut pair = |a, b| match (parts.remove(&a), parts.remove(&b)) {
        (Some(a), Some(b)) => Ok(Some((a, b))),
        (None, None) => Ok(None),
        _ => Err(not_merged(format!("{module}: the adapter has one matrix of a product; it"))),
    };
    let linear = pair(AdapterPart::A, AdapterPart::B)?;
    let embedding = pair(AdapterPart::EmbeddingA, AdapterPart::EmbeddingB)?;
    let is_embedding = embedding.is_some();
    let (a, b) = match (linear, embedding) {
        (Some(pair), None) | (None, Some(pair)) => pair,
        _ => return Err(not_merged(format!("{module}: the adapter has no product, or two; it"))),
    };
    let rank = a.tensor.shape.dimensions().first().copied().unwrap_or_default();
    let scale = if rank == 0 { 0.0 } else { config.scale(module, rank)? };
    let bias = parts.remove(&AdapterPart::Bias);
    let bias = bias.map(|a| ("bias", LowRankProduct { a, b: None, is_embedding: false, scale }));
    let product = LowRankProduct { a, b: Some(b), is_embedding, scale };
    Ok([("weight", product)].into_iter().chain(bias).collect())
}

/// The tensors of a container.
fn weights_of(state: &State, container: &Node) -> Vec<Weight> {
    let parts = container.file().into_iter().flat_map(|file| state.parts(file));
    let weight = |part: &Arc<Node>| {
        let tensor = part.file()?.tensor.clone()?;
        Some(Weight { node: part.entry.id, tensor })
    };
    parts.filter_map(weight).collect()
}

fn bytes_of(collection: &Arc<Collection>, objects: &[Arc<Object>]) -> Result<Vec<u8>> {
    let open = |object| OpenObject::open(collection, object, Verify::First).map(Segment::Object);
    let stream = Stream::new(objects.iter().map(open).collect::<Result<_>>()?)?;
    if stream.bytes() > BYTES_MAX {
        return Err(Error::invalid(format!("{CONFIG_NAME} is longer than {BYTES_MAX} bytes")));
    }
    let mut bytes = vec![0; stream.bytes() as usize];
    stream.read_exact(0, &mut bytes)?;
    Ok(bytes)
}

/// The error of something that is not merged.
pub(super) fn not_merged(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::NotSupported, format!("{what} is not merged"))
}
