//! The element types of ggml, with the elements and bytes of a block.
//!
//! Source: `ggml.h` (numbers) and `ggml-common.h` (blocks) of <https://github.com/ggml-org/ggml>. The values agree with
//! `GGML_QUANT_SIZES` of the Python package `gguf` 0.19, except for Q2_0, which it lacks, and Q8_1, where
//! `ggml-common.h` has 4 bytes less. ggml has withdrawn the missing numbers.

use crate::model::{Dtype, Shape};

/// An element type of ggml.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GgmlType {
    /// Its number in files.
    pub code: u32,
    /// Its name in ggml.
    pub name: &'static str,
    /// Elements of a block, all of one row.
    pub block_elements: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// The element type of this program: `OPAQUE` for blocks of more than one element.
    pub dtype: Dtype,
}

const fn row(code: u32, name: &'static str, block_elements: u64, block_bytes: u64, dtype: Dtype) -> GgmlType {
    GgmlType { code, name, block_elements, block_bytes, dtype }
}

/// All known types, by number.
pub static TYPES: [GgmlType; 35] = [
    row(0, "F32", 1, 4, Dtype::F32),
    row(1, "F16", 1, 2, Dtype::F16),
    row(2, "Q4_0", 32, 18, Dtype::Opaque),
    row(3, "Q4_1", 32, 20, Dtype::Opaque),
    row(6, "Q5_0", 32, 22, Dtype::Opaque),
    row(7, "Q5_1", 32, 24, Dtype::Opaque),
    row(8, "Q8_0", 32, 34, Dtype::Opaque),
    row(9, "Q8_1", 32, 36, Dtype::Opaque),
    row(10, "Q2_K", 256, 84, Dtype::Opaque),
    row(11, "Q3_K", 256, 110, Dtype::Opaque),
    row(12, "Q4_K", 256, 144, Dtype::Opaque),
    row(13, "Q5_K", 256, 176, Dtype::Opaque),
    row(14, "Q6_K", 256, 210, Dtype::Opaque),
    row(15, "Q8_K", 256, 292, Dtype::Opaque),
    row(16, "IQ2_XXS", 256, 66, Dtype::Opaque),
    row(17, "IQ2_XS", 256, 74, Dtype::Opaque),
    row(18, "IQ3_XXS", 256, 98, Dtype::Opaque),
    row(19, "IQ1_S", 256, 50, Dtype::Opaque),
    row(20, "IQ4_NL", 32, 18, Dtype::Opaque),
    row(21, "IQ3_S", 256, 110, Dtype::Opaque),
    row(22, "IQ2_S", 256, 82, Dtype::Opaque),
    row(23, "IQ4_XS", 256, 136, Dtype::Opaque),
    row(24, "I8", 1, 1, Dtype::I8),
    row(25, "I16", 1, 2, Dtype::I16),
    row(26, "I32", 1, 4, Dtype::I32),
    row(27, "I64", 1, 8, Dtype::I64),
    row(28, "F64", 1, 8, Dtype::F64),
    row(29, "IQ1_M", 256, 56, Dtype::Opaque),
    row(30, "BF16", 1, 2, Dtype::Bf16),
    row(34, "TQ1_0", 256, 54, Dtype::Opaque),
    row(35, "TQ2_0", 256, 66, Dtype::Opaque),
    row(39, "MXFP4", 32, 17, Dtype::Opaque),
    row(40, "NVFP4", 64, 36, Dtype::Opaque),
    row(41, "Q1_0", 128, 18, Dtype::Opaque),
    row(42, "Q2_0", 64, 18, Dtype::Opaque),
];

impl GgmlType {
    /// The type with this number in files.
    pub fn from_code(code: u32) -> Option<&'static GgmlType> {
        TYPES.iter().find(|known| known.code == code)
    }

    /// The stored shape of a tensor of `elements`. For blocks, the innermost dimension is the bytes of a row, as in the
    /// Python package `gguf`; otherwise the shape is unchanged. `None` if blocks do not divide a row.
    pub fn stored(&self, elements: &Shape) -> Option<Shape> {
        if self.dtype != Dtype::Opaque {
            return Some(elements.clone());
        }
        let (row, outer) = elements.dimensions().split_last()?;
        if row % self.block_elements != 0 {
            return None;
        }
        let row = (row / self.block_elements).checked_mul(self.block_bytes)?;
        let mut sizes = outer.to_vec();
        sizes.push(row);
        Shape::new(&sizes)
    }
}
