//! Slots that are reserved and that no batch names yet.
//!
//! Invariants:
//! 1. A reserved slot is returned when its owner drops it, unless a batch names it by then, so that no
//!    failure in between loses space until the next mount.
//! 2. A slot that was returned and reserved by another owner is not returned again by the first.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::log::record::Record;
use crate::store::object::factors::FACTOR_FILE;
use crate::store::object::links::{DELTA_FILE, PayloadPlace, place_of_stored};
use crate::store::space::slots::SLOT_ALIGN;

/// The reserved slots of a collection.
#[derive(Debug, Default)]
pub(in crate::store) struct Reservations {
    /// The last lock in the order.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    /// By file and offset: the number of the reservation, and the length.
    taken: HashMap<(u8, u64), (u64, u64)>,
    returned: Vec<PayloadPlace>,
    /// Data files that objects are written to which no batch names for good yet, and how many objects these are.
    files: HashMap<u64, u32>,
    /// Imports in progress, which name the objects of a data file by several batches.
    publishing: u32,
    /// Imports begun so far.
    published: u64,
}

impl Reservations {
    /// Notes the begin of an import.
    pub fn publishing_begins(&self) {
        let mut inner = self.inner.lock();
        inner.publishing += 1;
        inner.published += 1;
    }

    /// Notes the end of an import.
    pub fn publishing_ends(&self) {
        self.inner.lock().publishing -= 1;
    }

    /// The number of imports begun so far; `None` while one is in progress. Between two equal answers none was.
    pub fn published(&self) -> Option<u64> {
        let inner = self.inner.lock();
        (inner.publishing == 0).then_some(inner.published)
    }

    fn take(&self, PayloadPlace { file, offset, len }: PayloadPlace) -> u64 {
        let mut inner = self.inner.lock();
        inner.last += 1;
        let number = inner.last;
        inner.taken.insert((file, offset), (number, len));
        number
    }

    fn give(&self, file: u8, offset: u64, number: u64) {
        let mut inner = self.inner.lock();
        let is_it = inner.taken.get(&(file, offset)).is_some_and(|(taken, _)| *taken == number);
        if is_it && let Some((_, len)) = inner.taken.remove(&(file, offset)) {
            inner.returned.push(PayloadPlace { file, offset, len });
        }
    }

    /// Notes an object that is written in a data file: it stays while others in it are created and removed.
    pub fn hold_file(&self, number: u64) {
        *self.inner.lock().files.entry(number).or_default() += 1;
    }

    /// Ends that: the writer of the object is done.
    pub fn release_file(&self, number: u64) {
        let files = &mut self.inner.lock().files;
        if let Some(count) = files.get_mut(&number) {
            *count -= 1;
            if *count == 0 {
                files.remove(&number);
            }
        }
    }

    /// Whether a data file is being written.
    pub fn holds_file(&self, number: u64) -> bool {
        self.inner.lock().files.contains_key(&number)
    }

    /// Ends the reservation of the slots that a record of a batch names.
    pub fn name(&self, record: &Record) {
        if let Record::SlotRun { stored, .. } = record {
            let PayloadPlace { file, mut offset, .. } = place_of_stored(stored);
            let taken = &mut self.inner.lock().taken;
            for _ in 0..stored.len {
                let Some((_, len)) = taken.remove(&(file, offset)) else { return };
                offset = offset.saturating_add(len.next_multiple_of(SLOT_ALIGN));
            }
            return;
        }
        let place = match record {
            Record::Create { stored, .. } | Record::Migrate { stored, .. } if stored.has_slot() => {
                let place = place_of_stored(stored);
                (place.file, place.offset)
            }
            Record::Delta { offset, .. } => (DELTA_FILE, *offset),
            Record::Factor { offset, .. } => (FACTOR_FILE, *offset),
            _ => return,
        };
        self.inner.lock().taken.remove(&place);
    }

    /// Whether any slots are reserved or were returned, or any data files are being written.
    pub fn are_any(&self) -> bool {
        let inner = self.inner.lock();
        !inner.taken.is_empty() || !inner.returned.is_empty() || !inner.files.is_empty()
    }

    /// The slots returned since the last call.
    pub fn returned(&self) -> Vec<PayloadPlace> {
        std::mem::take(&mut self.inner.lock().returned)
    }

    /// Whether any slots were returned.
    pub fn has_returned(&self) -> bool {
        !self.inner.lock().returned.is_empty()
    }
}

/// Slots reserved by one owner. Dropping it returns those that no batch names.
#[derive(Default)]
pub(in crate::store) struct ReservedSlots {
    pending: Option<Arc<Reservations>>,
    slots: Vec<((u8, u64), u64)>,
}

impl ReservedSlots {
    /// Adds a slot.
    pub fn take(&mut self, pending: &Arc<Reservations>, slot: PayloadPlace) {
        let pending = self.pending.get_or_insert_with(|| pending.clone());
        self.slots.push(((slot.file, slot.offset), pending.take(slot)));
    }

    /// Returns a slot that is not needed.
    pub fn give(&mut self, file: u8, offset: u64) {
        let Some(pending) = &self.pending else { return };
        self.slots.retain(|(place, number)| {
            let is_it = *place == (file, offset);
            if is_it {
                pending.give(file, offset, *number);
            }
            !is_it
        });
    }

    /// Takes over the slots of another owner in the same collection.
    pub fn merge(&mut self, mut other: ReservedSlots) {
        self.pending = self.pending.take().or_else(|| other.pending.clone());
        self.slots.append(&mut other.slots);
    }
}

impl Drop for ReservedSlots {
    fn drop(&mut self) {
        let Some(pending) = &self.pending else { return };
        for ((file, offset), number) in self.slots.drain(..) {
            pending.give(file, offset, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{PayloadPlace, Reservations, ReservedSlots};
    use crate::format::log::record::{ObjectDescription, Record, Stored};
    use crate::model::{Dtype, ObjectId, Shape, Tier};

    fn slot(file: u8, offset: u64, len: u64) -> PayloadPlace {
        PayloadPlace { file, offset, len }
    }

    fn migrate(offset: u64) -> Record {
        let stored = Stored { tier: Tier::Q8, scale: 1.0, checksum: 0, offset, len: 100, in_data: false };
        Record::Migrate { object: ObjectId(1), block: 0, old_tier: 0, bits: 8, stored, migrated_at: 0 }
    }

    #[test]
    fn an_unnamed_slot_is_released_once() {
        let pending = Arc::new(Reservations::default());
        let mut taken = ReservedSlots::default();
        let file = Tier::Q8.byte();
        for offset in [0, 128, 256] {
            taken.take(&pending, slot(file, offset, 128));
        }
        pending.name(&migrate(128));
        taken.give(file, 256);
        assert_eq!(pending.returned(), [slot(file, 256, 128)]);
        drop(taken);
        assert_eq!(pending.returned(), [slot(file, 0, 128)]);
        assert!(!pending.has_returned());
    }

    #[test]
    fn a_run_of_slots_names_each_of_its_slots_and_no_other() {
        let pending = Arc::new(Reservations::default());
        let mut taken = ReservedSlots::default();
        let file = Tier::Q8.byte();
        for offset in [0, 128, 256, 384] {
            taken.take(&pending, slot(file, offset, 128));
        }
        let stored = Stored { tier: Tier::Q8, scale: 0.0, checksum: 0, offset: 128, len: 2, in_data: false };
        pending.name(&Record::SlotRun {
            object: ObjectId(1),
            block: 0,
            described: ObjectDescription {
                dtype: Dtype::F32,
                shape: Shape::default(),
                parent: None,
                reconstruct: 0,
            },
            stored,
            created_at: 0,
            is_move: false,
        });
        drop(taken);
        assert_eq!(pending.returned(), [slot(file, 0, 128), slot(file, 384, 128)]);
    }

    #[test]
    fn a_slot_with_a_new_owner_is_not_released() {
        let pending = Arc::new(Reservations::default());
        let (mut first, mut second) = (ReservedSlots::default(), ReservedSlots::default());
        first.take(&pending, slot(1, 0, 64));
        // Named, freed again, and reserved by another.
        pending.name(&Record::Delta {
            object: ObjectId(1),
            block: 0,
            base_epoch: 0,
            offset: 0,
            len: 10,
            chain_len: 1,
            nnz: 0,
            checksum: 0,
            kind: 0,
            product: 0,
        });
        pending.name(&Record::Migrate {
            object: ObjectId(1),
            block: 0,
            old_tier: 0,
            bits: 8,
            stored: Stored { tier: Tier::Q7, scale: 1.0, checksum: 0, offset: 0, len: 1, in_data: false },
            migrated_at: 0,
        });
        second.take(&pending, slot(1, 0, 64));
        drop(first);
        assert!(!pending.has_returned());
        drop(second);
        assert_eq!(pending.returned(), [slot(1, 0, 64)]);
    }
}
