//! The directory of a model, and its files.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::hub::{CONFIG_NAME, FILES, MODULES_NAME};
use crate::format::files::{gguf, shard_index};
use crate::format::log::catalog::Content;
use crate::model::{Dtype, EntryId, Error, Result, Shape, quoted_name};
use crate::store::{Collection, Node, Object, ROOT, State};
use crate::vfs::form::pieces::bytes_of;
use crate::vfs::form::weights::{self, NamedContainer, Seen};

/// The name of the file that shows a model.
const NAME: &str = "model.gguf";
/// The index of the containers of a model.
const INDEX_NAME: &str = "model.safetensors.index.json";
/// The most names that an anchor may have. The search for one skips nodes with more names.
const NAMES_MAX: usize = 64;
/// The most containers of a model.
const CONTAINERS_MAX: usize = 4096;
/// The most bytes that the headers of the containers of a model have together.
const HEADERS_BYTES_MAX: u64 = gguf::HEADER_BYTES_MAX;

/// The name of the file that shows a model, in a directory of the form.
pub fn name() -> Vec<u8> {
    NAME.as_bytes().to_vec()
}

/// Whether the containers of a model have such names.
fn is_container_name(name: &[u8]) -> bool {
    name.starts_with(b"model") && name.ends_with(b".safetensors")
}

/// The file under a name in a directory, unless it is a tensor.
fn file<'a>(state: &'a State, directory: EntryId, name: &[u8]) -> Option<&'a Arc<Node>> {
    let node = state.node(state.directory(directory)?.get(name)?)?;
    node.file().is_some_and(|file| file.tensor.is_none()).then_some(node)
}

/// The containers of a model in a directory, in the order of its entries.
fn containers(state: &State, directory: EntryId) -> impl Iterator<Item = (&[u8], &Arc<Node>)> {
    let entries = state.directory(directory).into_iter().flat_map(|names| names.after(EntryId(0)));
    let named = entries.filter(|(_, name, _)| is_container_name(name));
    let nodes = named.filter_map(|(_, name, id)| Some((&**name, state.node(id)?)));
    nodes.filter(|(_, node)| node.file().is_some_and(|file| file.content == Content::Safetensors))
}

/// The directories that may hold a model: they have a configuration and a container. Each is looked at once.
struct Directories<'a> {
    state: &'a State,
    known: HashMap<EntryId, bool>,
}

impl<'a> Directories<'a> {
    fn of(state: &'a State) -> Directories<'a> {
        Directories { state, known: HashMap::new() }
    }

    fn may_be_model(&mut self, directory: EntryId) -> bool {
        *self.known.entry(directory).or_insert_with(|| {
            file(self.state, directory, CONFIG_NAME.as_bytes()).is_some()
                && containers(self.state, directory).next().is_some()
        })
    }

    /// The only directory of a model in which a node has a name. `None` if there are several, or none.
    fn only_of(&mut self, node: EntryId) -> Option<EntryId> {
        let state = self.state;
        let links = state.links(node);
        if links.len() > NAMES_MAX {
            return None;
        }
        let mut found = links.iter().map(|(directory, _)| *directory).filter(|at| self.may_be_model(*at));
        found.next().filter(|_| found.next().is_none())
    }
}

/// The anchor of the model in a directory: the first of its files that has a name in no other model's directory. Takes time
/// in proportion to the names in the directory, and in the other directories of its files, 64 of each.
fn anchor(state: &State, directory: EntryId) -> Option<Arc<Node>> {
    let mut directories = Directories::of(state);
    if !directories.may_be_model(directory) {
        return None;
    }
    let mut is_own = |node: &&Arc<Node>| directories.only_of(node.entry.id) == Some(directory);
    let config = file(state, directory, CONFIG_NAME.as_bytes()).filter(&mut is_own);
    let anchor = config.or_else(|| {
        let first =
            containers(state, directory).filter(|(_, node)| is_own(node)).min_by_key(|(name, _)| *name);
        first.map(|(_, node)| node)
    });
    let mut others = FILES.iter().filter_map(|(name, _)| file(state, directory, name.as_bytes()));
    anchor.or_else(|| others.find(&mut is_own)).cloned()
}

/// The directory of the model whose anchor a node is.
pub(super) fn directory_of(state: &State, node: EntryId) -> Option<EntryId> {
    Directories::of(state).only_of(node)
}

/// The anchor of the model that a directory of the form shows under a name.
pub fn find(state: &State, directory: EntryId, name: &[u8]) -> Option<Arc<Node>> {
    if name == NAME.as_bytes() { anchor(state, directory) } else { None }
}

/// The anchors of the models that files belong to: those of their directories, and of those above these, since the
/// configuration of a pooling lies in a directory below.
pub fn anchors_of(state: &State, nodes: &BTreeSet<EntryId>) -> Vec<EntryId> {
    let container = |node: &EntryId| state.node(*node).and_then(|node| node.file()?.container);
    let files: BTreeSet<EntryId> = nodes.iter().map(|node| container(node).unwrap_or(*node)).collect();
    let links = files.iter().flat_map(|file| state.links(*file).iter().take(NAMES_MAX));
    let own: BTreeSet<EntryId> = links.map(|(directory, _)| *directory).collect();
    let above: BTreeSet<EntryId> = own.iter().filter_map(|directory| state.above(*directory)).collect();
    own.union(&above).filter_map(|at| Some(anchor(state, *at)?.entry.id)).collect()
}

/// A tensor of a container.
pub(super) struct Member {
    pub(super) node: EntryId,
    pub(super) name: Box<str>,
    pub(super) dtype: Dtype,
    pub(super) shape: Shape,
    pub(super) is_part_of_weight: bool,
}

/// The files of a model now.
pub(super) struct Inputs {
    /// The name of its directory.
    pub(super) name: String,
    /// The small files by name, with their objects and how often these have changed.
    pub(super) files: Vec<(&'static str, Small)>,
    /// The configuration of its pooling.
    pub(super) pooling: Option<Small>,
    /// The directory of this configuration.
    pooling_directory: Option<Arc<Node>>,
    pub(super) index: Option<Small>,
    /// The files, beside its configuration, that say how weights are quantized.
    quantization: Vec<Small>,
    /// The small tensors that decided about roles when they were last known.
    deciding: Vec<Small>,
    /// Its containers by name, at most one more than [`CONTAINERS_MAX`].
    pub(super) containers: BTreeMap<Box<[u8]>, Arc<Node>>,
}

/// The parts of a model that its files name.
#[derive(Clone, Default)]
pub(super) struct NamedParts {
    /// The directory of its pooling.
    pub(super) pooling: Option<String>,
    /// The small tensors that decide about roles.
    pub(super) deciding: Vec<EntryId>,
}

/// A small file.
#[derive(Clone)]
pub(super) struct Small {
    pub(super) node: Arc<Node>,
    pub(super) objects: Vec<Arc<Object>>,
}

impl Small {
    fn of(state: &State, node: &Arc<Node>) -> Option<Small> {
        let objects = node.file()?.objects.iter().map(|id| state.object(*id).cloned());
        Some(Small { node: node.clone(), objects: objects.collect::<Option<_>>()? })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes()).sum()
    }

    /// Its bytes. `None` if it has more than `most`.
    pub(super) fn read(&self, collection: &Arc<Collection>, most: u64) -> Result<Option<Vec<u8>>> {
        bytes_of(collection, &self.objects, most)
    }

    fn seen(&self) -> Seen {
        Seen::of(&self.node, &self.objects)
    }
}

impl Inputs {
    /// The files of the model in a directory.
    pub(super) fn gather(collection: &Collection, directory: EntryId, parts: &NamedParts) -> Inputs {
        let state = collection.state();
        let small = |directory: EntryId, name: &str| {
            file(&state, directory, name.as_bytes()).and_then(|node| Small::of(&state, node))
        };
        let name = match state.links(directory).first() {
            Some((_, name)) if directory != ROOT => String::from_utf8_lossy(name).into_owned(),
            _ => collection.name().to_owned(),
        };
        let below = parts.pooling.as_deref();
        let below = below.and_then(|name| state.directory(directory)?.get(name.as_bytes()));
        let pooling = below.and_then(|below| small(below, CONFIG_NAME));
        let pooling_directory =
            below.filter(|_| pooling.is_some()).and_then(|below| state.node(below).cloned());
        let quantization = weights::CONFIG_NAMES.into_iter().filter(|name| *name != CONFIG_NAME);
        let deciding = parts.deciding.iter().filter_map(|id| Small::of(&state, state.node(*id)?));
        let containers = containers(&state, directory).take(CONTAINERS_MAX + 1);
        let files = FILES.iter().filter_map(|(name, _)| Some((*name, small(directory, name)?)));
        Inputs {
            name,
            files: files.collect(),
            pooling,
            pooling_directory,
            index: small(directory, INDEX_NAME),
            quantization: quantization.filter_map(|name| small(directory, name)).collect(),
            deciding: deciding.collect(),
            containers: containers.map(|(name, node)| (name.into(), node.clone())).collect(),
        }
    }

    fn small_files(&self) -> impl Iterator<Item = &Small> {
        let files = self.files.iter().map(|(_, small)| small);
        files.chain(&self.pooling).chain(&self.index).chain(&self.quantization)
    }

    /// All files.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.small_files().map(|small| &small.node).chain(self.containers.values())
    }

    /// All files, and the directory of the pooling, as they are now.
    pub(super) fn seen(&self) -> Vec<Seen> {
        let others = self.containers.values().chain(&self.pooling_directory);
        self.small_files().map(Small::seen).chain(others.map(|node| Seen::of(node, &[]))).collect()
    }

    /// The small tensors that decided about roles, as they are now.
    pub(super) fn deciding(&self) -> Vec<Seen> {
        self.deciding.iter().map(Small::seen).collect()
    }

    /// The objects of the small files.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.small_files().flat_map(|small| &small.objects)
    }

    /// The content of a file of [`FILES`]. `None` if it is missing or too long.
    pub(super) fn file(&self, collection: &Arc<Collection>, name: &str) -> Result<Option<Vec<u8>>> {
        let Some((_, small)) = self.files.iter().find(|(known, _)| *known == name) else { return Ok(None) };
        let most = FILES.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most);
        small.read(collection, most)
    }

    /// The bytes of the headers of its containers.
    ///
    /// # Errors
    /// `Unsupported` for more containers, or more bytes, than are looked at.
    pub(super) fn header_bytes(&self, collection: &Collection) -> Result<u64> {
        if self.containers.len() > CONTAINERS_MAX {
            let text = format!("the directory has more than {CONTAINERS_MAX} model*.safetensors");
            return Err(Error::unsupported(text));
        }
        let state = collection.state();
        let headers = self.containers.values().filter_map(|node| node.file()?.objects.first().copied());
        let bytes = headers.filter_map(|id| state.object(id)).map(|object| object.bytes()).sum();
        if bytes > HEADERS_BYTES_MAX {
            let text = format!("the headers of its containers have more than {HEADERS_BYTES_MAX} bytes");
            return Err(Error::unsupported(text));
        }
        Ok(bytes)
    }

    /// The bytes of the small files that are read.
    pub(super) fn small_bytes(&self) -> u64 {
        let most = FILES.iter().map(|(_, most)| *most).max().unwrap_or_default();
        self.small_files().map(Small::bytes).filter(|bytes| *bytes <= most).sum()
    }

    pub(super) fn modules(&self) -> Option<&Small> {
        self.files.iter().find(|(name, _)| *name == MODULES_NAME).map(|(_, small)| small)
    }

    /// The containers that the index names, or all.
    ///
    /// # Errors
    /// `Invalid` for an index that does not fit the containers.
    pub(super) fn indexed(&self, collection: &Arc<Collection>) -> Result<Vec<NamedContainer>> {
        let named = |name: &[u8], node: &Arc<Node>| NamedContainer { name: name.into(), node: node.clone() };
        let all = || self.containers.iter().map(|(name, node)| named(name, node));
        let Some(index) = &self.index else { return Ok(all().collect()) };
        let json = index.read(collection, shard_index::BYTES_MAX)?;
        let json = json.ok_or_else(|| Error::unsupported(format!("{INDEX_NAME} is too long")))?;
        let files = shard_index::parse(&json, &mut Budget::default())?;
        let mut found = Vec::with_capacity(files.len());
        for (file, tensors) in files {
            let missing = || Error::invalid(format!("{INDEX_NAME} names {file}, which is missing"));
            let container = self.containers.get(file.as_bytes()).ok_or_else(missing)?;
            let container = named(file.as_bytes(), container);
            let state = collection.state();
            let parts = container.node.file().into_iter().flat_map(|container| state.parts(container));
            let mut names: HashSet<&str> =
                parts.filter_map(|part| Some(&*part.file()?.tensor.as_ref()?.name)).collect();
            if let Some(missing) = tensors.iter().find(|tensor| !names.remove(tensor.as_str())) {
                let name = quoted_name(missing);
                return Err(Error::invalid(format!(
                    "{INDEX_NAME} names tensor {name:?}, which {file} lacks"
                )));
            }
            found.push(container);
        }
        Ok(found)
    }
}

/// The tensors of a container, in the order of names.
pub(super) fn members(collection: &Collection, container: &Node) -> Vec<Member> {
    let state = collection.state();
    let parts = container.file().into_iter().flat_map(|file| state.parts(file));
    let member = |part: &Arc<Node>| {
        let tensor = part.file()?.tensor.as_ref()?;
        Some(Member {
            node: part.entry.id,
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            is_part_of_weight: state.is_part_of_weight(part.entry.id),
        })
    };
    let mut members: Vec<Member> = parts.filter_map(member).collect();
    members.sort_by(|one, other| one.name.cmp(&other.name));
    members
}

/// Whether any of these containers has parts of quantized weights.
pub(super) fn have_codes(collection: &Collection, containers: &[NamedContainer]) -> bool {
    let state = collection.state();
    let mut parts =
        containers.iter().filter_map(|container| container.node.file()).flat_map(|file| state.parts(file));
    parts.any(|part| state.is_part_of_weight(part.entry.id))
}
