//! Allocates space for payloads: slots, data files and their numbers. Writes payloads and records to slots.

use std::sync::Arc;

use crate::format::checksum;
use crate::format::log::record::{Record, Stored};
use crate::format::payload::factor::Factor;
use crate::model::{Error, ErrorKind, Result, Tier};
use crate::store::collection::Collection;
use crate::store::collection::journal::Writer;
use crate::store::disk::{Advice, File, Open};
use crate::store::object::Object;
use crate::store::object::blocks::Blocks;
use crate::store::object::factors::{FACTOR_FILE, place_of_factor};
use crate::store::object::links::{DELTA_FILE, PayloadPlace, place_of, place_of_stored};
use crate::store::object::parts::Part;
use crate::store::space::external_file::FAR_NAME;
use crate::store::space::files::Touched;
use crate::store::space::slots::{SLOT_ALIGN, Slots};
use crate::store::state::freed_space::Freed;

/// Payloads of so many bytes are written back at once, so that little is left for the sync.
const WRITEBACK_BYTES: usize = 1 << 20;

impl Collection {
    /// Reserves a free slot of a tier file.
    pub(in crate::store) fn take_slot(&self, tier: Tier, len: u64) -> Result<u64> {
        self.take_slot_of(tier.byte(), len)
    }

    /// Reserves a free slot of a payload file.
    pub(in crate::store) fn take_slot_of(&self, number: u8, len: u64) -> Result<u64> {
        let writer = &mut *self.writer()?;
        self.reclaim_for_slot(writer);
        let cell = writer.slots.get_mut(usize::from(number));
        let slots = cell
            .ok_or_else(|| Error::invalid("tier"))?
            .get_or_insert_with(|| self.space_of(number, writer.freed.iter()));
        self.files.payload_file_made(number, slots.end() == 0)?;
        Ok(slots.take(len.next_multiple_of(SLOT_ALIGN)))
    }

    /// Writes payloads of a tier, each to a slot of its own. Returns the offset of each. `touched` owns the
    /// slots until a batch names them.
    pub fn write_payloads(&self, tier: Tier, payloads: &[&[u8]], touched: &mut Touched) -> Result<Vec<u64>> {
        let number = tier.byte();
        let slot_of = |len: usize| (len as u64).next_multiple_of(SLOT_ALIGN);
        let total: u64 = payloads.iter().map(|payload| slot_of(payload.len())).sum();
        if payloads.is_empty() {
            return Ok(Vec::new());
        }
        let start = self.take_slot_of(number, total)?;
        let mut slot = start;
        for payload in payloads {
            touched.slots.take(
                &self.reservations,
                PayloadPlace { file: number, offset: slot, len: slot_of(payload.len()) },
            );
            slot += slot_of(payload.len());
        }
        let file = self.files.payload_file(number)?;
        let mut bytes = Vec::with_capacity(total as usize);
        let mut offsets = Vec::with_capacity(payloads.len());
        for payload in payloads {
            offsets.push(start + bytes.len() as u64);
            bytes.extend_from_slice(payload);
            bytes.resize(bytes.len().next_multiple_of(SLOT_ALIGN as usize), 0);
        }
        let mut written = file.write_at(&bytes, start);
        if bytes.len() >= WRITEBACK_BYTES {
            written = written.and_then(|()| file.advise(Advice::WillSync, start, total));
        }
        written.map_err(|error| Error::io(format!("writing {}", self.files.tier_path(number)), error))?;
        if touched.tiers.insert(number) {
            touched.files.push(file);
        }
        Ok(offsets)
    }

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
        touched.slots.take(&self.reservations, PayloadPlace { file: number, offset, len });
        let file = self.files.payload_file(number)?;
        file.write_at(record, offset)
            .map_err(|error| Error::io(format!("writing {}", self.files.payload_path(number)), error))?;
        touched.file(&file);
        Ok(offset)
    }

    /// Stores the factorization of a whole object. Returns the record that describes it, and its CRC32C.
    pub fn write_factor(&self, factor: &Factor, touched: &mut Touched) -> Result<(Record, u32)> {
        let (record, rank) = (factor.write(), factor.shape().rank);
        let offset = self.write_record(FACTOR_FILE, &record, touched)?;
        let (len, checksum) = (record.len() as u64, checksum::of(&record));
        let (object, block) = (factor.object, factor.block);
        Ok((Record::Factor { object, block, offset, len, rank, checksum }, checksum))
    }

    /// Stores a delta. Returns its offset in `delta.dat`.
    pub fn write_delta(&self, record: &[u8], touched: &mut Touched) -> Result<u64> {
        self.write_record(DELTA_FILE, record, touched)
    }

    /// Determines the free space of all tier files, once.
    pub(in crate::store) fn find_space(&self) -> Result<()> {
        let Writer { slots, freed, .. } = &mut *self.writer()?;
        for (number, slots) in (0..).zip(slots) {
            slots.get_or_insert_with(|| self.space_of(number, freed.iter()));
        }
        Ok(())
    }

    /// The free space of a payload file, derived from the blocks. Freed space that may still be read
    /// counts as used.
    pub(in crate::store) fn space_of<'a>(
        &self,
        number: u8,
        freed: impl Iterator<Item = &'a (u64, Freed)>,
    ) -> Slots {
        let state = self.state.read();
        let payloads = state.objects().flat_map(|object| payloads(object));
        let used = payloads.chain(freed.flat_map(|(_, freed)| freed_slots(freed)));
        let used = used.filter(|PayloadPlace { file: tier, .. }| *tier == number);
        Slots::around(used.map(|PayloadPlace { offset, len, .. }| (offset, len)))
    }

    /// Creates a data file and returns its number. It is removed when the store is opened again, unless
    /// a committed batch gives it to an object by then.
    pub fn create_data_file(&self) -> Result<(u64, Arc<dyn File>)> {
        let writer = &mut *self.writer()?;
        self.reclaim_for_file(writer);
        let id = self.next_data(writer)?;
        let file = self.files.create_data_file(id)?;
        writer.next_data = id + 1;
        Ok((id, file))
    }

    /// Creates a data file for objects that no log knows yet, and returns its number. The file stays
    /// until [`discard`](Self::discard), even if a batch that names objects in it fails and these are
    /// removed.
    pub fn create_draft_file(&self) -> Result<u64> {
        let (number, _) = self.create_data_file()?;
        self.reservations.hold_file(number);
        Ok(number)
    }

    /// Notes that an import begins, which names the objects of its data files by several batches.
    pub fn publishing_begins(&self) {
        self.reservations.publishing_begins();
    }

    /// Notes that it has ended.
    pub fn publishing_ends(&self) {
        self.reservations.publishing_ends();
    }

    /// Notes that the collection has files at a URL, before the log names the first.
    pub fn note_far(&self) -> Result<()> {
        let path = format!("{}/{FAR_NAME}", self.path());
        let disk = self.files.disk();
        match disk.open(&path, Open::Create) {
            Ok(_) => disk.sync_directory(&self.path()),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|error| Error::io(format!("making {path}"), error))
    }

    /// Allocates a data file number for an outside file.
    pub fn outside_number(&self) -> Result<u64> {
        let writer = &mut *self.writer()?;
        let number = self.next_data(writer)?;
        writer.next_data = number + 1;
        Ok(number)
    }

    /// The number of the next data file. `Full` if it is the last number or none is left.
    pub(in crate::store) fn next_data(&self, writer: &Writer) -> Result<u64> {
        let next = self.number_behind(writer);
        let left = next.filter(|next| *next < u64::MAX);
        left.ok_or_else(|| {
            Error::new(ErrorKind::Full, format!("{}: no data file has a number left", self.path()))
        })
    }

    /// The number after all that data files and copies ever had.
    fn number_behind(&self, writer: &Writer) -> Option<u64> {
        if writer.next_data == 0 {
            let state = self.state.read();
            let kept = writer.freed.iter().filter_map(|(_, freed)| match freed {
                Freed::Object(object) => Some(object),
                _ => None,
            });
            let objects = state.objects().chain(kept);
            let extents = objects.filter_map(|object| object.extent()).map(|extent| extent.file);
            let last = extents.chain(state.outside_files().map(|outside| outside.file)).max();
            let gone = writer.freed.iter().filter_map(|(_, freed)| match freed {
                Freed::Copy(copy) => Some(copy),
                _ => None,
            });
            let copies = state.pins().filter_map(|(_, copy)| copy).chain(gone).map(|copy| copy.number);
            return last.max(copies.max()).unwrap_or(0).checked_add(1);
        }
        Some(writer.next_data)
    }
}

/// The slots that freed space has in payload files.
pub(in crate::store) fn freed_slots(freed: &Freed) -> Vec<PayloadPlace> {
    match freed {
        Freed::Object(object) => payloads(object),
        Freed::Payload(stored) if stored.has_slot() => vec![place_of_stored(stored)],
        Freed::Links(links) => links.iter().map(place_of).collect(),
        Freed::Deltas { links, .. } => links.iter().map(place_of).collect(),
        Freed::Factor(link) | Freed::EndedFactor { link, .. } => vec![place_of_factor(link)],
        Freed::Payload(_) | Freed::Stretch { .. } | Freed::Copy(_) => Vec::new(),
    }
}

/// The places of an object's payloads in payload files.
pub(in crate::store) fn payloads(object: &Object) -> Vec<PayloadPlace> {
    let factor = object.factor();
    let factor = factor.iter().map(place_of_factor);
    let blocks = object.blocks.read();
    if matches!(*blocks, Blocks::One(Part::Run(_))) {
        return factor.collect();
    }
    let stored = blocks.pieces(object.layout()).map(|(_, block)| block.stored);
    let kept = stored.filter(Stored::has_slot);
    let links = object.links();
    kept.map(|stored| place_of_stored(&stored)).chain(links.iter().map(place_of)).chain(factor).collect()
}
