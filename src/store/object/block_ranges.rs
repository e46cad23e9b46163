//! A set of blocks that is kept as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of blocks. It takes memory for each range, and an insertion takes work for the ranges that it joins.
#[derive(Debug, Default)]
pub(in crate::store) struct BlockRanges {
    /// The end of each range by its first block. Ranges neither overlap nor touch.
    ends: BTreeMap<u32, u32>,
}

impl BlockRanges {
    /// Whether it has block `index`.
    pub fn contains(&self, index: u32) -> bool {
        self.ends.range(..=index).next_back().is_some_and(|(_, end)| index < *end)
    }

    /// Adds the blocks of `range`.
    pub fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((&first, &last)) =
            self.ends.range(..=end).next_back().filter(|(_, last)| **last >= start)
        {
            self.ends.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.ends.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::BlockRanges;

    proptest! {
        #[test]
        fn a_set_has_the_blocks_of_all_ranges_that_were_inserted(
            inserted in prop::collection::vec((0..300_u32, 0..40_u32), 0..40),
        ) {
            let (mut set, mut table) = (BlockRanges::default(), vec![false; 400]);
            for (first, count) in inserted {
                set.insert(first..first + count);
                table[first as usize..(first + count) as usize].fill(true);
            }
            let found: Vec<bool> = (0..400).map(|index| set.contains(index)).collect();
            prop_assert_eq!(&found, &table);
            let ranges = table.chunk_by(|one, other| one == other).filter(|chunk| chunk[0]).count();
            prop_assert_eq!(set.ends.len(), ranges);
        }
    }

    #[test]
    fn the_last_block_can_be_a_member() {
        let mut set = BlockRanges::default();
        set.insert(u32::MAX - 1..u32::MAX);
        assert!(set.contains(u32::MAX - 1) && !set.contains(0));
    }
}
