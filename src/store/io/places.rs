//! The places of an object's bytes, so that other objects can name them there.

use std::ops::Range;

use crate::format::log::catalog::Extent;
use crate::format::log::record::Stored;
use crate::model::{Result, Tier};
use crate::store::collection::open_object::OpenObject;
use crate::store::io::zeros::Hole;
use crate::store::object::blocks::{Block, BlockLayout, DIRTY};

/// Where consecutive bytes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In a data file, from this offset on.
    Data(Extent),
    /// Zeros that were never written, where a data file has a hole.
    Hole(Extent),
    /// Zeros that were never written and lie nowhere.
    Zeros,
    /// In slots, or encoded: only the object can read them.
    Elsewhere,
}

/// Consecutive bytes that lie alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Their offsets in the file or object.
    pub bytes: Range<u64>,
    /// Where they lie.
    pub place: Place,
}

impl Stretch {
    /// Adds bytes to stretches that end where they begin.
    pub fn push(stretches: &mut Vec<Stretch>, bytes: Range<u64>, place: Place) {
        if bytes.is_empty() {
            return;
        }
        match stretches.last_mut() {
            Some(last) if last.is_continued(place) => last.bytes.end = bytes.end,
            _ => stretches.push(Stretch { bytes, place }),
        }
    }

    fn is_continued(&self, next: Place) -> bool {
        let len = self.bytes.end - self.bytes.start;
        match (self.place, next) {
            (Place::Data(before), Place::Data(next)) | (Place::Hole(before), Place::Hole(next)) => {
                before.file == next.file && before.offset.checked_add(len) == Some(next.offset)
            }
            (before, next) => before == next,
        }
    }
}

impl OpenObject {
    /// Where the bytes of the object lie, in order. Zeros that no batch describes get a place in the data
    /// file where they can.
    pub fn stretches(&self) -> Result<Vec<Stretch>> {
        let mut writing = self.object.write_state().writing.lock();
        let layout = self.object.layout();
        let holes = self.place_zeros(&mut writing, layout)?;
        let mut stretches = Vec::new();
        let mut push = |blocks: Range<u32>, place| {
            let start = layout.start(blocks.start);
            Stretch::push(&mut stretches, start..start + layout.bytes_of(&blocks), place);
        };
        for (piece, block) in self.object.pieces(0..layout.blocks(), layout) {
            if block.is_some_and(|block| block.epoch == DIRTY && block.is_unwritten()) {
                for hole in holes_in(&holes, &piece) {
                    let range = hole.range.start.max(piece.start)..hole.range.end.min(piece.end);
                    let at = self.extent_of(&range, layout).filter(|_| hole.in_data);
                    push(range, at.map_or(Place::Zeros, Place::Hole));
                }
                continue;
            }
            let place = self.place_of_piece(&piece, block, layout)?;
            push(piece, place);
        }
        Ok(stretches)
    }

    fn place_of_piece(&self, piece: &Range<u32>, block: Option<Block>, layout: BlockLayout) -> Result<Place> {
        let extent = self.extent_of(piece, layout);
        let is_there = |stored: &Stored| {
            stored.in_data
                && stored.tier == Tier::Exact
                && extent.is_some_and(|extent| extent.offset == stored.offset)
        };
        Ok(match (block, extent) {
            (Some(block), Some(extent)) if is_there(&block.stored) && block.is_unwritten() => {
                // A write that no batch describes may have left bytes there.
                let is_hole = self.has_zeros(extent.offset, layout.bytes_of(piece))?;
                if is_hole { Place::Hole(extent) } else { Place::Zeros }
            }
            (Some(block), Some(extent)) if is_there(&block.stored) => Place::Data(extent),
            (Some(block), _) if block.is_unwritten() => Place::Zeros,
            _ => Place::Elsewhere,
        })
    }

    /// The stretch of the data file that blocks have.
    fn extent_of(&self, blocks: &Range<u32>, layout: BlockLayout) -> Option<Extent> {
        let extent = self.object.extent()?;
        Some(Extent { offset: extent.offset.checked_add(layout.start(blocks.start))?, ..extent })
    }
}

/// The holes that have blocks of a piece.
fn holes_in<'a>(holes: &'a [Hole], piece: &Range<u32>) -> impl Iterator<Item = &'a Hole> {
    let (start, end) = (piece.start, piece.end);
    let first = holes.partition_point(|hole| hole.range.end <= start);
    holes.get(first..).into_iter().flatten().take_while(move |hole| hole.range.start < end)
}

#[cfg(test)]
mod tests {
    use super::{Place, Stretch};
    use crate::format::log::catalog::Extent;

    #[test]
    fn stretches_join_where_they_go_on_in_the_same_place() {
        let data = |offset| Place::Data(Extent { file: 7, offset });
        let hole = |offset| Place::Hole(Extent { file: 7, offset });
        let mut stretches = Vec::new();
        for (bytes, place) in [
            (0..10, data(0)),
            (10..20, data(10)),
            (20..20, Place::Elsewhere),
            (20..30, data(40)),
            (30..35, Place::Elsewhere),
            (35..40, Place::Elsewhere),
            (40..50, hole(60)),
            (50..60, data(70)),
        ] {
            Stretch::push(&mut stretches, bytes, place);
        }
        let found: Vec<_> = stretches.into_iter().map(|stretch| (stretch.bytes, stretch.place)).collect();
        let wanted = [
            (0..20, data(0)),
            (20..30, data(40)),
            (30..40, Place::Elsewhere),
            (40..50, hole(60)),
            (50..60, data(70)),
        ];
        assert_eq!(found, wanted);
    }
}
