//! Selects the tensors of a request.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use crate::engine::settings::{Consent, allowed_loss};
use crate::format::log::catalog::{Content, NodeType};
use crate::model::{
    Aim, Cause, Dtype, EntryId, Error, ErrorKind, Kept, KeptBy, MoveTo, Refusal, Result, Shape, Tier,
    packs_blocks_of,
};
use crate::store::BlockLayout;
use crate::store::Collection;
use crate::store::Object;
use crate::store::Settings;
use crate::store::{Node, State, Walk};

/// A tensor that a request applies to.
#[derive(Clone)]
pub struct Target {
    pub node: EntryId,
    /// Its path in the collection.
    pub path: String,
    /// Its own name, in its container.
    pub name: String,
    pub dtype: Dtype,
    pub shape: Shape,
    /// Its objects, in the order of its bytes.
    pub objects: Vec<Arc<Object>>,
    /// Whether its elements are those of other tensors, or lie apart.
    pub is_view: bool,
    /// Whether its container has a checksum of it.
    pub is_checksummed: bool,
    /// Whether its container has codes.
    pub has_codes: bool,
    /// Whether the request itself allows loss of precision.
    pub consent: Consent,
    /// The blocks of each object that the request takes. `None` for all.
    pub part: Option<Vec<Range<u32>>>,
}

impl Target {
    /// Whether loss of precision down to a tier is allowed, by the request or by the setting `lossy`.
    pub(super) fn allows(&self, state: &State, tier: Tier) -> bool {
        self.consent == Consent::Given || allowed_loss(state, self.node).allows(tier)
    }

    /// Whether its blocks are long enough to be packed.
    pub(super) fn has_blocks_to_pack(&self) -> bool {
        self.objects.iter().all(|object| packs_blocks_of(object.entry.block_bytes))
    }

    /// Why a move of many tensors leaves it unchanged, if it does.
    pub(super) fn kept_by(&self, to: MoveTo, settings: &Settings) -> Option<KeptBy> {
        let by = to.kept_by(self.dtype, &self.shape, || settings.keeps(&self.name, self.has_codes));
        let by = if self.is_view && !to.aim.tier().is_exact() { Some(KeptBy::View) } else { by };
        by.or_else(|| (self.is_checksummed && !to.aim.tier().is_exact()).then_some(KeptBy::Checksummed))
    }

    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes()).sum()
    }

    /// The blocks of its object of this number that the request takes.
    pub(super) fn blocks_of(&self, number: usize, layout: BlockLayout) -> Range<u32> {
        let all = 0..layout.blocks();
        match &self.part {
            None => all,
            Some(part) => {
                let taken = part.get(number).cloned().unwrap_or_default();
                taken.start.min(all.end)..taken.end.min(all.end)
            }
        }
    }

    /// The bytes that the request takes.
    pub(super) fn bytes_taken(&self) -> u64 {
        let numbered = self.objects.iter().enumerate();
        let taken = numbered.map(|(number, object)| {
            let layout = object.layout();
            layout.bytes_of(&self.blocks_of(number, layout))
        });
        taken.sum()
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
            let below = String::from_utf8_lossy(&state.path(node)).into_owned();
            let path = format!("{}/{below}", collection.path());
            return Err(Error::refused(vec![Refusal { path, cause: Cause::NotTensor }]));
        }
    }
    let mut seen = HashSet::new();
    nodes.retain(|node| seen.insert(node.entry.id));
    let mut targets: Vec<Target> = nodes.iter().filter_map(|node| target(&state, node)).collect();
    targets.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(targets)
}

/// Whether a node is a tensor, rather than a file or directory with several.
pub(super) fn is_tensor(collection: &Collection, node: EntryId) -> bool {
    let state = collection.state();
    state.node(node).and_then(|node| node.file()).is_some_and(|file| file.tensor.is_some())
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
    let container = file.container.and_then(|container| state.node(container)?.file());
    let is_checksummed = container.is_some_and(|container| container.content.has_checksums());
    let has_codes = file.container.is_some_and(|container| state.has_codes(container));
    Some(Target {
        node: node.entry.id,
        path,
        name,
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        objects,
        is_view: file.view.is_some(),
        is_checksummed,
        has_codes,
        consent: Consent::AsSet,
        part: None,
    })
}

/// The tensors below a directory.
fn below(state: &State, directory: EntryId) -> Vec<Arc<Node>> {
    let mut found = Vec::new();
    state.walk(directory, &mut |visited| {
        match &visited.node.entry.node_type {
            NodeType::File(file) if file.content.is_container() => found.extend(state.parts(file).cloned()),
            NodeType::File(file) if file.content == Content::Tensor => found.push(visited.node.clone()),
            _ => {}
        }
        Walk::Enter
    });
    found
}

/// The tensors of several that a move selects, see [`MoveTo::takes`]. Counts the others in `kept`.
pub(super) fn taken(targets: Vec<Target>, to: MoveTo, settings: &Settings, kept: &mut Kept) -> Vec<Target> {
    let mut takes = |target: &Target| {
        let by = target.kept_by(to, settings);
        let is_short = || to.aim == Aim::Pack && !target.has_blocks_to_pack();
        let by = by.or_else(|| is_short().then_some(KeptBy::NotPacked));
        by.inspect(|by| kept.count(*by)).is_none()
    };
    targets.into_iter().filter(|target| takes(target)).collect()
}
