//! The directory of a model, and its files.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use crate::format::budget::Budget;
use crate::format::files::hub::{CONFIG_NAME, FILES, MODULES_NAME};
use crate::format::files::shard_index;
use crate::format::log::catalog::Content;
use crate::model::{Dtype, EntryId, Error, Result, Shape, quoted_name};
use crate::store::{Collection, Node, Object, OpenObject, ROOT, State, Verify};
use crate::stream::{Segment, Stream};

/// The name of the file that shows a model.
const NAME: &str = "model.gguf";
/// The index of the containers of a model.
const INDEX_NAME: &str = "model.safetensors.index.json";
/// The most names that an anchor may have. The search for one skips nodes with more names.
const NAMES_MAX: usize = 64;
/// The most containers of a model.
const CONTAINERS_MAX: usize = 4096;

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

/// The containers of a directory by name, those of a model only.
fn containers(state: &State, directory: EntryId) -> BTreeMap<Vec<u8>, Arc<Node>> {
    let Some(entries) = state.directory(directory) else { return BTreeMap::new() };
    let named = entries.after(EntryId(0)).filter(|(_, name, _)| is_container_name(name));
    let nodes = named.filter_map(|(_, name, id)| Some((name.to_vec(), state.node(id)?.clone())));
    nodes
        .filter(|(_, node)| node.file().is_some_and(|file| file.content == Content::Safetensors))
        .take(CONTAINERS_MAX)
        .collect()
}

/// Whether a directory may hold a model: it has a configuration and a container.
fn may_be_model(state: &State, directory: EntryId) -> bool {
    let Some(entries) = state.directory(directory) else { return false };
    let is_container = |name: &[u8], id: EntryId| {
        is_container_name(name)
            && state
                .node(id)
                .and_then(|node| node.file())
                .is_some_and(|file| file.content == Content::Safetensors)
    };
    file(state, directory, CONFIG_NAME.as_bytes()).is_some()
        && entries.after(EntryId(0)).any(|(_, name, id)| is_container(name, id))
}

/// The only directory of a model in which a node has a name. `None` if there are several, or none.
fn only_directory(state: &State, node: EntryId) -> Option<EntryId> {
    let links = state.links(node);
    if links.len() > NAMES_MAX {
        return None;
    }
    let mut found = links.iter().map(|(directory, _)| *directory).filter(|at| may_be_model(state, *at));
    found.next().filter(|_| found.next().is_none())
}

/// The anchor of the model in a directory: the first of its files that has a name in no other model's directory.
fn anchor(state: &State, directory: EntryId) -> Option<Arc<Node>> {
    let config = file(state, directory, CONFIG_NAME.as_bytes())?;
    let of_containers = containers(state, directory);
    if of_containers.is_empty() {
        return None;
    }
    let others = FILES.iter().filter_map(|(name, _)| file(state, directory, name.as_bytes()));
    let mut all = [config].into_iter().chain(of_containers.values()).chain(others);
    all.find(|node| only_directory(state, node.entry.id) == Some(directory)).cloned()
}

/// The directory of the model whose anchor a node is.
pub(super) fn directory_of(state: &State, node: EntryId) -> Option<EntryId> {
    only_directory(state, node)
}

/// Whether a node is the anchor of the model in a directory, under this name.
pub fn is_anchor(state: &State, directory: EntryId, name: &[u8], node: &Node) -> bool {
    let is_known = name == CONFIG_NAME.as_bytes()
        || is_container_name(name)
        || FILES.iter().any(|(known, _)| known.as_bytes() == name);
    if !is_known || node.file().is_none_or(|file| file.tensor.is_some()) {
        return false;
    }
    let anchor = anchor(state, directory).filter(|anchor| anchor.entry.id == node.entry.id);
    // An anchor that has two names in its directory is listed under the first.
    let first = anchor.and_then(|anchor| {
        state.links(anchor.entry.id).iter().find(|(at, _)| *at == directory).map(|(_, name)| name.clone())
    });
    first.is_some_and(|first| *first == *name)
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
    pub(super) index: Option<Small>,
    pub(super) containers: BTreeMap<Vec<u8>, Arc<Node>>,
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

    /// Its bytes. `None` if it has more than `most`.
    pub(super) fn read(&self, collection: &Arc<Collection>, most: u64) -> Result<Option<Vec<u8>>> {
        let open = |object| OpenObject::open(collection, object, Verify::First).map(Segment::Object);
        let stream = Stream::new(self.objects.iter().map(open).collect::<Result<_>>()?)?;
        if stream.bytes() > most {
            return Ok(None);
        }
        let mut bytes = vec![0; stream.bytes() as usize];
        stream.read_exact(0, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// Changes with its content.
    fn changes(&self) -> u64 {
        self.objects.iter().map(|object| u64::from(object.changes())).sum()
    }
}

impl Inputs {
    /// The files of the model in a directory, whose pooling is described in the directory of this name below.
    pub(super) fn gather(collection: &Collection, directory: EntryId, pooling: Option<&str>) -> Inputs {
        let state = collection.state();
        let small = |directory: EntryId, name: &str| {
            file(&state, directory, name.as_bytes()).and_then(|node| Small::of(&state, node))
        };
        let name = match state.links(directory).first() {
            Some((_, name)) if directory != ROOT => String::from_utf8_lossy(name).into_owned(),
            _ => collection.name().to_owned(),
        };
        let below = pooling.and_then(|name| state.directory(directory)?.get(name.as_bytes()));
        let files = FILES.iter().filter_map(|(name, _)| Some((*name, small(directory, name)?)));
        Inputs {
            name,
            files: files.collect(),
            pooling: below.and_then(|below| small(below, CONFIG_NAME)),
            index: small(directory, INDEX_NAME),
            containers: containers(&state, directory),
        }
    }

    /// All files.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        let small = self.files.iter().map(|(_, small)| small).chain(&self.pooling).chain(&self.index);
        small.map(|small| &small.node).chain(self.containers.values())
    }

    /// The objects of the small files.
    pub(super) fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        let small = self.files.iter().map(|(_, small)| small).chain(&self.pooling).chain(&self.index);
        small.flat_map(|small| &small.objects)
    }

    /// A number for each file that changes with it, beside the node itself.
    pub(super) fn changes(&self) -> u64 {
        let small = self.files.iter().map(|(_, small)| small).chain(&self.pooling).chain(&self.index);
        small.map(Small::changes).fold(0, u64::wrapping_add)
    }

    pub(super) fn modules(&self) -> Option<&Small> {
        self.files.iter().find(|(name, _)| *name == MODULES_NAME).map(|(_, small)| small)
    }

    /// The containers that the index names, or all.
    ///
    /// # Errors
    /// `Invalid` for an index that does not fit the containers.
    pub(super) fn indexed(&self, collection: &Arc<Collection>) -> Result<Vec<Arc<Node>>> {
        let Some(index) = &self.index else { return Ok(self.containers.values().cloned().collect()) };
        let json = index.read(collection, shard_index::BYTES_MAX)?;
        let json = json.ok_or_else(|| Error::unsupported(format!("{INDEX_NAME} is too long")))?;
        let files = shard_index::parse(&json, &mut Budget::default())?;
        let mut nodes = Vec::with_capacity(files.len());
        for (file, tensors) in files {
            let missing = || Error::invalid(format!("{INDEX_NAME} names {file}, which is missing"));
            let node = self.containers.get(file.as_bytes()).ok_or_else(missing)?;
            let state = collection.state();
            let parts = node.file().into_iter().flat_map(|container| state.parts(container));
            let mut names: HashSet<&str> =
                parts.filter_map(|part| Some(&*part.file()?.tensor.as_ref()?.name)).collect();
            if let Some(missing) = tensors.iter().find(|tensor| !names.remove(tensor.as_str())) {
                let name = quoted_name(missing);
                return Err(Error::invalid(format!(
                    "{INDEX_NAME} names tensor {name:?}, which {file} lacks"
                )));
            }
            nodes.push(node.clone());
        }
        Ok(nodes)
    }
}

/// The tensors of containers, in the order of names in each.
pub(super) fn members(collection: &Collection, containers: &[Arc<Node>]) -> Vec<Member> {
    let state = collection.state();
    let mut all = Vec::new();
    for container in containers {
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
        all.extend(members);
    }
    all
}
