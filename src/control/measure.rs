//! What is stored of a file: tiers, blocks, bytes, a checksum over the payloads.

use std::collections::{BTreeMap, HashMap};

use crate::format::checksum;
use crate::model::{Result, Tier};
use crate::namespace::FileView;

/// Blocks of one tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// How many.
    pub blocks: u64,
    /// Their logical bytes.
    pub logical: u64,
    /// The bytes of their payloads.
    pub stored: u64,
}

/// What is stored of a file.
pub(super) struct Measure {
    /// By tier, most precise first.
    pub tiers: BTreeMap<Tier, Tally>,
    /// Objects.
    pub objects: u64,
    /// The links of the longest chain of deltas.
    pub chain: usize,
}

impl Measure {
    /// Measures a file; of a container its tensors only, where it has any.
    pub fn of(view: &FileView) -> Result<Measure> {
        let mut measure = Measure { tiers: BTreeMap::new(), objects: 0, chain: 0 };
        let objects = view.collection.objects_of(view.node.entry.id)?;
        let tensors_only = {
            let state = view.collection.state();
            let has_tensors = view.node.file().is_some_and(|file| state.parts(file).next().is_some());
            let is_tensor = |id| state.part_of(id).is_some();
            objects.iter().map(|object| !has_tensors || is_tensor(object.entry.id)).collect::<Vec<_>>()
        };
        for (object, counted) in objects.iter().zip(tensors_only) {
            let cut = object.cut();
            let blocks = object.blocks.read();
            for index in 0..cut.blocks() {
                let Some(block) = blocks.get(index, cut) else { continue };
                let stored = block.stored;
                if counted {
                    let tally = measure.tiers.entry(stored.tier).or_default();
                    tally.blocks += 1;
                    tally.logical += cut.len(index) as u64;
                    let (links, link_bytes) = object.chain_size(index, block.epoch);
                    tally.stored += u64::from(stored.len) + link_bytes;
                    measure.chain = measure.chain.max(links);
                }
            }
            if let Some(factor) = object.factor().filter(|_| counted && object.has_absent()) {
                measure.tiers.entry(Tier::Absent).or_default().stored += factor.len;
            }
            measure.objects += u64::from(counted);
        }
        Ok(measure)
    }

    /// All tiers together.
    pub fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        for tally in self.tiers.values() {
            sum.add(*tally);
        }
        sum
    }

    /// The tier of all blocks, or `mixed`.
    pub fn tier(&self) -> &'static str {
        let mut tiers = self.tiers.keys();
        match (tiers.next(), tiers.next()) {
            (None, _) => Tier::Exact.name(),
            (Some(tier), None) => tier.name(),
            _ => "mixed",
        }
    }

    /// Whether every block is exact.
    pub fn is_exact(&self) -> bool {
        self.tiers.keys().all(|tier| *tier == Tier::Exact)
    }
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: Tally) {
        self.blocks += other.blocks;
        self.logical += other.logical;
        self.stored += other.stored;
    }
}

/// CRC32C over all payloads of a file, in the order of the blocks: from the blocks' own,
/// nothing is read.
pub(super) fn checksum(view: &FileView) -> Result<u32> {
    let mut joined = Joined::default();
    for object in view.collection.objects_of(view.node.entry.id)? {
        let cut = object.cut();
        let blocks = object.blocks.read();
        for stored in (0..cut.blocks()).filter_map(|index| blocks.get(index, cut)).map(|block| block.stored) {
            joined.add(stored.checksum, stored.len);
        }
    }
    Ok(joined.checksum)
}

/// The CRC32C of byte strings one after the other.
///
/// That of A and B is that of A, shifted by B's length, plus that of B, and the shift is
/// linear over single bits (Mark Adler's `crc32_combine` in zlib): for a length that
/// comes often, 32 shifted bits make a table.
#[derive(Default)]
struct Joined {
    checksum: u32,
    lengths: HashMap<u32, Length>,
}

#[derive(Default)]
struct Length {
    seen: u32,
    bits: Option<[u32; 32]>,
}

impl Joined {
    /// A table costs as much as so many shifts without one.
    const TABLE_FROM: u32 = 32;

    fn add(&mut self, checksum: u32, len: u32) {
        let length = self.lengths.entry(len).or_default();
        length.seen = length.seen.saturating_add(1);
        if length.seen < Self::TABLE_FROM {
            self.checksum = checksum::joined(self.checksum, checksum, len as usize);
            return;
        }
        let bits = length
            .bits
            .get_or_insert_with(|| std::array::from_fn(|bit| checksum::joined(1 << bit, 0, len as usize)));
        let set = bits.iter().enumerate().filter(|(bit, _)| self.checksum >> bit & 1 == 1);
        self.checksum = set.fold(0, |sum, (_, shifted)| sum ^ shifted) ^ checksum;
    }
}

/// Blocks and bytes of objects by tier.
pub fn tally<'a>(
    objects: impl Iterator<Item = &'a std::sync::Arc<crate::store::object::Object>>,
) -> BTreeMap<Tier, Tally> {
    let mut tiers: BTreeMap<Tier, Tally> = BTreeMap::new();
    for object in objects {
        let cut = object.cut();
        let blocks = object.blocks.read();
        if matches!(*blocks, crate::store::blocks::Blocks::Run(_)) {
            let whole = Tally { blocks: u64::from(cut.blocks()), logical: cut.bytes, stored: cut.bytes };
            tiers.entry(Tier::Exact).or_default().add(whole);
            continue;
        }
        for index in 0..cut.blocks() {
            let Some(block) = blocks.get(index, cut) else { continue };
            let (_, link_bytes) = object.chain_size(index, block.epoch);
            let stored = u64::from(block.stored.len) + link_bytes;
            let one = Tally { blocks: 1, logical: cut.len(index) as u64, stored };
            tiers.entry(block.stored.tier).or_default().add(one);
        }
    }
    tiers
}

#[cfg(test)]
mod tests {
    use super::Joined;
    use crate::format::checksum;

    #[test]
    fn checksums_of_pieces_join_to_that_of_the_whole() {
        let whole: Vec<u8> =
            (0..200_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for piece in [1, 7, 64, 4096, 150_000] {
            let mut joined = Joined::default();
            for bytes in whole.chunks(piece) {
                joined.add(checksum::of(bytes), bytes.len() as u32);
            }
            assert_eq!(joined.checksum, checksum::of(&whole), "pieces of {piece}");
        }
    }
}
