//! `best`: the scale of least squared error, over the full range of codes.
//!
//! For fixed codes c the best scale is `sum(x c) / sum(c c)`. It reduces the sum of the
//! squared values by `sum(x c)^2 / sum(c c)`, the gain. So trial scales serve only to find
//! codes; the codes with the largest gain are refitted a few times.
//!
//! Trial scales are `M / (s * (first + i / 4))`, M = max|x|, 0 <= i < count. For 8, 7, 5, 3 bits `first` is 126.5, 62.5,
//! 14.5, 2.75 and `count` 16, 20, 20, 16. The sign s gives the largest magnitude the code without a counterpart (-128 or
//! q + 1); with 3 bits both signs are tried. The best trial is refitted twice: scale `sum(x c) / sum(c c)`, then new codes.
//! It replaces `absmax` if its squared error, as a reader sees it, is smaller.

use super::arch::{Group, Kernel};
use super::encode::{Candidate, Source, nearest_code};
use super::payload::{CodeRange, code_range};

/// Trial scales: the largest magnitude divided by `first`, `first + step`, ...
struct Trials {
    first: f32,
    step: f32,
    count: u8,
    /// Whether to try scales of either sign, or only those that give the largest magnitude
    /// the code without a counterpart of the other sign.
    both_signs: bool,
}

/// The trials for codes of `bits` bits; measured on normal, uniform and Laplace values.
fn trials(bits: usize) -> Trials {
    match bits {
        8 => Trials { first: 126.5, step: 0.25, count: 16, both_signs: false },
        7 => Trials { first: 62.5, step: 0.25, count: 20, both_signs: false },
        5 => Trials { first: 14.5, step: 0.25, count: 20, both_signs: false },
        _ => Trials { first: 2.75, step: 0.25, count: 16, both_signs: true },
    }
}

/// Number of refits of the codes and the scale of the best trial.
const REFITS: usize = 2;

/// The best encoding found, or `absmax` if no other has a smaller error.
#[inline(always)]
pub(super) fn better<K: Kernel>(source: &Source<K>, bits: usize, absmax: Candidate<K>) -> Candidate<K> {
    let Some(scale) = best_scale(source, bits) else {
        return absmax;
    };
    let found = source.candidate(scale, code_range(bits));
    // Also false if a value would decode to infinity.
    if found.loss.square_sum < absmax.loss.square_sum { found } else { absmax }
}

/// The values times a power of two, with the largest magnitude between 4 and 8, so that the
/// squares stay in the range of f32.
pub(super) struct Scaled<K: Kernel> {
    pub(super) kernel: K,
    pub(super) values: Group<K>,
    pub(super) max: f32,
    factor: f32,
}

impl<K: Kernel> Scaled<K> {
    /// The values of a group whose `absmax` scale is neither 0 nor subnormal.
    #[inline(always)]
    pub(super) fn of(source: &Source<K>) -> Scaled<K> {
        let kernel = source.kernel;
        // 2^(2 - e) for a largest magnitude of 2^e to 2^(e+1), computed from its exponent's
        // bits: e + 127 is 2 to 254, so 256 - (e + 127) is 2 to 254 too.
        let exponent = source.max.to_bits() >> 23;
        let factor = f32::from_bits((256 - exponent) << 23);
        let factors = kernel.splat(factor);
        let values = kernel.mul_group(source.values, factors);
        Scaled { kernel, values, max: source.max * factor, factor }
    }

    /// Converts a scale of these values to a scale of the group; `None` if it is not normal.
    #[inline(always)]
    pub(super) fn unscale(&self, scale: f32) -> Option<f32> {
        let scale = scale / self.factor;
        scale.is_normal().then_some(scale)
    }

    /// `sum(x c)` and `sum(c c)` over the codes nearest at the scale `1 / inverse`.
    #[inline(always)]
    fn sums(&self, inverse: f32, range: CodeRange) -> Sums {
        let kernel = self.kernel;
        let inverses = kernel.splat(inverse);
        let mut products = kernel.splat(0.0);
        let mut squares = products;
        for lanes in self.values {
            let codes = nearest_code(kernel, kernel.mul(lanes, inverses), range);
            products = kernel.add(products, kernel.mul(lanes, codes));
            squares = kernel.add(squares, kernel.mul(codes, codes));
        }
        Sums { products: kernel.sum(products), squares: kernel.sum(squares) }
    }

    /// Whether a positive value has the largest magnitude.
    #[inline(always)]
    fn peak_is_positive(&self) -> bool {
        let below = self.kernel.splat(self.max.next_down());
        let mut found = 0;
        for lanes in self.values {
            found |= self.kernel.less(below, lanes);
        }
        found != 0
    }
}

/// The scale of least squared error among the trials and their refits.
#[inline(always)]
pub(super) fn best_scale<K: Kernel>(source: &Source<K>, bits: usize) -> Option<f32> {
    let scaled = Scaled::of(source);
    scaled.unscale(best_scale_of(&scaled, bits)?)
}

/// Like [`best_scale`], but returns a scale of the scaled values.
#[inline(always)]
pub(super) fn best_scale_of<K: Kernel>(scaled: &Scaled<K>, bits: usize) -> Option<f32> {
    let range = code_range(bits);
    let trials = trials(bits);
    let lone_is_negative = bits == 8;
    let sign = if scaled.peak_is_positive() == lone_is_negative { -1.0 } else { 1.0 };
    let mut best = Fit { gain: 0.0, scale: 0.0 };
    for trial in 0..trials.count {
        let inverse = sign * (trials.first + trials.step * f32::from(trial)) / scaled.max;
        best.take_better(scaled.sums(inverse, range));
        if trials.both_signs {
            best.take_better(scaled.sums(-inverse, range));
        }
    }
    for _ in 0..REFITS {
        if best.scale == 0.0 {
            return None;
        }
        best.take_better(scaled.sums(1.0 / best.scale, range));
    }
    Some(best.scale)
}

/// Sums over a group.
struct Sums {
    /// `sum(x c)`.
    products: f32,
    /// `sum(c c)`.
    squares: f32,
}

/// The scale of the largest gain so far.
struct Fit {
    gain: f32,
    scale: f32,
}

impl Fit {
    #[inline(always)]
    fn take_better(&mut self, Sums { products, squares }: Sums) {
        // If all codes are 0 the gain is a NaN, which is not larger.
        let gain = products * products / squares;
        if gain > self.gain {
            *self = Fit { gain, scale: products / squares };
        }
    }
}
