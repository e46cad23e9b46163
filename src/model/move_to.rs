//! The aim of a move, and the tensors and blocks that it takes.

use std::fmt;

use crate::model::{Dtype, Encoder, Error, KeptBy, Result, Shape, Tier};

/// How blocks are to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// In a tier. Exact blocks that are packed are in the tier exact already.
    Tier(Tier),
    /// In a tier, and encoded anew from the exact source where they are in it already. Blocks without that source
    /// stay as they are.
    Again(Tier),
    /// Packed, where they are exact and packing makes them smaller.
    Pack,
    /// Verbatim, where they are packed.
    Unpack,
}

/// How a move stores the blocks that it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Storing {
    /// Which blocks it takes.
    pub aim: Aim,
    /// Whether blocks that are exact are packed.
    pub packs: bool,
    /// How scales are chosen.
    pub encoder: Encoder,
}

/// An aim, and the selection of tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveTo {
    pub aim: Aim,
    /// Every tensor that the aim can apply to, not only those that are usually worth it.
    pub all: bool,
}

/// Tensors with fewer elements stay exact without `all`.
const ELEMENTS_MIN: u64 = 65_536;
/// Smaller blocks are not packed: their headers and padding outweigh the gain.
const PACKED_BLOCK_MIN: u32 = 16 << 10;

impl Aim {
    /// Whether it takes a block that is stored in `tier`.
    pub fn takes(self, tier: Tier, has_deltas: impl FnOnce() -> bool) -> bool {
        match self {
            Aim::Tier(Tier::Exact) => !tier.is_exact(),
            Aim::Again(_) => true,
            Aim::Tier(Tier::Absent) => tier != Tier::Absent,
            Aim::Tier(to) => tier != to || has_deltas(),
            Aim::Pack => tier == Tier::Exact || (tier == Tier::Packed && has_deltas()),
            Aim::Unpack => tier == Tier::Packed,
        }
    }

    /// The tier that readers see afterwards.
    pub fn tier(self) -> Tier {
        match self {
            Aim::Tier(tier) | Aim::Again(tier) => tier,
            Aim::Pack | Aim::Unpack => Tier::Exact,
        }
    }

    /// Whether a block that is stored in `tier` stays, unless its exact source is there.
    pub fn needs_source(self, tier: Tier, has_deltas: impl FnOnce() -> bool) -> bool {
        self == Aim::Again(tier) && !has_deltas()
    }

    /// Whether the moved blocks read as before.
    pub fn keeps_bytes(self) -> bool {
        matches!(self, Aim::Pack | Aim::Unpack)
    }

    /// The name in requests and reports.
    pub fn name(self) -> &'static str {
        match self {
            Aim::Tier(tier) | Aim::Again(tier) => tier.name(),
            Aim::Pack => Tier::Packed.name(),
            Aim::Unpack => "verbatim",
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl Storing {
    /// The tier that blocks are stored in.
    pub fn tier(self) -> Tier {
        match self.aim {
            Aim::Pack | Aim::Tier(Tier::Exact) if self.packs => Tier::Packed,
            aim => aim.tier(),
        }
    }
}

impl MoveTo {
    /// Every tensor that `aim` can apply to.
    pub fn all(aim: Aim) -> MoveTo {
        MoveTo { aim, all: true }
    }

    /// Parses `q5` or `q5:all`, and `packed` and `verbatim` in the same way. `:again` may follow a tier with
    /// quantized values. The error states the problem.
    pub fn parse(text: &str) -> Result<MoveTo> {
        if let Some(text) = text.strip_suffix(":again") {
            let to = MoveTo::parse(text)?;
            return match to.aim {
                Aim::Tier(tier) if Tier::ENCODED.contains(&tier) => {
                    Ok(MoveTo { aim: Aim::Again(tier), ..to })
                }
                _ => Err(Error::invalid(format!("{text} has no codes that could be made again"))),
            };
        }
        let (name, all) = match text.split_once(':') {
            Some((name, "all")) => (name, true),
            Some((_, other)) => {
                return Err(Error::invalid(format!(
                    "a tier can be followed by :all and :again only, not by :{other}"
                )));
            }
            None => (text, false),
        };
        let aims = [Aim::Pack, Aim::Unpack];
        let aim = aims.into_iter().find(|aim| aim.name() == name);
        let tier = || Tier::from_name(name).filter(|tier| *tier != Tier::Absent).map(Aim::Tier);
        match aim.or_else(tier) {
            Some(aim) => Ok(MoveTo { aim, all }),
            None => Err(Error::invalid(format!(
                "{name} is not a tier; the tiers are exact, q8, q7, q5, q3x and q3"
            ))),
        }
    }

    /// [`parse`](Self::parse) for tiers only.
    pub fn parse_tier(text: &str) -> Result<MoveTo> {
        let to = MoveTo::parse(text)?;
        match to.aim {
            Aim::Tier(_) => Ok(to),
            Aim::Again(_) => Err(Error::invalid("only tierfs tier encodes again")),
            Aim::Pack | Aim::Unpack => {
                Err(Error::invalid(format!("{} is not a tier; use tierfs pack or tierfs unpack", to.aim)))
            }
        }
    }

    /// Parses the name of a variant: a tier with quantized values, and perhaps `:all`.
    pub fn parse_variant(text: &str) -> Result<MoveTo> {
        let to = MoveTo::parse(text)?;
        match to.aim {
            Aim::Tier(tier) if Tier::ENCODED.contains(&tier) => Ok(to),
            _ => Err(Error::invalid(format!(
                "{text} cannot be a variant; the variants are q8, q7, q5, q3x and q3"
            ))),
        }
    }

    /// The name of the variant of a collection that shows it after this move.
    pub fn variant_name(self) -> String {
        if self.all { format!("{}:all", self.aim) } else { self.aim.to_string() }
    }

    /// Whether a tensor is selected for a move of many: float tensors; without `all` only those that
    /// model quantizers usually touch, and none for which `keeps` has a reason. A move back to exact selects all float
    /// tensors. Packing selects the types that [`packs`] names, unpacking all tensors.
    pub fn takes(self, dtype: Dtype, shape: &Shape, keeps: impl FnOnce() -> Option<KeptBy>) -> bool {
        self.kept_by(dtype, shape, keeps).is_none()
    }

    /// Why a move of many tensors leaves this one unchanged, if it does.
    pub fn kept_by(
        self,
        dtype: Dtype,
        shape: &Shape,
        keeps: impl FnOnce() -> Option<KeptBy>,
    ) -> Option<KeptBy> {
        let is_large = || shape.dimensions().len() >= 2 && shape.elements() >= ELEMENTS_MIN;
        match self.aim {
            Aim::Unpack => None,
            Aim::Pack => (!dtype.is_packable() || !(self.all || packs(dtype))).then_some(KeptBy::NotPacked),
            Aim::Tier(_) | Aim::Again(_) if !dtype.is_quantizable() => Some(KeptBy::of(dtype)),
            Aim::Tier(Tier::Exact) => None,
            Aim::Tier(_) | Aim::Again(_) if self.all => None,
            Aim::Tier(_) | Aim::Again(_) if !is_large() => Some(KeptBy::TooSmall),
            Aim::Tier(_) | Aim::Again(_) => keeps(),
        }
    }
}

/// Whether tensors of a type are packed without being named in a request. Types of one byte gain little
/// and take longer to read.
pub fn packs(dtype: Dtype) -> bool {
    dtype.is_packable() && dtype.bytes() > 1
}

/// Whether blocks of this length are packed.
pub fn packs_blocks_of(block_bytes: u32) -> bool {
    block_bytes >= PACKED_BLOCK_MIN
}

#[cfg(test)]
mod tests {
    use super::{Aim, MoveTo};
    use crate::model::Tier;

    #[test]
    fn an_aim_takes_the_blocks_that_are_not_there() {
        let tiers = [Tier::Exact, Tier::Packed, Tier::Q8, Tier::Absent];
        let taken = |aim: Aim, has_deltas: bool| tiers.map(|tier| aim.takes(tier, || has_deltas));
        assert_eq!(taken(Aim::Tier(Tier::Exact), true), [false, false, true, true]);
        assert_eq!(taken(Aim::Tier(Tier::Q8), false), [true, true, false, true]);
        assert_eq!(taken(Aim::Tier(Tier::Q8), true), [true, true, true, true]);
        assert_eq!(taken(Aim::Again(Tier::Q8), false), [true; 4]);
        assert_eq!(taken(Aim::Tier(Tier::Absent), true), [true, true, true, false]);
        assert_eq!(taken(Aim::Pack, false), [true, false, false, false]);
        assert_eq!(taken(Aim::Pack, true), [true, true, false, false]);
        assert_eq!(taken(Aim::Unpack, true), [false, true, false, false]);
    }

    #[test]
    fn aims_have_names_and_only_tiers_are_tiers() {
        for aim in [Aim::Pack, Aim::Unpack, Aim::Tier(Tier::Q3x)] {
            assert_eq!(MoveTo::parse(aim.name()).unwrap(), MoveTo { aim, all: false });
            assert_eq!(MoveTo::parse(&format!("{aim}:all")).unwrap(), MoveTo::all(aim));
            assert_eq!(MoveTo::parse_tier(aim.name()).is_ok(), matches!(aim, Aim::Tier(_)));
        }
        let again = MoveTo { aim: Aim::Again(Tier::Q5), all: true };
        assert_eq!(MoveTo::parse("q5:all:again").unwrap(), again);
        assert!(MoveTo::parse_tier("q5:again").is_err());
        for wrong in
            ["absent", "ladder", "packed:some", "", "exact:again", "packed:again", "q5:again:all", ":again"]
        {
            assert!(MoveTo::parse(wrong).is_err(), "{wrong}");
        }
        for (text, name) in [("q5", "q5"), ("warm5", "q5"), ("q8:all", "q8:all")] {
            assert_eq!(MoveTo::parse_variant(text).unwrap().variant_name(), name);
        }
        for wrong in ["exact", "packed", "verbatim", "absent", "q4", "q5:some", "q5:again"] {
            assert!(MoveTo::parse_variant(wrong).is_err(), "{wrong}");
        }
    }
}
