//! Single elements of quantizable types as numbers.

use half::{bf16, f16};

use crate::model::Dtype;

/// The value of an element. `None` for other types, and for bytes of another length.
pub fn value(dtype: Dtype, element: &[u8]) -> Option<f32> {
    match (dtype, element) {
        (Dtype::F32, [a, b, c, d]) => Some(f32::from_le_bytes([*a, *b, *c, *d])),
        (Dtype::F16, [a, b]) => Some(f16::from_le_bytes([*a, *b]).to_f32()),
        (Dtype::Bf16, [a, b]) => Some(bf16::from_le_bytes([*a, *b]).to_f32()),
        _ => None,
    }
}

/// Converts numbers to elements, ties to even. Other types get f32.
pub fn put_values(dtype: Dtype, values: &[f32], out: &mut [u8]) {
    for (value, element) in values.iter().zip(out.chunks_exact_mut(dtype.bytes() as usize)) {
        match dtype {
            Dtype::F16 => element.copy_from_slice(&f16::from_f32(*value).to_le_bytes()),
            Dtype::Bf16 => element.copy_from_slice(&bf16::from_f32(*value).to_le_bytes()),
            _ => element.copy_from_slice(&value.to_le_bytes()),
        }
    }
}
