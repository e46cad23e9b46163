//! What is stored of a file: tiers, blocks, bytes, a checksum over the payloads.

use std::collections::BTreeMap;

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
    /// CRC32C over all payloads, in the order of the blocks.
    pub checksum: u32,
    /// Objects.
    pub objects: u64,
}

impl Measure {
    /// Measures a file; of a container its tensors only, where it has any.
    pub fn of(view: &FileView) -> Result<Measure> {
        let mut measure = Measure { tiers: BTreeMap::new(), checksum: 0, objects: 0 };
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
                measure.checksum =
                    crc32c::crc32c_combine(measure.checksum, stored.checksum, stored.len as usize);
                if counted {
                    let tally = measure.tiers.entry(stored.tier).or_default();
                    tally.blocks += 1;
                    tally.logical += cut.len(index) as u64;
                    tally.stored += u64::from(stored.len);
                }
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
            let one =
                Tally { blocks: 1, logical: cut.len(index) as u64, stored: u64::from(block.stored.len) };
            tiers.entry(block.stored.tier).or_default().add(one);
        }
    }
    tiers
}
