//! One object: what the catalog says of it, and where its blocks are.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::codec;
use crate::format::catalog::{Home, ObjectEntry};
use crate::model::{Error, Result, Tier};
use crate::store::blocks::{Block, Blocks, Checked, Cut, Run};

/// Something that blocks are keyed by, and where they are.
#[derive(Debug)]
pub struct Object {
    /// What the catalog says of it.
    pub entry: ObjectEntry,
    /// Its blocks. Held for a look-up or a change only, never across input or output.
    pub blocks: RwLock<Blocks>,
    /// Which of them have been checked.
    pub checked: Checked,
    /// Bytes of all payloads.
    stored: AtomicU64,
}

impl Object {
    /// An object of which no block is described.
    pub fn new(entry: ObjectEntry) -> Object {
        let cut = Cut { bytes: entry.bytes, block_bytes: entry.block_bytes };
        let checked = Checked::none(cut.blocks());
        Object { entry, blocks: RwLock::default(), checked, stored: AtomicU64::new(0) }
    }

    /// Where its blocks begin and end.
    pub fn cut(&self) -> Cut {
        Cut { bytes: self.entry.bytes, block_bytes: self.entry.block_bytes }
    }

    /// Bytes of all its payloads.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Its data file, if it has one.
    pub fn home(&self) -> Option<Home> {
        self.entry.home
    }

    /// Sets one block, `Corrupt` where it cannot be one of this object's. `places` is
    /// how many blocks may still be given memory.
    pub fn set(&self, index: u32, block: Block, places: &mut u64) -> Result<()> {
        let (cut, stored) = (self.cut(), block.stored);
        let id = self.entry.id;
        let expected = self.payload_len(index, stored.tier)?;
        if stored.len as usize != expected || !lies_in_a_file(stored.offset, u64::from(stored.len)) {
            return Err(Error::corrupt(format!(
                "block {index} of object {id} is {} bytes in tier {} where {expected} should be",
                stored.len, stored.tier
            )));
        }
        if stored.in_data && self.entry.home.is_none() {
            return Err(Error::corrupt(format!("block {index} of object {id} lies in no data file")));
        }
        let mut blocks = self.blocks.write();
        let before = blocks.get(index, cut).map_or(0, |block| u64::from(block.stored.len));
        blocks.set(index, block, cut, places)?;
        self.stored.fetch_add(u64::from(stored.len).wrapping_sub(before), Ordering::Relaxed);
        Ok(())
    }

    /// Sets exact blocks of its data file from block `first` on; otherwise as `set`.
    pub fn set_run(&self, first: u32, run: Run, places: &mut u64) -> Result<()> {
        let (cut, id) = (self.cut(), self.entry.id);
        let end = u64::from(first) + run.checksums.len() as u64;
        let is_inside = u64::from(first) < end && end <= u64::from(cut.blocks());
        if !is_inside || !lies_in_a_file(run.offset, cut.bytes) {
            return Err(Error::corrupt(format!("a run of object {id} ends at block {end}")));
        }
        if self.entry.home.is_none() {
            return Err(Error::corrupt(format!("a run of object {id} lies in no data file")));
        }
        let bytes = cut.start(end as u32).min(cut.bytes) - cut.start(first);
        let mut blocks = self.blocks.write();
        let before: u64 = match *blocks {
            Blocks::Unknown => 0,
            _ => (first..end as u32)
                .filter_map(|index| blocks.get(index, cut))
                .map(|block| u64::from(block.stored.len))
                .sum(),
        };
        blocks.set_run(first, run, cut, places)?;
        self.stored.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of the payload of a block in a tier.
    fn payload_len(&self, index: u32, tier: Tier) -> Result<usize> {
        let (logical, dtype) = (self.cut().len(index), self.entry.dtype);
        let width = dtype.bytes() as usize;
        match tier {
            Tier::Absent => Ok(0),
            Tier::Exact => Ok(logical),
            _ if !dtype.is_quantizable() || !logical.is_multiple_of(width) => {
                let id = self.entry.id;
                Err(Error::corrupt(format!(
                    "block {index} of object {id}, {logical} bytes of {dtype}, in tier {tier}"
                )))
            }
            _ => Ok(codec::payload_len(tier, logical / width).unwrap_or(usize::MAX)),
        }
    }
}

/// Whether a file can have so many bytes from `offset` on.
fn lies_in_a_file(offset: u64, bytes: u64) -> bool {
    offset.checked_add(bytes).is_some_and(|end| end <= i64::MAX as u64)
}
