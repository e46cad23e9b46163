//! Moves between tiers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rayon::prelude::*;

use crate::engine::compact::return_to_extents;
use crate::engine::reconstruct::{has_exact_source, precision, read_exact};
use crate::engine::refuse::{Refused, refuse_needed, refuse_pinned, refused, refused_for};
use crate::engine::results::Moved;
use crate::engine::select::{Target, taken, targets};
use crate::engine::settings::{Consent, encoder};
use crate::engine::summary::Summary;
use crate::engine::work::Engine;
use crate::format::log::catalog::{Measured, NodeEntry, NodeType};
use crate::model::{
    Aim, Cause, EntryId, Error, ErrorKind, KeptBy, MoveTo, Progress, Result, Storing, Tier, packs,
};
use crate::store::Block;
use crate::store::Collection;
use crate::store::Elements;
use crate::store::OpenObject;
use crate::store::State;
use crate::store::Use;
use crate::store::now_nanoseconds;

/// Logical bytes that are moved with one batch.
const STEP_BYTES: u64 = 8 << 20;
/// Blocks whose sources are checked together.
const CHECKED_AT_ONCE: usize = 1024;
/// Packed blocks of an object that an estimate of its size is made from.
const SAMPLES: usize = 4;
/// Logical bytes after which a sync releases the freed space.
const SYNC_BYTES: u64 = 256 << 20;

/// The blocks that a move affects, by tier; the bytes that it stores, and those that it releases.
type Concerned = (BTreeMap<Tier, u64>, (u64, u64));

/// A planned move of a tensor.
struct Planned {
    target: Target,
    /// Number of blocks to move, by tier.
    from: BTreeMap<Tier, u64>,
    /// Bytes to store, and bytes to release.
    stored: (u64, u64),
}

impl Engine {
    /// Moves a tensor to a tier, packs it or unpacks it. The request may allow the loss of the last exact
    /// copy. For a container or a directory it moves the tensors that [`MoveTo::takes`] selects. Durable
    /// when it returns. `moved` receives the changes, also on an error. A packed file in place lies in the
    /// store as a whole.
    ///
    /// Fails with `Denied` for a tensor of a type that the aim does not apply to, or where the last exact copy would be
    /// lost and `lossy` does not allow it. Fails with `Invalid` where a block would have to become
    /// more precise than any source. It then changes nothing.
    pub fn set_tier(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        to: (MoveTo, Consent),
        progress: &dyn Progress,
        moved: &mut Moved,
    ) -> Result<()> {
        let _alone = self.at_work.lock();
        collection.check_writable()?;
        let planned = self.plan(collection, node, to, moved)?;
        let objects = planned.iter().flat_map(|planned| planned.target.objects.clone()).collect::<Vec<_>>();
        let done = self.run(collection, planned, to.0, progress, moved).and_then(|()| match to.0.aim {
            Aim::Pack => take_in(collection, node, progress, moved),
            Aim::Unpack => return_to_extents(collection, &objects, progress),
            Aim::Tier(_) => Ok(()),
        });
        // Also after a failed or cancelled move, which may have moved some tensors.
        if let Ok(targets) = targets(collection, node) {
            moved.summary.measure(collection, &targets);
        }
        done
    }

    fn run(
        &self,
        collection: &Arc<Collection>,
        planned: Vec<Planned>,
        to: MoveTo,
        progress: &dyn Progress,
        moved: &mut Moved,
    ) -> Result<()> {
        let mut unsynced = 0;
        for Planned { target, from, .. } in planned {
            let name = |tier: &Tier| match tier {
                // A move to a tier treats verbatim and packed blocks alike.
                Tier::Packed if !to.aim.keeps_bytes() => Tier::Exact.name(),
                tier => tier.name(),
            };
            let mut tiers: Vec<&str> = from.keys().map(name).collect();
            tiers.dedup();
            let from = if tiers.len() == 1 { tiers.concat() } else { "mixed".to_owned() };
            let number = collection.state().number();
            let moving = self.begin((number, target.node), from, to.aim, target.bytes());
            let storing = storing(collection, &target, to.aim);
            let mut advance = |bytes| {
                moving.running.advance(bytes);
                progress.advance(bytes);
                unsynced += bytes;
                if unsynced >= SYNC_BYTES {
                    unsynced = 0;
                    collection.sync()?;
                }
                if progress.is_cancelled() {
                    Err(Error::new(ErrorKind::Interrupted, "the job was cancelled"))
                } else {
                    Ok(())
                }
            };
            let before = moved.blocks;
            move_target(collection, &target, storing, moved, &mut advance)?;
            if to.aim == Aim::Pack && moved.blocks == before {
                moved.summary.kept.count(KeptBy::NotSmaller);
                moved.summary.planned -= 1;
            } else {
                moved.summary.moved += 1;
            }
        }
        collection.sync()
    }

    /// Logical bytes of the tensors that a move would process, and the summary of it as if it had
    /// ended. Fails as [`set_tier`](Self::set_tier) does.
    pub fn check_tier(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        to: (MoveTo, Consent),
    ) -> Result<(u64, Moved)> {
        let mut moved = Moved::default();
        let planned = self.plan(collection, node, to, &mut moved)?;
        Ok((planned.iter().map(|planned| planned.target.bytes()).sum(), moved))
    }

    fn plan(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        (to, consent): (MoveTo, Consent),
        moved: &mut Moved,
    ) -> Result<Vec<Planned>> {
        let mut found = targets(collection, node)?;
        found.iter_mut().for_each(|target| target.consent = consent);
        let is_one = {
            let state = collection.state();
            state.node(node).and_then(|node| node.file()).is_some_and(|file| file.tensor.is_some())
        };
        moved.summary = Summary { aim: Some(to.aim), ..Summary::default() };
        for target in &found {
            moved.summary.count(target);
        }
        let kept = &mut moved.summary.kept;
        let chosen = if is_one { found } else { taken(found, to, self.store.settings(), kept) };
        let (mut planned, mut opened) = (Vec::new(), None);
        let (mut denied, mut left) = (Refused::default(), Refused::default());
        for target in chosen {
            let checked = check(collection, &target, to.aim, &mut opened);
            // One of many tensors does not stop the others.
            let is_left = !is_one
                && checked
                    .as_ref()
                    .is_err_and(|error| matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Busy));
            match if is_left { left.take(checked) } else { denied.take(checked) }? {
                Some((from, _)) if from.is_empty() => moved.summary.there += 1,
                Some((from, stored)) => planned.push(Planned { target, from, stored }),
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
        let sum = |of: fn(&Planned) -> u64| planned.iter().map(of).sum::<u64>();
        let (more, less) = (sum(|planned| planned.stored.0), sum(|planned| planned.stored.1));
        let more = Use { stored: more.saturating_sub(less), ..Use::default() };
        collection.meter().check(more)?;
        moved.summary.stored = (moved.summary.stored + sum(|planned| planned.stored.0)).saturating_sub(less);
        Ok(planned)
    }
}

/// How a move stores the blocks of a tensor.
fn storing(collection: &Collection, target: &Target, aim: Aim) -> Storing {
    let state = collection.state();
    let is_packed =
        || packs(target.dtype) && target.has_blocks_to_pack() && collection.packs(&state, target.node);
    Storing { aim, packs: aim == Aim::Pack || is_packed(), encoder: encoder(&state, target.node) }
}

/// The blocks of a tensor that a move affects, by tier; their size after the move, and before.
/// `opened` has the object that was checked last; other objects may lie in the same outside file.
fn check(
    collection: &Arc<Collection>,
    target: &Target,
    aim: Aim,
    opened: &mut Option<OpenObject>,
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
    if target.is_checksummed && !to.is_exact() {
        let text = "its archive has a checksum of it, which NumPy compares; save it as .npy or safetensors";
        return refused(Cause::Other(ErrorKind::Denied, text.to_owned()));
    }
    if target.objects.iter().any(|object| object.dtype() != target.dtype) {
        let text = "its codes are of another element type; write it anew first".to_owned();
        return refused(Cause::Other(ErrorKind::Denied, text));
    }
    refuse_needed(collection, target)?;
    let mut from: BTreeMap<Tier, u64> = BTreeMap::new();
    let mut is_kept = true;
    let mut stored = (0, 0);
    for object in &target.objects {
        let layout = object.layout();
        let open = &*opened.insert(OpenObject::open_by_name_after(collection, object, opened.as_ref())?);
        let mut due = object
            .stored_blocks(0..layout.blocks(), layout)
            .filter(|(index, block)| open.is_due(*index, block, aim))
            .peekable();
        let mut samples = Vec::new();
        let mut after = 0;
        while due.peek().is_some() {
            // Sources are read whole, which all cores share.
            let some: Vec<(u32, Block)> = due.by_ref().take(CHECKED_AT_ONCE).collect();
            if aim == Aim::Pack {
                let step = (some.len() / SAMPLES).max(1);
                samples.extend(some.iter().step_by(step).take(SAMPLES).map(|(index, _)| *index));
            }
            let exact: Vec<bool> = if aim.keeps_bytes() {
                vec![true; some.len()]
            } else {
                some.par_iter().map(|(index, block)| has_exact_source(open, *index, block)).collect()
            };
            for ((index, block), is_exact) in some.into_iter().zip(exact) {
                is_kept &= is_exact;
                let source = if is_exact { Tier::Exact } else { precision(open, index, &block) };
                if source == Tier::Absent {
                    return refused(Cause::Absent);
                }
                if to.finer_than(source) {
                    return refused(Cause::NoSource(source));
                }
                *from.entry(block.stored.tier).or_default() += 1;
                after += object.payload_len(index, to)? as u64;
                stored.1 += u64::from(block.stored.len) + object.deltas_size(index, block.epoch).1;
            }
        }
        stored.0 += if samples.is_empty() { after } else { estimate(open, &samples, after) };
    }
    if !is_kept && to != Tier::Exact && !target.is_lossy_allowed(&collection.state()) {
        return refused(Cause::LastExactCopy);
    }
    Ok((from, stored))
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

/// Reads the most precise elements of a block of a tensor for a move to a tier into `out`. Fails with
/// `Invalid` where the tier needs more precision, and with `Denied` where a loss of precision is not
/// allowed.
fn elements(
    (collection, target): (&Collection, &Target),
    open: &OpenObject,
    (index, block): (u32, &Block),
    aim: Aim,
    out: &mut [u8],
) -> Result<Elements> {
    let (to, layout) = (aim.tier(), open.object().layout());
    if aim.keeps_bytes() {
        return open.read(layout.start(index), out).map(|()| Elements::Other);
    }
    let exact = read_exact(open, index, block, out);
    if let Ok(Some(elements)) = exact {
        return Ok(elements);
    }
    let gone = || exact.as_ref().err().map_or_else(|| "it was written to".to_owned(), Error::to_string);
    if to.finer_than(precision(open, index, block)) {
        let text = format!("the exact source of block {index} is gone: {}", gone());
        return Err(refused_for(collection, target, ErrorKind::Invalid, text));
    }
    // Nobody writes to the object now. An earlier write has ended the consent of an import.
    if to != Tier::Exact && !target.is_lossy_allowed(&collection.state()) {
        return Err(refused(collection, target, Cause::LastExactCopy));
    }
    open.read(layout.start(index), out).map(|()| Elements::Other)
}

/// Reads the source of a block for a move to a tier into `out`, as if loss of precision were allowed.
/// Returns `false` where the block would stay as it reads.
pub(super) fn plain_elements(
    open: &OpenObject,
    (index, block): (u32, &Block),
    to: Tier,
    out: &mut [u8],
) -> Result<bool> {
    if let Ok(Some(_)) = read_exact(open, index, block, out) {
        return Ok(true);
    }
    open.read(open.object().layout().start(index), out)?;
    Ok(!to.finer_than(precision(open, index, block)))
}

fn move_target(
    collection: &Arc<Collection>,
    target: &Target,
    storing: Storing,
    moved: &mut Moved,
    advance: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let mut measured = Measured::default();
    for object in &target.objects {
        let open = OpenObject::open_by_name(collection, object)?;
        let layout = object.layout();
        let step = (STEP_BYTES / u64::from(layout.block_bytes)).max(1) as u32;
        let mut first = 0;
        while first < layout.blocks() {
            let zeros = object.zeros_from(first, layout).saturating_sub(first);
            let last = first.saturating_add(step.max(zeros)).min(layout.blocks());
            let mut migration = open.migrate(first..last, storing, &|open, index, block, out| {
                elements((collection, target), open, (index, block), storing.aim, out)
            })?;
            if !migration.is_empty() {
                measured.add(migration.measured);
                moved.blocks += migration.blocks() as u64;
                let touched = std::mem::take(&mut migration.touched);
                let recorded = collection.record(touched, |batch, state| {
                    migration.add(batch);
                    if storing.aim.keeps_bytes() {
                        batch.keep_bytes();
                        return Ok(with_container(state, target.node));
                    }
                    Ok(touch(batch, state, target.node, measured))
                });
                moved.nodes.extend(recorded?);
            }
            let end = (layout.start(last - 1) + layout.len(last - 1) as u64).min(layout.bytes);
            advance(end - layout.start(first))?;
            first = last;
        }
    }
    Ok(())
}

/// Moves the verbatim parts of a packed file in place from that file into the store: its header, and
/// tensors that are not packed.
fn take_in(
    collection: &Arc<Collection>,
    node: EntryId,
    progress: &dyn Progress,
    moved: &mut Moved,
) -> Result<()> {
    let containers: BTreeSet<EntryId> = {
        let state = collection.state();
        let of = |target: Target| Some(state.node(target.node)?.file()?.container.unwrap_or(target.node));
        let is_one = state.node(node).and_then(|node| node.file()).is_some_and(|file| file.tensor.is_some());
        let targets = if is_one { Vec::new() } else { targets(collection, node)? };
        targets.into_iter().filter_map(of).collect()
    };
    for container in containers {
        if collection.state().is_pinned_with_container(container) {
            continue;
        }
        for object in collection.objects_of(container)?.iter().filter(|object| object.origin.is_some()) {
            let open = OpenObject::open_by_name(collection, object)?;
            let blocks = open.take_in(0..object.layout().blocks())?;
            if blocks > 0 {
                moved.blocks += blocks;
                moved.nodes.insert(container);
            }
            if progress.is_cancelled() {
                return Err(Error::new(ErrorKind::Interrupted, "the job was cancelled"));
            }
        }
    }
    collection.sync()
}

/// A tensor, and its container.
fn with_container(state: &State, node: EntryId) -> Vec<EntryId> {
    let container = state.node(node).and_then(|node| node.file()).and_then(|file| file.container);
    [Some(node), container].into_iter().flatten().collect()
}

/// Updates the times of a tensor and its container after a change of their bytes, and the tensor's
/// error against the encoded values.
pub(super) fn touch(
    batch: &mut crate::store::Batch,
    state: &State,
    node: EntryId,
    measured: Measured,
) -> Vec<EntryId> {
    let now = now_nanoseconds();
    let mut touched = Vec::new();
    for id in with_container(state, node) {
        let Some(found) = state.node(id) else { continue };
        let mut entry = NodeEntry { mtime: now, ctime: now, ..found.entry.clone() };
        if let NodeType::File(file) = &mut entry.node_type
            && id == node
        {
            file.error = Some(Box::new(measured)).filter(|measured| measured.elements > 0);
        }
        batch.node(entry);
        touched.push(id);
    }
    touched
}
