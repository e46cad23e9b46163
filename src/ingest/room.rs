//! What a file will take of a quota, before anything of it is stored.

use crate::codec;
use crate::format::catalog::What;
use crate::ingest::recognize::{Part, PartTensor, Recognized};
use crate::ingest::{Options, Target};
use crate::model::{Dtype, EntryId, Result, Tier};
use crate::store::Collection;
use crate::store::quota::{Reserved, Use};
use crate::store::state::{ROOT, State};

/// Sets aside what a file will take more than what has its name takes. `Quota` where that is too
/// much. Blocks that turn out not to be encodable are stored exactly, and are more than is set
/// aside.
pub(super) fn reserve(
    collection: &Collection,
    target: &Target,
    recognized: &Recognized,
    tier_of: &dyn Fn(&PartTensor) -> Option<Tier>,
    options: &Options,
) -> Result<Reserved> {
    let stored = recognized.parts.iter().map(|part| payload_bytes(part, tier_of, options)).sum();
    let whole = Use { logical: recognized.bytes, stored, files: 1 };
    let more = more_than_there(&collection.state(), target, whole);
    collection.meter().reserve(more)
}

/// What is more in a file than in what has its name, with the directories that are missing.
pub(super) fn more_than_there(state: &State, target: &Target, whole: Use) -> Use {
    let (directories, replaced) = found(state, target);
    let missing = target.directories.len().saturating_sub(directories.len()) as u64;
    let there = replaced.map_or(Use::default(), |node| use_of(state, node));
    whole.without(there).and(Use { files: missing, ..Use::default() })
}

/// The directories of a place that are there, and what has its name.
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

/// What goes when a name is taken by another file.
fn use_of(state: &State, node: EntryId) -> Use {
    let Some(found) = state.node(node).filter(|_| state.links(node).len() == 1) else {
        return Use::default();
    };
    match &found.entry.what {
        What::File(file) => {
            let stored = file.objects.iter().filter_map(|id| Some(state.object(*id)?.stored())).sum();
            Use { logical: found.bytes, stored, files: 1 }
        }
        What::Symlink(_) => Use::FILE,
        What::Directory => Use::default(),
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
