//! Moves between tiers.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::reconstruct::{has_exact_source, precision, read_exact};
use crate::engine::results::Moved;
use crate::engine::select::{Target, taken, targets};
use crate::engine::settings::{encoder, is_lossy_allowed};
use crate::engine::work::Engine;
use crate::format::log::catalog::{Entry, Measured, NodeEntry, NodeType};
use crate::model::{Encoder, EntryId, Error, ErrorKind, MoveTo, Progress, Result, Tier};
use crate::store::Block;
use crate::store::Collection;
use crate::store::Elements;
use crate::store::OpenObject;
use crate::store::State;
use crate::store::Use;
use crate::store::now_nanoseconds;

/// Logical bytes that are moved with one batch.
const STEP_BYTES: u64 = 8 << 20;
/// Logical bytes after which a sync releases the freed space.
const SYNC_BYTES: u64 = 256 << 20;

/// Prefix of the reason of a rejected request in `why`. The next accepted request clears it.
pub const REFUSED: &str = " refused: ";

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
    /// Moves a tensor to a tier. For a container or a directory it moves the tensors that
    /// [`MoveTo::takes`] selects. Durable when it returns. `moved` receives the changes, also on an
    /// error.
    ///
    /// Fails with `Denied` for a tensor that is not of floats, or where the last exact copy would be
    /// lost and `lossy` does not allow it. Fails with `Invalid` where a block would have to become
    /// more precise than any source. It then changes nothing.
    pub fn set_tier(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        to: MoveTo,
        progress: &dyn Progress,
        moved: &mut Moved,
    ) -> Result<()> {
        let _alone = self.at_work.lock();
        collection.check_writable()?;
        let planned = self.plan(collection, node, to, moved)?;
        let encoder = |node| encoder(&collection.state(), node);
        let mut unsynced = 0;
        for Planned { target, from, .. } in planned {
            let tiers: Vec<&str> = from.keys().map(|tier| tier.name()).collect();
            let from = if tiers.len() == 1 { tiers.concat() } else { "mixed".to_owned() };
            let number = collection.state().number();
            let moving = self.begin((number, target.node), from, to.tier, target.bytes());
            let encoder = encoder(target.node);
            let mut advance = |bytes| {
                moving.running.advance(bytes);
                progress.advance(bytes);
                unsynced += bytes;
                if unsynced >= SYNC_BYTES {
                    unsynced = 0;
                    collection.sync()?;
                }
                if progress.is_cancelled() {
                    Err(Error::new(ErrorKind::Interrupted, "cancelled by request"))
                } else {
                    Ok(())
                }
            };
            move_target(collection, &target, (to.tier, encoder), moved, &mut advance)?;
        }
        collection.sync()
    }

    /// Logical bytes of the tensors that a move would process. Fails as [`set_tier`](Self::set_tier)
    /// does.
    pub fn check_tier(&self, collection: &Arc<Collection>, node: EntryId, to: MoveTo) -> Result<u64> {
        let planned = self.plan(collection, node, to, &mut Moved::default())?;
        Ok(planned.iter().map(|planned| planned.target.bytes()).sum())
    }

    fn plan(
        &self,
        collection: &Arc<Collection>,
        node: EntryId,
        to: MoveTo,
        moved: &mut Moved,
    ) -> Result<Vec<Planned>> {
        let found = targets(collection, node)?;
        let is_one = {
            let state = collection.state();
            state.node(node).and_then(|node| node.file()).is_some_and(|file| file.tensor.is_some())
        };
        let chosen = if is_one { found } else { taken(found, to, self.store.settings()) };
        let (mut planned, mut left, mut opened) = (Vec::new(), None, None);
        for target in chosen {
            match check(collection, &target, to.tier, &mut opened) {
                Ok((from, _)) if from.is_empty() => {}
                Ok((from, stored)) => planned.push(Planned { target, from, stored }),
                // One of many tensors does not stop the others.
                Err(error) if !is_one && matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Busy) => {
                    left.get_or_insert(error.kind());
                    moved.left.push((target.node, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        match (moved.left.first(), left) {
            (Some((_, why)), Some(kind)) if planned.is_empty() => Err(Error::new(kind, why.clone())),
            _ => {
                let sum = |of: fn(&Planned) -> u64| planned.iter().map(of).sum::<u64>();
                let (more, less) = (sum(|planned| planned.stored.0), sum(|planned| planned.stored.1));
                let more = Use { stored: more.saturating_sub(less), ..Use::default() };
                collection.meter().check(more)?;
                Ok(planned)
            }
        }
    }
}

/// Fails with `Busy` where a tensor or its container is pinned.
pub(super) fn refuse_pinned(collection: &Collection, target: &Target) -> Result<()> {
    if !collection.state().has_any_pin(target.node) {
        return Ok(());
    }
    let text = format!(
        "{}/{}: it or its container is pinned; set user.tierfs.pin to 0 first",
        collection.path(),
        target.path
    );
    Err(Error::new(ErrorKind::Busy, text))
}

/// The blocks of a tensor that a move to a tier affects, by tier; their size after the move, and
/// before. `opened` has the object that was checked last, whose outside file others may lie in too.
fn check(
    collection: &Arc<Collection>,
    target: &Target,
    to: Tier,
    opened: &mut Option<OpenObject>,
) -> Result<Concerned> {
    let path = || format!("{}/{}", collection.path(), target.path);
    refuse_pinned(collection, target)?;
    if !target.dtype.is_quantizable() && to != Tier::Exact {
        let text =
            format!("{}: {} elements cannot be quantized; only f32, f16 and bf16 can", path(), target.dtype);
        return Err(Error::new(ErrorKind::Denied, text));
    }
    if target.objects.iter().any(|object| object.dtype() != target.dtype) {
        let text =
            format!("{}: its blocks are encoded as another element type; rewrite the file first", path());
        return Err(Error::new(ErrorKind::Denied, text));
    }
    let mut from: BTreeMap<Tier, u64> = BTreeMap::new();
    let mut is_kept = true;
    let mut stored = (0, 0);
    for object in &target.objects {
        collection.check_not_needed(object.entry.id)?;
        let layout = object.layout();
        let open = &*opened.insert(OpenObject::open_by_name_after(collection, object, opened.as_ref())?);
        if object.origin.is_some() {
            let stored = object.stored_blocks(0..layout.blocks(), layout);
            let due = stored.filter(|(index, block)| open.is_due(*index, block, to));
            open.verify_origins(due.map(|(index, _)| index));
        }
        for (index, block) in object.stored_blocks(0..layout.blocks(), layout) {
            if open.is_due(index, &block, to) {
                let is_exact = has_exact_source(open, index, &block);
                is_kept &= is_exact;
                let source = if is_exact { Tier::Exact } else { precision(open, index, &block) };
                if source == Tier::Absent {
                    let text = format!("{}: block {index} is absent and cannot be reconstructed", path());
                    return Err(Error::new(ErrorKind::Absent, text));
                }
                if to.finer_than(source) {
                    let text = format!(
                        "{}: block {index} is {source}, and no more precise source exists for {to}; \
                         rewrite the file or import it again",
                        path()
                    );
                    return Err(Error::invalid(text));
                }
                *from.entry(block.stored.tier).or_default() += 1;
                stored.0 += object.payload_len(index, to)? as u64;
                stored.1 += u64::from(block.stored.len) + object.deltas_size(index, block.epoch).1;
            }
        }
    }
    if !is_kept && to != Tier::Exact && !is_lossy_allowed(&collection.state(), target.node) {
        let text = format!(
            "{}: this would drop its last exact copy; set user.tierfs.lossy to allow on it or above it first",
            path()
        );
        return Err(Error::new(ErrorKind::Denied, text));
    }
    Ok((from, stored))
}

/// Reads the most precise elements of a block for a move to a tier into `out`. Fails with `Invalid`
/// where the tier needs more precision, and with `Denied` where a loss of precision is not allowed.
fn elements(
    open: &OpenObject,
    (index, block): (u32, &Block),
    to: Tier,
    is_lossy_allowed: bool,
    out: &mut [u8],
) -> Result<Elements> {
    let exact = read_exact(open, index, block, out);
    if let Ok(Some(elements)) = exact {
        return Ok(elements);
    }
    let place =
        || format!("{}: block {index} of object {}", open.collection().path(), open.object().entry.id);
    let gone = || exact.as_ref().err().map_or_else(|| "it was written to".to_owned(), Error::to_string);
    if to.finer_than(precision(open, index, block)) {
        return Err(Error::invalid(format!(
            "{}: its exact source is no longer available: {}",
            place(),
            gone()
        )));
    }
    if to != Tier::Exact && !is_lossy_allowed {
        let text = format!("{}: this would drop its last exact copy: {}", place(), gone());
        return Err(Error::new(ErrorKind::Denied, text));
    }
    let layout = open.object().layout();
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
    to: (Tier, Encoder),
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
            let mut migration = open.migrate(first..last, to, &|open, index, block, out| {
                // Nobody writes to the object now. An earlier write has ended the consent of an
                // import.
                let is_lossy_allowed = is_lossy_allowed(&collection.state(), target.node);
                elements(open, (index, block), to.0, is_lossy_allowed, out)
            })?;
            if !migration.is_empty() {
                measured.add(migration.measured);
                moved.blocks += migration.blocks() as u64;
                let touched = std::mem::take(&mut migration.touched);
                let recorded = collection.record(touched, |batch, state| {
                    migration.add(batch);
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
    let container = state.node(node).and_then(|node| node.file()).and_then(|file| file.container);
    for id in [Some(node), container].into_iter().flatten() {
        let Some(found) = state.node(id) else { continue };
        let mut entry = NodeEntry { mtime: now, ctime: now, ..found.entry.clone() };
        if let NodeType::File(file) = &mut entry.node_type {
            if id == node {
                file.error = Some(Box::new(measured)).filter(|measured| measured.elements > 0);
            }
            if file.why.contains(REFUSED) {
                file.why = Box::default();
            }
        }
        batch.entry(Entry::Node(Box::new(entry)));
        touched.push(id);
    }
    touched
}
