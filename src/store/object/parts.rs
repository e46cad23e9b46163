//! Block locations of an object with blocks of several kinds: parts, by the first block of each.
//! Unwritten zeros and lost blocks form one part, however many they are.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::model::Tier;
use crate::store::object::blocks::{Block, BlockLayout, Blocks, Run};

/// At most this many equal blocks among blocks with entries get an entry each too.
const UNIFORM_MIN: usize = 64;

/// Most blocks of a part with an entry or a checksum for each: a change in the middle of a part moves those behind it.
const PART_BLOCKS_MAX: u32 = 1024;

/// Most entries of a part that are looked at for the size of its holes: a listing asks for each file.
const COUNTED_MAX: usize = 256;

/// A run of fewer blocks takes more memory than an entry for each of them.
const RUN_MIN: u32 = 3;

/// Consecutive blocks of one kind.
#[derive(Debug)]
pub enum Part {
    /// Exact, in the object's data file.
    Run(Run),
    /// With one entry each.
    Dense(Vec<Block>),
    /// Without payloads, all described by one record.
    Uniform(UniformBlocks),
}

/// Blocks without a payload.
#[derive(Debug)]
pub struct UniformBlocks {
    /// State of the first block.
    block: Block,
    /// Number of blocks.
    count: u32,
}

/// The parts of an object, by their first blocks. Parts do not overlap.
#[derive(Debug, Default)]
pub struct Parts(BTreeMap<u32, Part>);

impl UniformBlocks {
    fn block(&self, skip: u32, layout: BlockLayout) -> Block {
        let mut block = self.block;
        if block.stored.in_data {
            block.stored.offset += layout.start(skip);
        }
        block
    }
}

impl Part {
    /// A part of blocks without a payload.
    pub(in crate::store) fn uniform(range: &Range<u32>, block: Block) -> Part {
        Part::Uniform(UniformBlocks { block, count: range.end - range.start })
    }

    /// Number of blocks in the part.
    pub fn count(&self) -> u32 {
        match self {
            Part::Run(run) => run.checksums.len() as u32,
            Part::Dense(blocks) => blocks.len() as u32,
            Part::Uniform(uniform) => uniform.count,
        }
    }

    /// The state of block `index`. `first` is the first block of the part.
    #[inline]
    pub(in crate::store) fn block(&self, index: u32, first: u32, layout: BlockLayout) -> Option<Block> {
        let skip = index - first;
        match self {
            Part::Run(run) => run.block(skip, index, layout),
            Part::Dense(blocks) => blocks.get(skip as usize).copied(),
            Part::Uniform(uniform) => (skip < uniform.count).then(|| uniform.block(skip, layout)),
        }
    }

    /// One past the blocks that have the same state as block `index`, which is in the part.
    pub(in crate::store) fn uniform_end(&self, index: u32, first: u32) -> u32 {
        match self {
            Part::Uniform(uniform) => first + uniform.count,
            _ => index + 1,
        }
    }

    /// The blocks of the part, as `Blocks::pieces` divides them.
    pub fn pieces(&self, first: u32, layout: BlockLayout) -> impl Iterator<Item = (Range<u32>, Block)> {
        let end = first + self.count();
        let mut next = first;
        std::iter::from_fn(move || {
            let block = if next < end { self.block(next, first, layout)? } else { return None };
            let piece = next..self.uniform_end(next, first);
            next = piece.end;
            Some((piece, block))
        })
    }

    /// Bytes that those of its blocks count as that are in `within`.
    pub(in crate::store) fn counted(&self, first: u32, within: &Range<u32>, layout: BlockLayout) -> u64 {
        let range = first.max(within.start)..(first + self.count()).min(within.end);
        if range.is_empty() {
            return 0;
        }
        match self {
            Part::Run(_) => layout.bytes_of(&range),
            Part::Dense(blocks) => {
                let counted = |(index, block): (u32, &Block)| block.stored.counted(layout.len(index) as u64);
                let inside = (range.start - first) as usize..(range.end - first) as usize;
                (range.start..).zip(blocks.get(inside).unwrap_or_default()).map(counted).sum()
            }
            Part::Uniform(uniform) => uniform.block.stored.counted(layout.bytes_of(&range)),
        }
    }

    /// Bytes of its blocks that are unwritten zeros; 0 for a part with an entry for each of very many blocks.
    pub(in crate::store) fn unwritten(&self, first: u32, layout: BlockLayout) -> u64 {
        match self {
            Part::Run(_) => 0,
            Part::Dense(blocks) if blocks.len() > COUNTED_MAX => 0,
            Part::Dense(blocks) => {
                let zeros = (first..).zip(blocks).filter(|(_, block)| block.stored.is_zeros());
                zeros.map(|(index, _)| layout.len(index) as u64).sum()
            }
            Part::Uniform(uniform) if uniform.block.stored.is_zeros() => {
                layout.bytes_of(&(first..first + uniform.count))
            }
            Part::Uniform(_) => 0,
        }
    }

    /// Whether all blocks are exact and contiguous in the data file, starting at `offset`.
    pub(in crate::store) fn lies_at(&self, offset: u64, layout: BlockLayout) -> bool {
        let lies = |block: &Block, offset: u64| {
            block.stored.in_data && block.stored.tier == Tier::Exact && block.stored.offset == offset
        };
        match self {
            Part::Run(run) => run.offset == offset,
            Part::Dense(blocks) => {
                (0..).zip(blocks).all(|(skip, block)| lies(block, offset + layout.start(skip)))
            }
            Part::Uniform(uniform) => lies(&uniform.block, offset),
        }
    }

    /// Sets a block of the part. Returns whether that is possible: a run with a changed block needs an
    /// entry for each block.
    pub(in crate::store) fn set(
        &mut self,
        index: u32,
        block: Block,
        first: u32,
        layout: BlockLayout,
    ) -> bool {
        self.make_dense(first, layout);
        let Part::Dense(blocks) = self else { return false };
        let place = blocks.get_mut((index - first) as usize);
        place.map(|place| *place = block).is_some()
    }

    /// Splits off the blocks from `index` on.
    pub(in crate::store) fn split_off(&mut self, index: u32, first: u32, layout: BlockLayout) -> Part {
        let skip = index - first;
        match self {
            Part::Run(run) => {
                let checksums = run.checksums.drain(skip as usize..).collect();
                let offset = run.offset + layout.start(skip);
                Part::Run(Run { epoch: run.epoch, offset, since: run.since, checksums })
            }
            Part::Dense(blocks) => Part::Dense(blocks.split_off(skip as usize)),
            Part::Uniform(uniform) => {
                let tail = UniformBlocks { block: uniform.block(skip, layout), count: uniform.count - skip };
                uniform.count = skip;
                Part::Uniform(tail)
            }
        }
    }

    /// Appends the part that follows this one, which begins with block `first`. Returns it if both cannot be one.
    fn join(&mut self, first: u32, next: Part, layout: BlockLayout) -> Option<Part> {
        let skip = self.count();
        if skip.saturating_add(next.count()) > PART_BLOCKS_MAX && !matches!(next, Part::Uniform(_)) {
            return Some(next);
        }
        let next = match (&mut *self, next) {
            (Part::Run(run), Part::Run(next)) => Part::Run(run.join(skip, next, layout)?),
            (Part::Uniform(uniform), Part::Uniform(next)) if uniform.block(skip, layout) == next.block => {
                uniform.count += next.count;
                return None;
            }
            (_, next) => next,
        };
        if !self.is_dense_or_short() || !next.is_dense_or_short() {
            return Some(next);
        }
        self.make_dense(first, layout);
        let Part::Dense(blocks) = self else { return Some(next) };
        match next {
            Part::Dense(next) => blocks.extend(next),
            next => blocks.extend(next.pieces(first + skip, layout).map(|(_, block)| block)),
        }
        None
    }

    /// Whether all of its blocks are exact.
    pub(in crate::store) fn is_exact(&self) -> bool {
        let is_exact = |block: &Block| block.stored.tier == Tier::Exact;
        match self {
            Part::Run(_) => true,
            Part::Dense(blocks) => blocks.iter().all(is_exact),
            Part::Uniform(uniform) => is_exact(&uniform.block),
        }
    }

    /// Returns memory that a part has kept from when it was longer.
    fn shrink(&mut self) {
        match self {
            Part::Run(run) => run.checksums.shrink_to_fit(),
            Part::Dense(blocks) => blocks.shrink_to_fit(),
            Part::Uniform(_) => {}
        }
    }

    /// Whether its blocks have an entry each, or take less memory so.
    fn is_dense_or_short(&self) -> bool {
        match self {
            Part::Run(run) => (run.checksums.len() as u32) < RUN_MIN,
            Part::Dense(_) => true,
            Part::Uniform(_) => false,
        }
    }

    /// Gives each block of a run, which begins with block `first`, an entry.
    fn make_dense(&mut self, first: u32, layout: BlockLayout) {
        if let Part::Run(_) = self {
            let blocks = self.pieces(first, layout).map(|(_, block)| block).collect();
            *self = Part::Dense(blocks);
        }
    }
}

impl Parts {
    pub(in crate::store) fn of(part: Part, layout: BlockLayout) -> Parts {
        let mut parts = Parts::default();
        if part.count() > 0 {
            parts.insert(0, part, layout);
        }
        parts
    }

    /// Inserts a part at blocks that have no state, in pieces of at most [`PART_BLOCKS_MAX`].
    fn insert(&mut self, first: u32, mut part: Part, layout: BlockLayout) {
        if part.count() > PART_BLOCKS_MAX && !matches!(part, Part::Uniform(_)) {
            let starts = (first..first + part.count()).step_by(PART_BLOCKS_MAX as usize).skip(1);
            // The last one first, so that each entry moves once.
            for start in starts.rev() {
                let piece = part.split_off(start, first, layout);
                self.0.insert(start, piece);
            }
            part.shrink();
        }
        self.0.insert(first, part);
    }

    pub(in crate::store) fn iter(&self) -> impl Iterator<Item = (u32, &Part)> {
        self.0.iter().map(|(first, part)| (*first, part))
    }

    /// The parts that may contain blocks of `range`.
    pub(in crate::store) fn among(&self, range: Range<u32>) -> impl Iterator<Item = (u32, &Part)> {
        let before = self.0.range(..range.start).next_back();
        let inside = self.0.range(range.start..range.end.max(range.start));
        before.into_iter().chain(inside).map(|(first, part)| (*first, part))
    }

    pub(in crate::store) fn end(&self) -> u32 {
        self.0.last_key_value().map_or(0, |(first, part)| first + part.count())
    }

    /// The part that contains a block, and the first block of the part.
    fn find(&self, index: u32) -> Option<(u32, &Part)> {
        let (first, part) = self.0.range(..=index).next_back()?;
        (index - first < part.count()).then_some((*first, part))
    }

    fn find_mut(&mut self, index: u32) -> Option<(u32, &mut Part)> {
        let (first, part) = self.0.range_mut(..=index).next_back()?;
        (index - first < part.count()).then_some((*first, part))
    }

    pub(in crate::store) fn get(&self, index: u32, layout: BlockLayout) -> Option<Block> {
        let (first, part) = self.find(index)?;
        part.block(index, first, layout)
    }

    /// As [`Blocks::uniform_from`].
    pub(in crate::store) fn uniform_from(&self, index: u32, layout: BlockLayout) -> (Option<Block>, u32) {
        match self.find(index) {
            Some((first, part)) => (part.block(index, first, layout), part.uniform_end(index, first)),
            None => (None, self.0.range(index..).next().map_or(u32::MAX, |(first, _)| *first)),
        }
    }

    pub(in crate::store) fn set(&mut self, index: u32, block: Block, layout: BlockLayout) {
        if let Some((first, part)) = self.find_mut(index)
            && part.set(index, block, first, layout)
        {
            return;
        }
        self.carve(index..index + 1, layout);
        self.put(index, Part::Dense(vec![block]), layout);
    }

    pub(in crate::store) fn set_run(&mut self, first: u32, run: Run, layout: BlockLayout) {
        let end = first + run.checksums.len() as u32;
        if let Some(blocks) = self.dense_around(&(first..end)) {
            for (skip, place) in (0..).zip(blocks) {
                if let Some(block) = run.block(skip, first + skip, layout) {
                    *place = block;
                }
            }
            return;
        }
        self.carve(first..end, layout);
        self.put(first, Part::Run(run), layout);
    }

    pub(in crate::store) fn set_uniform(&mut self, range: Range<u32>, block: Block, layout: BlockLayout) {
        if range.len() <= UNIFORM_MIN
            && let Some(blocks) = self.dense_around(&range)
        {
            let Part::Uniform(uniform) = Part::uniform(&range, block) else { return };
            (0..).zip(blocks).for_each(|(skip, place)| *place = uniform.block(skip, layout));
            return;
        }
        self.carve(range.clone(), layout);
        self.put(range.start, Part::uniform(&range, block), layout);
    }

    /// The entries of these blocks, if they are in a dense part.
    fn dense_around(&mut self, range: &Range<u32>) -> Option<&mut [Block]> {
        match self.find_mut(range.start)? {
            (first, Part::Dense(blocks)) => {
                blocks.get_mut((range.start - first) as usize..(range.end - first) as usize)
            }
            _ => None,
        }
    }

    /// Removes the blocks of `range`.
    pub(in crate::store) fn carve(&mut self, range: Range<u32>, layout: BlockLayout) {
        if let Some((&first, part)) = self.0.range_mut(..range.start).next_back()
            && part.count() > range.start - first
        {
            let tail = part.split_off(range.start, first, layout);
            self.0.insert(range.start, tail);
        }
        while let Some((&first, part)) = self.0.range_mut(range.clone()).next() {
            let kept = (part.count() > range.end - first).then(|| part.split_off(range.end, first, layout));
            self.0.remove(&first);
            if let Some(kept) = kept {
                self.0.insert(range.end, kept);
            }
        }
    }

    /// Inserts a part at blocks that have no state.
    fn put(&mut self, first: u32, part: Part, layout: BlockLayout) {
        let part = match self.0.range_mut(..first).next_back() {
            Some((before, joined)) if before + joined.count() == first => joined.join(*before, part, layout),
            _ => Some(part),
        };
        if let Some(part) = part {
            self.insert(first, part, layout);
        }
    }

    /// Removes and returns the part, if it is the only one and begins with block 0.
    pub(in crate::store) fn only(&mut self) -> Option<Part> {
        let is_only = self.0.len() == 1 && self.0.contains_key(&0);
        if is_only { self.0.remove(&0) } else { None }
    }
}

// For objects of one kind, a lookup must not touch further memory to find the part.
const _: () = assert!(size_of::<Blocks>() <= 56);
