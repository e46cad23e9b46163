//! Usage history of blocks: counted by reads without locks, kept in memory and in a side file.
//!
//! An access shifts the window of a block left by the ticks since the last one and sets its bit 0. It
//! also updates the moving average of the access rate: `ema = a/dt + (1-a)*ema`, with dt the ticks since the last access,
//! at least 1. The setting `ema_share` has a; it is 0.1 by default. A new block has a window of 1 and an average of 0.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::format::log::access::History;

/// A use of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileUse {
    /// The tick of the file's creation.
    pub created: u32,
    /// The present tick.
    pub now: u32,
    /// Its weight in the average.
    pub share: f32,
}
/// Number of blocks whose histories are allocated together.
const CHUNK: usize = 64;

impl History {
    /// The history of a block that was created at a tick and never used.
    pub fn new(created: u32) -> History {
        History { count: 0, last: created, created, window: 1, ema: 0.0 }
    }

    /// The history after an access at tick `now`, which has the weight `share` in the average. A tick before the last
    /// access counts as that one.
    pub fn accessed(self, now: u32, share: f32) -> History {
        let since = now.saturating_sub(self.last);
        History {
            count: self.count.saturating_add(1),
            last: self.last.max(now),
            created: self.created,
            window: shifted(self.window, since) | 1,
            ema: averaged(self.ema, since, share),
        }
    }

    /// Score from 0 to 1000: `700 * ema * (1 - share)^idle + 300 * bits / 64 / sqrt(age)`. `idle` and `age` (at
    /// least 1) are in ticks; `bits` is the number of bits set in the window at `now`.
    pub fn score(self, now: u32, share: f32) -> f64 {
        let idle = now.saturating_sub(self.last);
        let age = f64::from(now.saturating_sub(self.created).max(1));
        let rate =
            f64::from(self.ema) * (1.0 - f64::from(share)).powi(i32::try_from(idle).unwrap_or(i32::MAX));
        let bits = f64::from(shifted(self.window, idle).count_ones());
        700.0 * rate + 300.0 * bits / 64.0 / age.sqrt()
    }
}

fn shifted(window: u64, ticks: u32) -> u64 {
    window.checked_shl(ticks).unwrap_or(0)
}

fn averaged(ema: f32, since: u32, share: f32) -> f32 {
    share / since.max(1) as f32 + (1.0 - share) * ema
}

/// The history of a block. An access changes one word, and two more if it is the first of a tick. A
/// reader in between sees half of an access, which does no harm.
#[derive(Debug)]
struct Slot {
    window: AtomicU64,
    /// The bits of the average in the high half, the count in the low half.
    worth: AtomicU64,
    /// The tick of the last access in the high half, the tick of creation in the low half.
    ticks: AtomicU64,
}

const fn joined(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn parted(both: u64) -> (u32, u32) {
    ((both >> 32) as u32, both as u32)
}

impl Slot {
    fn new(history: History) -> Slot {
        Slot {
            window: AtomicU64::new(history.window),
            worth: AtomicU64::new(joined(history.ema.to_bits(), history.count)),
            ticks: AtomicU64::new(joined(history.last, history.created)),
        }
    }

    fn get(&self) -> History {
        let (last, created) = parted(self.ticks.load(Ordering::Relaxed));
        let (ema, count) = parted(self.worth.load(Ordering::Relaxed));
        let window = self.window.load(Ordering::Relaxed);
        History { count, last, created, window, ema: f32::from_bits(ema) }
    }

    fn set(&self, history: History) {
        let new = Slot::new(history);
        self.window.store(new.window.into_inner(), Ordering::Relaxed);
        self.worth.store(new.worth.into_inner(), Ordering::Relaxed);
        self.ticks.store(new.ticks.into_inner(), Ordering::Relaxed);
    }

    fn turn_back(&self, now: u32) {
        let turned = |both: u64| {
            let (last, created) = parted(both);
            (last > now.saturating_add(1)).then(|| joined(now, created.min(now)))
        };
        // Most reads find nothing to change.
        self.ticks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, turned).ok();
    }

    /// Updates the history as [`History::accessed`] does.
    fn count(&self, now: u32, share: f32) {
        let later = |both: u64| {
            let (last, created) = parted(both);
            (last < now).then_some(joined(now, created))
        };
        // Only one thread succeeds in setting a new tick.
        let since = match self.ticks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later) {
            Ok(before) => now - parted(before).0,
            Err(_) => 0,
        };
        if since > 0 {
            let window = |window| Some(shifted(window, since) | 1);
            // The closure always returns a value.
            self.window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, window).ok();
        }
        let worth = |both: u64| {
            let (ema, count) = parted(both);
            let ema = averaged(f32::from_bits(ema), since, share);
            Some(joined(ema.to_bits(), count.saturating_add(1)))
        };
        self.worth.fetch_update(Ordering::Relaxed, Ordering::Relaxed, worth).ok();
    }
}

/// The histories of an object's blocks: 24 bytes a block, allocated for 64 blocks when one of them is
/// used. The last chunk ends with the object.
#[derive(Debug, Default)]
pub struct Accesses {
    /// Locked for writing only while chunks are allocated, never across I/O.
    chunks: RwLock<Chunks>,
}

/// The chunk of the first 64 blocks, and later chunks by block index divided by 64.
#[derive(Debug, Default)]
struct Chunks {
    first: Box<[Slot]>,
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Default)]
struct Rest(BTreeMap<usize, Box<[Slot]>>);

impl Chunks {
    fn get(&self, chunk: usize) -> Option<&[Slot]> {
        match chunk {
            0 => Some(&self.first),
            _ => self.rest.as_ref()?.0.get(&chunk).map(Box::as_ref),
        }
    }

    fn made(&mut self, chunk: usize) -> &mut Box<[Slot]> {
        match chunk {
            0 => &mut self.first,
            _ => self.rest.get_or_insert_default().0.entry(chunk).or_default(),
        }
    }

    fn all(&self) -> impl Iterator<Item = (usize, &[Slot])> {
        let rest = self.rest.iter().flat_map(|rest| &rest.0);
        std::iter::once((0, self.first.as_ref())).chain(rest.map(|(chunk, slots)| (*chunk, slots.as_ref())))
    }
}

impl Accesses {
    /// Counts an access of each block of `range`. `blocks` is the number of the object's blocks. Allocates at the first
    /// access only.
    pub fn count(&self, range: Range<u32>, blocks: u32, FileUse { created, now, share }: FileUse) {
        let range = range.start..range.end.min(blocks);
        if range.is_empty() {
            return;
        }
        let chunks = self.chunks_of(&range, blocks, created);
        for (chunk, inside) in chunks_in(range) {
            let slots = chunks.get(chunk).and_then(|slots| slots.get(inside));
            for slot in slots.unwrap_or_default() {
                slot.count(now, share);
            }
        }
    }

    /// Lets accesses of a clock that was ahead count as of now: the clock went back, and the blocks
    /// would otherwise look used until it reaches that time. The tick may advance between two readings,
    /// so one tick more is allowed.
    pub fn turn_back(&self, now: u32) {
        for slot in self.chunks.read().all().flat_map(|(_, slots)| slots) {
            slot.turn_back(now);
        }
    }

    /// The histories of the used blocks among the first `blocks`.
    pub fn used(&self, blocks: u32) -> Vec<(u32, History)> {
        let mut used = Vec::new();
        self.each_used(blocks, |block, history| used.push((block, history)));
        used
    }

    /// Calls `tell` with the history of each used block among the first `blocks`.
    pub fn each_used(&self, blocks: u32, mut tell: impl FnMut(u32, History)) {
        for (chunk, slots) in self.chunks.read().all() {
            for (block, slot) in ((chunk * CHUNK) as u32..blocks).zip(slots) {
                let history = slot.get();
                if history.count > 0 {
                    tell(block, history);
                }
            }
        }
    }

    /// Restores saved histories. `blocks` is the number of the object's blocks.
    pub fn restore(&self, blocks: u32, kept: impl Iterator<Item = (u32, History)>) {
        let mut chunks = self.chunks.read();
        for (block, history) in kept.filter(|(block, _)| *block < blocks) {
            let (chunk, inside) = (block as usize / CHUNK, block as usize % CHUNK);
            if chunks.get(chunk).is_none_or(|slots| slots.len() <= inside) {
                drop(chunks);
                chunks = self.chunks_of(&(block..block + 1), blocks, history.created);
            }
            if let Some(slot) = chunks.get(chunk).and_then(|slots| slots.get(inside)) {
                slot.set(history);
            }
        }
    }

    /// Bytes of memory outside of it.
    pub(in crate::store) fn memory(&self) -> u64 {
        let slots: usize = self.chunks.read().all().map(|(_, slots)| slots.len()).sum();
        (slots * size_of::<Slot>()) as u64
    }

    /// The chunks, after allocating those of `range`.
    fn chunks_of(&self, range: &Range<u32>, blocks: u32, created: u32) -> RwLockReadGuard<'_, Chunks> {
        let chunks = self.chunks.read();
        let has = |(chunk, inside): (usize, Range<usize>)| {
            chunks.get(chunk).is_some_and(|slots| slots.len() >= inside.end)
        };
        if chunks_in(range.clone()).all(has) {
            return chunks;
        }
        drop(chunks);
        let mut chunks = self.chunks.write();
        for (place, inside) in chunks_in(range.clone()) {
            let slots = chunks.made(place);
            if slots.len() >= inside.end {
                continue;
            }
            // The histories from before the object grew.
            let known = slots.iter().map(Slot::get);
            let len = CHUNK.min(blocks as usize - place * CHUNK);
            let unused = std::iter::repeat_n(History::new(created), len - slots.len());
            *slots = known.chain(unused).map(Slot::new).collect();
        }
        RwLockWriteGuard::downgrade(chunks)
    }
}

/// The chunks that contain the blocks of `range`, and the blocks within each.
fn chunks_in(range: Range<u32>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let (start, end) = (range.start as usize, range.end as usize);
    (start / CHUNK..end.div_ceil(CHUNK)).map(move |chunk| {
        let first = chunk * CHUNK;
        (chunk, start.max(first) - first..CHUNK.min(end - first))
    })
}

#[cfg(test)]
mod tests {
    use super::{Accesses, FileUse, History};

    const SHARE: f32 = 0.1;

    fn near(one: f64, other: f64) {
        assert!((one - other).abs() < 1e-3, "{one} is not {other}");
    }

    #[test]
    fn accesses_change_a_history_as_computed_by_hand() {
        let made = History::new(100);
        assert_eq!((made.window, made.ema, made.count, made.last), (1, 0.0, 0, 100));
        // In the tick of its creation: a/1.
        let one = made.accessed(100, SHARE);
        assert_eq!((one.window, one.count), (1, 1));
        near(one.ema.into(), 0.1);
        // Two ticks later: 0.1/2 + 0.9*0.1 = 0.14, window 0b101.
        let two = one.accessed(102, SHARE);
        assert_eq!((two.window, two.count, two.last), (0b101, 2, 102));
        near(two.ema.into(), 0.14);
        // 63 ticks: the oldest bits would be at 65 and 63, so one is left. 0.1/63 + 0.9*0.14.
        let three = two.accessed(165, SHARE);
        assert_eq!(three.window, 1 << 63 | 1);
        near(three.ema.into(), 0.1 / 63.0 + 0.126);
        assert_eq!(three.accessed(229, SHARE).window, 1, "from 64 on nothing is left");
        // A clock that went back: counts as the same tick.
        let back = three.accessed(7, SHARE);
        assert_eq!((back.window, back.last), (three.window, 165));
        assert_eq!(History { count: u32::MAX, ..three }.accessed(165, SHARE).count, u32::MAX);
    }

    #[test]
    fn scores_equal_those_computed_by_hand() {
        // Never used: 300/64 at first, a quarter of the bits' share after 16 ticks.
        near(History::new(0).score(0, SHARE), 4.6875);
        near(History::new(0).score(16, SHARE), 1.171_875);
        near(History::new(0).score(64, SHARE), 0.0);
        let history = History { count: 9, last: 100, created: 0, window: 0b1111, ema: 0.5 };
        // 700*0.5 + 300*4/64/10.
        near(history.score(100, SHARE), 351.875);
        // 700*0.5*0.9^2 + 18.75/sqrt(102).
        near(history.score(102, SHARE), 283.5 + 18.75 / 102_f64.sqrt());
        // 700*0.5*0.9^62 and two of the bits shifted out; sqrt(162).
        near(history.score(162, SHARE), 350.0 * 0.9_f64.powi(62) + 300.0 * 2.0 / 64.0 / 162_f64.sqrt());
        let full = History { window: u64::MAX, ema: 1.0, created: 100, ..history };
        near(full.score(100, SHARE), 1000.0);
        near(full.score(u32::MAX, SHARE), 0.0);
    }

    #[test]
    fn block_counts_agree_with_a_naive_table() {
        let accesses = Accesses::default();
        let mut table = vec![History::new(5); 300];
        for step in 0..2000_u32 {
            let (first, now) = (step * 37 % 300, 5 + step / 20);
            let range = first..(first + step % 130).min(320);
            accesses.count(range.clone(), 300, FileUse { created: 5, now, share: SHARE });
            range.filter(|block| *block < 300).for_each(|block| {
                let history = &mut table[block as usize];
                *history = history.accessed(now, SHARE);
            });
        }
        let wanted: Vec<(u32, History)> = (0..).zip(table).collect();
        assert_eq!(accesses.used(300), wanted);
        let other = Accesses::default();
        let (early, late) = wanted.split_at(100);
        other.restore(300, late.iter().copied().chain([(300, History::new(0))]));
        other.restore(300, early.iter().copied());
        assert_eq!(other.used(300), wanted);
        assert_eq!(other.used(10), wanted[..10]);
    }

    #[test]
    fn histories_survive_growth_of_an_object_and_stay_within_its_blocks() {
        let accesses = Accesses::default();
        let mut table = Vec::new();
        for (blocks, now) in [(1, 3), (2, 4), (63, 9), (64, 9), (65, 12), (200, 13), (131, 14)] {
            table.resize((blocks as usize).max(table.len()), History::new(2));
            accesses.count(0..blocks, blocks, FileUse { created: 2, now, share: SHARE });
            table[..blocks as usize].iter_mut().for_each(|history| *history = history.accessed(now, SHARE));
            let wanted: Vec<(u32, History)> = (0..).zip(table.iter().copied()).collect();
            assert_eq!(accesses.used(1000), wanted, "{blocks} blocks");
            let room: usize = accesses.chunks.read().all().map(|(_, slots)| slots.len()).sum();
            assert_eq!(room, table.len());
        }
    }

    #[test]
    fn no_access_of_many_threads_is_lost() {
        let accesses = Accesses::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..5000).for_each(|step| {
                        accesses.count(60..70, 100, FileUse { created: 0, now: step / 100, share: SHARE })
                    })
                });
            }
        });
        let used = accesses.used(100);
        assert_eq!(used.len(), 10);
        for (_, history) in used {
            assert_eq!((history.count, history.last), (20_000, 49));
            assert_eq!(history.window, (1 << 50) - 1);
        }
    }
}
