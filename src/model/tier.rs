//! Precision tiers, encodings and encoders.

use std::fmt;

/// Elements that share one scale. The last group of a block may be shorter.
pub const GROUP_LEN: usize = 64;

/// How precisely a block is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Tier {
    /// The element's own bytes.
    Exact,
    /// 8 bits a value and a scale a group: "hot".
    Q8,
    /// 7 bits: "warm".
    Q7,
    /// 5 bits: "warm5".
    Q5,
    /// 3 bits: "cold".
    Q3,
    /// 3 bits with two scales a group.
    Q3x,
    /// Not stored; perhaps there is a way to make it again.
    Absent,
}

/// How a block's payload is laid out: the encoding byte of the log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// The elements' own bytes.
    Verbatim,
    /// Groups of one scale and their codes.
    Grouped,
    /// Groups of two scales, flags and 3-bit codes.
    TwoLevel,
}

/// How scales are chosen when a block is encoded. One decoder reads all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Encoder {
    /// The scale of least squared error, over the full range of codes.
    #[default]
    Best,
    /// The largest magnitude becomes the largest code.
    Absmax,
}

impl Tier {
    /// Every tier, most precise first.
    pub const ALL: [Tier; 7] = [Tier::Exact, Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3, Tier::Q3x, Tier::Absent];

    /// The tiers that hold codes.
    pub const ENCODED: [Tier; 5] = [Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3, Tier::Q3x];

    /// The tier byte of the log, which is the number of its `tierN.dat`.
    pub fn byte(self) -> u8 {
        match self {
            Tier::Exact | Tier::Absent => 0,
            Tier::Q8 => 1,
            Tier::Q7 | Tier::Q5 => 2,
            Tier::Q3 | Tier::Q3x => 3,
        }
    }

    /// Bits of one code; `None` where a block holds no codes.
    pub fn code_bits(self) -> Option<u8> {
        match self {
            Tier::Exact | Tier::Absent => None,
            Tier::Q8 => Some(8),
            Tier::Q7 => Some(7),
            Tier::Q5 => Some(5),
            Tier::Q3 | Tier::Q3x => Some(3),
        }
    }

    /// Whether it keeps more of a value than another tier.
    pub fn finer_than(self, other: Tier) -> bool {
        // Two scales a group keep more than one.
        let place = |tier| match tier {
            Tier::Exact => 0,
            Tier::Q8 => 1,
            Tier::Q7 => 2,
            Tier::Q5 => 3,
            Tier::Q3x => 4,
            Tier::Q3 => 5,
            Tier::Absent => 6,
        };
        place(self) < place(other)
    }

    /// The layout of its payloads.
    pub fn encoding(self) -> Encoding {
        match self {
            Tier::Exact | Tier::Absent => Encoding::Verbatim,
            Tier::Q3x => Encoding::TwoLevel,
            Tier::Q8 | Tier::Q7 | Tier::Q5 | Tier::Q3 => Encoding::Grouped,
        }
    }

    /// The tier of codes of `bits` bits in `encoding`.
    pub fn of_codes(bits: u8, encoding: Encoding) -> Option<Tier> {
        Tier::ENCODED.into_iter().find(|tier| tier.code_bits() == Some(bits) && tier.encoding() == encoding)
    }

    /// The name that attributes show.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Exact => "exact",
            Tier::Q8 => "q8",
            Tier::Q7 => "q7",
            Tier::Q5 => "q5",
            Tier::Q3 => "q3",
            Tier::Q3x => "q3x",
            Tier::Absent => "absent",
        }
    }

    /// The tier of a name or of an alias: hot, warm, warm5, cold.
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
    /// The encoding byte of the log.
    pub fn byte(self) -> u8 {
        match self {
            Encoding::Verbatim => 0,
            Encoding::Grouped => 1,
            Encoding::TwoLevel => 2,
        }
    }

    /// The encoding of a byte of the log; `None` where this version does not know it.
    pub fn from_byte(byte: u8) -> Option<Encoding> {
        match byte {
            0 => Some(Encoding::Verbatim),
            1 => Some(Encoding::Grouped),
            2 => Some(Encoding::TwoLevel),
            _ => None,
        }
    }
}

impl Encoder {
    /// The name that settings show.
    pub fn name(self) -> &'static str {
        match self {
            Encoder::Best => "best",
            Encoder::Absmax => "absmax",
        }
    }

    /// The encoder of a name.
    pub fn from_name(name: &str) -> Option<Encoder> {
        [Encoder::Best, Encoder::Absmax].into_iter().find(|encoder| encoder.name() == name)
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
