//! Zeros that nobody wrote. Where they lie in a data file they are a hole of it: described like
//! other bytes, and neither stored nor read.

use std::ops::Range;

use crate::format::catalog::{Home, ObjectEntry};
use crate::format::checksum;
use crate::format::record::{Record, Stored};
use crate::model::{Result, Tier};
use crate::store::blocks::Cut;
use crate::store::collection::now_seconds;
use crate::store::describe::described;
use crate::store::log::Batch;
use crate::store::object::Object;
use crate::store::rare::Writing;
use crate::store::read::OpenObject;

/// Files of at most this many bytes lie packed in `tier0.dat`.
pub const PACKED_BYTES_MAX: u64 = 16 << 10;

/// The CRC32C of blocks of zeros, of which the last may be short.
pub struct ZeroChecksums {
    block_bytes: u32,
    whole: u32,
}

impl ZeroChecksums {
    /// Those of blocks of this length.
    pub fn new(block_bytes: u32) -> ZeroChecksums {
        ZeroChecksums { block_bytes, whole: of_zeros(block_bytes as usize) }
    }

    /// Appends those of so many bytes.
    pub fn append(&self, bytes: u64, checksums: &mut Vec<u32>) {
        let block_bytes = u64::from(self.block_bytes.max(1));
        let (whole, rest) = (bytes / block_bytes, (bytes % block_bytes) as usize);
        checksums.resize(checksums.len() + whole as usize, self.whole);
        if rest > 0 {
            checksums.push(of_zeros(rest));
        }
    }
}

fn of_zeros(bytes: usize) -> u32 {
    checksum::of(&vec![0; bytes])
}

impl OpenObject {
    /// The data file and the place in it where all of the object lies, if it lies in one.
    pub fn place_in_data(&self) -> Result<Option<Home>> {
        let mut writing = self.object.rare().writing.lock();
        let cut = self.object.cut();
        // Those that cannot be holes have places of their own afterwards.
        self.place_zeros(&mut writing, cut)?;
        Ok(self.object.home().filter(|_| lies_in_data(&self.object, cut)))
    }

    /// Whether it is exact and small, among others in `tier0.dat`: as a file that had few bytes
    /// when it was first described.
    pub fn is_packed(&self) -> bool {
        let (cut, blocks) = (self.object.cut(), self.object.blocks.read());
        self.object.home().is_none()
            && cut.bytes <= PACKED_BYTES_MAX
            && blocks.described(cut).all(|(_, block)| block.stored.tier == Tier::Exact)
    }

    /// Blocks that nobody wrote: those that are holes of the data file, which reaches to their
    /// end then. Others are stored, and dirty.
    pub(super) fn place_zeros(&self, writing: &mut Writing, cut: Cut) -> Result<Vec<Range<u32>>> {
        let mut holes = Vec::new();
        for gap in gaps(&self.object, cut) {
            // Before it there may be bytes of others.
            let first = u32::try_from(writing.stale.div_ceil(u64::from(cut.block_bytes.max(1))));
            let first = first.unwrap_or(u32::MAX).clamp(gap.start, gap.end);
            let first = if self.fits_data(writing, cut, first) { first } else { gap.end };
            for index in gap.start..first {
                self.place_block(writing, cut, index, &vec![0; cut.len(index)])?;
            }
            if first < gap.end {
                self.room(writing, cut, gap.end - 1)?;
                holes.push(first..gap.end);
            }
        }
        Ok(holes)
    }
}

/// Runs of blocks that are neither described nor dirty.
fn gaps(object: &Object, cut: Cut) -> Vec<Range<u32>> {
    let (mut next, end) = (object.described(), cut.blocks());
    let mut gaps = Vec::new();
    for &index in object.rare().dirty.read().range(next.min(end)..end).map(|(index, _)| index) {
        if index > next {
            gaps.push(next..index);
        }
        next = index + 1;
    }
    if next < end {
        gaps.push(next..end);
    }
    gaps
}

fn lies_in_data(object: &Object, cut: Cut) -> bool {
    let dirty = object.rare().dirty.read();
    let blocks = object.blocks.read();
    let is_there = |stored: &Stored| stored.in_data && stored.tier == Tier::Exact;
    dirty.values().all(is_there)
        && (0..object.described().min(cut.blocks())).all(|index| {
            dirty.contains_key(&index) || blocks.get(index, cut).is_some_and(|block| is_there(&block.stored))
        })
}

/// Adds holes of an object's data file to a batch.
pub(super) fn add_hole(batch: &mut Batch, entry: &ObjectEntry, range: &Range<u32>) {
    let Some(home) = entry.home else { return };
    let cut = Cut { bytes: entry.bytes, block_bytes: entry.block_bytes };
    let (start, end) = (cut.start(range.start), cut.start(range.end).min(cut.bytes));
    let mut checksums = Vec::new();
    ZeroChecksums::new(cut.block_bytes).append(end.saturating_sub(start), &mut checksums);
    batch.run(&checksums, |len, checksum| Record::CreateRun {
        object: entry.id,
        block: range.start,
        described: described(entry),
        stored: Stored {
            tier: Tier::Exact,
            scale: 0.0,
            checksum,
            offset: home.offset + start,
            len,
            in_data: true,
        },
        created_at: now_seconds(),
    });
}
