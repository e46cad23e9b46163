//! Rounded small writes, where requested: deltas in multiples of a 16-bit scale on the existing block.

use crate::format::payload::delta::Changes;
use crate::format::payload::difference::Differences;
use crate::model::{Dtype, Encoder, Loss, Thresholds};
use crate::store::object::links::LINKS_MAX;

/// How writes to an encoded block are stored.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Writes {
    /// Without it they are stored exactly.
    pub rounding: Option<Rounding>,
    /// The deltas that its blocks may have.
    pub limits: DeltaLimits,
}

/// Writes are rounded to a delta, or encoded again if the delta would be too large. In tiers that the consent does not
/// reach they stay exact.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rounding {
    /// How the scales of a block that is encoded again are chosen.
    pub encoder: Encoder,
    /// The tiers to which a person has agreed.
    pub loss: Loss,
}

/// The deltas that a block may have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeltaLimits {
    /// Share of the block's elements that a delta may change.
    changed: f64,
    /// Share of the block's L2 norm that a rounded delta may change.
    norm: f64,
    /// Number of deltas.
    pub chain: usize,
}

impl DeltaLimits {
    /// Those that thresholds say.
    pub fn of(thresholds: &Thresholds) -> DeltaLimits {
        let Thresholds { delta_changed: changed, delta_norm: norm, delta_chain, .. } = *thresholds;
        DeltaLimits { changed, norm, chain: (delta_chain as usize).clamp(1, LINKS_MAX) }
    }

    /// The elements of a block with `count` that a delta may change.
    pub(in crate::store) fn changed(&self, count: usize) -> usize {
        // The addend makes up for the rounding of the share.
        (count as f64 * self.changed + 1e-6) as usize
    }
}

impl Default for DeltaLimits {
    fn default() -> DeltaLimits {
        DeltaLimits::of(&Thresholds::default())
    }
}

/// The changes from the present content of a block to the written one. `None` if too many
/// elements differ, if the L2 norm of the difference is more than the limit's share of the block's, or if
/// [`Differences::scaled`] cannot store it.
pub(in crate::store) fn scaled(
    dtype: Dtype,
    base: &[u8],
    new: &[u8],
    limits: &DeltaLimits,
) -> Option<Changes> {
    let most = limits.changed(new.len() / dtype.bytes() as usize);
    let found = Differences::of(dtype, base, new, most)?;
    if found.squares.sqrt() > limits.norm * found.squares_before.sqrt() {
        return None;
    }
    found.scaled()
}

#[cfg(test)]
mod tests {
    use super::{DeltaLimits, scaled};
    use crate::format::payload::delta::{Changes, Delta};
    use crate::model::{Dtype, ObjectId};

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn a_small_change_is_rounded_by_at_most_half_a_scale() {
        let base: Vec<f32> = (0..4096).map(|at| (at as f32 * 0.37).sin()).collect();
        let mut new = base.clone();
        for at in (0..4096).step_by(100) {
            new[at] += 0.01 * (at as f32 * 0.11).cos();
        }
        let changes = scaled(Dtype::F32, &bytes(&base), &bytes(&new), &DeltaLimits::default()).unwrap();
        let Changes::Scaled { scale, .. } = changes else { unreachable!() };
        let mut found = bytes(&base);
        let delta = Delta { object: ObjectId(1), block: 0, base_epoch: 1, result: 0, changes };
        delta.apply(Dtype::F32, &mut found).unwrap();
        for (found, wanted) in found.chunks_exact(4).zip(&new) {
            let found = f32::from_le_bytes(found.try_into().unwrap());
            assert!((found - wanted).abs() <= scale * 0.5 + f32::EPSILON, "{found} for {wanted}");
        }
    }

    #[test]
    fn large_many_and_infinite_changes_give_no_delta() {
        let base = vec![1.0_f32; 1000];
        let with = |count: usize, value: f32| {
            let mut new = base.clone();
            new[..count].fill(value);
            scaled(Dtype::F32, &bytes(&base), &bytes(&new), &DeltaLimits::default())
        };
        assert!(with(100, 1.01).is_some() && with(101, 1.01).is_none());
        assert!(with(1, 2.0).is_some() && with(3, 2.0).is_none());
        assert!(with(1, f32::INFINITY).is_none() && with(1, f32::NAN).is_none());
        assert!(scaled(Dtype::U8, &[1], &[1], &DeltaLimits::default()).is_none());
    }
}
