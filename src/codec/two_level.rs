//! Encodes groups with two scales, and a flag for each value that selects one.
//!
//! Only pairs of scales at which no value errs by more than a sixth of the largest magnitude count, unless all do
//! ([`Scales`]). That is the bound of 3 bits with one scale, so `absmax` always counts.

use super::arch::{Group, Job, Kernel};
use super::best::{Scaled, Scales, best_scale, error_limit};
use super::element::Element;
use super::encode::{Encoded, Loss, NotEncodable, Source, append_codes, nearest_code};
use super::payload::code_range;
use crate::model::GROUP_LEN;

const BITS: usize = 3;

/// Encodes a block in groups of two scales.
pub(super) struct Encode<'a> {
    pub(super) scales: Scales,
    pub(super) element: Element,
    pub(super) raw: &'a [u8],
    pub(super) out: &'a mut Vec<u8>,
}

impl Job for Encode<'_> {
    type Output = Result<Encoded, NotEncodable>;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> Result<Encoded, NotEncodable> {
        let mut total = Encoded::default();
        for raw in self.raw.chunks(GROUP_LEN * self.element.len()) {
            let source = Source::load(kernel, self.element, raw)?;
            let chosen = choose(&source, self.scales)?;
            if !chosen.loss.max.is_finite() {
                return Err(NotEncodable::NotFinite);
            }
            total.add(chosen.scales[0], chosen.loss);
            total.add(chosen.scales[1], Loss { max: 0.0, square_sum: 0.0 });
            let elements = raw.len() / self.element.len();
            self.out.extend_from_slice(&chosen.scales[0].to_le_bytes());
            self.out.extend_from_slice(&chosen.scales[1].to_le_bytes());
            self.out.extend_from_slice(&chosen.flags.to_le_bytes()[..elements.div_ceil(8)]);
            append_codes(kernel, BITS, chosen.codes, elements, self.out);
        }
        Ok(total)
    }
}

/// One way to encode a group.
struct Candidate<K: Kernel> {
    scales: [f32; 2],
    /// Bit i is set where value i has the secondary scale.
    flags: u64,
    codes: Group<K>,
    loss: Loss,
}

/// Pairs of scales to try: the largest magnitude divided by the first number is the
/// secondary scale, which times the second number is the primary one. They were chosen one
/// after the other from a grid of 108, each for the largest gain on normal, Laplace and
/// Student values. With scales of opposite signs, the code without a counterpart serves
/// both sides.
const TRIALS: [(f32, f32); 12] = [
    (3.6, -0.35),
    (-4.0, -0.35),
    (4.0, 0.35),
    (-3.0, -0.35),
    (-4.0, 0.25),
    (-4.0, 0.45),
    (3.6, -0.5),
    (3.6, 0.15),
    (-4.0, -0.5),
    (3.0, -0.35),
    (4.0, 0.65),
    (-4.0, 0.65),
];

/// Number of rounds in which a trial assigns its values and refits its two scales.
const TRIAL_REFITS: u8 = 2;

/// Number of further rounds for the best trial.
const LAST_REFITS: u8 = 5;

/// The best of the fits from all pairs and of the encodings with one scale.
#[inline(always)]
fn choose<K: Kernel>(source: &Source<K>, scales: Scales) -> Result<Candidate<K>, NotEncodable> {
    let absmax = source.absmax(BITS)?;
    let mut best = Candidate { scales: [absmax.scale; 2], flags: 0, codes: absmax.codes, loss: absmax.loss };
    if absmax.scale == 0.0 {
        return Ok(best);
    }
    let scaled = Scaled::of(source);
    let Some(single) = best_scale(&scaled, BITS, scales) else {
        return Ok(best);
    };
    let limit = error_limit(scaled.max, BITS, scales);
    let mut pair = Fit { error: f32::INFINITY, limit, scales: [single; 2] };
    for (divisor, part) in TRIALS {
        let secondary = scaled.max / divisor;
        pair.take_better(&scaled, [part * secondary, secondary], TRIAL_REFITS);
    }
    pair.take_better(&scaled, pair.scales, LAST_REFITS);
    for scales in [[single; 2], pair.scales] {
        if let [Some(primary), Some(secondary)] = scales.map(|scale| scaled.unscale(scale)) {
            let found = candidate(source, [primary, secondary]);
            if found.loss.square_sum < best.loss.square_sum {
                best = found;
            }
        }
    }
    Ok(best)
}

/// Encodes the group with the nearest scale and code for each value.
#[inline(always)]
fn candidate<K: Kernel>(source: &Source<K>, scales: [f32; 2]) -> Candidate<K> {
    let kernel = source.kernel;
    let mut codes = source.values;
    let mut products = source.values;
    let mut flags = 0;
    for (i, lanes) in source.values.into_iter().enumerate() {
        let first = Nearest::at(kernel, lanes, kernel.div(lanes, kernel.splat(scales[0])), scales[0]);
        let second = Nearest::at(kernel, lanes, kernel.div(lanes, kernel.splat(scales[1])), scales[1]);
        let mask = kernel.less(second.distance, first.distance);
        flags |= u64::from(mask) << (16 * i);
        codes[i] = kernel.select(mask, second.codes, first.codes);
        products[i] = kernel.select(mask, second.products, first.products);
    }
    Candidate { scales, flags, codes, loss: source.loss(products) }
}

/// The codes nearest to values at one scale.
struct Nearest<K: Kernel> {
    codes: K::Lanes,
    products: K::Lanes,
    /// The absolute differences.
    distance: K::Lanes,
}

impl<K: Kernel> Nearest<K> {
    #[inline(always)]
    fn at(kernel: K, values: K::Lanes, quotients: K::Lanes, scale: f32) -> Nearest<K> {
        let codes = nearest_code(kernel, quotients, code_range(BITS));
        let products = kernel.mul(codes, kernel.splat(scale));
        let difference = kernel.sub(values, products);
        Nearest { codes, products, distance: kernel.larger_magnitude(difference, difference) }
    }
}

/// The pair of scales of the least error so far.
struct Fit {
    error: f32,
    /// The largest error of a value that counts.
    limit: f32,
    scales: [f32; 2],
}

impl Fit {
    /// Assigns values to the nearer of `scales` and refits these, several times.
    #[inline(always)]
    fn take_better<K: Kernel>(&mut self, scaled: &Scaled<K>, scales: [f32; 2], refits: u8) {
        let mut scales = scales;
        for _ in 0..refits {
            let Refit { error, fails, refitted } = refit(scaled, scales, self.limit);
            if error < self.error && !fails {
                (self.error, self.scales) = (error, scales);
            }
            scales = refitted;
        }
    }
}

/// A group with each value at the nearer scale.
struct Refit {
    /// The squared error.
    error: f32,
    /// Whether a value errs by more than the limit.
    fails: bool,
    /// The best scales for the resulting codes: `sum(x c) / sum(c c)` each.
    refitted: [f32; 2],
}

#[inline(always)]
fn refit<K: Kernel>(scaled: &Scaled<K>, scales: [f32; 2], limit: f32) -> Refit {
    let kernel = scaled.kernel;
    let zero = kernel.splat(0.0);
    let inverses = [kernel.splat(1.0 / scales[0]), kernel.splat(1.0 / scales[1])];
    let (mut errors, mut largest) = (zero, zero);
    let (mut products, mut squares) = ([zero; 2], [zero; 2]);
    for lanes in scaled.values {
        let first = Nearest::at(kernel, lanes, kernel.mul(lanes, inverses[0]), scales[0]);
        let second = Nearest::at(kernel, lanes, kernel.mul(lanes, inverses[1]), scales[1]);
        let mask = kernel.less(second.distance, first.distance);
        let distance = kernel.select(mask, second.distance, first.distance);
        errors = kernel.add(errors, kernel.mul(distance, distance));
        largest = kernel.max(distance, largest);
        let codes = [kernel.select(mask, zero, first.codes), kernel.select(mask, second.codes, zero)];
        for (i, codes) in codes.into_iter().enumerate() {
            products[i] = kernel.add(products[i], kernel.mul(lanes, codes));
            squares[i] = kernel.add(squares[i], kernel.mul(codes, codes));
        }
    }
    let mut refitted = scales;
    for (i, scale) in refitted.iter_mut().enumerate() {
        let square = kernel.sum(squares[i]);
        let product = kernel.sum(products[i]);
        if square > 0.0 && product != 0.0 {
            *scale = product / square;
        }
    }
    let fails = kernel.less(kernel.splat(limit), largest) != 0;
    Refit { error: kernel.sum(errors), fails, refitted }
}
