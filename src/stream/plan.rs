//! Maps a range of a stream to pieces of its segments, by arithmetic only.

use std::ops::Range;

use crate::model::{Error, Result};

/// The positions of the segments of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Byte offset of each segment's end. Ascending; empty segments repeat the offset.
    ends: Vec<u64>,
}

/// A part of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The index of the segment in the stream.
    pub segment: usize,
    /// The bytes of the segment, counted from its start.
    pub range: Range<u64>,
}

impl Plan {
    /// The plan of segments of these lengths, in bytes. Fails with `Corrupt` above 2^63 - 1 bytes in total.
    pub fn new(lens: impl Iterator<Item = u64>) -> Result<Plan> {
        let mut end: u64 = 0;
        let ends: Option<Vec<u64>> = lens
            .map(|len| {
                end = end.checked_add(len).filter(|end| *end <= i64::MAX as u64)?;
                Some(end)
            })
            .collect();
        Ok(Plan { ends: ends.ok_or_else(|| Error::corrupt("a stream of more than 2^63 - 1 bytes"))? })
    }

    /// Bytes of the stream.
    pub fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The pieces of `range`, which ends at the stream's end at the latest. Finds the first by binary search.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let first = self.ends.partition_point(|end| *end <= range.start);
        let mut start = if first == 0 { 0 } else { self.ends.get(first - 1).copied().unwrap_or(0) };
        let ends = self.ends.iter().copied().enumerate().skip(first);
        ends.take_while({
            let mut begin = start;
            move |(_, end)| std::mem::replace(&mut begin, *end) < range.end
        })
        .filter_map(move |(segment, end)| {
            let from = range.start.max(start) - start;
            let until = range.end.min(end) - start;
            start = end;
            (from < until).then_some(Piece { segment, range: from..until })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Plan;

    proptest! {
        #[test]
        fn pieces_agree_with_a_walk_over_all_bytes(
            lens in prop::collection::vec(0_u64..7, 0..20),
            start in 0_u64..100,
            len in 0_u64..60,
        ) {
            let plan = Plan::new(lens.iter().copied()).unwrap();
            let all: Vec<(usize, u64)> = lens
                .iter()
                .enumerate()
                .flat_map(|(segment, len)| (0..*len).map(move |byte| (segment, byte)))
                .collect();
            prop_assert_eq!(plan.bytes(), all.len() as u64);
            let naive: Vec<_> = all.iter().copied().skip(start as usize).take(len as usize).collect();
            let planned: Vec<_> = plan
                .pieces(start..start + len)
                .flat_map(|piece| piece.range.clone().map(move |byte| (piece.segment, byte)))
                .collect();
            prop_assert_eq!(planned, naive);
        }
    }

    #[test]
    fn a_stream_past_the_largest_file_is_refused() {
        assert!(Plan::new([i64::MAX as u64, 1].into_iter()).is_err());
        assert!(Plan::new([u64::MAX, u64::MAX].into_iter()).is_err());
    }
}
