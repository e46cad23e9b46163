//! The records of `delta.dat` and `factor.dat`: writes, reads and verifies them.

use crate::format::checksum;
use crate::format::log::record::Record;
use crate::format::payload::factor::{Factor, WHOLE_TENSOR};
use crate::model::{Error, Result};
use crate::store::collection::{Collection, Touched};
use crate::store::io::read::OpenObject;
use crate::store::object::links::{DELTA_FILE, FACTOR_FILE, FactorLink};

impl Collection {
    /// Writes a record of `delta.dat` or `factor.dat` to a free slot, which `touched` owns until a
    /// batch names it. Returns its offset.
    pub(in crate::store) fn write_record(
        &self,
        number: u8,
        record: &[u8],
        touched: &mut Touched,
    ) -> Result<u64> {
        let len = record.len() as u64;
        let offset = self.take_slot_of(number, len)?;
        touched.slots.take(&self.reservations, (number, offset, len));
        let file = self.payload_file(number)?;
        file.write_at(record, offset)
            .map_err(|error| Error::io(format!("writing {}", self.payload_path(number)), error))?;
        touched.file(&file);
        Ok(offset)
    }

    /// Reads and verifies the record of `delta.dat` or `factor.dat` with this offset and length.
    /// `Corrupt` if it does not match the log. Allocates no more than the size of the file.
    pub(in crate::store) fn read_record(
        &self,
        number: u8,
        (offset, len): (u64, u64),
        checksum: u32,
    ) -> Result<Vec<u8>> {
        let path = || self.payload_path(number);
        let file = self.payload_file(number).map_err(|error| Error::corrupt(error.to_string()))?;
        let bytes = file.len().map_err(|error| Error::io(path(), error))?;
        let len =
            usize::try_from(len).ok().filter(|_| offset.checked_add(len).is_some_and(|end| end <= bytes));
        let len = len.ok_or_else(|| Error::corrupt(format!("{} is cut off; run tierfs fsck", path())))?;
        let mut record = vec![0; len];
        file.read_exact_at(&mut record, offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Error::corrupt(error.to_string()),
            _ => Error::io(path(), error),
        })?;
        let found = checksum::of(&record);
        if found != checksum {
            return Err(Error::corrupt(format!(
                "record crc {found:#010x} but the log says {checksum:#010x}; run tierfs fsck"
            )));
        }
        Ok(record)
    }

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
