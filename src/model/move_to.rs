//! The target of a move between tiers, and which tensors it selects.

use crate::model::{Dtype, Error, Result, Shape, Tier};

/// A tier, and which tensors move there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveTo {
    /// The tier.
    pub tier: Tier,
    /// Every float tensor, not only those that model quantizers usually touch.
    pub all: bool,
}

/// Tensors with fewer elements stay exact without `all`.
const ELEMENTS_MIN: u64 = 65_536;

impl MoveTo {
    /// Parses `q5` or `q5:all`. The error states the problem.
    pub fn parse(text: &str) -> Result<MoveTo> {
        let (name, all) = match text.split_once(':') {
            Some((name, "all")) => (name, true),
            Some((_, other)) => {
                return Err(Error::invalid(format!(
                    "invalid suffix {other:?} after the colon; expected all"
                )));
            }
            None => (text, false),
        };
        match Tier::from_name(name) {
            Some(Tier::Absent) | None => {
                Err(Error::invalid(format!("invalid tier {name:?}; expected exact, q8, q7, q5, q3 or q3x")))
            }
            Some(tier) => Ok(MoveTo { tier, all }),
        }
    }

    /// Whether a tensor is selected for a move of many: float tensors; without `all` only those that
    /// model quantizers usually touch, and none that `keeps` exact. A move back to exact selects all float
    /// tensors.
    pub fn takes(self, dtype: Dtype, shape: &Shape, keeps: impl FnOnce() -> bool) -> bool {
        let is_large = || shape.dimensions().len() >= 2 && shape.elements() >= ELEMENTS_MIN;
        dtype.is_quantizable() && (self.all || self.tier == Tier::Exact || (is_large() && !keeps()))
    }
}
