//! The files of a form in a directory, and the nodes that they show.

use std::sync::Arc;

use crate::format::log::catalog::NodeType;
use crate::model::{Dtype, EntryId, NAME_BYTES_MAX, NameIn};
use crate::store::{IsTensor, Node, ROOT, State};
use crate::stream::is_castable;
use crate::vfs::form::batch::{DIMENSION_MAX, ROWS_MAX};
use crate::vfs::form::checkpoint;
use crate::vfs::form::experts;
use crate::vfs::form::gguf_model;
use crate::vfs::form::kind::{Form, INDEX_NUMBER, Shows};

/// The source of a file or directory in a form.
#[derive(Clone)]
pub enum Item {
    /// A directory, a symbolic link, or the file that shows a file.
    Node(Arc<Node>),
    /// The index file that accompanies the file that shows a file.
    Index(Arc<Node>),
    Whole,
}

impl Item {
    /// The node, if there is one.
    pub fn node(&self) -> Option<&Arc<Node>> {
        match self {
            Item::Node(node) | Item::Index(node) => Some(node),
            Item::Whole => None,
        }
    }
}

impl Item {
    /// The number of the item in a form, if the form has one.
    pub fn number_in(&self, form: Form) -> Option<u8> {
        if matches!(self, Item::Index(_)) { Some(INDEX_NUMBER) } else { form.number() }
    }
}

/// Looks up a name in a directory of a form. `directory` is the directory of the collection that it mirrors.
pub fn find(form: Form, state: &State, directory: EntryId, name: &[u8]) -> Option<Item> {
    if directory == ROOT && form.whole().is_some_and(|whole| whole.as_bytes() == name) {
        return Some(Item::Whole);
    }
    if form == Form::Safetensors
        && state.has_checkpoints()
        && let Some(found) = checkpoint::find(state, directory, name)
    {
        return state.node(found).cloned().map(Item::Node);
    }
    if matches!(form.shows(), Shows::Model(_)) {
        let below = || {
            let node = state.node(state.directory(directory)?.get(name)?)?;
            (node.entry.node_type == NodeType::Directory).then(|| node.clone())
        };
        return gguf_model::find(state, directory, name).or_else(below).map(Item::Node);
    }
    let node = |name: &[u8]| state.shown(state.find_any(directory, name)?);
    let past_hidden = |name: &[u8], of: IsTensor| {
        let hides = |entry: &Node| hides(form, state, entry, of);
        state.shown(state.find_hidden_by(directory, name, &hides)?)
    };
    // Directories keep their names. A file of the form takes precedence over a directory with its name.
    let of_file = |suffix: Option<&str>| {
        let stem = suffix.map_or(Some(name), |suffix| name.strip_suffix(suffix.as_bytes()))?;
        let found = past_hidden(stem, IsTensor(true))?;
        Some(found).filter(|node: &Arc<Node>| node.file().is_some() && is_shown(form, state, node))
    };
    let suffix = match form.shows() {
        Shows::Wrapped(suffix) => Some(suffix),
        _ => None,
    };
    let file = of_file(suffix).map(Item::Node);
    if form == Form::Safetensors
        && file.is_none()
        && state.has_checkpoints()
        && let Some(link) = node(name).filter(|node| matches!(node.entry.node_type, NodeType::Symlink(_)))
    {
        let shown = checkpoint::name_of(state, NameIn { directory, name }, &link);
        return shown.filter(|shown| shown == name).map(|_| Item::Node(link));
    }
    let index = || form.index_suffix().and_then(|suffix| of_file(Some(suffix))).map(Item::Index);
    let other = || {
        let found = past_hidden(name, IsTensor(false));
        found.filter(|node| node.file().is_none() && is_shown(form, state, node)).map(Item::Node)
    };
    file.or_else(index).or_else(other)
}

/// Whether an entry of a directory hides the tensor, or the directory of tensors, of its name in a form: the form shows it,
/// under the name that the other would have. Files that a form wraps have a suffix, which directories have not.
pub fn hides(form: Form, state: &State, entry: &Node, of: IsTensor) -> bool {
    let has_same_name = match form.shows() {
        Shows::Wrapped(_) => entry.file().is_some() == of.0,
        _ => true,
    };
    has_same_name && is_shown(form, state, entry)
}

/// At most so many names of hidden tensors are told.
const TOLD_MAX: usize = 10;

/// The tensors of a directory's containers that a form of tensors does not show in the directory, since other tensors have
/// their names there.
pub fn why_hidden(form: Form, state: &State, directory: &Node) -> Option<String> {
    let is_of_tensors = form == Form::Experts || matches!(form.shows(), Shows::Wrapped(_));
    if !is_of_tensors || directory.file().is_some() || !lists_tensors(form, state, directory.entry.id) {
        return None;
    }
    let hides = |entry: &Node, of: IsTensor| hides(form, state, entry, of);
    let mut hidden = state.hidden_beside(directory.entry.id, &hides, TOLD_MAX + 1);
    hidden.retain(|(.., id)| state.node(*id).is_some_and(|node| is_shown(form, state, node)));
    let more = if hidden.len() > TOLD_MAX { ", and more" } else { "" };
    hidden.truncate(TOLD_MAX);
    let names: Vec<_> = hidden.iter().map(|(_, name, _)| String::from_utf8_lossy(name)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "not shown here, since other tensors have their names, but below .tensors: {}{more}",
            names.join(", ")
        )
    })
}

/// Whether the tensors in the containers of a directory are listed there too, and not only below `.tensors`. A directory
/// with a checkpoint lists the files that loaders ask for, and programs open all files with the suffix of containers.
pub fn lists_tensors(form: Form, state: &State, directory: EntryId) -> bool {
    (form == Form::Experts || matches!(form.shows(), Shows::Wrapped(_)))
        && (form != Form::Safetensors || !checkpoint::is_in(state, directory))
}

/// The names in a form of a node whose name in a directory is `name`, each with its item. A form of models has only its
/// directories so.
pub fn names(
    form: Form,
    state: &State,
    NameIn { directory, name }: NameIn<'_>,
    node: &Arc<Node>,
) -> Vec<(Vec<u8>, Item)> {
    if matches!(form.shows(), Shows::Model(_)) {
        let shown =
            (node.entry.node_type == NodeType::Directory).then(|| (name.to_vec(), Item::Node(node.clone())));
        return shown.into_iter().collect();
    }
    let is_tensor = node.file().is_none_or(|file| file.tensor.is_some());
    if form == Form::Safetensors && !is_tensor {
        let shown = checkpoint::name_of(state, NameIn { directory, name }, node);
        let shown = shown.filter(|name| name.len() <= NAME_BYTES_MAX);
        return shown.into_iter().map(|name| (name, Item::Node(node.clone()))).collect();
    }
    if form == Form::Safetensors
        && let NodeType::Symlink(_) = node.entry.node_type
    {
        let shown =
            state.has_checkpoints().then(|| checkpoint::name_of(state, NameIn { directory, name }, node));
        let shown = shown.flatten().filter(|name| name.len() <= NAME_BYTES_MAX);
        return shown.into_iter().map(|name| (name, Item::Node(node.clone()))).collect();
    }
    if !is_shown(form, state, node) {
        return Vec::new();
    }
    let suffixed = |suffix: &str| [name, suffix.as_bytes()].concat();
    let mut found = match form.shows() {
        Shows::Wrapped(suffix) if node.file().is_some() => vec![(suffixed(suffix), Item::Node(node.clone()))],
        _ => vec![(name.to_vec(), Item::Node(node.clone()))],
    };
    if let Some(suffix) = form.index_suffix().filter(|_| node.file().is_some()) {
        found.push((suffixed(suffix), Item::Index(node.clone())));
    }
    let is_taken = |name: &[u8]| {
        let may_be = form == Form::Safetensors && node.file().is_some() && state.has_checkpoints();
        may_be && checkpoint::find(state, directory, name).is_some()
    };
    found.retain(|(name, _)| name.len() <= NAME_BYTES_MAX && !is_taken(name));
    found
}

/// The target of a symbolic link in a form.
pub fn link_target(form: Form, state: &State, node: &Node) -> Option<Vec<u8>> {
    let NodeType::Symlink(own) = &node.entry.node_type else { return None };
    let shown = (form == Form::Safetensors).then(|| checkpoint::link_target(state, node)).flatten();
    Some(shown.unwrap_or_else(|| own.clone()))
}

/// The type of a tensor's elements in a file of a format of its own: f32 for quantized types of ggml. `None` for
/// those that are not decoded.
pub(super) fn wrapped_dtype(dtype: Dtype) -> Option<Dtype> {
    match dtype.is_ggml() {
        true => is_castable(dtype).then_some(Dtype::F32),
        false => Some(dtype),
    }
}

/// Whether a form shows a node. Embedding batches have numbers, which codes and scales are not.
fn is_shown(form: Form, state: &State, node: &Node) -> bool {
    // Loaders would add an adapter beside the base again.
    if let Form::Merged(files) = form
        && files.has(state, node.entry.id)
    {
        return false;
    }
    let file = match &node.entry.node_type {
        NodeType::Directory => return form != Form::Sha256,
        NodeType::Symlink(_) => return shows_all(form),
        NodeType::File(file) => file,
    };
    let Some(tensor) = &file.tensor else { return shows_all(form) };
    match form {
        Form::Npy => tensor.dtype != Dtype::F4 && wrapped_dtype(tensor.dtype).is_some(),
        Form::Safetensors => wrapped_dtype(tensor.dtype).is_some(),
        Form::Cgeb => {
            let sizes = tensor.shape.dimensions();
            let is_row = |size: &u64| (1..=u64::from(DIMENSION_MAX)).contains(size);
            let are_few = sizes.first().is_some_and(|rows| *rows <= ROWS_MAX);
            let has_numbers = is_castable(tensor.dtype) && !state.is_part_of_weight(node.entry.id);
            has_numbers && sizes.len() == 2 && are_few && sizes.get(1).is_some_and(is_row)
        }
        Form::Sha256 | Form::Ranks | Form::Merges => false,
        Form::Experts | Form::Expert(_) => experts::count(tensor).is_some(),
        _ => true,
    }
}

/// Whether a form shows files that are not tensors, and symbolic links.
fn shows_all(form: Form) -> bool {
    matches!(form.shows(), Shows::Cast(_) | Shows::Moved(_) | Shows::Split(_) | Shows::Merged)
}
