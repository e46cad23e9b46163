//! Applies deltas to decoded blocks, and stores writes to encoded blocks as deltas.
//!
//! A flush compares a written block that was encoded with the bytes that readers saw before. If few of the elements changed
//! (`DeltaLimits`), and the record takes less than half of the exact block, the changes go to `delta.dat` as a patch,
//! and the slot in `tier0.dat` is released. Otherwise the block becomes exact. A patch for which the chain has no
//! room merges the others into itself. Deltas stay until every read that began before a change has ended.

use std::ops::Range;

use crate::codec;
use crate::format::checksum;
use crate::format::log::record::Record;
use crate::format::payload::delta::{Changes, Delta, DeltaKind, HEAD_BYTES};
use crate::model::{Dtype, Encoder, Error, ErrorKind, Result, Tier};
use crate::store::collection::open_object::OpenObject;
use crate::store::io::packed_blocks::apply_changes;
use crate::store::io::scaled_delta::{Rounding, Writes, scaled};
use crate::store::object::blocks::{Block, DIRTY, IndexedBlock};
use crate::store::object::links::{DELTA_FILE, DeltaLink};
use crate::store::space::files::Touched;

/// How a write to a block is stored.
pub(in crate::store) enum Patch {
    /// As a delta on the recorded block.
    Link(Record),
    /// Not at all: the block's content did not change.
    Same,
    /// As a rewritten block in this tier.
    Encoded(Tier, Encoder),
    /// As a rewritten exact block.
    None,
}

impl OpenObject {
    /// Applies a block's chain, if any, to its decoded elements.
    pub(in crate::store) fn apply_deltas(
        &self,
        index: u32,
        block: &Block,
        elements: &mut [u8],
    ) -> Result<()> {
        self.apply_links(index, block, elements)
            .map_err(|error| self.report_corruption(index, &block.stored, error))
    }

    fn apply_links(&self, index: u32, block: &Block, elements: &mut [u8]) -> Result<()> {
        let Some(links) = self.object.deltas(index, block.epoch) else { return Ok(()) };
        for link in links.iter() {
            self.apply_link(index, link, elements)?;
        }
        Ok(())
    }

    /// Applies one delta to the elements of its base block. Returns the CRC32C that the result must have if the delta is one
    /// on a parent's block.
    pub fn apply_link(&self, index: u32, link: &DeltaLink, elements: &mut [u8]) -> Result<u32> {
        let place = || {
            let path = self.collection.files.payload_path(DELTA_FILE);
            format!("{path} at byte {}, block {index} of object {}", link.offset, self.object.entry.id)
        };
        let record = self
            .collection
            .files
            .read_record(DELTA_FILE, link.offset, u64::from(link.len), link.checksum)
            .map_err(|error| error.at(place()))?;
        let dtype = self.object.dtype();
        let count = elements.len() as u64 / dtype.bytes();
        let delta = Delta::parse(&record, link.kind, dtype, count).map_err(|error| error.at(place()))?;
        if (delta.object, delta.block, delta.base_epoch) != (self.object.entry.id, index, link.base_epoch) {
            return Err(Error::corrupt(format!("{}: the delta belongs to another block", place())));
        }
        apply_changes(&delta, dtype, elements).map_err(|error| error.at(place()))?;
        Ok(delta.result)
    }

    /// Stores a write to an encoded block as a delta. For exact writes: if the delta is smaller than
    /// half of the exact block and few elements changed. For rounded writes: if it is smaller than half
    /// of the encoded block, few elements changed by little, and the chain has room. A block with a
    /// corrupt payload is rewritten, which repairs it.
    pub(in crate::store) fn patch(
        &self,
        index: u32,
        new: &[u8],
        writes: Writes,
        touched: &mut Touched,
    ) -> Result<Patch> {
        match self.patch_on_base(index, new, writes, touched) {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Patch::None),
            patch => patch,
        }
    }

    /// The encoded block that a patch of a block of `len` bytes applies to.
    pub(in crate::store) fn patch_base(&self, index: u32, len: usize) -> Option<Block> {
        let object = &self.object;
        let block =
            object.blocks.read().get(index, object.layout()).filter(|_| index < object.described())?;
        let payload_len = match block.stored.tier {
            // A block that was extended has another number of elements.
            Tier::Packed => (object.logged_layout().len(index) == len).then_some(block.stored.len as usize),
            tier => codec::payload_len(tier, len / object.dtype().bytes() as usize),
        };
        (payload_len == Some(block.stored.len as usize)).then_some(block)
    }

    fn patch_on_base(&self, index: u32, new: &[u8], writes: Writes, touched: &mut Touched) -> Result<Patch> {
        let object = &self.object;
        let width = object.dtype().bytes() as usize;
        let Some(block) = self.patch_base(index, new.len()) else { return Ok(Patch::None) };
        let mut base = vec![0; new.len()];
        let deltas = object.deltas(index, block.epoch);
        let links = deltas.as_ref().map_or(0, |links| links.len());
        let Writes { rounding, limits } = writes;
        // An exact block stays exact, and a block in a tier below the consent takes exact patches.
        let tier = block.stored.tier;
        let rounding = rounding.filter(|rounding| !tier.is_exact() && rounding.loss.allows(tier));
        // The last patch merges everything written since the block was encoded.
        let is_merged = links >= limits.chain && rounding.is_none();
        let is_scaled = |link: &DeltaLink| link.kind == DeltaKind::Scaled;
        if is_merged && deltas.is_some_and(|links| links.iter().any(is_scaled)) {
            return Ok(Patch::None);
        }
        let mut read = self.read_base(index, &block, &mut base);
        if !is_merged {
            read = read.and_then(|()| self.apply_deltas(index, &block, &mut base));
        }
        match read {
            // The write repairs the corrupt block, because its content is not needed.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Patch::None),
            read => read?,
        }
        let dtype = object.dtype();
        if base == new && object.origin_place(index).is_some() {
            // The outside file is no longer the source of a block that was written.
            return Ok(Patch::None);
        }
        if let Some(Rounding { encoder, .. }) = rounding {
            if base == new {
                return Ok(Patch::Same);
            }
            let changes = scaled(dtype, &base, new, &limits);
            let is_small =
                |changes: &Changes| (HEAD_BYTES + 4 * changes.len()) * 2 < block.stored.len as usize;
            return match changes.filter(|changes| links < limits.chain && is_small(changes)) {
                Some(changes) if changes.is_empty() => Ok(Patch::Same),
                Some(changes) => {
                    self.link(IndexedBlock { index, block: &block }, changes, links + 1, touched)
                }
                None => Ok(Patch::Encoded(tier, encoder)),
            };
        }
        let chain_len = if is_merged { 1 } else { links + 1 };
        let most = limits.changed(new.len() / width);
        let Some(changes) = changes(dtype, &base, new, most) else { return Ok(Patch::None) };
        if changes.is_empty() && chain_len == links + 1 {
            return Ok(Patch::Same);
        }
        if (HEAD_BYTES + (2 + width) * changes.len()) * 2 >= new.len() {
            return Ok(Patch::None);
        }
        self.link(IndexedBlock { index, block: &block }, changes, chain_len, touched)
    }

    /// Merges the patches of each block of `range` that has several into one. Readers see the same bytes. Chains with
    /// rounded or compressed differences, and those of parents, stay. Returns the number of blocks; not durable before a
    /// sync.
    pub fn merge_patches(&self, range: Range<u32>) -> Result<u64> {
        let object = &self.object;
        let _writing = object.write_state().writing.lock();
        let (layout, dtype) = (object.logged_layout(), object.dtype());
        let is_plain = |link: &DeltaLink| link.kind == DeltaKind::Patch && !link.is_on_parent;
        let (mut touched, mut records) = (Touched::default(), Vec::new());
        let is_stored = |block: &Block| block.epoch != DIRTY && block.stored.len > 0;
        let stored = object.stored_blocks(range, layout).filter(|(_, block)| is_stored(block));
        for (index, block) in stored.collect::<Vec<_>>() {
            let Some(links) = object.deltas(index, block.epoch) else { continue };
            if links.len() < 2 || !links.iter().all(is_plain) {
                continue;
            }
            let mut base = vec![0; layout.len(index)];
            self.read_base(index, &block, &mut base)?;
            let mut merged = base.clone();
            self.apply_deltas(index, &block, &mut merged)?;
            let width = dtype.bytes() as usize;
            // A merge is worth it if it is shorter than the patches are.
            let bytes: usize = links.iter().map(|link| link.len as usize).sum();
            let most = bytes.saturating_sub(HEAD_BYTES + 1) / (2 + width);
            let found = changes(dtype, &base, &merged, most);
            let Some(changes) = found.filter(|changes| !changes.is_empty()) else { continue };
            if let Patch::Link(record) =
                self.link(IndexedBlock { index, block: &block }, changes, 1, &mut touched)?
            {
                records.push(record);
            }
        }
        let merged = records.len() as u64;
        if merged > 0 {
            self.collection.record(touched, |batch, _| {
                records.into_iter().for_each(|record| batch.record(record));
                batch.keep_bytes();
                Ok(())
            })?;
        }
        Ok(merged)
    }

    fn link(
        &self,
        IndexedBlock { index, block }: IndexedBlock<'_>,
        changes: Changes,
        chain_len: usize,
        touched: &mut Touched,
    ) -> Result<Patch> {
        let object = &self.object;
        let delta =
            Delta { object: object.entry.id, block: index, base_epoch: block.epoch, result: 0, changes };
        let record = delta.write(object.dtype())?;
        let offset = self.collection.write_record(DELTA_FILE, &record, touched)?;
        Ok(Patch::Link(Record::Delta {
            object: object.entry.id,
            block: index,
            base_epoch: block.epoch,
            offset,
            len: record.len() as u32,
            chain_len: chain_len as u16,
            nnz: delta.changes.len() as u32,
            checksum: checksum::of(&record),
            kind: delta.changes.kind().byte(),
            product: 0,
        }))
    }
}

/// The elements that differ bitwise, or `None` if they are more than `most`. Equal blocks give an empty patch.
fn changes(dtype: Dtype, base: &[u8], new: &[u8], most: usize) -> Option<Changes> {
    let width = dtype.bytes() as usize;
    let (mut indices, mut elements) = (Vec::new(), Vec::new());
    for (place, (before, after)) in base.chunks_exact(width).zip(new.chunks_exact(width)).enumerate() {
        if before != after {
            if indices.len() == most {
                return None;
            }
            indices.push(u16::try_from(place).ok()?);
            elements.extend_from_slice(after);
        }
    }
    Some(Changes::Patch { indices, elements })
}
