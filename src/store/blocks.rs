//! Where each block of an object lies: dense, or as one run while all of them are
//! exact and stand one after the other in the object's data file.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use smallvec::SmallVec;

use crate::format::record::Stored;
use crate::model::{Error, Result, Tier};

/// What is known of one block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Block {
    /// The sequence number of its last Create or Migrate; 0: no record describes it.
    pub epoch: u64,
    /// Where its payload lies.
    pub stored: Stored,
    /// When it came to its tier, in seconds since 1970.
    pub since: u32,
}

/// The index must not cost more than this.
const BLOCK_BYTES_MAX: usize = 64;
const _: () = assert!(size_of::<Block>() <= BLOCK_BYTES_MAX);

/// The blocks of one object.
#[derive(Debug, Default)]
pub enum Blocks {
    /// No record yet.
    #[default]
    Unknown,
    /// All blocks, exact, in the object's data file.
    Run(Run),
    /// A block each, up to the last that a record describes.
    Dense(Vec<Block>),
}

/// The CRC32C of each block of a run: of a few without memory of its own.
pub type Checksums = SmallVec<[u32; 4]>;

/// Exact blocks that stand one after the other in a data file.
#[derive(Debug)]
pub struct Run {
    /// The sequence number of the record.
    pub epoch: u64,
    /// Byte offset of the first in the data file.
    pub offset: u64,
    /// When they were made, in seconds since 1970.
    pub since: u32,
    /// CRC32C of each.
    pub checksums: Checksums,
}

/// Sizes that tell where the blocks of an object begin and end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Logical bytes of the object.
    pub bytes: u64,
    /// Logical bytes of every block but the last.
    pub block_bytes: u32,
}

impl Cut {
    /// The number of blocks.
    pub fn blocks(self) -> u32 {
        u32::try_from(self.bytes.div_ceil(u64::from(self.block_bytes))).unwrap_or(u32::MAX)
    }

    /// Where block `index` begins.
    pub fn start(self, index: u32) -> u64 {
        u64::from(index) * u64::from(self.block_bytes)
    }

    /// Bytes of block `index`: the last may be short.
    pub fn len(self, index: u32) -> usize {
        self.bytes.saturating_sub(self.start(index)).min(u64::from(self.block_bytes)) as usize
    }

    /// The block that the byte at `offset` lies in.
    pub fn index(self, offset: u64) -> u32 {
        u32::try_from(offset / u64::from(self.block_bytes)).unwrap_or(u32::MAX)
    }
}

impl Stored {
    /// A block whose bytes were lost: no payload, and a checksum that nothing has.
    pub const LOST: Stored = Stored { checksum: u32::MAX, ..Stored::ABSENT };

    /// Whether its bytes were lost.
    pub fn is_lost(&self) -> bool {
        self.tier == Tier::Absent && self.checksum == Stored::LOST.checksum
    }

    /// Whether it was made absent: what was lost is something else.
    pub fn is_absent(&self) -> bool {
        self.tier == Tier::Absent && !self.is_lost()
    }
}

impl Block {
    const UNKNOWN: Block = Block { epoch: 0, stored: Stored::ABSENT, since: 0 };
}

impl Blocks {
    /// What is known of block `index`, or `None` where no record describes it.
    #[inline]
    pub fn get(&self, index: u32, cut: Cut) -> Option<Block> {
        match self {
            Blocks::Unknown => None,
            Blocks::Run(run) => {
                let checksum = *run.checksums.get(index as usize)?;
                let stored = Stored {
                    tier: Tier::Exact,
                    scale: 0.0,
                    checksum,
                    offset: run.offset + cut.start(index),
                    len: cut.len(index) as u32,
                    in_data: true,
                };
                Some(Block { epoch: run.epoch, stored, since: run.since })
            }
            Blocks::Dense(blocks) => blocks.get(index as usize).copied().filter(|block| block.epoch != 0),
        }
    }

    /// How many blocks it has places for: none behind them is described.
    pub fn count(&self) -> u32 {
        let count = match self {
            Blocks::Unknown => 0,
            Blocks::Run(run) => run.checksums.len(),
            Blocks::Dense(blocks) => blocks.len(),
        };
        count as u32
    }

    /// The blocks that records describe, with their numbers.
    pub fn described(&self, cut: Cut) -> impl Iterator<Item = (u32, Block)> {
        (0..self.count()).filter_map(move |index| Some((index, self.get(index, cut)?)))
    }

    /// Sets one block. `places` is how many blocks may still be given memory: no more
    /// than a log can have described, whatever it claims.
    pub fn set(&mut self, index: u32, block: Block, cut: Cut, places: &mut u64) -> Result<()> {
        let count = index as usize + 1;
        if index >= cut.blocks() {
            return Err(Error::corrupt(format!("a record of block {index} of {}", cut.blocks())));
        }
        let dense = self.dense(cut, places)?;
        if dense.len() < count {
            take_places((count - dense.len()) as u64, places)?;
            dense.resize(count, Block::UNKNOWN);
        }
        if let Some(place) = dense.get_mut(index as usize) {
            *place = block;
        }
        Ok(())
    }

    /// Adds one block behind the last where that is the next of a dense index; whether it is.
    /// `places` as for [`Blocks::set`].
    #[inline]
    pub fn push(&mut self, index: u32, block: Block, places: &mut u64) -> Result<bool> {
        match self {
            Blocks::Dense(blocks) if blocks.len() == index as usize => {
                take_places(1, places)?;
                blocks.push(block);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Has room for `count` more blocks of a dense index, or for as many again as there are, so that
    /// they are not copied often; never for more than the object has.
    pub fn reserve(&mut self, count: usize, cut: Cut) {
        if let Blocks::Unknown = self {
            *self = Blocks::Dense(Vec::new());
        }
        let Blocks::Dense(blocks) = self else { return };
        if blocks.capacity() - blocks.len() < count {
            let left = (cut.blocks() as usize).saturating_sub(blocks.len());
            blocks.reserve_exact(count.max(blocks.len()).min(left));
        }
    }

    /// Sets a run of exact blocks of the data file, beginning with block `first`.
    pub fn set_run(&mut self, first: u32, run: Run, cut: Cut, places: &mut u64) -> Result<()> {
        if first == 0 && run.checksums.len() as u64 == u64::from(cut.blocks()) {
            *self = Blocks::Run(run);
            return Ok(());
        }
        if let Blocks::Run(before) = self
            && first as usize <= before.checksums.len()
            && first as usize + run.checksums.len() >= before.checksums.len()
            && before.offset + cut.start(first) == run.offset
        {
            // A file that grows stays one run.
            before.checksums.truncate(first as usize);
            before.checksums.extend(run.checksums);
            return Ok(());
        }
        let part = Blocks::Run(run);
        let Blocks::Run(run) = &part else { return Ok(()) };
        let from = cut.start(first);
        for (place, _) in run.checksums.iter().enumerate() {
            let index = u32::try_from(place).ok().and_then(|place| first.checked_add(place));
            let index = index.ok_or_else(|| Error::corrupt("a run past block 2^32"))?;
            let Some(mut block) = part.get(place as u32, cut) else { continue };
            block.stored.offset = run.offset + (cut.start(index) - from);
            block.stored.len = cut.len(index) as u32;
            self.set(index, block, cut, places)?;
        }
        Ok(())
    }

    /// Forgets the blocks from `count` on.
    pub fn truncate(&mut self, count: u32) {
        match self {
            Blocks::Unknown => {}
            Blocks::Run(run) if run.checksums.len() > count as usize => {
                run.checksums.truncate(count as usize);
            }
            Blocks::Run(_) => {}
            Blocks::Dense(blocks) => blocks.truncate(count as usize),
        }
    }

    /// Whether all blocks are exact and stand one after the other in the data file, from
    /// `offset` on.
    pub fn lie_at(&self, offset: u64, cut: Cut) -> bool {
        if let Blocks::Run(run) = self {
            return run.offset == offset && run.checksums.len() as u64 == u64::from(cut.blocks());
        }
        (0..cut.blocks()).all(|index| {
            self.get(index, cut).is_some_and(|Block { stored, .. }| {
                stored.in_data && stored.tier == Tier::Exact && stored.offset == offset + cut.start(index)
            })
        })
    }

    fn dense(&mut self, cut: Cut, places: &mut u64) -> Result<&mut Vec<Block>> {
        if !matches!(self, Blocks::Dense(_)) {
            if let Blocks::Run(run) = self {
                take_places(run.checksums.len() as u64, places)?;
            }
            let blocks = self.described(cut).map(|(_, block)| block).collect();
            *self = Blocks::Dense(blocks);
        }
        match self {
            Blocks::Dense(blocks) => Ok(blocks),
            _ => Err(Error::corrupt("an index that is neither a run nor dense")),
        }
    }
}

fn take_places(count: u64, places: &mut u64) -> Result<()> {
    *places = places.checked_sub(count).ok_or_else(|| {
        Error::corrupt(format!("{count} more blocks, where the log can describe {places} more"))
    })?;
    Ok(())
}

/// Which blocks have been checked since the store was opened: a bit each, made when one
/// is set. Those of the first 128 blocks need no memory of their own.
#[derive(Debug)]
pub struct Checked(RwLock<Words>);

/// Bits, 64 a word.
pub(super) type Words = SmallVec<[AtomicU64; 2]>;

impl Checked {
    /// None.
    pub fn none() -> Checked {
        Checked(RwLock::default())
    }

    /// Whether block `index` has been checked.
    pub fn get(&self, index: u32) -> bool {
        let words = self.0.read();
        words
            .get(index as usize / 64)
            .is_some_and(|word| word.load(Ordering::Relaxed) >> (index % 64) & 1 == 1)
    }

    /// Notes that block `index` is another now.
    pub fn clear(&self, index: u32) {
        Checked::clear_in(&self.0.read(), index);
    }

    /// The bits, 64 a word. No method of this may be called while they are held.
    pub(super) fn words(&self) -> RwLockReadGuard<'_, Words> {
        self.0.read()
    }

    /// Notes in the words that block `index` is another now.
    pub(super) fn clear_in(words: &[AtomicU64], index: u32) {
        if let Some(word) = words.get(index as usize / 64) {
            word.fetch_and(!(1 << (index % 64)), Ordering::Relaxed);
        }
    }

    /// Notes that blocks `first` to `end` are others now.
    pub fn clear_range(&self, first: u32, end: u32) {
        if !self.0.read().is_empty() {
            (first..end).for_each(|index| self.clear(index));
        }
    }

    /// Whether the first `count` blocks have all been checked.
    pub fn all(&self, count: u32) -> bool {
        let words = self.0.read();
        let (whole, rest) = (count as usize / 64, count % 64);
        let has = |place: usize, wanted: u64| {
            words.get(place).is_some_and(|word| word.load(Ordering::Relaxed) & wanted == wanted)
        };
        (0..whole).all(|place| has(place, u64::MAX)) && (rest == 0 || has(whole, (1 << rest) - 1))
    }

    /// Notes that block `index` has been checked.
    pub fn set(&self, index: u32) {
        let place = index as usize / 64;
        let mark = |words: &[AtomicU64]| {
            words.get(place).map(|word| word.fetch_or(1 << (index % 64), Ordering::Relaxed)).is_some()
        };
        if !mark(&self.0.read()) {
            let mut words = self.0.write();
            let count = words.len().max(place + 1);
            words.resize_with(count, AtomicU64::default);
            mark(&words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, Blocks, Checked, Cut, Run};
    use crate::format::record::Stored;
    use crate::model::Tier;

    const CUT: Cut = Cut { bytes: 1000, block_bytes: 256 };

    fn run(first: u32, count: u32) -> Run {
        Run {
            epoch: 9,
            offset: 4096 + CUT.start(first),
            since: 1,
            checksums: (first..first + count).collect(),
        }
    }

    #[test]
    fn a_whole_run_and_the_same_in_parts_say_the_same() {
        let mut whole = Blocks::default();
        whole.set_run(0, run(0, 4), CUT, &mut 4).unwrap();
        assert!(matches!(whole, Blocks::Run(_)));
        let mut parts = Blocks::default();
        parts.set_run(3, run(3, 1), CUT, &mut 4).unwrap();
        assert_eq!(parts.get(0, CUT), None);
        parts.set_run(0, run(0, 3), CUT, &mut 4).unwrap();
        for index in 0..4 {
            assert_eq!(whole.get(index, CUT), parts.get(index, CUT), "block {index}");
        }
        assert_eq!(whole.get(3, CUT).unwrap().stored.len, 1000 - 768);
        assert_eq!(whole.get(4, CUT), None);
    }

    #[test]
    fn setting_a_block_leaves_the_others_of_the_run() {
        let mut blocks = Blocks::default();
        blocks.set_run(0, run(0, 4), CUT, &mut 4).unwrap();
        let before = blocks.get(2, CUT);
        let moved = Block { epoch: 10, stored: Stored { tier: Tier::Q8, ..Stored::ABSENT }, since: 2 };
        blocks.set(1, moved, CUT, &mut 4).unwrap();
        assert_eq!(blocks.get(1, CUT), Some(moved));
        assert_eq!(blocks.get(2, CUT), before);
        assert!(blocks.set(4, moved, CUT, &mut 4).is_err());
    }

    #[test]
    fn an_object_that_the_log_cannot_have_described_gets_no_memory() {
        let huge = Cut { bytes: 1 << 40, block_bytes: 4096 };
        let block = Block { epoch: 1, stored: Stored::ABSENT, since: 0 };
        let mut places = 1000;
        assert!(Blocks::default().set(1000, block, huge, &mut places).is_err());
        assert!(Blocks::default().set(899, block, huge, &mut places).is_ok());
        assert!(Blocks::default().set(100, block, huge, &mut places).is_err());
    }

    #[test]
    fn an_index_has_room_for_as_many_blocks_as_the_object_has_at_most() {
        let cut = Cut { bytes: 1000 * 256, block_bytes: 256 };
        let block = Block { epoch: 1, stored: Stored::ABSENT, since: 0 };
        let mut blocks = Blocks::default();
        for index in 0..1000 {
            blocks.reserve(if index % 300 == 0 { 300 } else { 1 }, cut);
            assert!(blocks.push(index, block, &mut 1).unwrap());
            let Blocks::Dense(all) = &blocks else { panic!("{blocks:?}") };
            assert!(all.capacity() <= 1000 && all.capacity() <= 300.max(2 * all.len()));
        }
        let mut whole = Blocks::default();
        whole.set_run(0, run(0, 4), CUT, &mut 4).unwrap();
        whole.reserve(1000, cut);
        assert!(matches!(whole, Blocks::Run(_)));
    }

    #[test]
    fn checked_blocks_are_told_apart() {
        let checked = Checked::none();
        for index in [0, 63, 64, 129] {
            assert!(!checked.get(index));
            checked.set(index);
            assert!(checked.get(index));
        }
        assert!(!checked.get(1) && !checked.get(128) && !checked.get(1000));
    }

    #[test]
    fn all_blocks_are_checked_when_each_of_them_is() {
        for count in [1, 63, 64, 65, 128, 200] {
            let checked = Checked::none();
            assert!(checked.all(0));
            for index in (0..count).rev() {
                assert!(!checked.all(count), "{index} of {count}");
                checked.set(index);
            }
            assert!(checked.all(count) && !checked.all(count + 1));
            checked.clear_range(count / 2, count);
            assert!(!checked.all(count / 2 + 1) && checked.all(count / 2));
        }
    }

    #[test]
    fn blocks_lie_somewhere_only_with_all_of_them() {
        let mut blocks = Blocks::default();
        assert!(!blocks.lie_at(4096, CUT));
        blocks.set_run(0, run(0, 4), CUT, &mut 4).unwrap();
        assert!(blocks.lie_at(4096, CUT) && !blocks.lie_at(0, CUT));
        let third = blocks.get(2, CUT).unwrap();
        blocks.set(2, third, CUT, &mut 4).unwrap();
        assert!(blocks.lie_at(4096, CUT));
        for stored in [
            Stored { in_data: false, ..third.stored },
            Stored { offset: third.stored.offset + 1, ..third.stored },
            Stored { tier: Tier::Q8, ..third.stored },
        ] {
            blocks.set(2, Block { stored, ..third }, CUT, &mut 4).unwrap();
            assert!(!blocks.lie_at(4096, CUT), "{stored:?}");
        }
        blocks.truncate(2);
        assert!(!blocks.lie_at(4096, CUT));
    }
}
