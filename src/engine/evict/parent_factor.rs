//! Evicts tensors to factors of their difference from a lineage parent: a merged adapter of low rank is such a difference.
//!
//! An element is the sum of the parent's and the product's, rounded once. Each block has a delta, which names the factors
//! and the epoch of the parent's block. Where loss of precision is allowed, the deltas change nothing. Otherwise they lead
//! from the sums to the elements, and the tensor reads bit for bit as before.

use std::collections::BTreeMap;

use crate::engine::evict::delta::{Parent, check_depth, exact_changes, hold};
use crate::engine::evict::factor::{Wanted, check_unchanged, decompose, matrix, values};
use crate::engine::moves::touch;
use crate::engine::refuse::refused_for;
use crate::engine::results::Moved;
use crate::engine::select::Target;
use crate::engine::work::Engine;
use crate::format::checksum;
use crate::format::log::catalog::Measured;
use crate::format::log::record::Record;
use crate::format::payload::delta::{CHANGES_MAX, Changes, Delta, ON_PRODUCT};
use crate::format::payload::difference::measured;
use crate::format::payload::element::value;
use crate::format::payload::factor::{DIFFERENCE, Factor};
use crate::model::{Aim, Dtype, ErrorKind, Result, Tier};
use crate::store::{Block, OpenObject, Touched, broken};

/// A tensor as factors and deltas.
struct Planned {
    factor: Factor,
    /// By block.
    deltas: BTreeMap<u32, Delta>,
    /// The error against the current elements.
    measured: Measured,
}

/// Stores a tensor of one object as factors of its difference from its parent. The inner `Err` is the reason why it
/// cannot; nothing is changed then.
pub(super) fn evict(
    engine: &Engine,
    target: &Target,
    open: &OpenObject,
    wanted: Wanted,
    moved: &mut Moved,
) -> Result<Result<(), String>> {
    let (collection, object) = (open.collection(), open.object());
    if let Err(why) = check_depth(engine, collection, object) {
        return Ok(Err(why));
    }
    let parents = hold(engine, collection, target)?;
    let Some(parent) = parents.first() else { return Ok(Err("it has no lineage parent".to_owned())) };
    if let Err(why) = parent.check_alike(object) {
        return Ok(Err(why));
    }
    let mut now = whole(open)?;
    let before = match whole(&parent.open) {
        Ok(before) => before,
        Err(error) if matches!(error.kind(), ErrorKind::Absent | ErrorKind::Corrupt) => {
            return Ok(Err(format!("its parent does not read: {error}")));
        }
        Err(error) => return Err(error),
    };
    let is_lossy = target.allows(&collection.state(), Tier::Absent);
    let precision = if is_lossy { Precision::Rounded } else { Precision::Exact };
    let read = Elements { dtype: target.dtype, before: &before, now: &now };
    let planned = match plan(open, parent, &read, wanted, precision)? {
        Ok(planned) => planned,
        Err(why) => return Ok(Err(why)),
    };
    let Planned { factor, deltas, measured } = planned;
    let blocks = 0..object.layout().blocks();
    let migration = open.drop_blocks(blocks, &|index, _| Ok(deltas.contains_key(&index)))?;
    check_unchanged(open, target, &mut now)?;
    // Zeros that were cut off and grew again are no blocks now.
    let layout = object.layout();
    let is_there =
        |index: u32| object.block(index, layout).is_some_and(|block| is_evicted(open, index, &block));
    if !deltas.keys().all(|index| is_there(*index)) {
        return Err(refused_for(collection, target, ErrorKind::Busy, "a program is writing to it"));
    }
    if is_lossy && !target.allows(&collection.state(), Tier::Absent) {
        return Ok(Err("a write has ended the consent to lose precision".to_owned()));
    }
    let mut touched = Touched::default();
    let (factored, product) = collection.write_factor(&factor, &mut touched)?;
    let mut records = Vec::with_capacity(deltas.len());
    for delta in deltas.values() {
        let written = delta.write(target.dtype)?;
        records.push(Record::Delta {
            object: object.entry.id,
            block: delta.block,
            base_epoch: delta.base_epoch,
            offset: collection.write_delta(&written, &mut touched)?,
            len: written.len() as u32,
            chain_len: 1,
            nnz: delta.changes.len() as u32,
            checksum: checksum::of(&written),
            kind: delta.changes.kind().byte() | ON_PRODUCT,
            product,
        });
    }
    moved.blocks += migration.blocks() as u64;
    let touched = collection.record(touched, |batch, state| {
        migration.add(batch);
        batch.record(factored.clone());
        records.drain(..).for_each(|record| batch.record(record));
        Ok(touch(batch, state, target.node, measured))
    })?;
    moved.nodes.extend(touched);
    Ok(Ok(()))
}

/// How exact the sums are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precision {
    Rounded,
    Exact,
}

/// The elements of a parent and of its child.
struct Elements<'a> {
    dtype: Dtype,
    before: &'a [u8],
    now: &'a [u8],
}

/// Computes the factors and deltas of a tensor. The inner `Err` says why the tensor cannot be stored by them.
fn plan(
    open: &OpenObject,
    parent: &Parent,
    read: &Elements<'_>,
    wanted: Wanted,
    precision: Precision,
) -> Result<Result<Planned, String>> {
    let Elements { dtype, before, now } = *read;
    let object = open.object();
    let differences = values(dtype, now).zip(values(dtype, before)).map(|(now, before)| now - before);
    let difference = matrix(wanted.sides, differences);
    let own: f64 = values(dtype, now).map(|value| value * value).sum();
    if precision == Precision::Rounded && difference.norm_squared() >= own && own > 0.0 {
        return Ok(Err("its difference from the parent is larger than the tensor".to_owned()));
    }
    let factor = match decompose(object, DIFFERENCE, difference, wanted.rank) {
        Ok(factor) => factor,
        Err(why) => return Ok(Err(why)),
    };
    let mut sums = before.to_vec();
    factor.add_to(dtype, 0, &mut sums)?;
    let width = dtype.bytes() as usize;
    if !sums.chunks_exact(width).all(|sum| value(dtype, sum).is_some_and(f32::is_finite)) {
        return Ok(Err("its difference from the parent is too large".to_owned()));
    }
    let layout = object.layout();
    let (mut deltas, mut records, mut most) = (BTreeMap::new(), factor.shape().record_bytes(DIFFERENCE), 0);
    for (index, block) in object.stored_blocks(0..layout.blocks(), layout) {
        if !is_evicted(open, index, &block) {
            continue;
        }
        let start = layout.start(index) as usize;
        let range = start..start + layout.len(index);
        most += range.len() as u128 / 2;
        let (Some(sum), Some(wanted)) = (sums.get(range.clone()), now.get(range)) else {
            return Ok(Err("its size has changed".to_owned()));
        };
        let changes = match precision {
            Precision::Rounded => Some(Changes::Scaled { scale: 0.0, pairs: Vec::new() }),
            Precision::Exact => exact_changes(dtype, sum, wanted)?,
        };
        // A rounded block reads as the sum.
        let result = checksum::of(if precision == Precision::Exact { wanted } else { sum });
        let Some(changes) = changes else {
            return Ok(Err(format!("more than {CHANGES_MAX} elements of a block differ from the sums")));
        };
        let missing = || {
            let text = format!("no record describes block {index} of the parent");
            broken(parent.open.collection(), &text)
        };
        let base_epoch = parent.open.object().block(index, layout).ok_or_else(missing)?.epoch;
        records += changes.record_bytes(dtype) as u128;
        deltas.insert(index, Delta { object: object.entry.id, block: index, base_epoch, result, changes });
    }
    if records > most {
        return Ok(Err(format!("factors and differences take {records} bytes; at most {most} are allowed")));
    }
    let found = if precision == Precision::Exact { now } else { &sums };
    Ok(Ok(Planned { factor, deltas, measured: measured(dtype, found, now) }))
}

/// Whether a block is stored by the new factors: it is to be evicted, or is absent already and would lose the factors that
/// it has now.
fn is_evicted(open: &OpenObject, index: u32, block: &Block) -> bool {
    block.stored.tier == Tier::Absent || open.is_due(index, block, Aim::Tier(Tier::Absent))
}

/// All elements of an object.
fn whole(open: &OpenObject) -> Result<Vec<u8>> {
    let mut bytes = vec![0; open.object().bytes() as usize];
    open.read(0, &mut bytes)?;
    Ok(bytes)
}
