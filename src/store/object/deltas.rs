//! Delta chains: writes to encoded blocks, kept as deltas on the block; and the deltas of absent
//! blocks, which apply to the same block of the lineage parent.
//!
//! The block tells which kind a delta is: an absent block has no elements of its own to write to. Its
//! chain has one link.
//!
//! Invariants:
//! 1. A chain belongs to one epoch of its block: rewriting the block ends the chain.
//! 2. A block with a chain is never shown without it.
//! 3. A chain has at most [`LINKS_MAX`] links. A record with chain length 1 replaces an existing chain:
//!    the earlier links are merged into it.

use std::sync::Arc;

use crate::codec;
use crate::format::checksum;
use crate::format::log::record::{Record, Stored};
use crate::format::payload::delta::{Changes, Delta, DeltaKind, HEAD_BYTES};
use crate::model::{Dtype, Encoder, Error, ErrorKind, ObjectId, Result, Tier};
use crate::store::Collection;
use crate::store::collection::Touched;
use crate::store::io::read::OpenObject;
use crate::store::io::scaled_delta::{Writes, scaled};
use crate::store::object::blocks::Block;
use crate::store::object::{Object, lies_in_a_file};

/// Maximum number of links in a chain.
pub const LINKS_MAX: usize = 8;
/// Number of `delta.dat` among the payload files.
pub(in crate::store) const DELTA_FILE: u8 = 4;
/// A block of which more than one element in this many changed is rewritten.
const CHANGED_SHARE: usize = 10;

/// A delta on a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Byte offset of its record in `delta.dat`.
    pub offset: u64,
    /// Bytes of the record.
    pub len: u32,
    /// CRC32C of the record.
    pub checksum: u32,
    /// How the delta changes elements.
    pub kind: DeltaKind,
    /// Epoch of the block that the delta applies to: the block itself or, if that is absent, the
    /// lineage parent's block.
    pub base_epoch: u64,
    /// Whether the delta applies to the lineage parent's block.
    pub is_on_parent: bool,
}

impl Link {
    /// Number of elements that the delta changes.
    pub(in crate::store) fn changes(&self, dtype: Dtype) -> u32 {
        let value_bytes = match self.kind {
            DeltaKind::Scaled => 2,
            DeltaKind::Patch => dtype.bytes() as u32,
        };
        self.len.saturating_sub(HEAD_BYTES as u32) / (2 + value_bytes)
    }
}

impl Object {
    /// The deltas on a block of this epoch, in order.
    pub fn chain(&self, index: u32, epoch: u64) -> Option<Arc<[Link]>> {
        self.existing_write_state()?.chains.read().get(&(index, epoch)).cloned()
    }

    /// Number of deltas on a block of this epoch, and the bytes of their records.
    pub fn chain_size(&self, index: u32, epoch: u64) -> (usize, u64) {
        let Some(write_state) = self.existing_write_state() else { return (0, 0) };
        let chains = write_state.chains.read();
        let links = chains.get(&(index, epoch)).map(AsRef::as_ref).unwrap_or_default();
        (links.len(), links.iter().map(|link| u64::from(link.len)).sum())
    }

    /// Applies a Delta record. Returns the links that it replaces.
    pub(in crate::store) fn link(
        &self,
        index: u32,
        base_epoch: u64,
        link: Link,
        chain_len: u16,
    ) -> Result<Vec<Link>> {
        let block = self.blocks.read().get(index, self.layout());
        let is_absent = |block: &Block| block.stored.tier == Tier::Absent && self.entry.parent.is_some();
        let (epoch, link) = match block {
            Some(block) if block.epoch == base_epoch && block.stored.tier.code_bits().is_some() => {
                (Some(base_epoch), link)
            }
            Some(block) if is_absent(&block) && chain_len == 1 => {
                (Some(block.epoch), Link { is_on_parent: true, ..link })
            }
            _ => (None, link),
        };
        let epoch = epoch.filter(|_| lies_in_a_file(link.offset, u64::from(link.len)));
        let Some(epoch) = epoch else {
            let id = self.entry.id;
            return Err(Error::corrupt(format!(
                "a delta on block {index} of object {id}, which is no base for it"
            )));
        };
        let mut chains = self.write_state().chains.write();
        let before = chains.get(&(index, epoch)).cloned().unwrap_or_default();
        let place = usize::from(chain_len);
        if place == 0 || place > LINKS_MAX || (place != 1 && place != before.len() + 1) {
            let id = self.entry.id;
            return Err(Error::corrupt(format!(
                "link {place} on block {index} of object {id}, which has {}",
                before.len()
            )));
        }
        let replaced = if place == 1 { before.to_vec() } else { Vec::new() };
        let kept = if place == 1 { &[] } else { &*before };
        chains.insert((index, epoch), kept.iter().copied().chain([link]).collect());
        let gone: u64 = replaced.iter().map(|link| u64::from(link.len)).sum();
        self.add_linked(u64::from(link.len).wrapping_sub(gone));
        Ok(replaced)
    }

    /// Ends the chain of a block that is rewritten. The chain no longer counts as stored, and stays
    /// until [`forget_chain`](Self::forget_chain) for readers of the old block.
    pub(in crate::store) fn end_chain(&self, index: u32, epoch: u64) -> Option<Arc<[Link]>> {
        let links = self.chain(index, epoch)?;
        let bytes: u64 = links.iter().map(|link| u64::from(link.len)).sum();
        self.add_linked(0_u64.wrapping_sub(bytes));
        Some(links)
    }

    /// Removes a chain once the old block has no readers.
    pub(in crate::store) fn forget_chain(&self, index: u32, epoch: u64) {
        if let Some(write_state) = self.existing_write_state() {
            write_state.chains.write().remove(&(index, epoch));
        }
    }

    /// Whether any of its blocks are stored as differences to the lineage parent, including blocks that
    /// a reader may still read so.
    pub fn needs_parent(&self) -> bool {
        self.entry.parent.is_some() && self.links().iter().any(|link| link.is_on_parent)
    }

    /// The number of links of each chain.
    pub fn chain_lens(&self) -> Vec<u64> {
        let Some(write_state) = self.existing_write_state() else { return Vec::new() };
        write_state.chains.read().values().map(|links| links.len() as u64).filter(|len| *len > 0).collect()
    }

    /// All links of all chains.
    pub(in crate::store) fn links(&self) -> Vec<Link> {
        let Some(write_state) = self.existing_write_state() else { return Vec::new() };
        write_state.chains.read().values().flat_map(|links| links.iter().copied()).collect()
    }
}

impl OpenObject {
    /// Applies a block's chain, if any, to its decoded elements.
    pub(in crate::store) fn apply_chain(&self, index: u32, block: &Block, elements: &mut [u8]) -> Result<()> {
        self.apply_links(index, block, elements)
            .map_err(|error| self.report_corruption(index, &block.stored, error))
    }

    fn apply_links(&self, index: u32, block: &Block, elements: &mut [u8]) -> Result<()> {
        let Some(links) = self.object.chain(index, block.epoch) else { return Ok(()) };
        for link in links.iter() {
            self.apply_link(index, link, elements)?;
        }
        Ok(())
    }

    /// Applies one delta to the elements of its base block.
    pub fn apply_link(&self, index: u32, link: &Link, elements: &mut [u8]) -> Result<()> {
        let place = || {
            let path = self.collection.payload_path(DELTA_FILE);
            format!("{path} at byte {}, block {index} of object {}", link.offset, self.object.entry.id)
        };
        let record = self
            .collection
            .read_record(DELTA_FILE, (link.offset, u64::from(link.len)), link.checksum)
            .map_err(|error| error.at(place()))?;
        let dtype = self.object.dtype();
        let count = elements.len() as u64 / dtype.bytes();
        let delta = Delta::parse(&record, link.kind, dtype, count).map_err(|error| error.at(place()))?;
        if (delta.object, delta.block, delta.base_epoch) != (self.object.entry.id, index, link.base_epoch) {
            return Err(Error::corrupt(format!("{}: the delta is of another block", place())));
        }
        delta.apply(dtype, elements).map_err(|error| error.at(place()))
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
        let payload_len = codec::payload_len(block.stored.tier, len / object.dtype().bytes() as usize);
        (payload_len == Some(block.stored.len as usize)).then_some(block)
    }

    fn patch_on_base(&self, index: u32, new: &[u8], writes: Writes, touched: &mut Touched) -> Result<Patch> {
        let object = &self.object;
        let width = object.dtype().bytes() as usize;
        let Some(block) = self.patch_base(index, new.len()) else { return Ok(Patch::None) };
        let mut base = vec![0; new.len()];
        let chain = object.chain(index, block.epoch);
        let links = chain.as_ref().map_or(0, |links| links.len());
        // The ninth patch merges everything written since the block was encoded.
        let is_merged = links == LINKS_MAX && writes == Writes::Exact;
        let is_scaled = |link: &Link| link.kind == DeltaKind::Scaled;
        if is_merged && chain.is_some_and(|links| links.iter().any(is_scaled)) {
            return Ok(Patch::None);
        }
        let mut read = self.read_base(index, &block, &mut base);
        if !is_merged {
            read = read.and_then(|()| self.apply_chain(index, &block, &mut base));
        }
        match read {
            // The write repairs the corrupt block, whose content is not needed.
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Patch::None),
            read => read?,
        }
        let dtype = object.dtype();
        if base == new && object.origin_place(index).is_some() {
            // The outside file is no longer the source of a block that was written.
            return Ok(Patch::None);
        }
        if let Writes::Rounded(encoder) = writes {
            if base == new {
                return Ok(Patch::Same);
            }
            let changes = scaled(dtype, &base, new, new.len() / width / CHANGED_SHARE);
            let is_small =
                |changes: &Changes| (HEAD_BYTES + 4 * changes.len()) * 2 < block.stored.len as usize;
            return match changes.filter(|changes| links < LINKS_MAX && is_small(changes)) {
                Some(changes) if changes.is_empty() => Ok(Patch::Same),
                Some(changes) => self.link((index, &block), changes, links + 1, touched),
                None => Ok(Patch::Encoded(block.stored.tier, encoder)),
            };
        }
        let chain_len = if is_merged { 1 } else { links + 1 };
        let Some(changes) = changes(dtype, &base, new) else { return Ok(Patch::None) };
        if changes.is_empty() && chain_len == links + 1 {
            return Ok(Patch::Same);
        }
        if (HEAD_BYTES + (2 + width) * changes.len()) * 2 >= new.len() {
            return Ok(Patch::None);
        }
        self.link((index, &block), changes, chain_len, touched)
    }

    fn link(
        &self,
        (index, block): (u32, &Block),
        changes: Changes,
        chain_len: usize,
        touched: &mut Touched,
    ) -> Result<Patch> {
        let object = &self.object;
        let delta = Delta { object: object.entry.id, block: index, base_epoch: block.epoch, changes };
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
        }))
    }
}

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

/// The elements that differ bitwise, or `None` if they are more than one in ten. Equal blocks give an
/// empty patch.
fn changes(dtype: Dtype, base: &[u8], new: &[u8]) -> Option<Changes> {
    let width = dtype.bytes() as usize;
    let most = new.len() / width / CHANGED_SHARE;
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
}

/// The link of a Delta record; `None` for other records and unknown kinds.
pub(in crate::store) fn link_of(record: &Record) -> Option<(ObjectId, u32, u64, u16, Link)> {
    let Record::Delta { object, block, base_epoch, offset, len, chain_len, checksum, kind, .. } = *record
    else {
        return None;
    };
    let kind = DeltaKind::from_byte(kind)?;
    Some((
        object,
        block,
        base_epoch,
        chain_len,
        Link { offset, len, checksum, kind, base_epoch, is_on_parent: false },
    ))
}

/// File number, offset and length of a delta.
pub(in crate::store) fn place_of(link: &Link) -> (u8, u64, u64) {
    (DELTA_FILE, link.offset, u64::from(link.len))
}

/// File number, offset and length of a payload in a tier file.
pub(in crate::store) fn place_of_stored(stored: &Stored) -> (u8, u64, u64) {
    (stored.tier.byte(), stored.offset, u64::from(stored.len))
}
