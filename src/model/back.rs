//! Tiers of rows by their distance from the last row of a tensor.

use std::fmt;

use crate::model::{Aim, Error, MoveTo, Result, Tier, beginning};

/// The suffix by which every float tensor is taken, not only those that are usually worth it.
const ALL: &str = ":all";
/// The most bytes of a wrong text that a message repeats.
const SHOWN_MAX: usize = 100;

/// Rows that are further than this from the end go to a tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behind {
    pub tier: Tier,
    /// Rows between them and the end.
    pub rows: u64,
}

/// Rows that stay exact, and the tiers of the rows behind them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tail {
    pub rows: u64,
    pub back: Back,
}

/// The tiers of the rows behind a tail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Back {
    /// The nearest and most precise first.
    steps: Vec<Behind>,
    /// Whether every float tensor is taken.
    all: bool,
}

impl Back {
    /// Parses tiers with quantized values: `q8`, or `q8,q3@32768`, where rows further back than 32768 go to q3. `:all` may
    /// follow. The error states the problem.
    pub fn parse(text: &str) -> Result<Back> {
        let wrong = |why: &str| {
            let shown = beginning(text, SHOWN_MAX);
            Error::invalid(format!("invalid value {shown:?} of back; {why}"))
        };
        let (list, all) = text.strip_suffix(ALL).map_or((text, false), |list| (list, true));
        let mut steps: Vec<Behind> = Vec::new();
        for step in list.split(',') {
            let (name, rows) = step.split_once('@').map_or((step, "0"), |(name, rows)| (name, rows));
            let tier = Tier::from_name(name).filter(|tier| Tier::ENCODED.contains(tier));
            let tier = tier.ok_or_else(|| wrong("expected tiers such as q8, or q8,q3@32768, or none"))?;
            let is_plain = !rows.is_empty() && rows.bytes().all(|byte| byte.is_ascii_digit());
            let rows = rows.parse::<u64>().ok().filter(|_| is_plain);
            let rows = rows.ok_or_else(|| wrong("behind @ stands a number of rows"))?;
            if let Some(before) = steps.last()
                && (rows <= before.rows || !before.tier.finer_than(tier))
            {
                return Err(wrong("each tier is lower than the one before, and begins further back"));
            }
            steps.push(Behind { tier, rows });
        }
        Ok(Back { steps, all })
    }

    /// The steps behind a tail.
    pub fn behind(&self, tail: u64) -> impl Iterator<Item = Behind> {
        self.steps.iter().map(move |step| Behind { rows: step.rows.max(tail), ..*step })
    }

    /// The selection of tensors.
    pub fn takes(&self) -> MoveTo {
        let tier = self.steps.first().map_or(Tier::Q8, |step| step.tier);
        MoveTo { aim: Aim::Tier(tier), all: self.all }
    }
}

impl fmt::Display for Back {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, step) in self.steps.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            write!(out, "{comma}{}", step.tier)?;
            if step.rows > 0 {
                write!(out, "@{}", step.rows)?;
            }
        }
        out.write_str(if self.all { ALL } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::Back;

    #[test]
    fn tiers_fall_with_the_distance() {
        for text in ["q8", "q8,q3@32768", "q8@100,q5@200,q3@300:all", "q3:all"] {
            assert_eq!(Back::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Back::parse("hot,cold@9").unwrap().to_string(), "q8,q3@9");
        let wrong =
            ["", "exact", "packed", "absent", "q8,", "q8,q8@5", "q3,q8@5", "q8@5,q3@5", "q8@5,q3", "q8@"];
        for text in wrong.into_iter().chain(["q8@-1", "q8@+1", "q8,q3@18446744073709551616", "q8 ,q3@5"]) {
            assert!(Back::parse(text).is_err(), "{text}");
        }
        let back = Back::parse("q8,q3@1000").unwrap();
        let rows = |tail| back.behind(tail).map(|step| step.rows).collect::<Vec<_>>();
        assert_eq!((rows(10), rows(5000)), (vec![10, 1000], vec![5000, 5000]));
    }
}
