//! Quota for an import, reserved before anything is stored.

use std::collections::HashMap;

use crate::codec;
use crate::format::log::catalog::NodeType;
use crate::ingest::recognize::{Part, PartTensor, Recognized};
use crate::ingest::{Options, Target};
use crate::model::{Dtype, EntryId, EscapedPath, Result, TensorId, TensorNames, Tier};
use crate::store::Collection;
use crate::store::{ROOT, State};
use crate::store::{Reserved, Use};

/// Reserves what a file needs beyond what it replaces. Fails with `Quota` where that is too much.
/// Blocks that prove not encodable are stored exactly, and may exceed the reservation.
pub(super) fn reserve(
    collection: &Collection,
    target: &Target,
    recognized: &Recognized,
    tier_of: &dyn Fn(&PartTensor) -> Option<Tier>,
    options: &Options,
) -> Result<Reserved> {
    let stored = recognized.parts.iter().map(|part| payload_bytes(part, tier_of, options)).sum();
    let paths = paths(collection, &target.directory_path(), recognized, |_| TensorId(0))?;
    let state = collection.state();
    let (directories, replaced) = found(&state, target);
    let parent = match directories.len() == target.directories.len() {
        true => Some(directories.last().copied().unwrap_or(ROOT)),
        false => None,
    };
    let files = 1 + tensors(&paths) + missing_directories(&state, parent, replaced, &paths);
    let whole = Use { logical: recognized.bytes, stored, files };
    let more = more_than_there(&state, target, whole);
    drop(state);
    collection.meter().reserve(more)
}

/// Reserves what the names of a file's tensors need beyond those of its current tensors.
pub(super) fn reserve_names(
    collection: &Collection,
    node: EntryId,
    recognized: &Recognized,
) -> Result<Reserved> {
    reserve_again(collection, node, recognized).map(|(_, held)| held)
}

/// The same, with the paths of the tensors next to the file; parts that are not tensors have empty
/// paths.
pub(super) fn reserve_again(
    collection: &Collection,
    node: EntryId,
    recognized: &Recognized,
) -> Result<(Vec<EscapedPath>, Reserved)> {
    let path = String::from_utf8_lossy(&collection.state().path(node)).into_owned();
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let lineage = |place: usize| {
        let state = collection.state();
        let object = state.node(node).and_then(|node| node.file()?.objects.get(place).copied());
        let part = object.and_then(|object| state.node(state.part_of(object)?));
        let tensor = part.and_then(|part| part.file()?.tensor.as_ref());
        tensor.map_or(TensorId(0), |tensor| tensor.parent)
    };
    let paths = paths(collection, directory, recognized, lineage)?;
    let state = collection.state();
    let parent = state.links(node).first().map(|(parent, _)| *parent);
    let there =
        state.node(node).and_then(|node| node.file()).map_or(0, |file| state.parts(file).count() as u64);
    let files = tensors(&paths) + missing_directories(&state, parent, Some(node), &paths);
    drop(state);
    let more = Use { files: files.saturating_sub(there), ..Use::default() };
    Ok((paths, collection.meter().reserve(more)?))
}

/// The paths of the tensors of a file in `directory`; empty for each part that is not a tensor.
/// `lineage` is the parent of the tensor of a part.
fn paths(
    collection: &Collection,
    directory: &str,
    recognized: &Recognized,
    lineage: impl Fn(usize) -> TensorId,
) -> Result<Vec<EscapedPath>> {
    let tensors = recognized.parts.iter().map(|part| part.tensor.as_ref());
    let names = TensorNames::new(tensors.clone().flatten().map(|tensor| tensor.name.as_str()))?;
    let id = TensorId::below(collection.tenant(), collection.name(), directory);
    let path = |(place, tensor): (usize, Option<&PartTensor>)| {
        tensor.map_or(Vec::new(), |PartTensor { name, .. }| names.path(name, id(name, lineage(place))))
    };
    Ok(tensors.enumerate().map(path).collect())
}

fn tensors(paths: &[EscapedPath]) -> u64 {
    paths.iter().filter(|path| !path.is_empty()).count() as u64
}

/// How many directories the names of tensors create below `parent`, which may be missing itself. The
/// tensors of `container` are removed first.
fn missing_directories(
    state: &State,
    parent: Option<EntryId>,
    container: Option<EntryId>,
    paths: &[EscapedPath],
) -> u64 {
    /// An existing directory, or the number of a missing one.
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    enum At {
        There(EntryId),
        Missing(usize),
    }
    let goes = |id: EntryId| {
        let of = state.node(id).and_then(|node| node.file()?.container);
        of.is_some() && of == container
    };
    let mut missing: HashMap<(At, &str), usize> = HashMap::new();
    for (_, above) in paths.iter().filter_map(|path| path.split_last()) {
        let mut at = parent.map_or(At::Missing(0), At::There);
        for name in above {
            let there = match at {
                At::There(directory) => {
                    state.directory(directory).and_then(|found| found.get(name.as_bytes()))
                }
                At::Missing(_) => None,
            };
            at = match there.filter(|id| !goes(*id)) {
                Some(id) => At::There(id),
                None => {
                    let next = missing.len() + 1;
                    At::Missing(*missing.entry((at, name)).or_insert(next))
                }
            };
        }
    }
    missing.len() as u64
}

/// The quota that a file needs beyond the one that it replaces, with the missing directories.
pub(super) fn more_than_there(state: &State, target: &Target, whole: Use) -> Use {
    let (directories, replaced) = found(state, target);
    let missing = target.directories.len().saturating_sub(directories.len()) as u64;
    let there = replaced.map_or(Use::default(), |node| use_of(state, node));
    whole.without(there).and(Use { files: missing, ..Use::default() })
}

/// The existing directories of a target, and the node that has its name.
pub(super) fn found(state: &State, target: &Target) -> (Vec<EntryId>, Option<EntryId>) {
    let mut found = Vec::new();
    let mut at = ROOT;
    for name in &target.directories {
        match state.directory(at).and_then(|directory| directory.get(name)) {
            Some(next) => at = next,
            None => return (found, None),
        }
        found.push(at);
    }
    (found, state.directory(at).and_then(|directory| directory.get(&target.name)))
}

/// The quota that is released when another file takes the name of a node.
fn use_of(state: &State, node: EntryId) -> Use {
    let Some(found) = state.node(node) else { return Use::default() };
    if state.links(node).len() > 1 {
        // It keeps its other names.
        return Use::FILE;
    }
    match &found.entry.node_type {
        NodeType::File(file) => {
            let stored = file.objects.iter().filter_map(|id| Some(state.object(*id)?.stored())).sum();
            Use { logical: found.bytes, stored, files: 1 + state.parts(file).count() as u64 }
        }
        NodeType::Symlink(_) => Use::FILE,
        NodeType::Directory => Use::default(),
    }
}

fn payload_bytes(part: &Part, tier_of: &dyn Fn(&PartTensor) -> Option<Tier>, options: &Options) -> u64 {
    let bytes = part.end - part.begin;
    let dtype = part.tensor.as_ref().map_or(Dtype::U8, |tensor| tensor.dtype);
    let Some(tier) = part.tensor.as_ref().and_then(tier_of) else { return bytes };
    let block_bytes = u64::from(options.blocking.block_bytes(dtype, bytes)).max(1);
    let payload = |bytes: u64| {
        let elements = usize::try_from(bytes / dtype.bytes()).unwrap_or(usize::MAX);
        codec::payload_len(tier, elements).map_or(bytes, |len| len as u64)
    };
    let rest = bytes % block_bytes;
    let last = if rest > 0 { payload(rest) } else { 0 };
    (bytes / block_bytes).saturating_mul(payload(block_bytes)).saturating_add(last)
}
