//! Precision tiers, encodings and encoders.

use std::fmt;

/// Number of elements that share one scale. The last group of a block may be shorter.
pub const GROUP_LEN: usize = 64;

/// The precision in which a block is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Tier {
    /// The original bytes of the elements.
    Exact,
    /// The same bytes, encoded without loss. Users see the tier `exact`.
    Packed,
    /// 8 bits a value, one scale a group: "hot".
    Q8,
    Q7,
    Q5,
    Q3,
    /// 3 bits with two scales a group.
    Q3x,
    /// Not stored. It may be possible to rebuild it.
    Absent,
}

/// The layout of a block's payload: the encoding byte of the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// The original bytes of the elements.
    Verbatim,
    /// Groups with one scale each and their codes.
    Grouped,
    /// Groups with two scales each, flags and 3-bit codes.
    TwoLevel,
    /// Planes of bytes, most of them as ladders.
    Ladder,
}

/// How an encoder chooses scales. One decoder reads the result of all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Encoder {
    /// The scale with the least squared error, over the full range of codes, among those that keep the bound
    /// of `Absmax`.
    #[default]
    Best,
    /// The scale with the least squared error, whatever the largest error is.
    Least,
    /// The scale that maps the largest magnitude to the largest code.
    Absmax,
}

impl Tier {
    /// Every tier that users name, most precise first.
    pub const ALL: [Tier; 7] = [Tier::Exact, Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3, Tier::Q3x, Tier::Absent];

    /// The tiers with quantized values.
    pub const ENCODED: [Tier; 5] = [Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3, Tier::Q3x];

    /// The tier byte of the log, which is also the number in `tierN.dat`.
    pub fn byte(self) -> u8 {
        match self {
            Tier::Exact | Tier::Packed | Tier::Absent => 0,
            Tier::Q8 => 1,
            Tier::Q7 | Tier::Q5 => 2,
            Tier::Q3 | Tier::Q3x => 3,
        }
    }

    /// Bits of one code; `None` for a tier without codes.
    pub fn code_bits(self) -> Option<u8> {
        match self {
            Tier::Exact | Tier::Packed | Tier::Absent => None,
            Tier::Q8 => Some(8),
            Tier::Q7 => Some(7),
            Tier::Q5 => Some(5),
            Tier::Q3 | Tier::Q3x => Some(3),
        }
    }

    /// Whether blocks of this tier read as the original bytes.
    pub fn is_exact(self) -> bool {
        matches!(self, Tier::Exact | Tier::Packed)
    }

    /// Whether a payload of this tier must be decoded.
    pub fn is_encoded(self) -> bool {
        !matches!(self, Tier::Exact | Tier::Absent)
    }

    /// Whether this tier is more precise than another.
    pub fn finer_than(self, other: Tier) -> bool {
        // Two scales a group are more precise than one.
        let place = |tier| match tier {
            Tier::Exact | Tier::Packed => 0,
            Tier::Q8 => 1,
            Tier::Q7 => 2,
            Tier::Q5 => 3,
            Tier::Q3x => 4,
            Tier::Q3 => 5,
            Tier::Absent => 6,
        };
        place(self) < place(other)
    }

    /// The layout of the tier's payloads.
    pub fn encoding(self) -> Encoding {
        match self {
            Tier::Exact | Tier::Absent => Encoding::Verbatim,
            Tier::Packed => Encoding::Ladder,
            Tier::Q3x => Encoding::TwoLevel,
            Tier::Q8 | Tier::Q7 | Tier::Q5 | Tier::Q3 => Encoding::Grouped,
        }
    }

    /// The tier with codes of `bits` bits in `encoding`.
    pub fn of_codes(bits: u8, encoding: Encoding) -> Option<Tier> {
        Tier::ENCODED.into_iter().find(|tier| tier.code_bits() == Some(bits) && tier.encoding() == encoding)
    }

    /// The name used in attributes.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Exact => "exact",
            Tier::Packed => "packed",
            Tier::Q8 => "q8",
            Tier::Q7 => "q7",
            Tier::Q5 => "q5",
            Tier::Q3 => "q3",
            Tier::Q3x => "q3x",
            Tier::Absent => "absent",
        }
    }

    /// The tier with a name or an alias: hot, warm, warm5, cold.
    pub fn from_name(name: &str) -> Option<Tier> {
        match name {
            "hot" => Some(Tier::Q8),
            "warm" => Some(Tier::Q7),
            "warm5" => Some(Tier::Q5),
            "cold" => Some(Tier::Q3),
            _ => Tier::ALL.into_iter().find(|tier| tier.name() == name),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl Encoding {
    /// The encoding byte in the log.
    pub fn byte(self) -> u8 {
        match self {
            Encoding::Verbatim => 0,
            Encoding::Grouped => 1,
            Encoding::TwoLevel => 2,
            Encoding::Ladder => 16,
        }
    }

    /// The encoding for a byte in the log; `None` if this version does not know it.
    pub fn from_byte(byte: u8) -> Option<Encoding> {
        match byte {
            0 => Some(Encoding::Verbatim),
            1 => Some(Encoding::Grouped),
            2 => Some(Encoding::TwoLevel),
            16 => Some(Encoding::Ladder),
            _ => None,
        }
    }
}

impl Encoder {
    /// Every encoder.
    pub const ALL: [Encoder; 3] = [Encoder::Best, Encoder::Least, Encoder::Absmax];

    /// The name used in settings.
    pub fn name(self) -> &'static str {
        match self {
            Encoder::Best => "best",
            Encoder::Least => "least",
            Encoder::Absmax => "absmax",
        }
    }

    /// The encoder with a name.
    pub fn from_name(name: &str) -> Option<Encoder> {
        Encoder::ALL.into_iter().find(|encoder| encoder.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::{Encoding, Tier};

    #[test]
    fn bits_and_encoding_name_the_tier() {
        for tier in Tier::ENCODED {
            let bits = tier.code_bits().unwrap();
            assert_eq!(Tier::of_codes(bits, tier.encoding()), Some(tier));
            assert_eq!(Tier::from_name(tier.name()), Some(tier));
        }
        assert_eq!(Tier::of_codes(8, Encoding::TwoLevel), None);
        assert_eq!(Tier::from_name("warm5"), Some(Tier::Q5));
    }
}
