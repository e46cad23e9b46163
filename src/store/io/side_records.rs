//! The records of `delta.dat` and `factor.dat`: writes, reads and verifies them.

use crate::format::checksum;
use crate::format::log::record::Record;
use crate::format::payload::factor::{Factor, WHOLE_TENSOR};
use crate::model::{Error, Result};
use crate::store::collection::Collection;
use crate::store::collection::open_object::OpenObject;
use crate::store::object::links::{DELTA_FILE, FACTOR_FILE, FactorLink};
use crate::store::space::files::Touched;

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
        self.write_record(DELTA_FILE, record, touched)
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
            let path = self.collection.files.payload_path(FACTOR_FILE);
            format!("{path} at byte {}, object {}", link.offset, self.object.entry.id)
        };
        let read = self.collection.files.read_record(FACTOR_FILE, (link.offset, link.len), link.checksum);
        let factor = Factor::parse(&read.map_err(|error| error.at(place()))?);
        let factor = factor.map_err(|error| error.at(place()))?;
        if factor.object != self.object.entry.id || factor.block != WHOLE_TENSOR {
            return Err(Error::corrupt(format!("{}: the factors are of another object", place())));
        }
        Ok(factor)
    }
}
