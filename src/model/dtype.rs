//! Element types and their numbers on disk.

use std::fmt;

macro_rules! dtypes {
    ($( $variant:ident = $code:literal, $elements:literal in $bytes:literal, $name:literal, $safetensors:expr; )*) => {
        /// The type of a tensor's elements. Types of ggml store blocks of several elements.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(non_camel_case_types, reason = "the names of ggml")]
        pub enum Dtype {
            $(
                #[doc = concat!("`", $name, "`, number ", $code, " on disk.")]
                $variant,
            )*
        }

        impl Dtype {
            /// Every element type, in the order of the numbers on disk.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant),*];

            /// The number of the type on disk.
            pub fn code(self) -> u8 {
                match self { $(Dtype::$variant => $code),* }
            }

            /// The element type with a number on disk.
            pub fn from_code(code: u8) -> Option<Dtype> {
                match code { $($code => Some(Dtype::$variant),)* _ => None }
            }

            /// The elements of a block, and its bytes. A block has one element, but for `F4` and for
            /// ggml's quantized types.
            pub const fn block(self) -> (u64, u64) {
                match self { $(Dtype::$variant => ($elements, $bytes)),* }
            }

            /// The name used in attributes. That of a quantized type is ggml's, in lower case.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name),* }
            }

            /// The name in a safetensors header, where that format has the type.
            pub fn safetensors_name(self) -> Option<&'static str> {
                match self { $(Dtype::$variant => $safetensors),* }
            }
        }
    };
}

dtypes! {
    F32 = 0, 1 in 4, "f32", Some("F32");
    F16 = 1, 1 in 2, "f16", Some("F16");
    Bf16 = 2, 1 in 2, "bf16", Some("BF16");
    I8 = 3, 1 in 1, "i8", Some("I8");
    U8 = 4, 1 in 1, "u8", Some("U8");
    F64 = 5, 1 in 8, "f64", Some("F64");
    I16 = 6, 1 in 2, "i16", Some("I16");
    I32 = 7, 1 in 4, "i32", Some("I32");
    I64 = 8, 1 in 8, "i64", Some("I64");
    U16 = 9, 1 in 2, "u16", Some("U16");
    U32 = 10, 1 in 4, "u32", Some("U32");
    U64 = 11, 1 in 8, "u64", Some("U64");
    Bool = 12, 1 in 1, "bool", Some("BOOL");
    F8E4M3 = 13, 1 in 1, "f8_e4m3", Some("F8_E4M3");
    F8E5M2 = 14, 1 in 1, "f8_e5m2", Some("F8_E5M2");
    F8E8M0 = 15, 1 in 1, "f8_e8m0", Some("F8_E8M0");
    F4 = 16, 2 in 1, "f4", Some("F4");
    C64 = 17, 1 in 8, "c64", Some("C64");
    Q4_0 = 66, 32 in 18, "q4_0", None;
    Q4_1 = 67, 32 in 20, "q4_1", None;
    Q5_0 = 70, 32 in 22, "q5_0", None;
    Q5_1 = 71, 32 in 24, "q5_1", None;
    Q8_0 = 72, 32 in 34, "q8_0", None;
    Q8_1 = 73, 32 in 36, "q8_1", None;
    Q2_K = 74, 256 in 84, "q2_k", None;
    Q3_K = 75, 256 in 110, "q3_k", None;
    Q4_K = 76, 256 in 144, "q4_k", None;
    Q5_K = 77, 256 in 176, "q5_k", None;
    Q6_K = 78, 256 in 210, "q6_k", None;
    Q8_K = 79, 256 in 292, "q8_k", None;
    IQ2_XXS = 80, 256 in 66, "iq2_xxs", None;
    IQ2_XS = 81, 256 in 74, "iq2_xs", None;
    IQ3_XXS = 82, 256 in 98, "iq3_xxs", None;
    IQ1_S = 83, 256 in 50, "iq1_s", None;
    IQ4_NL = 84, 32 in 18, "iq4_nl", None;
    IQ3_S = 85, 256 in 110, "iq3_s", None;
    IQ2_S = 86, 256 in 82, "iq2_s", None;
    IQ4_XS = 87, 256 in 136, "iq4_xs", None;
    IQ1_M = 93, 256 in 56, "iq1_m", None;
    TQ1_0 = 98, 256 in 54, "tq1_0", None;
    TQ2_0 = 99, 256 in 66, "tq2_0", None;
    MXFP4 = 103, 32 in 17, "mxfp4", None;
    NVFP4 = 104, 64 in 36, "nvfp4", None;
    Q1_0 = 105, 128 in 18, "q1_0", None;
    Q2_0 = 106, 64 in 18, "q2_0", None;
}

impl Dtype {
    /// The element type with a name, ignoring case.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|dtype| dtype.name().eq_ignore_ascii_case(name))
    }

    /// The element type with a name in a safetensors header.
    pub fn from_safetensors_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|dtype| dtype.safetensors_name() == Some(name))
    }

    /// Whether blocks of this type can be quantized: `F32`, `F16` and `Bf16` only.
    pub fn is_quantizable(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
    }

    /// Whether blocks of this type can be packed.
    pub fn is_packable(self) -> bool {
        use Dtype::{Bf16, F8E4M3, F8E5M2, F16, F32, F64, I8, U8};
        matches!(self, Bf16 | F16 | F32 | F64 | F8E4M3 | F8E5M2 | I8 | U8)
    }

    /// Whether it is a quantized type of ggml.
    pub fn is_ggml(self) -> bool {
        self.code() >= GGML_CODE
    }

    /// Bytes of one element; 1 for types whose blocks have several.
    pub fn bytes(self) -> u64 {
        match self.block() {
            (1, bytes) => bytes,
            _ => 1,
        }
    }

    /// Bytes of `elements` elements. `None` if they exceed 2^64, or are not whole blocks.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        let (each, bytes) = self.block();
        if elements.is_multiple_of(each) { (elements / each).checked_mul(bytes) } else { None }
    }

    /// Elements in `bytes` bytes, of whole blocks.
    pub fn elements_in(self, bytes: u64) -> u64 {
        let (each, size) = self.block();
        (bytes / size).saturating_mul(each)
    }
}

/// The number of ggml's quantized types on disk: this, and the number of ggml.
pub const GGML_CODE: u8 = 64;

impl fmt::Display for Dtype {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Dtype;

    #[test]
    fn every_number_and_name_maps_back_to_its_type() {
        for dtype in Dtype::ALL.iter().copied() {
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(Dtype::from_code(18), None);
        assert_eq!(Dtype::from_name("f33"), None);
    }

    #[test]
    fn bytes_and_elements_count_whole_blocks() {
        for (dtype, elements, bytes) in [(Dtype::F32, 3, 12), (Dtype::F4, 6, 3), (Dtype::Q4_K, 512, 288)] {
            assert_eq!((dtype.bytes_of(elements), dtype.elements_in(bytes)), (Some(bytes), elements));
        }
        assert_eq!((Dtype::F4.bytes_of(1), Dtype::Q4_K.bytes_of(255)), (None, None));
        assert_eq!((Dtype::F64.bytes_of(1 << 61), Dtype::Q8_0.elements_in(67)), (None, 32));
        assert_eq!((Dtype::F4.bytes(), Dtype::Q6_K.bytes(), Dtype::F64.bytes()), (1, 1, 8));
    }
}
