//! The location of each block of an object. Consecutive exact blocks of the data file form a run,
//! blocks without a payload that one record describes form one entry, and all others have an entry
//! each. Memory use follows the records, never the size that an object claims.

use std::ops::Range;

use smallvec::SmallVec;

use crate::format::log::record::Stored;
use crate::model::{Error, Result, Tier};
use crate::store::object::parts::{Part, Parts};

/// The epoch of a block written since the last batch.
pub(in crate::store) const DIRTY: u64 = u64::MAX;

/// The recorded state of one block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Block {
    /// The sequence number of its last Create or Migrate record; 0 if no record describes it.
    pub epoch: u64,
    /// Tier, location and checksum of its payload.
    pub stored: Stored,
    /// When the block entered its tier, in seconds since 1970.
    pub since: u32,
}

/// A block and its index in its object.
#[derive(Clone, Copy, Debug)]
pub struct IndexedBlock<'a> {
    /// The index.
    pub index: u32,
    /// The block.
    pub block: &'a Block,
}

/// Upper limit for the memory that the index takes for a block.
const BLOCK_BYTES_MAX: usize = 64;
const _: () = assert!(size_of::<Block>() <= BLOCK_BYTES_MAX);

/// The blocks of one object.
#[derive(Debug, Default)]
pub enum Blocks {
    /// No records yet.
    #[default]
    Unknown,
    /// All of one kind, from block 0 on.
    One(Part),
    /// Of several kinds, or starting after block 0.
    Parts(Box<Parts>),
}

/// The CRC32C of each block of a run. Up to four need no allocation.
pub type Checksums = SmallVec<[u32; 4]>;

/// Consecutive exact blocks in a data file.
#[derive(Debug)]
pub struct Run {
    /// The sequence number of the record.
    pub epoch: u64,
    /// Byte offset of the first block in the data file.
    pub offset: u64,
    /// When the blocks were written, in seconds since 1970.
    pub since: u32,
    /// CRC32C of each block.
    pub checksums: Checksums,
}

/// The division of an object into blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLayout {
    /// Logical bytes of the object.
    pub bytes: u64,
    /// Logical bytes of every block but the last.
    pub block_bytes: u32,
}

impl BlockLayout {
    /// The number of blocks.
    pub fn blocks(self) -> u32 {
        u32::try_from(self.bytes.div_ceil(u64::from(self.block_bytes))).unwrap_or(u32::MAX)
    }

    /// Byte offset of block `index`.
    pub fn start(self, index: u32) -> u64 {
        u64::from(index) * u64::from(self.block_bytes)
    }

    /// Bytes of block `index`; the last block may be short.
    pub fn len(self, index: u32) -> usize {
        self.bytes.saturating_sub(self.start(index)).min(u64::from(self.block_bytes)) as usize
    }

    /// Total bytes of the blocks of `range`.
    pub fn bytes_of(self, range: &Range<u32>) -> u64 {
        self.start(range.end).min(self.bytes).saturating_sub(self.start(range.start))
    }

    /// The block that contains the byte at `offset`.
    pub fn index(self, offset: u64) -> u32 {
        u32::try_from(offset / u64::from(self.block_bytes)).unwrap_or(u32::MAX)
    }
}

impl Block {
    /// Whether the block reads as zeros and nothing is stored for it.
    pub fn is_unwritten(&self) -> bool {
        match self.epoch {
            DIRTY => self.stored.tier == Tier::Absent,
            _ => self.stored.is_zeros(),
        }
    }
}

impl Run {
    /// Block `index`, which is the `skip`th of the run.
    pub(in crate::store) fn block(&self, skip: u32, index: u32, layout: BlockLayout) -> Option<Block> {
        let checksum = *self.checksums.get(skip as usize)?;
        let place = Stored::in_extent(self.offset + layout.start(skip));
        let stored = Stored { checksum, len: layout.len(index) as u32, ..place };
        Some(Block { epoch: self.epoch, stored, since: self.since })
    }

    /// Appends `run` if it begins at block `skip` of this run (at most right after its end), reaches at
    /// least to its end, and continues it in the file with the same epoch and time. Otherwise returns `run`.
    pub(in crate::store) fn join(&mut self, skip: u32, run: Run, layout: BlockLayout) -> Option<Run> {
        let (before, count) = (self.checksums.len(), run.checksums.len());
        let joins = (run.epoch, run.since) == (self.epoch, self.since)
            && skip as usize <= before
            && skip as usize + count >= before
            && self.offset + layout.start(skip) == run.offset;
        if !joins {
            return Some(run);
        }
        self.checksums.truncate(skip as usize);
        self.checksums.extend(run.checksums);
        None
    }
}

impl Blocks {
    /// The state of block `index`, or `None` if no record describes it.
    #[inline]
    pub fn get(&self, index: u32, layout: BlockLayout) -> Option<Block> {
        match self {
            Blocks::Unknown => None,
            Blocks::One(part) => part.block(index, 0, layout),
            Blocks::Parts(parts) => parts.get(index, layout),
        }
    }

    /// The state of block `index`, and the next block whose state may differ: the end of the blocks
    /// without a payload that one record describes, or that none does.
    pub fn uniform_from(&self, index: u32, layout: BlockLayout) -> (Option<Block>, u32) {
        match self {
            Blocks::Unknown => (None, u32::MAX),
            Blocks::One(part) if index >= part.count() => (None, u32::MAX),
            Blocks::One(part) => (part.block(index, 0, layout), part.uniform_end(index, 0)),
            Blocks::Parts(parts) => parts.uniform_from(index, layout),
        }
    }

    /// One past the last block that a record describes.
    pub fn count(&self) -> u32 {
        match self {
            Blocks::Unknown => 0,
            Blocks::One(part) => part.count(),
            Blocks::Parts(parts) => parts.end(),
        }
    }

    /// The parts, each with its first block.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &Part)> {
        let (one, more) = match self {
            Blocks::Unknown => (None, None),
            Blocks::One(part) => (Some((0, part)), None),
            Blocks::Parts(parts) => (None, Some(parts.iter())),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }

    /// The parts that may contain blocks of `range`.
    pub(in crate::store) fn parts_in(&self, range: Range<u32>) -> impl Iterator<Item = (u32, &Part)> {
        let (one, more) = match self {
            Blocks::Unknown => (None, None),
            Blocks::One(part) => (Some((0, part)), None),
            Blocks::Parts(parts) => (None, Some(parts.among(range))),
        };
        one.into_iter().chain(more.into_iter().flatten())
    }

    /// The described blocks: one at a time, or together if one record describes several without a
    /// payload. Each piece comes with the state of its first block.
    pub fn pieces(&self, layout: BlockLayout) -> impl Iterator<Item = (Range<u32>, Block)> {
        self.parts().flat_map(move |(first, part)| part.pieces(first, layout))
    }

    /// The state of the blocks of `range`, in pieces as [`uniform_from`](Self::uniform_from) divides them.
    pub fn pieces_in(
        &self,
        range: Range<u32>,
        layout: BlockLayout,
    ) -> impl Iterator<Item = (Range<u32>, Option<Block>)> {
        let mut next = range.start;
        std::iter::from_fn(move || {
            let (block, end) = (next < range.end).then(|| self.uniform_from(next, layout))?;
            let piece = next..end.min(range.end);
            next = piece.end;
            Some((piece, block))
        })
    }

    /// The described blocks with their indexes, one by one. [`pieces`](Self::pieces) yields fewer items
    /// where there are zeros.
    pub fn described(&self, layout: BlockLayout) -> impl Iterator<Item = (u32, Block)> {
        self.parts().flat_map(move |(first, part)| {
            let all = first..first + part.count();
            all.filter_map(move |index| Some((index, part.block(index, first, layout)?)))
        })
    }

    /// The blocks of `range` that have payloads, or had them before they were made absent one by one.
    pub fn with_payloads(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let found = self.parts_in(range.clone()).filter(|(_, part)| !matches!(part, Part::Uniform(_)));
        let found = found.map(move |(first, part)| {
            first.max(range.start)..first.saturating_add(part.count()).min(range.end)
        });
        found.filter(|range| !range.is_empty())
    }

    /// Bytes that the blocks count as, see [`Stored::counted`].
    pub fn counted(&self, layout: BlockLayout) -> u64 {
        self.counted_in(&(0..u32::MAX), layout)
    }

    /// The same of those in a range.
    pub(in crate::store) fn counted_in(&self, range: &Range<u32>, layout: BlockLayout) -> u64 {
        self.parts_in(range.clone()).map(|(first, part)| part.counted(first, range, layout)).sum()
    }

    /// The first block without a record that has a described block after it.
    pub fn gap(&self) -> Option<u32> {
        let mut end = 0;
        for (first, part) in self.parts() {
            if first > end {
                return Some(end);
            }
            end = first + part.count();
        }
        None
    }

    /// Sets one block.
    pub fn set(&mut self, index: u32, block: Block, layout: BlockLayout) -> Result<()> {
        if index >= layout.blocks() {
            return Err(Error::corrupt(format!("a record of block {index} of {}", layout.blocks())));
        }
        let is_set = match self {
            Blocks::Unknown if index == 0 => {
                *self = Blocks::One(Part::Dense(vec![block]));
                true
            }
            Blocks::One(part) if index < part.count() => part.set(index, block, 0, layout),
            _ => self.push(index, block),
        };
        if !is_set {
            self.in_parts(layout, |parts| parts.set(index, block, layout));
        }
        Ok(())
    }

    /// Appends a block if it is the next of a dense index. Returns whether it did.
    #[inline]
    pub fn push(&mut self, index: u32, block: Block) -> bool {
        match self {
            Blocks::One(Part::Dense(blocks)) if blocks.len() == index as usize => {
                blocks.push(block);
                true
            }
            _ => false,
        }
    }

    /// Reserves memory for `count` more blocks of a dense index, or doubles it, so that blocks are
    /// rarely copied; never for more blocks than the object has.
    pub fn reserve(&mut self, count: usize, layout: BlockLayout) {
        if let Blocks::Unknown = self {
            *self = Blocks::One(Part::Dense(Vec::new()));
        }
        let Blocks::One(Part::Dense(blocks)) = self else { return };
        if blocks.capacity() - blocks.len() < count {
            let left = (layout.blocks() as usize).saturating_sub(blocks.len());
            blocks.reserve_exact(count.max(blocks.len()).min(left));
        }
    }

    /// Sets a run of exact blocks of the data file, starting at block `first`. The caller makes sure
    /// that all are blocks of the object.
    pub fn set_run(&mut self, first: u32, run: Run, layout: BlockLayout) {
        let count = run.checksums.len();
        let run = match self {
            _ if first == 0 && count as u64 == u64::from(layout.blocks()) => {
                *self = Blocks::One(Part::Run(run));
                return;
            }
            Blocks::One(Part::Run(before)) => match before.join(first, run, layout) {
                Some(run) => run,
                None => return,
            },
            _ => run,
        };
        if first == 0 && self.count() == 0 {
            *self = Blocks::One(Part::Run(run));
        } else {
            self.in_parts(layout, |parts| parts.set_run(first, run, layout));
        }
    }

    /// Sets blocks without a payload to the same state. `block` is the first of them.
    pub fn set_uniform(&mut self, range: Range<u32>, block: Block, layout: BlockLayout) {
        if range.start == 0 && range.end >= self.count() {
            *self = Blocks::One(Part::uniform(&range, block));
        } else {
            self.in_parts(layout, |parts| parts.set_uniform(range, block, layout));
        }
    }

    /// Removes the blocks from `count` on.
    pub fn truncate(&mut self, count: u32, layout: BlockLayout) {
        match self {
            Blocks::Unknown => {}
            Blocks::One(part) if count < part.count() => drop(part.split_off(count, 0, layout)),
            Blocks::One(_) => {}
            Blocks::Parts(parts) => {
                parts.carve(count..u32::MAX, layout);
                if let Some(one) = parts.only() {
                    *self = Blocks::One(one);
                }
            }
        }
        if self.count() == 0 {
            *self = Blocks::Unknown;
        }
    }

    /// Whether all blocks are exact and contiguous in the data file, starting at `offset`.
    pub fn lie_at(&self, offset: u64, layout: BlockLayout) -> bool {
        let mut end = 0;
        for (first, part) in self.parts() {
            if first != end || !part.lies_at(offset + layout.start(first), layout) {
                return false;
            }
            end = first + part.count();
        }
        end == layout.blocks()
    }

    fn in_parts(&mut self, layout: BlockLayout, change: impl FnOnce(&mut Parts)) {
        let mut parts = match std::mem::take(self) {
            Blocks::Unknown => Box::default(),
            Blocks::One(part) => Box::new(Parts::of(part, layout)),
            Blocks::Parts(parts) => parts,
        };
        change(&mut parts);
        *self = Blocks::Parts(parts);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::{Block, BlockLayout, Blocks, Run};
    use crate::format::log::record::Stored;
    use crate::model::Tier;
    use crate::store::object::parts::Part;

    const CUT: BlockLayout = BlockLayout { bytes: 1000, block_bytes: 256 };

    fn run(first: u32, count: u32) -> Run {
        run_at(4096, first, count, 9, CUT)
    }

    fn run_at(extent: u64, first: u32, count: u32, epoch: u64, layout: BlockLayout) -> Run {
        let checksums = (first..first + count).collect();
        Run { epoch, offset: extent + layout.start(first), since: 1, checksums }
    }

    #[test]
    fn a_run_and_its_parts_describe_the_same_blocks() {
        let mut whole = Blocks::default();
        whole.set_run(0, run(0, 4), CUT);
        assert!(matches!(whole, Blocks::One(Part::Run(_))));
        let mut parts = Blocks::default();
        parts.set_run(3, run(3, 1), CUT);
        assert_eq!((parts.get(0, CUT), parts.gap()), (None, Some(0)));
        parts.set_run(0, run(0, 3), CUT);
        for index in 0..4 {
            assert_eq!(whole.get(index, CUT), parts.get(index, CUT), "block {index}");
        }
        assert_eq!(whole.get(3, CUT).unwrap().stored.len, 1000 - 768);
        assert_eq!((whole.get(4, CUT), parts.gap()), (None, None));
        assert_eq!((whole.counted(CUT), parts.counted(CUT)), (1000, 1000));
    }

    #[test]
    fn setting_a_block_keeps_the_others_of_its_run() {
        let mut blocks = Blocks::default();
        blocks.set_run(0, run(0, 4), CUT);
        let before = blocks.get(2, CUT);
        let moved = Block { epoch: 10, stored: Stored { tier: Tier::Q8, ..Stored::ABSENT }, since: 2 };
        blocks.set(1, moved, CUT).unwrap();
        assert_eq!(blocks.get(1, CUT), Some(moved));
        assert_eq!(blocks.get(2, CUT), before);
        assert!(blocks.set(4, moved, CUT).is_err());
    }

    #[test]
    fn an_index_has_room_for_as_many_blocks_as_the_object_has_at_most() {
        let layout = BlockLayout { bytes: 1000 * 256, block_bytes: 256 };
        let block = Block { epoch: 1, stored: Stored::ABSENT, since: 0 };
        let mut blocks = Blocks::default();
        for index in 0..1000 {
            blocks.reserve(if index % 300 == 0 { 300 } else { 1 }, layout);
            assert!(blocks.push(index, block));
            let Blocks::One(Part::Dense(all)) = &blocks else { panic!("{blocks:?}") };
            assert!(all.capacity() <= 1000 && all.capacity() <= 300.max(2 * all.len()));
        }
        let mut whole = Blocks::default();
        whole.set_run(0, run(0, 4), CUT);
        whole.reserve(1000, layout);
        assert!(matches!(whole, Blocks::One(Part::Run(_))));
    }

    #[test]
    fn blocks_lie_in_the_data_file_only_when_all_of_them_do() {
        let mut blocks = Blocks::default();
        assert!(!blocks.lie_at(4096, CUT));
        blocks.set_run(0, run(0, 4), CUT);
        assert!(blocks.lie_at(4096, CUT) && !blocks.lie_at(0, CUT));
        let third = blocks.get(2, CUT).unwrap();
        blocks.set(2, third, CUT).unwrap();
        assert!(blocks.lie_at(4096, CUT));
        for stored in [
            Stored { in_data: false, ..third.stored },
            Stored { offset: third.stored.offset + 1, ..third.stored },
            Stored { tier: Tier::Q8, ..third.stored },
            Stored::ZEROS,
        ] {
            blocks.set(2, Block { stored, ..third }, CUT).unwrap();
            assert!(!blocks.lie_at(4096, CUT), "{stored:?}");
        }
        blocks.set(2, third, CUT).unwrap();
        let hole = Stored::in_extent(4096 + 256);
        blocks.set_uniform(1..3, Block { stored: hole, ..third }, CUT);
        assert!(blocks.lie_at(4096, CUT), "{blocks:?}");
        blocks.truncate(2, CUT);
        assert!(!blocks.lie_at(4096, CUT));
    }

    #[test]
    fn any_number_of_zero_blocks_is_one_entry() {
        let layout = BlockLayout { bytes: 1 << 45, block_bytes: 1 << 14 };
        let zeros = Block { epoch: 3, stored: Stored::in_extent(4096), since: 1 };
        let mut blocks = Blocks::default();
        blocks.set_uniform(0..1 << 31, zeros, layout);
        assert_eq!(blocks.counted(layout), 1 << 45);
        assert_eq!(blocks.pieces(layout).count(), 1);
        let written = Block { epoch: 4, stored: Stored { len: 1 << 14, ..Stored::ZEROS }, since: 1 };
        for index in [0, 1, 77, 1 << 30, (1 << 31) - 1] {
            blocks.set(index, written, layout).unwrap();
        }
        assert_eq!(blocks.pieces(layout).count(), 5 + 3);
        assert_eq!(blocks.uniform_from(2, layout).1, 77);
        let last = blocks.get((1 << 30) - 1, layout).unwrap();
        assert_eq!((last.epoch, last.stored.offset), (3, 4096 + ((1_u64 << 44) - (1 << 14))));
        assert_eq!(blocks.gap(), None);
        blocks.truncate(1, layout);
        assert_eq!(blocks.pieces(layout).collect::<Vec<_>>(), [(0..1, written)]);
    }

    #[derive(Clone, Debug)]
    enum Change {
        Set(u32),
        Run(Range<u32>, bool),
        Zeros(Range<u32>, bool),
        Lost(Range<u32>),
        Truncate(u32),
    }

    const BLOCKS: u32 = 200;

    fn change() -> impl Strategy<Value = Change> {
        let range = || (0..BLOCKS, 1..BLOCKS).prop_map(|(from, many)| from..(from + many).min(BLOCKS));
        prop_oneof![
            (0..BLOCKS).prop_map(Change::Set),
            (range(), any::<bool>()).prop_map(|(range, moved)| Change::Run(range, moved)),
            (range(), any::<bool>()).prop_map(|(range, in_data)| Change::Zeros(range, in_data)),
            range().prop_map(Change::Lost),
            (0..BLOCKS).prop_map(Change::Truncate),
        ]
    }

    proptest! {
        #[test]
        fn random_changes_agree_with_a_table_of_all_blocks(changes in prop::collection::vec(change(), 1..40)) {
            let layout = BlockLayout { bytes: u64::from(BLOCKS) * 256 - 100, block_bytes: 256 };
            let mut blocks = Blocks::default();
            let mut table: Vec<Option<(u64, Stored)>> = vec![None; BLOCKS as usize];
            for (number, change) in (1_u64..).zip(changes) {
                // Some follow each other in one batch.
                let epoch = number.div_ceil(2);
                match change {
                    Change::Set(index) => {
                        let stored = Stored { tier: Tier::Q8, len: 70, offset: epoch * 64, ..Stored::ABSENT };
                        blocks.set(index, Block { epoch, stored, since: 1 }, layout).unwrap();
                        table[index as usize] = Some((epoch, stored));
                    }
                    Change::Run(range, is_elsewhere) => {
                        let extent = if is_elsewhere { 1 << 20 } else { 4096 };
                        let run = run_at(extent, range.start, range.len() as u32, epoch, layout);
                        let offset = run.offset;
                        blocks.set_run(range.start, run, layout);
                        for index in range.clone() {
                            let stored = Stored {
                                tier: Tier::Exact,
                                checksum: index,
                                offset: offset + layout.start(index - range.start),
                                len: layout.len(index) as u32,
                                in_data: true,
                                ..Stored::ABSENT
                            };
                            table[index as usize] = Some((epoch, stored));
                        }
                    }
                    Change::Zeros(range, in_data) => {
                        let at = |index| if in_data { Stored::in_extent(layout.start(index)) } else { Stored::ZEROS };
                        let block = Block { epoch, stored: at(range.start), since: 1 };
                        blocks.set_uniform(range.clone(), block, layout);
                        range.for_each(|index| table[index as usize] = Some((epoch, at(index))));
                    }
                    Change::Lost(range) => {
                        blocks.set_uniform(range.clone(), Block { epoch, stored: Stored::LOST, since: 1 }, layout);
                        range.for_each(|index| table[index as usize] = Some((epoch, Stored::LOST)));
                    }
                    Change::Truncate(count) => {
                        blocks.truncate(count, layout);
                        table[count as usize..].fill(None);
                    }
                }
                for (index, wanted) in (0..).zip(&table) {
                    let found = blocks.get(index, layout).map(|block| (block.epoch, block.stored));
                    prop_assert_eq!(found, *wanted, "block {}", index);
                }
                let mut next = 0;
                for (piece, block) in blocks.pieces_in(0..BLOCKS, layout) {
                    prop_assert!(piece.start == next && !piece.is_empty());
                    let first = block.map(|block| (block.epoch, block.stored));
                    prop_assert_eq!(first, table[piece.start as usize]);
                    let is_alike = |index: u32| {
                        table[index as usize].map(|(epoch, stored)| (epoch, Stored { offset: 0, ..stored }))
                    };
                    prop_assert!(piece.clone().all(|index| is_alike(index) == is_alike(piece.start)));
                    next = piece.end;
                }
                prop_assert_eq!(next, BLOCKS);
                let counted = |(index, found): (u32, &Option<(u64, Stored)>)| {
                    found.map_or(0, |(_, stored)| stored.counted(layout.len(index) as u64))
                };
                prop_assert_eq!(blocks.counted(layout), (0..).zip(&table).map(counted).sum::<u64>());
                let described: Vec<u32> = blocks.described(layout).map(|(index, _)| index).collect();
                let wanted = (0..BLOCKS).filter(|index| table[*index as usize].is_some());
                prop_assert_eq!(described, wanted.collect::<Vec<_>>());
                let last = table.iter().rposition(Option::is_some).map_or(0, |last| last as u32 + 1);
                prop_assert_eq!(blocks.count(), last);
                let gap = table[..last as usize].iter().position(Option::is_none);
                prop_assert_eq!(blocks.gap(), gap.map(|gap| gap as u32));
            }
        }
    }
}
