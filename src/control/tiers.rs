//! The control file `tiers`: the distribution of a collection over tiers.

use std::collections::{BTreeMap, HashSet};

use crate::control::files::Context;
use crate::control::measure::{Tally, tally};
use crate::model::{Result, Tier};

/// One line per tier: the tensors that have blocks in it, and the blocks and bytes of the whole
/// collection.
pub(super) fn table(context: &Context) -> Result<String> {
    let state = context.collection()?.state();
    let mut tensors: BTreeMap<Tier, u64> = BTreeMap::new();
    for node in state.nodes() {
        let Some(file) = node.file().filter(|file| file.tensor.is_some()) else { continue };
        let objects = file.objects.iter().filter_map(|id| state.object(*id));
        let tiers: HashSet<Tier> =
            objects.flat_map(|object| tally([object].into_iter()).into_keys()).collect();
        for tier in tiers {
            *tensors.entry(tier).or_default() += 1;
        }
    }
    let mut text = format!(
        "{:<8}{:>10}{:>12}{:>20}{:>20}\n",
        "tier", "tensors", "blocks", "logical bytes", "stored bytes"
    );
    for (tier, Tally { blocks, logical, stored }) in tally(state.objects()) {
        let tensors = tensors.get(&tier).copied().unwrap_or(0);
        text.push_str(&format!("{:<8}{tensors:>10}{blocks:>12}{logical:>20}{stored:>20}\n", tier.name()));
    }
    Ok(text)
}
