//! The models of a collection that ranks share: the containers of each, its configuration, and the shapes of its tensors.
//! Each lookup of a rank, and each of its files, asks for them, so those of a few collections are remembered.
//!
//! 1. A model is a set of containers of a directory that are shards by their names or that an index names, or a container
//!    alone. The models of a directory have one configuration.
//! 2. What is remembered follows from the containers of the collection after so many changes of containers, and from
//!    configurations without unflushed writes. Changes of other files leave it. It holds neither the collection nor an
//!    object, and nothing that follows from an error of a read. It goes when the collection is closed.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::format::files::quantization_config;
use crate::format::files::tensor_parallel::{Config, Model, Rank, Share};
use crate::format::log::catalog::Content;
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result, Shape};
use crate::store::{Collection, Node, Object, ROOT, State, Walk};
use crate::vfs::form::weights::{self, Seen, shard_of};

/// The configurations of a model, the first that is there counts.
const CONFIG_NAMES: [&str; 2] = [weights::CONFIG_NAME, weights::PARAMS_NAME];
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
        let (models, stamp) = RankModels::read(collection);
        let models = Arc::new(models);
        let is_read = |model: &Arc<RankModel>| match &*model.config {
            ReadConfig::Known(_) => true,
            ReadConfig::Failed(kind, _) => *kind == ErrorKind::NotSupported,
        };
        if models.models.iter().all(is_read) && stamp.is_present(collection) {
            let stamp = Arc::new(stamp);
            remember(Remembered { collection: Arc::downgrade(collection), stamp, models: models.clone() });
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

    fn tensors(&self) -> usize {
        self.models.iter().map(|model| model.tensors.len()).sum()
    }

    fn read(collection: &Arc<Collection>) -> (RankModels, Stamp) {
        let (groups, containers, files) = {
            let state = collection.state();
            let groups = groups(&state);
            let directories: BTreeSet<EntryId> = groups.iter().map(|group| group.directory).collect();
            let file = |directory| (directory, ConfigFile::of(&state, directory));
            let files: BTreeMap<EntryId, Option<ConfigFile>> = directories.into_iter().map(file).collect();
            (groups, state.container_changes(), files)
        };
        let seen = |(directory, file): (&EntryId, &Option<ConfigFile>)| {
            (*directory, file.as_ref().map(ConfigFile::seen))
        };
        let stamp = Stamp { containers, configs: files.iter().map(seen).collect() };
        let mut configs: HashMap<EntryId, Arc<ReadConfig>> = HashMap::new();
        let mut found = RankModels::default();
        for Group { directory, containers, tensors } in groups {
            let config = configs.entry(directory).or_insert_with(|| {
                let file = files.get(&directory).and_then(Option::as_ref);
                Arc::new(ReadConfig::of(collection, file.map_or(&[], |file| &file.objects)))
            });
            let place = found.models.len();
            found.by_container.extend(containers.into_iter().map(|container| (container, place)));
            found.models.push(Arc::new(RankModel { config: config.clone(), tensors }));
        }
        (found, stamp)
    }
}

/// The files that the models of a collection follow from, as they were before the models were read.
struct Stamp {
    /// The changes of containers.
    containers: u64,
    /// The configurations, by the directories of models.
    configs: BTreeMap<EntryId, Option<Seen>>,
}

impl Stamp {
    /// Whether the files are still as they were, without unflushed writes to configurations.
    fn is_present(&self, collection: &Collection) -> bool {
        let state = collection.state();
        let is_same =
            |(directory, then): (&EntryId, &Option<Seen>)| match (ConfigFile::of(&state, *directory), then) {
                (Some(now), Some(then)) => now.seen().is_same(then) && !now.is_written(),
                (now, then) => now.is_none() && then.is_none(),
            };
        self.containers == state.container_changes() && self.configs.iter().all(is_same)
    }
}

/// The configuration of a directory.
pub(super) struct ConfigFile {
    node: Arc<Node>,
    pub objects: Vec<Arc<Object>>,
}

impl ConfigFile {
    pub fn of(state: &State, directory: EntryId) -> Option<ConfigFile> {
        let names = state.directory(directory)?;
        let node = |name: &str| state.node(names.get(name.as_bytes())?).filter(|node| node.file().is_some());
        let node = CONFIG_NAMES.into_iter().find_map(node)?.clone();
        let objects = node.file()?.objects.iter().filter_map(|id| state.object(*id).cloned()).collect();
        Some(ConfigFile { node, objects })
    }

    fn seen(&self) -> Seen {
        Seen::of(&self.node, &self.objects)
    }

    /// Whether it has unflushed writes.
    fn is_written(&self) -> bool {
        self.objects.iter().any(|object| object.is_dirty())
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
    stamp: Arc<Stamp>,
    models: Arc<RankModels>,
}

/// The newest last.
static REMEMBERED: Mutex<VecDeque<Remembered>> = Mutex::new(VecDeque::new());

fn remembered(collection: &Arc<Collection>) -> Option<Arc<RankModels>> {
    let (stamp, models) = {
        let all = REMEMBERED.lock();
        let is_it = |known: &&Remembered| std::ptr::eq(known.collection.as_ptr(), Arc::as_ptr(collection));
        let known = all.iter().find(is_it)?;
        (known.stamp.clone(), known.models.clone())
    };
    stamp.is_present(collection).then_some(models)
}

/// Forgets the models of collections that are closed.
pub fn forget_closed() {
    REMEMBERED.lock().retain(|known| known.collection.strong_count() > 0);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{RankModels, forget_closed};
    use crate::ingest::{Options, Origin, Target, import_file};
    use crate::model::{CollectionName, Owner, Silent, StoreId};
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::disk::{Disk, Open};
    use crate::store::{Collection, Settings};

    const OWNER: Owner = Owner { uid: 0, gid: 0 };

    fn import(collection: &Arc<Collection>, path: &str, bytes: &[u8]) {
        let file = MemoryDisk::new().open("source", Open::Create).unwrap();
        file.write_at(bytes, 0).unwrap();
        let mut parts: Vec<Vec<u8>> = path.split('/').map(|part| part.as_bytes().to_vec()).collect();
        let target = Target { name: parts.pop().unwrap(), directories: parts };
        let origin = Origin { mode: 0o644, owner: OWNER, atime: 1, mtime: 1, sha256: None };
        let settings = Settings::new(StoreId(1));
        import_file(collection, &settings, &target, &file, &origin, &Options::default(), &Silent).unwrap();
    }

    /// A safetensors file with a matrix of 16 floats.
    fn matrix(rows: usize) -> Vec<u8> {
        let shape = format!("[{rows},{}]", 16 / rows);
        let header = format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":[0,64]}}}}"#);
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[1; 64]].concat()
    }

    #[test]
    fn models_are_remembered_until_their_files_change_or_the_collection_is_closed() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        disk.create_directory("t").unwrap();
        let name = CollectionName::new("t", "c");
        let collection = Arc::new(Collection::create(&disk, StoreId(1), name, 1, OWNER, 0o755).unwrap());
        import(&collection, "m/model.safetensors", &matrix(4));
        let mut known = RankModels::of(&collection);
        let mut is_known = || {
            let now = RankModels::of(&collection);
            let before = std::mem::replace(&mut known, now);
            Arc::ptr_eq(&before, &known)
        };
        assert!(is_known());
        for path in ["notes.txt", "m/notes.txt", "other/notes.txt", "config.json"] {
            import(&collection, path, b"text");
            assert!(is_known(), "{path}");
        }
        for (path, bytes) in [
            ("m/config.json", b"{}".to_vec()),
            ("m/config.json", b"[]".to_vec()),
            ("m/model.safetensors", matrix(2)),
            ("other/model.safetensors", matrix(4)),
            ("other/model.safetensors.index.json", br#"{"weight_map":{"w":"model.safetensors"}}"#.to_vec()),
        ] {
            import(&collection, path, &bytes);
            assert!(!is_known(), "{path}");
            assert!(is_known(), "{path}");
        }
        let weak = Arc::downgrade(&known);
        drop((known, collection));
        assert!(weak.upgrade().is_some());
        forget_closed();
        assert!(weak.upgrade().is_none());
    }
}
