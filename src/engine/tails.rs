//! Tails of tensors that grow: the last rows stay exact, those further back go to lower tiers, as `tail` and `back` of
//! their directory say.
//!
//! A close moves what its writes have left behind the tail, the periodic work of a mount all else. Blocks go down only,
//! from their exact source where they have one, else from what readers see. A stretch moves as a whole, with one batch,
//! and only while none of its blocks is in the tier or a lower one: so a row is rounded once for each tier that it passes,
//! and rows that are written over later stay exact beside their neighbours. A stretch on a border stays with the rows
//! nearer to the end.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::moves::{touch, with_container};
use crate::engine::policy::BlockKey;
use crate::engine::reconstruct::read_exact;
use crate::engine::refuse::{refuse_needed, refuse_pinned};
use crate::engine::results::Moved;
use crate::engine::select::{Target, targets};
use crate::engine::settings::encoder;
use crate::engine::stretches::{each_of, of_bytes, row_bytes, stretch_before};
use crate::engine::work::Engine;
use crate::format::log::catalog::{Measured, NodeEntry, NodeType};
use crate::model::{Aim, EntryId, ErrorKind, Progress, Result, Storing, Tail, Tier};
use crate::store::{Block, Collection, Elements, Event, EventKind, OpenObject, ROOT, State, now_nanoseconds};

/// Blocks of a tensor that belong into a tier.
struct Part {
    tier: Tier,
    /// Those of each object.
    blocks: Vec<Range<u32>>,
}

/// Whether the times of a file tell of its change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Times {
    /// Only that of the status: the close of a writer.
    Status,
    All,
}

/// Whether the rows of a tensor go to other tiers by its tail.
pub(super) fn follows(collection: &Collection, target: &Target, tail: &Tail) -> bool {
    let keeps = || collection.kept_by(&target.name, target.has_codes);
    let is_whole = target.objects.iter().all(|object| object.dtype() == target.dtype);
    let is_free = !target.is_view && !target.is_checksummed && is_whole;
    is_free && tail.back.takes().takes(target.dtype, &target.shape, keeps)
}

/// The tail of a tensor that follows one.
pub(super) fn tail_of(collection: &Collection, target: &Target) -> Option<Tail> {
    let tail = {
        let state = collection.state();
        state.has_tails().then(|| state.tail(target.node)).flatten()
    };
    tail.filter(|tail| follows(collection, target, tail))
}

/// The blocks that belong into each tier, where bytes from `from` on were written since the last time.
fn parts(state: &State, target: &Target, tail: &Tail, from: u64) -> Vec<Part> {
    let Some(row) = row_bytes(target) else { return Vec::new() };
    let has_source = target.objects.iter().all(|object| object.origin.is_some());
    let steps = tail.back.behind(tail.rows);
    let steps = steps.filter(|step| has_source || target.allows(state, step.tier));
    // The stretches that end before a byte lie behind that row.
    let until = |byte: u64, rows: u64| -> Vec<u32> {
        let end = byte.saturating_sub(rows.saturating_mul(row));
        of_bytes(target, 0..end).into_iter().map(|blocks| blocks.end).collect()
    };
    let mut parts: Vec<Part> = Vec::new();
    let bytes = target.bytes();
    for step in steps {
        let (begins, ends) = (until(from.min(bytes), step.rows), until(bytes, step.rows));
        if let Some(before) = parts.last_mut() {
            let nearer = before.blocks.iter_mut().zip(&ends);
            nearer.for_each(|(blocks, end)| blocks.start = blocks.start.max(*end).min(blocks.end));
        }
        let blocks = begins.into_iter().zip(ends).map(|(begin, end)| stretch_before(begin).min(end)..end);
        let blocks = blocks.collect();
        parts.push(Part { tier: step.tier, blocks });
    }
    parts
}

/// Whether a block goes down to a tier.
fn is_due(open: &OpenObject, index: u32, block: &Block, tier: Tier) -> bool {
    block.stored.tier.finer_than(tier) && open.is_due(index, block, Aim::Tier(tier))
}

/// The blocks of a stretch, if it goes down to a tier.
fn due_blocks(open: &OpenObject, stretch: Range<u32>, tier: Tier) -> Vec<(u32, Block)> {
    let object = open.object();
    let mut found: Vec<(u32, Block)> = object.stored_blocks(stretch, object.layout()).collect();
    if found.iter().any(|(_, block)| !block.stored.tier.finer_than(tier)) {
        return Vec::new();
    }
    found.retain(|(index, block)| is_due(open, *index, block, tier));
    found
}

/// Moves the rows of the tensors in a closed file that lie behind their tail. Bytes from `from` on were written since the
/// last time, if the file is one tensor. Adds the nodes whose bytes changed to `changed`, also before a failure; times
/// stay.
pub fn cool_behind_tail(
    collection: &Arc<Collection>,
    node: EntryId,
    tail: &Tail,
    from: u64,
    changed: &mut Vec<EntryId>,
) -> Result<()> {
    for target in targets(collection, node)? {
        let is_fixed =
            || refuse_pinned(collection, &target).is_err() || refuse_needed(collection, &target).is_err();
        if !follows(collection, &target, tail) || is_fixed() {
            continue;
        }
        let from = if target.node == node { from } else { 0 };
        let parts = parts(&collection.state(), &target, tail, from);
        let mut blocks = 0;
        let cooled = parts.iter().try_for_each(|part| cool(collection, &target, part, &mut blocks));
        if blocks > 0 {
            changed.extend(with_container(&collection.state(), target.node));
        }
        cooled?;
    }
    Ok(())
}

/// Moves the blocks of a part that are in a more precise tier. Adds their number to `count`, also before a failure.
fn cool(collection: &Arc<Collection>, target: &Target, part: &Part, count: &mut u64) -> Result<()> {
    for (object, blocks) in target.objects.iter().zip(&part.blocks) {
        if blocks.is_empty() {
            continue;
        }
        let open = OpenObject::open_by_name(collection, object)?;
        for stretch in each_of(blocks.start..blocks.end.min(object.layout().blocks())) {
            *count += cool_stretch(target, &open, stretch, part.tier, Times::Status)?;
        }
    }
    Ok(())
}

/// Moves the blocks of a stretch, if it goes down to a tier, with one batch. Returns their number.
fn cool_stretch(
    target: &Target,
    open: &OpenObject,
    stretch: Range<u32>,
    tier: Tier,
    times: Times,
) -> Result<u64> {
    let collection = open.collection();
    let due = due_blocks(open, stretch, tier);
    let (Some((first, _)), Some((last, _))) = (due.first(), due.last()) else { return Ok(0) };
    let encoder = encoder(&collection.state(), target.node);
    let storing = Storing { aim: Aim::Tier(tier), packs: false, encoder };
    let source = |open: &OpenObject, index: u32, block: &Block, out: &mut [u8]| {
        if !is_due(open, index, block, tier) {
            return Ok(Elements::Kept);
        }
        if let Ok(Some(elements)) = read_exact(open, index, block, out) {
            return Ok(elements);
        }
        // Nobody writes to the object now. An earlier write has ended the consent of an import.
        if !target.allows(&collection.state(), tier) {
            return Ok(Elements::Kept);
        }
        open.read(open.object().layout().start(index), out).map(|()| Elements::Other)
    };
    let mut migration = open.migrate(*first..last + 1, storing, &source)?;
    if migration.is_empty() {
        return Ok(0);
    }
    let count = migration.blocks() as u64;
    let (touched, measured) = (std::mem::take(&mut migration.touched), migration.measured);
    collection.record(touched, |batch, state| {
        migration.add(batch);
        record(batch, state, target.node, measured, times);
        Ok(())
    })?;
    Ok(count)
}

/// Adds the error of more blocks to that of a tensor, and its times.
fn record(batch: &mut crate::store::Batch, state: &State, node: EntryId, measured: Measured, times: Times) {
    let Some(found) = state.node(node) else { return };
    let mut error = found.file().and_then(|file| file.error.as_deref().copied()).unwrap_or_default();
    error.add(measured);
    if times == Times::All {
        touch(batch, state, node, error);
        return;
    }
    let mut entry = NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() };
    if let NodeType::File(file) = &mut entry.node_type {
        file.error = Some(Box::new(error));
    }
    batch.node(entry);
}

impl Engine {
    /// Moves the rows behind the tails of all tensors in open collections, at most the bytes of a pass. Passes to `changed`
    /// the nodes whose bytes change. Returns the number of tensors; durable when it returns.
    pub(super) fn cool_tails(
        &self,
        progress: &dyn Progress,
        changed: &mut dyn FnMut(&Arc<Collection>, Moved),
    ) -> Result<u64> {
        let mut tensors = 0;
        let mut pass = Pass { progress, left: self.store.settings().rules.pass_bytes };
        for collection in self.store.open_collections() {
            if !collection.state().has_tails() || collection.check_writable().is_err() {
                continue;
            }
            let (mut blocks, mut done) = (0, Ok(()));
            for target in targets(&collection, ROOT)? {
                if pass.left == 0 || done.is_err() {
                    break;
                }
                let Some(tail) = tail_of(&collection, &target) else { continue };
                let mut moved = Moved::default();
                let cooled = {
                    let _alone = self.at_work.lock();
                    self.cool_target(&collection, &target, &tail, &mut pass, &mut moved)
                };
                let tell = |kind, text: &str| {
                    let path = format!("{}/{}", collection.path(), target.path);
                    let cause = format!("back={}", tail.back);
                    let event = Event { kind, path: &path, cause: &cause, text, user: None, step: None };
                    collection.event_log().note(&event);
                };
                if moved.blocks > 0 {
                    blocks += moved.blocks;
                    tensors += 1;
                    let text = format!("{} blocks behind the last {} rows", moved.blocks, tail.rows);
                    tell(EventKind::Migration, &text);
                    changed(&collection, moved);
                }
                match cooled {
                    Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::Full) => {
                        done = Err(error);
                    }
                    Err(error) => tell(EventKind::Refusal, &error.to_string()),
                    Ok(()) => {}
                }
            }
            if blocks > 0 {
                // It also frees the space of what has moved, in which the next pass may find room.
                collection.sync()?;
            }
            match done {
                Err(error) if error.kind() == ErrorKind::Full => log::warn!("{}: {error}", collection.path()),
                done => done?,
            }
        }
        Ok(tensors)
    }

    /// Moves the rows of one tensor behind its tail, and adds them to `moved`, also before a failure. A stretch of which
    /// blocks cannot go is left until it changes, and the others go.
    fn cool_target(
        &self,
        collection: &Arc<Collection>,
        target: &Target,
        tail: &Tail,
        pass: &mut Pass<'_>,
        moved: &mut Moved,
    ) -> Result<()> {
        let is_busy = |object: &Arc<crate::store::Object>| {
            object.is_dirty() || collection.check_not_needed(object.entry.id, Some(target.node)).is_err()
        };
        if refuse_pinned(collection, target).is_err() || target.objects.iter().any(is_busy) {
            return Ok(());
        }
        let (number, parts) = {
            let state = collection.state();
            (state.number(), parts(&state, target, tail, 0))
        };
        let mut failed = Ok(());
        for part in parts {
            for (object, blocks) in target.objects.iter().zip(part.blocks) {
                let unread = OpenObject::unread(collection, object);
                // The newest block of a stretch that goes down.
                let due = |stretch: &Range<u32>| {
                    due_blocks(&unread, stretch.clone(), part.tier).iter().map(|(_, block)| block.epoch).max()
                };
                for stretch in each_of(blocks.start..blocks.end.min(object.layout().blocks())) {
                    let key = BlockKey { collection: number, object: object.entry.id, index: stretch.start };
                    let key = (key, part.tier);
                    let Some(newest) = due(&stretch) else { continue };
                    if self.automatic.lock().stuck.get(&key) == Some(&newest) {
                        continue;
                    }
                    pass.progress.check()?;
                    if pass.left == 0 {
                        return failed;
                    }
                    let cooled = OpenObject::open_by_name(collection, object)
                        .and_then(|open| cool_stretch(target, &open, stretch.clone(), part.tier, Times::All));
                    match cooled {
                        Ok(0) => {}
                        Ok(blocks) => {
                            if moved.blocks == 0 {
                                moved.nodes.extend(with_container(&collection.state(), target.node));
                            }
                            moved.blocks += blocks;
                            pass.advance(blocks.saturating_mul(object.entry.block_bytes.into()));
                        }
                        Err(error) if error.kind() == ErrorKind::Full => return Err(error),
                        Err(error) => failed = failed.and(Err(error)),
                    }
                    if let Some(newest) = due(&stretch) {
                        self.automatic.lock().stuck.insert(key, newest);
                    }
                }
            }
        }
        failed
    }
}

/// A pass over the tails.
struct Pass<'a> {
    progress: &'a dyn Progress,
    /// Bytes that it may still move.
    left: u64,
}

impl Pass<'_> {
    fn advance(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
        self.progress.advance(bytes);
    }
}
