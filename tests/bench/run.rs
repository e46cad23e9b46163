//! Runs rows: measures tierfs and its reference in turn, round by round; the first round does not count.

use std::rc::Rc;

use crate::Result;
use crate::place::{Missing, Place};
use crate::table::{Contest, Row, Target};

/// The median of some figures, the least and the largest.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The largest.
    pub largest: f64,
}

impl Spread {
    /// `None` without figures.
    pub fn of(figures: &[f64]) -> Option<Spread> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, largest) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted.get(sorted.len() / 2)?;
        let lower = sorted.get((sorted.len() - 1) / 2)?;
        Some(Spread { median: (lower + upper) / 2.0, least, largest })
    }
}

/// The result of a row.
pub enum Outcome {
    /// Figures of tierfs, of the reference, and of their ratio within each round.
    Measured { ours: Spread, reference: Option<Spread>, ratio: Option<Spread> },
    /// Something that it needs is missing.
    NotRun(String),
    /// An answer was wrong or missing.
    Wrong(String),
}

/// A row and its result.
pub struct Measured {
    /// Its name.
    pub name: String,
    /// As in the row.
    pub what: String,
    /// As in the row.
    pub reference: String,
    /// As in the row.
    pub unit: &'static str,
    /// As in the row.
    pub target: Target,
    /// Whether it goes through a mount.
    pub is_through: bool,
    /// The result.
    pub outcome: Outcome,
}

impl Measured {
    /// Whether the median reaches the target; `None` without a target.
    pub fn is_met(&self) -> Option<bool> {
        let Outcome::Measured { ours, ratio, .. } = &self.outcome else { return None };
        let ratio = ratio.map_or(f64::NAN, |ratio| ratio.median);
        Some(match self.target {
            Target::RatioAtLeast(bound) => ratio >= bound,
            Target::RatioAtMost(bound) => ratio <= bound,
            Target::AtLeast(bound) => ours.median >= bound,
            Target::AtMost(bound) => ours.median <= bound,
            Target::Nothing => return None,
        })
    }
}

/// Runs rows and reports progress.
pub fn run<'a>(
    place: &Rc<Place>,
    rows: impl Iterator<Item = &'a Row>,
    rounds: usize,
) -> Result<Vec<Measured>> {
    let mut done = Vec::new();
    let mut family = String::new();
    for row in rows {
        if row.family != family {
            place.clear();
            family.clone_from(&row.family);
        }
        let begun = std::time::Instant::now();
        let outcome = match (row.prepare)(place).and_then(|contest| measure(contest, rounds)) {
            Ok(outcome) => outcome,
            Err(error) => match error.downcast::<Missing>() {
                Ok(missing) => Outcome::NotRun(missing.to_string()),
                Err(error) => Outcome::Wrong(error.to_string()),
            },
        };
        let measured = Measured {
            name: row.name.clone(),
            what: row.what.clone(),
            reference: row.reference.clone(),
            unit: row.unit,
            target: row.target,
            is_through: row.is_through(),
            outcome,
        };
        println!("{}", crate::report::line(&measured));
        eprintln!("  {:.1} s", begun.elapsed().as_secs_f64());
        done.push(measured);
    }
    place.clear();
    Ok(done)
}

fn measure(mut contest: Contest, rounds: usize) -> Result<Outcome> {
    let (mut ours, mut reference, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        // The two take turns at being first.
        let early =
            if round % 2 == 1 { contest.reference.as_mut().map(|pass| pass()).transpose()? } else { None };
        let one = (contest.ours)()?;
        let other = match (early, &mut contest.reference) {
            (None, Some(pass)) => Some(pass()?),
            (early, _) => early,
        };
        if round == 0 {
            continue;
        }
        ours.push(one);
        reference.extend(other);
        ratios.extend(other.map(|other| one / other));
    }
    let ours = Spread::of(&ours).ok_or("no rounds")?;
    Ok(Outcome::Measured { ours, reference: Spread::of(&reference), ratio: Spread::of(&ratios) })
}
