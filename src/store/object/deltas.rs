//! Deltas: writes to encoded blocks, kept as deltas on the block; and the deltas of absent
//! blocks, which apply to the same block of the lineage parent.
//!
//! The block tells which kind a delta is: an absent block has no elements of its own to write to. Its
//! chain has one link.
//!
//! Invariants:
//! 1. A chain belongs to one epoch of its block: rewriting the block ends the chain.
//! 2. A block with a chain is never shown without it.
//! 3. A chain has at most [`LINKS_MAX`] links. A record with chain length 1 replaces an existing chain:
//!    the earlier links are merged into it.

use std::sync::Arc;

use crate::model::{Error, Result, Tier};
use crate::store::object::blocks::Block;
use crate::store::object::links::{DeltaLink, LINKS_MAX};
use crate::store::object::{Object, lies_in_a_file};

impl Object {
    /// The deltas on a block of this epoch, in order.
    pub fn deltas(&self, index: u32, epoch: u64) -> Option<Arc<[DeltaLink]>> {
        self.existing_write_state()?.deltas.read().get(&(index, epoch)).cloned()
    }

    /// Number of deltas on a block of this epoch, and the bytes of their records.
    pub fn deltas_size(&self, index: u32, epoch: u64) -> (usize, u64) {
        let Some(write_state) = self.existing_write_state() else { return (0, 0) };
        let deltas = write_state.deltas.read();
        let links = deltas.get(&(index, epoch)).map(AsRef::as_ref).unwrap_or_default();
        (links.len(), links.iter().map(|link| u64::from(link.len)).sum())
    }

    /// Applies a Delta record. Returns the links that it replaces.
    pub(in crate::store) fn link(
        &self,
        index: u32,
        base_epoch: u64,
        link: DeltaLink,
        chain_len: u16,
    ) -> Result<Vec<DeltaLink>> {
        let block = self.blocks.read().get(index, self.layout());
        let is_absent = |block: &Block| block.stored.tier == Tier::Absent && self.entry.parent.is_some();
        let (epoch, link) = match block {
            Some(block)
                if block.epoch == base_epoch && block.stored.tier.is_encoded() && link.product.is_none() =>
            {
                (Some(base_epoch), link)
            }
            Some(block) if is_absent(&block) && chain_len == 1 => {
                (Some(block.epoch), DeltaLink { is_on_parent: true, ..link })
            }
            _ => (None, link),
        };
        let epoch = epoch.filter(|_| lies_in_a_file(link.offset, u64::from(link.len)));
        let Some(epoch) = epoch else {
            let id = self.entry.id;
            return Err(Error::corrupt(format!(
                "a delta on block {index} of object {id} does not fit the block"
            )));
        };
        let mut deltas = self.write_state().deltas.write();
        let before = deltas.get(&(index, epoch)).cloned().unwrap_or_default();
        let place = usize::from(chain_len);
        if place == 0 || place > LINKS_MAX || (place != 1 && place != before.len() + 1) {
            let id = self.entry.id;
            return Err(Error::corrupt(format!(
                "delta {place} on block {index} of object {id} follows {} deltas",
                before.len()
            )));
        }
        let replaced = if place == 1 { before.to_vec() } else { Vec::new() };
        let kept = if place == 1 { &[] } else { &*before };
        deltas.insert((index, epoch), kept.iter().copied().chain([link]).collect());
        let gone: u64 = replaced.iter().map(|link| u64::from(link.len)).sum();
        self.add_linked(u64::from(link.len).wrapping_sub(gone));
        Ok(replaced)
    }

    /// Ends the chain of a block that is rewritten. The chain no longer counts as stored, and stays
    /// until [`forget_deltas`](Self::forget_deltas) for readers of the old block.
    pub(in crate::store) fn end_deltas(&self, index: u32, epoch: u64) -> Option<Arc<[DeltaLink]>> {
        let links = self.deltas(index, epoch)?;
        let bytes: u64 = links.iter().map(|link| u64::from(link.len)).sum();
        self.add_linked(0_u64.wrapping_sub(bytes));
        Some(links)
    }

    /// Removes a chain once the old block has no readers.
    pub(in crate::store) fn forget_deltas(&self, index: u32, epoch: u64) {
        if let Some(write_state) = self.existing_write_state() {
            write_state.deltas.write().remove(&(index, epoch));
        }
    }

    /// Whether any of its blocks are stored as differences to the lineage parent, including blocks that
    /// a reader may still read so.
    pub fn needs_parent(&self) -> bool {
        self.entry.parent.is_some() && self.links().iter().any(|link| link.is_on_parent)
    }

    /// The blocks that are stored as differences to those of the lineage parent.
    pub(in crate::store) fn blocks_on_parent(&self) -> Vec<u32> {
        let Some(write_state) = self.existing_write_state() else { return Vec::new() };
        let mut found: Vec<(u32, u64)> = {
            let deltas = write_state.deltas.read();
            let on_parent = deltas.iter().filter(|(_, links)| links.iter().any(|link| link.is_on_parent));
            on_parent.map(|(block, _)| *block).collect()
        };
        // Deltas of blocks that were rewritten wait for readers.
        let layout = self.logged_layout();
        found.retain(|(index, epoch)| self.block(*index, layout).is_some_and(|block| block.epoch == *epoch));
        found.into_iter().map(|(index, _)| index).collect()
    }

    /// Whether blocks are the sum of the parent's and of a product.
    pub fn has_products(&self) -> bool {
        self.links().iter().any(|link| link.product.is_some())
    }

    /// The number of links of each chain.
    pub fn delta_counts(&self) -> Vec<u64> {
        let Some(write_state) = self.existing_write_state() else { return Vec::new() };
        write_state.deltas.read().values().map(|links| links.len() as u64).filter(|len| *len > 0).collect()
    }

    /// All deltas of all blocks.
    pub(in crate::store) fn links(&self) -> Vec<DeltaLink> {
        let Some(write_state) = self.existing_write_state() else { return Vec::new() };
        write_state.deltas.read().values().flat_map(|links| links.iter().copied()).collect()
    }
}
