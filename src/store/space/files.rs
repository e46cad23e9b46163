//! The files that contain payloads: tier files and data files.

use std::sync::{Arc, Weak};

use crate::format::log::record::Stored;
use crate::model::{Error, ErrorKind, Result, Tier};
use crate::store::Collection;
use crate::store::collection::{Access, Touched, Writer};
use crate::store::disk::{File, Open};
use crate::store::object::Object;
use crate::store::object::links::{DELTA_FILE, FACTOR_FILE};
use crate::store::space::slots::SLOT_ALIGN;
use crate::store::state::freed::Freed;

impl Collection {
    /// The tier file of a tier's payloads.
    pub fn tier_file(&self, tier: Tier) -> Result<Arc<dyn File>> {
        self.payload_file(tier.byte())
    }

    /// A payload file by number: a tier's, or that of deltas or factorizations.
    pub(in crate::store) fn payload_file(&self, number: u8) -> Result<Arc<dyn File>> {
        let Some(cell) = self.tiers.get(usize::from(number)) else {
            return Err(Error::invalid(format!("tier {number}")));
        };
        if let Some(file) = cell.get() {
            return Ok(file.clone());
        }
        let path = self.payload_path(number);
        let how = if self.access == Access::Write { Open::Write } else { Open::Read };
        let file = self.disk.open(&path, how).map_err(|error| Error::io(format!("opening {path}"), error))?;
        Ok(cell.get_or_init(|| file).clone())
    }

    /// The path of a tier file in the store.
    pub fn tier_path(&self, number: u8) -> String {
        format!("{}/tier{number}.dat", self.path())
    }

    /// The path in the store of a payload file.
    pub(in crate::store) fn payload_path(&self, number: u8) -> String {
        match number {
            DELTA_FILE => format!("{}/delta.dat", self.path()),
            FACTOR_FILE => format!("{}/factor.dat", self.path()),
            _ => self.tier_path(number),
        }
    }

    /// The path in the store of a data file of the collection's own.
    pub fn data_path(&self, id: u64) -> String {
        format!("{}/data/{id:016x}", self.path())
    }

    /// The path of the file that contains a payload: relative to the store, or absolute for an outside
    /// file.
    pub fn path_of_payload(&self, object: &Object, stored: &Stored) -> String {
        match (object.extent(), &object.origin) {
            (_, Some(origin)) if stored.in_data => origin.path(),
            (Some(extent), _) if stored.in_data => self.data_path(extent.file),
            _ => self.tier_path(stored.tier.byte()),
        }
    }

    /// Opens a data file. Concurrent users share one open file.
    pub fn data_file(&self, id: u64) -> Result<Arc<dyn File>> {
        let outside = self.state.read().outside(id).cloned();
        let mut open = self.data.lock();
        if let Some(file) = open.get(&id).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let path = self.data_path(id);
        let how = if self.access == Access::Write { Open::Write } else { Open::Read };
        let file = match outside {
            Some(outside) => self.open_outside(&outside)?,
            None => {
                let opened = self.disk.open(&path, how);
                opened.map_err(|error| Error::io(format!("opening {path}"), error))?
            }
        };
        if open.len() > 1000 {
            open.retain(|_, file| file.strong_count() > 0);
        }
        open.insert(id, Arc::downgrade(&file));
        Ok(file)
    }

    /// Creates a data file and returns its number. It is removed when the store is opened again, unless
    /// a committed batch gives it to an object by then.
    pub fn create_data_file(&self) -> Result<(u64, Arc<dyn File>)> {
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        self.reclaim(writer);
        let id = self.next_data(writer)?;
        let path = self.data_path(id);
        let file = self.disk.open(&path, Open::Create);
        let file = file.map_err(|error| Error::io(format!("making {path}"), error))?;
        writer.next_data = id + 1;
        Ok((id, file))
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

    /// Writes payloads of a tier, each to a slot of its own. `payloads` is their concatenation, `lens`
    /// the length of each. Returns the offset of each. `touched` owns the slots until a batch names
    /// them.
    pub fn write_payloads(
        &self,
        tier: Tier,
        payloads: &[u8],
        lens: &[usize],
        touched: &mut Touched,
    ) -> Result<Vec<u64>> {
        let number = tier.byte();
        let slot_of = |len: usize| (len as u64).next_multiple_of(SLOT_ALIGN);
        let total: u64 = lens.iter().map(|&len| slot_of(len)).sum();
        if lens.is_empty() {
            return Ok(Vec::new());
        }
        let start = self.take_slot_of(number, total)?;
        let mut slot = start;
        for &len in lens {
            touched.slots.take(&self.reservations, (number, slot, slot_of(len)));
            slot += slot_of(len);
        }
        let file = self.payload_file(number)?;
        let mut bytes = Vec::with_capacity(total as usize);
        let mut offsets = Vec::with_capacity(lens.len());
        let mut rest = payloads;
        for &len in lens {
            let (payload, after) = rest
                .split_at_checked(len)
                .ok_or_else(|| Error::invalid("payloads shorter than their lengths"))?;
            offsets.push(start + bytes.len() as u64);
            bytes.extend_from_slice(payload);
            bytes.resize(bytes.len().next_multiple_of(SLOT_ALIGN as usize), 0);
            rest = after;
        }
        file.write_at(&bytes, start)
            .map_err(|error| Error::io(format!("writing {}", self.tier_path(number)), error))?;
        if touched.tiers.insert(number) {
            touched.files.push(file);
        }
        Ok(offsets)
    }

    /// The tier file to write to. It is created only if it `may_be_missing`: an empty file in place of
    /// a lost one would hide the loss.
    pub(in crate::store) fn tier_file_made(&self, number: u8, may_be_missing: bool) -> Result<Arc<dyn File>> {
        let Some(cell) = self.tiers.get(usize::from(number)) else {
            return Err(Error::invalid(format!("tier {number}")));
        };
        if let Some(file) = cell.get() {
            return Ok(file.clone());
        }
        let path = self.payload_path(number);
        let file = match self.disk.open(&path, Open::Write) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && may_be_missing => {
                self.disk.open(&path, Open::Create)
            }
            opened => opened,
        };
        let file = file.map_err(|error| Error::io(format!("opening {path}"), error))?;
        Ok(cell.get_or_init(|| file).clone())
    }
}
