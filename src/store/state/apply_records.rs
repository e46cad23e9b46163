//! Applies the records of the log about objects: their blocks, deltas and factors.

use std::ops::Range;
use std::sync::Arc;

use crate::format::log::block_record::{BlockRecord, of_slot_run};
use crate::format::log::record::Record;
use crate::model::{Error, ObjectId, Result, Tier};
use crate::store::object::Object;
use crate::store::object::blocks::{Block, Checksums, Run};
use crate::store::object::factors::factor_link_of;
use crate::store::object::links::link_of;
use crate::store::object::origin::OriginRun;
use crate::store::state::State;
use crate::store::state::by_id::ById;
use crate::store::state::freed_space::Freed;

impl State {
    /// Applies a record about blocks. `payload` follows it in the log: the array of a run.
    pub fn apply_record(&mut self, record: &Record, sequence: u64, payload: &[u8]) -> Result<()> {
        if let Some(placed) = BlockRecord::of(record, sequence) {
            return self.apply_blocks(&[placed], |_, error| Err(error));
        }
        match *record {
            Record::SlotRun { object, stored, .. } => {
                let found = self.known(object)?.clone();
                let payload_len = |block| found.payload_len(block, stored.tier);
                let records = of_slot_run(record, sequence, payload, payload_len)?;
                self.apply_blocks(&records, |_, error| Err(error))
            }
            Record::CreateRun { object, block, stored, created_at, .. } => {
                let since = created_at as u32;
                let run =
                    Run { epoch: sequence, offset: stored.offset, since, checksums: checksums_of(payload) };
                self.apply_run(object, block, run)
            }
            Record::EmptyRun { object, block, count, stored, created_at } => {
                let empty = Block { epoch: sequence, stored, since: created_at as u32 };
                self.apply_empty(object, block..block.saturating_add(count), empty)
            }
            Record::Delete { object } => {
                self.remove_object(object);
                Ok(())
            }
            Record::Delta { .. } => self.apply_delta(record),
            Record::Factor { object, .. } => {
                let unknown =
                    || Error::unsupported("a factor of one block, which this program does not know");
                let link = factor_link_of(record, sequence).ok_or_else(unknown)?;
                let found = self.known(object)?.clone();
                let replaced = found.factored(link)?;
                State::count(&mut self.counted, &found);
                self.freed.extend(replaced.map(Freed::Factor));
                Ok(())
            }
            // Create and Migrate are about one block each and were applied above.
            Record::Create { .. }
            | Record::Migrate { .. }
            | Record::Catalog { .. }
            | Record::Commit { .. }
            | Record::Small { .. }
            | Record::Header { .. } => Ok(()),
        }
    }

    /// Applies a run of exact blocks in a data file, from a block on.
    fn apply_run(&mut self, object: ObjectId, block: u32, run: Run) -> Result<()> {
        let found = self.known(object)?.clone();
        if let (Some(origin), Some(extent)) = (&found.origin, found.extent()) {
            if block != 0 || run.offset != extent.offset {
                return Err(Error::corrupt(format!(
                    "a run of object {object} begins at block {block} and byte {}, not at block 0 and byte {}",
                    run.offset, extent.offset
                )));
            }
            let Run { epoch, since, ref checksums, .. } = run;
            origin.set_run(OriginRun { epoch, since, checksums: checksums.clone() });
        }
        let replaced = found.set_run(block, run)?;
        self.freed.extend(replaced.into_iter().map(Freed::Payload));
        State::count(&mut self.counted, &found);
        Ok(())
    }

    /// Applies a run of blocks without payloads.
    fn apply_empty(&mut self, object: ObjectId, range: Range<u32>, empty: Block) -> Result<()> {
        let found = self.known(object)?.clone();
        let (replaced, deltas) = found.set_empty(range.clone(), empty)?;
        if let Some(origin) = &found.origin {
            origin.sever_all(range);
        }
        self.freed.extend(replaced.into_iter().map(Freed::Payload));
        self.freed.extend(deltas.into_iter().map(|(index, epoch, links)| Freed::Deltas {
            object: found.clone(),
            index,
            epoch,
            links,
        }));
        let ended = found.end_factor();
        State::count(&mut self.counted, &found);
        self.freed.extend(ended.map(|link| Freed::EndedFactor { object: found, link }));
        Ok(())
    }

    fn remove_object(&mut self, object: ObjectId) {
        let Some(ById(removed)) = self.objects.take(&object) else { return };
        State::uncount(&mut self.counted, &removed);
        if let Some(extent) = removed.extent() {
            self.data_files.remove_object(extent.file);
        }
        self.freed.push(Freed::Object(removed));
    }

    fn apply_delta(&mut self, record: &Record) -> Result<()> {
        let unknown = || Error::unsupported("a delta of a kind that this program does not know");
        let (object, index, base_epoch, chain_len, link) = link_of(record).ok_or_else(unknown)?;
        let found = self.known(object)?.clone();
        let replaced = found.link(index, base_epoch, link, chain_len)?;
        let before = found.blocks.read().get(index, found.logged_layout());
        if let Some(origin) = &found.origin
            && before.is_some_and(|block| block.stored.tier != Tier::Absent)
        {
            origin.sever(index);
        }
        State::count(&mut self.counted, &found);
        self.freed.push(Freed::Links(replaced));
        Ok(())
    }

    pub(in crate::store) fn known(&self, id: ObjectId) -> Result<&Arc<Object>> {
        self.object(id)
            .ok_or_else(|| Error::corrupt(format!("a record names object {id}, which does not exist")))
    }
}

/// The checksums of a run, from its payload.
fn checksums_of(payload: &[u8]) -> Checksums {
    let numbers = payload.as_chunks().0;
    let mut checksums = Checksums::with_capacity(numbers.len());
    checksums.extend(numbers.iter().map(|number| u32::from_le_bytes(*number)));
    checksums
}
