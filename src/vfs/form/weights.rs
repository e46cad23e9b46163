//! The weights of a quantized model in a form that casts: each is shown as floats, under its plain name.
//!
//! A weight may have its scales in another container of the directory. So a model is the directory of a container.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::quantization_config::{self, Config};
use crate::format::files::safetensors::{RENAMED, Role, STATE_BYTES_MAX, Tensors, Weight};
use crate::format::files::shard_index;
use crate::format::log::catalog::{Content, FileEntry, TensorEntry};
use crate::model::{Dtype, EntryId, Error, Result, Shape, TensorNames};
use crate::store::{Collection, Node, Object, State, TENSORS_NAME, Verify};
use crate::stream::is_castable;
use crate::vfs::form::pieces::{bytes_of, stored};
use crate::vfs::form::recipe::{ShownWeight, Source};

/// The name of a model's configuration.
pub(super) const CONFIG_NAME: &str = "config.json";
/// The name of the configuration in the format of Mistral.
pub(super) const PARAMS_NAME: &str = "params.json";
/// Files that say how weights are quantized, the first that does so counts.
pub(super) const CONFIG_NAMES: [&str; 3] = [CONFIG_NAME, "quantize_config.json", "quant_config.json"];

/// The stem and the number of shards in the name of a shard, `STEM-00001-of-00003.safetensors`.
pub(super) fn shard_of(name: &[u8]) -> Option<(&str, u32)> {
    let name = std::str::from_utf8(name).ok()?.strip_suffix(".safetensors")?;
    let (before, count) = name.rsplit_once("-of-")?;
    let (stem, number) = before.rsplit_once('-')?;
    number.parse::<u32>().ok()?;
    Some((stem, count.parse().ok()?))
}

/// Whether two containers of a directory belong to one model: both are shards of it by their names, or an index names both.
fn are_of_one_model(state: &State, directory: EntryId, one: &[u8], other: &[u8]) -> bool {
    shard_of(one).is_some_and(|shard| shard_of(other) == Some(shard))
        || state.are_in_one_index(directory, one, other)
}

/// Tensors by name.
type ByName = HashMap<Box<str>, EntryId>;

/// The name of a tensor, and whether it is a part of a weight of any layout, also of those that are not decoded.
fn named(state: &State, part: &Node) -> Option<(Box<str>, bool)> {
    let tensor = part.file()?.tensor.as_ref()?;
    Some((tensor.name.clone(), state.is_part_of_weight(part.entry.id)))
}

/// The tensors of a container, by name.
fn tensors(state: &State, container: &FileEntry) -> ByName {
    let named = |part: &Arc<Node>| Some((part.file()?.tensor.as_ref()?.name.clone(), part.entry.id));
    state.parts(container).filter_map(named).collect()
}

/// A tensor of a model.
pub(super) struct Known {
    pub node: Arc<Node>,
    pub tensor: TensorEntry,
    pub objects: Vec<Arc<Object>>,
    source: Source,
}

/// A file, and how often its content had changed when it was read.
#[derive(Clone)]
pub(super) struct Seen {
    pub node: Arc<Node>,
    pub changes: u64,
}

impl Seen {
    /// The file now.
    pub fn of(node: &Arc<Node>, objects: &[Arc<Object>]) -> Seen {
        Seen { node: node.clone(), changes: objects.iter().map(|object| u64::from(object.changes())).sum() }
    }

    /// Whether the file is the same, with the same content.
    pub fn is_same(&self, other: &Seen) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.changes == other.changes
    }
}

/// A container of a directory, under its name there.
pub(super) struct NamedContainer {
    pub name: Box<[u8]>,
    pub node: Arc<Node>,
}

impl NamedContainer {
    /// The stem and the number of the shards that it belongs to, where no index says so.
    fn shards(&self, is_indexed: bool) -> Option<(String, u32)> {
        let of = shard_of(&self.name).filter(|_| !is_indexed);
        of.map(|(stem, count)| (stem.to_owned(), count))
    }
}

/// Containers of a directory that belong together: those that an index names, or shards by their names. A tensor is looked up
/// in its own container, then in the others, and in no other file.
pub(super) struct Checkpoint {
    /// The configuration, and the tensors that were read, which the models of the containers share.
    base: Model,
    /// Whether all are one model.
    is_indexed: bool,
    /// The tensors of the containers with a stem and a number of shards, by name. The first of a name counts.
    shards: HashMap<Option<(String, u32)>, Rc<ByName>>,
}

impl Checkpoint {
    /// The containers of a directory. `is_indexed` says that an index names them all.
    pub fn new(
        collection: &Arc<Collection>,
        directory: EntryId,
        containers: &[NamedContainer],
        is_indexed: bool,
    ) -> Checkpoint {
        let mut shards: HashMap<_, ByName> = HashMap::new();
        let state = collection.state();
        for container in containers {
            let of = container.shards(is_indexed);
            if let Some(file) = container.node.file().filter(|_| is_indexed || of.is_some()) {
                let known = shards.entry(of).or_default();
                for (name, id) in tensors(&state, file) {
                    known.entry(name).or_insert(id);
                }
            }
        }
        drop(state);
        Checkpoint {
            base: Model::new(collection, Some(directory)),
            is_indexed,
            shards: shards.into_iter().map(|(of, known)| (of, Rc::new(known))).collect(),
        }
    }

    /// The model of one of the containers.
    pub fn model(&self, container: &NamedContainer) -> Model {
        let of = container.shards(self.is_indexed);
        let state = self.base.collection.state();
        Model {
            own: container.node.file().map(|file| tensors(&state, file)).unwrap_or_default(),
            checkpoint: Some(self.shards.get(&of).cloned().unwrap_or_default()),
            config: self.base.config.clone(),
            deciding: self.base.deciding.clone(),
            ..Model::new(&self.base.collection, self.base.directory)
        }
    }

    /// The small tensors that have decided about roles, in the order of their numbers.
    pub fn deciding(self) -> Vec<Seen> {
        self.base.deciding.take().into_values().collect()
    }
}

/// Containers of one model, with all their tensors.
struct Shards {
    /// The name of one of them.
    first: Arc<[u8]>,
    tensors: HashMap<Box<str>, EntryId>,
}

/// The tensors of a directory.
pub struct Model {
    collection: Arc<Collection>,
    pub(super) directory: Option<EntryId>,
    /// The name of one container, whose tensors come first.
    container: Option<Arc<[u8]>>,
    /// Its tensors, by name, where they are all needed.
    own: ByName,
    /// The models of several containers in the directory, each listed when a tensor of another container is asked for and
    /// another model has one of the same name. All models of the directory share the list.
    sharded: Rc<RefCell<Vec<Shards>>>,
    /// The tensors of all containers of the model, where it has no others.
    checkpoint: Option<Rc<ByName>>,
    /// The small tensors that were read.
    deciding: Rc<RefCell<BTreeMap<EntryId, Seen>>>,
    /// Read when a weight needs it: most tensors have none.
    config: Rc<OnceCell<Config>>,
}

impl Model {
    /// The model that a container, or a tensor of one, belongs to.
    pub fn of(collection: &Arc<Collection>, node: &Node) -> Model {
        let state = collection.state();
        let container = node.file().and_then(|file| file.container).unwrap_or(node.entry.id);
        let link = state.links(container).first().cloned();
        let file = state.node(container).filter(|_| container == node.entry.id).and_then(|node| node.file());
        let own = file.map(|file| tensors(&state, file)).unwrap_or_default();
        drop(state);
        let (directory, container) = link.unzip();
        Model { container, own, ..Model::new(collection, directory) }
    }

    /// The models in a directory, of which the first tensor of a name counts.
    pub fn in_directory(collection: &Arc<Collection>, directory: EntryId) -> Model {
        Model::new(collection, Some(directory))
    }

    fn new(collection: &Arc<Collection>, directory: Option<EntryId>) -> Model {
        Model {
            collection: collection.clone(),
            directory,
            container: None,
            own: HashMap::new(),
            sharded: Rc::default(),
            checkpoint: None,
            deciding: Rc::default(),
            config: Rc::default(),
        }
    }

    /// The model of the container with a name in the same directory, if there is one.
    fn of_container(&self, name: &[u8]) -> Option<Model> {
        let state = self.collection.state();
        let file = state.node(state.directory(self.directory?)?.get(name)?)?.file()?;
        let own = (file.content == Content::Safetensors).then(|| tensors(&state, file))?;
        let model = Model::new(&self.collection, self.directory);
        let (sharded, config) = (self.sharded.clone(), self.config.clone());
        Some(Model { container: Some(name.into()), own, sharded, config, ..model })
    }

    fn config(&self) -> &Config {
        self.config.get_or_init(|| {
            let texts = CONFIG_NAMES.into_iter().filter_map(|name| self.file(name));
            let known = texts.map(|text| Config::parse(&text)).find(|config| *config != Config::default());
            known.unwrap_or_default()
        })
    }

    /// The content of a small file of the directory.
    fn file(&self, name: &str) -> Option<Vec<u8>> {
        let objects = {
            let state = self.collection.state();
            let node = state.node(state.directory(self.directory?)?.get(name.as_bytes())?)?;
            let objects: Option<Vec<_>> =
                node.file()?.objects.iter().map(|id| state.object(*id).cloned()).collect();
            objects?
        };
        self.bytes(&objects, quantization_config::BYTES_MAX).ok()
    }

    /// The bytes of objects, at most so many.
    fn bytes(&self, objects: &[Arc<Object>], most: u64) -> Result<Vec<u8>> {
        description_bytes(&self.collection, objects, most)
    }

    /// A tensor by name: of the container, or of another container of the directory.
    pub(super) fn find(&self, name: &str) -> Option<Known> {
        let state = self.collection.state();
        let below = |container: Option<&Arc<[u8]>>| {
            let path = TensorNames::new([name]).ok()?.path(name);
            let mut at = state.find_any(self.directory?, TENSORS_NAME.as_bytes())?;
            if let Some(container) = container {
                at = state.find_any(at, container)?;
            }
            for part in &path {
                at = state.find_any(at, part.as_bytes())?;
            }
            let tensor = state.node(at)?.file()?.tensor.as_ref()?;
            (*tensor.name == *name).then_some(at)
        };
        let own = self.own.get(name).copied();
        let own = own.or_else(|| self.container.as_ref().and_then(|container| below(Some(container))));
        let id = match (own, &self.checkpoint) {
            (Some(id), _) => id,
            (None, Some(checkpoint)) => *checkpoint.get(name)?,
            (None, None) => {
                let first = below(None)?;
                if self.is_of_same_model(&state, first) { first } else { self.in_shards(&state, name)? }
            }
        };
        let node = state.node(id)?.clone();
        let file = node.file()?;
        let tensor = file.tensor.clone()?;
        let source = stored(&state, &node).ok()?;
        Some(Known { objects: source.objects.clone(), tensor, node: node.clone(), source })
    }

    /// Whether a tensor of another container of the directory belongs to the same model. Other files may have tensors of
    /// the same names.
    fn is_of_same_model(&self, state: &State, tensor: EntryId) -> bool {
        let Some((directory, own)) = self.directory.zip(self.container.as_ref()) else { return true };
        let container = state.node(tensor).and_then(|node| node.file()?.container);
        let links = container.map(|container| state.links(container));
        let mut others = links.iter().flat_map(|links| links.iter()).filter(|(at, _)| *at == directory);
        others.any(|(_, other)| are_of_one_model(state, directory, own, other))
    }

    /// A tensor of another container of the model.
    fn in_shards(&self, state: &State, name: &str) -> Option<EntryId> {
        let (directory, own) = self.directory.zip(self.container.as_ref())?;
        let is_own = |other: &[u8]| own.as_ref() == other || are_of_one_model(state, directory, own, other);
        let mut sharded = self.sharded.borrow_mut();
        let place = match sharded.iter().position(|known| is_own(&known.first)) {
            Some(place) => place,
            None => {
                let mut tensors_of_all = HashMap::new();
                let names = state.directory(directory)?.after(EntryId(0)).filter(|(_, name, _)| is_own(name));
                let files = names.filter_map(|(.., id)| state.node(id)?.file());
                for file in files.filter(|file| file.content == Content::Safetensors) {
                    for (name, id) in tensors(state, file) {
                        tensors_of_all.entry(name).or_insert(id);
                    }
                }
                sharded.push(Shards { first: own.clone(), tensors: tensors_of_all });
                sharded.len() - 1
            }
        };
        let found = sharded.get(place)?.tensors.get(name).copied()?;
        // Two indexes may share a container.
        Some(found).filter(|id| self.is_of_same_model(state, *id))
    }

    /// The treatment of a tensor by the form.
    pub fn role(&self, name: &str) -> Role {
        let all = |name: &str| -> Option<(Dtype, Shape)> {
            self.find(name).map(|known| (known.tensor.dtype, known.tensor.shape))
        };
        let read = |name: &str| {
            let known = self.find(name)?;
            let seen = Seen::of(&known.node, &known.objects);
            self.deciding.borrow_mut().entry(known.node.entry.id).or_insert(seen);
            let stream = known.source.stream(&self.collection, Verify::First).ok()?;
            let mut bytes =
                vec![0; usize::try_from(stream.bytes()).ok().filter(|len| *len as u64 <= STATE_BYTES_MAX)?];
            stream.read_exact(0, &mut bytes).ok().map(|()| bytes)
        };
        Tensors { all: &all, read: &read, config: &|| self.config() }.role(name)
    }

    /// The tensors of a weight, by name.
    pub(super) fn parts(&self, weight: &Weight) -> Vec<(String, Known)> {
        let mut parts: Vec<(String, Known)> = Vec::new();
        for name in &weight.parts {
            if let Some(known) = self.find(name).filter(|_| !parts.iter().any(|(other, _)| other == name)) {
                parts.push((name.clone(), known));
            }
        }
        parts
    }

    /// A weight as elements of a type.
    pub fn shown(&self, weight: Weight, to: Dtype) -> Result<ShownWeight> {
        let parts = self.parts(&weight).into_iter();
        let sources = parts.map(|(name, known)| (name, known.source)).collect();
        Ok(ShownWeight { sources, weight: Arc::new(weight), to })
    }

    /// Whether all codes in the directory are decoded, and there are some.
    fn is_decoded(&self) -> bool {
        let containers: Vec<Arc<[u8]>> = {
            let state = self.collection.state();
            let Some(directory) = self.directory.and_then(|id| state.directory(id)) else { return false };
            let is_container = |id: EntryId| {
                let file = state.node(id).and_then(|node| node.file());
                file.is_some_and(|file| file.content == Content::Safetensors)
            };
            let names = directory.after(EntryId(0)).filter(|(.., id)| is_container(*id));
            names.map(|(_, name, _)| name.clone()).collect()
        };
        let mut has_weights = false;
        for model in containers.iter().filter_map(|name| self.of_container(name)) {
            let state = self.collection.state();
            let parts = model.own.iter().map(|(name, id)| (name, state.is_part_of_weight(*id)));
            // Each name, and whether it is a part of a weight of any layout.
            let parts: Vec<(&Box<str>, bool)> = parts.collect();
            drop(state);
            for (name, is_part) in parts {
                match model.role(name) {
                    Role::Stored => return false,
                    Role::Plain if is_part => return false,
                    Role::Weight(_) => has_weights = true,
                    Role::Plain | Role::Hidden => {}
                }
            }
        }
        has_weights
    }
}

/// The bytes of a file that describes a model. Fails with `Invalid` for more than `most`.
pub(super) fn description_bytes(
    collection: &Arc<Collection>,
    objects: &[Arc<Object>],
    most: u64,
) -> Result<Vec<u8>> {
    let bytes = bytes_of(collection, objects, most)?;
    bytes.ok_or_else(|| Error::invalid("a file that is too long to describe a model"))
}

/// The content of a file that describes a model, as the form shows it. `None` for a file that is shown as it is.
pub(super) fn description(
    collection: &Arc<Collection>,
    node: &Node,
    objects: &[Arc<Object>],
    to: Dtype,
) -> Result<Option<Vec<u8>>> {
    let (directory, name) = {
        let state = collection.state();
        let Some((directory, name)) = state.links(node.entry.id).first() else { return Ok(None) };
        (*directory, name.clone())
    };
    let is_config = *name == *CONFIG_NAME.as_bytes();
    let is_index = shard_index::is_name(&name) && name.windows(12).any(|part| part == b".safetensors");
    let bytes: u64 = objects.iter().map(|object| object.bytes()).sum();
    if !(is_config || is_index) || bytes > shard_index::BYTES_MAX {
        return Ok(None);
    }
    let model = Model::in_directory(collection, directory);
    let json = model.bytes(objects, shard_index::BYTES_MAX)?;
    if is_index {
        return Ok(index(&model, &json, to));
    }
    if !quantization_config::is_quantized(&json) || !model.is_decoded() {
        return Ok(None);
    }
    quantization_config::without(&json, to)
}

/// The index of the shards as the form shows them. `None` if it lists what it did.
fn index(directory: &Model, json: &[u8], to: Dtype) -> Option<Vec<u8>> {
    let files = shard_index::parse(json, &mut Budget::default()).ok()?;
    // Other models in the directory may have tensors of the same names.
    let models: HashMap<&str, Model> = files
        .keys()
        .filter_map(|file| Some((file.as_str(), directory.of_container(file.as_bytes())?)))
        .collect();
    let of_tensors = files.iter().filter_map(|(file, tensors)| {
        let model = models.get(file.as_str())?;
        Some(tensors.iter().map(move |tensor| (tensor.as_str(), model)))
    });
    let of_tensors: HashMap<&str, &Model> = of_tensors.flatten().collect();
    let mut bytes = 0_u64;
    let mut is_other = false;
    let rename = |name: &str| -> Option<String> {
        let model = of_tensors.get(name).copied().unwrap_or(directory);
        let known = model.find(name);
        let of = |dtype: Dtype, shape: &Shape| dtype.bytes_of(shape.elements()).unwrap_or_default();
        match model.role(name) {
            Role::Hidden => {
                is_other = true;
                None
            }
            Role::Weight(weight) => {
                is_other = true;
                bytes = bytes.saturating_add(of(to, &weight.shape));
                Some(weight.name)
            }
            role => {
                if let Some(Known { tensor, .. }) = known {
                    let dtype =
                        if role == Role::Plain && is_castable(tensor.dtype) { to } else { tensor.dtype };
                    bytes = bytes.saturating_add(of(dtype, &tensor.shape));
                }
                Some(name.to_owned())
            }
        }
    };
    let shown = shard_index::renamed(json, rename)?;
    is_other.then(|| shown.with_total(bytes))
}

/// Which tensors of a file a cast shows as they are stored, because their codes are not decoded.
pub fn why_stored(collection: &Arc<Collection>, node: &Node) -> Option<String> {
    let names: Vec<(Box<str>, bool)> = {
        let state = collection.state();
        let file = node.file()?;
        match (&file.tensor, file.content) {
            (Some(_), _) => named(&state, node).into_iter().collect(),
            (None, Content::Safetensors) => {
                state.parts(file).filter_map(|part| named(&state, part)).collect()
            }
            _ => return None,
        }
    };
    if node.file()?.tensor.is_some() && !is_of_safetensors(collection, node) {
        return None;
    }
    let model = Model::of(collection, node);
    let is_stored = |(name, is_part): &&(Box<str>, bool)| match model.role(name) {
        Role::Stored => true,
        Role::Plain => *is_part,
        Role::Weight(_) | Role::Hidden => false,
    };
    let mut stored = names.iter().filter(is_stored).map(|(name, _)| name);
    let first = stored.next()?;
    let more = match stored.count() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    Some(format!(
        "{first}{more}: codes, or scales of codes, of a layout that is not decoded, or without their scales; this form shows them as they are stored"
    ))
}

/// The name of a tensor in a directory of a form that casts, where its name is `name`. `None` for one that the form hides.
pub(super) fn name_in_cast(collection: &Arc<Collection>, node: &Node, name: &[u8]) -> Option<Vec<u8>> {
    let file = node.file().filter(|file| file.container.is_some());
    let tensor = file.and_then(|file| file.tensor.as_ref());
    let Some(tensor) = tensor.filter(|_| is_of_safetensors(collection, node)) else {
        return Some(name.to_vec());
    };
    match Model::of(collection, node).role(&tensor.name) {
        Role::Hidden => None,
        Role::Weight(weight) if *weight.name != *tensor.name => {
            Some(TensorNames::new([&*weight.name]).ok()?.path(&weight.name).pop()?.into_bytes())
        }
        _ => Some(name.to_vec()),
    }
}

/// A tensor as a form that casts to a type shows it. `None` for one that the form hides.
pub(super) fn tensor_in_cast(
    collection: &Arc<Collection>,
    node: &Node,
    tensor: &TensorEntry,
    to: Dtype,
) -> Option<TensorEntry> {
    let is_cast = is_castable(tensor.dtype) && !collection.state().is_part_of_weight(node.entry.id);
    let plain = TensorEntry { dtype: if is_cast { to } else { tensor.dtype }, ..tensor.clone() };
    if !is_of_safetensors(collection, node) {
        return Some(plain);
    }
    match Model::of(collection, node).role(&tensor.name) {
        Role::Hidden => None,
        Role::Stored => Some(tensor.clone()),
        Role::Plain => Some(plain),
        Role::Weight(weight) => {
            Some(TensorEntry { name: weight.name.into(), dtype: to, shape: weight.shape, ..plain })
        }
    }
}

/// The names that the codes of a weight may have which a form that casts shows under `name`.
pub fn names_of_codes(name: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let of = |(codes, shown): (&str, &str)| {
        name.strip_suffix(shown.as_bytes()).map(|stem| [stem, codes.as_bytes()].concat())
    };
    RENAMED.into_iter().filter_map(of)
}

/// Whether a node is a tensor of a safetensors file.
pub(super) fn is_of_safetensors(collection: &Collection, node: &Node) -> bool {
    let state = collection.state();
    let container = node.file().and_then(|file| file.container).and_then(|id| state.node(id));
    container.and_then(|container| container.file()).is_some_and(|file| file.content == Content::Safetensors)
}

/// The objects, beside its own, that the bytes of a file follow from in a form that casts: of weights, and of the files that
/// say how these are quantized. None for a model without codes.
pub fn objects_beside(collection: &Arc<Collection>, node: &Node) -> Vec<Arc<Object>> {
    let names: Vec<Box<str>> = {
        let state = collection.state();
        let Some(file) = node.file() else { return Vec::new() };
        let is_container = file.content == Content::Safetensors;
        let tensor = file.tensor.as_ref().filter(|_| file.container.is_some());
        let parts =
            state.parts(file).filter(|_| is_container).filter_map(|part| part.file()?.tensor.as_ref());
        let tensors = tensor.into_iter().chain(parts);
        let may_be_codes =
            |dtype| !matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::Bool);
        tensors.filter(|tensor| may_be_codes(tensor.dtype)).map(|tensor| tensor.name.clone()).collect()
    };
    if names.is_empty()
        || !(node.file().is_some_and(|file| file.container.is_none()) || is_of_safetensors(collection, node))
    {
        return Vec::new();
    }
    let model = Model::of(collection, node);
    let mut found = Vec::new();
    for name in names {
        if let Role::Weight(weight) = model.role(&name) {
            found.extend(
                weight.parts.iter().filter_map(|part| model.find(part)).flat_map(|known| known.objects),
            );
        }
    }
    let state = collection.state();
    let directory = model.directory.and_then(|directory| state.directory(directory));
    let files =
        CONFIG_NAMES.into_iter().filter_map(|name| state.node(directory?.get(name.as_bytes())?)?.file());
    found.extend(files.flat_map(|file| file.objects.iter()).filter_map(|id| state.object(*id).cloned()));
    found
}

/// Whether files of a directory follow from a file in forms that cast or split: it describes the model.
pub fn is_config(name: &[u8]) -> bool {
    CONFIG_NAMES.iter().chain([&PARAMS_NAME]).any(|config| config.as_bytes() == name)
}
