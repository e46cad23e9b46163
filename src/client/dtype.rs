//! Element types, by their names in tierfs, and the Rust types that their elements have.

use std::fmt;

use half::{bf16, f16};

macro_rules! dtypes {
    ($( $variant:ident = $name:literal, $elements:literal in $bytes:literal; )*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(non_camel_case_types, reason = "the names of ggml")]
        #[non_exhaustive]
        pub enum Dtype {
            $(
                #[doc = concat!("`", $name, "`")]
                $variant,
            )*
        }

        impl Dtype {
            /// Every element type.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant),*];

            /// Its name in tierfs: the value of the attribute `user.tierfs.dtype`.
            pub const fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name),* }
            }

            /// The elements of a block, and its bytes. A block has one element, but for `F4` and for the quantized
            /// types of ggml.
            pub const fn block(self) -> (usize, usize) {
                match self { $(Dtype::$variant => ($elements, $bytes)),* }
            }
        }
    };
}

// tests/client/ compares it with the table of the daemon, src/model/dtype.rs.
dtypes! {
    F32 = "f32", 1 in 4;
    F16 = "f16", 1 in 2;
    Bf16 = "bf16", 1 in 2;
    I8 = "i8", 1 in 1;
    U8 = "u8", 1 in 1;
    F64 = "f64", 1 in 8;
    I16 = "i16", 1 in 2;
    I32 = "i32", 1 in 4;
    I64 = "i64", 1 in 8;
    U16 = "u16", 1 in 2;
    U32 = "u32", 1 in 4;
    U64 = "u64", 1 in 8;
    Bool = "bool", 1 in 1;
    F8E4M3 = "f8_e4m3", 1 in 1;
    F8E5M2 = "f8_e5m2", 1 in 1;
    F8E8M0 = "f8_e8m0", 1 in 1;
    F4 = "f4", 2 in 1;
    C64 = "c64", 1 in 8;
    Q4_0 = "q4_0", 32 in 18;
    Q4_1 = "q4_1", 32 in 20;
    Q5_0 = "q5_0", 32 in 22;
    Q5_1 = "q5_1", 32 in 24;
    Q8_0 = "q8_0", 32 in 34;
    Q8_1 = "q8_1", 32 in 36;
    Q2_K = "q2_k", 256 in 84;
    Q3_K = "q3_k", 256 in 110;
    Q4_K = "q4_k", 256 in 144;
    Q5_K = "q5_k", 256 in 176;
    Q6_K = "q6_k", 256 in 210;
    Q8_K = "q8_k", 256 in 292;
    IQ2_XXS = "iq2_xxs", 256 in 66;
    IQ2_XS = "iq2_xs", 256 in 74;
    IQ3_XXS = "iq3_xxs", 256 in 98;
    IQ1_S = "iq1_s", 256 in 50;
    IQ4_NL = "iq4_nl", 32 in 18;
    IQ3_S = "iq3_s", 256 in 110;
    IQ2_S = "iq2_s", 256 in 82;
    IQ4_XS = "iq4_xs", 256 in 136;
    IQ1_M = "iq1_m", 256 in 56;
    TQ1_0 = "tq1_0", 256 in 54;
    TQ2_0 = "tq2_0", 256 in 66;
    MXFP4 = "mxfp4", 32 in 17;
    NVFP4 = "nvfp4", 64 in 36;
    Q1_0 = "q1_0", 128 in 18;
    Q2_0 = "q2_0", 64 in 18;
}

impl Dtype {
    /// The element type with a name in tierfs.
    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// Bytes of `elements` elements. `None` if they are not whole blocks, or are more than can be counted.
    pub fn bytes_of(self, elements: usize) -> Option<usize> {
        let (each, bytes) = self.block();
        if elements.is_multiple_of(each) { (elements / each).checked_mul(bytes) } else { None }
    }

    /// Whether an element is one number that a Rust type has. The elements of other types are read as bytes.
    fn has_rust_type(self) -> bool {
        use Dtype::{Bf16, C64, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        matches!(self, F32 | F16 | Bf16 | I8 | U8 | F64 | I16 | I32 | I64 | U16 | U32 | U64 | C64)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

mod sealed {
    /// Types that have a value for every pattern of bits, and no padding.
    pub trait Bits: Copy + zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable {}
}

pub(crate) use sealed::Bits;

/// A Rust type of elements: numbers, [`struct@f16`], [`bf16`], and `[f32; 2]` for complex numbers.
///
/// `u8` is the type of `u8`, and of all element types that Rust lacks: `bool` (a file may have bytes other than 0 and
/// 1), floats of 8 and 4 bits, and the quantized types of ggml, whose blocks are read as bytes.
pub trait Element: Bits {
    /// Whether elements of a type are values of this Rust type.
    fn is_type_of(dtype: Dtype) -> bool;
}

macro_rules! elements {
    ($( $rust:ty = $dtype:ident; )*) => {
        $(
            impl Bits for $rust {}

            impl Element for $rust {
                fn is_type_of(dtype: Dtype) -> bool {
                    dtype == Dtype::$dtype
                }
            }
        )*
    };
}

elements! {
    f32 = F32;
    f16 = F16;
    bf16 = Bf16;
    i8 = I8;
    f64 = F64;
    i16 = I16;
    i32 = I32;
    i64 = I64;
    u16 = U16;
    u32 = U32;
    u64 = U64;
    [f32; 2] = C64;
}

impl Bits for u8 {}

impl Element for u8 {
    fn is_type_of(dtype: Dtype) -> bool {
        dtype == Dtype::U8 || !dtype.has_rust_type()
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{Dtype, Element};

    #[test]
    fn every_name_maps_back_to_its_type() {
        for dtype in Dtype::ALL.iter().copied() {
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!((Dtype::from_name("f33"), Dtype::from_name("")), (None, None));
    }

    #[test]
    fn every_type_has_one_rust_type_whose_size_divides_a_block() {
        fn size<T: Element>(dtype: Dtype) -> Option<usize> {
            T::is_type_of(dtype).then(size_of::<T>)
        }
        for dtype in Dtype::ALL.iter().copied() {
            let sizes = [
                size::<f32>(dtype),
                size::<half::f16>(dtype),
                size::<bf16>(dtype),
                size::<i8>(dtype),
                size::<u8>(dtype),
                size::<f64>(dtype),
                size::<i16>(dtype),
                size::<i32>(dtype),
                size::<i64>(dtype),
                size::<u16>(dtype),
                size::<u32>(dtype),
                size::<u64>(dtype),
                size::<[f32; 2]>(dtype),
            ];
            let sizes: Vec<usize> = sizes.into_iter().flatten().collect();
            let [size] = sizes.as_slice() else { panic!("{dtype}: {sizes:?}") };
            let (elements, bytes) = dtype.block();
            assert!(*size == 1 || (elements == 1 && bytes == *size), "{dtype}");
        }
    }

    #[test]
    fn bytes_are_those_of_whole_blocks() {
        for (dtype, elements, bytes) in [(Dtype::F32, 3, 12), (Dtype::F4, 6, 3), (Dtype::Q4_K, 512, 288)] {
            assert_eq!(dtype.bytes_of(elements), Some(bytes));
        }
        assert_eq!((Dtype::F4.bytes_of(1), Dtype::Q4_K.bytes_of(255)), (None, None));
        assert_eq!(Dtype::F64.bytes_of(usize::MAX), None);
    }
}
