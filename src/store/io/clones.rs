//! Blocks of clones: whether the remote has them, and the space that they need here.

use std::ops::Range;
use std::sync::Arc;

use crate::format::checksum;
use crate::format::log::record::Stored;
use crate::model::{Error, Result};
use crate::store::clones::SharedFile;
use crate::store::collection::open_object::OpenObject;
use crate::store::disk::change::Change;
use crate::store::object::blocks::Block;
use crate::store::object::factors::place_of_factor;
use crate::store::object::links::{place_of, place_of_stored};

impl OpenObject {
    /// The file of a clone that has a payload, with its pieces.
    fn clone_file(&self, stored: &Stored) -> Option<Arc<SharedFile>> {
        if stored.is_absent() || stored.is_zeros() || stored.len == 0 {
            return None;
        }
        let files = &self.collection.files;
        let found = match self.object.extent() {
            Some(extent) if stored.in_data && self.object.origin.is_none() => {
                files.cloned_data_file(extent.file)
            }
            _ if stored.in_data => return None,
            _ => files.cloned_payload_file(stored.tier.byte()),
        };
        found.ok().flatten()
    }

    /// Whether the payload of a block lies in a clone, so that the remote may have it.
    pub fn is_in_clone(&self, block: &Block) -> bool {
        self.clone_file(&block.stored).is_some()
    }

    /// The payload of a block as the remote has it; `None` if the remote has another one, or none.
    pub fn remote_payload(&self, block: &Block) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.clone_file(&block.stored) else { return Ok(None) };
        let found = file.in_remote(block.stored.offset, block.stored.len);
        let found = found.map_err(|error| Error::io(self.file_place(&block.stored), error))?;
        Ok(found.filter(|payload| checksum::of(payload) == block.stored.checksum))
    }

    /// Reads the elements of a block, with its deltas, from the remote. `false` if the remote lacks them.
    pub fn read_remote(&self, index: u32, block: &Block, out: &mut [u8]) -> Result<bool> {
        match self.remote_payload(block)? {
            Some(payload) => self.show_payload(index, block, &payload, out).map(|()| true),
            None => Ok(false),
        }
    }

    /// Whether a block can be read without a remote, as far as its own payload goes, or that of its origin.
    pub fn is_here(&self, index: u32, block: &Block) -> bool {
        if self.is_far(index, block) {
            return false;
        }
        let file = self.clone_file(&block.stored);
        file.is_none_or(|file| file.is_here(block.stored.offset, u64::from(block.stored.len)))
    }

    /// Gives back the space of the object's payloads as far as the remote of a clone has them. Returns the
    /// bytes of the pieces that went; neighbours have bytes in them too.
    pub fn evict_to_remote(&self) -> Result<u64> {
        let files = &self.collection.files;
        let mut evicted = 0;
        let failed = |error| Error::io(format!("evicting from {}", files.path()), error);
        let mut evict = |file: std::io::Result<Option<Arc<SharedFile>>>, ranges: &[Range<u64>]| {
            let Some(file) = file.map_err(failed)? else { return Ok(()) };
            for range in ranges {
                evicted += file.evict(range.start, range.end - range.start).map_err(failed)?;
            }
            Ok::<(), Error>(())
        };
        let (mut in_data, mut in_slots) = (Vec::new(), Vec::new());
        {
            let blocks = self.object.blocks.read();
            for (_, block) in blocks.pieces(self.object.logged_layout()) {
                let stored = block.stored;
                if stored.in_data && !stored.is_zeros() && self.object.origin.is_none() {
                    add(&mut in_data, stored.offset, u64::from(stored.len));
                } else if stored.has_slot() {
                    in_slots.push(place_of_stored(&stored));
                }
            }
        }
        in_slots.extend(self.object.links().iter().map(place_of));
        in_slots.extend(self.object.factor().iter().map(place_of_factor));
        in_slots.sort_unstable();
        if let (Some(Ok(file)), Some(extent)) = (&self.extent, self.object.extent())
            && !in_data.is_empty()
            && let Some(_alone) = files.shown.alone(Change::Evict, extent.file, file.clone())
        {
            evict(files.cloned_data_file(extent.file), &in_data)?;
        }
        for slots in in_slots.chunk_by(|one, next| one.file == next.file) {
            let Some(first) = slots.first() else { continue };
            let mut ranges = Vec::new();
            slots.iter().for_each(|slot| add(&mut ranges, slot.offset, slot.len));
            evict(files.cloned_payload_file(first.file), &ranges)?;
        }
        Ok(evicted)
    }
}

/// Adds a range behind others.
fn add(ranges: &mut Vec<Range<u64>>, offset: u64, len: u64) {
    let end = offset.saturating_add(len);
    match ranges.last_mut() {
        Some(last) if last.end.saturating_add(64) >= offset && last.end <= end => last.end = end,
        _ => ranges.push(offset..end),
    }
}
