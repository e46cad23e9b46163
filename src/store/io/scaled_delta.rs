//! Rounded small writes, where requested: deltas in multiples of a 16-bit scale on the existing block.

use half::{bf16, f16};

use crate::format::payload::delta::Changes;
use crate::model::{Dtype, Encoder};

/// How writes to an encoded block are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// Exactly.
    Exact,
    /// Rounded to a delta; encoded again if the delta would be too large.
    Rounded(Encoder),
}

/// Maximum change of a block by a delta, as a share of the block's L2 norm.
const NORM_SHARE: f64 = 0.05;

/// The changes from the present content of a block to the written one. `None` if more than `most`
/// elements differ, if the L2 norm of the difference is more than a twentieth of the block's, or if a
/// value is not finite.
///
/// The scale is the largest difference divided by 32767, so that this difference is kept best. The
/// error of the others is at most half a scale.
pub(in crate::store) fn scaled(dtype: Dtype, base: &[u8], new: &[u8], most: usize) -> Option<Changes> {
    let width = dtype.bytes() as usize;
    let mut differences: Vec<(u16, f32)> = Vec::new();
    let (mut of_base, mut of_change, mut largest) = (0.0_f64, 0.0_f64, 0.0_f32);
    for (place, (before, after)) in base.chunks_exact(width).zip(new.chunks_exact(width)).enumerate() {
        let value = value_of(dtype, before)?;
        of_base += f64::from(value) * f64::from(value);
        if before == after {
            continue;
        }
        let difference = value_of(dtype, after)? - value;
        if differences.len() == most || !difference.is_finite() {
            return None;
        }
        differences.push((u16::try_from(place).ok()?, difference));
        of_change += f64::from(difference) * f64::from(difference);
        largest = largest.max(difference.abs());
    }
    if of_change.sqrt() > NORM_SHARE * of_base.sqrt() {
        return None;
    }
    let scale = largest / 32767.0;
    if scale == 0.0 {
        return Some(Changes::Scaled { scale, pairs: Vec::new() });
    }
    let step = |difference: f32| (difference / scale).round_ties_even().clamp(-32767.0, 32767.0) as i16;
    let pairs = differences.into_iter().map(|(place, difference)| (place, step(difference)));
    Some(Changes::Scaled { scale, pairs: pairs.filter(|(_, step)| *step != 0).collect() })
}

/// The value of an element of a quantizable type.
fn value_of(dtype: Dtype, bytes: &[u8]) -> Option<f32> {
    match dtype {
        Dtype::F32 => Some(f32::from_le_bytes(bytes.try_into().ok()?)),
        Dtype::F16 => Some(f16::from_le_bytes(bytes.try_into().ok()?).to_f32()),
        Dtype::Bf16 => Some(bf16::from_le_bytes(bytes.try_into().ok()?).to_f32()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::scaled;
    use crate::format::payload::delta::{Changes, Delta};
    use crate::model::{Dtype, ObjectId};

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn a_small_change_is_kept_within_half_a_scale() {
        let base: Vec<f32> = (0..4096).map(|at| (at as f32 * 0.37).sin()).collect();
        let mut new = base.clone();
        for at in (0..4096).step_by(100) {
            new[at] += 0.01 * (at as f32 * 0.11).cos();
        }
        let changes = scaled(Dtype::F32, &bytes(&base), &bytes(&new), 409).unwrap();
        let Changes::Scaled { scale, .. } = changes else { unreachable!() };
        let mut found = bytes(&base);
        let delta = Delta { object: ObjectId(1), block: 0, base_epoch: 1, changes };
        delta.apply(Dtype::F32, &mut found).unwrap();
        for (found, wanted) in found.chunks_exact(4).zip(&new) {
            let found = f32::from_le_bytes(found.try_into().unwrap());
            assert!((found - wanted).abs() <= scale * 0.5 + f32::EPSILON, "{found} for {wanted}");
        }
    }

    #[test]
    fn large_many_and_infinite_changes_are_no_delta() {
        let base = vec![1.0_f32; 1000];
        let with = |count: usize, value: f32| {
            let mut new = base.clone();
            new[..count].fill(value);
            scaled(Dtype::F32, &bytes(&base), &bytes(&new), 100)
        };
        assert!(with(100, 1.01).is_some() && with(101, 1.01).is_none());
        assert!(with(1, 2.0).is_some() && with(3, 2.0).is_none());
        assert!(with(1, f32::INFINITY).is_none() && with(1, f32::NAN).is_none());
        assert!(scaled(Dtype::U8, &[1], &[1], 1).is_none());
    }
}
