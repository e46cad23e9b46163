//! Encodes elements to payloads: the group loop, `absmax`, the error of a group's codes, and the largest
//! magnitude of values.

use super::arch::{Group, InstructionSet, Job, Kernel, LANES};
use super::best::{self, Scales};
use super::decode::without_codes;
use super::element::Element;
use super::payload::{CodeRange, codes_len, largest_code, payload_len};
use super::stream::pack_bytes;
use super::two_level;
use crate::model::{Dtype, Encoder, Encoding, Error, GROUP_LEN, Result, Tier};

/// The error of an encoded block, measured between its elements and the decoded ones.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Encoded {
    /// The largest magnitude of its groups' scales.
    pub scale: f32,
    /// The largest difference of an element.
    pub error_max: f32,
    /// The sum of the squared differences. The RMS error is the root of this sum divided by the
    /// number of elements.
    pub error_square_sum: f64,
}

/// The reason that a block must stay exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotEncodable {
    /// An element is a NaN or infinite, or would decode to infinity.
    NotFinite,
    /// The values of a group are so small that its scale would be subnormal.
    SubnormalScale,
}

impl InstructionSet {
    /// [`max_abs`](super::max_abs) with this set.
    pub fn max_abs(self, values: &[f32]) -> f32 {
        self.run(MaxAbs { values })
    }

    /// [`encode`](super::encode) with this set.
    pub fn encode(
        self,
        tier: Tier,
        encoder: Encoder,
        dtype: Dtype,
        raw: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Result<Encoded, NotEncodable>> {
        let element = Element::of(dtype)?;
        if !raw.len().is_multiple_of(element.len()) {
            return Err(Error::invalid(format!(
                "{} bytes are not a whole number of {dtype} elements",
                raw.len()
            )));
        }
        let bits = tier.code_bits().map(usize::from).ok_or_else(|| without_codes(tier))?;
        let len = payload_len(tier, raw.len() / element.len()).ok_or_else(|| without_codes(tier))?;
        let scales = match encoder {
            Encoder::Best => Some(Scales::Bounded),
            Encoder::Least => Some(Scales::All),
            Encoder::Absmax => None,
        };
        let before = out.len();
        out.reserve(len + GROUP_LEN);
        let encoded = match tier.encoding() {
            Encoding::TwoLevel => {
                let scales = scales.unwrap_or(Scales::Bounded);
                self.run(two_level::Encode { scales, element, raw, out })
            }
            _ => self.run(Encode { bits, scales, element, raw, out }),
        };
        if encoded.is_err() {
            out.truncate(before);
        }
        Ok(encoded)
    }
}

/// Encodes a block in groups of one scale.
struct Encode<'a> {
    bits: usize,
    /// The scales that may replace that of `absmax`.
    scales: Option<Scales>,
    element: Element,
    raw: &'a [u8],
    out: &'a mut Vec<u8>,
}

impl Job for Encode<'_> {
    type Output = Result<Encoded, NotEncodable>;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> Result<Encoded, NotEncodable> {
        let mut total = Encoded::default();
        for raw in self.raw.chunks(GROUP_LEN * self.element.len()) {
            let source = Source::load(kernel, self.element, raw)?;
            let mut chosen = source.absmax(self.bits)?;
            if let Some(scales) = self.scales
                && chosen.scale != 0.0
            {
                chosen = best::better(&source, self.bits, scales, chosen);
            }
            if !chosen.loss.max.is_finite() {
                return Err(NotEncodable::NotFinite);
            }
            total.add(chosen.scale, chosen.loss);
            self.out.extend_from_slice(&chosen.scale.to_le_bytes());
            append_codes(kernel, self.bits, chosen.codes, raw.len() / self.element.len(), self.out);
        }
        Ok(total)
    }
}

impl Encoded {
    /// Adds the error of a group.
    #[inline(always)]
    pub(super) fn add(&mut self, scale: f32, loss: Loss) {
        self.scale = self.scale.max(scale.abs());
        self.error_max = self.error_max.max(loss.max as f32);
        self.error_square_sum += loss.square_sum;
    }
}

/// The difference between a group's elements and the decoded ones.
#[derive(Clone, Copy)]
pub(super) struct Loss {
    /// The largest difference; infinite if a value decodes to infinity.
    pub(super) max: f64,
    /// The sum of the squared differences.
    pub(super) square_sum: f64,
}

/// A group to encode. Zeros fill a short group; they add no error.
pub(super) struct Source<K: Kernel> {
    pub(super) kernel: K,
    pub(super) element: Element,
    pub(super) values: Group<K>,
    /// The largest magnitude of the values.
    pub(super) max: f32,
}

/// One way to encode a group.
pub(super) struct Candidate<K: Kernel> {
    pub(super) scale: f32,
    /// Integers in the range of codes.
    pub(super) codes: Group<K>,
    pub(super) loss: Loss,
}

impl<K: Kernel> Source<K> {
    /// The values of `raw`, at most a group of elements.
    #[inline(always)]
    pub(super) fn load(kernel: K, element: Element, raw: &[u8]) -> Result<Source<K>, NotEncodable> {
        let values = element.load(kernel, raw);
        let max = magnitude(kernel, values);
        if !max.is_finite() {
            return Err(NotEncodable::NotFinite);
        }
        Ok(Source { kernel, element, values, max })
    }

    /// The scale that makes the largest magnitude the largest code.
    #[inline(always)]
    pub(super) fn absmax_scale(&self, bits: usize) -> Result<f32, NotEncodable> {
        let scale = self.max / f32::from(largest_code(bits));
        if self.max != 0.0 && scale < f32::MIN_POSITIVE {
            return Err(NotEncodable::SubnormalScale);
        }
        Ok(scale)
    }

    /// The group as `absmax` encodes it.
    #[inline(always)]
    pub(super) fn absmax(&self, bits: usize) -> Result<Candidate<K>, NotEncodable> {
        let scale = self.absmax_scale(bits)?;
        if scale == 0.0 {
            let loss = Loss { max: 0.0, square_sum: 0.0 };
            return Ok(Candidate { scale, codes: [self.kernel.splat(0.0); 4], loss });
        }
        let largest = largest_code(bits);
        Ok(self.candidate(scale, CodeRange { smallest: -largest, largest }))
    }

    /// Encodes the group with the nearest codes at `scale`, within `range`.
    #[inline(always)]
    pub(super) fn candidate(&self, scale: f32, range: CodeRange) -> Candidate<K> {
        let kernel = self.kernel;
        let scales = kernel.splat(scale);
        let mut codes = self.values;
        for lanes in &mut codes {
            *lanes = nearest_code(kernel, kernel.div(*lanes, scales), range);
        }
        let loss = self.loss(kernel.mul_group(codes, scales));
        Candidate { scale, codes, loss }
    }

    /// The error if `products` are the decoded products of codes and scales.
    #[inline(always)]
    pub(super) fn loss(&self, products: Group<K>) -> Loss {
        let read = self.element.round(self.kernel, products);
        let (max, square_sum) = self.kernel.difference(self.values, read);
        Loss { max, square_sum }
    }
}

/// The integers nearest to `quotients`, ties to even, within `range`.
#[inline(always)]
pub(super) fn nearest_code<K: Kernel>(kernel: K, quotients: K::Lanes, range: CodeRange) -> K::Lanes {
    // Adding 3 * 2^22 to a small number rounds away its fraction.
    let whole = kernel.splat(12_582_912.0);
    let low = kernel.splat(f32::from(range.smallest));
    let high = kernel.splat(f32::from(range.largest));
    let within = kernel.min(kernel.max(quotients, low), high);
    kernel.sub(kernel.add(within, whole), whole)
}

/// Appends the stream of the first `elements` codes.
#[inline(always)]
pub(super) fn append_codes<K: Kernel>(
    kernel: K,
    bits: usize,
    codes: Group<K>,
    elements: usize,
    out: &mut Vec<u8>,
) {
    let mut stream = [0; GROUP_LEN];
    let bytes = kernel.bytes_of(codes);
    match bits {
        8 => pack_bytes::<K, 8>(kernel, bytes, &mut stream),
        7 => pack_bytes::<K, 7>(kernel, bytes, &mut stream[..codes_len(7)]),
        5 => pack_bytes::<K, 5>(kernel, bytes, &mut stream[..codes_len(5)]),
        _ => pack_bytes::<K, 3>(kernel, bytes, &mut stream[..codes_len(3)]),
    }
    let used = (elements * bits).div_ceil(8);
    if let (Some(last), bits @ 1..) = (stream[..used].last_mut(), elements * bits % 8) {
        // The padding's codes are not part of a short group.
        *last &= (1 << bits) - 1;
    }
    // A length known at compile time gives one store instead of a call.
    let end = out.len() + used;
    out.extend_from_slice(&stream);
    out.truncate(end);
}

struct MaxAbs<'a> {
    values: &'a [f32],
}

impl Job for MaxAbs<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> f32 {
        let load = |values: &[f32; LANES]| {
            let mut bytes = [0; 4 * LANES];
            for (element, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *element = value.to_le_bytes();
            }
            kernel.load_f32(&bytes)
        };
        let (vectors, rest) = self.values.as_chunks::<LANES>();
        let (fours, vectors) = vectors.as_chunks::<4>();
        let mut largest = [kernel.splat(0.0); 4];
        for four in fours {
            for (largest, values) in largest.iter_mut().zip(four) {
                *largest = kernel.larger_magnitude(*largest, load(values));
            }
        }
        for values in vectors {
            largest[0] = kernel.larger_magnitude(largest[0], load(values));
        }
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        largest[0] = kernel.larger_magnitude(largest[0], load(&last));
        magnitude(kernel, largest)
    }
}

/// The largest magnitude of a group; a NaN if a value is a NaN.
#[inline(always)]
fn magnitude<K: Kernel>(kernel: K, group: Group<K>) -> f32 {
    let [a, b, c, d] = group;
    let ab = kernel.larger_magnitude(a, b);
    let cd = kernel.larger_magnitude(c, d);
    kernel.largest(kernel.larger_magnitude(ab, cd))
}
