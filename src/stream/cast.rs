//! Casts floats from one type to another, and decodes those of ggml's quantized types.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::codec::ggml;
use crate::model::{Dtype, Error, Result};

/// Elements to cast through the buffer at a time: whole blocks of every type.
const STEP: usize = 1024;

/// Whether elements of a type can be cast to f32, f16 and bf16. True for floats of whole bytes, and for the
/// quantized types of ggml that are decoded.
pub fn is_castable(dtype: Dtype) -> bool {
    use Dtype::{Bf16, F8E4M3, F8E5M2, F8E8M0, F16, F32, F64};
    matches!(dtype, F64 | F32 | F16 | Bf16 | F8E4M3 | F8E5M2 | F8E8M0) || ggml::TYPES.contains(&dtype)
}

/// Casts little-endian elements. Both buffers must hold the same number of elements. Rounds to nearest,
/// ties to even; too large values become infinite, as in IEEE 754. Fails with `Invalid` for types that
/// are not [`is_castable`], and for targets other than f32, f16 and bf16.
pub fn cast(from: Dtype, to: Dtype, source: &[u8], target: &mut [u8]) -> Result<()> {
    if from.bytes_of(target.len() as u64 / to.bytes()) != Some(source.len() as u64) {
        return Err(Error::invalid("buffers of different numbers of elements"));
    }
    if !is_castable(from) || !matches!(to, Dtype::F32 | Dtype::F16 | Dtype::Bf16) {
        return Err(Error::invalid(format!("a cast of {from} to {to}")));
    }
    if from == to {
        target.copy_from_slice(source);
        return Ok(());
    }
    if from.is_ggml() {
        return dequantize(from, to, source, target);
    }
    let mut wide = [0.0_f32; STEP];
    let parts =
        source.chunks(STEP * from.bytes() as usize).zip(target.chunks_mut(STEP * to.bytes() as usize));
    for (source, target) in parts {
        let elements = source.len() / from.bytes() as usize;
        if from == Dtype::F64 {
            // Round only once.
            from_f64(to, source, target);
            continue;
        }
        // f32 represents every value of the narrower types.
        let wide = &mut wide[..elements];
        widen(from, source, wide);
        narrow(to, wide, target);
    }
    Ok(())
}

fn dequantize(from: Dtype, to: Dtype, source: &[u8], target: &mut [u8]) -> Result<()> {
    if to == Dtype::F32 {
        return ggml::dequantize(from, source, target);
    }
    let (each, bytes) = from.block();
    let step = STEP / each as usize * bytes as usize;
    let mut wide = [0; STEP * 4];
    for (source, target) in source.chunks(step).zip(target.chunks_mut(STEP * to.bytes() as usize)) {
        let wide = &mut wide[..target.len() / to.bytes() as usize * 4];
        ggml::dequantize(from, source, wide)?;
        cast(Dtype::F32, to, wide, target)?;
    }
    Ok(())
}

fn widen(from: Dtype, source: &[u8], wide: &mut [f32]) {
    let pairs = || source.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
    match from {
        Dtype::F16 => {
            let mut halves = [f16::ZERO; STEP];
            let halves = &mut halves[..wide.len()];
            halves.iter_mut().zip(pairs()).for_each(|(half, bits)| *half = f16::from_bits(bits));
            halves.convert_to_f32_slice(wide);
        }
        Dtype::Bf16 => wide
            .iter_mut()
            .zip(pairs())
            .for_each(|(wide, bits)| *wide = f32::from_bits(u32::from(bits) << 16)),
        Dtype::F32 => {
            let values = source.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            wide.iter_mut().zip(values).for_each(|(wide, value)| *wide = value);
        }
        _ => wide.iter_mut().zip(source).for_each(|(wide, byte)| *wide = of_eight_bits(from, *byte)),
    }
}

fn narrow(to: Dtype, wide: &[f32], target: &mut [u8]) {
    match to {
        Dtype::F16 => {
            let mut halves = [f16::ZERO; STEP];
            let halves = &mut halves[..wide.len()];
            halves.convert_from_f32_slice(wide);
            put(target, halves.iter().map(|half| half.to_le_bytes()));
        }
        Dtype::Bf16 => put(target, wide.iter().map(|value| bf16::from_f32(*value).to_le_bytes())),
        _ => put(target, wide.iter().map(|value| value.to_le_bytes())),
    }
}

fn from_f64(to: Dtype, source: &[u8], target: &mut [u8]) {
    let values = source.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
    match to {
        Dtype::F16 => put(target, values.map(|value| f16::from_f32(to_odd(value)).to_le_bytes())),
        Dtype::Bf16 => put(target, values.map(|value| bf16::from_f32(to_odd(value)).to_le_bytes())),
        _ => put(target, values.map(|value| (value as f32).to_le_bytes())),
    }
}

/// Rounds to odd: a value that f32 cannot represent becomes the neighbour whose last bit is 1. Rounding
/// that to a narrower type gives the same result as rounding the value itself. Source: Boldo, Melquiond,
/// "When double rounding is odd".
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if near.is_nan() || f64::from(near) == value {
        return near;
    }
    let inwards = f32::from_bits(near.to_bits() - u32::from(f64::from(near).abs() > value.abs()));
    f32::from_bits(inwards.to_bits() | 1)
}

/// The value of an 8-bit float. Sources: the OCP 8-bit floating point specification; for `F8E8M0`, a
/// power of two, the OCP microscaling formats specification.
fn of_eight_bits(dtype: Dtype, byte: u8) -> f32 {
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    match dtype {
        // The upper byte of an f16.
        Dtype::F8E5M2 => f16::from_bits(u16::from(byte) << 8).to_f32(),
        Dtype::F8E8M0 if byte == 0xff => f32::NAN,
        Dtype::F8E8M0 => f32::from_bits(if byte == 0 { 1 << 22 } else { u32::from(byte) << 23 }),
        // Four exponent bits with bias 7, and no infinities.
        _ if byte & 0x7f == 0x7f => f32::NAN.copysign(sign),
        _ => {
            let (exponent, mantissa) = (i32::from(byte >> 3 & 0xf), f32::from(byte & 7));
            match exponent {
                0 => sign * mantissa * 2_f32.powi(-9),
                _ => sign * (1.0 + mantissa / 8.0) * 2_f32.powi(exponent - 7),
            }
        }
    }
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
    fn eight_bit_floats_have_the_values_of_the_specification() {
        let value = |dtype, byte: u8| {
            let mut wide = [0; 4];
            cast(dtype, Dtype::F32, &[byte], &mut wide).unwrap();
            f32::from_le_bytes(wide)
        };
        for (byte, expected) in [
            (0x7e, 448.0),
            (0xfe, -448.0),
            (0x08, 0.015625),
            (0x01, 0.001953125),
            (0x07, 0.013671875),
            (0x38, 1.0),
        ] {
            assert_eq!(value(Dtype::F8E4M3, byte), expected, "{byte:#x}");
        }
        for (byte, expected) in
            [(0x7b, 57344.0), (0x04, 1.0 / 16384.0), (0x01, 1.0 / 65536.0), (0xfc, f32::NEG_INFINITY)]
        {
            assert_eq!(value(Dtype::F8E5M2, byte), expected, "{byte:#x}");
        }
        for (byte, exponent) in [(0, -127), (1, -126), (127, 0), (254, 127)] {
            assert_eq!(f64::from(value(Dtype::F8E8M0, byte)), 2_f64.powi(exponent), "{byte:#x}");
        }
        assert!(
            [(Dtype::F8E4M3, 0x7f), (Dtype::F8E4M3, 0xff), (Dtype::F8E5M2, 0x7d), (Dtype::F8E8M0, 0xff)]
                .iter()
                .all(|(dtype, byte)| value(*dtype, *byte).is_nan())
        );
    }

    #[test]
    fn longer_buffers_are_cast_element_by_element() {
        let values: Vec<f64> = (0..5000).map(|at| f64::from(at) * 1.000_1 - 2500.0).collect();
        let source: Vec<u8> = values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
        let mut target = vec![0; 10_000];
        cast(Dtype::F32, Dtype::F16, &source, &mut target).unwrap();
        for (value, bytes) in values.iter().zip(target.as_chunks::<2>().0) {
            assert_eq!(f16::from_le_bytes(*bytes), f16::from_f64(f64::from(*value as f32)));
        }
        let source: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        cast(Dtype::F64, Dtype::Bf16, &source, &mut target).unwrap();
        for (value, bytes) in values.iter().zip(target.as_chunks::<2>().0) {
            assert_eq!(bf16::from_le_bytes(*bytes), bf16::from_f64(*value));
        }
    }

    #[test]
    fn wide_values_are_rounded_once() {
        // Just above, at and just below the midpoint of two halves. f32 cannot represent the first and the last.
        let (one, step) = (1.0_f64, 2_f64.powi(-10));
        for (value, expected) in [
            (one + step / 2.0 + 2_f64.powi(-40), one + step),
            (one + step / 2.0, one),
            (one + 3.0 * step / 2.0 - 2_f64.powi(-40), one + step),
            (65_519.999_999_999, 65504.0),
            (65520.0, f64::INFINITY),
            (1e300, f64::INFINITY),
            (-1e-300, -0.0),
        ] {
            let mut half = [0; 2];
            cast(Dtype::F64, Dtype::F16, &value.to_le_bytes(), &mut half).unwrap();
            assert_eq!(f16::from_le_bytes(half).to_f64(), expected, "{value}");
        }
    }

    #[test]
    fn casts_of_types_that_are_no_floats_are_refused() {
        assert!(cast(Dtype::I32, Dtype::F32, &[0; 4], &mut [0; 4]).is_err());
        assert!(cast(Dtype::F32, Dtype::F64, &[0; 4], &mut [0; 8]).is_err());
        assert!(cast(Dtype::F32, Dtype::F16, &[0; 8], &mut [0; 2]).is_err());
    }
}
