//! Factorizations: an object's absent blocks as rows of a product of matrices.
//!
//! Invariants:
//! 1. A factorization covers the blocks that were absent when it was recorded: those with a lower
//!    sequence number. It does not cover blocks that became absent later.
//! 2. It exists as long as a block of the object is absent.
//! 3. A product that is the difference from the parent is part of a block only where the block's delta names it by its
//!    checksum.

use crate::format::log::record::Record;
use crate::format::payload::factor::{DIFFERENCE, WHOLE_TENSOR};
use crate::model::{Error, Result, Tier};
use crate::store::object::blocks::Block;
use crate::store::object::links::PayloadPlace;
use crate::store::object::{Object, lies_in_a_file};

/// Number of `factor.dat` among the payload files.
pub(in crate::store) const FACTOR_FILE: u8 = 5;

/// The factorization of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FactorLink {
    /// The sequence number of its record.
    pub epoch: u64,
    /// Byte offset of its record in `factor.dat`.
    pub offset: u64,
    /// Bytes of the record.
    pub len: u64,
    /// Number of products in the sum.
    pub rank: u32,
    /// CRC32C of the record.
    pub checksum: u32,
    /// Whether the product is the difference from the lineage parent.
    pub is_difference: bool,
}

impl FactorLink {
    /// The block index of its records.
    pub(in crate::store) fn block(&self) -> u32 {
        if self.is_difference { DIFFERENCE } else { WHOLE_TENSOR }
    }
}

/// Whether a factorization was ended and waits for its last reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store) struct IsEnded(pub bool);

impl Object {
    /// The object's factorization, including one that was ended but still has readers.
    pub fn factor(&self) -> Option<FactorLink> {
        self.existing_write_state()?.factor.read().map(|(link, _)| link)
    }

    /// The factorization that covers an absent block.
    pub fn factor_of(&self, block: &Block) -> Option<FactorLink> {
        self.factor().filter(|link| block.stored.tier == Tier::Absent && block.epoch < link.epoch)
    }

    /// Applies a Factor record. Returns the factorization that it replaces.
    pub(in crate::store) fn factored(&self, link: FactorLink) -> Result<Option<FactorLink>> {
        let has_base = self.entry.parent.is_some() || !link.is_difference;
        if !lies_in_a_file(link.offset, link.len) || !self.has_absent() || !has_base {
            let id = self.entry.id;
            return Err(Error::corrupt(format!(
                "a factorization names object {id}, which has no absent blocks or no parent, or lies past the end of its file"
            )));
        }
        let before = self.write_state().factor.write().replace((link, IsEnded(false)));
        let before = before.filter(|(_, is_ended)| !is_ended.0).map(|(link, _)| link);
        self.add_linked(link.len.wrapping_sub(before.map_or(0, |before| before.len)));
        Ok(before)
    }

    /// Ends the factorization if no block is absent any more. It no longer counts as stored, and stays
    /// until [`forget_factor`](Self::forget_factor) for its readers.
    pub(in crate::store) fn end_factor(&self) -> Option<FactorLink> {
        if self.has_absent() {
            return None;
        }
        let mut factor = self.existing_write_state()?.factor.write();
        let (link, is_ended) = factor.as_mut().filter(|(_, is_ended)| !is_ended.0)?;
        is_ended.0 = true;
        let link = *link;
        self.add_linked(0_u64.wrapping_sub(link.len));
        Some(link)
    }

    /// Removes the factorization once it has no readers.
    pub(in crate::store) fn forget_factor(&self, link: &FactorLink) {
        let Some(write_state) = self.existing_write_state() else { return };
        let mut factor = write_state.factor.write();
        if factor.is_some_and(|(known, _)| known == *link) {
            *factor = None;
        }
    }
}

/// The factorization in a Factor record with sequence number `epoch`; `None` for other records.
pub(in crate::store) fn factor_link_of(record: &Record, epoch: u64) -> Option<FactorLink> {
    match *record {
        Record::Factor {
            block: block @ (WHOLE_TENSOR | DIFFERENCE), offset, len, rank, checksum, ..
        } => {
            let is_difference = block == DIFFERENCE;
            Some(FactorLink { epoch, offset, len, rank, checksum, is_difference })
        }
        _ => None,
    }
}

/// The place of a factorization.
pub(in crate::store) fn place_of_factor(link: &FactorLink) -> PayloadPlace {
    PayloadPlace { file: FACTOR_FILE, offset: link.offset, len: link.len }
}
