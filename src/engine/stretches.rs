//! Stretches of blocks: the units in which a part of a tensor moves.
//!
//! A stretch is 64 blocks of an object, the last one up to 127, so that the blocks of one tier are joined in records and
//! reads. Stretches begin at multiples of 64 blocks, and a tensor that grows keeps them.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::select::Target;
use crate::model::{ErrorKind, Rows};
use crate::store::{BlockLayout, Object};

/// Blocks of a stretch.
const STRETCH_BLOCKS: u32 = 64;

/// The number of stretches of an object.
pub(super) fn count_of(layout: BlockLayout) -> u64 {
    u64::from(layout.blocks() / STRETCH_BLOCKS).max(1)
}

/// The first block of a stretch; the end of the blocks behind the last stretch.
fn begin(layout: BlockLayout, stretch: u64) -> u32 {
    let first = stretch.saturating_mul(STRETCH_BLOCKS.into());
    if stretch < count_of(layout) { u32::try_from(first).unwrap_or(u32::MAX) } else { layout.blocks() }
}

/// The blocks of the stretches of an object that lie within bytes of it.
fn inward(layout: BlockLayout, bytes: Range<u64>) -> Range<u32> {
    let stretch_bytes = u64::from(layout.block_bytes).saturating_mul(STRETCH_BLOCKS.into()).max(1);
    let first = begin(layout, bytes.start.div_ceil(stretch_bytes));
    // The last stretch ends with the object.
    let last = count_of(layout).saturating_sub(1);
    let end = if bytes.end >= layout.bytes { last + 1 } else { (bytes.end / stretch_bytes).min(last) };
    first..begin(layout, end).max(first)
}

/// Why a tensor has no such rows.
pub(super) struct NoRows {
    pub kind: ErrorKind,
    pub text: String,
}

/// Bytes of a row of a tensor. `None` if it has no rows of whole bytes.
pub(super) fn row_bytes(target: &Target) -> Option<u64> {
    let rows = target.shape.dimensions().first().copied().filter(|rows| *rows > 0)?;
    let bytes = target.dtype.bytes_of(target.shape.elements())?;
    (bytes == target.bytes() && bytes > 0 && bytes.is_multiple_of(rows)).then_some(bytes / rows)
}

/// The stretches of a tensor that lie within rows of it: for each object, its blocks.
pub(super) fn within(target: &Target, rows: Rows) -> Result<Vec<Range<u32>>, NoRows> {
    let no = |kind, text: String| NoRows { kind, text };
    if target.is_view {
        let text = "its elements are those of other tensors, or lie apart; name the rows of the others";
        return Err(no(ErrorKind::Denied, text.to_owned()));
    }
    let row = row_bytes(target).ok_or_else(|| no(ErrorKind::Invalid, "it has no rows".to_owned()))?;
    let count = target.shape.dimensions().first().copied().unwrap_or_default();
    if rows.end > count {
        return Err(no(ErrorKind::Invalid, format!("it has {count} rows, so {rows} are not all there")));
    }
    let taken = of_bytes(target, rows.first.saturating_mul(row)..rows.end.saturating_mul(row));
    if taken.iter().all(Range::is_empty) {
        let longest = target.objects.iter().map(|object| object.entry.block_bytes).max().unwrap_or_default();
        let bytes = u64::from(longest).saturating_mul(STRETCH_BLOCKS.into());
        let text = format!(
            "rows {rows} hold no whole stretch: its tiers change at multiples of {STRETCH_BLOCKS} blocks, which are \
             {} rows",
            bytes.div_ceil(row.max(1))
        );
        return Err(no(ErrorKind::Invalid, text));
    }
    Ok(taken)
}

/// The begin of the stretch before the one that ends with a block, or of an earlier one: so much more may have become whole
/// since the tensor ended there.
pub(super) fn stretch_before(end: u32) -> u32 {
    (end.saturating_sub(1) / STRETCH_BLOCKS * STRETCH_BLOCKS).saturating_sub(STRETCH_BLOCKS)
}

/// All stretches of an object.
pub(super) fn all_of(layout: BlockLayout) -> impl Iterator<Item = Range<u32>> {
    (0..count_of(layout)).map(move |stretch| begin(layout, stretch)..begin(layout, stretch + 1))
}

/// The stretches among blocks.
pub(super) fn each_of(blocks: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let firsts = (blocks.start..blocks.end).step_by(STRETCH_BLOCKS as usize);
    firsts.map(move |first| first..first.saturating_add(STRETCH_BLOCKS).min(blocks.end))
}

/// The stretches of a tensor that lie within bytes of it: for each object, its blocks.
pub(super) fn of_bytes(target: &Target, bytes: Range<u64>) -> Vec<Range<u32>> {
    let mut begin = 0_u64;
    let of_object = |object: &Arc<Object>| {
        let layout = object.layout();
        let at = |byte: u64| byte.saturating_sub(begin).min(layout.bytes);
        let taken = inward(layout, at(bytes.start)..at(bytes.end));
        begin = begin.saturating_add(layout.bytes);
        taken
    };
    target.objects.iter().map(of_object).collect()
}

/// The rows that have elements in these stretches of a tensor. The first and the last one may have others outside; a
/// request for all of them takes the same stretches.
pub(super) fn rows_of(target: &Target, taken: &[Range<u32>]) -> Option<Rows> {
    let row = row_bytes(target)?;
    let (mut begin, mut bytes) = (0_u64, None::<Range<u64>>);
    for (object, blocks) in target.objects.iter().zip(taken) {
        let layout = object.layout();
        if !blocks.is_empty() {
            let end = if blocks.end >= layout.blocks() { layout.bytes } else { layout.start(blocks.end) };
            let first = bytes.map_or(begin.saturating_add(layout.start(blocks.start)), |bytes| bytes.start);
            bytes = Some(first..begin.saturating_add(end));
        }
        begin = begin.saturating_add(layout.bytes);
    }
    let bytes = bytes?;
    Some(Rows { first: bytes.start / row.max(1), end: bytes.end.div_ceil(row.max(1)) })
}

#[cfg(test)]
mod tests {
    use super::{STRETCH_BLOCKS, inward};
    use crate::store::BlockLayout;

    /// The stretches of a layout, by their definition.
    fn stretches(layout: BlockLayout) -> Vec<std::ops::Range<u32>> {
        let count = (layout.blocks() / STRETCH_BLOCKS).max(1);
        let begins: Vec<u32> = (0..count).map(|place| place * STRETCH_BLOCKS).collect();
        let ends = begins.iter().skip(1).copied().chain([layout.blocks()]);
        begins.iter().copied().zip(ends).map(|(begin, end)| begin..end).collect()
    }

    #[test]
    fn ranges_are_rounded_inward_to_whole_stretches() {
        for blocks in [1, 2, 63, 64, 65, 127, 128, 129, 200, 256, 300] {
            for rest in [100, 4096] {
                let layout = BlockLayout { bytes: (blocks - 1) * 4096 + rest, block_bytes: 4096 };
                let stretches = stretches(layout);
                let end = |stretch: &std::ops::Range<u32>| {
                    (layout.start(stretch.end - 1) + layout.len(stretch.end - 1) as u64).min(layout.bytes)
                };
                let edges: Vec<u64> = [0, 1, 64 * 4096 - 1, 64 * 4096, 64 * 4096 + 1, 128 * 4096, 190 * 4096]
                    .into_iter()
                    .chain([layout.bytes - 1, layout.bytes])
                    .filter(|edge| *edge <= layout.bytes)
                    .collect();
                for first in &edges {
                    for last in edges.iter().filter(|last| *last >= first) {
                        let inside = |stretch: &&std::ops::Range<u32>| {
                            layout.start(stretch.start) >= *first && end(stretch) <= *last
                        };
                        let wanted: Vec<u32> =
                            stretches.iter().filter(inside).flat_map(Clone::clone).collect();
                        let found: Vec<u32> = inward(layout, *first..*last).collect();
                        assert_eq!(found, wanted, "{blocks} blocks, {rest}, {first}..{last}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_borders_of_a_tensor_that_grows_stay() {
        let layout = |blocks: u64| BlockLayout { bytes: blocks * 4096, block_bytes: 4096 };
        for (byte, border) in
            [(0, 0), (5, 0), (64 * 4096, 64), (70 * 4096, 64), (127 * 4096, 64), (150 * 4096, 128)]
        {
            for blocks in [200, 230, 255, 256, 500] {
                assert_eq!(inward(layout(blocks), 0..byte), 0..border, "{byte} of {blocks} blocks");
            }
        }
    }
}
