//! `best` and `least`: the scale of least squared error, over the full range of codes.
//!
//! For fixed codes c the scale `sum(x c) / sum(c c)` has the least error. A scale s reduces the sum of the squared
//! values by `s (2 sum(x c) - s sum(c c))`, the gain. So trial scales serve only to find codes; the codes with the
//! largest gain are refitted a few times.
//!
//! Trial scales are `M / (s * (first + i / 4))`, M = max|x|, 0 <= i < count. For 8, 7, 5, 3 bits `first` is 126.5, 62.5,
//! 14.5, 2.75 and `count` 16, 20, 20, 16. The sign s gives the largest magnitude the code without a counterpart (-128 or
//! q + 1); with 3 bits both signs are tried. The best trial is refitted twice: scale `sum(x c) / sum(c c)`, then new codes.
//! It replaces `absmax` if its squared error, as a reader sees it, is smaller.
//!
//! `best` takes only scales at which no value errs by more than `M / (2 Q)`, Q = 127, 63, 15, 3, before the rounding to
//! the element type. A smaller scale than [`Limits::least`] fails at the largest values, and is replaced by that. A
//! scale up to `M / Q` keeps the bound; a larger one is tried on every value, and replaced by `M / Q` if one fails.
//! `least` takes any scale.

use super::arch::{Group, Kernel};
use super::encode::{Candidate, Source, nearest_code};
use super::payload::{CodeRange, code_range, largest_code};

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

/// Which scales count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scales {
    /// Those that keep the bound of the error.
    Bounded,
    All,
}

/// The best encoding found, or `absmax` if no other has a smaller error.
#[inline(always)]
pub(super) fn better<K: Kernel>(
    source: &Source<K>,
    bits: usize,
    scales: Scales,
    absmax: Candidate<K>,
) -> Candidate<K> {
    let scaled = Scaled::of(source);
    let limits = Limits::of(&scaled, bits, scales);
    let Some(scale) = best_scale(&scaled, bits, &limits).and_then(|scale| scaled.unscale(scale)) else {
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

    /// The largest error at `scale`.
    #[inline(always)]
    fn error_max(&self, scale: f32, range: CodeRange) -> f32 {
        let kernel = self.kernel;
        let (scales, inverses) = (kernel.splat(scale), kernel.splat(1.0 / scale));
        let mut largest = kernel.splat(0.0);
        for lanes in self.values {
            let codes = nearest_code(kernel, kernel.mul(lanes, inverses), range);
            let error = kernel.sub(lanes, kernel.mul(codes, scales));
            largest = kernel.larger_magnitude(largest, error);
        }
        kernel.largest(largest)
    }

    /// The largest positive value, and the largest magnitude of a negative one.
    #[inline(always)]
    fn peaks(&self) -> [f32; 2] {
        let kernel = self.kernel;
        let zero = kernel.splat(0.0);
        let (mut highest, mut lowest) = (zero, zero);
        for lanes in self.values {
            highest = kernel.max(lanes, highest);
            lowest = kernel.min(lanes, lowest);
        }
        // Zero as the second argument gives a zero without a sign.
        let magnitudes = kernel.max(kernel.sub(zero, lowest), zero);
        [kernel.largest(kernel.max(highest, zero)), kernel.largest(magnitudes)]
    }
}

/// The part of the bound that the rounding of f32 may take.
const ROUNDING: f32 = 1.0 / 32_768.0;

/// The scales that keep the bound, as magnitudes, and the bound itself.
pub(super) struct Limits {
    /// The largest error that counts; infinite if every error does.
    pub(super) error: f32,
    /// The smallest positive and the smallest negative scale: the end of the codes is no farther from the
    /// largest values than the bound.
    least: [f32; 2],
    /// A scale up to this one keeps the bound.
    most: f32,
    /// Whether a positive value has the largest magnitude.
    peak_is_positive: bool,
}

impl Limits {
    #[inline(always)]
    pub(super) fn of<K: Kernel>(scaled: &Scaled<K>, bits: usize, scales: Scales) -> Limits {
        let [positive, negative] = scaled.peaks();
        let peak_is_positive = positive == scaled.max;
        if scales == Scales::All {
            return Limits { error: f32::INFINITY, least: [0.0; 2], most: f32::INFINITY, peak_is_positive };
        }
        let most = scaled.max / f32::from(largest_code(bits)) * (1.0 - ROUNDING);
        let error = 0.5 * most;
        let CodeRange { smallest, largest } = code_range(bits);
        let (low, high) = (-f32::from(smallest), f32::from(largest));
        let at_least = |up: f32, down: f32| ((positive - error) / up).max((negative - error) / down);
        Limits { error, least: [at_least(high, low), at_least(low, high)], most, peak_is_positive }
    }

    /// `scale`, or the nearest scale that surely keeps the bound.
    #[inline(always)]
    fn nearest<K: Kernel>(&self, scaled: &Scaled<K>, scale: f32, range: CodeRange) -> f32 {
        let least = self.least[usize::from(scale < 0.0)];
        let magnitude = scale.abs();
        if magnitude < least {
            return least.copysign(scale);
        }
        if magnitude > self.most && scaled.error_max(scale, range) > self.error {
            return self.most.copysign(scale);
        }
        scale
    }
}

/// The scale of least squared error among the trials and their refits, for the scaled values.
#[inline(always)]
pub(super) fn best_scale<K: Kernel>(scaled: &Scaled<K>, bits: usize, limits: &Limits) -> Option<f32> {
    let range = code_range(bits);
    let trials = trials(bits);
    let lone_is_negative = bits == 8;
    let sign = if limits.peak_is_positive == lone_is_negative { -1.0 } else { 1.0 };
    let mut best = Fit { gain: 0.0, scale: 0.0 };
    let allowed = |scale| limits.nearest(scaled, scale, range);
    for trial in 0..trials.count {
        let inverse = sign * (trials.first + trials.step * f32::from(trial)) / scaled.max;
        best.take_better(scaled.sums(inverse, range), allowed);
        if trials.both_signs {
            best.take_better(scaled.sums(-inverse, range), allowed);
        }
    }
    for _ in 0..REFITS {
        if best.scale == 0.0 {
            return None;
        }
        best.take_better(scaled.sums(1.0 / best.scale, range), allowed);
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
    /// Takes the scale that `allowed` makes of the best one, if its gain is larger.
    #[inline(always)]
    fn take_better(&mut self, Sums { products, squares }: Sums, allowed: impl FnOnce(f32) -> f32) {
        // If all codes are 0 the gain is a NaN, which is not larger.
        let mut gain = products * products / squares;
        if gain > self.gain {
            let best = products / squares;
            let scale = allowed(best);
            if scale != best {
                gain = scale * (2.0 * products - scale * squares);
            }
            if gain > self.gain {
                *self = Fit { gain, scale };
            }
        }
    }
}
