//! Floats of one type as another.

use half::{bf16, f16};

use crate::model::{Dtype, Error, Result};

/// Casts little-endian elements; both buffers hold the same number of them. Rounds to
/// nearest, ties to even; what is too large becomes infinite, as IEEE 754 says. `Invalid`
/// for types other than f64, f32, f16 and bf16.
pub fn cast(from: Dtype, to: Dtype, source: &[u8], target: &mut [u8]) -> Result<()> {
    let unknown = || Error::invalid(format!("a cast of {from} to {to}"));
    if source.len() as u64 / from.bytes() != target.len() as u64 / to.bytes() {
        return Err(Error::invalid("buffers of different numbers of elements"));
    }
    match from {
        Dtype::F64 => each(source, f64::from_le_bytes, |value| value, to, target),
        Dtype::F32 => each(source, f32::from_le_bytes, f64::from, to, target),
        Dtype::F16 => each(source, f16::from_le_bytes, f64::from, to, target),
        Dtype::Bf16 => each(source, bf16::from_le_bytes, f64::from, to, target),
        _ => None,
    }
    .ok_or_else(unknown)
}

// By way of f64, which holds every value of the others: one rounding only.
fn each<T: Copy, const N: usize>(
    source: &[u8],
    read: impl Fn([u8; N]) -> T,
    widen: impl Fn(T) -> f64,
    to: Dtype,
    target: &mut [u8],
) -> Option<()> {
    let values = source.as_chunks::<N>().0.iter().map(|bytes| widen(read(*bytes)));
    match to {
        Dtype::F64 => put(target, values.map(f64::to_le_bytes)),
        Dtype::F32 => put(target, values.map(|value| (value as f32).to_le_bytes())),
        Dtype::F16 => put(target, values.map(|value| f16::from_f64(value).to_le_bytes())),
        Dtype::Bf16 => put(target, values.map(|value| bf16::from_f64(value).to_le_bytes())),
        _ => return None,
    }
    Some(())
}

fn put<const N: usize>(target: &mut [u8], values: impl Iterator<Item = [u8; N]>) {
    for (to, from) in target.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *to = from;
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::cast;
    use crate::model::Dtype;

    #[test]
    fn every_half_goes_to_f32_and_back_unchanged() {
        for bits in 0..=u16::MAX {
            for (dtype, is_nan) in
                [(Dtype::F16, f16::from_bits(bits).is_nan()), (Dtype::Bf16, bf16::from_bits(bits).is_nan())]
            {
                let mut wide = [0; 4];
                let mut back = [0; 2];
                cast(dtype, Dtype::F32, &bits.to_le_bytes(), &mut wide).unwrap();
                cast(Dtype::F32, dtype, &wide, &mut back).unwrap();
                assert!(is_nan || u16::from_le_bytes(back) == bits, "{dtype} {bits:#06x}");
            }
        }
    }

    #[test]
    fn types_that_are_no_floats_are_refused() {
        assert!(cast(Dtype::I32, Dtype::F32, &[0; 4], &mut [0; 4]).is_err());
        assert!(cast(Dtype::F32, Dtype::F16, &[0; 8], &mut [0; 2]).is_err());
    }
}
