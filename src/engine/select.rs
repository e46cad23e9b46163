//! Selects the tensors of a request.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::log::catalog::{Content, NodeType};
use crate::model::{Dtype, EntryId, Error, ErrorKind, MoveTo, Result, Shape};
use crate::store::Collection;
use crate::store::Object;
use crate::store::Settings;
use crate::store::{Node, State};

/// A tensor that a request applies to.
#[derive(Clone)]
pub struct Target {
    /// Its node.
    pub node: EntryId,
    /// Its path in the collection.
    pub path: String,
    /// Its own name, in its container.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Shape,
    /// Its objects, in the order of its bytes.
    pub objects: Vec<Arc<Object>>,
}

impl Target {
    /// Logical bytes.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes()).sum()
    }
}

/// The tensors of a node: itself, those in a container, or all below a directory, each once, in the
/// order of their paths. Fails with `Denied` where a file is not a tensor.
pub fn targets(collection: &Collection, node: EntryId) -> Result<Vec<Target>> {
    let state = collection.state();
    let found = state.node(node).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
    let mut nodes = Vec::new();
    match &found.entry.node_type {
        NodeType::File(file) if file.content.is_container() => nodes.extend(state.parts(file).cloned()),
        NodeType::File(file) if file.tensor.is_some() => nodes.push(found.clone()),
        NodeType::Directory => nodes = below(&state, node),
        NodeType::File(_) | NodeType::Symlink(_) => {
            let path = String::from_utf8_lossy(&state.path(node)).into_owned();
            let text = format!("{path} is not a tensor; setting its dtype and shape makes it one");
            return Err(Error::new(ErrorKind::Denied, text));
        }
    }
    let mut seen = HashSet::new();
    nodes.retain(|node| seen.insert(node.entry.id));
    let mut targets: Vec<Target> = nodes.iter().filter_map(|node| target(&state, node)).collect();
    targets.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(targets)
}

/// The tensor of a node, if it is one.
pub(super) fn target_of(state: &State, node: EntryId) -> Option<Target> {
    target(state, state.node(node)?)
}

fn target(state: &State, node: &Node) -> Option<Target> {
    let file = node.file()?;
    let tensor = file.tensor.as_ref()?;
    let path = String::from_utf8_lossy(&state.path(node.entry.id)).into_owned();
    let objects = file.objects.iter().map(|id| state.object(*id).cloned()).collect::<Option<Vec<_>>>()?;
    let name = state.tensor_name(node)?.into();
    Some(Target {
        node: node.entry.id,
        path,
        name,
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        objects,
    })
}

/// The tensors below a directory.
fn below(state: &State, directory: EntryId) -> Vec<Arc<Node>> {
    let mut found = Vec::new();
    let mut waiting = vec![directory];
    // A damaged catalog could contain a cycle of directories.
    let mut seen = HashSet::from([directory]);
    while let Some(directory) = waiting.pop() {
        let Some(names) = state.directory(directory) else { continue };
        for node in names.after(EntryId(0)).filter_map(|(_, _, node)| state.node(node)) {
            match &node.entry.node_type {
                NodeType::Directory if seen.insert(node.entry.id) => waiting.push(node.entry.id),
                NodeType::File(file) if file.content.is_container() => {
                    found.extend(state.parts(file).cloned());
                }
                NodeType::File(file) if file.content == Content::Tensor => {
                    found.push(node.clone());
                }
                _ => {}
            }
        }
    }
    found
}

/// The tensors of several that a move selects, see [`MoveTo::takes`].
pub(super) fn taken(targets: Vec<Target>, to: MoveTo, settings: &Settings) -> Vec<Target> {
    let takes = |target: &Target| to.takes(target.dtype, &target.shape, || settings.keeps(&target.name));
    targets.into_iter().filter(takes).collect()
}
