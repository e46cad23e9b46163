//! Quota for an import, reserved before anything is stored.

use crate::codec;
use crate::format::log::catalog::NodeType;
use crate::ingest::bytes::options::Options;
use crate::ingest::find::target::Target;
use crate::ingest::recognize::parts::{Part, PartTensor, Recognized};
use crate::model::{Dtype, EntryId, Result, Tier};
use crate::store::Collection;
use crate::store::{ROOT, State};
use crate::store::{Reserved, Use};

/// Reserves the quota that a file needs beyond that of the file it replaces. Fails with `Quota` if that
/// exceeds a limit. Blocks that prove not encodable are stored exactly, and may exceed the reservation.
pub(in crate::ingest) fn reserve(
    collection: &Collection,
    target: &Target,
    recognized: &Recognized,
    tier_of: &dyn Fn(&PartTensor) -> Option<Tier>,
    options: &Options,
) -> Result<Reserved> {
    let stored = recognized.parts.iter().map(|part| payload_bytes(part, tier_of, options)).sum();
    let state = collection.state();
    let files = 1 + tensors(recognized);
    let whole = Use { logical: recognized.bytes, stored, files };
    let more = more_than_there(&state, target, whole);
    drop(state);
    collection.meter().reserve(more)
}

/// Reserves the quota that a file's tensors need beyond its current ones.
pub(in crate::ingest) fn reserve_tensors(
    collection: &Collection,
    node: EntryId,
    recognized: &Recognized,
) -> Result<Reserved> {
    let there = {
        let state = collection.state();
        state.node(node).and_then(|node| node.file()).map_or(0, |file| state.parts(file).count() as u64)
    };
    let files = tensors(recognized).saturating_sub(there);
    collection.meter().reserve(Use { files, ..Use::default() })
}

fn tensors(recognized: &Recognized) -> u64 {
    recognized.parts.iter().filter(|part| part.tensor.is_some()).count() as u64
}

/// The quota that a file needs beyond that of the replaced file, with the missing directories.
pub(in crate::ingest) fn more_than_there(state: &State, target: &Target, whole: Use) -> Use {
    let (directories, replaced) = found(state, target);
    let missing = target.directories.len().saturating_sub(directories.len()) as u64;
    let there = replaced.map_or(Use::default(), |node| use_of(state, node));
    whole.without(there).and(Use { files: missing, ..Use::default() })
}

/// The existing directories of a target, and the node that has its name.
pub(in crate::ingest) fn found(state: &State, target: &Target) -> (Vec<EntryId>, Option<EntryId>) {
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
            let own = || state.own_objects(node, file).filter_map(|id| state.object(id));
            let stored = own().map(|object| object.stored()).sum();
            // The bytes that other files have too stay.
            let logical = match state.has_shared_objects() {
                true => own().map(|object| object.logged_layout().bytes).sum(),
                false => found.bytes,
            };
            Use { logical, stored, files: 1 + state.parts(file).count() as u64 }
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
