//! The alphabets of codes.

/// How codes lie in bytes, and the number that each code is.
#[derive(Clone, PartialEq, Debug)]
pub enum Alphabet {
    /// Floats of 8 bits: 4 of the exponent, 3 of the mantissa, no infinities.
    E4m3,
    /// Floats of 8 bits: 5 of the exponent, 2 of the mantissa.
    E5m2,
    /// Signed bytes.
    I8,
    /// Bits of a byte, an integer.
    Byte {
        /// The lowest of the bits.
        shift: u32,
        /// The bits, after the shift.
        mask: u8,
    },
    /// Bits of a little-endian word of 32 bits, an integer.
    Word {
        /// The lowest of the bits.
        shift: u32,
        /// The bits, after the shift.
        mask: u32,
    },
    /// Two codes of four bits a byte, and the numbers of both for each byte.
    Pairs(Box<Pairs>),
    /// Eight codes of four bits a word, in the order of AWQ: the values 0 to 7 are the nibbles 0, 4, 1, 5, 2, 6, 3, 7.
    Awq,
}

/// The numbers of two codes of four bits.
#[derive(Clone, PartialEq, Debug)]
pub struct Pairs {
    /// By byte.
    numbers: [[f32; 2]; 256],
    is_integer: bool,
    is_short: bool,
    is_upper_first: bool,
}

/// The values of codes of the type e2m1.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl Alphabet {
    /// Codes of four bits with the numbers of a table, the lower half of a byte first.
    pub fn low_first(table: &[f32; 16]) -> Alphabet {
        Alphabet::pairs(table, 0)
    }

    /// Codes of four bits with the numbers of a table, the upper half of a byte first.
    pub fn high_first(table: &[f32; 16]) -> Alphabet {
        Alphabet::pairs(table, 4)
    }

    fn pairs(table: &[f32; 16], first: u32) -> Alphabet {
        let mut numbers = [[0.0; 2]; 256];
        for (byte, pair) in (0_u8..=255).zip(numbers.iter_mut()) {
            let of = |shift: u32| table.get(usize::from(byte >> shift & 15)).copied().unwrap_or_default();
            *pair = [of(first), of(4 - first)];
        }
        let is_integer = table.iter().all(|value| *value == value.trunc());
        let is_short = table.iter().all(|value| value.to_bits() & 0xffff == 0);
        Alphabet::Pairs(Box::new(Pairs { numbers, is_integer, is_short, is_upper_first: first > 0 }))
    }

    /// Codes of the type e2m1, the lower half of a byte first.
    pub fn e2m1() -> Alphabet {
        Alphabet::low_first(&E2M1)
    }

    /// Integers from -8 to 7, stored with 8 added, the lower half of a byte first.
    pub fn int4() -> Alphabet {
        let mut table = [0.0; 16];
        for (value, number) in table.iter_mut().zip(-8_i8..) {
            *value = f32::from(number);
        }
        Alphabet::low_first(&table)
    }

    /// Integers from 0 to 15, the lower half of a byte first.
    pub fn unsigned() -> Alphabet {
        let mut table = [0.0; 16];
        for (value, number) in table.iter_mut().zip(0_u8..) {
            *value = f32::from(number);
        }
        Alphabet::low_first(&table)
    }

    /// Bytes and values of a unit.
    pub fn unit(&self) -> (usize, usize) {
        match self {
            Alphabet::E4m3 | Alphabet::E5m2 | Alphabet::I8 | Alphabet::Byte { .. } => (1, 1),
            Alphabet::Word { .. } => (4, 1),
            Alphabet::Pairs(_) => (1, 2),
            Alphabet::Awq => (4, 8),
        }
    }

    /// The numbers of codes, as many as whole units of `codes` have and `out` has room for.
    pub fn numbers(&self, codes: &[u8], out: &mut [f32]) {
        self.values(codes, out);
    }

    /// Of pairs, whether the upper half of a byte is first.
    pub(super) fn is_upper_first(&self) -> Option<bool> {
        match self {
            Alphabet::Pairs(pairs) => Some(pairs.is_upper_first),
            _ => None,
        }
    }

    /// Whether each number is an integer.
    pub(super) fn is_integer(&self) -> bool {
        match self {
            Alphabet::E4m3 | Alphabet::E5m2 => false,
            Alphabet::Pairs(pairs) => pairs.is_integer,
            _ => true,
        }
    }

    /// Whether each number has at most 8 significant bits.
    pub(super) fn is_short(&self) -> bool {
        match self {
            Alphabet::Pairs(pairs) => pairs.is_short,
            Alphabet::Word { mask, .. } => *mask < 256,
            _ => true,
        }
    }

    /// The numbers of codes, which are whole units. Writes to as much of `out` as they fill.
    #[inline(always)]
    pub(super) fn values(&self, codes: &[u8], out: &mut [f32]) {
        match self {
            Alphabet::E4m3 => each(codes, out, e4m3),
            Alphabet::E5m2 => each(codes, out, e5m2),
            Alphabet::I8 => {
                for (value, code) in out.iter_mut().zip(codes) {
                    *value = f32::from(*code as i8);
                }
            }
            Alphabet::Byte { shift, mask } => {
                for (value, code) in out.iter_mut().zip(codes) {
                    *value = f32::from(code >> (shift & 7) & mask);
                }
            }
            Alphabet::Word { shift, mask } => {
                for (value, code) in out.iter_mut().zip(codes.as_chunks().0) {
                    *value = (u32::from_le_bytes(*code) >> (shift & 31) & mask) as i32 as f32;
                }
            }
            Alphabet::Pairs(pairs) => {
                for (values, code) in out.as_chunks_mut().0.iter_mut().zip(codes) {
                    *values = pairs.numbers[usize::from(*code)];
                }
            }
            Alphabet::Awq => {
                for (values, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(codes.as_chunks().0) {
                    let word = u32::from_le_bytes(*word);
                    for (value, shift) in values.iter_mut().zip([0, 16, 4, 20, 8, 24, 12, 28]) {
                        *value = (word >> shift & 15) as i32 as f32;
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn each(codes: &[u8], out: &mut [f32], of: impl Fn(u32) -> f32) {
    for (value, code) in out.iter_mut().zip(codes) {
        *value = of(u32::from(*code));
    }
}

/// A float of 8 bits by arithmetic, which becomes vectors, as a table does not.
#[inline(always)]
fn e4m3(code: u32) -> f32 {
    let (sign, rest) = ((code & 0x80) << 24, code & 0x7f);
    let normal = (rest << 20) + (120 << 23);
    let subnormal = (rest as i32 as f32 * (1.0 / 512.0)).to_bits();
    let bits = if rest < 8 { subnormal } else { normal };
    let bits = if rest == 0x7f { 0x7fc0_0000 } else { bits };
    f32::from_bits(bits | sign)
}

#[inline(always)]
fn e5m2(code: u32) -> f32 {
    let (sign, rest) = ((code & 0x80) << 24, code & 0x7f);
    let normal = (rest << 21) + (112 << 23);
    let subnormal = (rest as i32 as f32 * (1.0 / 65536.0)).to_bits();
    let bits = if rest < 4 { subnormal } else { normal };
    // Infinity, and NaN with the quiet bit set.
    let special = if rest == 0x7c { 0x7f80_0000 } else { 0x7fc0_0000 };
    let bits = if rest >= 0x7c { special } else { bits };
    f32::from_bits(bits | sign)
}
