//! Differences between the elements of two versions of a block: as changes that a delta stores, and as an
//! error.

use crate::format::log::catalog::Measured;
use crate::format::payload::delta::Changes;
use crate::format::payload::element::value;
use crate::model::Dtype;

/// The largest value of a scaled difference.
const VALUE_MAX: f32 = 32_767.0;

/// The elements that differ between two versions, as numbers.
pub struct Differences {
    /// Indexes and differences.
    elements: Vec<(u16, f32)>,
    /// The largest absolute difference.
    largest: f32,
    /// The sum of the squares of the differences.
    pub squares: f64,
    /// The sum of the squares of the elements before.
    pub squares_before: f64,
}

impl Differences {
    /// The differences of elements from those `before`. `None` if more than `most` differ, if a difference
    /// is not finite, or for types that are never quantized.
    pub fn of(dtype: Dtype, before: &[u8], now: &[u8], most: usize) -> Option<Differences> {
        let width = dtype.bytes() as usize;
        let mut all = Differences { elements: Vec::new(), largest: 0.0, squares: 0.0, squares_before: 0.0 };
        for (place, (one, other)) in before.chunks_exact(width).zip(now.chunks_exact(width)).enumerate() {
            let from = value(dtype, one)?;
            all.squares_before += f64::from(from) * f64::from(from);
            if one == other {
                continue;
            }
            let difference = value(dtype, other)? - from;
            if all.elements.len() == most || !difference.is_finite() {
                return None;
            }
            all.elements.push((u16::try_from(place).ok()?, difference));
            all.squares += f64::from(difference) * f64::from(difference);
            all.largest = all.largest.max(difference.abs());
        }
        Some(all)
    }

    /// The differences as 16-bit numbers times the smallest scale that reaches all of them: the largest
    /// difference over 32,767. Each is thus at most half a scale off, 1/65,534 of the largest. `None`
    /// where the scale would not be a normal number.
    pub fn scaled(&self) -> Option<Changes> {
        if self.largest == 0.0 {
            // At most zeros of another sign, which are equal numbers.
            return Some(Changes::Scaled { scale: 0.0, pairs: Vec::new() });
        }
        let scale = self.largest / VALUE_MAX;
        if !scale.is_normal() {
            return None;
        }
        let pair = |(place, difference): &(u16, f32)| {
            let value = (difference / scale).round_ties_even().clamp(-VALUE_MAX, VALUE_MAX) as i16;
            (value != 0).then_some((*place, value))
        };
        Some(Changes::Scaled { scale, pairs: self.elements.iter().filter_map(pair).collect() })
    }
}

/// The elements that differ bitwise.
pub fn patch(dtype: Dtype, before: &[u8], now: &[u8]) -> Option<Changes> {
    let width = dtype.bytes() as usize;
    let (mut indices, mut elements) = (Vec::new(), Vec::new());
    for (place, (one, other)) in before.chunks_exact(width).zip(now.chunks_exact(width)).enumerate() {
        if one != other {
            indices.push(u16::try_from(place).ok()?);
            elements.extend_from_slice(other);
        }
    }
    Some(Changes::Patch { indices, elements })
}

/// The error of elements against others. It is empty for types that are never quantized.
pub fn measured(dtype: Dtype, found: &[u8], wanted: &[u8]) -> Measured {
    let mut measured = Measured::default();
    if !dtype.is_quantizable() {
        return measured;
    }
    let width = dtype.bytes() as usize;
    for (found, wanted) in found.chunks_exact(width).zip(wanted.chunks_exact(width)) {
        let value = |element| value(dtype, element).unwrap_or(f32::NAN);
        let difference = if found == wanted { 0.0 } else { (value(found) - value(wanted)).abs() };
        measured.maximum = measured.maximum.max(difference);
        measured.squares += f64::from(difference) * f64::from(difference);
        measured.elements += 1;
    }
    measured
}
