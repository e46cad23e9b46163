//! Measures the stored form of a file: tiers, blocks, bytes, and the checksum of the payloads.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::format::checksum;
use crate::model::{Result, Tier};
use crate::store::Block;
use crate::store::Object;
use crate::store::Part;
use crate::vfs::FileView;

/// The tier of a file with blocks in several.
const MIXED: &str = "mixed";

/// Blocks and bytes of one tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub blocks: u64,
    pub logical: u64,
    /// The bytes of their payloads.
    pub stored: u64,
}

/// Measurements of the stored form of a file.
pub(super) struct Measure {
    /// By tier, most precise first, without holes.
    pub tiers: BTreeMap<Tier, Tally>,
    /// Holes, which are exact in every tier.
    zeros: Tally,
    /// Elements of the tensors, or bytes of a plain file.
    pub elements: u64,
    pub objects: u64,
    /// The largest number of deltas on a block.
    pub chain: usize,
}

impl Measure {
    /// Measures a file. For a container with tensors, measures only the tensors.
    pub fn of(view: &FileView) -> Result<Measure> {
        let mut measure =
            Measure { tiers: BTreeMap::new(), zeros: Tally::default(), elements: 0, objects: 0, chain: 0 };
        let objects = view.collection.objects_of(view.node.entry.id)?;
        let tensors_only = {
            let state = view.collection.state();
            let has_tensors = view.node.file().is_some_and(|file| state.parts(file).next().is_some());
            let is_tensor = |id| state.part_of(id).is_some();
            objects.iter().map(|object| !has_tensors || is_tensor(object.entry.id)).collect::<Vec<_>>()
        };
        for (object, _) in objects.iter().zip(tensors_only).filter(|(_, is_counted)| *is_counted) {
            let layout = object.layout();
            for (piece, block) in object.blocks.read().pieces(layout) {
                let (one, links) = one(object, &piece, &block);
                let tally = if block.stored.is_zeros() {
                    &mut measure.zeros
                } else {
                    measure.tiers.entry(block.stored.tier).or_default()
                };
                tally.add(one);
                measure.chain = measure.chain.max(links);
            }
            if let Some(factor) = object.factor().filter(|_| object.has_absent()) {
                measure.tiers.entry(Tier::Absent).or_default().stored += factor.len;
            }
            measure.elements += object.dtype().elements_in(object.bytes());
            measure.objects += 1;
        }
        Ok(measure)
    }

    /// The sum over all tiers and holes.
    pub fn sum(&self) -> Tally {
        let mut sum = self.zeros;
        for tally in self.tiers.values() {
            sum.add(*tally);
        }
        sum
    }

    /// The tier of all blocks, or `mixed`.
    pub fn tier(&self) -> &'static str {
        let mut tiers = self.tiers.keys().map(|tier| if tier.is_exact() { Tier::Exact } else { *tier });
        let first = tiers.next().unwrap_or(Tier::Exact);
        if tiers.all(|tier| tier == first) { first.name() } else { MIXED }
    }

    /// The shares of the tiers in the bytes, in percent with a fraction of at most one digit. `None` where all blocks are
    /// in one tier.
    pub fn shares(&self) -> Option<String> {
        if self.tier() != MIXED {
            return None;
        }
        let mut shares: BTreeMap<Tier, u64> = BTreeMap::new();
        for (tier, tally) in &self.tiers {
            let tier = if tier.is_exact() { Tier::Exact } else { *tier };
            *shares.entry(tier).or_default() += tally.logical;
        }
        let all: u64 = shares.values().sum();
        let shown = |bytes: u64| match (bytes as f64 / all.max(1) as f64 * 1000.0).round() / 10.0 {
            0.0 => "<0.1".to_owned(),
            100.0 => ">99.9".to_owned(),
            share => share.to_string(),
        };
        let shares = shares.iter().map(|(tier, bytes)| format!("{tier}={}%", shown(*bytes)));
        Some(shares.collect::<Vec<_>>().join(" "))
    }

    /// Whether every block is exact.
    pub fn is_exact(&self) -> bool {
        self.tiers.keys().all(|tier| tier.is_exact())
    }
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.blocks += other.blocks;
        self.logical += other.logical;
        self.stored += other.stored;
    }
}

/// CRC32C of all payloads of a file in the order of the blocks; `None` where nobody has read them. Combines the recorded
/// checksums of the blocks and reads no payload. Zeros stand for the payload of a hole.
pub(super) fn checksum(view: &FileView) -> Result<Option<u32>> {
    if view.collection.state().is_unread() {
        return Ok(None);
    }
    let mut joined = Joined::default();
    for object in view.collection.objects_of(view.node.entry.id)? {
        let layout = object.layout();
        let is_unread = object.origin.as_ref().is_some_and(|origin| origin.file.is_unread());
        for (piece, block) in object.blocks.read().pieces(layout) {
            if is_unread && block.stored.in_data {
                return Ok(None);
            }
            if block.stored.is_zeros() {
                joined.add_zeros(layout.bytes_of(&piece))
            } else {
                joined.add(block.stored.checksum, block.stored.len)
            }
        }
    }
    Ok(Some(joined.checksum))
}

/// The CRC32C of concatenated byte strings.
///
/// The CRC of A followed by B is the CRC of A, shifted by the length of B, XOR the CRC of B. The shift is
/// linear over GF(2) (Mark Adler's `crc32_combine` in zlib), so a table of the 32 shifted bits serves a
/// length that occurs often.
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
    /// A table costs as much as this many shifts without one.
    const TABLE_FROM: u32 = 32;

    /// Appends `bytes` zeros, doubling a run of zeros to reach each power of two.
    fn add_zeros(&mut self, bytes: u64) {
        let (mut checksum, mut len) = (checksum::of(&[0]), 1_u64);
        let mut rest = bytes;
        while rest > 0 {
            if rest & 1 == 1 {
                self.checksum = checksum::joined(self.checksum, checksum, len as usize);
            }
            checksum = checksum::joined(checksum, checksum, len as usize);
            len = len.saturating_mul(2);
            rest >>= 1;
        }
    }

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

/// Blocks and bytes of objects, by tier.
pub fn tally<'a>(objects: impl Iterator<Item = &'a std::sync::Arc<Object>>) -> BTreeMap<Tier, Tally> {
    let mut tiers: BTreeMap<Tier, Tally> = BTreeMap::new();
    for object in objects {
        let layout = object.layout();
        for (first, part) in object.blocks.read().parts() {
            if let Part::Run(run) = part {
                let range = first..first + run.checksums.len() as u32;
                let bytes = layout.bytes_of(&range);
                let whole = Tally { blocks: range.len() as u64, logical: bytes, stored: bytes };
                tiers.entry(Tier::Exact).or_default().add(whole);
                continue;
            }
            for (piece, block) in part.pieces(first, layout) {
                tiers.entry(block.stored.tier).or_default().add(one(object, &piece, &block).0);
            }
        }
    }
    tiers
}

/// The tally of a piece (one block, or several equal ones without a payload), and its number of deltas.
fn one(object: &Object, piece: &Range<u32>, block: &Block) -> (Tally, usize) {
    let logical = object.layout().bytes_of(piece);
    let (links, link_bytes) = object.deltas_size(piece.start, block.epoch);
    let stored = block.stored.counted(logical) + link_bytes;
    (Tally { blocks: piece.len() as u64, logical, stored }, links)
}

#[cfg(test)]
mod tests {
    use super::Joined;
    use crate::format::checksum;

    #[test]
    fn checksums_of_pieces_combine_to_that_of_the_whole() {
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

    #[test]
    fn checksums_of_zeros_combine_without_reading_them() {
        for many in [0, 1, 2, 3, 4096, 65_537, 1_000_001] {
            let mut joined = Joined::default();
            joined.add(checksum::of(b"before"), 6);
            joined.add_zeros(many as u64);
            joined.add(checksum::of(b"behind"), 6);
            let whole = [&b"before"[..], &vec![0; many], b"behind"].concat();
            assert_eq!(joined.checksum, checksum::of(&whole), "{many} zeros");
        }
    }
}
