//! The plan of a move between tiers: which blocks it takes, and whether their sources allow it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use crate::engine::reconstruct::{expects_exact_source, has_exact_source, precision};
use crate::engine::refuse::{Refused, refuse_needed, refuse_pinned, refused};
use crate::engine::results::Moved;
use crate::engine::select::{Target, is_tensor, taken, targets};
use crate::engine::settings::Consent;
use crate::engine::stretches::{NoRows, rows_of, within};
use crate::engine::summary::{Summary, TakenRows};
use crate::engine::work::Engine;
use crate::model::{
    Aim, Cause, EntryId, Error, ErrorKind, MoveTo, Progress, Refusal, Result, Rows, RowsOf, Tier,
};
use crate::store::Collection;
use crate::store::Object;
use crate::store::OpenObject;
use crate::store::Use;
use crate::store::{Block, IndexedBlock};

/// Blocks whose sources are read together. Then the job may be cancelled.
const READ_AT_ONCE: usize = 256;
/// Packed blocks of an object that an estimate of its size is made from.
const SAMPLES: usize = 4;

/// How a plan finds out whether a block has an exact source besides its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sources {
    /// From the log: nothing is read, and a source that has changed since counts.
    Logged,
    /// By reading those that the move depends on.
    Read,
}

/// A move that is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveRequest {
    /// The tensors to move, and the aim.
    pub to: MoveTo,
    /// Whether the last exact copy may be lost.
    pub consent: Consent,
    /// The rows to move, of one tensor. `None` for all.
    pub rows: Option<Rows>,
}

impl MoveRequest {
    /// Parses the value of `tier`: `q5`, `q5:all`, `q5@0:4096`, each of which `:lossy` may follow.
    pub fn parse(text: &str) -> Result<MoveRequest> {
        let (text, consent) = Consent::split(text);
        let RowsOf { of, rows } = Rows::split(text)?;
        let to = MoveTo::parse(of)?;
        if rows.is_some() && to.aim.keeps_bytes() {
            return Err(Error::invalid("tensors are packed and unpacked as a whole, not some of their rows"));
        }
        Ok(MoveRequest { to, consent, rows })
    }
}

/// How a plan checks the sources of blocks.
#[derive(Clone, Copy)]
pub struct SourceCheck<'a> {
    /// The sources that count.
    pub sources: Sources,
    /// Told before each read, and may cancel it.
    pub progress: &'a dyn Progress,
}

/// The blocks of a tensor that a move takes.
#[derive(Default)]
pub(super) struct Concerned {
    /// Their number by tier.
    from: BTreeMap<Tier, u64>,
    /// Bytes to store, and bytes to release.
    stored: (u64, u64),
    /// For each object, the blocks that agreed with their outside file when that was read. Only for a move
    /// to exact bytes, which then need not be read again.
    compared: Vec<Vec<(u32, Block)>>,
}

impl Concerned {
    pub fn is_empty(&self) -> bool {
        self.from.is_empty()
    }

    /// The tier before the move, as attributes show it.
    pub fn tier(&self, aim: Aim) -> String {
        let name = |tier: &Tier| match tier {
            // A move to a tier treats verbatim and packed blocks alike.
            Tier::Packed if !aim.keeps_bytes() => Tier::Exact.name(),
            tier => tier.name(),
        };
        let mut tiers: Vec<&str> = self.from.keys().map(name).collect();
        tiers.dedup();
        if tiers.len() == 1 { tiers.concat() } else { "mixed".to_owned() }
    }

    /// Whether a block was compared with its outside file and has not changed since.
    pub fn is_compared(&self, object: usize, IndexedBlock { index, block }: IndexedBlock<'_>) -> bool {
        let Some(compared) = self.compared.get(object) else { return false };
        let found = compared.binary_search_by_key(&index, |(index, _)| *index);
        found.ok().and_then(|place| compared.get(place)).is_some_and(|(_, compared)| compared == block)
    }
}

/// A planned move of a tensor.
pub(super) struct Planned {
    pub target: Target,
    pub concerned: Concerned,
}

/// The object that was opened last by the present name of its file, for others in the same file.
pub(super) type Opened = Option<OpenObject>;

/// Opens an object by the present name of its file, once for neighbours in one file.
pub(super) fn open_after(
    collection: &Arc<Collection>,
    object: &Arc<Object>,
    opened: &mut Opened,
) -> Result<OpenObject> {
    let open = OpenObject::open_by_name_after(collection, object, opened.as_ref())?;
    Ok(opened.insert(open).clone())
}

/// Whether a tensor is refused in a way that does not stop the move of others.
pub(super) fn is_left<T>(checked: &Result<T>) -> bool {
    checked.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Busy))
}

/// Plans a move, and fails where that is refused. `moved` receives its summary.
pub(super) fn plan(
    engine: &Engine,
    collection: &Arc<Collection>,
    node: EntryId,
    MoveRequest { to, consent, rows }: MoveRequest,
    check: SourceCheck<'_>,
    moved: &mut Moved,
) -> Result<Vec<Planned>> {
    let mut found = targets(collection, node)?;
    found.iter_mut().for_each(|target| target.consent = consent);
    let is_one = is_tensor(collection, node) || rows.is_some();
    moved.summary = Summary { aim: Some(to.aim), ..Summary::default() };
    if let Some(rows) = rows {
        moved.summary.rows = Some(take_rows(collection, node, &mut found, rows)?);
    }
    for target in &found {
        moved.summary.count(target);
    }
    let kept = &mut moved.summary.kept;
    let chosen = if is_one { found } else { taken(found, to, engine.store.settings(), kept) };
    // A plan that is cancelled has moved none of these.
    moved.summary.planned = chosen.len() as u64;
    let (mut planned, mut opened) = (Vec::new(), None);
    let (mut denied, mut left) = (Refused::default(), Refused::default());
    for target in chosen {
        let checked = concerned(collection, &target, to.aim, check, &mut opened);
        let is_left = !is_one && is_left(&checked);
        match if is_left { left.take(checked) } else { denied.take(checked) }? {
            Some(concerned) if concerned.from.is_empty() => moved.summary.there += 1,
            Some(concerned) => planned.push(Planned { target, concerned }),
            None => {}
        }
    }
    denied.check()?;
    if planned.is_empty() && moved.summary.there == 0 {
        left.check()?;
    } else {
        moved.left = left.into_vec();
    }
    moved.summary.refused = moved.left.len() as u64;
    moved.summary.planned = planned.len() as u64;
    let sum = |of: fn(&(u64, u64)) -> u64| planned.iter().map(|one| of(&one.concerned.stored)).sum::<u64>();
    let (more, less) = (sum(|stored| stored.0), sum(|stored| stored.1));
    collection.meter().check(Use { stored: more.saturating_sub(less), ..Use::default() })?;
    moved.summary.stored = (moved.summary.stored + more).saturating_sub(less);
    Ok(planned)
}

/// Restricts the move of one tensor to the whole stretches in a range of rows. Fails with `Invalid` if the range has no
/// whole stretch, and for several tensors.
fn take_rows(collection: &Collection, node: EntryId, found: &mut [Target], rows: Rows) -> Result<TakenRows> {
    let is_directory = collection.state().node(node).is_some_and(|node| node.file().is_none());
    let [target] = found else { return Err(not_one(collection, node)) };
    if is_directory {
        return Err(not_one(collection, node));
    }
    let taken = within(target, rows)
        .map_err(|NoRows { kind, text }| refused(collection, target, Cause::Other(kind, text)))?;
    let of = target.shape.dimensions().first().copied().unwrap_or_default();
    let rows = rows_of(target, &taken).unwrap_or(rows);
    target.part = Some(taken);
    Ok(TakenRows { rows, of })
}

fn not_one(collection: &Collection, node: EntryId) -> Error {
    let below = String::from_utf8_lossy(&collection.state().path(node)).into_owned();
    let path = format!("{}/{below}", collection.path()).trim_end_matches('/').to_owned();
    let text = "rows are those of one tensor; name one, such as a file below .tensors".to_owned();
    Error::refused(vec![Refusal { path, cause: Cause::Other(ErrorKind::Invalid, text) }])
}

/// The blocks of a tensor that a move takes. Fails where the move is refused.
pub(super) fn concerned(
    collection: &Arc<Collection>,
    target: &Target,
    aim: Aim,
    SourceCheck { sources, progress }: SourceCheck<'_>,
    opened: &mut Opened,
) -> Result<Concerned> {
    refuse_pinned(collection, target)?;
    let refused = |cause| Err(refused(collection, target, cause));
    let to = aim.tier();
    if !target.dtype.is_quantizable() && to != Tier::Exact {
        return refused(Cause::NoTiers(target.dtype));
    }
    if aim == Aim::Pack && !(target.dtype.is_packable() && target.has_blocks_to_pack()) {
        return refused(Cause::NotPacked(target.dtype));
    }
    if target.is_view && !to.is_exact() {
        let text = "its elements are those of other tensors, or lie apart; move its container";
        return refused(Cause::Other(ErrorKind::Denied, text.to_owned()));
    }
    if target.is_checksummed && !to.is_exact() {
        let text = "its archive has a checksum of the exact bytes, which NumPy compares; save the array as .npy or safetensors";
        return refused(Cause::Other(ErrorKind::Denied, text.to_owned()));
    }
    if target.objects.iter().any(|object| object.dtype() != target.dtype) {
        let text = "it was encoded as another element type; write its values again first".to_owned();
        return refused(Cause::Other(ErrorKind::Denied, text));
    }
    refuse_needed(collection, target)?;
    let is_lossy = target.allows(&collection.state(), to);
    let (mut found, mut is_kept) = (Concerned::default(), true);
    for (number, object) in target.objects.iter().enumerate() {
        let layout = object.layout();
        let unread = OpenObject::unread(collection, object);
        let mut due = object
            .stored_blocks(target.blocks_of(number, layout), layout)
            .filter(|(index, block)| unread.is_due(*index, block, aim))
            .peekable();
        let (mut samples, mut after, mut compared) = (Vec::new(), 0, Vec::new());
        while due.peek().is_some() {
            progress.check()?;
            let some: Vec<(u32, Block)> = due.by_ref().take(READ_AT_ONCE).collect();
            if aim == Aim::Pack {
                let step = (some.len() / SAMPLES).max(1);
                samples.extend(some.iter().step_by(step).take(SAMPLES).map(|(index, _)| *index));
            }
            let is_needed = |(index, block): &(u32, Block)| {
                expects_exact_source(&unread, *index, block)
                    && (!is_lossy || to.finer_than(precision(&unread, *index, block)))
            };
            let exact: Vec<bool> = if aim.keeps_bytes() {
                vec![true; some.len()]
            } else if sources == Sources::Logged || !some.iter().any(is_needed) {
                some.iter().map(|(index, block)| expects_exact_source(&unread, *index, block)).collect()
            } else {
                // All cores share the reads.
                let open = open_after(collection, object, opened)?;
                let read = |(index, block): &(u32, Block)| has_exact_source(&open, *index, block);
                let exact: Vec<bool> = some.par_iter().map(read).collect();
                if aim == Aim::Tier(Tier::Exact) {
                    let read = some.iter().zip(&exact).filter(|(_, is_exact)| **is_exact);
                    compared.extend(read.map(|(one, _)| *one));
                }
                exact
            };
            for ((index, block), is_exact) in some.into_iter().zip(exact) {
                if !is_exact && aim.needs_source(block.stored.tier, || unread.has_deltas(index, &block)) {
                    continue;
                }
                is_kept &= is_exact;
                let source = if is_exact { Tier::Exact } else { precision(&unread, index, &block) };
                if source == Tier::Absent {
                    return refused(Cause::Absent);
                }
                if to.finer_than(source) {
                    return refused(Cause::NoSource(source));
                }
                *found.from.entry(block.stored.tier).or_default() += 1;
                after += object.payload_len(index, to)? as u64;
                let deltas = object.deltas_size(index, block.epoch).1;
                found.stored.1 += u64::from(block.stored.len) + deltas;
            }
        }
        found.stored.0 += match samples.as_slice() {
            [] => after,
            samples => estimate(&open_after(collection, object, opened)?, samples, after),
        };
        found.compared.push(compared);
    }
    if !is_kept && to != Tier::Exact && !is_lossy {
        return refused(Cause::LastExactCopy);
    }
    Ok(found)
}

/// The approximate packed size of blocks of `bytes` bytes, extrapolated from a few of them.
fn estimate(open: &OpenObject, samples: &[u32], bytes: u64) -> u64 {
    let layout = open.object().layout();
    let packed = samples.par_iter().map(|index| {
        let whole = layout.len(*index);
        // A damaged block fails the move itself.
        let packed = open.packed_len(*index).ok().flatten().unwrap_or(whole);
        (packed as u64, whole as u64)
    });
    let (packed, whole) = packed.reduce(|| (0, 0), |one, other| (one.0 + other.0, one.1 + other.1));
    let share = u128::from(bytes) * u128::from(packed) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(bytes)
}
