//! Unwritten zeros: one record gives the number of blocks, and nothing is stored or read for them. If
//! the object's stretch of its data file was never used, the zeros are a hole of that file too, which
//! the kernel may read.

use std::ops::Range;

use crate::format::log::catalog::ObjectEntry;
use crate::format::log::record::{Record, Stored};
use crate::model::{Result, Tier};
use crate::store::batch::Batch;
use crate::store::clock::now_seconds;
use crate::store::collection::open_object::OpenObject;
use crate::store::object::Object;
use crate::store::object::blocks::BlockLayout;
use crate::store::object::write_state::Writing;

/// Files of at most this many bytes lie in `tier0.dat`, with others.
pub const GATHERED_BYTES_MAX: u64 = 16 << 10;

/// Blocks that were never written.
pub(in crate::store) struct Hole {
    /// The blocks.
    pub range: Range<u32>,
    /// Whether their stretch of the data file was never used: it is a hole there, and the file reaches
    /// to its end. Otherwise they have no location.
    pub in_data: bool,
}

impl OpenObject {
    /// Whether the object is exact and small, and lies in `tier0.dat` with others because the file was
    /// short when it was first described.
    pub fn is_gathered(&self) -> bool {
        let (layout, blocks) = (self.object.layout(), self.object.blocks.read());
        self.object.extent().is_none()
            && layout.bytes <= GATHERED_BYTES_MAX
            && blocks.pieces(layout).all(|(_, block)| block.stored.tier == Tier::Exact)
    }

    /// The unwritten blocks that no batch describes. Extends the data file to the end of those that are
    /// holes of it.
    pub(in crate::store) fn place_zeros(
        &self,
        writing: &mut Writing,
        layout: BlockLayout,
    ) -> Result<Vec<Hole>> {
        let _unshared = self.collection.services.sharing().changing();
        let mut holes = Vec::new();
        for gap in gaps(&self.object, layout) {
            // Earlier space may contain other bytes.
            let first = u32::try_from(writing.stale.div_ceil(u64::from(layout.block_bytes.max(1))));
            let first = first.unwrap_or(u32::MAX).clamp(gap.start, gap.end);
            let first = if self.fits_data(writing, layout, first) { first } else { gap.end };
            if gap.start < first {
                holes.push(Hole { range: gap.start..first, in_data: false });
            }
            if first < gap.end {
                self.room(writing, layout, gap.end - 1)?;
                holes.push(Hole { range: first..gap.end, in_data: true });
            }
        }
        Ok(holes)
    }
}

/// Runs of blocks that are neither described nor dirty.
fn gaps(object: &Object, layout: BlockLayout) -> Vec<Range<u32>> {
    let (mut next, end) = (object.described(), layout.blocks());
    let mut gaps = Vec::new();
    for &index in object.write_state().dirty.read().range(next.min(end)..end).map(|(index, _)| index) {
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

/// Adds blocks of zeros to a batch.
pub(in crate::store) fn add_hole(batch: &mut Batch, entry: &ObjectEntry, hole: &Hole) {
    let layout = BlockLayout { bytes: entry.bytes, block_bytes: entry.block_bytes };
    let Range { start, end } = hole.range;
    let offset = entry.extent.filter(|_| hole.in_data).map(|extent| extent.offset + layout.start(start));
    batch.record(Record::EmptyRun {
        object: entry.id,
        block: start,
        count: end - start,
        stored: offset.map_or(Stored::ZEROS, Stored::in_extent),
        created_at: now_seconds(),
    });
}
