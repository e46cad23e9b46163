//! Factorizations: an object's absent blocks as rows of a product of matrices.
//!
//! Invariants:
//! 1. A factorization covers the blocks that were absent when it was recorded: those with a lower
//!    sequence number. It does not cover blocks that became absent later.
//! 2. It exists as long as a block of the object is absent.

use crate::format::checksum;
use crate::format::log::record::Record;
use crate::format::payload::factor::{Factor, WHOLE_TENSOR};
use crate::model::{Error, Result, Tier};
use crate::store::Collection;
use crate::store::collection::Touched;
use crate::store::io::read::OpenObject;
use crate::store::object::blocks::Block;
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
}

/// Whether a factorization was ended and waits for its last reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store) struct IsEnded(bool);

/// File number, offset and length of a factorization.
pub(in crate::store) fn place_of_factor(link: &FactorLink) -> (u8, u64, u64) {
    (FACTOR_FILE, link.offset, link.len)
}

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
        if !lies_in_a_file(link.offset, link.len) || !self.has_absent() {
            let id = self.entry.id;
            return Err(Error::corrupt(format!("a factorization of object {id}, which it cannot be of")));
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

impl OpenObject {
    /// Verifies the object's factorization, once since the store was opened.
    pub(in crate::store) fn check_factor(&self, link: &FactorLink) -> Result<()> {
        let mut checked = self.object.write_state().factor_checked.lock();
        if *checked != link.epoch {
            self.read_factor(link)?;
            *checked = link.epoch;
        }
        Ok(())
    }

    /// Reads and verifies the object's factorization.
    pub fn read_factor(&self, link: &FactorLink) -> Result<Factor> {
        let place = || {
            let path = self.collection.payload_path(FACTOR_FILE);
            format!("{path} at byte {}, object {}", link.offset, self.object.entry.id)
        };
        let read = self.collection.read_record(FACTOR_FILE, (link.offset, link.len), link.checksum);
        let factor = Factor::parse(&read.map_err(|error| error.at(place()))?);
        let factor = factor.map_err(|error| error.at(place()))?;
        if factor.object != self.object.entry.id || factor.block != WHOLE_TENSOR {
            return Err(Error::corrupt(format!("{}: the factors are of another object", place())));
        }
        Ok(factor)
    }
}

impl Collection {
    /// Stores the factorization of a whole object. Returns the record that describes it.
    pub fn write_factor(&self, factor: &Factor, rank: u32, touched: &mut Touched) -> Result<Record> {
        let record = factor.write();
        let offset = self.write_record(FACTOR_FILE, &record, touched)?;
        let (len, checksum) = (record.len() as u64, checksum::of(&record));
        Ok(Record::Factor { object: factor.object, block: WHOLE_TENSOR, offset, len, rank, checksum })
    }

    /// Stores a delta. Returns its offset in `delta.dat`.
    pub fn write_delta(&self, record: &[u8], touched: &mut Touched) -> Result<u64> {
        self.write_record(crate::store::object::deltas::DELTA_FILE, record, touched)
    }
}

/// The factorization in a Factor record with sequence number `epoch`; `None` for other records.
pub(in crate::store) fn factor_link_of(record: &Record, epoch: u64) -> Option<FactorLink> {
    match *record {
        Record::Factor { block: WHOLE_TENSOR, offset, len, rank, checksum, .. } => {
            Some(FactorLink { epoch, offset, len, rank, checksum })
        }
        _ => None,
    }
}
