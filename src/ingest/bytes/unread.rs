//! The parts of a file whose bytes nobody reads: those of a header are known, and the others stay where they lie.
//!
//! The checksum of a block is that of its place, by which no other block is taken for it.

use std::ops::Range;

use crate::format::checksum;
use crate::format::log::catalog::{Extent, OutsideFile};
use crate::ingest::bytes::store_parts::{StoredBlocks, StoredObject, StoredParts};
use crate::ingest::recognize::block_size::Blocking;
use crate::ingest::recognize::parts::{Part, Recognized};
use crate::model::{Dtype, Error, Result};

/// A part of a file and its blocks.
pub(in crate::ingest) struct Layout {
    dtype: Dtype,
    /// The range in the file.
    pub begin: u64,
    pub end: u64,
    block_bytes: u32,
}

impl Layout {
    pub fn of(part: &Part, blocking: Blocking) -> Layout {
        let dtype = part.tensor.as_ref().map_or(Dtype::U8, |tensor| tensor.dtype);
        let block_bytes = blocking.block_bytes(dtype, part.end - part.begin);
        Layout { dtype, begin: part.begin, end: part.end, block_bytes }
    }

    /// The ranges of its blocks in the file.
    pub fn blocks(&self) -> impl Iterator<Item = Range<u64>> {
        let (end, step) = (self.end, u64::from(self.block_bytes));
        (self.begin..end).step_by(step as usize).map(move |at| at..end.min(at + step))
    }

    /// Checksums of the places of its blocks.
    pub fn of_places(&self, identity: &[u8]) -> Vec<u32> {
        let of_file = checksum::of(identity);
        self.blocks().map(|block| checksum::continued(of_file, &block.start.to_le_bytes())).collect()
    }

    /// The object that it becomes, in a data file.
    pub fn stored(self, number: Option<u64>, checksums: Vec<u32>) -> StoredObject {
        let bytes = self.end - self.begin;
        StoredObject {
            dtype: self.dtype,
            bytes,
            block_bytes: self.block_bytes,
            extent: number.filter(|_| bytes > 0).map(|file| Extent { file, offset: self.begin }),
            blocks: StoredBlocks::Run(checksums),
            error: None,
        }
    }
}

/// The parts of a file that stays at a URL. `identity` names its bytes.
pub(in crate::ingest) fn unread_parts(
    recognized: &Recognized,
    blocking: Blocking,
    outside: &OutsideFile,
    identity: &[u8],
) -> Result<StoredParts> {
    if recognized.records.is_some() {
        return Err(Error::unsupported(
            "an embedding batch is stored as separate tensors, so its bytes cannot stay in place; import it without --in-place",
        ));
    }
    let objects = recognized.parts.iter().map(|part| Layout::of(part, blocking)).map(|layout| {
        let checksums = layout.of_places(identity);
        layout.stored(Some(outside.file), checksums)
    });
    Ok(StoredParts::unread(recognized.bytes, objects.collect()))
}
