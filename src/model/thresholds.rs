//! Thresholds of the automatic policy and of deltas.
//!
//! `tierfs.toml` has those of the store. A directory, a container or a tensor may have its own, which those below inherit.

use crate::model::{Error, Result};

/// The thresholds of a tensor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Thresholds {
    /// A tensor with a lower score, 0 to 1000, moves down.
    pub down_below: f64,
    /// A tensor with a higher score moves up.
    pub up_above: f64,
    /// Seconds that a tensor stays in its tier before it moves further down.
    pub hold: f64,
    /// Seconds without an access after which a tensor may become absent.
    pub idle: f64,
    /// Weight of an access in the average of accesses a tick.
    pub ema_share: f64,
    /// Share of a block's elements that a delta may change.
    pub delta_changed: f64,
    /// Share of a block's L2 norm that a rounded delta may change.
    pub delta_norm: f64,
    /// Number of deltas on a block.
    pub delta_chain: f64,
    /// Bytes of the disk that stay free: with fewer, caches and the policy make room. 0 for none.
    pub free_min: f64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            down_below: 32.0,
            up_above: 512.0,
            hold: 3600.0,
            idle: 86_400.0,
            ema_share: 0.1,
            delta_changed: 0.1,
            delta_norm: 0.05,
            delta_chain: 8.0,
            free_min: 0.0,
        }
    }
}

/// The form of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// A number with or without a fraction.
    Number,
    /// A whole number.
    Count,
    /// Seconds, or a whole number with one of the units s, m, h and d.
    Time,
    /// Bytes, or a whole number with one of the units K, M, G and T, which are powers of 1024.
    Bytes,
}

/// A threshold: its name, and the values that it may have.
pub struct Threshold {
    /// The key in `tierfs.toml`, and the name of the setting.
    pub name: &'static str,
    form: Form,
    least: f64,
    most: f64,
    place: fn(&mut Thresholds) -> &mut f64,
}

/// The most seconds and bytes: 2^53. Every whole number up to it is an f64.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// [`Thresholds::down_below`].
pub const DOWN_BELOW: Threshold =
    Threshold::new("down_below", Form::Number, [0.0, 1000.0], |of| &mut of.down_below);
/// [`Thresholds::up_above`].
pub const UP_ABOVE: Threshold =
    Threshold::new("up_above", Form::Number, [0.0, 1000.0], |of| &mut of.up_above);
/// [`Thresholds::hold`].
pub const HOLD: Threshold = Threshold::new("hold", Form::Time, [0.0, WHOLE_MAX], |of| &mut of.hold);
/// [`Thresholds::idle`].
pub const IDLE: Threshold = Threshold::new("idle", Form::Time, [0.0, WHOLE_MAX], |of| &mut of.idle);
/// [`Thresholds::ema_share`].
pub const EMA_SHARE: Threshold =
    Threshold::new("ema_share", Form::Number, [0.001, 1.0], |of| &mut of.ema_share);
/// [`Thresholds::delta_changed`].
pub const DELTA_CHANGED: Threshold =
    Threshold::new("delta_changed", Form::Number, [0.0, 1.0], |of| &mut of.delta_changed);
/// [`Thresholds::delta_norm`].
pub const DELTA_NORM: Threshold =
    Threshold::new("delta_norm", Form::Number, [0.0, 1.0], |of| &mut of.delta_norm);
/// [`Thresholds::delta_chain`]. The format has room for eight.
pub const DELTA_CHAIN: Threshold =
    Threshold::new("delta_chain", Form::Count, [1.0, 8.0], |of| &mut of.delta_chain);
/// [`Thresholds::free_min`].
pub const FREE_MIN: Threshold =
    Threshold::new("free_min", Form::Bytes, [0.0, WHOLE_MAX], |of| &mut of.free_min);

/// Every threshold, in the order of `tierfs.toml`.
pub const THRESHOLDS: [Threshold; 9] =
    [DOWN_BELOW, UP_ABOVE, HOLD, IDLE, EMA_SHARE, DELTA_CHANGED, DELTA_NORM, DELTA_CHAIN, FREE_MIN];

impl Threshold {
    const fn new(
        name: &'static str,
        form: Form,
        [least, most]: [f64; 2],
        place: fn(&mut Thresholds) -> &mut f64,
    ) -> Threshold {
        Threshold { name, form, least, most, place }
    }

    /// Parses a value. Fails with `Invalid` for one out of its range.
    pub fn parse(&self, text: &str) -> Result<f64> {
        let (digits, factor) = match self.form {
            Form::Time => split_unit(text, &TIMES),
            Form::Bytes => split_unit(text, &SIZES),
            Form::Number | Form::Count => (text, 1.0),
        };
        let has_fraction = self.form == Form::Number;
        let is_plain = digits.starts_with(|first: char| first.is_ascii_digit())
            && digits.chars().all(|letter| letter.is_ascii_digit() || has_fraction && letter == '.');
        let value = digits.parse::<f64>().ok().filter(|_| is_plain).map(|value| value * factor);
        value.filter(|value| (self.least..=self.most).contains(value)).ok_or_else(|| {
            Error::invalid(format!("invalid value {text:?} of {}; expected {}", self.name, self.values()))
        })
    }

    /// The values that it may have, for people.
    fn values(&self) -> String {
        let Threshold { least, most, .. } = self;
        match self.form {
            Form::Number => format!("a number from {least} to {most}"),
            Form::Count => format!("a whole number from {least} to {most}"),
            Form::Time => "seconds, or a time such as 90s, 30m, 12h or 7d".to_owned(),
            Form::Bytes => "bytes, or a size such as 500M, 50G or 1T".to_owned(),
        }
    }

    /// The value of a set of thresholds.
    pub fn of(&self, thresholds: &Thresholds) -> f64 {
        let mut all = *thresholds;
        *(self.place)(&mut all)
    }

    /// Sets the value.
    pub fn set(&self, thresholds: &mut Thresholds, value: f64) {
        *(self.place)(thresholds) = value;
    }
}

const TIMES: [(char, f64); 4] = [('s', 1.0), ('m', 60.0), ('h', 3600.0), ('d', 86_400.0)];
const SIZES: [(char, f64); 4] =
    [('K', 1024.0), ('M', 1_048_576.0), ('G', 1_073_741_824.0), ('T', 1_099_511_627_776.0)];

/// A number and the factor of its unit, 1 without one.
fn split_unit<'a>(text: &'a str, units: &[(char, f64)]) -> (&'a str, f64) {
    let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(*unit)?, *factor)));
    found.unwrap_or((text, 1.0))
}

#[cfg(test)]
mod tests {
    use super::{DELTA_CHAIN, DOWN_BELOW, EMA_SHARE, FREE_MIN, HOLD, THRESHOLDS, Thresholds};

    #[test]
    fn values_are_plain_numbers_within_their_range() {
        for (text, value) in
            [("0", 0.0), ("90s", 90.0), ("30m", 1800.0), ("12h", 43_200.0), ("7d", 604_800.0)]
        {
            assert_eq!(HOLD.parse(text).unwrap(), value);
        }
        assert_eq!((DOWN_BELOW.parse("1000").unwrap(), EMA_SHARE.parse("0.25").unwrap()), (1000.0, 0.25));
        for text in ["", "-1", "+1", "1e3", "inf", "NaN", ".5", "1.2.3", "1001", " 1", "1d"] {
            assert!(DOWN_BELOW.parse(text).is_err(), "{text}");
        }
        assert_eq!(FREE_MIN.parse("50G").unwrap(), 53_687_091_200.0);
        assert!(FREE_MIN.parse("9T9").is_err() && FREE_MIN.parse("50g").is_err());
        for text in ["1.5", "1.5h", "h", "1w", "9007199254740993d"] {
            assert!(HOLD.parse(text).is_err(), "{text}");
        }
        assert!(
            DELTA_CHAIN.parse("0").is_err()
                && DELTA_CHAIN.parse("9").is_err()
                && EMA_SHARE.parse("0").is_err()
        );
    }

    #[test]
    fn each_threshold_has_a_place_of_its_own_and_a_default_in_its_range() {
        let mut all = Thresholds::default();
        for threshold in &THRESHOLDS {
            let text = threshold.of(&all).to_string();
            assert_eq!(threshold.parse(&text).unwrap(), threshold.of(&all), "{}", threshold.name);
        }
        for (place, threshold) in THRESHOLDS.iter().enumerate() {
            threshold.set(&mut all, 1.0 / (place + 1) as f64);
        }
        for (place, threshold) in THRESHOLDS.iter().enumerate() {
            assert_eq!(threshold.of(&all), 1.0 / (place + 1) as f64);
        }
    }
}
