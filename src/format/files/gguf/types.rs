//! The element types of ggml.
//!
//! Source: `ggml.h` (numbers) and `ggml-common.h` (blocks) of <https://github.com/ggml-org/ggml>. The values agree with
//! `GGML_QUANT_SIZES` of the Python package `gguf` 0.19, except for Q2_0, which it lacks, and Q8_1, where
//! `ggml-common.h` has 4 bytes less. ggml has withdrawn the missing numbers.

use crate::model::{Dtype, GGML_CODE, Shape};

/// The numbers of the types that are not quantized.
const PLAIN: [(u32, Dtype); 8] = [
    (0, Dtype::F32),
    (1, Dtype::F16),
    (24, Dtype::I8),
    (25, Dtype::I16),
    (26, Dtype::I32),
    (27, Dtype::I64),
    (28, Dtype::F64),
    (30, Dtype::Bf16),
];

/// The type with a number in files.
pub fn type_of_code(code: u32) -> Option<Dtype> {
    let plain = PLAIN.iter().find(|(known, _)| *known == code).map(|(_, dtype)| *dtype);
    let quantized = || Dtype::from_code(u8::try_from(code).ok()?.checked_add(GGML_CODE)?);
    plain.or_else(quantized)
}

/// The number of a type in files, if ggml has it.
pub fn code_of_type(dtype: Dtype) -> Option<u32> {
    let plain = PLAIN.iter().find(|(_, known)| *known == dtype).map(|(code, _)| *code);
    plain.or_else(|| Some(u32::from(dtype.code().checked_sub(GGML_CODE)?)))
}

/// Bytes of a tensor. `None` if its rows are not whole blocks.
pub fn bytes_of(dtype: Dtype, shape: &Shape) -> Option<u64> {
    let (each, _) = dtype.block();
    let row = shape.dimensions().last().copied().unwrap_or(1);
    dtype.bytes_of(shape.elements()).filter(|_| row.is_multiple_of(each))
}
