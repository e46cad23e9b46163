//! Measurements on samples of a tensor's bytes: their entropy, their size once packed, their size and error in
//! lower tiers.

use crate::codec;
use crate::codec::ladder::{self, Scratch};
use crate::model::{Dtype, Encoder, Tier};

/// The sums of a sample. Sums of samples add up.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Bytes of the sample.
    pub bytes: u64,
    /// Elements of the sample.
    pub elements: u64,
    /// Bits that an ideal coder of single bytes would take, with one table for each byte of an element.
    pub entropy_bits: f64,
    /// Bytes after packing; the bytes of the sample if packing saves nothing.
    pub packed: u64,
    /// The sum of the squares of the values.
    pub squares: f64,
    /// The sample after a move to each encoded tier; empty for types that are never quantized.
    pub moves: Vec<Moved>,
}

/// A sample after a move to a tier.
#[derive(Clone, Debug)]
pub(super) struct Moved {
    pub tier: Tier,
    /// Bytes of the payload.
    pub bytes: u64,
    /// The sum of the squared differences.
    pub error_squares: f64,
    /// The sum of the products of a value and its decoded one.
    pub products: f64,
    /// The sum of the squares of decoded values.
    pub squares: f64,
}

impl Measured {
    /// Measures a piece of a tensor, whole elements of at most a block.
    pub fn of(dtype: Dtype, raw: &[u8]) -> Measured {
        let width = usize::try_from(dtype.bytes()).unwrap_or(1).max(1);
        let mut packed = Vec::new();
        let is_packed = ladder::encode(dtype, raw, &mut packed, &mut Scratch::default()).unwrap_or(false);
        let values = values(dtype, raw);
        let moves = Tier::ENCODED.into_iter().filter_map(|tier| moved(tier, dtype, raw, values.as_ref()?));
        Measured {
            bytes: raw.len() as u64,
            elements: (raw.len() / width) as u64,
            entropy_bits: entropy_bits(width, raw),
            packed: if is_packed { packed.len() } else { raw.len() } as u64,
            squares: values.iter().flatten().map(|value| f64::from(*value).powi(2)).sum(),
            moves: moves.collect(),
        }
    }

    /// Adds another piece of the same tensor. Drops a tier that only one of the pieces has.
    pub fn add(&mut self, other: Measured) {
        if self.bytes == 0 {
            *self = other;
            return;
        }
        self.bytes += other.bytes;
        self.elements += other.elements;
        self.entropy_bits += other.entropy_bits;
        self.packed += other.packed;
        self.squares += other.squares;
        self.moves.retain_mut(|moved| match other.moves.iter().find(|found| found.tier == moved.tier) {
            Some(found) => {
                moved.bytes += found.bytes;
                moved.error_squares += found.error_squares;
                moved.products += found.products;
                moved.squares += found.squares;
                true
            }
            None => false,
        });
    }

    /// Bits of entropy of an element.
    pub fn entropy(&self) -> f64 {
        self.entropy_bits / self.elements.max(1) as f64
    }

    /// The root of the mean square of the values.
    pub fn rms(&self) -> f64 {
        (self.squares / self.elements.max(1) as f64).sqrt()
    }
}

/// The cosine between two vectors, from the sum of their products and those of their squares; 1 if one is 0.
pub(super) fn cosine(products: f64, one: f64, other: f64) -> f64 {
    let length = (one * other).sqrt();
    if length > 0.0 { (products / length).min(1.0) } else { 1.0 }
}

/// The values of floats; `None` for other types.
fn values(dtype: Dtype, raw: &[u8]) -> Option<Vec<f32>> {
    let pairs = || raw.chunks_exact(2).filter_map(|bytes| <[u8; 2]>::try_from(bytes).ok());
    match dtype {
        Dtype::F32 => {
            let words = raw.chunks_exact(4).filter_map(|bytes| <[u8; 4]>::try_from(bytes).ok());
            Some(words.map(f32::from_le_bytes).collect())
        }
        Dtype::F16 => Some(pairs().map(|bytes| half::f16::from_le_bytes(bytes).to_f32()).collect()),
        Dtype::Bf16 => Some(pairs().map(|bytes| half::bf16::from_le_bytes(bytes).to_f32()).collect()),
        _ => None,
    }
}

/// Moves a piece to a tier in memory; `None` if the piece would stay exact.
fn moved(tier: Tier, dtype: Dtype, raw: &[u8], values: &[f32]) -> Option<Moved> {
    let mut payload = Vec::new();
    codec::encode(tier, Encoder::Best, dtype, raw, &mut payload).ok()?.ok()?;
    let mut read = vec![0; raw.len()];
    codec::decode(tier, dtype, &payload, values.len(), &mut read).ok()?;
    let mut moved =
        Moved { tier, bytes: payload.len() as u64, error_squares: 0.0, products: 0.0, squares: 0.0 };
    for (value, read) in values.iter().zip(self::values(dtype, &read)?) {
        let (value, read) = (f64::from(*value), f64::from(read));
        moved.error_squares += (value - read).powi(2);
        moved.products += value * read;
        moved.squares += read * read;
    }
    Some(moved)
}

fn entropy_bits(width: usize, raw: &[u8]) -> f64 {
    let of_plane = |plane: usize| {
        let (mut counts, mut all) = ([0_u32; 256], 0_u32);
        for byte in raw.iter().skip(plane).step_by(width) {
            if let Some(count) = counts.get_mut(usize::from(*byte)) {
                *count += 1;
                all += 1;
            }
        }
        let bits = |count: &u32| f64::from(*count) * (f64::from(all) / f64::from(*count)).log2();
        counts.iter().filter(|count| **count > 0).map(bits).sum::<f64>()
    };
    (0..width).map(of_plane).sum()
}

#[cfg(test)]
mod tests {
    use super::{Measured, Moved, cosine};
    use crate::model::{Dtype, Tier};

    fn floats(count: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        (0..count).flat_map(|_| next().to_le_bytes()).collect()
    }

    #[test]
    fn constant_bytes_have_no_entropy_and_random_ones_eight_bits_each() {
        let constant = Measured::of(Dtype::F32, &[7; 4096]);
        assert_eq!((constant.entropy(), constant.elements), (0.0, 1024));
        assert!(constant.packed < 400, "{constant:?}");
        let raw: Vec<u8> = (0..65_536_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 16) as u8).collect();
        let random = Measured::of(Dtype::U8, &raw);
        assert!((random.entropy() - 8.0).abs() < 0.01 && random.moves.is_empty(), "{random:?}");
    }

    #[test]
    fn coarser_tiers_take_less_and_err_more() {
        let mut sum = Measured::default();
        for _ in 0..2 {
            sum.add(Measured::of(Dtype::F32, &floats(4096)));
        }
        assert_eq!((sum.bytes, sum.elements), (32 << 10, 8192));
        let [q8, q7, q5, q3] = [Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3]
            .map(|tier| sum.moves.iter().find(|moved| moved.tier == tier).unwrap());
        assert_eq!(q8.bytes, 8192 / 64 * 68);
        let cosine = |moved: &Moved| cosine(moved.products, sum.squares, moved.squares);
        for (finer, coarser) in [(q8, q7), (q7, q5), (q5, q3)] {
            assert!(finer.bytes > coarser.bytes && finer.error_squares < coarser.error_squares);
            assert!(cosine(finer) > cosine(coarser));
        }
        assert!(cosine(q8) > 0.9999 && cosine(q3) > 0.9);
    }

    #[test]
    fn values_that_cannot_be_quantized_have_no_lower_tier() {
        let raw: Vec<u8> = std::iter::repeat_n(f32::NAN.to_le_bytes(), 64).flatten().collect();
        assert!(Measured::of(Dtype::F32, &raw).moves.is_empty());
        assert_eq!(Measured::of(Dtype::F32, &[]).entropy(), 0.0);
    }
}
