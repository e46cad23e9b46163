//! The file outside the store that has an object's exact bytes. `io` has the invariants.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::format::log::catalog::OutsideFile;
use crate::store::object::block_ranges::BlockRanges;
use crate::store::object::blocks::Checksums;

/// The imported content of an object's blocks, in a file outside the store.
#[derive(Debug)]
pub struct Origin {
    /// The file.
    pub file: Arc<OutsideFile>,
    /// The record that describes the blocks.
    run: RwLock<OriginRun>,
    /// Blocks written since the import.
    severed: RwLock<BlockRanges>,
}

/// The record of the blocks of an outside file, from the first block on.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct OriginRun {
    /// The record's sequence number.
    pub epoch: u64,
    /// Time of the import, in seconds since 1970.
    pub since: u32,
    /// CRC32C of each block.
    pub checksums: Checksums,
}

impl Origin {
    /// An origin whose record is not applied yet.
    pub(in crate::store) fn new(file: Arc<OutsideFile>) -> Origin {
        Origin { file, run: RwLock::default(), severed: RwLock::default() }
    }

    /// The checksum of a block in the outside file; `None` if the block was written since.
    pub fn checksum(&self, index: u32) -> Option<u32> {
        if self.is_severed(index) {
            return None;
        }
        self.run.read().checksums.get(index as usize).copied()
    }

    /// Its path or URL, for messages.
    pub fn path(&self) -> String {
        self.file.name()
    }

    pub(in crate::store) fn run(&self) -> OriginRun {
        self.run.read().clone()
    }

    pub(in crate::store) fn set_run(&self, run: OriginRun) {
        *self.run.write() = run;
    }

    pub(in crate::store) fn sever(&self, index: u32) {
        self.sever_all(index..index.saturating_add(1));
    }

    /// Detaches the blocks of `range` that have an origin.
    pub(in crate::store) fn sever_all(&self, range: Range<u32>) {
        let end = (self.run.read().checksums.len() as u32).min(range.end);
        self.severed.write().insert(range.start..end);
    }

    /// Whether a block was written since the import.
    pub(in crate::store) fn is_severed(&self, index: u32) -> bool {
        self.severed.read().contains(index)
    }

    pub(in crate::store) fn truncate(&self, count: u32) {
        self.run.write().checksums.truncate(count as usize);
    }
}
