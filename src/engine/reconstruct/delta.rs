//! Reads absent blocks that are stored as differences from the same blocks of a lineage parent.
//!
//! Such a block is the parent's block, as that reads now, perhaps plus a product (`factor.rs`), plus a record in
//! `delta.dat`, which has the checksum of the result. The parent does not change while blocks need it
//! (`store/collection/lineage.rs`), but another store, or an import after the parent was lost, may have put another one in
//! its place.

use std::cell::Cell;
use std::sync::Arc;

use crate::engine::reconstruct::factor;
use crate::format::checksum;
use crate::format::payload::delta::DeltaKind;
use crate::format::payload::factor::Factor;
use crate::model::{ErrorKind, Result, Tier};
use crate::store::{Block, DeltaLink, OpenObject, broken};

/// Maximal number of lineage parents above a tensor.
pub(in crate::engine) const DEPTH_MAX: usize = 3;

thread_local! {
    /// How many nested blocks this thread is reconstructing, each a parent's of the one before.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Counts one more nested block while this lives.
struct Deeper;

impl Deeper {
    fn enter(open: &OpenObject) -> Result<Deeper> {
        let depth = DEPTH.get();
        if depth >= DEPTH_MAX {
            let text = format!("its lineage is more than {DEPTH_MAX} levels deep");
            return Err(broken(open.collection(), &text));
        }
        DEPTH.set(depth + 1);
        Ok(Deeper)
    }
}

impl Drop for Deeper {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

/// Whether an absent block is stored as a difference.
pub(super) fn is_there(open: &OpenObject, index: u32, block: &Block) -> bool {
    precision(open, index, block).is_some()
}

/// The precision of a reconstructed block. A patch and an exact difference are exact. A scaled difference has at best the
/// precision of 8 bits, and counts as that.
pub(super) fn precision(open: &OpenObject, index: u32, block: &Block) -> Option<Tier> {
    match link_on_parent(open, index, block)?.kind {
        DeltaKind::Patch | DeltaKind::Exact => Some(Tier::Exact),
        DeltaKind::Scaled => Some(Tier::Q8),
    }
}

/// Reconstructs a block from its difference into `out`, which has the size of the block. Returns
/// `false` for other blocks. Fails with `Corrupt` where the parent has changed.
pub(super) fn read(open: &OpenObject, index: u32, block: &Block, out: &mut [u8]) -> Result<bool> {
    if is_of_another(open, index, block)? {
        let (parent_collection, _) = open.parent()?;
        return Err(broken(&parent_collection, &format!("block {index} of the parent has changed")));
    }
    read_unproven(open, index, block, out)
}

/// Whether a block is a difference from a block of the parent that has another epoch by now.
pub(super) fn is_of_another(open: &OpenObject, index: u32, block: &Block) -> Result<bool> {
    let Some(link) = link_on_parent(open, index, block) else { return Ok(false) };
    let (_, parent) = open.parent()?;
    let found = parent.block(index, parent.layout());
    Ok(found.is_none_or(|found| found.epoch != link.base_epoch))
}

/// As [`read`], by the present block of the parent, whatever its epoch, as long as it makes the right bytes.
pub(super) fn read_unproven(open: &OpenObject, index: u32, block: &Block, out: &mut [u8]) -> Result<bool> {
    let Some((link, factor)) = with_factor(open, index, block)? else { return Ok(false) };
    let _deeper = Deeper::enter(open)?;
    let (parent_collection, parent) = open.parent()?;
    let layout = parent.layout();
    if index >= layout.blocks() || layout.len(index) != out.len() {
        return Err(broken(&parent_collection, &format!("block {index} of the parent has another size")));
    }
    let base = open.open_same_way(&parent_collection, &parent)?;
    base.read(layout.start(index), out).map_err(|error| match error.kind() {
        ErrorKind::Absent => broken(&parent_collection, &error.to_string()),
        _ => error,
    })?;
    if let Some(factor) = factor {
        factor::add(open, &factor, index, out)?;
    }
    let result = open.apply_link(index, &link, out)?;
    if checksum::of(out) != result {
        // In another store, or after a loss, a parent may have the same name, number and epoch by chance.
        let why = format!("block {index} of the parent is not the one that the difference was made from");
        return Err(broken(&parent_collection, &why));
    }
    Ok(true)
}

/// The difference of a block, with the factors that it names. `None` for other blocks.
fn with_factor(
    open: &OpenObject,
    index: u32,
    block: &Block,
) -> Result<Option<(DeltaLink, Option<Arc<Factor>>)>> {
    let look = || {
        let link = link_on_parent(open, index, block)?;
        Some((link, link.product.map(|checksum| factor::difference(open, checksum))))
    };
    let mut found = look();
    if matches!(found, Some((_, Some(None)))) {
        // An eviction may replace both just now. Its batch is applied while nobody reads the state.
        let _state = open.collection().state();
        found = look();
    }
    let (link, product) = match found {
        None => return Ok(None),
        Some((link, None)) => return Ok(Some((link, None))),
        Some((link, Some(product))) => (link, product),
    };
    let text = || format!("block {index} names factors that are not there");
    let product = product.ok_or_else(|| broken(open.collection(), &text()))?;
    Ok(Some((link, Some(factor::factors(open, product)?))))
}

fn link_on_parent(open: &OpenObject, index: u32, block: &Block) -> Option<DeltaLink> {
    let links = open.object().deltas(index, block.epoch)?;
    links.iter().find(|link| link.is_on_parent).copied()
}
