//! How far precision may be reduced for good.

use crate::model::tier::Tier;

/// The reduction of precision that a person allows where no exact source remains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Loss {
    /// None.
    #[default]
    Deny,
    /// Down to this tier, which keeps all tiers above it.
    DownTo(Tier),
    /// Any, also that of all bytes.
    Any,
}

/// The values of the setting `lossy`: the default first.
pub const LOSSES: [&str; 7] = ["deny", "allow", "allow:q8", "allow:q7", "allow:q5", "allow:q3x", "allow:q3"];

impl Loss {
    /// The reduction that a value of the setting allows; none for an unknown one.
    pub fn parse(value: &str) -> Loss {
        match value.split_once(':') {
            None if value == "allow" => Loss::Any,
            Some(("allow", tier)) => Tier::from_name(tier).map_or(Loss::Deny, Loss::DownTo),
            _ => Loss::Deny,
        }
    }

    /// Whether bytes may stay in a tier only. `Absent` stands for bytes that are gone.
    pub fn allows(self, tier: Tier) -> bool {
        match self {
            Loss::Deny => tier.is_exact(),
            Loss::DownTo(lowest) => !lowest.finer_than(tier),
            Loss::Any => true,
        }
    }

    /// Whether it allows all that another one does.
    pub fn covers(self, other: Loss) -> bool {
        self.allows(match other {
            Loss::Deny => Tier::Exact,
            Loss::DownTo(lowest) => lowest,
            Loss::Any => Tier::Absent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{LOSSES, Loss};
    use crate::model::Tier;

    #[test]
    fn a_value_allows_its_tier_and_those_above_it() {
        let tiers =
            [Tier::Exact, Tier::Packed, Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3x, Tier::Q3, Tier::Absent];
        for (value, allowed) in LOSSES.iter().zip([2, 8, 3, 4, 5, 6, 7]) {
            let loss = Loss::parse(value);
            let allows = tiers.iter().filter(|tier| loss.allows(**tier)).count();
            assert_eq!(allows, allowed, "{value}");
            assert!(tiers.iter().take(allowed).all(|tier| loss.allows(*tier)), "{value}");
        }
        for (place, value) in LOSSES.iter().enumerate().skip(1) {
            let loss = Loss::parse(value);
            assert!(loss.covers(loss) && loss.covers(Loss::Deny) && !Loss::Deny.covers(loss), "{value}");
            assert!(Loss::Any.covers(loss) && (place == 1) == loss.covers(Loss::Any), "{value}");
        }
        for unknown in ["", "allow:", "allow:q9", "until_written", "deny:q8"] {
            assert_eq!(Loss::parse(unknown), Loss::Deny, "{unknown}");
        }
    }
}
