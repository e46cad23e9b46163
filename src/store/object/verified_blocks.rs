//! The blocks verified since the store was opened.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

/// Number of words stored inline. Further words are allocated in chunks.
const WORDS_INLINE: usize = 2;
const WORDS_OF_CHUNK: usize = 16;
const BITS: usize = 64;

/// The blocks verified since the store was opened, one bit each. A chunk of bits is allocated when one
/// of its bits is set. The bits of the first 128 blocks are inline.
#[derive(Debug)]
pub struct Checked(RwLock<Words>);

/// Bits, 64 in a word.
#[derive(Debug, Default)]
pub(in crate::store) struct Words {
    first: [AtomicU64; WORDS_INLINE],
    rest: Option<Box<Chunks>>,
}

/// Words of later blocks, by chunk: the word's index divided by the words in a chunk.
#[derive(Debug, Default)]
struct Chunks(BTreeMap<usize, Box<[AtomicU64; WORDS_OF_CHUNK]>>);

impl Words {
    fn get(&self, place: usize) -> Option<&AtomicU64> {
        if place < WORDS_INLINE {
            return self.first.get(place);
        }
        self.rest.as_ref()?.0.get(&(place / WORDS_OF_CHUNK))?.get(place % WORDS_OF_CHUNK)
    }

    /// The existing words of `places`, with their indexes.
    fn among(&self, places: Range<usize>) -> impl Iterator<Item = (usize, &AtomicU64)> {
        let chunks = places.start / WORDS_OF_CHUNK..places.end.div_ceil(WORDS_OF_CHUNK);
        let rest = self.rest.iter().flat_map(move |rest| rest.0.range(chunks.clone()));
        let rest = rest.flat_map(|(chunk, words)| (chunk * WORDS_OF_CHUNK..).zip(words.iter()));
        let rest = rest.filter(|(place, _)| *place >= WORDS_INLINE);
        (0..).zip(&self.first).chain(rest).filter(move |(place, _)| places.contains(place))
    }
}

/// The words that contain the bits of these blocks.
fn places(blocks: &Range<u32>) -> Range<usize> {
    blocks.start as usize / BITS..(blocks.end as usize).div_ceil(BITS)
}

/// The bits of these blocks in word `place`.
fn mask(place: usize, blocks: &Range<u32>) -> u64 {
    let first = place * BITS;
    let from = (blocks.start as usize).max(first) - first;
    let until = (blocks.end as usize).min(first + BITS) - first;
    (u64::MAX << from) & (u64::MAX >> (BITS - until))
}

impl Checked {
    /// No block verified.
    pub fn none() -> Checked {
        Checked(RwLock::default())
    }

    /// Whether block `index` was verified.
    pub fn get(&self, index: u32) -> bool {
        let words = self.0.read();
        let word = words.get(index as usize / BITS);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (index as usize % BITS) & 1 == 1)
    }

    /// Marks block `index`, which changed, as not verified.
    pub fn clear(&self, index: u32) {
        Checked::clear_in(&self.0.read(), index);
    }

    /// Locks the words. No other method may be called while the lock is held.
    pub(in crate::store) fn words(&self) -> RwLockReadGuard<'_, Words> {
        self.0.read()
    }

    /// Marks block `index`, which changed, as not verified.
    pub(in crate::store) fn clear_in(words: &Words, index: u32) {
        if let Some(word) = words.get(index as usize / BITS) {
            word.fetch_and(!(1 << (index as usize % BITS)), Ordering::Relaxed);
        }
    }

    /// Marks these blocks, which changed, as not verified.
    pub fn clear_range(&self, blocks: &Range<u32>) {
        if !blocks.is_empty() {
            for (place, word) in self.0.read().among(places(blocks)) {
                word.fetch_and(!mask(place, blocks), Ordering::Relaxed);
            }
        }
    }

    /// Whether all of these blocks were verified.
    pub fn all(&self, blocks: &Range<u32>) -> bool {
        if blocks.is_empty() {
            return true;
        }
        let (words, places) = (self.0.read(), places(blocks));
        let mut next = places.start;
        let has_all = words.among(places.clone()).all(|(place, word)| {
            let (wanted, is_next) = (mask(place, blocks), place == next);
            next += 1;
            is_next && word.load(Ordering::Relaxed) & wanted == wanted
        });
        has_all && next == places.end
    }

    /// Marks block `index` as verified.
    pub fn set(&self, index: u32) {
        let (place, bit) = (index as usize / BITS, 1 << (index as usize % BITS));
        let mark =
            |words: &Words| words.get(place).map(|word| word.fetch_or(bit, Ordering::Relaxed)).is_some();
        if !mark(&self.0.read()) {
            let mut words = self.0.write();
            words.rest.get_or_insert_default().0.entry(place / WORDS_OF_CHUNK).or_default();
            mark(&words);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Checked;

    #[test]
    fn verified_blocks_are_marked_one_by_one() {
        let checked = Checked::none();
        let all = [0, 63, 64, 127, 128, 129, 1023, 1024, 1 << 20, u32::MAX - 1];
        for index in all {
            assert!(!checked.get(index));
            checked.set(index);
            assert!(checked.get(index));
        }
        assert!(!checked.get(1) && !checked.get(130) && !checked.get(1000) && !checked.get(1 << 30));
    }

    #[test]
    fn all_blocks_are_checked_when_each_of_them_is() {
        for count in [1, 63, 64, 65, 128, 200, 1024, 1100, 3000] {
            let checked = Checked::none();
            assert!(checked.all(&(0..0)));
            for index in (0..count).rev() {
                assert!(!checked.all(&(0..count)), "{index} of {count}");
                checked.set(index);
            }
            assert!(checked.all(&(0..count)) && !checked.all(&(0..count + 1)));
            checked.clear_range(&(count / 2..count));
            assert!(!checked.all(&(0..count / 2 + 1)) && checked.all(&(0..count / 2)));
        }
    }

    proptest! {
        #[test]
        fn ranges_agree_with_their_blocks(
            set in prop::collection::vec((0..3000_u32, 1..900_u32, any::<bool>()), 1..20),
            asked in prop::collection::vec((0..4000_u32, 0..2000_u32), 20),
        ) {
            let checked = Checked::none();
            let mut table = vec![false; 8000];
            for (from, many, is_set) in set {
                table[from as usize..(from + many) as usize].fill(is_set);
                if is_set {
                    (from..from + many).for_each(|index| checked.set(index));
                } else {
                    checked.clear_range(&(from..from + many));
                }
            }
            for (from, many) in asked {
                let wanted = table[from as usize..(from + many) as usize].iter().all(|bit| *bit);
                prop_assert_eq!(checked.all(&(from..from + many)), wanted);
            }
        }
    }
}
