//! Element types and their numbers on disk.

use std::fmt;

macro_rules! dtypes {
    ($( $variant:ident = $code:literal, $bytes:literal, $name:literal, $safetensors:expr; )*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

            /// Bytes of one element; 1 for `F4`, which packs two elements in a byte, and for `OPAQUE`,
            /// which counts bytes.
            pub fn bytes(self) -> u64 {
                match self { $(Dtype::$variant => $bytes),* }
            }

            /// The name used in attributes.
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
    F32 = 0, 4, "f32", Some("F32");
    F16 = 1, 2, "f16", Some("F16");
    Bf16 = 2, 2, "bf16", Some("BF16");
    I8 = 3, 1, "i8", Some("I8");
    U8 = 4, 1, "u8", Some("U8");
    F64 = 5, 8, "f64", Some("F64");
    I16 = 6, 2, "i16", Some("I16");
    I32 = 7, 4, "i32", Some("I32");
    I64 = 8, 8, "i64", Some("I64");
    U16 = 9, 2, "u16", Some("U16");
    U32 = 10, 4, "u32", Some("U32");
    U64 = 11, 8, "u64", Some("U64");
    Bool = 12, 1, "bool", Some("BOOL");
    F8E4M3 = 13, 1, "f8_e4m3", Some("F8_E4M3");
    F8E5M2 = 14, 1, "f8_e5m2", Some("F8_E5M2");
    F8E8M0 = 15, 1, "f8_e8m0", Some("F8_E8M0");
    F4 = 16, 1, "f4", Some("F4");
    Opaque = 32, 1, "opaque", None;
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

    /// Bytes of `elements` elements. `None` if they exceed 2^64, or for an `F4` tensor with an odd
    /// number of elements.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        match self {
            Dtype::F4 if elements % 2 == 1 => None,
            Dtype::F4 => Some(elements / 2),
            _ => elements.checked_mul(self.bytes()),
        }
    }
}

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
        assert_eq!(Dtype::from_code(17), None);
        assert_eq!(Dtype::from_name("f33"), None);
    }
}
