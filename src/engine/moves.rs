//! Moves between tiers.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::compact::return_to_extents;
use crate::engine::plan_move::{
    Concerned, MoveRequest, Opened, Planned, SourceCheck, Sources, concerned, is_left, open_after, plan,
};
use crate::engine::reconstruct::{precision, read_exact};
use crate::engine::refuse::{Refused, refused, refused_for};
use crate::engine::results::Moved;
use crate::engine::select::{Target, is_tensor, target_of, targets};
use crate::engine::settings::encoder;
use crate::engine::summary::Summary;
use crate::engine::work::Engine;
use crate::format::log::catalog::{Measured, NodeEntry, NodeType};
use crate::model::{
    Aim, Cause, EntryId, Error, ErrorKind, KeptBy, MoveTo, Progress, Result, Storing, Tier, packs,
};
use crate::store::Collection;
use crate::store::Elements;
use crate::store::IndexedBlock;
use crate::store::Object;
use crate::store::OpenObject;
use crate::store::ROOT;
use crate::store::State;
use crate::store::now_nanoseconds;

/// Logical bytes that are moved with one batch.
const STEP_BYTES: u64 = 8 << 20;
/// Logical bytes after which a sync releases the freed space.
const SYNC_BYTES: u64 = 256 << 20;

impl Engine {
    /// Moves a tensor to a tier, packs it or unpacks it. The request may allow the loss of the last exact
    /// copy. For a container or a directory it moves the tensors that [`MoveTo::takes`] selects. Durable
    /// when it returns. `moved` receives the changes, also on an error. A packed file in place lies in the
    /// store as a whole.
    ///
    /// Fails with `Denied` for a tensor of a type that the aim does not apply to, or where the last exact copy would be
    /// lost and `lossy` does not allow it. Fails with `Invalid` where a block would have to become
    /// more precise than any source. It then changes nothing. One of several tensors does not stop the others.
    pub fn set_tier(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        request: MoveRequest,
        progress: &dyn Progress,
        moved: &mut Moved,
    ) -> Result<()> {
        let _alone = self.at_work.lock();
        collection.check_writable()?;
        // A move to exact bytes reads the sources of each tensor right before it moves that.
        let to = request.to;
        let is_logged = to.aim == Aim::Tier(Tier::Exact);
        let sources = if is_logged { Sources::Logged } else { Sources::Read };
        let planned = plan(self, collection, node, request, SourceCheck { sources, progress }, moved)?;
        progress.expect(planned.iter().map(|planned| planned.target.bytes_taken()).sum());
        let objects = planned.iter().flat_map(|planned| planned.target.objects.clone()).collect::<Vec<_>>();
        let done = self.run(collection, node, planned, to, progress, moved).and_then(|()| match to.aim {
            Aim::Pack => take_in(collection, node, progress, moved),
            Aim::Unpack => return_to_extents(collection, &objects, progress),
            Aim::Tier(_) | Aim::Again(_) => Ok(()),
        });
        // Also after a failed or cancelled move, which may have moved some tensors.
        if let Ok(targets) = targets(collection, node) {
            moved.summary.measure(collection, &targets);
        }
        done
    }

    /// Moves the part of a tensor that a target names, as the setting `lossy` allows. Durable when it returns.
    pub(super) fn move_part(
        &self,
        collection: &Arc<Collection>,
        target: &Target,
        aim: Aim,
        progress: &dyn Progress,
        moved: &mut Moved,
    ) -> Result<()> {
        let _alone = self.at_work.lock();
        collection.check_writable()?;
        let now = target_of(&collection.state(), target.node);
        let is_same = |now: &Target| {
            let ids =
                |target: &Target| target.objects.iter().map(|object| object.entry.id).collect::<Vec<_>>();
            ids(now) == ids(target)
        };
        let Some(now) = now.filter(is_same) else { return Ok(()) };
        let target = Target { part: target.part.clone(), ..now };
        let sources = if aim == Aim::Tier(Tier::Exact) { Sources::Logged } else { Sources::Read };
        let concerned = concerned(collection, &target, aim, SourceCheck { sources, progress }, &mut None)?;
        if concerned.is_empty() {
            return Ok(());
        }
        moved.summary = Summary { aim: Some(aim), planned: 1, ..Summary::default() };
        let planned = vec![Planned { target, concerned }];
        self.run(
            collection,
            planned.first().map_or(ROOT, |one| one.target.node),
            planned,
            MoveTo::all(aim),
            progress,
            moved,
        )
    }

    fn run(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        planned: Vec<Planned>,
        to: MoveTo,
        progress: &dyn Progress,
        moved: &mut Moved,
    ) -> Result<()> {
        let mut unsynced = 0;
        let mut opened: Opened = None;
        let is_one = is_tensor(collection, node) || planned.iter().any(|one| one.target.part.is_some());
        let mut left = Refused::default();
        for Planned { target, concerned: mut to_move } in planned {
            progress.check()?;
            if to.aim == Aim::Tier(Tier::Exact) {
                let check = SourceCheck { sources: Sources::Read, progress };
                let checked = concerned(collection, &target, to.aim, check, &mut opened);
                if !is_one && is_left(&checked) {
                    left.take(checked)?;
                    moved.summary.planned -= 1;
                    moved.summary.refused += 1;
                    continue;
                }
                to_move = checked?;
            }
            let number = collection.state().number();
            let moving = self.begin(number, target.node, to_move.tier(to.aim), to.aim, target.bytes_taken());
            let storing = storing(collection, &target, to.aim);
            let mut advance = |bytes| {
                moving.running.advance(bytes);
                progress.advance(bytes);
                unsynced += bytes;
                if unsynced >= SYNC_BYTES {
                    unsynced = 0;
                    collection.sync()?;
                }
                Ok(())
            };
            let before = moved.blocks;
            let step = Step { collection, target: &target, to_move: &to_move, storing, progress };
            step.run(&mut opened, moved, &mut advance)?;
            if to.aim == Aim::Pack && moved.blocks == before {
                moved.summary.kept.count(KeptBy::NotSmaller);
                moved.summary.planned -= 1;
            } else {
                moved.summary.moved += 1;
            }
        }
        if moved.summary.moved + moved.summary.there == 0 {
            left.check()?;
        } else {
            moved.left.extend(left.into_vec());
        }
        collection.sync()
    }

    /// The summary of a move as if it had ended. Fails as [`set_tier`](Self::set_tier) does, as far as
    /// the checked sources tell.
    pub fn check_tier(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        request: MoveRequest,
        check: SourceCheck<'_>,
    ) -> Result<Moved> {
        let mut moved = Moved::default();
        plan(self, collection, node, request, check, &mut moved)?;
        Ok(moved)
    }
}

/// How a move stores the blocks of a tensor.
fn storing(collection: &Collection, target: &Target, aim: Aim) -> Storing {
    let state = collection.state();
    let is_packed =
        || packs(target.dtype) && target.has_blocks_to_pack() && collection.packs(&state, target.node);
    Storing { aim, packs: aim == Aim::Pack || is_packed(), encoder: encoder(&state, target.node) }
}

/// Reads the most precise elements of a block of a tensor for a move to a tier into `out`. Fails with
/// `Invalid` where the tier needs more precision, and with `Denied` where a loss of precision is not
/// allowed.
fn elements(
    collection: &Collection,
    target: &Target,
    open: &OpenObject,
    IndexedBlock { index, block }: IndexedBlock<'_>,
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
    if aim.needs_source(block.stored.tier, || open.has_deltas(index, block)) {
        return Ok(Elements::Kept);
    }
    let gone = || exact.as_ref().err().map_or_else(|| "it was written to".to_owned(), Error::to_string);
    if to.finer_than(precision(open, index, block)) {
        let text = format!("the exact source of block {index} is gone: {}", gone());
        return Err(refused_for(collection, target, ErrorKind::Invalid, text));
    }
    // Nobody writes to the object now. An earlier write has ended the consent of an import.
    if to != Tier::Exact && !target.allows(&collection.state(), to) {
        return Err(refused(collection, target, Cause::LastExactCopy));
    }
    open.read(layout.start(index), out).map(|()| Elements::Other)
}

/// Reads the source of a block for a move to a tier into `out`, as if loss of precision were allowed.
/// Returns `false` where the block would stay as it reads.
pub(super) fn plain_elements(
    open: &OpenObject,
    IndexedBlock { index, block }: IndexedBlock<'_>,
    to: Tier,
    out: &mut [u8],
) -> Result<bool> {
    if let Ok(Some(_)) = read_exact(open, index, block, out) {
        return Ok(true);
    }
    open.read(open.object().layout().start(index), out)?;
    Ok(!to.finer_than(precision(open, index, block)))
}

/// A tensor that is moved.
struct Step<'a> {
    collection: &'a Arc<Collection>,
    target: &'a Target,
    to_move: &'a Concerned,
    storing: Storing,
    progress: &'a dyn Progress,
}

impl Step<'_> {
    /// Moves the tensor. `advance` is called with the bytes of each batch.
    fn run(
        &self,
        opened: &mut Opened,
        moved: &mut Moved,
        advance: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let Step { collection, target, storing, .. } = *self;
        let mut measured = self.error_of_rest();
        for (number, object) in target.objects.iter().enumerate() {
            let open = open_after(collection, object, opened)?;
            let layout = object.layout();
            let mut step = (STEP_BYTES / u64::from(layout.block_bytes)).max(1) as u32;
            let taken = target.blocks_of(number, layout);
            let (mut first, mut is_last_try) = (taken.start, false);
            while first < taken.end {
                self.progress.check()?;
                let zeros = object.zeros_from(first, layout).saturating_sub(first);
                let last = first.saturating_add(step.max(zeros)).min(taken.end);
                let migrated = open.migrate(first..last, storing, &|open, index, block, out| {
                    let block = IndexedBlock { index, block };
                    if self.to_move.is_compared(number, block) && open.is_extent_untouched() {
                        return Ok(Elements::Origin);
                    }
                    elements(collection, target, open, block, storing.aim, out)
                });
                let mut migration = match migrated {
                    // A sync frees the space of what has moved; fewer blocks at a time may find room in it.
                    Err(error) if error.kind() == ErrorKind::Full && !is_last_try => {
                        collection.sync()?;
                        is_last_try = step == 1;
                        step = (step / 4).max(1);
                        continue;
                    }
                    migrated => migrated?,
                };
                is_last_try = false;
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

    /// The error of the blocks that stay as they are, where some of these are encoded. Blocks that were encoded in
    /// another tier before count in it until the whole tensor moves.
    fn error_of_rest(&self) -> Measured {
        let is_encoded = |object: &Object, blocks, layout| {
            let mut tiers = object.stored_blocks(blocks, layout).map(|(_, block)| block.stored.tier);
            tiers.any(|tier| !tier.is_exact())
        };
        let has_rest = self.target.objects.iter().enumerate().any(|(number, object)| {
            let layout = object.layout();
            let taken = self.target.blocks_of(number, layout);
            is_encoded(object, 0..taken.start, layout)
                || is_encoded(object, taken.end..layout.blocks(), layout)
        });
        let state = self.collection.state();
        let file = state.node(self.target.node).and_then(|node| node.file()).filter(|_| has_rest);
        file.and_then(|file| file.error.as_deref().copied()).unwrap_or_default()
    }
}

/// Moves the verbatim parts of a packed file in place from that file into the store: its header, and
/// tensors that are not packed.
fn take_in(
    collection: &Arc<Collection>,
    node: EntryId,
    progress: &dyn Progress,
    moved: &mut Moved,
) -> Result<()> {
    let is_one = is_tensor(collection, node);
    let containers: BTreeSet<EntryId> = {
        let targets = if is_one { Vec::new() } else { targets(collection, node)? };
        let state = collection.state();
        let of = |target: Target| Some(state.node(target.node)?.file()?.container.unwrap_or(target.node));
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
            progress.check()?;
        }
    }
    collection.sync()
}

/// A tensor, and its container.
pub(super) fn with_container(state: &State, node: EntryId) -> Vec<EntryId> {
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
