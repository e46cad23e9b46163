//! Evicts tensors to deltas: differences of their blocks from those of a lineage parent.
//!
//! Where loss of precision is allowed, the record has the differences as 16-bit numbers
//! times a scale. Otherwise it has the elements that differ, or an exact difference of all where that is
//! smaller, and the block reads bit for bit as before.

use std::collections::HashSet;
use std::sync::Arc;

use crate::codec;
use crate::engine::moves::touch;
use crate::engine::reconstruct::DEPTH_MAX;
use crate::engine::refuse::{path_of, refuse_needed, refused_for};
use crate::engine::results::Moved;
use crate::engine::select::Target;
use crate::engine::work::Engine;
use crate::format::checksum;
use crate::format::log::catalog::Measured;
use crate::format::log::record::Record;
use crate::format::payload::delta::{CHANGES_MAX, Changes, Delta, DeltaKind};
use crate::format::payload::difference::{Differences, measured, patch};
use crate::model::{Aim, CollectionName, Dtype, Error, ErrorKind, Result, Tier};
use crate::store::Collection;
use crate::store::Object;
use crate::store::OpenObject;
use crate::store::Touched;
use crate::store::{ParentHold, broken, exact_difference};

/// Logical bytes that are evicted with one batch.
const STEP_BYTES: u64 = 8 << 20;

/// How exact differences are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precision {
    Scaled,
    Exact,
}

/// The parent of an object, which cannot change while this lives.
pub(super) struct Parent {
    pub open: OpenObject,
    _held: ParentHold,
}

impl Parent {
    /// Checks that blocks of the parent and of an object have the same elements. The error states the problem.
    pub fn check_alike(&self, object: &Object) -> Result<(), String> {
        let alike = |object: &Object| (object.dtype(), object.bytes(), object.entry.block_bytes);
        if alike(object) == alike(self.open.object()) {
            Ok(())
        } else {
            Err("its parent has another element type, size or block size".to_owned())
        }
    }
}

/// Stores the blocks of a tensor as differences from its lineage parent. Fails with `Invalid` where
/// they take too much space, or where there is no parent. It then changes nothing.
pub(super) fn evict(
    engine: &Engine,
    collection: &Arc<Collection>,
    target: &Target,
    moved: &mut Moved,
) -> Result<()> {
    let cannot = |why: &str| {
        let text = format!("it cannot be stored as a difference: {why}");
        refused_for(collection, target, ErrorKind::Invalid, text)
    };
    refuse_needed(collection, target)?;
    for object in &target.objects {
        check_depth(engine, collection, object).map_err(|why| cannot(&why))?;
    }
    let parents = hold(engine, collection, target)?;
    for (object, parent) in target.objects.iter().zip(&parents) {
        parent.check_alike(object).map_err(|why| cannot(&why))?;
    }
    let is_lossy = target.allows(&collection.state(), Tier::Absent);
    let precision = chosen(collection, target, &parents, is_lossy)
        .map_err(|error| error.at(path_of(collection, target)))?;
    let precision = precision.map_err(|why| cannot(&why))?;
    let mut measured = Measured::default();
    for (object, parent) in target.objects.iter().zip(&parents) {
        let open = OpenObject::open_by_name(collection, object)?;
        let layout = object.layout();
        let step = (STEP_BYTES / u64::from(layout.block_bytes)).max(1) as u32;
        let mut first = 0;
        while first < layout.blocks() {
            let zeros = object.zeros_from(first, layout).saturating_sub(first);
            let last = first.saturating_add(step.max(zeros)).min(layout.blocks());
            evict_range(&open, parent, target, first..last, precision, &mut measured, moved)?;
            first = last;
        }
    }
    Ok(())
}

/// Evicts some blocks of an object with one batch.
fn evict_range(
    open: &OpenObject,
    parent: &Parent,
    target: &Target,
    range: std::ops::Range<u32>,
    precision: Precision,
    measured: &mut Measured,
    moved: &mut Moved,
) -> Result<()> {
    let collection = open.collection();
    let (mut touched, mut records) = (Touched::default(), Vec::new());
    let found = std::cell::RefCell::new(Vec::new());
    let migration = open.drop_blocks(range, &|index, _| {
        // Nobody writes to the object now. An earlier write has ended the consent of an import.
        if precision == Precision::Scaled && !target.allows(&collection.state(), Tier::Absent) {
            return Ok(false);
        }
        // A block that was written to after the check stays as it is.
        let Some(difference) = difference(open, parent, index, precision)? else {
            return Ok(false);
        };
        found.borrow_mut().push(difference);
        Ok(true)
    })?;
    for difference in found.into_inner() {
        let offset = collection.write_delta(&difference.record, &mut touched)?;
        records.push(Record::Delta {
            object: open.object().entry.id,
            block: difference.index,
            base_epoch: difference.base_epoch,
            offset,
            len: difference.record.len() as u32,
            chain_len: 1,
            nnz: difference.changes,
            checksum: checksum::of(&difference.record),
            kind: difference.kind.byte(),
            product: 0,
        });
        measured.add(difference.measured);
    }
    if migration.is_empty() {
        return Ok(());
    }
    moved.blocks += migration.blocks() as u64;
    let touched = collection.record(touched, |batch, state| {
        migration.add(batch);
        records.drain(..).for_each(|record| batch.record(record));
        Ok(touch(batch, state, target.node, *measured))
    })?;
    moved.nodes.extend(touched);
    Ok(())
}

/// Holds the parents of a tensor's objects, so that they cannot change.
pub(super) fn hold(engine: &Engine, collection: &Arc<Collection>, target: &Target) -> Result<Vec<Parent>> {
    let mut parents = Vec::new();
    for object in &target.objects {
        let Some(parent) = &object.entry.parent else { continue };
        let CollectionName { tenant, name } = parent.place(collection.place());
        let parent_collection = engine.store.collection(tenant, name)?;
        let (held, found) =
            collection.hold_parent(object, &parent_collection).map_err(|error| match error.kind() {
                ErrorKind::Corrupt => Error::invalid(error.to_string()),
                _ => error,
            })?;
        parents.push(Parent { open: OpenObject::open_by_name(&parent_collection, &found)?, _held: held });
    }
    Ok(parents)
}

/// Checks that an object has a parent, and not too many above it. The error states the problem.
pub(super) fn check_depth(
    engine: &Engine,
    collection: &Arc<Collection>,
    object: &Arc<Object>,
) -> Result<(), String> {
    let (mut at, mut place) = (object.clone(), collection.clone());
    let mut seen = HashSet::from([at.entry.id]);
    while let Some(parent) = at.entry.parent.clone() {
        if !seen.insert(parent.object) {
            return Err("its lineage is circular".to_owned());
        }
        if seen.len() > DEPTH_MAX + 1 {
            return Err(format!(
                "its lineage is more than {DEPTH_MAX} levels deep; evict it with another reconstruct"
            ));
        }
        let CollectionName { tenant, name } = parent.place(place.place());
        let above = engine.store.collection(tenant, name).ok();
        let found = above.and_then(|above| {
            let found = above.state().object(parent.object).cloned();
            Some((found?, above))
        });
        match found {
            Some(found) => (at, place) = found,
            // Ancestors above a missing one do not matter.
            None if Arc::ptr_eq(&at, object) => return Err("its lineage parent is gone".to_owned()),
            None => return Ok(()),
        }
    }
    if Arc::ptr_eq(&at, object) {
        Err("it has no lineage parent; import it with --parent".to_owned())
    } else {
        Ok(())
    }
}

/// Selects the precision of a tensor's records. The inner `Err` is the reason why neither fits.
fn chosen(
    collection: &Arc<Collection>,
    target: &Target,
    parents: &[Parent],
    is_lossy: bool,
) -> Result<Result<Precision, String>> {
    let is_scaled = is_lossy && target.dtype.is_quantizable();
    let scaled = is_scaled.then_some(Precision::Scaled);
    let mut why = String::new();
    for precision in scaled.into_iter().chain([Precision::Exact]) {
        let (mut records, mut most) = (0, 0);
        let mut fits = true;
        for (object, parent) in target.objects.iter().zip(parents) {
            let open = OpenObject::open_by_name(collection, object)?;
            let layout = object.layout();
            for (index, block) in object.stored_blocks(0..layout.blocks(), layout) {
                if !open.is_due(index, &block, Aim::Tier(Tier::Absent)) {
                    continue;
                }
                most += budget(precision, target.dtype, layout.len(index));
                match difference(&open, parent, index, precision)? {
                    Some(difference) => records += difference.record.len(),
                    None => fits = false,
                }
            }
        }
        if fits && records <= most {
            return Ok(Ok(precision));
        }
        why = if fits {
            format!("the differences take {records} bytes; at most {most} are allowed")
        } else {
            format!("more than {CHANGES_MAX} elements of a block differ")
        };
    }
    Ok(Err(why))
}

/// Maximal size of a block's record in bytes: half of its encoding in q3, or for an exact difference
/// half of the exact block.
fn budget(precision: Precision, dtype: Dtype, bytes: usize) -> usize {
    match precision {
        Precision::Scaled => codec::payload_len(Tier::Q3, bytes / dtype.bytes() as usize).unwrap_or(0) / 2,
        Precision::Exact => bytes / 2,
    }
}

/// The difference of a block.
struct Difference {
    index: u32,
    base_epoch: u64,
    kind: DeltaKind,
    changes: u32,
    record: Vec<u8>,
    /// The error of the block with this difference, against the current one.
    measured: Measured,
}

/// The difference of a block from its parent's, both as they read now. A block with a difference that
/// is not a finite number gets an exact record. `None` where too many elements differ.
fn difference(
    open: &OpenObject,
    parent: &Parent,
    index: u32,
    precision: Precision,
) -> Result<Option<Difference>> {
    let layout = open.object().layout();
    let Some(base) = parent.open.object().block(index, layout) else {
        return Err(broken(
            parent.open.collection(),
            &format!("no record describes block {index} of the parent"),
        ));
    };
    let dtype = open.object().dtype();
    let (mut now, mut before) = (vec![0; layout.len(index)], vec![0; layout.len(index)]);
    open.read(layout.start(index), &mut now)?;
    parent.open.read(layout.start(index), &mut before)?;
    let scaled = match precision {
        Precision::Scaled => {
            Differences::of(dtype, &before, &now, usize::MAX).and_then(|found| found.scaled())
        }
        Precision::Exact => None,
    };
    let changes = scaled
        .filter(|scaled| scaled.len() <= CHANGES_MAX)
        .map_or_else(|| exact_changes(dtype, &before, &now), |scaled| Ok(Some(scaled)))?;
    let Some(changes) = changes else { return Ok(None) };
    let kind = changes.kind();
    let object = open.object().entry.id;
    let mut delta = Delta { object, block: index, base_epoch: base.epoch, result: 0, changes };
    let made = match kind {
        DeltaKind::Scaled => {
            delta.apply(dtype, &mut before)?;
            &before
        }
        DeltaKind::Patch | DeltaKind::Exact => &now,
    };
    delta.result = checksum::of(made);
    let measured = measured(dtype, made, &now);
    let record = delta.write(dtype)?;
    let changes = delta.changes.len() as u32;
    Ok(Some(Difference { index, base_epoch: base.epoch, kind, changes, record, measured }))
}

/// The smaller of the elements that differ and an exact difference of all. `None` where neither can be.
pub(super) fn exact_changes(dtype: Dtype, before: &[u8], now: &[u8]) -> Result<Option<Changes>> {
    let patch = patch(dtype, before, now).filter(|patch| patch.len() <= CHANGES_MAX);
    let all = [patch, exact_difference(dtype, before, now)?];
    Ok(all.into_iter().flatten().min_by_key(|changes| changes.record_bytes(dtype)))
}
