//! The target of a move between tiers, and which tensors it selects.

use crate::model::{Dtype, Error, KeptBy, Result, Shape, Tier};

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
                    "{other} cannot stand after the colon of a tier; only all can"
                )));
            }
            None => (text, false),
        };
        match Tier::from_name(name) {
            Some(Tier::Absent) | None => Err(Error::invalid(format!(
                "{name} is not a tier to move to; there are exact, q8, q7, q5, q3x and q3"
            ))),
            Some(tier) => Ok(MoveTo { tier, all }),
        }
    }

    /// Whether a tensor is selected for a move of many: float tensors; without `all` only those that
    /// model quantizers usually touch, and none that `keeps` exact. A move back to exact selects all float
    /// tensors.
    pub fn takes(self, dtype: Dtype, shape: &Shape, keeps: impl FnOnce() -> bool) -> bool {
        self.kept_by(dtype, shape, keeps).is_none()
    }

    /// Why a move of many leaves a tensor, if it does.
    pub fn kept_by(self, dtype: Dtype, shape: &Shape, keeps: impl FnOnce() -> bool) -> Option<KeptBy> {
        let is_large = || shape.dimensions().len() >= 2 && shape.elements() >= ELEMENTS_MIN;
        if !dtype.is_quantizable() {
            Some(KeptBy::of(dtype))
        } else if self.all || self.tier == Tier::Exact {
            None
        } else if !is_large() {
            Some(KeptBy::TooSmall)
        } else {
            keeps().then_some(KeptBy::KeepList)
        }
    }
}
