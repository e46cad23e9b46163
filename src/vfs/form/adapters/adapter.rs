//! An adapter: a directory with a configuration and a container of tensors.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::format::files::adapter_config::{AdapterConfig, AdapterPart, BYTES_MAX, CONFIG_NAME, part_of};
use crate::format::log::catalog::TensorEntry;
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::{Collection, Node, Object, State};
use crate::stream::{OwnTiles, Tiles};
use crate::vfs::form::adapters::adapter_files::AdapterFiles;
use crate::vfs::form::adapters::known_fits::KnownFits;
use crate::vfs::form::adapters::known_models::KnownModels;
use crate::vfs::form::pieces::{bytes_of, stored};
use crate::vfs::form::recipe::Source;

/// A matrix or a tensor of an adapter.
pub(super) struct Weight {
    pub node: EntryId,
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

/// The files of an adapter in one state, in one opening of their collection.
#[derive(Clone)]
pub struct AdapterNodes {
    files: AdapterFiles,
    /// The configuration and the container of the tensors.
    nodes: [Arc<Node>; 2],
}

impl AdapterNodes {
    /// The present state. Fails with `Gone` for files that are gone.
    pub fn of(state: &State, files: AdapterFiles) -> Result<AdapterNodes> {
        let gone = || Error::new(ErrorKind::Gone, "the adapter is gone");
        let node = |id| state.node(id).filter(|node| node.file().is_some()).cloned().ok_or_else(gone);
        Ok(AdapterNodes { files, nodes: [node(files.config)?, node(files.weights)?] })
    }

    /// Whether these are the same files in the same state.
    pub fn are(&self, other: &AdapterNodes) -> bool {
        let are_same = self.nodes.iter().zip(&other.nodes).all(|(one, other)| Arc::ptr_eq(one, other));
        self.files == other.files && are_same
    }

    /// The objects of each file.
    fn objects(&self, state: &State) -> Result<[Vec<Arc<Object>>; 2]> {
        let [config, weights] = &self.nodes;
        let objects = |node: &Arc<Node>| -> Result<Vec<Arc<Object>>> {
            Ok(node.file().map(|file| state.parts_of(file)).transpose()?.unwrap_or_default().0)
        };
        Ok([objects(config)?, objects(weights)?])
    }
}

/// An adapter in its present state. It keeps neither its collection nor an object.
pub struct Adapter {
    nodes: AdapterNodes,
    /// `fan_in_fan_out`.
    pub(super) is_transposed: bool,
    /// By the name of a tensor of the base.
    pub(super) changes: HashMap<String, Change>,
    pub(super) models: KnownModels,
    /// Bytes of memory of all but the comparisons, about, and with these.
    own_bytes: usize,
    bytes: Arc<AtomicUsize>,
    /// The models that it was compared with as a whole.
    pub(super) fits: KnownFits,
    /// The tiles of the mount, and its own while somebody reads them.
    tiles: Arc<Tiles>,
    own_tiles: Mutex<Weak<OwnTiles>>,
}

/// An adapter, and its collection, which therefore stays open.
#[derive(Clone)]
pub struct OpenAdapter {
    pub(super) collection: Arc<Collection>,
    pub(super) adapter: Arc<Adapter>,
}

/// The parts of the tensors of a module.
type Parts = HashMap<AdapterPart, Weight>;

impl Adapter {
    /// Opens the adapter of these files. Fails with `NotSupported` for one that is not a plain sum, and with `Invalid` for
    /// files that do not describe one. Its tiles are kept in `tiles`.
    pub fn open(collection: &Arc<Collection>, nodes: AdapterNodes, tiles: &Arc<Tiles>) -> Result<Adapter> {
        let ([config, _], weights) = {
            let state = collection.state();
            let [_, container] = &nodes.nodes;
            (nodes.objects(&state)?, weights_of(&state, container))
        };
        let too_long = || Error::invalid(format!("{CONFIG_NAME} is longer than {BYTES_MAX} bytes"));
        let json = bytes_of(collection, &config, BYTES_MAX)?.ok_or_else(too_long)?;
        let config = AdapterConfig::parse(&json)?;
        let mut changes: HashMap<String, Change> = HashMap::new();
        let mut modules: HashMap<String, Parts> = HashMap::new();
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
        config.check_patterns(modules.len())?;
        for (module, parts) in modules {
            for (tensor, product) in products(&module, parts, &config)? {
                changes.entry(format!("{module}.{tensor}")).or_default().product = Some(product);
            }
        }
        let own_bytes = memory(&changes);
        Ok(Adapter {
            nodes,
            is_transposed: config.is_transposed,
            changes,
            models: KnownModels::default(),
            own_bytes,
            bytes: Arc::new(AtomicUsize::new(own_bytes)),
            fits: KnownFits::default(),
            tiles: tiles.clone(),
            own_tiles: Mutex::default(),
        })
    }

    /// Bytes of memory, about. Comparisons change the number.
    pub fn memory(&self) -> &Arc<AtomicUsize> {
        &self.bytes
    }

    /// Counts the memory of the comparisons again.
    pub(super) fn count_memory(&self) {
        let bytes = self.own_bytes + self.models.memory() + self.fits.memory();
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

impl OpenAdapter {
    /// `collection` is that of the adapter.
    pub fn new(collection: Arc<Collection>, adapter: Arc<Adapter>) -> OpenAdapter {
        OpenAdapter { collection, adapter }
    }

    /// The tiles of its matrices, for all who read them at this time.
    pub(super) fn tiles(&self) -> Arc<OwnTiles> {
        let mut own = self.adapter.own_tiles.lock();
        own.upgrade().unwrap_or_else(|| {
            let tiles = Arc::new(self.adapter.tiles.own());
            *own = Arc::downgrade(&tiles);
            tiles
        })
    }

    /// The elements of a tensor of its own.
    pub(super) fn source_of(&self, weight: &Weight) -> Result<Source> {
        let gone = || Error::new(ErrorKind::Gone, "a tensor of the adapter is gone");
        let state = self.collection.state();
        stored(&state, state.node(weight.node).ok_or_else(gone)?)
    }

    /// Creation time of its tensors in Unix seconds.
    pub(super) fn created_at(&self) -> u64 {
        let [_, container] = &self.adapter.nodes.nodes;
        container.entry.created_at
    }

    /// The objects of its files.
    pub fn objects(&self) -> Result<Vec<Arc<Object>>> {
        Ok(self.adapter.nodes.objects(&self.collection.state())?.concat())
    }
}

/// Bytes of memory of an adapter before it is compared, about.
fn memory(changes: &HashMap<String, Change>) -> usize {
    /// Of a change without its names.
    const CHANGE_BYTES: usize = 512;
    let names = changes.keys().map(|name| CHANGE_BYTES + 4 * name.len());
    size_of::<Adapter>() + names.sum::<usize>()
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

/// The error of something that is not merged.
pub(super) fn not_merged(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::NotSupported, format!("{what} is not merged"))
}
