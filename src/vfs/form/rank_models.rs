//! The models of a collection that ranks share: the containers of each, its configuration, and the shapes of its tensors.
//! Each lookup of a rank, and each of its files, asks for them, so those of a few collections are remembered.
//!
//! 1. A model is a set of containers of a directory that are shards by their names or that an index names, or a container
//!    alone. The models of a directory have one configuration.
//! 2. What is remembered follows from the state of the collection after so many changes, and from configurations without
//!    unflushed writes. It holds neither the collection nor an object, and nothing that follows from an error of a read.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::format::files::quantization_config;
use crate::format::files::tensor_parallel::{Config, Model, Rank, Share};
use crate::format::log::catalog::Content;
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result, Shape};
use crate::store::{Collection, Object, ROOT, State, Walk};
use crate::vfs::form::weights::{self, shard_of};

/// The configurations of a model, the first that is there counts.
pub(super) const CONFIG_NAMES: [&str; 2] = [weights::CONFIG_NAME, weights::PARAMS_NAME];
/// The most collections whose models are remembered, and the most tensors of all of them, one collection excepted.
const COLLECTIONS_MAX: usize = 32;
const TENSORS_MAX: usize = 1 << 20;

/// The element type and the shape of a tensor.
pub(super) struct Sizes {
    pub dtype: Dtype,
    pub shape: Shape,
}

/// A model.
pub(super) struct RankModel {
    config: Arc<ReadConfig>,
    /// By name.
    pub tensors: HashMap<Box<str>, Sizes>,
}

/// The configuration of a directory, or the error of its read.
enum ReadConfig {
    Known(Config),
    Failed(ErrorKind, String),
}

/// The models of a collection.
#[derive(Default)]
pub(super) struct RankModels {
    models: Vec<Arc<RankModel>>,
    /// The places of the models, by their containers.
    by_container: HashMap<EntryId, usize>,
    /// The configurations that were read.
    config_objects: Vec<Weak<Object>>,
    /// Whether a model can be split, by the number of ranks.
    are_split: Mutex<HashMap<u16, bool>>,
}

/// The error of a tensor that so many ranks cannot share.
pub(super) fn refused(text: String) -> Error {
    Error::new(ErrorKind::NotSupported, text)
}

impl RankModel {
    fn split<T>(&self, ask: impl FnOnce(Model<'_>) -> Result<T, String>) -> Result<T> {
        let config = match &*self.config {
            ReadConfig::Known(config) => config,
            ReadConfig::Failed(kind, text) => return Err(Error::new(*kind, text.clone())),
        };
        let shape = |name: &str| self.tensors.get(name).map(|tensor| tensor.shape.clone());
        ask(Model { config, shape: &shape }).map_err(refused)
    }

    /// The part of a tensor that a rank has.
    pub fn share(&self, rank: Rank, name: &str, shape: &Shape) -> Result<Share> {
        self.split(|model| model.share(rank, name, shape))
    }

    /// The size of a dimension of a matrix in a rank.
    pub fn size_in(&self, rank: Rank, name: &str, whole: u64) -> Result<u64> {
        self.split(|model| model.size_in(rank, name, whole))
    }

    /// Whether so many ranks share any tensor out, and can share all.
    fn is_split(&self, ranks: u16) -> Result<bool> {
        let mut is_split = false;
        for (name, tensor) in &self.tensors {
            match self.split(|model| model.is_shared(ranks, name, &tensor.shape)) {
                Ok(is_shared) => is_split |= is_shared,
                Err(error) if error.kind() == ErrorKind::NotSupported => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(is_split)
    }

    /// The reason why so many ranks cannot share the model: that of the first tensor in the order of names.
    fn why_not(&self, ranks: u16) -> Option<String> {
        let names: BTreeMap<&str, &Sizes> =
            self.tensors.iter().map(|(name, tensor)| (&**name, tensor)).collect();
        let why = |(name, tensor): (&str, &Sizes)| {
            self.split(|model| model.is_shared(ranks, name, &tensor.shape)).err()
        };
        names.into_iter().find_map(why).map(|error| error.to_string())
    }
}

impl RankModels {
    /// The models of a collection as it is now.
    pub fn of(collection: &Arc<Collection>) -> Arc<RankModels> {
        if let Some(known) = remembered(collection) {
            return known;
        }
        // The count comes first: a change after it is noticed.
        let changes = collection.changes();
        let models = Arc::new(RankModels::read(collection));
        let is_read = |model: &Arc<RankModel>| match &*model.config {
            ReadConfig::Known(_) => true,
            ReadConfig::Failed(kind, _) => *kind == ErrorKind::NotSupported,
        };
        if models.models.iter().all(is_read) && !models.is_written() {
            remember(Remembered { collection: Arc::downgrade(collection), changes, models: models.clone() });
        }
        models
    }

    /// The model that a container belongs to.
    pub fn of_container(&self, container: EntryId) -> Option<&Arc<RankModel>> {
        self.models.get(*self.by_container.get(&container)?)
    }

    /// Whether so many ranks can share a model.
    pub fn are_split(&self, ranks: u16) -> Result<bool> {
        if let Some(known) = self.are_split.lock().get(&ranks) {
            return Ok(*known);
        }
        let mut found = Ok(false);
        for model in &self.models {
            match model.is_split(ranks) {
                Ok(false) => {}
                Ok(true) => {
                    found = Ok(true);
                    break;
                }
                Err(error) => found = Err(error),
            }
        }
        let is_split = found?;
        self.are_split.lock().insert(ranks, is_split);
        Ok(is_split)
    }

    /// The reason why so many ranks cannot share a model.
    pub fn why_not(&self, ranks: u16) -> Option<String> {
        self.models.iter().find_map(|model| model.why_not(ranks))
    }

    /// Whether a configuration has unflushed writes.
    fn is_written(&self) -> bool {
        self.config_objects.iter().filter_map(Weak::upgrade).any(|object| object.is_dirty())
    }

    fn tensors(&self) -> usize {
        self.models.iter().map(|model| model.tensors.len()).sum()
    }

    fn read(collection: &Arc<Collection>) -> RankModels {
        let groups = groups(&collection.state());
        let mut configs: HashMap<EntryId, Arc<ReadConfig>> = HashMap::new();
        let mut found = RankModels::default();
        for Group { directory, containers, tensors } in groups {
            let config = configs.entry(directory).or_insert_with(|| {
                let objects = objects_of_config(&collection.state(), directory);
                found.config_objects.extend(objects.iter().map(Arc::downgrade));
                Arc::new(ReadConfig::of(collection, &objects))
            });
            let place = found.models.len();
            found.by_container.extend(containers.into_iter().map(|container| (container, place)));
            found.models.push(Arc::new(RankModel { config: config.clone(), tensors }));
        }
        found
    }
}

impl ReadConfig {
    fn of(collection: &Arc<Collection>, objects: &[Arc<Object>]) -> ReadConfig {
        if objects.is_empty() {
            return ReadConfig::Known(Config::default());
        }
        match weights::description_bytes(collection, objects, quantization_config::BYTES_MAX) {
            Ok(json) => ReadConfig::Known(Config::parse(&json)),
            Err(error) => {
                let is_too_long = error.kind() == ErrorKind::Invalid;
                let kind = if is_too_long { ErrorKind::NotSupported } else { error.kind() };
                ReadConfig::Failed(kind, format!("the model's configuration: {error}"))
            }
        }
    }
}

/// The objects of the configuration of a directory. None where it has no configuration.
pub(super) fn objects_of_config(state: &State, directory: EntryId) -> Vec<Arc<Object>> {
    let file = |name: &str| state.node(state.directory(directory)?.get(name.as_bytes())?)?.file();
    let objects = CONFIG_NAMES.into_iter().find_map(file).into_iter().flat_map(|file| file.objects.iter());
    objects.filter_map(|id| state.object(*id).cloned()).collect()
}

/// The containers of a model and their tensors.
struct Group {
    directory: EntryId,
    containers: Vec<EntryId>,
    tensors: HashMap<Box<str>, Sizes>,
}

/// A thing that all containers of a model have in common.
#[derive(PartialEq, Eq, Hash)]
enum Common<'a> {
    /// The stem and the number of shards in their names.
    Shards(&'a str, u32),
    Index(EntryId),
}

/// The containers of a collection by models, in the order of their first ones.
fn groups(state: &State) -> Vec<Group> {
    let mut containers = Vec::new();
    // The place of the container that a model begins with, for each thing that its containers have in common, and for each
    // container that of another one of its model, or its own.
    let mut by_common: HashMap<(EntryId, Common<'_>), usize> = HashMap::new();
    let mut above: Vec<usize> = Vec::new();
    state.walk(ROOT, &mut |visited| {
        let (directory, name) = (visited.directory, visited.name);
        let file = visited.node.file().filter(|file| file.content == Content::Safetensors);
        // One with several names belongs to the directory of the first.
        let is_first = |link: &(EntryId, Arc<[u8]>)| link.0 == directory && link.1 == *name;
        let id = visited.node.entry.id;
        if let Some(file) = file.filter(|_| state.links(id).first().is_some_and(is_first)) {
            let mut own = containers.len();
            above.push(own);
            let shards = shard_of(name).map(|(stem, count)| Common::Shards(stem, count));
            for common in state.indexes_of(directory, name).map(Common::Index).chain(shards) {
                let other = *by_common.entry((directory, common)).or_insert(own);
                let other = first_of(&mut above, other);
                let (first, second) = (own.min(other), own.max(other));
                if let Some(place) = above.get_mut(second) {
                    *place = first;
                }
                own = first;
            }
            containers.push((directory, id, file));
        }
        Walk::Enter
    });
    let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
    for (place, (directory, id, file)) in containers.into_iter().enumerate() {
        let group = groups.entry(first_of(&mut above, place)).or_insert_with(|| Group {
            directory,
            containers: Vec::new(),
            tensors: HashMap::new(),
        });
        group.containers.push(id);
        for tensor in state.parts(file).filter_map(|part| part.file()?.tensor.as_ref()) {
            let sizes = || Sizes { dtype: tensor.dtype, shape: tensor.shape.clone() };
            group.tensors.entry(tensor.name.clone()).or_insert_with(sizes);
        }
    }
    groups.into_values().collect()
}

/// The place of the first container of a model, from that of another. Shortens the way for later calls.
fn first_of(above: &mut [usize], mut place: usize) -> usize {
    let next = |above: &[usize], place: usize| above.get(place).copied().unwrap_or(place);
    loop {
        let parent = next(above, place);
        let grandparent = next(above, parent);
        if parent == grandparent {
            return parent;
        }
        if let Some(shorter) = above.get_mut(place) {
            *shorter = grandparent;
        }
        place = grandparent;
    }
}

struct Remembered {
    collection: Weak<Collection>,
    /// The changes of the collection's state before its models were read.
    changes: u64,
    models: Arc<RankModels>,
}

/// The newest last.
static REMEMBERED: Mutex<VecDeque<Remembered>> = Mutex::new(VecDeque::new());

fn remembered(collection: &Arc<Collection>) -> Option<Arc<RankModels>> {
    let models = {
        let all = REMEMBERED.lock();
        let is_it = |known: &&Remembered| std::ptr::eq(known.collection.as_ptr(), Arc::as_ptr(collection));
        let known = all.iter().find(is_it)?;
        (known.changes == collection.changes()).then(|| known.models.clone())?
    };
    (!models.is_written()).then_some(models)
}

fn remember(new: Remembered) {
    let mut all = REMEMBERED.lock();
    all.retain(|known| {
        known.collection.strong_count() > 0 && !Weak::ptr_eq(&known.collection, &new.collection)
    });
    all.push_back(new);
    let tensors = |all: &VecDeque<Remembered>| all.iter().map(|known| known.models.tensors()).sum::<usize>();
    while all.len() > COLLECTIONS_MAX || all.len() > 1 && tensors(&all) > TENSORS_MAX {
        all.pop_front();
    }
}
